"""Further processes of a worker that a command started: when they start, and that none outlives it."""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest

from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal import child_workers as child_workers_module
from gradeloop.temporal.child_workers import LOOKS, ChildWorkers, Machine, find_child_workers
from gradeloop.temporal.server import ServerInfo
from tests.temporal.test_worker_process import until

UNTIL_INPUT_ENDS = (sys.executable, "-c", "import sys; sys.stdin.read()")
WORKER = Path(__file__).parents[2] / "worker.py"

FOUND = "def found(name: str) -> str:\n    'Find it.'\n    return name\n"


class Told(Machine):
    """A machine that is told what it is like."""

    def __init__(self, *, busy: bool = True, room: bool = True) -> None:
        super().__init__()
        self.busy, self.room, self.looks = busy, room, 0

    def is_busy(self) -> bool:
        self.looks += 1
        return self.busy

    def has_room(self) -> bool:
        return self.room


async def started(most: int, machine: Told, *, may: bool = True, command: tuple[str, ...] = UNTIL_INPUT_ENDS) -> ChildWorkers:
    """Return the child workers of a worker after some time of being like this."""
    found = ChildWorkers(command, most, lambda: may, machine, pause=0.001)
    starting = asyncio.create_task(found.start_when_busy())
    await until(lambda: starting.done() or machine.looks > 6 * LOOKS)
    starting.cancel()
    return found


@pytest.mark.parametrize(("most", "processes"), [(1, 0), (2, 1), (4, 3)])
async def test_a_busy_process_gets_as_many_others_as_it_may_have_and_they_end_with_it(most: int, processes: int) -> None:
    found = await started(most, Told())
    assert len(found.processes) == processes
    assert [process.returncode for process in found.processes] == [None] * processes

    await found.stopped()
    assert [process.returncode for process in found.processes] == [0] * processes


@pytest.mark.parametrize(("busy", "room", "may"), [(False, True, True), (True, False, True), (True, True, False)])
async def test_none_starts_where_nothing_is_to_be_gained_or_the_machine_is_full_or_one_process_has_to_count(
    busy: bool, room: bool, may: bool
) -> None:
    assert (await started(4, Told(busy=busy, room=room), may=may)).processes == []


async def test_after_one_has_ended_by_itself_no_further_one_starts(caplog: pytest.LogCaptureFixture) -> None:
    def first_has_ended() -> bool:
        return not found.processes or found.processes[0].returncode is not None

    found = ChildWorkers((sys.executable, "-c", "raise SystemExit(7)"), 9, first_has_ended, Told(), pause=0.001)
    await found.start_when_busy()

    assert len(found.processes) == 1
    assert "ended by itself, with 7; no further one starts" in caplog.text


def test_a_machine_tells_how_busy_this_process_was_and_whether_it_has_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr(child_workers_module, "BUSY", 0.0)
    assert machine.is_busy()
    monkeypatch.setattr(child_workers_module, "BUSY", 1e9)
    assert not machine.is_busy()
    monkeypatch.setattr(child_workers_module, "ROOM", -1.0)
    monkeypatch.setattr(child_workers_module, "CGROUP", tmp_path)
    assert machine.has_room()  # without a limit
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert machine.has_room()
    (tmp_path / "memory.max").write_text("1000000\n")
    assert not machine.has_room()


ONE_PROCESS: list[dict[str, object]] = [
    {"until_idle": None},
    {"until_input_ends": True},
    {"processes": 1},
    {"scripted": "replies.yaml"},
    {"record": "recorded.yaml"},
    {"metrics_address": "127.0.0.1:9000"},
    {"health_address": "127.0.0.1:9000"},
    {"limits": {"openai": {"concurrency": 3}}},
    {"providers": {"ours": {"protocol": "openai_chat", "base_url": "https://models.example", "limits": {"requests_per_minute": 9}}}},
    {"mcp": {"ours": {"command": ["server"], "tools": ["search"]}}},
    {"role": "models"},
]


@pytest.mark.parametrize("setting", ONE_PROCESS, ids=lambda setting: next(iter(setting)))
async def test_a_worker_that_counts_something_itself_or_that_no_command_started_stays_alone(setting: dict[str, object]) -> None:
    settings = WorkerSettings.model_validate({"until_idle": 60, "processes": 3} | setting)

    assert find_child_workers(settings, [], lambda: True).most == 1


def test_others_serve_the_same_files_as_long_as_these_are_the_same(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text("")
    flags = ["--task-queue", "a", "--tools", str(tools), "--until-idle", "60", "--ready-file", "ready"]
    found = find_child_workers(WorkerSettings(until_idle=60, processes=3, tools=[tools]), flags, lambda: True)

    assert (found.most, found.may()) == (3, True)
    assert found.command[2:] == ("--task-queue", "a", "--tools", str(tools), "--until-input-ends")
    tools.write_text("'''Another one.'''")
    assert not found.may()
    tools.unlink()
    assert not found.may()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_a_worker_that_is_busy_is_joined_by_another_which_ends_with_it_however_that_ends(
    temporal_server: ServerInfo, tmp_path: Path, end: signal.Signals
) -> None:
    """A file of tools, which is loaded with the worker, has it count as busy on a machine with room."""
    tools, ready = tmp_path / "busy.py", tmp_path / "ready"
    tools.write_text("from gradeloop.temporal import child_workers\n\nchild_workers.BUSY, child_workers.ROOM = 0.0, -1e9\n\n\n" + FOUND)
    flags = ("--task-queue", f"busy-{uuid4()}", "--tools", str(tools), "--until-idle", "600", "--ready-file", str(ready))
    variables = {"TEMPORAL_ADDRESS": temporal_server.address, "GRADELOOP_PROCESSES": "2", "GRADELOOP_DRAIN_SECONDS": "0"}
    process = await asyncio.create_subprocess_exec(sys.executable, str(WORKER), *flags, env=os.environ | variables)
    worker = psutil.Process(process.pid)
    await until(ready.exists)
    assert json.loads(ready.read_text())["ok"]
    try:
        await until(lambda: len(worker.children()) == 1)
        other = worker.children()[0]
        process.send_signal(end)
        await process.wait()
        await until(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
