"""A worker's process beside what it serves: its ready file, its idle queue, its searches for garbage, what its metrics sample."""

import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from pydantic import JsonValue
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.errors import StoreUnavailable
from gradeloop.settings.secrets import scrubbed
from gradeloop.store.engine import Store
from gradeloop.telemetry.metrics import QUEUE_BACKLOG, STORE_BYTES, STORE_FREE_BYTES
from gradeloop.temporal.connect import fingerprint, pollers, read_readiness

logger = logging.getLogger(__name__)

FIRST_POLL_SECONDS, FIRST_POLL_PAUSE_SECONDS = 5.0, 0.01
"""Seconds that a worker waits for the server to see its first poll, and the first pause between two looks; each next one is doubled."""

POLL_SECONDS = 5.0

LOST_SERVER_SECONDS = 600.0
"""Seconds without a server after which a worker that ends itself when idle ends itself too."""


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
        found = await pollers(self.client, self.task_queue, self.client.identity)
        return max((poller.last_access_time.ToNanoseconds() for poller in found), default=None)

    async def until_idle(self, seconds: float, stopped: asyncio.Event) -> None:
        """Set `stopped` once the queue has been idle for so many seconds."""
        # A server that does not answer is not a queue without work, so the queue counts as busy then. After ten
        # minutes without an answer the server is gone for good, and a worker that a command has started
        # must not stay for ever.
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
        # The order decides: first no caller can find this worker any more, and then the queue is looked at. If
        # the queue were looked at first, a workflow started in between would wait for a worker that ends.
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
        if file is not None and read_readiness(file) is not None:  # of a worker that was killed
            file.unlink()

    def announce(self) -> None:
        """Write that this worker serves."""
        _write(self._file, {"ok": True, "worker": self._worker, "refused": self._refused})

    def note_refused(self, variable: str, key: str) -> None:
        """Note that a variable's key was refused, or is missing: a command that has another one starts another worker."""
        self._refused[variable] = fingerprint(key)
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


OLDEST = 2
"""The generation that a full search walks, with all younger ones."""

LONG = 0.02
"""Seconds from which a full search is long: a worker's own objects take less, a provider's SDK, loaded at its first call, takes more."""

TIMES = 8
"""The most times that what a long search left is set aside; cycles in it would never be found."""


class LoadedObjects:
    """Sets aside what a process has loaded, so that no search for cyclic garbage walks it.

    A full search stops all that a worker does for as long as it takes to walk all objects: with the SDKs loaded 0.15 s, once in some
    200 calls. What is set aside is freed as ever once nothing refers to it.

    Args:
        long: Seconds from which a full search is followed by setting aside what it left.
    """

    def __init__(self, long: float = LONG) -> None:
        self._long = long
        self._left = TIMES
        self._began = 0.0

    @contextlib.contextmanager
    def gc_freeze(self) -> Iterator[None]:
        """Set aside all objects that there are, and what is loaded later after a search that took long; give them back at the end."""
        gc.freeze()  # without a search, which would take a tenth of the worker's start
        gc.callbacks.append(self._searched)
        gc.enable()
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(self._searched)
            gc.unfreeze()

    def _searched(self, phase: str, found: Mapping[str, int]) -> None:
        if found["generation"] != OLDEST:
            return
        if phase == "start":
            self._began = perf_counter()
        elif perf_counter() - self._began >= self._long:
            gc.freeze()
            self._left -= 1
            if not self._left:
                gc.callbacks.remove(self._searched)


SAMPLE_SECONDS = 15.0

TYPES = {"workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY}


async def sample(client: Client, task_queue: str, store: Store | None) -> None:
    """Record the backlog and the size of the store now and then, until it is cancelled."""
    while True:
        try:
            await sample_once(client, task_queue, store)
        except (RPCError, StoreUnavailable, TimeoutError) as error:
            logger.info("the backlog or the store's size is not known now: %s", error)
        await asyncio.sleep(SAMPLE_SECONDS)


async def sample_once(client: Client, task_queue: str, store: Store | None) -> None:
    """Record the backlog and the size of the store.

    Raises:
        RPCError: The server refuses, or is away.
        StoreUnavailable: The store is away.
        TimeoutError: One of them does not answer.
    """
    async with asyncio.timeout(SAMPLE_SECONDS):
        for name, kind in TYPES.items():
            request = DescribeTaskQueueRequest(
                namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind, report_stats=True
            )
            described = await client.workflow_service.describe_task_queue(request)
            QUEUE_BACKLOG.record(described.stats.approximate_backlog_count, type=name)
        if store is not None:
            size, free = await asyncio.to_thread(store.size)
            STORE_BYTES.record(size)
            if free is not None:
                STORE_FREE_BYTES.record(free)
