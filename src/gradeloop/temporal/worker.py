"""The worker that a command starts for itself: a detached process whose queue is named from its files, keys and server."""

import asyncio
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import JsonValue, TypeAdapter, ValidationError
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, WorkerFailed
from gradeloop.settings.endpoints import PROVIDERS_VARIABLE, preset_variables
from gradeloop.settings.paths import state_folder
from gradeloop.settings.secrets import scrubbed
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import TOOL_VARIABLES
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.process import DetachedProcess, noticed
from gradeloop.temporal.runtime import close_client

PACKAGE = Path(__file__).parents[1]
"""The folder of the installed package `gradeloop`."""

IDLE_SECONDS = 60
"""How long a worker's queue may have no open workflow before the worker ends itself."""

STOP_SECONDS = 5.0
"""How long a worker that is being replaced has to stop; it is idle, or its server is gone."""

REPLACED_SECONDS = 1.0
"""Seconds after a worker's death in which another command may start the next one."""

STARTING = "starting"
"""The content of the ready file of a worker that has not said yet whether it can serve."""

PROVIDER_VARIABLES = (
    "ANTHROPIC_", "OPENAI_", "GOOGLE_", "GEMINI_", "PALM_", "OPENROUTER_", "MISTRAL_", "AZURE_OPENAI_",
)  # fmt: skip
"""The beginnings of variables by which models are called, besides those of the presets and of the endpoints with names."""

KINDS: dict[str, type[GradeloopError]] = {kind.__name__: kind for kind in (InvalidRequest, ServerUnreachable, WorkerFailed)}

WORKER_POLL_SECONDS = 2.0
"""The pause between two checks that the worker of a followed thread or batch lives."""

OURS = re.compile(r"gradeloop-[0-9a-f]{16}")
"""Task queues whose workers `gradeloop run` starts."""

POLLED_SECONDS = 70
"""How long ago a living worker asked at most: it asks again each minute, and the server lists it for five."""

FIRST_POLL_SECONDS, FIRST_POLL_PAUSE_SECONDS = 5.0, 0.01
"""How long a worker waits until the server has seen its first poll, and the first pause between two looks; each is twice the one before."""

DESCRIBE_TIMEOUT = timedelta(seconds=5)

OF_A_SERVICE = frozenset({"GRADELOOP_HEALTH_ADDRESS", "GRADELOOP_METRICS_ADDRESS", "GRADELOOP_DEPLOYMENT", "GRADELOOP_BUILD_ID"})
"""The variables of a worker that somebody deploys: addresses cannot be shared, and nobody makes a build current for the others."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSpec:
    """The files that a worker is started with: evidence tools, settings, and the replies of the scripted provider."""

    tools: tuple[Path, ...] = ()
    scripted: Path | None = None
    record: Path | None = None
    """The file that records every exchange with a model."""
    config: ConfigFile | None = None
    """The worker's file of settings."""

    def task_queue(self, connection: Connection) -> str:
        """Return the queue's name: equal only if server, tools, replies, endpoints and the *names* of the keys that are set are equal.

        Raises:
            InvalidRequest: A file cannot be read.
        """
        facts = {
            "server": [connection.address, connection.namespace],
            "tools": [[str(file.absolute()), _sha256(file)] for file in self.tools],
            "scripted": _sha256(self.scripted) if self.scripted else None,
            **({"record": str(self.record.absolute())} if self.record else {}),
            **({"config": [str(self.config.path), self.config.sha256]} if self.config else {}),
            "environment": _provider_environment(endpoint_variables(self.config)),
            "version": importlib.metadata.version("gradeloop"),
        }
        return f"gradeloop-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Readiness:
    """The content of a worker's ready file: that the worker serves, or why it cannot."""

    ok: bool
    error: str | None = None
    kind: str = "WorkerFailed"
    """The class of the error; a refused file is the caller's mistake, and has another exit code."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of keys that were refused or missing, by their variables."""


