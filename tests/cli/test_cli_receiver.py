"""Receivers as users start them: a run sent by OTLP lands in the store, from `gradeloop dev` and from a worker of the role."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gradeloop.monitors.received import ReceivedRun, read_received
from gradeloop.store.engine import Store
from rig.otlp import PROTOBUF, chat, request_of, trace_id
from tests.rig.cli import SECONDS, CommandLine, ended, line_of

TOKEN = "s3cret-token"


@pytest.fixture
def gradeloop(tmp_path: Path) -> Iterator[CommandLine]:
    """Return the command with a server and a store of its own, whose traces settle soon."""
    variables = {"GRADELOOP_RECEIVER__SETTLE": "0.2", "GRADELOOP_STORE": f"sqlite:///{tmp_path}/s.db"}
    command = CommandLine(tmp_path / "state", tmp_path, variables)
    yield command
    command.end()


def runs_of(folder: Path) -> list[ReceivedRun]:
    """Return the runs in the store, once there are some."""
    store, deadline = Store(f"sqlite:///{folder}/s.db"), time.monotonic() + SECONDS
    try:
        while not (found := store.do(lambda connection: read_received(connection, 0, None, 100))) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found
    finally:
        store.close()


def send(url: str, **headers: str) -> int:
    """Send a run as an exporter does, once the receiver listens, and return the answer's status."""
    deadline = time.monotonic() + SECONDS
    with httpx2.Client(trust_env=False, timeout=SECONDS) as http:
        while True:
            try:
                return http.post(f"{url}/v1/traces", content=request_of(chat("a")), headers=PROTOBUF | headers).status_code
            except httpx2.ConnectError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def receiver_row(gradeloop: CommandLine, **variables: str) -> dict[str, Any]:
    """Return what doctor says of the receiver."""
    rows = json.loads(gradeloop.alone("doctor", "--json", **variables).out)
    return next(row for row in rows if row["subject"] == "receiver")


def stopped(process: subprocess.Popen[str], *before: str) -> str:
    """Stop a command, and return what it printed."""
    process.send_signal(signal.SIGTERM)
    done = ended(process, *before)

    assert (done.code, "Traceback" in done.err) == (0, False), done.err
    return done.out + done.err


@pytest.mark.slow
def test_dev_receives_where_it_was_told_to_and_doctor_finds_it(gradeloop: CommandLine, free_port: int, tmp_path: Path) -> None:
    dev = gradeloop.start("dev", "--otlp", f"127.0.0.1:{free_port}", GRADELOOP_PAGE_PORT="0")
    printed = [line_of(dev) for _ in range(5)]
    url = printed[1].removeprefix("OTLP").strip()
    status, (run,) = send(url), runs_of(tmp_path)
    row = receiver_row(gradeloop, GRADELOOP_RECEIVER__ADDRESS=f"127.0.0.1:{free_port}")
    stopped(dev, *printed)

    assert (url, status) == (f"http://127.0.0.1:{free_port}", 200)
    assert run.run is not None
    assert run.run.id == trace_id("a")
    assert (row["ok"], row["detail"]) == (True, f"takes OTLP at {url}, and reaches its store")


@pytest.mark.slow
def test_dev_is_refused_an_address_for_other_machines_without_a_token(gradeloop: CommandLine) -> None:
    done = gradeloop("dev", "--otlp", "0.0.0.0:4318", GRADELOOP_PAGE_PORT="0")

    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert "receiver.address '0.0.0.0:4318' is open to other machines, and no token is asked for" in done.err


@pytest.mark.slow
def test_a_worker_of_the_role_receives_by_token_and_doctor_finds_it(gradeloop: CommandLine, free_port: int, tmp_path: Path) -> None:
    variables = {"GRADELOOP_RECEIVER__ADDRESS": f"127.0.0.1:{free_port}", "GRADELOOP_RECEIVER__TOKEN": "OTLP_TOKEN", "OTLP_TOKEN": TOKEN}
    worker = gradeloop.start("worker", "--role", "receiver", **variables)
    url = f"http://127.0.0.1:{free_port}"
    refused, taken, (run,) = send(url), send(url, authorization=f"Bearer {TOKEN}"), runs_of(tmp_path)
    row = receiver_row(gradeloop, **variables)
    log = stopped(worker)

    assert (refused, taken) == (401, 200)
    assert run.run is not None
    assert run.run.id == trace_id("a")
    assert (row["ok"], row["detail"]) == (True, f"takes OTLP at {url}, and reaches its store")
    assert TOKEN not in f"{log}{row}"


@pytest.fixture
def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
