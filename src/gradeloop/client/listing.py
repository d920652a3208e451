"""The threads of a namespace, as its visibility store knows them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import get_args
from urllib.parse import unquote

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from gradeloop.contract.base import OmitEmpty, Strict
from gradeloop.contract.evaluation import RunStatus
from gradeloop.contract.thread import BATCH_WORKFLOW, SEARCH_ATTRIBUTES, TENANT_ATTRIBUTE, WORKFLOW, tenant_value
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadNotFound
from gradeloop.temporal.histories import quoted
from gradeloop.text import clip, did_you_mean

LATEST = "latest"
"""The name of the thread that was started last, wherever an id is expected."""

BETWEEN = 1_000
"""The most threads that are read because they began after one in the list but ended earlier; with more, a list may lack some."""

_STATUS, _RUN, _RUBRIC, _, _FORK = (SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES)

_CLOSED = {"canceled": "Canceled", "terminated": "Terminated", "timed_out": "TimedOut"}
"""Statuses of workflows that closed without a result, by our name, with Temporal's."""

STATUSES = (*get_args(RunStatus), "ungraded", "completed", *_CLOSED)
"""The statuses that a thread may be listed with; `completed` where no more is known of it."""


class ListedThread(Strict):
    """A thread in a list: `[thread.thread_id async for thread in client.threads(status="waiting")]`."""

    thread_id: str
    status: str
    """The grading run's status, `interrupted` where the workflow failed, or how it closed where that is not known."""
    open: bool
    started: datetime
    closed: datetime | None
    grading_run_id: str | None
    rubric_sha256: str | None
    task_queue: str
    fork_of: OmitEmpty[str | None] = None
    """The id of the thread that it was forked off, if any."""


class ListedBatch(Strict):
    """A batch in a list; its counts are in the store: `[batch.batch_id async for batch in client.batches()]`."""

    batch_id: str
    status: str
    """Status of its workflow: `running`, `completed`, `failed`, `canceled`, `terminated`, `timed_out`. A paused batch is completed."""
    open: bool
    started: datetime
    closed: datetime | None
    task_queue: str


Since = datetime | timedelta | None
"""The earliest start of what is listed: a time, by the local clock where it has no zone, or how long ago; any start by default."""


async def threads(
    client: Client, *, status: str | None = None, tenant: str | None = None, since: Since = None, limit: int = 20, fork_of: str = ""
) -> AsyncIterator[ListedThread]:
    """Yield the newest threads first.

    Args:
        client: Connected to the namespace.
        status: A status, to list only its threads.
        tenant: A tenant, to list only its threads.
        since: The earliest start of a thread.
        limit: The most threads to yield.
        fork_of: A thread, to list only its forks.

    Raises:
        InvalidRequest: There is no such status.
        ServerUnreachable: The server does not answer, or does not know our search attributes.
    """
    if status is not None and status not in STATUSES:
        raise InvalidRequest(f"status {clip(status)} is not a status of a thread.{did_you_mean(status, list(STATUSES))}")
    query = f"WorkflowType = '{WORKFLOW}'" + (f" AND ({_condition(status)})" if status else "") + _narrowed(tenant, since)
    query += f" AND {_FORK.name} = {quoted(tenant_value(fork_of)[:255])}" if fork_of else ""
    try:
        found = await _newest(client, query, limit)
    except RPCError as error:
        raise _unlisted("threads", error) from None
    for execution in found[:limit]:
        yield _listed(execution)