def application_folder() -> Path:
    """Return the folder of worker.py: inside the installed package, else the checkout's root."""
    for folder in (PACKAGE / "_app", PACKAGE.parent.parent):
        if (folder / "worker.py").is_file():
            return folder
    raise WorkerFailed(f"worker.py is missing from the installation at {PACKAGE}; pip install --force-reinstall gradeloop")


async def ensure_worker(spec: WorkerSpec, connection: Connection) -> str:
    """Return the task queue on which a worker serves the spec, started now if none does.

    A live worker holds its ready file until it has decided to end; so a caller that asks again *after* its workflow has started knows that
    the workflow is served.

    Raises:
        InvalidRequest: A file of the spec cannot be read, or the worker refuses it.
        ServerUnreachable: The worker does not reach the server.
        WorkerFailed: The worker does not start; the message is its own.
    """
    task_queue = spec.task_queue(connection)
    await _ensure(task_queue, spec, connection)
    return task_queue


async def ensure_worker_of(task_queue: str, connection: Connection) -> None:
    """Start the worker of an existing thread's task queue again, from the files that it served before.

    Raises:
        InvalidRequest: A file that it served is gone.
        WorkerFailed: No worker of that queue was ever started here, or it does not start.
    """
    try:
        await _ensure(task_queue, _known_spec(task_queue), connection)
    except GradeloopError as error:
        await _require_another(task_queue, connection, error)


async def is_polled(client: Client, task_queue: str) -> bool:
    """Return whether a worker polls a queue for workflows, wherever it was started."""
    return any(time.time() - poller.last_access_time.seconds < POLLED_SECONDS for poller in await _pollers(client, task_queue))


async def _pollers(client: Client, task_queue: str, identity: str | None = None) -> Sequence[PollerInfo]:
    """Return who polls a queue for workflows, or those of them with one identity."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    pollers = (await client.workflow_service.describe_task_queue(request, timeout=DESCRIBE_TIMEOUT)).pollers
    return [poller for poller in pollers if identity in {None, poller.identity}]


async def _require_another(task_queue: str, connection: Connection, error: GradeloopError) -> None:
    """Go on where a process that was not started here serves a queue; raise the error where none does, as far as the server tells."""
    try:
        client = await connect(connection)
        pollers = await _pollers(client, task_queue)
        await close_client(client)
    except (GradeloopError, RPCError):
        raise error from None
    recent = [poller.identity for poller in pollers if time.time() - poller.last_access_time.seconds < POLLED_SECONDS]
    other = next((name for name in recent if name != client.identity and not _is_dead(name)), None)
    if other is None:
        raise error
    logger.warning("%s; another process (%s) serves %s, so this command goes on", error, other, task_queue)


def _is_dead(identity: str) -> bool:
    """Return whether a poller was a process of this machine that has ended; the server lists it for minutes."""
    pid, _, host = identity.partition("@")
    try:
        if host == socket.gethostname():
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError):  # it names no process, or one of another user
        pass
    return False


def serving(task_queue: str) -> bool:
    """Return whether the queue's worker was started here and lives."""
    return _process(task_queue).alive()


async def _ensure(task_queue: str, spec: WorkerSpec, connection: Connection) -> None:
    """Wait for the queue's worker that serves already, or that another command is starting; else start one, and wait for that."""
    # Under the lock, one command decides to start the worker. All commands then wait outside the lock, as long as that process lives.
    # If it dies, each looks once more, since another command may have started the next one; only its own starter gives up.
    process = _process(task_queue)
    failed: WorkerFailed | None = None
    while True:
        async with process.alone():
            standing = _standing(process, connection)
            if failed is not None and standing != "gone":
                logger.warning("%s; another command has started the next one, so this one goes on", failed)
            if standing == "serves":
                return None
            if is_own := standing == "gone":
                if failed is not None:
                    return await _require_another(task_queue, connection, failed)
                if spec.task_queue(connection) != task_queue:
                    logger.warning(
                        "tools, replies, keys or server of %s changed since; its threads continue with the present ones", task_queue
                    )
                await process.stop(STOP_SECONDS)
                environment = {name: value for name, value in os.environ.items() if name not in OF_A_SERVICE}
                environment |= {"TEMPORAL_ADDRESS": connection.address, "TEMPORAL_NAMESPACE": connection.namespace}
                launch(process, task_queue, spec, environment, _facts(spec, connection))
        try:
            await until_ready(process)
        except WorkerFailed as error:
            failed = error if is_own else None
            await asyncio.sleep(REPLACED_SECONDS if is_own else 0)
        else:
            return None


