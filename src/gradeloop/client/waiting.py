"""The threads that wait for a person, with what is asked and since when: what an inbox shows."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.client import Client

from gradeloop.client.listing import ListedThread, threads
from gradeloop.client.thread import ThreadHandle
from gradeloop.contract.base import OmitEmpty, Page, Strict
from gradeloop.contract.evaluation import Evaluation, Event, Rejection, WaitingFor, rejections_of
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import ThreadState
from gradeloop.errors import GradeloopError
from gradeloop.extensions import parts
from gradeloop.text import headline, one_line

if TYPE_CHECKING:
    from rich.rule import Rule
    from rich.text import Text

    from gradeloop.store.engine import Store

LISTED = 1_000
"""The most waiting threads of which the oldest are looked for: the server lists only by start."""

CONCURRENCY = 8
"""Threads that are asked at once."""

ANSWER_SECONDS = 6.0
"""Seconds that a thread's worker may take; a lost worker must not block the list."""

LAST_EVENTS = 50
"""Last events of a thread that are searched for the start of its wait."""

LAST_EVALUATIONS = 40
"""Last evaluations of a thread that are searched for rejections: more than a run has iterations."""

NEWEST = 10**9
"""A position after every event, for asking how many there are."""

TASK_CHARACTERS = 120

Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True)
class StoredQuestions:
    """Questions of an extension to people, beside the threads that wait."""

    lines: Callable[[], Iterable["Text | Rule"]]
    """Returns the lines on a terminal, each with the command that shows or answers it; none where nothing waits."""
    html: Callable[[], str]
    """Returns the same as a part of a page; empty where nothing waits."""
    what: str = ""
    """The number of what waits, with its noun, `2 unsure cases`; empty where nothing waits."""


async def stored_questions(store: "Store", person: str | None) -> list[StoredQuestions]:
    """Return what extensions ask of people.

    Args:
        store: The store that they keep it in.
        person: Whoever is asked; None for anybody.

    Raises:
        StoreUnavailable: The store cannot be used.
    """
    return [await waits(store, person) for waits in parts(lambda extension: extension.waits)]


class WaitingThread(Strict):
    """A thread that waits for a person, and what it asks: `[thread.task for thread in await client.waiting()]`."""

    thread_id: str
    started: datetime
    since: datetime
    """Start of the wait; the thread's start if its worker does not answer."""
    task: str = ""
    """The beginning of the thread's first message, as one line."""
    waiting_for: WaitingFor | None = None
    """The question; None if its worker does not answer."""
    rejections: OmitEmpty[tuple[Rejection, ...]] = ()
    """Rejections of the run's earlier drafts on the same criteria, the oldest first."""
    problem: str | None = None
    """The reason why the question is unknown."""
    task_queue: str


async def waiting_threads(client: Client, *, limit: int) -> list[WaitingThread]:
    """Return the threads that wait for a person, those that wait longest first.

    Args:
        client: Connected to the namespace.
        limit: The most threads to return.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    found = [thread async for thread in threads(client, status="waiting", limit=LISTED) if thread.open]
    places = asyncio.Semaphore(CONCURRENCY)

    async def read(listed: ListedThread) -> WaitingThread | None:
        async with places:
            return await read_waiting(client, listed)

    oldest = sorted(found, key=lambda thread: thread.started)[:limit]
    read_ones = await asyncio.gather(*map(read, oldest))
    return sorted((one for one in read_ones if one is not None), key=lambda one: one.since)


async def read_waiting(client: Client, listed: ListedThread) -> WaitingThread | None:
    """Return what a listed thread waits for; None where it waits no more: the server's list is a moment behind."""
    handle = ThreadHandle(client, listed.thread_id, listed.task_queue)
    unread = WaitingThread(thread_id=listed.thread_id, started=listed.started, since=listed.started, task_queue=listed.task_queue)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            state = ThreadState.model_validate(await handle.query("state"))
            if state.waiting_for is None:
                return None
            events = (await _last(handle, "events", Page[Event], LAST_EVENTS)).items
            messages = Page[Message].model_validate(await handle.query("messages", 0, 1)).items
            evaluations: tuple[Evaluation, ...] = ()
            if state.waiting_for.draft and state.waiting_for.draft.previous is not None:
                evaluations = (await _last(handle, "evaluations", Page[Evaluation], LAST_EVALUATIONS)).items
    except TimeoutError:
        return unread.model_copy(update={"problem": "no worker answers for this thread; start one on its task queue"})
    except (GradeloopError, ValidationError) as error:
        return unread.model_copy(update={"problem": one_line(str(error))})
    since = next((event.time for event in reversed(events) if event.type == "waiting"), None)
    return unread.model_copy(
        update={
            "since": datetime.fromisoformat(since) if since else listed.started,
            "task": headline(messages[0].content, TASK_CHARACTERS) if messages else "",
            "waiting_for": state.waiting_for,
            "rejections": rejections_of(evaluations, state.waiting_for),
        }
    )


async def _last(handle: ThreadHandle, query: str, page: type[Page[Item]], most: int) -> Page[Item]:
    """Return the last items of a paged query."""
    total = page.model_validate(await handle.query(query, NEWEST, 1)).total
    return page.model_validate(await handle.query(query, max(total - most, 0), most))