async def batches(client: Client, *, tenant: str | None = None, since: Since = None, limit: int = 20) -> AsyncIterator[ListedBatch]:
    """Yield the newest batches first.

    Args:
        client: Connected to the namespace.
        tenant: A tenant, to list only its batches.
        since: The earliest start of a batch.
        limit: The most batches to yield.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    try:
        found = await _newest(client, f"WorkflowType = '{BATCH_WORKFLOW}'" + _narrowed(tenant, since), limit)
    except RPCError as error:
        raise _unlisted("batches", error) from None
    for execution in found[:limit]:
        yield ListedBatch(
            batch_id=execution.id,
            status=_closed_as(execution),
            open=execution.status == WorkflowExecutionStatus.RUNNING,
            started=execution.start_time,
            closed=execution.close_time,
            task_queue=execution.task_queue,
        )


def _unlisted(what: str, error: RPCError) -> ServerUnreachable:
    cure = "; the namespace gets it with the first worker of this release" if "Gradeloop" in error.message else ""
    return ServerUnreachable(f"the {what} cannot be listed: {error.message}{cure}")


def _narrowed(tenant: str | None, since: Since) -> str:
    """Return the conditions on whose what is listed is, and on its start."""
    whose = f" AND {TENANT_ATTRIBUTE} = {quoted(tenant_value(tenant))}" if tenant is not None else ""
    if since is None:
        return whose
    began = datetime.now(UTC) - since if isinstance(since, timedelta) else since.astimezone(UTC)
    return f"{whose} AND StartTime >= '{began.isoformat()}'"


def _closed_as(execution: WorkflowExecution) -> str:
    return execution.status.name.lower() if execution.status else "unknown"


def _condition(status: str) -> str:
    """Return the condition that the server's list is filtered by, for a status that a thread is listed with."""
    if status in _CLOSED:
        return f"ExecutionStatus = '{_CLOSED[status]}'"
    if status == "completed":
        return "ExecutionStatus = 'Completed' AND (GradeloopStatus IS NULL OR GradeloopStatus = 'running')"
    if status == "running":
        return "ExecutionStatus = 'Running' AND GradeloopStatus = 'running'"
    known = f"GradeloopStatus = '{status}' AND (ExecutionStatus = 'Running' OR ExecutionStatus = 'Completed')"
    return f"({known}) OR ExecutionStatus = 'Failed'" if status == "interrupted" else known


# The server orders those that have closed by their end, and a list is wanted by start: one that began late
# and ended early may stand behind the limit. The start of the last one that would be shown bounds what can
# be missing, so all that began after it is read as well.
async def _newest(client: Client, query: str, limit: int) -> list[WorkflowExecution]:
    """Return the last run of each workflow, the newest first; the server lists open ones first, others by their end."""
    found: dict[str, WorkflowExecution] = {}

    async def take(more: str, most: int) -> list[WorkflowExecution]:
        async for execution in client.list_workflows(query + more, limit=most):
            if execution.id not in found or found[execution.id].start_time < execution.start_time:
                found[execution.id] = execution
        return sorted(found.values(), key=lambda one: one.start_time, reverse=True)

    await take(" AND ExecutionStatus = 'Running'", limit)
    newest = await take(" AND ExecutionStatus != 'Running'", limit)
    if len(newest) < limit:
        return newest
    return await take(f" AND StartTime > '{newest[limit - 1].start_time.isoformat()}'", limit + BETWEEN)


async def resolved(client: Client, thread_id: str) -> str:
    """Return the id, `latest` replaced by that of the newest thread; raise ThreadNotFound where there is none."""
    if thread_id != LATEST:
        return thread_id
    async for listed in threads(client, limit=1):
        return listed.thread_id
    raise ThreadNotFound("there is no thread yet on this server")


def _listed(execution: WorkflowExecution) -> ListedThread:
    known = execution.typed_search_attributes
    closed_as = _closed_as(execution)
    closed_as = "interrupted" if closed_as == "failed" else closed_as  # `failed` is a grader's word on the rubric
    status = str(known.get(_STATUS, closed_as)) if closed_as in {"running", "completed"} else closed_as
    is_open = execution.status == WorkflowExecutionStatus.RUNNING
    return ListedThread(
        thread_id=execution.id,
        status=status if is_open or status != "running" else closed_as,  # its worker writes no status, and the client's start did
        open=is_open,
        started=execution.start_time,
        closed=execution.close_time,
        grading_run_id=known.get(_RUN),
        rubric_sha256=known.get(_RUBRIC),
        fork_of=unquote(known.get(_FORK) or "") or None,
        task_queue=execution.task_queue,
    )
