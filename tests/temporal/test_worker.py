"""The worker process: it serves until nobody needs it, and says why where it cannot."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import worker
from activities.tools.base import UNTRIED
from gradeloop.client.client import GradingClient
from gradeloop.settings.endpoints import EndpointSettings, named_endpoints
from gradeloop.settings.secrets import scrubbed
from gradeloop.settings.worker import WorkerSettings
from gradeloop.telemetry.logs import TextFormatter
from gradeloop.temporal.server import ServerInfo
from gradeloop.temporal.worker_process import QueueWatch, ReadyFile

WORKER = Path(__file__).parents[2] / "worker.py"

REPLIES = {"replies": [{"role": "generator", "text": "a"}, {"role": "generator", "run": 1, "text": "b"}]}
SLOW = {"replies": [{"role": "generator", "text": "a", "delay": 1.5}]}


@workflow.defn
class Empty:
    """A workflow for a worker that has none."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""


async def started(server: ServerInfo, *flags: str, **variables: str) -> asyncio.subprocess.Process:
    """Start a worker on the test's server."""
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, **variables}
    return await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), *flags, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def until_ready(file: Path) -> dict[str, Any]:
    """Return what a worker wrote to its ready file."""
    while not file.exists():
        await asyncio.sleep(0.02)
    document: dict[str, Any] = json.loads(file.read_text())
    return document


@pytest.mark.slow
async def test_a_worker_ends_itself_when_idle_but_not_under_an_open_thread(
    client: Client, temporal_server: ServerInfo, tmp_path: Path
) -> None:
    (tmp_path / "replies.yaml").write_text(json.dumps(SLOW))
    queue, ready = f"idle-{uuid4()}", tmp_path / "ready"
    flags = ("--task-queue", queue, "--until-idle", "0.4", "--ready-file", str(ready), "--scripted", str(tmp_path / "replies.yaml"))
    process = await started(temporal_server, *flags)
    assert (await until_ready(ready))["ok"] is True

    request = {"messages": [{"role": "user", "content": "hi"}], "generator": {"model": "scripted:x"}}
    result = await GradingClient(client, task_queue=queue).result(await GradingClient(client, task_queue=queue).start(request))
    _, log = await asyncio.wait_for(process.communicate(), 240)

    assert result.output == "a"
    assert process.returncode == 0, log.decode()
    assert not ready.exists()


