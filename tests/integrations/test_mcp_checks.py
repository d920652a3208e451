"""The protocol's own conformance checks and its inspector, against the server for agents; CONTRIBUTING.md says how to have them."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradeloop.integrations.agent_session import AgentSession, SessionLimits, SessionModels
from gradeloop.integrations.mcp_server import build_server, serving_http
from gradeloop.testing import MODEL
from gradeloop.web.serving import serving_app
from tests.test_house import BIN

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

TOKEN = "a-token-of-sixteen-or-more"
EXPECTED = Path(__file__).parent / "mcp_expected_failures.yaml"
PACKAGES = Path(os.environ.get("GRADELOOP_MCP_CHECKS", "none"))
"""The folder `node_modules` with the checks, the inspector, and the Node that both want."""

NODE = PACKAGES / "node/bin/node"
CONFORMANCE = PACKAGES / "@modelcontextprotocol/conformance/dist/index.js"
INSPECTOR = PACKAGES / ".bin/mcp-inspector"

pytestmark = pytest.mark.skipif(not NODE.exists(), reason="GRADELOOP_MCP_CHECKS names no folder with the protocol's checks")


def session() -> AgentSession:
    return AgentSession(SessionLimits(), SessionModels(grader=MODEL, generator=MODEL))


@asynccontextmanager
async def open_to_this_machine() -> AsyncIterator[str]:
    """Serve without a token, which the conformance checks cannot send."""
    made = session()
    server, listening = build_server(made), socket.create_server(("127.0.0.1", 0))
    host, port = listening.getsockname()
    app = server.streamable_http_app(host=host)

    async def http_alone(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    async with server.session_manager.run(), serving_app(http_alone, listening):
        yield f"http://{host}:{port}/mcp"
    await made.close()


async def run(*command: str | Path) -> tuple[int, str]:
    """Run a program of Node, and return its exit code with what it said."""
    process = await asyncio.create_subprocess_exec(
        NODE,
        *command,
        env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 240)
    return process.returncode or 0, said.decode()


async def inspected(*target: str) -> dict[str, Any]:
    """Return what the inspector has of a call, without a doubt of its own."""
    code, said = await run(INSPECTOR, "--cli", *target, "--format", "json", "--connect-timeout", "120000")
    assert (code, "Warning" in said) == (0, False), said
    return dict(json.loads(said[said.index("{") :])["result"])


async def test_the_conformance_checks_pass_but_for_those_of_their_own_server(tmp_path: Path) -> None:
    async with open_to_this_machine() as url:
        checks = ("server", "--url", url, "--suite", "all", "--expected-failures", EXPECTED, "--output-dir", tmp_path)
        code, said = await run(CONFORMANCE, *checks)

    assert code == 0, said
    assert "✓ dns-rebinding-protection: 2 passed, 0 failed" in said
    assert "✓ server-sse-multiple-streams: 2 passed, 0 failed" in said


async def test_the_inspector_reads_everything_over_http() -> None:
    async with serving_http(session(), socket.create_server(("127.0.0.1", 0)), TOKEN) as url:
        at = (url, "--header", f"Authorization: Bearer {TOKEN}", "--method")
        tools = await inspected(*at, "tools/list", "--strict")
        checked = await inspected(*at, "tools/call", "--tool-name", "check_rubric", "--tool-args-json", '{"rubric": "- names the month"}')
        prompts = await inspected(*at, "prompts/list")
        templates = await inspected(*at, "resources/templates/list")
        stranger, refusal = await run(INSPECTOR, "--cli", url, "--header", "Authorization: Bearer other", "--method", "tools/list")

    assert {"grade", "revise", "wait"} < {tool["name"] for tool in tools["tools"]}
    assert checked["structuredContent"]["criteria"][0]["text"] == "names the month"
    assert [prompt["name"] for prompt in prompts["prompts"]] == ["write_rubric", "mend_gaps"]
    assert [template["uriTemplate"] for template in templates["resourceTemplates"]] == ["gradeloop://report/{name}"]
    assert stranger != 0, refusal


async def test_the_inspector_reads_everything_over_standard_input(environment: Path) -> None:
    command = (str(BIN / "gradeloop"), "mcp", "--grader", MODEL, "--model", MODEL)
    tools = await inspected(*command, "-e", f"GRADELOOP_STATE_DIR={environment}", "--method", "tools/list", "--strict")

    assert {"grade", "revise", "wait"} < {tool["name"] for tool in tools["tools"]}
