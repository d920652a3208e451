"""Watching a thread: its events once and in order, as its history grows, with what they refer to where that is asked for."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

from pydantic import BaseModel
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError

from gradeloop.client.call_waits import LOOK_SECONDS, call_waits
from gradeloop.client.thread import ThreadHandle
from gradeloop.contract.base import OmitEmpty, Page
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import ThreadState
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable

SILENCE_SECONDS = 30.0
"""Seconds of silence before a watcher queries: the query tells whether a worker still serves the thread."""

PATIENCE_SECONDS = 120.0
"""Seconds that a watcher waits for a lost server or worker."""

Until = Literal["turn", "closed"]

Item = TypeVar("Item", bound=BaseModel)


class DetailedEvent(Event):
    """An event with what it refers to by its index: `async for event in client.watch("haiku-1", details=True): print(event.message)`."""

    message: OmitEmpty[Message | None] = None
    """The message that was added; None for an event of any other type."""
    evaluation: OmitEmpty[Evaluation | None] = None
    """The evaluation that has ended; None for an event of any other type."""


async def watch_events(
    thread: ThreadHandle,
    *,
    after: int,
    until: Until,
    patience: float,
    watching: "set[asyncio.Task[None]]",
    is_over: Callable[[], bool],
    drafts: bool = False,
) -> AsyncGenerator[list[Event]]:
    """Yield the thread's events with a `seq` above `after`, those of one query together, until the thread closes or its turn ends.

    Args:
        thread: The thread.
        after: The last `seq` that is known already.
        until: What ends the watch.
        patience: Seconds for which a server or worker may be gone.
        watching: Has the watch's task while it lasts.
        is_over: Whether the client was closed, which ends the watch.
        drafts: Whether an event says how far a draft has come, whenever more of it is known.
    """
    draft = ""
    poll = HistoryPoll(thread)
    following = asyncio.create_task(poll.follow())
    watching.add(following)
    clock = asyncio.get_running_loop().time
    answered = clock()
    turn_ended = False
    try:
        while not is_over():
            # Whether the thread has closed is read before the query. If it were read behind it, the last events
            # could be recorded between the two, and the watcher would end without them. For the same reason one
            # more page is asked for after the turn has ended.
            closed = poll.closed
            page = await _next_events(thread, after, answered + patience, is_over)
            if page is None:
                return
            answered = clock()
            if page.items:
                after = page.items[-1].seq
                yield list(page.items)
                turn_ended = until == "turn" and page.next is None and await _turn_has_ended(thread)
            elif closed or turn_ended:  # nothing came after what was asked about, so that was all
                return
            if page.next is None and not closed and not turn_ended:
                await poll.wait(min(LOOK_SECONDS if drafts else SILENCE_SECONDS, patience))
                if drafts and (said := await _draft_of(thread)) not in {"", draft}:
                    draft = said
                    yield [Event(seq=after, type="drafting", time=datetime.now(UTC).isoformat(timespec="milliseconds"), draft=draft)]
    finally:
        watching.discard(following)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


async def _draft_of(thread: ThreadHandle) -> str:
    """Return the end of the draft that is being written; empty where none is, or the server does not answer."""
    with contextlib.suppress(GradeloopError):
        return next((wait.draft for wait in await call_waits(thread.client, await thread.describe()) if wait.draft), "")
    return ""


async def with_details(thread: ThreadHandle, events: Sequence[Event]) -> list[DetailedEvent]:
    """Return events with the messages and evaluations that they refer to, read by a query of each kind."""
    messages = await _indexed(thread, "messages", Message, [e.index for e in events if e.type == "message" and e.index is not None])
    ends = [e.index for e in events if e.type == "rubric_evaluation_end" and e.index is not None]
    evaluations = await _indexed(thread, "evaluations", Evaluation, ends)
    return [
        DetailedEvent(
            **dict(event),
            message=messages.get(event.index) if event.type == "message" and event.index is not None else None,
            evaluation=evaluations.get(event.index) if event.type == "rubric_evaluation_end" and event.index is not None else None,
        )
        for event in events
    ]


async def _indexed(thread: ThreadHandle, query: str, model: type[Item], indices: Sequence[int]) -> dict[int, Item]:
    """Return the items of a paged query from the first of the indices to the last, by their index."""
    found: dict[int, Item] = {}
    at, last = min(indices, default=0), max(indices, default=-1)
    while at <= last:
        page = Page[model].model_validate(await thread.query(query, at, last - at + 1))  # type: ignore[valid-type] # a type at run time
        found |= dict(enumerate(page.items, at))
        if page.next is None:
            break
        at = page.next
    return found


async def _turn_has_ended(thread: ThreadHandle) -> bool:
    """Return whether no turn runs and none waits for its place."""
    state = ThreadState.model_validate(await thread.query("state"))
    return state.status != "running" and not state.queued


async def _next_events(thread: ThreadHandle, after: int, deadline: float, is_over: Callable[[], bool]) -> Page[Event] | None:
    """Return the next events, waiting until `deadline` for a server or worker that is gone; None where the client was closed."""
    while True:
        try:
            return Page[Event].model_validate(await thread.query("events", after, 1000))
        except InvalidRequest:
            if is_over():
                return None
            raise
        except ServerUnreachable:
            if is_over():
                return None
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(LOST_SECONDS)


RECORDED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
"""The event after which a query may say something else than before: what a query says is what workflow tasks recorded."""

ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}
"""The last events of a workflow's run."""

LOST_SECONDS = 1.0
"""The pause after a poll that failed; meanwhile a watcher asks by query."""


class HistoryPoll:
    """Follows one thread's history through the runs of its workflow; `follow` is its task, and the others ask it."""

    def __init__(self, thread: ThreadHandle) -> None:
        self.closed = False
        """True once the thread has closed."""
        self._thread = thread
        self._changed = asyncio.Event()
        self._run_id: str | None = None
        self._seen = 0
        """The id of the last event that was seen of this run."""

    async def wait(self, seconds: float) -> None:
        """Wait until a query may find something new, the thread has closed, or so many seconds have passed."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self._changed.clear()

    async def follow(self) -> None:
        """Follow the history until the thread closes."""
        try:
            while not self.closed:
                try:
                    await self._follow_run()
                except RPCError:
                    self._changed.set()
                    await asyncio.sleep(LOST_SECONDS)
        finally:
            self._changed.set()

    async def _follow_run(self) -> None:
        """Follow the workflow's last run to its end; what is recorded already is paged over, since one query says it all."""
        description = await self._thread.workflow().describe()
        if description.run_id != self._run_id:
            self._run_id, self._seen = description.run_id, 0
        self._changed.set()
        known = max(self._seen, description.history_length)
        async for event in self._thread.workflow(self._run_id).fetch_history_events(wait_new_event=True):
            self._seen = max(self._seen, event.event_id)
            if event.event_type in ENDS:
                self.closed = event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
            if event.event_type in ENDS or (event.event_type == RECORDED and event.event_id > known):
                self._changed.set()
