"""The services that the examples show run as they stand: FastAPI with a stream of events, a page for a person, TypeScript."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from re import findall

import httpx2 as httpx
import pytest
from temporalio.client import Client

from gradeloop import GradingClient
from gradeloop.contract.thread import TASK_QUEUE
from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import MODEL, ScriptedModels, worker
from tests.rig.typescript_example import build_example

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def serving(server: ServerInfo, models: ScriptedModels, name: str, *arguments: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run an example of a web service beside a scripted worker; yield a client of it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, str(EXAMPLES / name), *(str(port) if argument == "PORT" else argument for argument in arguments)]
    connection = Connection(server.address, "default", embedded=False)
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address}
    async with (
        worker(models, server=connection, queue=TASK_QUEUE),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(240):
                while process.returncode is None:
                    try:
                        await http.get("/nowhere")
                    except httpx.ConnectError:
                        await asyncio.sleep(0.1)
                    else:
                        break
            yield http
        finally:
            process.terminate()
            await process.wait()


async def test_the_fastapi_service_streams_the_events_of_a_thread_and_gives_its_answer(temporal_server: ServerInfo) -> None:
    models = ScriptedModels(["Sorry to hear that.", "Bring it in: we replace the chain today."], [{"c1": "no next step is named"}, {}])

    async with serving(temporal_server, models, "service_fastapi.py", MODEL, "PORT") as http:
        thread = (await http.post("/threads", json={"question": "The chain has snapped."})).json()["thread_id"]
        async with http.stream("GET", f"/threads/{thread}/events") as stream:
            text = "".join([part async for part in stream.aiter_text()])
        again = (await http.get(f"/threads/{thread}/events", headers={"last-event-id": "4"})).text
        answer = (await http.get(f"/threads/{thread}/answer")).json()
        nowhere, empty = await http.get("/threads/none/events"), await http.post("/threads", json={"question": ""})

    kinds, ids = findall(r"^event: (.+)$", text, 8), findall(r"^id: (.+)$", text, 8)
    found = [json.loads(line) for line in findall(r"^data: (.+)$", text, 8)]
    assert kinds.count("rubric_evaluation_end") == 2
    assert kinds[-1] == "end"
    assert ids == [str(number + 1) for number in range(len(ids))]
    assert [event["evaluation"]["result"] for event in found if "evaluation" in event] == ["needs_revision", "satisfied"]
    assert again.startswith("id: 5\n")
    assert answer["answer"] == "Bring it in: we replace the chain today."
    assert (nowhere.status_code, empty.status_code) == (404, 422)


async def test_a_person_rejects_and_approves_drafts_on_the_approval_page(temporal_server: ServerInfo, client: Client) -> None:
    models = ScriptedModels(["<b>Sorry!</b>", "Bring it in today."])
    person = {"id": "tone", "description": "The owner likes it", "human": True}
    request = {
        "messages": [{"role": "user", "content": "The chain has snapped."}],
        "rubric": {"criteria": ["It answers", person]},
        "generator": {"model": MODEL},
        "grader": {"model": MODEL},
    }

    async with serving(temporal_server, models, "approval_page.py", "PORT", "ada") as http:
        grading = GradingClient(client)
        thread = await grading.start(request)
        own = {"origin": str(http.base_url).rstrip("/")}
        first = await page_with(http, "Sorry!")
        fields = dict(findall(r'name="(thread|run|iteration|criterion)" value="([^"]*)"', first))
        refused = await http.post("/decide", data={**fields, "answer": "yes"}, headers={"origin": "https://elsewhere.example"})
        rejected = await http.post("/decide", data={**fields, "answer": "no", "why": "name a day"}, headers=own)
        second = await page_with(http, "Bring it in today.")
        stale = await http.post("/decide", data={**fields, "answer": "yes"}, headers=own)
        fields = dict(findall(r'name="(thread|run|iteration|criterion)" value="([^"]*)"', second))
        await http.post("/decide", data={**fields, "answer": "yes"}, headers=own)
        result = await grading.result(thread)

    assert "<b>Sorry!</b>" not in first
    assert "<b>Sorry!</b>" in unescape(first)
    assert (refused.status_code, rejected.status_code, stale.status_code) == (403, 303, 409)
    assert (result.status, result.output, result.iterations) == ("satisfied", "Bring it in today.", 2)
    assert result.evaluations[0].criteria[1].gap == "name a day"


async def page_with(http: httpx.AsyncClient, words: str) -> str:
    """Return the page once it shows these words."""
    async with asyncio.timeout(240):
        while words not in (text := (await http.get("/")).text):
            await asyncio.sleep(0.2)
    return text


@pytest.fixture(scope="module")
def typescript() -> Path:
    """Build the service in TypeScript, once, where Node and its packages are."""
    example = EXAMPLES / "typescript_service"
    return build_example(example, [example / "service.ts", EXAMPLES.parent / "docs" / "contract.d.ts"])


@pytest.mark.slow
async def test_the_typescript_service_speaks_plain_json_to_temporal(temporal_server: ServerInfo, typescript: Path) -> None:
    models = ScriptedModels(["Sorry to hear that.", "Bring it in today."], [{"c1": "no next step is named"}, {}])
    connection = Connection(temporal_server.address, "default", embedded=False)

    async with worker(models, server=connection, queue=TASK_QUEUE):
        process = await asyncio.create_subprocess_exec(
            *("node", "dist/service.js", MODEL),
            cwd=typescript,
            env={**os.environ, "TEMPORAL_ADDRESS": temporal_server.address},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 100)

    assert out.decode().splitlines() == ["iteration 1: needs_revision", "iteration 2: satisfied", "Bring it in today."], err.decode()
    assert process.returncode == 0
