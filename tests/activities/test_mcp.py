"""MCP servers: declared by name, their tools listed one by one, read-only unless said otherwise, looked at before each call."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.tool_call import tool_activity
from activities.tools.base import ToolContext
from activities.tools.mcp import McpServers
from activities.tools.registry import ToolRegistry
from gradeloop.contract.evaluation import EVIDENCE_BYTES
from gradeloop.contract.provider import ModelRequest
from gradeloop.errors import InvalidRequest
from gradeloop.settings.worker import McpSettings, WorkerSettings
from tests.rig.threads import Models, Served, draft, grade, request, row, wants
from worker import build

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected_here"),
]

SCRIPT = Path(__file__).parents[1].joinpath("rig", "mcp_server.py")
READING = ("opening_hours", "everything", "broken", "picture", "changing", "environment", "leave")


def shop(folder: Path, **more: Any) -> dict[str, McpSettings]:
    """Return the settings of the tests' server."""
    fields = {"command": (sys.executable, str(SCRIPT), str(folder)), "tools": READING} | more
    return {"shop": McpSettings.model_validate(fields)}


@asynccontextmanager
async def serving_mcp(client: Client, settings: dict[str, McpSettings], *replies: Any) -> AsyncIterator[Served]:
    """Serve threads with the tools of MCP servers."""
    models, queue = Models(replies, {}), f"queue-{uuid4()}"
    async with McpServers(settings) as servers:
        tools = ToolRegistry([], ToolContext(WorkerSettings()), servers)
        async with build(client, models, tools, WorkerSettings(task_queue=queue)):
            yield Served(client, queue, models, tools)
    await models.aclose()


async def heard(client: Client, settings: dict[str, McpSettings], tool: str, **arguments: Any) -> str:
    """Return what the grader is told of a call."""
    (answer,) = (await told(client, settings, {"name": tool, "arguments": arguments})).messages[-1:]
    return answer.content


async def told(client: Client, settings: dict[str, McpSettings], *calls: dict[str, Any]) -> ModelRequest:
    """Return the grader's request behind its calls."""
    argument = request("- x")
    argument["grader"]["tools"] = sorted({call["name"] for call in calls})
    async with serving_mcp(client, settings, draft(), wants("grader", *calls), grade(step=1)) as served:
        result = await asyncio.wait_for(served.run(argument), 240)
    assert result.status == "satisfied"
    return served.models.requests_of("grader")[1]


