"""`gradeloop doctor` on the OTLP receiver: whether it answers, takes requests and reaches its store, and what to do where not."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gradeloop.admin import doctor
from gradeloop.admin.doctor import Finding, receiver_finding
from gradeloop.monitors import receiver as receivers
from gradeloop.settings.worker import ReceiverSettings
from rig.otlp import Receiving, chat, receiver, request_of
from tests.rig.cli import CommandLine

TOKEN = "s3cret-token"


@pytest.fixture
def closed_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def settings(address: str, **more: Any) -> ReceiverSettings:
    """Return a receiver's settings."""
    return ReceiverSettings.model_validate({"address": address.removeprefix("http://"), **more})


async def asked(found: Receiving, **more: Any) -> Finding:
    """Return what is found of a receiver that serves."""
    return await receiver_finding(settings(found.url, **more), {"TOKEN": TOKEN})


async def test_a_receiver_that_is_not_set_up_is_no_fault() -> None:
    seen = await receiver_finding(None, {})

    assert (seen.ok, seen.detail) == (None, "none is set up; `gradeloop dev` receives OTLP at 127.0.0.1:4318, where that is free")


async def test_one_that_takes_requests_and_reaches_its_store_works_and_keeps_nothing_of_the_question(tmp_path: Path) -> None:
    async with receiver(f"sqlite:///{tmp_path}/s.db") as found:
        seen = await asked(found)
        kept = await found.runs()

    assert (seen.ok, seen.detail, seen.cure) == (True, f"takes OTLP at {found.url}, and reaches its store", None)
    assert kept == []


async def test_where_nobody_answers_the_cure_starts_one(closed_port: int) -> None:
    seen = await receiver_finding(settings(f"127.0.0.1:{closed_port}"), {})

    assert (seen.ok, seen.detail) == (False, f"nobody answers at http://127.0.0.1:{closed_port}")
    assert seen.cure == "start one: gradeloop worker --role receiver, or gradeloop dev"


async def test_one_that_is_open_to_other_machines_is_asked_from_this_one(tmp_path: Path) -> None:
    async with receiver(f"sqlite:///{tmp_path}/s.db", token="TOKEN", environment={"TOKEN": TOKEN}) as found:
        port = found.url.rpartition(":")[2]
        seen = await receiver_finding(settings(f"0.0.0.0:{port}", token="TOKEN"), {"TOKEN": TOKEN})

    assert (seen.ok, seen.detail) == (True, f"takes OTLP at http://127.0.0.1:{port}, and reaches its store")


async def test_a_token_that_is_refused_or_missing_is_named_by_its_variable_and_never_shown(tmp_path: Path) -> None:
    async with receiver(f"sqlite:///{tmp_path}/s.db", token="TOKEN", environment={"TOKEN": "another-token"}) as found:
        wrong = await asked(found, token="TOKEN")
        without = await asked(found)
        unset = await receiver_finding(settings(found.url, token="TOKEN"), {})

    assert (wrong.ok, wrong.detail) == (False, f"the receiver at {found.url} refuses the token in TOKEN")
    assert wrong.cure == "give exporters and receiver the same token, and start the receiver again"
    assert (without.ok, without.detail) == (False, f"the receiver at {found.url} asks for a token, and receiver.token names none")
    assert without.cure == "name the variable with its token in receiver.token"
    assert (unset.ok, unset.detail) == (
        False,
        "receiver.token names the variable TOKEN, which is not set; set it to the token that exporters send",
    )
    assert "another-token" not in f"{wrong}{without}{unset}"
    assert TOKEN not in f"{wrong}{without}{unset}"


async def test_an_address_for_other_machines_without_a_token_is_a_fault_before_anything_is_asked(closed_port: int) -> None:
    seen = await receiver_finding(settings(f"0.0.0.0:{closed_port}"), {})

    assert (seen.ok, "is open to other machines, and no token is asked for" in seen.detail) == (False, True)


async def test_any_free_port_cannot_be_asked() -> None:
    seen = await receiver_finding(settings("127.0.0.1:0"), {})

    assert (seen.ok, seen.detail) == (
        None,
        "receiver.address '127.0.0.1:0' leaves the port to the system, so that nobody knows where to ask",
    )
    assert seen.cure == "name a port in receiver.address"


async def test_one_that_is_full_says_so_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "LOOK_SECONDS", 0.05)
    async with receiver(f"sqlite:///{tmp_path}/s.db", max_open_traces=1, settle=60) as found:
        await found.send(request_of(chat("a")))
        await asyncio.sleep(0.5)
        seen = await asked(found)

    assert (seen.ok, seen.cure) == (False, None)
    assert seen.detail == (
        f"the receiver at {found.url} takes nothing: 1 traces have not settled; try again, or raise receiver.max_open_traces (HTTP 429)"
    )


async def test_one_whose_store_is_away_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    async with receiver(f"sqlite:///{tmp_path}/there/s.db") as found:
        (tmp_path / "there").rename(tmp_path / "gone")
        (tmp_path / "there").write_text("no folder")
        seen = await asked(found)

    assert (seen.ok, seen.detail.startswith(f"the receiver at {found.url} is not ready: store: ")) == (False, True), seen.detail
    assert seen.cure == "start the store, or correct GRADELOOP_STORE of the receiver"


@pytest.mark.parametrize(
    ("status", "document"), [(404, {}), (200, {"status": "Server available"}), (200, []), (503, {"ok": False, "checks": {"server": "x"}})]
)
async def test_somebody_else_at_the_port_is_told_from_a_receiver_and_gets_no_token(status: int, document: Any) -> None:
    sent = []

    async def answer(request: web.Request) -> web.Response:
        sent.append(dict(request.headers))
        return web.json_response(document, status=status)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        url = str(server.make_url("")).rstrip("/")
        seen = await receiver_finding(settings(url, token="TOKEN"), {"TOKEN": TOKEN})
    finally:
        await server.close()

    assert (seen.ok, seen.detail) == (False, f"what answers at {url} is not a receiver of gradeloop")
    assert seen.cure == "stop it, or give the receiver another receiver.address"
    assert TOKEN not in str(sent)


async def test_one_that_takes_connections_and_answers_nothing_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        seen = await receiver_finding(settings(url), {})

    assert (seen.ok, seen.detail) == (False, f"the receiver at {url} was reached, but does not answer within 0.3 s")
    assert seen.cure == "look at its log, and start it again"


@pytest.mark.slow
def test_the_command_asks_the_receiver_of_its_settings(commands: CommandLine, closed_port: int) -> None:
    without = commands("doctor", "--json")
    down = commands("doctor", "--json", GRADELOOP_RECEIVER__ADDRESS=f"127.0.0.1:{closed_port}")
    text = commands("doctor", GRADELOOP_ROLE="receiver", GRADELOOP_RECEIVER__TOKEN="OTLP_TOKEN")

    rows = [next(row for row in json.loads(done.out) if row["subject"] == "receiver") for done in (without, down)]
    assert (without.code, rows[0]["ok"]) == (0, None)
    assert (down.code, rows[1]["detail"]) == (1, f"nobody answers at http://127.0.0.1:{closed_port}")
    assert "✗ receiver: receiver.token names the variable OTLP_TOKEN, which is not set; set it to the token" in text.out
