"""The worker process: settings in, a running Temporal worker out. `build` is what tests run too."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.admit import Admit, Desk, Offer
from activities.evidence import ReadTranscript, tool_activity
from activities.foreign import find_worker
from activities.generate import Generate
from activities.grade import Grade
from activities.judge import Judge
from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.examination import examine
from activities.providers.recording import Recording
from activities.providers.scripted import Script
from activities.run_view import RunViews
from activities.thread_view import ThreadViews
from activities.tools.in_force import in_force
from activities.tools.mcp_servers import McpServers
from activities.tools.shelf import Shelf
from activities.tools.toolbox import Toolbox
from gradeloop.connection import connect, find
from gradeloop.departure import leave
from gradeloop.errors import GradeloopError, ServerUnreachable, WorkerFailed
from gradeloop.namespace import register_search_attributes
from gradeloop.sandbox.choice import Choice, choose
from gradeloop.settings_file import flag
from gradeloop.worker_process import PROVIDER_VARIABLES
from gradeloop.worker_settings import WorkerSettings, load
from workflows.grading_thread import GradingThreadWorkflow
from workflows.judging import JudgingWorkflow

IDLE_POLL_SECONDS = 5.0
GRACE = timedelta(seconds=30)
"""What a graceful stop leaves to the calls in flight; the rest is handed over, and paid for again."""

LOST_SERVER_SECONDS = 600.0
"""A worker that ends itself when idle also does so when its server has been gone for so long."""

logger = logging.getLogger("gradeloop.worker")


def build(
    client: Client, providers: Providers, toolbox: Toolbox, settings: WorkerSettings | None = None, *, search_attributes: bool = True
) -> Worker:
    """Return a worker that serves threads on `client`.

    Args:
        client: Connected with the pydantic data converter.
        providers: The models it can call.
        toolbox: The tools it has.
        settings: Its queue and limits.
        search_attributes: Whether the namespace has ours.
    """
    settings = settings or WorkerSettings()
    evidence = settings.role == "evidence"
    return Worker(
        client,
        task_queue=settings.evidence_queue if evidence else settings.task_queue,
        workflows=[GradingThreadWorkflow, JudgingWorkflow] if settings.role in {"all", "loop"} else [],
        activities=[
            *(_model_calls(client, providers, toolbox, settings, search_attributes) if settings.role in {"all", "models"} else ()),
            *((tool_activity(tool) for tool in toolbox) if settings.role in {"all", "evidence"} else ()),
        ],
        # The sandbox imports workflows/ anew for every thread, a third of a short run's CPU; ruff's bans guard them, and a test in it.
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=settings.max_concurrent_activities,
        max_task_queue_activities_per_second=settings.max_calls_per_second,
        # An eager call is started past the queue, and so past its rate and the turns of other tenants.
        disable_eager_activity_execution=settings.max_calls_per_second is not None,
        max_cached_workflows=settings.max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_heartbeat_throttle_interval=timedelta(seconds=2),
        graceful_shutdown_timeout=GRACE,
    )


def _model_calls(
    client: Client, providers: Providers, toolbox: Toolbox, settings: WorkerSettings, search_attributes: bool
) -> list[Callable[..., Any]]:
    """Return the activities that call models, and what they need of threads."""
    offer = Offer(
        search_attributes=search_attributes,
        external_storage=client.data_converter.external_storage is not None,
        evidence_queue=settings.evidence_queue if settings.role == "models" else None,
    )
    recording = Recording(settings.record, providers.secrets) if settings.record else None
    desk = Desk(providers, toolbox, ThreadViews(), offer, recording)
    judge = Judge(desk, RunViews())
    by_models: list[Callable[..., Any]] = [Admit(desk).admit, Generate(desk).generate, Grade(desk).grade, judge.judge, judge.default_judge]
    return [*by_models, ReadTranscript(desk.threads).read_transcript, find_worker]


async def serve(settings: WorkerSettings) -> None:
    """Run a worker until it is told to stop, or has been idle for long enough."""
    script = Script.read(settings.scripted) if settings.scripted else None
    providers = Providers(Environment.read({} if settings.role == "evidence" else os.environ), script)
    if settings.role == "evidence":
        withhold_keys()
    if settings.role == "loop":  # which runs threads alone, and no tools
        await _serve(settings, providers, Toolbox())
    else:
        choice = await asyncio.to_thread(chosen, settings)
        async with McpServers(settings.mcp) as servers:
            await _serve(settings, providers, Toolbox.load(settings.tools, Shelf(settings, choice), servers))


def chosen(settings: WorkerSettings, *, all_of_them: bool = False) -> Choice:
    """Return the sandboxes that hold, of those that the settings want."""
    return choose(settings.sandbox.use, [str(path) for path in settings.sandbox.read_only], all_of_them=all_of_them)


def withhold_keys() -> None:
    """Take the providers' keys out of this process's environment: whoever runs evidence tools has no use for them."""
    for name in [each for each in os.environ if each.startswith(PROVIDER_VARIABLES)]:
        logger.warning("%s is set; a worker of role evidence does without it", name)
        del os.environ[name]


async def _serve(settings: WorkerSettings, providers: Providers, toolbox: Toolbox) -> None:
    client = await connect(await find())
    if settings.search_attributes == "on":
        await register_search_attributes(client)
    worker = build(client, providers, toolbox, settings, search_attributes=settings.search_attributes == "on")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with worker:
        ready(settings.ready_file)
        logger.info("serving task queue %s on %s as %s", worker.task_queue, client.service_client.config.target_host, settings.role)
        idle = asyncio.create_task(_until_idle(client, settings, stopped))
        await stopped.wait()
        idle.cancel()
    await providers.aclose()


def ready(file: Path | None, error: Exception | None = None) -> None:
    """Tell whoever started this worker, in the file that they named, that it serves, or why it cannot."""
    if file is not None:
        told = {"ok": True} if error is None else {"ok": False, "error": str(error), "kind": type(error).__name__}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(told))
        partial.replace(file)


async def _until_idle(client: Client, settings: WorkerSettings, stopped: asyncio.Event) -> None:
    if settings.until_idle is None:
        return
    clock = asyncio.get_running_loop().time
    busy = heard = clock()
    while not stopped.is_set():
        await asyncio.sleep(min(IDLE_POLL_SECONDS, settings.until_idle / 2))
        count = await _open_workflows(client, settings.task_queue)
        heard = heard if count is None else clock()
        busy = busy if count == 0 else clock()
        if clock() - heard > LOST_SERVER_SECONDS or (clock() - busy > settings.until_idle and await _still_idle(client, settings)):
            stopped.set()


async def _still_idle(client: Client, settings: WorkerSettings) -> bool:
    """Withdraw the ready file, so that nobody counts on this worker any more, and look once again."""
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)
    idle = await _open_workflows(client, settings.task_queue) == 0
    if not idle:
        ready(settings.ready_file)
    return idle


async def _open_workflows(client: Client, task_queue: str) -> int | None:
    try:
        return (await client.count_workflows(f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running'")).count
    except RPCError:
        return None


async def _examine(settings: WorkerSettings) -> None:
    choice = await asyncio.to_thread(chosen, settings, all_of_them=True)
    told = (await examine(Environment.read(os.environ))).model_dump(mode="json")
    shelf = Shelf(settings, choice)
    async with McpServers(settings.mcp) as servers:
        told["evidence"] = in_force(shelf, Toolbox.load(settings.tools, shelf, servers))
    print(json.dumps(told))  # noqa: T201 - what was asked for


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker; returns the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        settings = load(given)
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_examine(settings) if settings.examine else serve(settings))
    except GradeloopError as told:
        print(told, file=sys.stderr)  # noqa: T201 - the process's last words
        named = flag(given, "--ready-file")  # also where the settings themselves are wrong
        ready(Path(named) if named else None, told)
        return 4 if isinstance(told, ServerUnreachable) else 3 if isinstance(told, WorkerFailed) else 2
    return 0


if __name__ == "__main__":
    leave(main())
