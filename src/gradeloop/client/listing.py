"""The threads of a namespace, as its visibility store knows them."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import get_args

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from gradeloop.contract.base import Strict
from gradeloop.contract.evaluation import RunStatus
from gradeloop.contract.thread import SEARCH_ATTRIBUTES, WORKFLOW
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadNotFound
from gradeloop.text import clip, did_you_mean

LATEST = "latest"
"""The name of the thread that was started last, wherever an id is expected."""

BETWEEN = 1_000
"""The most threads that are read because they began after one in the list but ended earlier; with more, a list may lack some."""

_STATUS, _RUN, _RUBRIC = (SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES)


_CLOSED = {"canceled": "Canceled", "terminated": "Terminated", "timed_out": "TimedOut"}
"""How a workflow closed that says nothing of its run, and what Temporal calls that."""

STATUSES = (*get_args(RunStatus), "ungraded", *_CLOSED)
"""The statuses that a thread may be listed with."""


class ListedThread(Strict):
    """A thread in a list."""

    thread_id: str
    status: str
    """The grading run's status, `interrupted` where the workflow failed, or how it closed where that is not known."""
    open: bool
    started: datetime
    closed: datetime | None
    grading_run_id: str | None
    rubric_sha256: str | None
    task_queue: str


async def threads(client: Client, *, status: str | None = None, limit: int = 20) -> AsyncIterator[ListedThread]:
    """Yield the newest threads first.

    Args:
        client: Connected to the namespace.
        status: A status, to list the threads of that status alone.
        limit: The most threads to yield.

    Raises:
        InvalidRequest: There is no such status.
        ServerUnreachable: The server does not answer, or does not know our search attributes.
    """
    if status is not None and status not in STATUSES:
        raise InvalidRequest(f"status {clip(status)} is no status of a thread.{did_you_mean(status, list(STATUSES))}")
    query = f"WorkflowType = '{WORKFLOW}'" + (f" AND ({_condition(status)})" if status else "")
    try:
        found = await _newest(client, query, limit)
    except RPCError as error:
        raise ServerUnreachable(f"the threads cannot be listed: {error.message}") from None
    for listed in found[:limit]:
        yield listed


def _condition(status: str) -> str:
    """Return the condition that the server's list is filtered by, for a status that a thread is listed with."""
    if status in _CLOSED:
        return f"ExecutionStatus = '{_CLOSED[status]}'"
    known = f"GradeloopStatus = '{status}' AND (ExecutionStatus = 'Running' OR ExecutionStatus = 'Completed')"
    return f"({known}) OR ExecutionStatus = 'Failed'" if status == "interrupted" else known


async def _newest(client: Client, query: str, limit: int) -> list[ListedThread]:
    """Return threads by their start, the newest first and without duplicates; the server lists open ones first, others by their end."""
    found: dict[str, ListedThread] = {}

    async def take(more: str, most: int) -> list[ListedThread]:
        async for execution in client.list_workflows(query + more, limit=most):
            listed = _listed(execution)
            if listed.thread_id not in found or found[listed.thread_id].started < listed.started:
                found[listed.thread_id] = listed
        return sorted(found.values(), key=lambda thread: thread.started, reverse=True)

    await take(" AND ExecutionStatus = 'Running'", limit)
    newest = await take(" AND ExecutionStatus != 'Running'", limit)
    if len(newest) < limit:
        return newest
    return await take(f" AND StartTime > '{newest[limit - 1].started.isoformat()}'", limit + BETWEEN)


async def resolved(client: Client, thread_id: str) -> str:
    """Return the id, `latest` replaced by the id of the thread that was started last.

    Raises:
        ThreadNotFound: There is none.
    """
    if thread_id != LATEST:
        return thread_id
    async for listed in threads(client, limit=1):
        return listed.thread_id
    raise ThreadNotFound("there is no thread yet on this server")


def _listed(execution: WorkflowExecution) -> ListedThread:
    known = execution.typed_search_attributes
    closed_as = execution.status.name.lower() if execution.status else "unknown"
    closed_as = "interrupted" if closed_as == "failed" else closed_as  # `failed` is a grader's word on the rubric
    is_open = execution.status == WorkflowExecutionStatus.RUNNING
    return ListedThread(
        thread_id=execution.id,
        status=str(known.get(_STATUS, closed_as)) if closed_as in {"running", "completed"} else closed_as,
        open=is_open,
        started=execution.start_time,
        closed=execution.close_time,
        grading_run_id=known.get(_RUN),
        rubric_sha256=known.get(_RUBRIC),
        task_queue=execution.task_queue,
    )
