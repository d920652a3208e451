"""The server and the worker that a command uses: found or started, and connected to, with credentials that may change."""

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
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter, ValidationError
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, WorkerFailed
from gradeloop.settings.endpoints import PROVIDERS_VARIABLE, find_replies, preset_variables
from gradeloop.settings.paths import state_folder
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import TOOL_VARIABLES, load_connect_config
from gradeloop.temporal.codec import STORAGE_VARIABLE, build_converter, load_ring
from gradeloop.temporal.process import DetachedProcess, beside, noticed
from gradeloop.temporal.runtime import close_client, open_client, reconnect
from gradeloop.temporal.server import NAMESPACE, ensure_server, running_server

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0

LOOK_SECONDS = 10.0
"""The pause between two looks at the files of credentials: they are small, and a certificate is renewed hours before it ends."""

CURE = "start that server, correct TEMPORAL_ADDRESS (or its profile), or unset it to use the embedded one"

REFUSED = {RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED}


@dataclass(frozen=True)
class Connection:
    """A Temporal server and namespace, and the credentials for it: `Connection("127.0.0.1:7233", "default", embedded=False)`."""

    address: str
    namespace: str
    embedded: bool
    options: ClientConnectConfig = field(default_factory=ClientConnectConfig, repr=False, hash=False)
    """TLS, API key and gRPC metadata; no repr shows them."""


async def find() -> Connection:
    """Return the server that Temporal's environment or profile names, else the embedded one, started if it does not run.

    Raises:
        InvalidRequest: The environment or the profile is malformed.
        ServerUnreachable: The embedded server is missing or does not start.
    """
    options = load_connect_config()
    address = options.pop("target_host", None)
    namespace = options.pop("namespace", NAMESPACE)
    if address is None:
        _refuse_half_configured(namespace, options)
        server = await ensure_server()
        return Connection(server.address, NAMESPACE, embedded=True)
    if not re.fullmatch(r"[^\s/]+:\d+", address):
        raise InvalidRequest(f"Temporal's address {address!r} is malformed; write host:port, for example '127.0.0.1:7233'")
    return Connection(address, namespace, embedded=False, options=options)


async def connect(connection: Connection, seconds: float = CONNECT_SECONDS) -> Client:
    """Return a client that reached the server and its namespace within `seconds`.

    Raises:
        InvalidRequest: The storage of large payloads, or the keys that encrypt them, cannot be used.
        ServerUnreachable: No Temporal server answers, or it refuses the credentials.
    """
    silence = f"No Temporal server answers at {connection.address!r}"
    try:
        async with asyncio.timeout(seconds):
            options = {**connection.options, "namespace": connection.namespace}
            converter = await build_converter(storage_url(connection), load_ring())
            client = await open_client(connection.address, **options, data_converter=converter)
            await check_server(client)
            return client
    except GradeloopError:
        raise  # a storage or a folder that cannot be used, which says so itself
    except TimeoutError as error:
        if connection.embedded and running_server() is not None:
            await ensure_server()  # which says how long it takes
            return await connect(connection, seconds)
        raise ServerUnreachable(f"{silence} within {seconds:.0f} s; {_cure(connection)}") from error
    except (RuntimeError, ValueError) as error:
        if status := re.search(r"status: (40[13] [A-Z]\w+)", str(error)):  # a proxy's answer, in a page that is not gRPC
            raise ServerUnreachable(_refused(connection, status[1])) from error
        # The operating system's message stands in the transport's nested report.
        messages: list[str] = re.findall(r'(?:message|error): "([^"]+)"', str(error))
        reason = f" ({messages[-1][0].lower()}{messages[-1][1:]})" if messages else ""
        raise ServerUnreachable(f"{silence}{reason}; {_cure(connection)}") from error
    except RPCError as error:
        raise ServerUnreachable(_refusal(connection, error)) from error


def storage_url(connection: Connection) -> str | None:
    """Return the URL of the storage for large payloads: GRADELOOP_STORAGE, or a folder beside the embedded server's database."""
    if named := os.environ.get(STORAGE_VARIABLE):
        return named
    return (state_folder() / "payloads").as_uri() if is_embedded(connection) else None


