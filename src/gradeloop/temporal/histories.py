"""Histories of workflows as the server keeps them: found by id, searched for what they name, and deleted."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution as ExecutionName
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.errors import GradeloopError, ServerUnreachable

TYPES = ("GradingThread", "Judging", "GradingBatch", "BatchShard", "StoreCases", "Notices", "Monitoring", "MonitorBackfill")
"""The types of our workflows; those of others in the namespace are only read, for the payloads that they name."""

DELETED_SECONDS = 120.0
"""Seconds that a deletion is waited for: the server answers at once, and deletes by and by."""

LOOK_SECONDS = 0.1
"""The pause between two looks at whether a history is gone."""

_CLAIM = re.compile(rb'"sha256":\s*"([0-9a-f]{64})"')
_DRIVER = b"gradeloop.local_folder"


@dataclass(frozen=True, order=True)
class WorkflowRun:
    """One run of a workflow."""

    workflow_id: str
    run_id: str
    type: str
    is_open: bool


@dataclass(frozen=True)
class NamedInHistory:
    """The names in a history."""

    tenants: frozenset[str]
    payloads: frozenset[str]
    """The sha256 of payloads in the folder of large ones."""
    is_readable: bool = True
    """Whether the request could be decoded; of one that could not the calls name the tenant."""


def quoted(text: str) -> str:
    """Return a text as a value of a list's filter."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


async def find_runs(client: Client, query: str) -> list[WorkflowRun]:
    """Return the runs that match a filter of the server's list.

    Raises:
        ServerUnreachable: The server does not answer, or refuses the filter.
    """
    try:
        return [
            WorkflowRun(found.id, found.run_id, found.workflow_type, found.status == WorkflowExecutionStatus.RUNNING)
            async for found in client.list_workflows(query)
        ]
    except RPCError as error:
        raise ServerUnreachable(f"the workflows cannot be listed: {error.message}") from None


async def runs_below(client: Client, *prefixes: str) -> list[WorkflowRun]:
    """Return the runs of workflows whose id begins so."""
    return [run for prefix in prefixes for run in await find_runs(client, f"WorkflowId STARTS_WITH {quoted(prefix)}")]


async def runs_of(client: Client, workflow_id: str) -> list[WorkflowRun]:
    """Return all runs of one workflow."""
    return await find_runs(client, f"WorkflowId = {quoted(workflow_id)}")


async def closed_before(client: Client, moment: datetime) -> list[WorkflowRun]:
    """Return the runs of our workflows that closed before a moment."""
    return await find_runs(client, f"{_ours()} AND CloseTime < '{moment.astimezone(UTC).isoformat()}'")


async def our_runs(client: Client) -> list[WorkflowRun]:
    """Return the runs of all of our workflows."""
    return await find_runs(client, _ours())


def _ours() -> str:
    return f"WorkflowType IN ({', '.join(map(quoted, TYPES))})"


async def read_names(client: Client, run: WorkflowRun) -> NamedInHistory:
    """Return what a run's history names: nothing where it is gone already."""
    tenants: set[str] = set()
    payloads: set[str] = set()
    is_readable = True
    async for event in _events(client, run):
        tenants.update(_fairness_keys(event))
        if event.HasField("workflow_execution_started_event_attributes"):
            request = await _request(client, event)
            is_readable = request is not None
            tenants.update(tenant for value in request or () for tenant in _named(value, depth=2))
        raw = event.SerializeToString()
        if _DRIVER in raw:
            payloads.update(found.decode() for found in _CLAIM.findall(raw))
    return NamedInHistory(frozenset(tenants), frozenset(payloads), is_readable)


@contextmanager
def _unless_gone(what: str) -> Iterator[None]:
    """End the block quietly where its workflow is gone; any other refusal of the server is `what` could not be done."""
    try:
        yield
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise ServerUnreachable(f"{what}: {error.message}") from None


async def _events(client: Client, run: WorkflowRun) -> AsyncIterator[HistoryEvent]:
    handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
    with _unless_gone(f"the history of {run.workflow_id!r} cannot be read"):
        async for event in handle.fetch_history_events():
            yield event


def _fairness_keys(event: HistoryEvent) -> Iterable[str]:
    """Yield the tenants by which what an event starts takes turns."""
    for _, part in event.ListFields():
        priority = getattr(part, "priority", None)
        if priority is not None and priority.fairness_key:
            yield priority.fairness_key


async def _request(client: Client, event: HistoryEvent) -> list[Any] | None:
    """Return what a workflow was started with; None where a payload is gone, or of another converter or key."""
    payloads = list(event.workflow_execution_started_event_attributes.input.payloads)
    try:
        return await client.data_converter.decode(payloads) if payloads else []
    except (GradeloopError, OSError, ValueError, RuntimeError, KeyError):
        return None


def _named(value: Any, depth: int) -> Iterable[str]:  # noqa: ANN401 - whatever a request holds
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = json.loads(value)
        except ValueError:
            return
    if not isinstance(value, dict):
        return
    priority = value.get("priority")
    if isinstance(priority, dict) and isinstance(priority.get("tenant"), str):
        yield priority["tenant"]
    for inner in value.values() if depth else ():
        yield from _named(inner, depth - 1) if isinstance(inner, dict) else ()


async def runs_still(client: Client, run: WorkflowRun) -> bool:
    """Return whether a run is open: the list, which found it, lags behind.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    with _unless_gone(f"the workflow {run.workflow_id!r} cannot be described"):
        return (await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).describe()).status == WorkflowExecutionStatus.RUNNING
    return False


async def end_run(client: Client, run: WorkflowRun) -> None:
    """Terminate a run that was open; one that has closed since is left alone.

    Raises:
        ServerUnreachable: The server refuses.
    """
    with _unless_gone(f"{run.workflow_id!r} cannot be terminated"):
        if run.is_open:
            await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).terminate("it is forgotten")


async def delete_runs(client: Client, runs: Sequence[WorkflowRun]) -> None:
    """Delete the histories of runs, and wait until they are gone; one that is gone already is left alone.

    The server deletes a history some 10 to 30 seconds after it was asked: all are asked for first.

    Raises:
        ServerUnreachable: The server refuses, or does not delete one in time.
    """
    for run in runs:
        await request_deletion(client, run)
    for run in runs:
        await _wait_until_gone(client, run)


async def request_deletion(client: Client, run: WorkflowRun) -> None:
    """Ask the server to delete a run's history.

    Raises:
        ServerUnreachable: The server refuses.
    """
    name = ExecutionName(workflow_id=run.workflow_id, run_id=run.run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=name)
    with _unless_gone(f"the history of {run.workflow_id!r} cannot be deleted"):
        await client.workflow_service.delete_workflow_execution(request)


async def _wait_until_gone(client: Client, run: WorkflowRun) -> None:
    handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
    try:
        with _unless_gone(f"the history of {run.workflow_id!r} cannot be read"):
            async with asyncio.timeout(DELETED_SECONDS):
                while True:
                    await handle.describe()
                    await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise ServerUnreachable(f"the server has not deleted {run.workflow_id!r} yet; run the command again") from None
