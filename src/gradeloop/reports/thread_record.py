"""All that can be read of a thread, whether it is open or closed, page by page."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

from gradeloop.contracts import TASK_QUEUE, RunResult, ThreadState
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.evaluation import Evaluation
from gradeloop.event import Event
from gradeloop.page import Page
from gradeloop.reports.workflow_histories import mapping
from gradeloop.thread_handle import ThreadHandle
from gradeloop.thread_reader import ThreadReader
from gradeloop.transcript import Message

Item = TypeVar("Item")


@dataclass(frozen=True)
class ThreadRecord:
    """A thread as it was read: messages last, so that whatever refers to one finds it."""

    thread_id: str
    described: WorkflowExecutionDescription
    """Of its last Temporal run."""
    state: ThreadState
    result: RunResult | None
    evaluations: tuple[Evaluation, ...]
    events: tuple[Event, ...]
    dropped_events: int
    """How many older ones the thread does not keep any more."""
    messages: tuple[Message, ...]
    kept: dict[str, JsonValue]
    """The thread in its checkpoint; empty where that cannot be read."""

    @property
    def is_open(self) -> bool:
        """True where its last Temporal run is."""
        return self.described.status == WorkflowExecutionStatus.RUNNING

    @property
    def own(self) -> tuple[Evaluation, ...]:
        """The evaluations of the grading run in flight, else of the last one; none where the last turn was not graded."""
        return tuple(each for each in self.evaluations if each.grading_run_id == self.state.grading_run_id)

    @property
    def settled(self) -> RunResult | None:
        """What the last turn came to; None where another one is in flight."""
        current = self.result is not None and self.result.grading_run_id == self.state.grading_run_id
        return self.result if current and self.state.status != "running" else None


async def thread_record(reader: ThreadReader, thread_id: str) -> ThreadRecord:
    """Read a thread.

    Raises:
        ThreadNotFound: There is none of that id.
        ServerUnreachable: The server does not answer, or no worker does.
        InvalidRequest: The thread was refused when it was started.
    """
    described = await ThreadHandle(reader.temporal, thread_id, TASK_QUEUE).describe()
    state = await reader.state(thread_id)
    result = await reader.last_result(thread_id)
    evaluations, _ = await _all(lambda after: reader.evaluations(thread_id, after=after))
    events, dropped = await _all(lambda after: reader.events(thread_id, after=after))
    messages, _ = await _all(lambda after: reader.messages(thread_id, after=after))
    kept = await _kept(reader, thread_id)
    return ThreadRecord(thread_id, described, state, result, evaluations, events, dropped, messages, kept)


async def _all(page: Callable[[int], Awaitable[Page[Item]]]) -> tuple[tuple[Item, ...], int]:
    """Return the items of all pages, and how many before them are gone."""
    found: list[Item] = []
    after: int | None = 0
    first: int | None = None
    while after is not None:
        told = await page(after)
        found += told.items
        first, after = told.first if first is None else first, told.next
    return tuple(found), first or 0


async def _kept(reader: ThreadReader, thread_id: str) -> dict[str, JsonValue]:
    try:
        return mapping((await reader.checkpoint(thread_id)).get("thread"))
    except (InvalidRequest, ServerUnreachable):  # a thread may be larger than what one answer takes
        return {}
