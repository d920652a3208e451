"""The typed client: turns of a thread, watched, stopped and gone on with; a closed thread goes on from its checkpoint by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from pydantic import JsonValue
from temporalio.client import Client

from gradeloop.connection import Connection, connect, find
from gradeloop.contracts import TASK_QUEUE, RunResult, ThreadState
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.evaluation import Evaluation
from gradeloop.event import Event
from gradeloop.page import Page
from gradeloop.request import ThreadRequest, parse_invoke, parse_request, refuse_oversize
from gradeloop.rubric import Rubric
from gradeloop.telling import Telling
from gradeloop.thread_turns import ThreadTurns, Turn
from gradeloop.transcript import Message

OnEvaluation = Callable[[Evaluation], Awaitable[None] | None]
Said = str | Sequence[Message | Mapping[str, Any]]

POLL_SECONDS = 0.1
SLOWEST_POLL_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
"""How long a watcher waits for a server or worker that is gone to come back."""


class GradingClient:
    """Threads on one Temporal namespace."""

    def __init__(self, client: Client, *, task_queue: str = TASK_QUEUE) -> None:
        self.temporal = client
        self._task_queue = task_queue

    @classmethod
    async def connect(cls, connection: Connection | None = None, *, task_queue: str = TASK_QUEUE) -> "GradingClient":
        """Connect to the server of Temporal's environment or profile, else to the embedded one.

        Raises:
            ServerUnreachable: Nobody answers.
        """
        return cls(await connect(connection or await find()), task_queue=task_queue)

    async def start(self, request: ThreadRequest | Mapping[str, Any], *, thread_id: str | None = None) -> str:
        """Start a thread and return its id.

        Raises:
            InvalidRequest: The request is refused, or a thread of that id exists.
        """
        request = request if isinstance(request, ThreadRequest) else parse_request(dict(request))
        refuse_oversize(request.messages)
        if not request.messages and not request.idle_timeout and request.checkpoint is None:
            raise InvalidRequest("messages is empty; give the task as one message of role 'user'")
        handle = self._thread(thread_id or f"thread-{uuid4()}")
        await handle.start(request)
        return handle.thread_id

    async def run(self, request: ThreadRequest | Mapping[str, Any], *, thread_id: str | None = None) -> RunResult:
        """Start a thread and return its result when it completes."""
        return await self.result(await self.start(request, thread_id=thread_id))

    async def invoke(
        self,
        thread_id: str,
        messages: Said = (),
        *,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        max_iterations: int | None = None,
        key: str | None = None,
        start: ThreadRequest | Mapping[str, Any] | None = None,
        on_evaluation: OnEvaluation | None = None,
    ) -> RunResult:
        """Do one turn of a thread and return its result, like calling a checkpointed agent.

        A thread that was closed, cancelled or terminated goes on from its checkpoint. A lost connection, a new run of the
        workflow and a restart of worker or server are waited through.

        Args:
            thread_id: The thread's id.
            messages: What is said: a text, or messages. None at all goes on with an interrupted run, or grades the last draft again.
            rubric: A new rubric; the sticky one stays by default, `""` clears it.
            max_iterations: Of the run that this turn opens.
            key: Makes the call idempotent: the same key again attaches to the turn, or returns its result.
            start: What the thread is started with where there is none of that id; its messages must be empty.
            on_evaluation: Told once of each evaluation of this turn, with a copy; what it raises is logged and has no effect.

        Raises:
            InvalidRequest: The turn is refused.
            ThreadNotFound: There is no such thread, and no `start`.
        """
        turn = parse_invoke(_turn(messages, rubric, max_iterations, key))
        request = parse_request(dict(start)) if isinstance(start, Mapping) else start
        handle = self._thread(thread_id)
        asked = Turn(turn, request, named=key is not None)
        if on_evaluation is None:
            return await handle.invoke(asked)
        return await Telling(self, thread_id, on_evaluation).during(handle.invoke(asked))

    async def resume(self, thread_id: str) -> RunResult:
        """Go on with the interrupted run, of a closed thread too, and return its result.

        Raises:
            InvalidRequest: Nothing is interrupted in this thread.
        """
        return await self._thread(thread_id).resume()

    async def result(self, thread_id: str) -> RunResult:
        """Wait for the thread to complete and return the result of its last turn.

        Raises:
            InvalidRequest: The worker refused the thread.
            ThreadClosed: It was cancelled, terminated or timed out.
        """
        return await self._thread(thread_id).result()

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
        pause, heard = POLL_SECONDS, asyncio.get_running_loop().time()
        try:
            while True:
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

    async def checkpoint(self, thread_id: str) -> dict[str, JsonValue]:
        """Return all that a new start needs to go on with the thread elsewhere."""
        return await self._thread(thread_id).query("checkpoint")

    async def supply_rubric(self, thread_id: str, rubric: Rubric | str | Mapping[str, Any]) -> None:
        """Give the thread a new rubric, also in the middle of a run.

        Raises:
            InvalidRequest: The rubric is refused.
        """
        read = parse_invoke({"rubric": rubric}).rubric
        await self._thread(thread_id).signal("supply_rubric", read)

    async def interrupt(self, thread_id: str) -> None:
        """Stop the calls in flight; the run can be resumed."""
        await self._thread(thread_id).signal("interrupt")

    async def close(self, thread_id: str) -> None:
        """Have the thread refuse new turns, serve the queued ones, and complete."""
        await self._thread(thread_id).signal("close")

    async def cancel(self, thread_id: str) -> None:
        """Cancel the thread's workflow: the calls in flight stop, and its checkpoint stays readable."""
        await self._thread(thread_id).cancel()

    async def task_queue_of(self, thread_id: str) -> str:
        """Return the task queue on which the thread is served."""
        return (await self._thread(thread_id).describe()).task_queue

    def _thread(self, thread_id: str) -> ThreadTurns:
        return ThreadTurns(self.temporal, thread_id, self._task_queue)

    async def _heard(self, thread_id: str, after: int, deadline: float) -> Page[Event]:
        """Return the next events, waiting until `deadline` for a server or worker that is gone."""
        while True:
            try:
                return await self.events(thread_id, after=after)
            except ServerUnreachable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(SLOWEST_POLL_SECONDS)


def _turn(messages: Said, rubric: object, max_iterations: int | None, key: str | None) -> dict[str, object]:
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    turn = {"messages": said, "rubric": rubric, "max_iterations": max_iterations, "key": key}
    return {name: value for name, value in turn.items() if value is not None}
