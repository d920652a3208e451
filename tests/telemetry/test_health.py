"""Probes: /healthz says whether the process turns, /readyz whether server, store, sandboxes and keys are there."""

import asyncio
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from gradeloop.admin import doctor
from gradeloop.client.client import GradingClient
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.settings.secrets import scrubbed
from gradeloop.telemetry import health
from gradeloop.telemetry.health import Check, HealthChecks, parse_address, serving_health
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from tests.rig.cli import CommandLine
from tests.rig.pages import paged
from tests.rig.stalled import stall
from tests.temporal.test_worker import started, until_ready
from workflows.run_ahead import Activations, RecordedTasksRunner

RELEASED = threading.Event()


@workflow.defn
class Hanging:
    """Waits where nothing interrupts it, as for the lock of a module whose import was interrupted."""

    @workflow.run
    async def run(self) -> None:
        """Wait."""
        RELEASED.wait(60)


KEY = "sk-canary-7f3a9b2c4d5e6f70"


async def fine() -> None:
    """Find nothing wrong."""


async def broken() -> None:
    raise StoreUnavailable(f"the store cannot be used: {KEY}")


async def silent() -> None:
    await asyncio.sleep(60)


async def asked(url: str) -> tuple[int, dict[str, Any]]:
    async with httpx2.AsyncClient(trust_env=False, timeout=240) as http:
        answer = await http.get(url)
    return answer.status_code, answer.json()


def checks(**given: Check) -> HealthChecks:
    return HealthChecks(given, scrubbed)


async def test_ready_names_what_is_wrong_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.2)
    with serving_health(("127.0.0.1", 0), checks(server=silent, store=broken, sandboxes=fine)) as url:
        alive, ready, absent = await asked(f"{url}/healthz"), await asked(f"{url}/readyz"), await asked(f"{url}/etc/passwd")

    assert alive == (200, {"ok": True})
    assert ready == (
        503,
        {"ok": False, "checks": {"server": "no answer within 0 s", "store": "the store cannot be used: [key]", "sandboxes": "ok"}},
    )
    assert absent[0] == 404


async def test_a_workflow_whose_thread_hangs_is_said_to_hang(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STEP_SECONDS", 0.5)
    queue, steps = f"hanging-{uuid4()}", Activations()
    worker = Worker(client, task_queue=queue, workflows=[Hanging], workflow_runner=RecordedTasksRunner(activations=steps))
    with serving_health(("127.0.0.1", 0), checks(server=fine), lambda: steps.longest) as url:
        async with worker:
            handle = await client.start_workflow(Hanging.run, id=queue, task_queue=queue)
            try:
                while (hung := await asked(f"{url}/healthz"))[0] == 200:
                    await asyncio.sleep(0.1)
                ready = await asked(f"{url}/readyz")
            finally:
                RELEASED.set()
            await handle.result()
            well = await asked(f"{url}/healthz")

    assert hung[0] == ready[0] == 503
    assert hung[1]["error"].startswith("a workflow's thread has not come back for ")
    assert well == (200, {"ok": True})


async def test_a_loop_that_hangs_is_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STALL_SECONDS", 0.3)
    answered = threading.Event()

    def look(url: str) -> tuple[int, str]:
        time.sleep(0.6)  # while the loop does nothing
        try:
            answer = httpx2.get(f"{url}/healthz", trust_env=False, timeout=60)
        finally:
            answered.set()
        return answer.status_code, answer.text

    with serving_health(("127.0.0.1", 0), checks(server=fine)) as url:
        looking = asyncio.get_running_loop().run_in_executor(None, look, url)
        answered.wait(120)
        code, text = await looking

    assert code == 503
    assert "the event loop has not turned for" in text


@pytest.mark.slow
async def test_many_probes_are_one_check() -> None:
    made = 0

    async def counted() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0.05)

    with serving_health(("127.0.0.1", 0), checks(server=counted)) as url:
        answers = await asyncio.gather(*(asked(f"{url}/readyz") for _ in range(20)))

    assert {code for code, _ in answers} == {200}
    assert made == 1