def is_embedded(connection: Connection) -> bool:
    """Return whether the server is the embedded one, even if the environment names its address."""
    return connection.embedded or ((server := running_server()) is not None and server.address == connection.address)


async def check_server(client: Client) -> None:
    """Ask the server for the client's namespace; raise RPCError where the server refuses, or is away."""
    await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))


def _refuse_half_configured(namespace: str, options: ClientConnectConfig) -> None:
    given = [f"namespace {namespace!r}"] if namespace != NAMESPACE else []
    if given := [*given, *sorted(options)]:
        raise InvalidRequest(
            f"Temporal's environment or profile gives {', '.join(given)} but no address; "
            "set TEMPORAL_ADDRESS, or unset them to use the embedded server"
        )


def _cure(connection: Connection) -> str:
    return "end it with `gradeloop dev stop` and try again" if connection.embedded else CURE


def _refusal(connection: Connection, error: RPCError) -> str:
    if error.status == RPCStatusCode.NOT_FOUND:
        return (
            f"The Temporal server at {connection.address!r} has no namespace {connection.namespace!r}; "
            f"create it (temporal operator namespace create -n {connection.namespace}) or correct TEMPORAL_NAMESPACE"
        )
    if error.status in REFUSED:
        return _refused(connection, error.message)
    return f"The Temporal server at {connection.address!r} does not answer ({error.message}); {_cure(connection)}"


def _refused(connection: Connection, why: str) -> str:
    return (
        f"The Temporal server at {connection.address!r} refuses the credentials for namespace {connection.namespace!r} "
        f"({why}); correct TEMPORAL_API_KEY, TEMPORAL_TLS_* or the profile"
    )


async def follow_credentials(client: Client, connection: Connection, moved: Callable[[], None], seconds: float = LOOK_SECONDS) -> None:
    """Connect the client anew whenever its certificates or its API key have changed, which the SDK reads once; never returns.

    Calls in flight end on the connection that they began on. What cannot be read or does not connect is tried again: files are renewed
    one after the other.

    `client`: what `connect` returned for the connection.
    """
    in_use, reported = connection.options, ""
    while True:
        await asyncio.sleep(seconds)
        try:
            found = load_connect_config()
            found.pop("target_host", None)
            found.pop("namespace", None)
            if found != in_use:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await reconnect(client, connection.address, moved, **{**found, "namespace": connection.namespace})
                in_use, reported = found, ""
                logger.info("connected to %s anew, with the credentials as they are now", connection.address)
        except (InvalidRequest, RuntimeError, ValueError, TimeoutError, RPCError) as error:
            if reported != (reported := type(error).__name__):  # said once, and not at every look
                logger.warning("the new credentials for %s cannot be used yet (%s); the last ones count", connection.address, error)


PACKAGE = Path(__file__).parents[1]
"""The folder of the installed package `gradeloop`."""

IDLE_SECONDS = 60
"""Seconds without an open workflow in its queue after which a worker ends itself."""

STOP_SECONDS = 5.0
"""Seconds that a worker which is being replaced has to stop; it is idle, or its server is gone."""

STALE_STOP_SECONDS = 60.0
"""Seconds that a worker which read its files before they changed has to stop: it may have calls in flight, and drains them."""

REPLACED_SECONDS = 1.0
"""Seconds after a worker's death in which another command may start the next one."""

STARTING = "starting"
"""The content of the ready file of a worker that has not said yet whether it can serve."""

PROVIDER_VARIABLES = (
    "ANTHROPIC_", "OPENAI_", "GOOGLE_", "GEMINI_", "PALM_", "OPENROUTER_", "MISTRAL_", "AZURE_OPENAI_",
    "LANGFUSE_", "LANGSMITH_",
)  # fmt: skip
"""The beginnings of variables by which models are called and scores written back, besides those of presets and named endpoints."""

KINDS: dict[str, type[GradeloopError]] = {kind.__name__: kind for kind in (InvalidRequest, ServerUnreachable, WorkerFailed)}

WORKER_POLL_SECONDS = 2.0
"""The pause between two checks that the worker of a followed thread or batch lives."""

