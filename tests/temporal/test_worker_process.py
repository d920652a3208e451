"""The worker that a command has of its own: shared where it serves the same, replaced where it is gone."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, WorkerFailed
from gradeloop.exit_codes import UNREACHABLE, code_of_error
from gradeloop.temporal import connect as connect_module
from gradeloop.temporal import process
from gradeloop.temporal.connect import (
    Connection,
    WorkerSpec,
    application_folder,
    connect,
    ensure_worker,
    ensure_worker_of,
    find,
    keep_worker_alive,
)
from gradeloop.temporal.process import DetachedProcess
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from gradeloop.temporal.worker_process import QueueWatch, ReadyFile
from tests.rig.tables import over

SERVER = Connection("127.0.0.1:7233", "default", embedded=False)

STAND_IN = """
import argparse, json, os, signal, sys, time
parser = argparse.ArgumentParser()
for flag in ("--task-queue", "--scripted", "--until-idle", "--ready-file"):
    parser.add_argument(flag)
parser.add_argument("--tools", action="append", default=[])
given = parser.parse_args()
seen = {**vars(given), "cwd": os.getcwd(), "temporal": [os.environ["TEMPORAL_ADDRESS"], os.environ["TEMPORAL_NAMESPACE"]]}
with open(given.ready_file + ".seen", "a") as log:
    log.write(json.dumps(seen) + "\\n")
for file in given.tools:
    exec(open(file).read())
def ready(answer):
    with open(given.ready_file, "w") as file:
        json.dump(answer, file)
ready({"ok": True, "pid": os.getpid()})
time.sleep(120)
"""


@workflow.defn(sandboxed=False)
class Idle:
    """A workflow for a worker that has none."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