@pytest.mark.parametrize("text", ["9464", "localhost", "127.0.0.1:99999", "http://127.0.0.1:9464", "a b:1", ""])
def test_a_malformed_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write HOST:PORT"):
        parse_address(text, "--health-address")


@pytest.mark.slow
def test_dev_refuses_a_malformed_address_of_metrics(commands: CommandLine) -> None:
    done = commands("dev", "--metrics-address", "9464")

    assert done.code == 2
    assert "--metrics-address is '9464'; write HOST:PORT" in done.err


def test_an_address_has_a_host_and_a_port() -> None:
    assert parse_address("[::]:9464", "x") == ("::", 9464)
    assert parse_address("0.0.0.0:1", "x") == ("0.0.0.0", 1)


async def test_an_address_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidRequest, match="cannot be opened"), serving_health(taken.getsockname(), checks()):
            pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
async def test_a_worker_is_alive_and_ready_until_a_key_is_missing(temporal_server: ServerInfo, tmp_path: Path) -> None:
    ready, url = tmp_path / "ready", f"http://127.0.0.1:{free_port()}"
    (tmp_path / "gradeloop.toml").write_text(
        f'health_address = "{url[7:]}"\n[providers.shop]\nprotocol = "openai_chat"\nbase_url = "https://models.example.com/v1"\n'
        'key = "SHOP_MODELS_TOKEN"\n'
    )
    flags = ("--task-queue", f"health-{uuid4()}", "--ready-file", str(ready), "--config", str(tmp_path / "gradeloop.toml"))
    process = await started(temporal_server, *flags, GRADELOOP_STORE=f"sqlite:///{tmp_path / 'results.db'}")
    await until_ready(ready)
    try:
        alive, found = await asked(f"{url}/healthz"), await asked(f"{url}/readyz")
    finally:
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), 240)

    assert alive == (200, {"ok": True}), log.decode()
    assert found[0] == 503
    assert {name: found[1]["checks"][name] for name in ("server", "store", "sandboxes")} == dict.fromkeys(
        ("server", "store", "sandboxes"), "ok"
    )
    assert "shop" in found[1]["checks"]["keys"]
    assert "SHOP_MODELS_TOKEN" in found[1]["checks"]["keys"]


async def test_the_live_page_is_alive_and_ready(client: Client, temporal_server: ServerInfo, tmp_path: Path) -> None:
    connection = Connection(temporal_server.address, "default", embedded=False)
    async with paged(GradingClient(client), connection, tmp_path) as browser:
        alive, ready = await browser.get("/healthz"), await browser.get("/readyz")

    assert (alive.status_code, alive.json()) == (200, {"ok": True})
    assert (ready.status_code, ready.json()) == (200, {"ok": True, "checks": {"server": "ok", "store": "ok"}})


@pytest.mark.slow
def test_doctor_does_not_tick_a_listener_that_never_answers(commands: CommandLine) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        done = commands("doctor", TEMPORAL_ADDRESS=address)

    assert done.code == 1
    assert f"✗ server: No Temporal server answers at '{address}' within 10 s" in done.out


@pytest.mark.slow
async def test_doctor_does_not_tick_a_server_that_has_stopped_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(tmp_path))
    server = await ensure_server()
    connection = Connection(server.address, "default", embedded=True)
    connected = await connect(connection)
    well = await doctor._check_in_time(connected, connection, 10)
    stall(server.pid)
    try:
        wedged = await doctor._check_in_time(connected, connection, 1)
    finally:
        os.killpg(server.pid, signal.SIGCONT)
        await stop_server()

    assert [finding.ok for finding in well] == [True, True, True]
    assert [finding.ok for finding in wedged] == [False]
    assert "was reached, but does not answer any more within 1 s" in wedged[0].detail