OURS = re.compile(r"gradeloop-[0-9a-f]{16}")
"""Task queues whose workers `gradeloop run` starts."""

POLLED_SECONDS = 70
"""Seconds within which a living worker has asked: it asks again each minute, and the server lists it for five."""

DESCRIBE_TIMEOUT = timedelta(seconds=5)

OF_A_SERVICE = frozenset({"GRADELOOP_HEALTH_ADDRESS", "GRADELOOP_METRICS_ADDRESS", "GRADELOOP_DEPLOYMENT", "GRADELOOP_BUILD_ID"})
"""Variables of a deployed worker: addresses cannot be shared, and nobody makes a build current for the others."""


@dataclass(frozen=True)
class WorkerSpec:
    """The files that a worker is started with: evidence tools, settings, and the replies of the scripted provider."""

    tools: tuple[Path, ...] = ()
    scripted: Path | None = None
    record: Path | None = None
    """The file that records every exchange with a model."""
    config: ConfigFile | None = None
    """The worker's file of settings."""
    local_servers: frozenset[str] = frozenset()
    """The loopback addresses of models that the command's own files name."""
    imports: tuple[Path, ...] = ()
    """The folders that code of a suite may import from."""

    def contents(self) -> str:
        """Return a digest of what the files hold now, by which a worker that read them before a change is told from others.

        Raises:
            InvalidRequest: A file cannot be read.
        """
        files = [*self.tools, *([self.scripted] if self.scripted else []), *([self.config.path] if self.config else [])]
        return hashlib.sha256(json.dumps([_sha256(file) for file in files]).encode()).hexdigest()

    def task_queue(self, connection: Connection) -> str:
        """Return the queue's name: equal only if server, tools, replies, endpoints and the *names* of the keys that are set are equal.

        Raises:
            InvalidRequest: A file cannot be read.
        """
        replies = self.scripted or find_replies(os.environ, self.config)
        facts = {
            "server": [connection.address, connection.namespace],
            "tools": [[str(file.absolute()), _sha256(file)] for file in self.tools],
            "scripted": _sha256(replies) if replies else None,
            **({"record": str(self.record.absolute())} if self.record else {}),
            **({"config": [str(self.config.path), self.config.sha256]} if self.config else {}),
            **({"local_servers": sorted(self.local_servers)} if self.local_servers else {}),
            **({"imports": [str(folder) for folder in self.imports]} if self.imports else {}),
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


async def ensure_worker_of(task_queue: str, connection: Connection, *, fresh: bool = False) -> None:
    """Start the worker of an existing thread's task queue again, from the files that it served before.

    `fresh`: replace a worker that read these files before they changed; its calls in flight have its drain time to end.

    Raises:
        InvalidRequest: A file that it served is gone.
        WorkerFailed: No worker of that queue was ever started here, or it does not start.
    """
    try:
        await _ensure(task_queue, _known_spec(task_queue), connection, fresh=fresh)
    except GradeloopError as error:
        await _require_another(task_queue, connection, error)


async def is_polled(client: Client, task_queue: str) -> bool:
    """Return whether a worker polls a queue for workflows, wherever it was started; raise ServerUnreachable for a silent server."""
    try:
        found = await pollers(client, task_queue)
    except RPCError as error:
        raise ServerUnreachable(f"the server does not say who polls {task_queue!r}: {error.message}; start it, then try again") from None
    return any(time.time() - poller.last_access_time.seconds < POLLED_SECONDS for poller in found)


async def pollers(client: Client, task_queue: str, identity: str | None = None) -> Sequence[PollerInfo]:
    """Return who polls a queue for workflows, or those of them with one identity."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    found = (await client.workflow_service.describe_task_queue(request, timeout=DESCRIBE_TIMEOUT)).pollers
    return [poller for poller in found if identity in {None, poller.identity}]


async def _require_another(task_queue: str, connection: Connection, error: GradeloopError) -> None:
    """Go on where a process that was not started here serves a queue; raise the error where none does, as far as the server tells."""
    try:
        client = await connect(connection)
        found = await pollers(client, task_queue)
        await close_client(client)
    except (GradeloopError, RPCError):
        raise error from None
    recent = [poller.identity for poller in found if time.time() - poller.last_access_time.seconds < POLLED_SECONDS]
    other = next((name for name in recent if name != client.identity and not is_dead(name)), None)
    if other is None:
        raise error
    logger.warning("%s; another process (%s) serves %s, so this command goes on", error, other, task_queue)


def is_dead(identity: str) -> bool:
    """Return whether a worker was a process of this machine that has ended; the server names it for minutes."""
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


async def _ensure(task_queue: str, spec: WorkerSpec, connection: Connection, *, fresh: bool = False) -> None:
    """Wait for the queue's worker that serves already, or that another command is starting; else start one, and wait for that."""
    # Under the lock, one command decides to start the worker. All commands then wait outside the lock, as long as that process lives.
    # If it dies, each looks once more, since another command may have started the next one; only its own starter gives up.
    process = _process(task_queue)
    failed: WorkerFailed | None = None
    while True:
        async with process.alone():
            standing = _standing(process, connection)
            if is_stale := fresh and standing == "serves" and process.record().get("contents") not in {None, spec.contents()}:
                standing = "gone"
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
                await process.stop(STALE_STOP_SECONDS if is_stale else STOP_SECONDS)
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
    """Wait until a worker's process serves its queue, as long as it lives; raise GradeloopError with its message where it cannot."""
    readiness = await process.until(lambda: asyncio.to_thread(read_readiness, _ready_file(process)))
    if not readiness.ok:
        failure = KINDS.get(readiness.kind, WorkerFailed)
        raise failure(readiness.error or f"The worker does not start; its log: {process.log}")


async def ask_worker(question: Literal["machine", "requests"], *flags: str, given: bytes = b"") -> Any:  # noqa: ANN401 - JSON
    """Return the JSON with which a worker's process, which serves nobody, answers; raise InvalidRequest where it refuses its settings."""
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
    # Three facts together say what a worker is: its process lives, its record names this server, and its
    # ready file says that it serves. A worker that decides to end removes the file first and is counted as
    # gone from then on, although it still lives. One that was refused a key serves everybody but a command
    # that has another key by now.
    record, ready = process.record(), _ready_file(process)
    if not process.alive() or (record.get("address"), record.get("namespace")) != (connection.address, connection.namespace):
        return "gone"
    readiness = read_readiness(ready)
    if readiness is None:
        return "starting" if ready.exists() else "gone"
    keys = {name: os.environ.get(name, "").strip() for name in readiness.refused}
    has_others = any(key and fingerprint(key) != readiness.refused[name] for name, key in keys.items())
    return "serves" if readiness.ok and not has_others else "gone"


def fingerprint(key: str) -> str:
    """Return what tells a key from others and does not show it."""
    return hashlib.sha256(key.encode()).hexdigest()


def _spec_flags(spec: WorkerSpec) -> list[str]:
    flags = [part for file in spec.tools for part in ("--tools", str(file.absolute()))]
    flags += ["--scripted", str(spec.scripted.absolute())] if spec.scripted else []
    flags += ["--record", str(spec.record.absolute())] if spec.record else []
    flags += [part for url in sorted(spec.local_servers) for part in ("--local-servers", url)]
    flags += [part for folder in spec.imports for part in ("--sandbox.imports", str(folder))]
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
        "local_servers": [*sorted(spec.local_servers)],
        "imports": [str(folder) for folder in spec.imports],
        "contents": spec.contents(),
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


def read_readiness(ready: Path) -> Readiness | None:
    """Return the content of a ready file; None where there is none that can be read."""
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
    """Return the provider variables that are set: endpoints with their values, everything else only by name."""
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


async def wake_worker(task_queue: str, connection: Connection, *, fresh: bool = False) -> None:
    """Start the worker of a queue that `gradeloop run` made, if it has ended, or `fresh` is asked for and its files changed."""
    if OURS.fullmatch(task_queue):
        await ensure_worker_of(task_queue, connection, fresh=fresh)


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
    async with beside(work, other) as (working, waiting):
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        await (working if working.done() else waiting)
        return working.done()
