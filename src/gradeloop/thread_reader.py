"""What can be read of threads, whether they are open or closed, and their events as they come."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from pydantic import JsonValue
from temporalio.client import Client

from gradeloop.contracts import TASK_QUEUE, GivenPrompt, RunResult, ThreadState
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.evaluation import Evaluation
from gradeloop.event import Event
from gradeloop.page import Page
from gradeloop.thread_review import ThreadReview
from gradeloop.transcript import Message

POLL_SECONDS = 0.1
SLOWEST_POLL_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
"""How long a watcher waits for a server or worker that is gone to come back."""


class ThreadReader:
    """Reads threads on one Temporal namespace."""

    def __init__(self, client: Client, *, task_queue: str = TASK_QUEUE) -> None:
        self._temporal: Client | None = client
        self._task_queue = task_queue
        self._watching = set[asyncio.Task[None]]()

    @property
    def temporal(self) -> Client:
        """The Temporal client.

        Raises:
            InvalidRequest: This client was closed.
        """
        if self._temporal is None:
            raise InvalidRequest("this client is closed; connect another one with GradingClient.connect()")
        return self._temporal

    def _disconnect(self) -> None:
        """End all watching, and drop the connection, which ends with its last user."""
        self._temporal = None
        for watching in tuple(self._watching):
            watching.cancel()

    async def last_result(self, thread_id: str) -> RunResult | None:
        """Return the result of the thread's last turn, also of an open thread; None where none has ended."""
        answer = await self._thread(thread_id).query("result")
        return RunResult.model_validate(answer) if answer else None

    async def watch(self, thread_id: str, *, after: int = 0, patience: float = PATIENCE_SECONDS) -> AsyncIterator[Event]:
        """Yield the thread's events with a `seq` above `after`, each once and in order, until the thread closes.

        Args:
            thread_id: The thread's id.
            after: The last `seq` that is known already.
            patience: Seconds for which a server or worker may be gone.
        """
        closing = asyncio.create_task(self._thread(thread_id).closed())
        self._watching.add(closing)
        pause, heard = POLL_SECONDS, asyncio.get_running_loop().time()
        try:
            while self._temporal is not None:
                closed = closing.done()
                page = await self._heard(thread_id, after, heard + patience)
                heard = asyncio.get_running_loop().time()
                for event in page.items:
                    after = event.seq
                    yield event
                if closed and not page.items:
                    return
                pause = POLL_SECONDS if page.items else min(pause * 1.3, SLOWEST_POLL_SECONDS)
                if page.next is None and not closed:
                    await asyncio.wait([closing], timeout=pause)
        finally:
            self._watching.discard(closing)
            closing.cancel()
            with contextlib.suppress(asyncio.CancelledError, GradeloopError):
                await closing

    async def state(self, thread_id: str) -> ThreadState:
        """Return where the thread stands."""
        return ThreadState.model_validate(await self._thread(thread_id).query("state"))

    async def events(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Event]:
        """Return a page of the events with a `seq` above `after`."""
        return Page[Event].model_validate(await self._thread(thread_id).query("events", after, limit))

    async def evaluations(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """Return a page of the evaluations from index `after`."""
        return Page[Evaluation].model_validate(await self._thread(thread_id).query("evaluations", after, limit))

    async def messages(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Message]:
        """Return a page of the messages from index `after`."""
        return Page[Message].model_validate(await self._thread(thread_id).query("messages", after, limit))

    async def prompt(self, thread_id: str, evaluation: int, *, group: int = 0) -> GivenPrompt | None:
        """Return what the grader of an evaluation, by its index, was given; None where its rubric is not kept any more."""
        answer = await self._thread(thread_id).query("prompt", evaluation, group)
        return GivenPrompt.model_validate(answer) if answer else None

    async def checkpoint(self, thread_id: str) -> dict[str, JsonValue]:
        """Return all that a new start needs to go on with the thread elsewhere."""
        return await self._thread(thread_id).query("checkpoint")

    def _thread(self, thread_id: str) -> ThreadReview:
        return ThreadReview(self.temporal, thread_id, self._task_queue)

    async def _heard(self, thread_id: str, after: int, deadline: float) -> Page[Event]:
        """Return the next events, waiting until `deadline` for a server or worker that is gone."""
        while True:
            try:
                return await self.events(thread_id, after=after)
            except ServerUnreachable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(SLOWEST_POLL_SECONDS)
