"""Ctrl-C while `run` starts a thread, and while `resume` has one go on."""

import io
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import Client

from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.cli.threads import resume_thread, run_task
from gradeloop.client.client import GradingClient
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import JUDGE, WRITER, answering, serving

QUIET = Console(file=io.StringIO())


def pressing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a client's method in the middle of which Ctrl-C is pressed."""

    async def press(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return await method(*arguments, **options)

    return press


async def test_ctrl_c_while_a_run_is_started_or_resumed_interrupts_it(
    client: Client, temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = answering()
    models.hold("grader")
    task = tmp_path / "task.yaml"
    task.write_text(f"prompt: hello\ngenerator: {{model: {WRITER}}}\ngrader: {{model: {JUDGE}}}\nrubric: '- it is good'\nthread: pressed\n")
    async with serving(client, models=models) as served:
        monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
        monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.task_queue)
        with monkeypatch.context() as patched:
            patched.setattr(GradingClient, "start", pressing(GradingClient.start))
            started = await run_task(read_task(task, TaskFlags()), QUIET, as_json=True, detach=False)
        with monkeypatch.context() as patched:
            patched.setattr(GradingClient, "resume", pressing(GradingClient.resume))
            resumed = await resume_thread("pressed", QUIET, budget=None, as_json=True)
        models.release()
        ended = await resume_thread("pressed", QUIET, budget=None, as_json=True)

    assert (started.how, resumed.how, ended.how) == ("stopped", "stopped", "ended")
    assert ended.result
    assert ended.result.status == "satisfied"