async def test_a_listed_tool_answers_a_grader_in_bounds_and_is_told_what_it_needs(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("SHOP_TOKEN", "token")
    calls: list[dict[str, Any]] = [{"name": f"shop__{name}"} for name in ("broken", "picture", "everything", "environment")]
    calls += [{"name": "shop__opening_hours", "arguments": given} for given in ({"day": "sunday"}, {"hour": 3})]

    asked = await told(client, shop(tmp_path, environment=["SHOP_TOKEN"]), *calls)

    broken, picture, everything, environment, hours, mistaken = [one.content for one in asked.messages if one.role == "tool"]
    assert hours == "closed"
    assert (tmp_path / "calls").read_text() == "sunday\n"
    assert "validation error" in mistaken.lower()
    assert "no such shelf" in broken
    assert picture.startswith("[image/png, 1340 characters of base64, sha256 ")
    assert len(everything.encode()) <= EVIDENCE_BYTES
    assert everything.startswith("HEADxx")
    assert everything.endswith("xxTAIL")
    assert "[… the middle of 5000008 bytes left out …]" in everything
    assert "SHOP_TOKEN" in environment.split()
    assert "OPENAI_API_KEY" not in environment.split()
    spec = next(tool for tool in asked.tools if tool.name == "shop__opening_hours")
    assert spec.description == "Tell when the shop is open."
    assert spec.parameters["properties"] == {"day": {"title": "Day", "type": "string"}}


@pytest.mark.slow
async def test_what_does_not_say_that_it_only_reads_is_refused_by_name_unless_it_is_meant(tmp_path: Path) -> None:
    async with McpServers(shop(tmp_path, tools=["order", "reserve", "nothing"])) as servers:
        refused = ToolRegistry([], ToolContext(WorkerSettings()), servers)
        with pytest.raises(InvalidRequest, match=r"does not say that 'order' only reads; list it in mcp\.shop\.writes"):
            refused.refuse_unknown(["shop__order"], "grader.tools")
        with pytest.raises(InvalidRequest, match="the MCP server 'shop' has no tool 'nothing'"):
            refused.refuse_unknown(["shop__nothing"], "grader.tools")
        with pytest.raises(InvalidRequest, match="unknown tool 'shop__opening_hours'"):
            refused.refuse_unknown(["shop__opening_hours"], "grader.tools")
    async with McpServers(shop(tmp_path, tools=["order", "reserve"], writes=["order", "reserve"])) as servers:
        meant = {tool.spec.name: tool.repeatable for tool in servers.tools}

    assert meant == {"shop__order": False, "shop__reserve": True}


@pytest.mark.slow
async def test_a_tool_that_changes_in_a_run_is_not_called_and_the_next_run_sees_it_anew(client: Client, tmp_path: Path) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["shop__changing"]
    call = {"name": "shop__changing", "arguments": {"word": "spring"}}
    first = [draft(), wants("grader", call), grade(0, row("c1", "no"), step=1)]
    first += [draft(1), wants("grader", call, iteration=1), grade(1, step=1)]
    async with serving_mcp(client, shop(tmp_path), *first) as served:
        gate = served.models.gate("generator", iteration=1)
        thread = await served.start(argument)
        await asyncio.wait_for(gate.reached.wait(), 240)
        (tmp_path / "description").write_text("After.")
        await restarted(served)
        gate.opened.set()
        await thread.result()
        answer = [request.messages[-1].content for request in served.models.requests_of("grader")]
        again = await served.run(argument)

    assert answer[1] == "spring"
    assert answer[3] == "shop__changing has changed its description or parameters since this run began; it was not called"
    assert again.status == "satisfied"
    assert served.models.requests_of("grader")[4].tools[0].description == "After."
    assert served.models.requests_of("grader")[5].messages[-1].content == "spring"


async def restarted(served: Served) -> None:
    """Have the server end; the next call starts it anew."""
    leave = next(tool for tool in served.tools if tool.spec.name == "shop__leave")
    with contextlib.suppress(Exception):
        await leave.run({}, "", "x")


@pytest.mark.slow
async def test_a_server_that_ends_in_the_middle_of_a_call_is_told(client: Client, tmp_path: Path) -> None:
    answer = await heard(client, shop(tmp_path), "shop__leave")

    assert "closed" in answer.lower() or "failed" in answer.lower()


@pytest.mark.slow
async def test_a_server_that_never_answers_is_given_up(client: Client, tmp_path: Path) -> None:
    began = time.monotonic()
    answer = await heard(client, shop(tmp_path, tools=["stuck"], seconds=1), "shop__stuck")

    assert "timed out" in answer.lower() or "timeout" in answer.lower()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("command", [[sys.executable, "-c", "raise SystemExit(1)"], ["/nowhere/server"]])
@pytest.mark.slow
async def test_a_server_that_does_not_start_refuses_its_tools_and_takes_nothing_else_with_it(command: list[str]) -> None:
    settings = McpSettings.model_validate({"command": command, "tools": ["look"]})
    async with McpServers({"shop": settings}) as servers:
        tools = ToolRegistry([], ToolContext(WorkerSettings()), servers)

    with pytest.raises(InvalidRequest, match="the MCP server 'shop' did not list its tools"):
        tools.refuse_unknown(["shop__look"], "grader.tools")
    assert [tool_activity(tool) for tool in tools]


async def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@pytest.mark.slow
async def test_a_server_over_http_answers_too(client: Client, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(tmp_path), str(port)], env=os.environ, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(240):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        settings = shop(tmp_path, command=(), url=f"http://127.0.0.1:{port}/mcp")
        assert await heard(client, settings, "shop__opening_hours", day="monday") == "9 to 18"
    finally:
        process.kill()
        process.wait()