def launch(
    process: DetachedProcess,
    task_queue: str,
    spec: WorkerSpec,
    environment: Mapping[str, str],
    facts: Mapping[str, JsonValue],
    idle_seconds: float | None = None,
) -> None:
    """Start a worker's process, which ends itself after `idle_seconds` without work, `IDLE_SECONDS` by default."""
    ready = _ready_file(process)
    ready.write_text(STARTING)
    command = [sys.executable, str(application_folder() / "worker.py"), "--task-queue", task_queue, *_spec_flags(spec)]
    command += ["--until-idle", str(idle_seconds or IDLE_SECONDS), "--ready-file", str(ready)]
    process.start(command, environment, facts)


async def until_ready(process: DetachedProcess) -> None:
    """Wait until a worker's process serves its queue, as long as it lives.

    Raises:
        GradeloopError: It cannot serve; the message is its own.
    """
    readiness = await process.until(lambda: _poll_readiness(_ready_file(process)))
    if not readiness.ok:
        failure = KINDS.get(readiness.kind, WorkerFailed)
        raise failure(readiness.error or f"The worker does not start; its log: {process.log}")


async def ask_worker(question: Literal["machine", "requests"], *flags: str, given: bytes = b"") -> Any:  # noqa: ANN401 - JSON
    """Return the JSON that a worker's process answers a question with, which serves nobody.

    Raises:
        InvalidRequest: The worker refuses its settings.
    """
    command, pipe = [sys.executable, str(application_folder() / "worker.py"), "--examine", question, *flags], asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    async with noticed("the worker's examination is not done yet", ""):
        out, err = await process.communicate(given)
    if process.returncode:
        raise InvalidRequest(err.decode(errors="replace").strip().rpartition("\n")[2])
    return json.loads(out)


def refuse_unservable_here(spec: WorkerSpec, asked: Sequence[Mapping[str, JsonValue]]) -> None:
    """Refuse the first of some requests that a worker with these files would refuse, keys aside; one of a named queue has others.

    Raises:
        InvalidRequest: It would be refused; the message is the worker's.
    """
    if not os.environ.get("GRADELOOP_TASK_QUEUE"):
        answers = asyncio.run(ask_worker("requests", *_spec_flags(spec), given=json.dumps(list(asked)).encode()))
        if why := next(filter(None, answers), None):
            raise InvalidRequest(why)


def _process(task_queue: str) -> DetachedProcess:
    return DetachedProcess(state_folder() / "workers", task_queue, WorkerFailed, f"the worker of {task_queue}")


def _ready_file(process: DetachedProcess) -> Path:
    return process.file.with_suffix(".ready")


def _standing(process: DetachedProcess, connection: Connection) -> Literal["serves", "starting", "gone"]:
    """Return whether the worker serves, or is about to say so; one that has begun to end, or has another server, counts as gone."""
    record, ready = process.record(), _ready_file(process)
    if not process.alive() or (record.get("address"), record.get("namespace")) != (connection.address, connection.namespace):
        return "gone"
    readiness = _read_readiness(ready)
    if readiness is None:
        return "starting" if ready.exists() else "gone"
    keys = {name: os.environ.get(name, "").strip() for name in readiness.refused}
    has_others = any(key and _fingerprint(key) != readiness.refused[name] for name, key in keys.items())
    return "serves" if readiness.ok and not has_others else "gone"


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _spec_flags(spec: WorkerSpec) -> list[str]:
    flags = [part for file in spec.tools for part in ("--tools", str(file.absolute()))]
    flags += ["--scripted", str(spec.scripted.absolute())] if spec.scripted else []
    flags += ["--record", str(spec.record.absolute())] if spec.record else []
    if spec.config:
        named = ["--config", str(spec.config.path)] if spec.config.named else ["--folder", str(spec.config.path.parent)]
        flags += [*named, "--role", "all"]
    return flags


