"""What the live page is made from: a client, the store's batches, and what was shown last."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from gradeloop.batches.client import BatchClient
from gradeloop.batches.reader import BatchReader
from gradeloop.client import GradingClient
from gradeloop.connection import Connection
from gradeloop.errors import ServerUnreachable
from gradeloop.worker_process import wake

ACTION_SECONDS = 30.0
"""How long a person who pressed a button waits for the thread to answer: longer than a worker's start."""

REMEMBERED = 512
"""Pages of which it is known what they show; far above what people have open."""


@dataclass(frozen=True)
class Shown:
    """What a page showed when it was looked at last."""

    mark: str
    """Of what it is made from, as cheaply as that can be told."""
    tag: str
    """Of what it shows."""
    again: float = 0.0
    """The loop's time before which nobody looks again: what takes long to read is read less often."""


@dataclass
class Site:
    """One `gradeloop dev`, as its pages see it."""

    client: GradingClient
    connection: Connection
    batches: BatchReader
    token: str
    """Of this process; whoever changes anything brings it along."""
    _shown: dict[str, Shown] = field(default_factory=dict)
    _tasks: "set[asyncio.Task[Any]]" = field(default_factory=set)

    @property
    def batch_client(self) -> BatchClient:
        """What batches are paused by."""
        return BatchClient(self.client.temporal, "")

    def shown(self, path: str) -> Shown | None:
        """Return what a page showed last, where that is still known."""
        return self._shown.get(path)

    def remember(self, path: str, shown: Shown) -> None:
        """Note what a page shows; the page that was noted longest ago is forgotten."""
        self._shown.pop(path, None)
        self._shown[path] = shown
        if len(self._shown) > REMEMBERED:
            self._shown.pop(next(iter(self._shown)))

    async def wake(self, thread_id: str) -> None:
        """Start the worker of a thread that `gradeloop run` began, where it has ended.

        Raises:
            GradeloopError: There is no such thread, or its worker does not start.
        """
        await wake(await self.client.task_queue_of(thread_id), self.connection)

    def begin(self, work: "Coroutine[Any, Any, Any]") -> "asyncio.Task[Any]":
        """Have work go on after its request was answered, to the end of the page at most; what it raises is its starter's to read."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # which asyncio would log as never retrieved

    async def close(self) -> None:
        """Let go of whatever is still waited for; runs go on without us."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def in_time(work: "Coroutine[Any, Any, object]", seconds: float, words: str) -> None:
    """Do work, and give it up after a while.

    Raises:
        ServerUnreachable: In these words, after so many seconds.
    """
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        raise ServerUnreachable(words) from None