async def workers(environment: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """Put a stand-in in the place of worker.py, return the folder of the workers' files, and end all that still runs."""
    (environment / "app").mkdir()
    (environment / "app" / "worker.py").write_text(STAND_IN)
    monkeypatch.setattr(connect_module, "application_folder", lambda: environment / "app")
    folder = environment / "workers"
    yield folder
    for file in folder.glob("*.json"):
        end(folder, file.stem)
    await stop_server()


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a file of evidence tools."""
    file = tmp_path / "tools.py"
    file.write_text("# nothing to offer\n")
    return file


def end(folder: Path, task_queue: str) -> None:
    """Kill the queue's worker, if it still runs, and see it gone."""
    worker = DetachedProcess(folder, task_queue, WorkerFailed)
    if worker.alive():
        with suppress(ProcessLookupError):
            os.killpg(pid_of(folder, task_queue), signal.SIGKILL)
        wait_until(lambda: not worker.alive())


def seen(folder: Path) -> list[dict[str, object]]:
    """Return what each worker that was started saw of its command line and environment."""
    return [json.loads(line) for file in sorted(folder.glob("*.seen")) for line in file.read_text().splitlines()]


def pid_of(folder: Path, task_queue: str) -> int:
    return int(json.loads((folder / f"{task_queue}.json").read_text())["pid"])


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def queue_with(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> str:
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        return WorkerSpec().task_queue(SERVER)


def test_a_queue_is_named_from_the_contents_of_the_tools(tools: Path) -> None:
    spec = WorkerSpec((tools,))
    before = spec.task_queue(SERVER)

    assert spec.task_queue(SERVER) == before
    assert before.startswith("gradeloop-")
    assert len(before) == len("gradeloop-") + 16

    tools.write_text("# something else\n")

    assert spec.task_queue(SERVER) != before


def test_a_queue_tells_equal_tools_of_two_folders_apart_because_their_neighbours_may_differ(tools: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.py"
    copy.write_text(tools.read_text())

    assert WorkerSpec((copy,)).task_queue(SERVER) != WorkerSpec((tools,)).task_queue(SERVER)


@pytest.mark.parametrize("variable", ["GRADELOOP_MODELS", "GRADELOOP_PRICES"])
def test_a_table_with_another_content_needs_another_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    table, bare = tmp_path / "table.toml", WorkerSpec().task_queue(SERVER)
    monkeypatch.setenv(variable, str(table))
    queues = {bare, WorkerSpec().task_queue(SERVER)}
    for text in ("a = 1", "a = 2"):
        table.write_text(text)
        queues.add(WorkerSpec().task_queue(SERVER))

    assert len(queues) == 4


def test_a_queue_is_named_from_the_replies_of_the_scripted_provider(tools: Path) -> None:
    queues = {WorkerSpec().task_queue(SERVER), WorkerSpec(scripted=tools).task_queue(SERVER), WorkerSpec((tools,)).task_queue(SERVER)}

    assert len(queues) == 3


def test_a_queue_is_named_from_the_names_of_the_keys_and_not_from_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    one = queue_with(monkeypatch, "ANTHROPIC_API_KEY", "one")

    assert one == queue_with(monkeypatch, "ANTHROPIC_API_KEY", "two")
    assert one != queue_with(monkeypatch, "OPENAI_API_KEY", "one")
    assert one != queue_with(monkeypatch, "ANTHROPIC_API_KEY", "")
    assert queue_with(monkeypatch, "UNRELATED", "x") == WorkerSpec().task_queue(SERVER)


def test_a_queue_is_named_from_the_names_of_the_keys_of_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    before = WorkerSpec().task_queue(SERVER)
    groq = queue_with(monkeypatch, "GROQ_API_KEY", "one")

    assert before != groq == queue_with(monkeypatch, "GROQ_API_KEY", "two")
    assert queue_with(monkeypatch, "HOUSE_SECRET", "one") == before

    monkeypatch.setenv("GRADELOOP_PROVIDERS", '{"house": {"preset": "groq", "key": "HOUSE_SECRET"}}')
    with_table = WorkerSpec().task_queue(SERVER)

    assert with_table not in {before, queue_with(monkeypatch, "HOUSE_SECRET", "one")}


@over(
    ("name", "values"),
    [
        *(
            (f"{name}_BASE_URL", ("http://127.0.0.1:1", "http://127.0.0.1:2"))
            for name in ("OPENAI", "ANTHROPIC", "GOOGLE_GEMINI", "OLLAMA")
        ),
        *((name, ("http://a", "http://b")) for name in ("GRADELOOP_BASE_URLS", "AZURE_OPENAI_ENDPOINT", "GRADELOOP_PROVIDERS")),
        ("GRADELOOP_OUTAGE_TIMEOUT", ("60", "70")),
    ],
)
def test_a_queue_is_named_from_the_endpoints_and_the_wait_for_a_provider(
    monkeypatch: pytest.MonkeyPatch, name: str, values: tuple[str, str]
) -> None:
    one, other = (queue_with(monkeypatch, name, value) for value in values)

    assert one != other


def test_a_queue_is_named_from_the_server_and_the_namespace() -> None:
    elsewhere = Connection("127.0.0.1:7234", "default", embedded=False)
    other = Connection("127.0.0.1:7233", "other", embedded=False)

    assert len({WorkerSpec().task_queue(connection) for connection in (SERVER, elsewhere, other)}) == 3


async def test_a_worker_is_told_its_queue_its_files_and_its_server(workers: Path, tools: Path) -> None:
    task_queue = await ensure_worker(WorkerSpec((tools, tools), scripted=tools), SERVER)

    assert seen(workers) == [
        {
            "task_queue": task_queue,
            "tools": [str(tools), str(tools)],
            "scripted": str(tools),
            "until_idle": "60",
            "ready_file": str(workers / f"{task_queue}.ready"),
            "cwd": str(Path.cwd()),
            "temporal": ["127.0.0.1:7233", "default"],
        }
    ]


async def test_a_live_worker_is_used_again_also_by_commands_that_come_at_once(workers: Path) -> None:
    queues = await asyncio.gather(*(ensure_worker(WorkerSpec(), SERVER) for _ in range(5)))

    assert len(set(queues)) == 1
    assert len(seen(workers)) == 1


async def test_two_tool_files_get_two_workers(workers: Path, tools: Path) -> None:
    first = await ensure_worker(WorkerSpec(), SERVER)
    second = await ensure_worker(WorkerSpec((tools,)), SERVER)

    assert pid_of(workers, first) != pid_of(workers, second)


async def test_a_dead_worker_is_replaced(workers: Path) -> None:
    task_queue = await ensure_worker(WorkerSpec(), SERVER)
    dead = pid_of(workers, task_queue)
    end(workers, task_queue)

    await ensure_worker(WorkerSpec(), SERVER)

    assert pid_of(workers, task_queue) != dead
    assert len(seen(workers)) == 2


async def test_a_worker_that_has_begun_to_end_is_replaced(workers: Path) -> None:
    task_queue = await ensure_worker(WorkerSpec(), SERVER)
    ending = pid_of(workers, task_queue)
    (workers / f"{task_queue}.ready").unlink()

    await ensure_worker(WorkerSpec(), SERVER)

    assert pid_of(workers, task_queue) != ending


KILLED_IN_START = """
def killed(process, facts):
    if "pid" in facts:
        os.kill(os.getpid(), signal.SIGKILL)
    note(process, facts)
note, process.DetachedProcess.note = process.DetachedProcess.note, killed
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", [pytest.param("later", marks=pytest.mark.slow), KILLED_IN_START], ids=["later", "before the pid is noted"])
async def test_a_worker_outlives_the_command_that_started_it(workers: Path, environment: Path, ends: str) -> None:
    code = f"""
import asyncio, os, pathlib, signal, time
from gradeloop.temporal import connect as connect_module, process
{ends if ends == KILLED_IN_START else ""}
connect_module.application_folder = lambda: pathlib.Path({str(environment / "app")!r})
server = connect_module.Connection("127.0.0.1:7233", "default", embedded=False)
asyncio.run(connect_module.ensure_worker(connect_module.WorkerSpec(), server))
time.sleep(60)
"""
    command = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: any(workers.glob("*.ready")))
    command.kill()
    command.wait()

    task_queue = await ensure_worker(WorkerSpec(), SERVER)

    assert len(seen(workers)) == 1
    assert os.getpgid(pid_of(workers, task_queue)) == pid_of(workers, task_queue)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("", WorkerFailed),
        ('"kind": "InvalidRequest"', InvalidRequest),
        ('"kind": "ServerUnreachable"', ServerUnreachable),
        ('"kind": "SystemExit"', WorkerFailed),
    ],
)
async def test_a_worker_that_cannot_serve_is_failed_in_its_own_sentence(tools: Path, kind: str, raised: type[GradeloopError]) -> None:
    tools.write_text(f"""
with open(given.ready_file, "w") as file:
    json.dump({{"ok": False, "error": "'tools.py' does not import: No module named 'numpy'", {kind}}}, file)
sys.exit(1)
""")

    with pytest.raises(raised, match=r"^'tools\.py' does not import: No module named 'numpy'$"):
        await ensure_worker(WorkerSpec((tools,)), SERVER)


async def test_a_worker_that_crashes_is_failed_with_its_last_line(tools: Path) -> None:
    tools.write_text("raise MemoryError('out of marbles')")

    with pytest.raises(WorkerFailed, match=r"the worker of gradeloop-\w+ ended before it was ready: MemoryError: out of marbles$"):
        await ensure_worker(WorkerSpec((tools,)), SERVER)


SLOW = "while not os.path.exists(given.ready_file + '.go'):\n    time.sleep(0.01)\n"
"""What a stand-in does that becomes ready when it is told to."""


def let_go(folder: Path, task_queue: str) -> None:
    """Let a slow stand-in become ready."""
    (folder / f"{task_queue}.ready.go").touch()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say every few hundredths of a second how long a process has been waited for."""
    monkeypatch.setattr(process, "NOTICE_SECONDS", 0.05)


@pytest.mark.usefixtures("often")
async def test_a_slow_worker_is_waited_for_as_long_as_it_lives_and_the_seconds_are_said(
    tools: Path, workers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tools.write_text(SLOW)
    spec = WorkerSpec((tools,))
    starting = asyncio.create_task(ensure_worker(spec, SERVER))

    def notices() -> list[str]:
        return [said for said in caplog.messages if said.startswith("the worker of")]

    await until(lambda: len(notices()) >= 3)
    waits = not starting.done()
    let_go(workers, spec.task_queue(SERVER))
    task_queue = await starting

    first, *others = notices()
    assert waits
    assert re.fullmatch(rf"the worker of {task_queue} is not ready yet, \d+ s; its log: .*\.log\. .*", first)
    assert "`gradeloop dev`" in first
    assert "`gradeloop watch`" in first
    assert all(re.search(r"yet, \d+ s$", said) for said in others)


async def test_commands_that_come_while_a_worker_starts_wait_for_that_one_also_where_its_command_is_gone(
    tools: Path, workers: Path
) -> None:
    tools.write_text(SLOW)
    spec = WorkerSpec((tools,))
    task_queue = spec.task_queue(SERVER)
    first = asyncio.create_task(ensure_worker(spec, SERVER))
    await until(lambda: bool(seen(workers)))
    pid = pid_of(workers, task_queue)
    others = [asyncio.create_task(ensure_worker(spec, SERVER)) for _ in range(3)]
    first.cancel()
    await asyncio.sleep(0.1)
    let_go(workers, task_queue)

    assert await asyncio.gather(*others) == [task_queue] * 3
    assert len(seen(workers)) == 1
    assert pid_of(workers, task_queue) == pid


async def test_where_a_starting_worker_is_killed_another_command_starts_the_next_one_and_the_first_goes_on(
    tools: Path, workers: Path
) -> None:
    tools.write_text(SLOW)
    spec = WorkerSpec((tools,))
    task_queue = spec.task_queue(SERVER)
    first = asyncio.create_task(ensure_worker(spec, SERVER))
    await until(lambda: bool(seen(workers)))
    second = asyncio.create_task(ensure_worker(spec, SERVER))
    await asyncio.sleep(0.1)
    end(workers, task_queue)
    await until(lambda: len(seen(workers)) == 2)
    let_go(workers, task_queue)

    assert {await first, await second} == {task_queue}
    assert len(seen(workers)) == 2


async def test_a_worker_that_is_killed_while_it_starts_is_said_to_have_ended_with_the_code_for_unavailable(
    tools: Path, workers: Path
) -> None:
    tools.write_text(f"print('half way', flush=True)\n{SLOW}")
    spec = WorkerSpec((tools,))
    first = asyncio.create_task(ensure_worker(spec, SERVER))
    await until(lambda: bool(seen(workers)) and "half way" in (workers / f"{spec.task_queue(SERVER)}.log").read_text())
    end(workers, spec.task_queue(SERVER))

    with pytest.raises(WorkerFailed, match=r"ended before it was ready: half way$") as error:
        await first
    assert code_of_error(error.value) == UNREACHABLE


async def test_a_dead_worker_of_a_command_that_is_followed_is_replaced_and_that_is_said(
    workers: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connect_module, "WORKER_POLL_SECONDS", 0.05)
    task_queue = await ensure_worker(WorkerSpec(), SERVER)
    keeping = asyncio.create_task(keep_worker_alive(task_queue, SERVER))
    end(workers, task_queue)
    await until(lambda: bool(caplog.messages))
    keeping.cancel()

    assert caplog.messages == [f"the worker of {task_queue} had ended; another one serves its queue, so this command goes on"]
    assert len(seen(workers)) == 2


@pytest.mark.parametrize("is_served", [True, False])
async def test_where_a_worker_cannot_be_replaced_a_process_that_serves_its_queue_suffices(
    tools: Path,
    workers: Path,
    temporal_server: ServerInfo,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_served: bool,
) -> None:
    monkeypatch.setattr(connect_module, "WORKER_POLL_SECONDS", 0.05)
    server = Connection(temporal_server.address, "default", embedded=False)
    task_queue = await ensure_worker(WorkerSpec((tools,)), server)
    elsewhere = await Client.connect(temporal_server.address, identity="4711@another-machine")
    async with AsyncExitStack() as stack:
        if is_served:
            watch = QueueWatch(elsewhere, task_queue, ReadyFile(None))
            await watch.note_last_poll()
            await stack.enter_async_context(Worker(elsewhere, task_queue=task_queue, workflows=[Idle]))
            await watch.until_polled()
        tools.unlink()
        keeping = asyncio.create_task(keep_worker_alive(task_queue, server))
        end(workers, task_queue)
        await until(lambda: keeping.done() or bool(caplog.messages))
        keeping.cancel()

    if is_served:
        words = r".*tools\.py' cannot be read .*; another process \(4711@another-machine\) serves gradeloop-\w+, so this command goes on"
        assert re.fullmatch(words, caplog.messages[0])
    else:
        with pytest.raises(InvalidRequest, match=r"tools\.py' cannot be read"):
            await keeping


@over(("identity", "is_dead"), [("{dead}@{host}", True), ("{own}@{host}", False), ("{dead}@another-machine", False), ("a-name", False)])
def test_a_poller_is_dead_only_where_it_was_a_process_of_this_machine(identity: str, is_dead: bool) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert connect_module.is_dead(identity.format(dead=ended.pid, own=os.getpid(), host=socket.gethostname())) is is_dead


@pytest.mark.parametrize(
    ("noted", "key", "is_replaced"),
    [("refused", "refused", False), ("refused", "another", True), ("refused", "", False), ("", "the first", True), ("", "", False)],
)
async def test_a_worker_whose_key_was_refused_or_missing_is_replaced_for_a_command_with_another_key(
    workers: Path, monkeypatch: pytest.MonkeyPatch, noted: str, key: str, is_replaced: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", noted)
    task_queue = await ensure_worker(WorkerSpec(), SERVER)
    ready = ReadyFile(workers / f"{task_queue}.ready")
    ready.announce()
    ready.note_refused("OPENAI_API_KEY", noted)
    monkeypatch.setenv("OPENAI_API_KEY", key)

    await ensure_worker_of(task_queue, SERVER)

    assert len(seen(workers)) == (2 if is_replaced else 1)


async def test_a_file_that_is_missing_is_refused_before_anything_starts(workers: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.py' cannot be read \(No such file or directory\); correct the path"):
        await ensure_worker(WorkerSpec((tmp_path / "none.py",)), SERVER)

    assert not workers.exists()


async def test_the_worker_of_an_existing_thread_is_started_again_on_its_own_queue(workers: Path, tools: Path) -> None:
    task_queue = await ensure_worker(WorkerSpec((tools,), scripted=tools), SERVER)
    end(workers, task_queue)

    await ensure_worker_of(task_queue, SERVER)

    first, second = seen(workers)
    assert first == second


async def test_the_worker_of_an_existing_thread_keeps_its_queue_when_its_tools_changed_and_says_so(
    workers: Path, tools: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task_queue = await ensure_worker(WorkerSpec((tools,)), SERVER)
    end(workers, task_queue)
    with tools.open("a") as file:
        file.write("# a later thought\n")

    await ensure_worker_of(task_queue, SERVER)

    assert [line["task_queue"] for line in seen(workers)] == [task_queue, task_queue]
    assert f"of {task_queue} changed since" in caplog.text


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
async def test_a_worker_that_read_its_files_before_they_changed_is_replaced_for_a_command_that_makes_calls(
    workers: Path, tools: Path, *, changed: bool, fresh: bool
) -> None:
    task_queue = await ensure_worker(WorkerSpec((tools,)), SERVER)
    with tools.open("a") as file:
        file.write("# a later thought\n" * changed)

    await ensure_worker_of(task_queue, SERVER, fresh=fresh)
    await ensure_worker_of(task_queue, SERVER, fresh=fresh)

    assert len(seen(workers)) == (2 if changed and fresh else 1)


async def test_the_worker_of_an_existing_thread_is_replaced_where_its_server_has_moved(workers: Path) -> None:
    task_queue = await ensure_worker(WorkerSpec(), SERVER)
    stranded = pid_of(workers, task_queue)

    await ensure_worker_of(task_queue, Connection("127.0.0.1:7299", "default", embedded=True))

    assert [line["temporal"] for line in seen(workers)] == [["127.0.0.1:7233", "default"], ["127.0.0.1:7299", "default"]]
    assert pid_of(workers, task_queue) != stranded


@pytest.mark.parametrize("task_queue", ["gradeloop", "gradeloop-0123456789abcdef", "../server"])
async def test_a_queue_that_was_never_served_from_here_is_said_with_the_command_to_serve_it(task_queue: str) -> None:
    with pytest.raises(WorkerFailed, match=rf"No worker of task queue '{task_queue}' .*`gradeloop worker --task-queue {task_queue}`"):
        await ensure_worker_of(task_queue, SERVER)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put worker.py back in its place, ending itself after a second without work."""
    monkeypatch.setattr(connect_module, "application_folder", application_folder)
    monkeypatch.setattr(connect_module, "IDLE_SECONDS", 1)


@pytest.mark.usefixtures("real")
@pytest.mark.slow
async def test_worker_py_serves_its_queue_and_ends_itself_when_idle(workers: Path, temporal_server: ServerInfo, client: Client) -> None:
    server = Connection(temporal_server.address, "default", embedded=True)
    task_queue = await ensure_worker(WorkerSpec(), server)
    handle = await client.start_workflow("GradingThread", {"messages": "none"}, id=task_queue, task_queue=task_queue)

    with pytest.raises(WorkflowFailureError) as error:
        await handle.result()
    assert isinstance(error.value.cause, ApplicationError)
    assert error.value.cause.type == "InvalidRequest"

    worker = DetachedProcess(workers, task_queue, WorkerFailed)
    wait_until(lambda: not worker.alive())
    assert not (workers / f"{task_queue}.ready").exists()


@pytest.mark.usefixtures("real")
@pytest.mark.slow
async def test_worker_py_says_which_tools_file_it_cannot_serve(tools: Path, temporal_server: ServerInfo) -> None:
    tools.write_text("import numpyx")
    server = Connection(temporal_server.address, "default", embedded=True)

    with pytest.raises(GradeloopError, match=r"tools\.py' does not import: .*numpyx"):
        await ensure_worker(WorkerSpec((tools,)), server)


@pytest.mark.usefixtures("real")
@pytest.mark.slow
async def test_worker_py_finds_the_embedded_server_again_after_its_restart(workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_module, "IDLE_SECONDS", 60)
    server = await find()
    task_queue = await ensure_worker(WorkerSpec(), server)
    pid = pid_of(workers, task_queue)
    await stop_server()
    await ensure_server()
    client = await connect(server)
    handle = await client.start_workflow("GradingThread", {"messages": "none"}, id=task_queue, task_queue=task_queue)

    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert await ensure_worker(WorkerSpec(), server) == task_queue
    assert pid_of(workers, task_queue) == pid


def test_the_application_is_the_installed_one_else_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "gradeloop"
    (package / "_app").mkdir(parents=True)
    monkeypatch.setattr(connect_module, "PACKAGE", package)

    with pytest.raises(WorkerFailed, match=r"worker\.py is missing from the installation"):
        application_folder()

    (tmp_path / "worker.py").touch()
    assert application_folder() == tmp_path

    (package / "_app" / "worker.py").touch()
    assert application_folder() == package / "_app"
