"""The client without an event loop: the async one's methods from any thread, with the same results, errors and types."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.client.blocking import SyncGradingClient
from gradeloop.client.client import GradingClient
from gradeloop.client.loop_thread import OWN
from gradeloop.contract.evaluation import Evaluation
from gradeloop.errors import InvalidRequest, ThreadNotFound
from gradeloop.temporal.server import ServerInfo
from tests.client.blocking_stub import stub
from tests.conftest import ROOT
from tests.rig.threads import Served, a_thread, answering, serving, start

TYPES = ROOT / "src/gradeloop/client/blocking.pyi"


@pytest.fixture
async def served(client: Client, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    async with serving(client, models=answering()) as one:
        yield one


async def in_a_thread(work: Any) -> Any:
    """Run what waits without an event loop while the test's worker has this one."""
    return await asyncio.to_thread(work)


async def test_a_turn_and_its_events_are_those_of_the_async_client(served: Served) -> None:
    thread, seen = a_thread(), list[Evaluation]()

    def work() -> Any:
        with SyncGradingClient.connect(task_queue=served.task_queue) as client:
            result = client.invoke(thread, "hello", start=start(), on_evaluation=seen.append)
            return result, list(client.watch(thread, until="turn")), client.state(thread)

    result, events, state = await in_a_thread(work)

    assert (result.status, result.output, seen) == ("satisfied", "draft 1", list(result.evaluations))
    assert events == await served.events(thread)
    assert state == await served.client.state(thread)


@pytest.mark.slow
async def test_several_threads_use_one_client_at_once(served: Served) -> None:
    def work() -> list[str | None]:
        with SyncGradingClient.connect(task_queue=served.task_queue) as client, ThreadPoolExecutor(4) as pool:
            return [turn.status for turn in pool.map(lambda _: client.invoke(a_thread(), "hello", start=start()), range(4))]

    assert await in_a_thread(work) == ["satisfied"] * 4


async def test_errors_are_those_of_the_async_client(served: Served) -> None:
    def missing() -> None:
        with SyncGradingClient.connect() as client:
            client.state("nobody")

    def closed() -> None:
        client = SyncGradingClient.connect()
        client.close()
        client.state("nobody")

    with pytest.raises(ThreadNotFound):
        await in_a_thread(missing)
    with pytest.raises(InvalidRequest, match="this client is closed"):
        await in_a_thread(closed)


async def test_a_watch_that_is_left_early_ends(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())

    def work() -> tuple[int, int]:
        with SyncGradingClient.connect() as client:
            for event in client.watch(thread):
                return event.seq, threading.active_count()
        raise AssertionError

    assert (await in_a_thread(work))[0] == 1


async def test_a_callback_that_calls_its_client_is_refused_instead_of_waiting_for_ever(served: Served) -> None:
    refused = list[str]()

    def work() -> None:
        with SyncGradingClient.connect(task_queue=served.task_queue) as client:

            def again(evaluation: Evaluation) -> None:
                with pytest.raises(InvalidRequest) as caught:
                    client.state(evaluation.grading_run_id)
                refused.append(str(caught.value))

            client.invoke(a_thread(), "hello", start=start(), on_evaluation=again)

    await in_a_thread(work)

    assert refused == ["a callback of this client calls the client itself, and would wait for ever; call it from a thread of your own"]


FORKED = """
import os, sys
from gradeloop.client.blocking import SyncGradingClient
from gradeloop.errors import InvalidRequest
client = SyncGradingClient.connect()
child = os.fork()
if not child:
    try:
        client.state("any")
    except InvalidRequest as error:
        os.write(1, str(error).encode())
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.slow
async def test_a_forked_process_is_told_to_connect_its_own_and_a_program_may_end_without_closing(served: Served) -> None:
    def work() -> Any:
        return subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=60)

    done = await in_a_thread(work)

    assert done.stdout == "this client was connected before its process forked; connect one in each process, after the fork"
    assert done.returncode == 0


def test_every_public_method_of_the_async_client_is_there() -> None:
    public = {name for name in vars(GradingClient) if not name.startswith("_")} - {"temporal"}

    assert {name for name in vars(SyncGradingClient) if not name.startswith("_")} == public
    assert not any(inspect.iscoroutinefunction(member) for member in vars(SyncGradingClient).values())
    assert public > OWN - {"temporal"}


def test_the_types_are_the_async_clients() -> None:
    def ruff(text: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TYPES), "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT).stdout

    formatted = ruff(ruff(stub(), "check", "-q", "--fix"), "format")

    assert formatted == TYPES.read_text()