def _facts(spec: WorkerSpec, connection: Connection) -> dict[str, JsonValue]:
    return {
        "tools": [str(file.absolute()) for file in spec.tools],
        "scripted": str(spec.scripted.absolute()) if spec.scripted else None,
        "record": str(spec.record.absolute()) if spec.record else None,
        "config": {"path": str(spec.config.path), "named": spec.config.named} if spec.config else None,
        "address": connection.address,
        "namespace": connection.namespace,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _known_spec(task_queue: str) -> WorkerSpec:
    try:
        return TypeAdapter(WorkerSpec).validate_python((_process(task_queue).record() or None) if OURS.fullmatch(task_queue) else None)
    except ValidationError as error:
        raise WorkerFailed(
            f"No worker of task queue {task_queue!r} was started from this state folder; serve it with "
            f"`gradeloop worker --task-queue {task_queue}` and the thread's tools"
        ) from error


async def _poll_readiness(ready: Path) -> Readiness | None:
    return _read_readiness(ready)


def _read_readiness(ready: Path) -> Readiness | None:
    try:
        return TypeAdapter(Readiness).validate_json(ready.read_bytes())
    except (OSError, ValidationError):
        return None


def endpoint_variables(file: ConfigFile | None) -> frozenset[str]:
    """Return the variables by which the endpoints are called that a worker with this file knows by name."""
    in_file = file.read().get("providers") if file is not None and file.trusted else None
    texts = json.dumps([in_file, os.environ.get(PROVIDERS_VARIABLE, "")])
    return preset_variables() | frozenset(name for name in os.environ if re.search(rf"\b{re.escape(name)}\b", texts))


def _provider_environment(of_endpoints: Collection[str]) -> Mapping[str, str | None]:
    """Return the provider variables that are set: endpoints with their values, everything else by name alone."""
    known = (name for name, value in os.environ.items() if value and (name.startswith(PROVIDER_VARIABLES) or name in of_endpoints))
    names = sorted(known)
    places = ("_BASE_URL", "_ENDPOINT", "_REGION", "_LOCATION", "_PROJECT", "_PROJECT_ID")
    shown = {name: os.environ[name] if name.endswith(places) else None for name in names}
    of_tools = (*(f"GRADELOOP_{name}" for name in TOOL_VARIABLES), PROVIDERS_VARIABLE)
    named = ("GRADELOOP_BASE_URLS", "GRADELOOP_MODELS", "GRADELOOP_PRICES", "GRADELOOP_STORE", "GRADELOOP_OUTAGE_TIMEOUT")
    ours: dict[str, str | None] = {name: os.environ[name] for name in named if os.environ.get(name)}
    tables = {name: Path(os.environ.get(name, "").strip()) for name in _TABLES}
    ours |= {f"{name} sha256": _sha256(file) for name, file in tables.items() if file.is_file()}
    ours |= {name: value for name, value in sorted(os.environ.items()) if name.startswith(of_tools)}
    return {**shown, **ours}


_TABLES = ("GRADELOOP_MODELS", "GRADELOOP_PRICES")
"""The variables that name files which a worker reads once: one with another content needs another worker."""


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidRequest(f"{str(file)!r} cannot be read ({error.strerror}); correct the path") from error


async def wake_worker(task_queue: str, connection: Connection) -> None:
    """Start the worker of a queue that `gradeloop run` made, if it has ended."""
    if OURS.fullmatch(task_queue):
        await ensure_worker_of(task_queue, connection)


async def keep_worker_alive(task_queue: str, connection: Connection) -> None:
    """Start the worker of a queue that `gradeloop run` made again whenever it is gone; never returns."""
    while True:
        await asyncio.sleep(WORKER_POLL_SECONDS)
        if OURS.fullmatch(task_queue) and not serving(task_queue):
            await ensure_worker_of(task_queue, connection)
            if serving(task_queue):
                logger.warning("the worker of %s had ended; another one serves its queue, so this command goes on", task_queue)
            else:
                await asyncio.sleep(POLLED_SECONDS)


async def done_before(work: Coroutine[Any, Any, object], other: Coroutine[Any, Any, object]) -> bool:
    """Do the work unless the other coroutine ends first, and return whether it was done; raise what the first of them raises."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(other)
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        await (working if working.done() else waiting)
        return working.done()
    finally:
        for task in (working, waiting):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


POLL_SECONDS = 5.0

LOST_SERVER_SECONDS = 600.0
"""How long its server may be gone before a worker that ends itself when idle ends itself too."""


@dataclass
class QueueWatch:
    """Watches a worker's task queue: whether the server has seen the worker there, and whether it may end."""

    client: Client
    task_queue: str
    ready: "ReadyFile"
    _seen: int | None = -1

    async def note_last_poll(self) -> None:
        """Note when the server last saw this process poll the queue for workflows; asked before the worker starts."""
        with suppress(RPCError):
            self._seen = await self._last_poll()

    async def until_polled(self) -> None:
        """Wait until the server has seen this worker poll for workflows: before, it refuses queries at once.

        A worker of which the server does not tell this in time serves all the same.
        """
        pause = FIRST_POLL_PAUSE_SECONDS
        with suppress(RPCError, TimeoutError):
            async with asyncio.timeout(FIRST_POLL_SECONDS):
                while await self._last_poll() == self._seen:
                    await asyncio.sleep(pause)
                    pause *= 2

    async def _last_poll(self) -> int | None:
        """Return when the server last saw this process poll, in nanoseconds of its clock; None where it never did."""
        found = await _pollers(self.client, self.task_queue, self.client.identity)
        return max((poller.last_access_time.ToNanoseconds() for poller in found), default=None)

    async def until_idle(self, seconds: float, stopped: asyncio.Event) -> None:
        """Set `stopped` once the queue has been idle for so many seconds."""
        clock = asyncio.get_running_loop().time
        busy = answered = clock()
        while not stopped.is_set():
            await asyncio.sleep(min(POLL_SECONDS, seconds / 2))
            count = await self._open_workflows()
            answered = answered if count is None else clock()
            busy = busy if count == 0 else clock()
            if clock() - answered > LOST_SERVER_SECONDS or (clock() - busy > seconds and await self._still_idle()):
                stopped.set()

    async def _still_idle(self) -> bool:
        """Withdraw the ready file, so that no caller relies on this worker, and check the queue once more."""
        self.ready.withdraw()
        idle = await self._open_workflows() == 0
        if not idle:
            self.ready.announce()
        return idle

    async def _open_workflows(self) -> int | None:
        try:
            return (await self.client.count_workflows(f"TaskQueue = '{self.task_queue}' AND ExecutionStatus = 'Running'")).count
        except RPCError:
            return None


class ReadyFile:
    """A worker's ready file, which is there while the worker takes calls."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._worker = uuid4().hex
        self._refused: dict[str, JsonValue] = {}
        if file is not None and _read_readiness(file) is not None:  # of a worker that was killed
            file.unlink()

    def announce(self) -> None:
        """Write that this worker serves."""
        _write(self._file, {"ok": True, "worker": self._worker, "refused": self._refused})

    def note_refused(self, variable: str, key: str) -> None:
        """Note that a variable's key was refused, or is missing: a command that has another one starts another worker."""
        self._refused[variable] = _fingerprint(key)
        self.announce()

    def withdraw(self) -> None:
        """Remove the file, unless another worker has written it since."""
        if self._file is None:
            return
        with suppress(OSError, ValueError):
            written = json.loads(self._file.read_bytes())
            if isinstance(written, dict) and written.get("worker") == self._worker:
                self._file.unlink()


def report_failure(file: Path | None, error: Exception) -> None:
    """Write to the ready file why a worker cannot serve."""
    _write(file, {"ok": False, "error": scrubbed(str(error)), "kind": type(error).__name__})


def _write(file: Path | None, readiness: Mapping[str, JsonValue]) -> None:
    if file is not None:
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(dict(readiness)))
        partial.replace(file)
