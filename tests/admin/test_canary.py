"""A key that could be anywhere is nowhere: not in a history, the database, a log, a report, a recording."""

import asyncio
import base64
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client

from activities.providers.base import _event, json_object
from gradeloop.contract.provider import ModelFault
from gradeloop.settings.secrets import environment_secrets, scrubbed
from gradeloop.telemetry.logs import TextFormatter
from gradeloop.temporal.connect import Connection, connect
from tests.providers.test_protocols import TOOLS, task
from tests.rig.cli import CommandLine, draft, verdict

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


LEAKY = """
import os

KEY = os.environ["OPENAI_API_KEY"]

def fails(draft: str) -> bool:
    'Fail with the key where a message is cut.'
    raise ValueError("x" * (2_000 - len("ValueError: ") - 12) + KEY)

def says() -> str:
    'Return the key where evidence is cut.'
    return "y" * (32 * 1024 - 100 - 12) + KEY + "z" * 100_000

def loses() -> str:
    'Fail as a call of the grader.'
    raise ValueError("x" * (2_000 - len("ValueError: ") - 12) + KEY)
"""


@pytest.mark.parametrize("caller", ["grader", pytest.param("check", marks=pytest.mark.slow)])
async def test_no_key_is_left_by_its_beginning_where_a_text_is_cut(gradeloop: CommandLine, caller: str) -> None:
    (gradeloop.folder / "tools.py").write_text(LEAKY)
    calls = [{"name": "says", "arguments": {}, "id": "1"}, {"name": "loses", "arguments": {}, "id": "2"}]
    replies = [draft("A draft."), {"role": "grader", "tool_calls": calls}, verdict(step=1)]
    checked = {"id": "c2", "description": "it is right", "check": "fails", "required": False}
    rubric = {"criteria": [{"id": "c1", "description": "it is good"}, *([checked] if caller == "check" else [])]}
    grader = {"model": "scripted:story", "tools": ["says", "loses"]}
    name = gradeloop.task("leaky", replies, rubric=rubric, grader=grader, tools="tools.py")

    done = await asyncio.to_thread(gradeloop.alone, "run", name, "--json", "--thread", "canary", OPENAI_API_KEY=CANARY)

    history = b"".join(base64.b64decode(found) for found in re.findall(r'"data": *"([^"]+)"', await exported(gradeloop)))
    assert b"xxxx[key]" in history + done.out.encode()
    assert (b"yyyy[key]" in history) == (caller == "grader")
    await asyncio.to_thread(gradeloop, "dev", "stop")
    beginning = CANARY[:12]
    assert beginning not in done.out + done.err
    assert beginning.encode() not in history
    left = [path for path in gradeloop.state.rglob("*") if path.is_file()]
    assert [path.name for path in left if beginning.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("reply", [json_object, _event], ids=["reply", "event"])
def test_no_key_is_left_by_its_beginning_where_a_reply_is_shown(reply: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    text = "x" * 70 + CANARY + "x" * 100

    with pytest.raises(ModelFault) as caught:
        reply(text.encode() if reply is json_object else text)

    assert "xxx[key]x" in caught.value.message
    assert CANARY[:4] not in caught.value.message


def test_what_a_worker_logs_has_no_key_not_in_a_traceback_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    with pytest.raises(ValueError, match="the header is") as caught:
        raise ValueError(f"the header is {CANARY}")
    cause = (ValueError, caught.value, caught.tb)
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it failed with %s", (CANARY[:14],), cause)

    logged = TextFormatter(scrubbed, "%(message)s").format(record)

    assert "ValueError: the header is [key]" in logged
    assert logged.startswith("it failed with [key]")
    assert CANARY[:12] not in logged


SECRETS = [
    ({"SHOP_TOKEN": "abcdefgh12345"}, {"abcdefgh12345"}),
    ({"STORE": "postgresql://me:pass-word-1@host/db"}, {"pass-word-1"}),
    ({"TLS_KEY": "/etc/ssl/key.pem", "MONKEY": "no secret at all", "TOKENS": "123456789", "A_KEY": "short"}, set()),
    ({"A_KEY": "/aB3+xYz0123456789=="}, {"/aB3+xYz0123456789=="}),
    ({"A_KEY": "/aB3/xYz0123456789+="}, {"/aB3/xYz0123456789+="}),
    ({"PWD": "/usr/lib", "GOOGLE_APPLICATION_CREDENTIALS": "/usr/lib/no-such.json", "SSH_AUTH_SOCK": "/tmp/ssh-a/agent.1"}, set()),
    *(
        ({name: "abcdefgh12345"}, {"abcdefgh12345"})
        for name in (
            *("PGPASSWORD", "GITHUB_PAT", "OPENAI_API_KEY_2", "OPENAI_API_KEY2", "STRIPE_KEY_LIVE", "MYSQL_PWD", "SMTP_PASS"),
            *("SECRETKEY", "SSH_PASSPHRASE", "GHTOKEN", "db_password_old", "REGISTRY_AUTH", "AWS_SECRET_ACCESS_KEY"),
        )
    ),
    ({"OPENAI_API_KEYS": "abcdefgh1,abcdefgh2"}, {"abcdefgh1,abcdefgh2", "abcdefgh1", "abcdefgh2"}),
    ({"GRADELOOP_ENCRYPTION_KEYS": "python:our_kms:keys"}, set()),
    ({"STORE": "postgresql://gradeloop@host/db"}, set()),
    ({"STORE": "postgresql://me:pass%2Fword-1@host/db"}, {"pass%2Fword-1", "pass/word-1"}),
    ({"STORE": "postgresql+psycopg://me:pass/word-1@host/db"}, {"pass/word-1"}),
    ({"STORE": "postgresql://host/db?user=me&password=pass-word-1"}, {"pass-word-1"}),
    ({"DSN": "host=db user=me password=pass-word-1"}, {"pass-word-1"}),
    ({"STORAGE": "AccountName=me;AccountKey=abcdefgh1234==;Suffix=core"}, {"abcdefgh1234=="}),
    ({"REMOTE": "https://ghp0123456789abcdef@host/me/it.git"}, {"ghp0123456789abcdef"}),
    ({"OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=abcdefgh1234,x-team=everybody"}, {"abcdefgh1234"}),
]


def test_the_secrets_of_an_environment_are_known_by_their_names(subtests: pytest.Subtests) -> None:
    for variables, found in SECRETS:
        with subtests.test(str(variables)):
            assert environment_secrets(variables) == found


async def exported(gradeloop: CommandLine) -> str:
    """Return the thread's history as its JSON export."""
    address = json.loads((gradeloop.state / "server.json").read_text())["address"]
    client: Client = await connect(Connection(address, "default", embedded=True))
    return (await client.get_workflow_handle("canary").fetch_history()).to_json()