@pytest.mark.slow
async def test_sigterm_ends_a_worker_with_0(temporal_server: ServerInfo, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = await started(temporal_server, "--task-queue", f"ended-{uuid4()}", "--ready-file", str(ready))
    await until_ready(ready)
    process.send_signal(signal.SIGTERM)
    _, log = await asyncio.wait_for(process.communicate(), 240)

    assert process.returncode == 0, log.decode()
    assert "Traceback" not in log.decode()
    assert not ready.exists()


@pytest.mark.parametrize("written_since", [False, True])
async def test_the_ready_file_goes_with_its_worker_but_one_of_a_later_worker_stays(
    temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_since: bool
) -> None:
    """The file that a killed worker left goes at once."""
    ready, later = tmp_path / "ready", json.dumps({"ok": True, "worker": "another"})
    ready.write_text('{"ok": true}')
    seen: list[bool] = []

    async def looks(_: object) -> None:
        seen.append(ready.exists())

    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setattr("worker.register_search_attributes", looks)
    serving = asyncio.create_task(
        worker.serve(WorkerSettings(task_queue=f"ready-{uuid4()}", ready_file=ready, role="loop", drain_seconds=0))
    )
    while not seen:
        await asyncio.sleep(0.01)
    assert (await until_ready(ready))["ok"] is True
    if written_since:
        ready.write_text(later)
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving

    assert seen == [False]
    assert (ready.read_text() if ready.exists() else None) == (later if written_since else None)


@pytest.fixture
def end(temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return what runs a worker in this process to its end, and returns its exit code and its words on stderr."""

    def run(*flags: str, **variables: str) -> tuple[int, str]:
        for name, value in {"TEMPORAL_ADDRESS": temporal_server.address, **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(worker, "find_sandboxes", lambda *_, **__: UNTRIED)
        with ThreadPoolExecutor(1) as alone:
            code = alone.submit(worker.main, flags).result()
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("flags", "variables", "code", "kind", "words"),
    [
        (("--tools", "absent.py"), {}, 2, "InvalidRequest", "'absent.py' does not exist"),
        (
            ("--role", "judge"),
            {},
            2,
            "InvalidRequest",
            "'models', 'evidence' or 'receiver', got 'judge'",
        ),
        (("--config", "absent.toml"), {}, 2, "InvalidRequest", "the settings file 'absent.toml' does not exist"),
        ((), {"GRADELOOP_SANDBOX": "{"}, 2, "InvalidRequest", 'error parsing value for field "sandbox"'),
        (("--scripted", "absent.yaml"), {}, 2, "InvalidRequest", "'absent.yaml' does not exist"),
        ((), {"ANTHROPIC_BASE_URL": "nowhere"}, 2, "InvalidRequest", "ANTHROPIC_BASE_URL: 'nowhere' is not a base URL"),
        ((), {"TEMPORAL_ADDRESS": "127.0.0.1:1"}, 4, "ServerUnreachable", "No Temporal server answers at '127.0.0.1:1'"),
        ((), {"TEMPORAL_NAMESPACE": "absent"}, 4, "ServerUnreachable", "has no namespace 'absent'"),
    ],
)
def test_a_worker_that_cannot_serve_says_why_to_whoever_started_it(
    end: Callable[..., tuple[int, str]], tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], code: int, kind: str, words: str
) -> None:
    ended, written = end(*flags, "--ready-file", str(tmp_path / "ready"), **variables)
    document = json.loads((tmp_path / "ready").read_text())

    assert ended == code
    assert document["ok"] is False
    assert document["kind"] == kind
    assert words in document["error"]
    assert written.strip().splitlines()[-1] == document["error"]


@pytest.mark.slow
async def test_a_process_that_cannot_serve_ends_with_its_code_and_its_reason_as_last_words(
    temporal_server: ServerInfo, tmp_path: Path
) -> None:
    process = await started(temporal_server, "--tools", "absent.py", "--ready-file", str(tmp_path / "ready"))
    _, written = await asyncio.wait_for(process.communicate(), 240)

    assert process.returncode == 2, written.decode()
    assert written.decode().strip().splitlines()[-1] == json.loads((tmp_path / "ready").read_text())["error"]


def test_a_worker_that_calls_no_model_has_no_providers_key_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = EndpointSettings.model_validate({"protocol": "openai_chat", "base_url": "http://127.0.0.1:1/v1", "key": "OUR_KEY"})
    for name in ("ANTHROPIC_API_KEY", "OUR_KEY", "SOMETHING_ELSE"):
        monkeypatch.setenv(name, "a value of its own")

    worker.withhold_keys(named_endpoints({"ours": ours}).values(), "evidence")

    assert [name for name in ("ANTHROPIC_API_KEY", "OUR_KEY", "SOMETHING_ELSE") if name in os.environ] == ["SOMETHING_ELSE"]


def test_settings_come_from_flags_and_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", "from-the-environment")
    monkeypatch.setenv("GRADELOOP_MAX_CONCURRENT_ACTIVITIES", "7")
    flags = ["--task-queue", "from-a-flag", "--tools", "a.py", "--tools", "b.py"]

    settings = WorkerSettings(_cli_parse_args=flags)

    assert settings.task_queue == "from-a-flag"
    assert settings.tools == [Path("a.py"), Path("b.py")]
    assert settings.max_concurrent_activities == 7


def test_a_message_of_a_workers_log_is_one_line_and_no_command() -> None:
    said = "the reply\r\n::error::owned \x1b[31m##vso[task.complete]"
    formatter = TextFormatter(scrubbed, "%(levelname)s %(message)s")
    line = formatter.format(logging.LogRecord("any", logging.WARNING, "", 0, said, None, None))

    assert line == "WARNING the reply\\n::error::owned [31m# #vso[task.complete]"


async def test_a_worker_is_announced_once_the_server_has_seen_it_poll_and_not_by_what_it_saw_of_an_earlier_one(client: Client) -> None:
    queue = f"polled-{uuid4()}"
    waits: list[asyncio.Task[None]] = []
    early: list[bool] = []
    for _ in range(2):
        watch = QueueWatch(client, queue, ReadyFile(None))
        await watch.note_last_poll()
        waits.append(asyncio.create_task(watch.until_polled()))
        await asyncio.sleep(0.3)
        early.append(waits[-1].done())
        async with Worker(client, task_queue=queue, workflows=[Empty], workflow_runner=UnsandboxedWorkflowRunner()):
            await asyncio.wait_for(waits[-1], 4)

    assert early == [False, False]
