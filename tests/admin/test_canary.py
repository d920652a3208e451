"""A key that could be anywhere is nowhere: not in a history, the database, a log, a report, a recording."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client

from gradeloop.temporal.connect import Connection, connect
from tests.providers.test_protocols import TOOLS, task
from tests.rig.cli import CommandLine

CANARY = "sk-canary-7f3a9b2c4d5e6f70"


@pytest.fixture
def gradeloop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command with a state folder of its own."""
    command = CommandLine(tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("files"))
    (command.folder / "tools.py").write_text(TOOLS)
    yield command
    command.end()


async def parrot(request: web.Request) -> web.Response:
    """Refuse, and repeat every header and the key in words and headers of its own."""
    sent = json.dumps(dict(request.headers))
    body = {"type": "error", "error": {"type": "authentication_error", "message": f"bad key {CANARY}; you sent {sent}", "code": CANARY}}
    return web.json_response(body, status=401, headers={"x-echo": CANARY, "request-id": CANARY})


@pytest.mark.parametrize("provider", ["anthropic", pytest.param("openai", marks=pytest.mark.slow)])
async def test_a_key_is_in_nothing_that_a_run_leaves_behind(gradeloop: CommandLine, provider: str) -> None:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", parrot)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    variables = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_API_KEY": CANARY, "OPENAI_API_KEY": CANARY}
    process = gradeloop.start("run", task(gradeloop, provider, {}), "--json", "--record", "said.yaml", "--thread", "canary", **variables)
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    await server.close()

    result = json.loads(out.splitlines()[-1])
    assert "auth: AuthenticationError, HTTP 401" in json.dumps(result), out
    assert CANARY not in out + err
    history = await exported(gradeloop)
    assert "AuthenticationError" in history
    assert CANARY not in history
    await asyncio.to_thread(gradeloop, "dev", "stop")
    left = [path for folder in (gradeloop.state, gradeloop.folder) for path in folder.rglob("*") if path.is_file()]
    assert len(left) > 4
    assert any(path.suffix == ".db" for path in left)
    assert [path.name for path in left if CANARY.encode() in path.read_bytes()] == []


async def exported(gradeloop: CommandLine) -> str:
    """Return the thread's history as its JSON export."""
    address = json.loads((gradeloop.state / "server.json").read_text())["address"]
    client: Client = await connect(Connection(address, "default", embedded=True, ui=None))
    return (await client.get_workflow_handle("canary").fetch_history()).to_json()
