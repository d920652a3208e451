"""The finished threads of a namespace as a monitor's source, in the order in which they closed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic import JsonValue
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.client.thread import ThreadHandle
from gradeloop.contract.base import Page
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import SEARCH_ATTRIBUTES, WORKFLOW, RunResult
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable
from gradeloop.judges.sources import thread_as_run
from gradeloop.monitors.contract import ThreadFilter, ThreadsSource
from gradeloop.monitors.source_items import SourceItem
from gradeloop.temporal.histories import quoted

LISTED = 5000
"""Threads that are listed at once: the server lists the newest first, so that an older backlog is cut by time."""

READ_AT_ONCE = 10
"""Threads whose workers are asked at the same time."""

NARROWEST = timedelta(seconds=1)
"""The shortest time that is listed: a second with more threads is listed whole."""

WAITED = timedelta(hours=1)
"""The time after its end for which a thread waits for a worker that tells what was said; after that it is passed over."""

_STATUS, _, _RUBRIC = SEARCH_ATTRIBUTES
_ATTRIBUTES: dict[ThreadFilter, str] = {"status": _STATUS, "rubric": _RUBRIC, "queue": "TaskQueue"}


class ThreadPlace(NamedTuple):
    """Where a finished thread stands in the order in which they closed."""

    closed: datetime
    thread_id: str
    run_id: str

    @classmethod
    def read(cls, cursor: str) -> "ThreadPlace":
        """Return the place that a cursor means."""
        closed, thread_id, run_id = json.loads(cursor)
        return cls(datetime.fromisoformat(closed), str(thread_id), str(run_id))

    @property
    def cursor(self) -> str:
        """The place as the store has it."""
        return json.dumps([self.closed.isoformat(), self.thread_id, self.run_id])


class _Listed(NamedTuple):
    place: ThreadPlace
    queue: str


async def read_threads(
    source: ThreadsSource, cursor: str | None, client: Client | None, until: str | None
) -> AsyncGenerator[list[SourceItem]]:
    """Yield the threads that closed after the cursor, some at a time.

    Raises:
        InvalidRequest: The server cannot be read, or the worker of a thread that ended lately does not answer.
    """
    if client is None:
        raise InvalidRequest("the finished threads are read by a worker alone; this process has no Temporal server")
    reader, last = _ThreadReader(client), None if until is None else ThreadPlace.read(until)
    begin = datetime.fromtimestamp(0, UTC) if cursor is None else ThreadPlace.read(cursor).closed
    end = datetime.now(UTC) - timedelta(seconds=source.quiet)
    end = end if last is None else min(end, last.closed + timedelta(microseconds=1))
    after = None if cursor is None else ThreadPlace.read(cursor)
    while begin < end:
        found, begin = await _closed_between(client, source, begin, end)
        found = [one for one in found if (after is None or one.place > after) and (last is None or one.place <= last)]
        for first in range(0, len(found), READ_AT_ONCE):
            yield await reader.read(found[first : first + READ_AT_ONCE])
            if reader.problem is not None:  # what comes after this thread is read later, too
                raise InvalidRequest(reader.problem)


async def _closed_between(client: Client, source: ThreadsSource, begin: datetime, end: datetime) -> tuple[list[_Listed], datetime]:
    """Return the threads that closed first from a time on, in order, and up to when those are all."""
    try:
        while end - begin > NARROWEST and (await client.count_workflows(_query(source, begin, end))).count > LISTED:
            end = begin + (end - begin) / 2
        found = [
            _Listed(ThreadPlace(one.close_time, one.id, one.run_id), one.task_queue)
            async for one in client.list_workflows(_query(source, begin, end))
            if one.close_time is not None and one.parent_id is None  # a case of a batch is no production
        ]
    except RPCError as error:
        raise InvalidRequest(f"the finished threads cannot be listed: {error.message}; start the server, or correct --where") from None
    return sorted(found), end


def _query(source: ThreadsSource, begin: datetime, end: datetime) -> str:
    times = f"CloseTime >= {quoted(begin.isoformat())} AND CloseTime < {quoted(end.isoformat())}"
    chosen = "".join(f" AND {_ATTRIBUTES[key]} = {quoted(value)}" for key, value in source.where.items())
    return f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Completed' AND {times}{chosen}"


class _ThreadReader:
    """Reads threads; a queue whose worker did not answer is not asked again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._silent = set[str]()
        self.problem: str | None = None
        """Why no further thread is to be read: a worker does not answer, and its thread has ended lately."""

    async def read(self, found: Sequence[_Listed]) -> list[SourceItem]:
        """Return some threads with their places, up to one that has a problem."""
        items = list[SourceItem]()
        for one, run in zip(found, await asyncio.gather(*map(self._run, found)), strict=True):
            cursor = one.place.cursor
            if isinstance(run, AgentRun):
                items.append(SourceItem(cursor, run))
            elif isinstance(run, ServerUnreachable) and datetime.now(UTC) - one.place.closed < WAITED:
                cure = f"start one on the task queue {one.queue!r}, or read another with --where queue=NAME"
                self.problem = f"no worker answers for the thread {one.place.thread_id!r}; {cure}"
                break
            else:
                items.append(SourceItem(cursor, unreadable=f"the thread {one.place.thread_id!r}: {run}"))
        return items

    async def _run(self, one: _Listed) -> AgentRun | GradeloopError:
        if one.queue in self._silent:
            return ServerUnreachable("no worker answered on its task queue")
        try:
            return await self._read(ThreadHandle(self._client, one.place.thread_id, one.queue), one.place.run_id)
        except ServerUnreachable as error:
            self._silent.add(one.queue)
            return error
        except GradeloopError as error:
            return error
        except ValueError as error:
            return InvalidRequest(f"what its worker says of it has not the shape of a thread: {error}")

    async def _read(self, thread: ThreadHandle, run_id: str) -> AgentRun:
        messages, after = list[Message](), 0
        while True:
            page = Page[Message].model_validate(await thread.query("messages", after, 1000, run_id=run_id))
            messages += page.items
            if page.next is None:
                break
            after = page.next
        result: dict[str, JsonValue] = await thread.query("result", run_id=run_id)
        return thread_as_run(thread.thread_id, messages, RunResult.model_validate(result) if result else None)
