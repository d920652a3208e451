"""Histories of workflows as the server keeps them: found by id, searched for what they name, and deleted."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution as ExecutionName
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contract.thread import TENANT_ATTRIBUTE, tenant_named, tenant_value
from gradeloop.errors import GradeloopError, ServerUnreachable
from gradeloop.temporal.codec import payload_file

TYPES = ("GradingThread", "Judging", "GradingBatch", "BatchShard", "StoreCases", "Notices", "Monitoring", "MonitorBackfill")
"""The types of our workflows; those of others in the namespace are only read, for the payloads that they name."""

OURS = f"WorkflowType IN ({', '.join(repr(name) for name in TYPES)})"
"""The condition of a list of all our workflows."""

DELETED_SECONDS = 120.0
"""Seconds that a deletion is waited for: the server answers at once, and deletes by and by."""

LOOK_SECONDS = 0.1
"""The pause between two looks at whether a history is gone."""

READ_AT_ONCE = 20
"""Histories that are read at the same time."""

_CLAIM = re.compile(rb'\{[^{}]*"sha256":\s*"([0-9a-f]{64})"[^{}]*\}')
_OWNER = re.compile(rb'"owner":\s*"([0-9a-f]{64})"')
_DRIVER = b"gradeloop.local_folder"


@dataclass(frozen=True, order=True)
class WorkflowRun:
    """One run of a workflow."""

    workflow_id: str
    run_id: str
    type: str
    is_open: bool


class _NotRegisteredError(ServerUnreachable):
    """The namespace lacks a search attribute that a filter names."""


def quoted(text: str) -> str:
    """Return a text as a value of a list's filter, in which a backslash stands for itself unless a quote follows."""
    return "'" + text.replace("'", "\\'") + "'"


async def find_runs(client: Client, query: str) -> list[WorkflowRun]:
    """Return the runs that match a filter of the server's list; raise ServerUnreachable where it is away, or refuses the filter."""
    try:
        return [
            WorkflowRun(found.id, found.run_id, found.workflow_type, found.status == WorkflowExecutionStatus.RUNNING)
            async for found in client.list_workflows(query)
        ]
    except RPCError as error:
        kind = _NotRegisteredError if TENANT_ATTRIBUTE in error.message else ServerUnreachable
        raise kind(f"the workflows cannot be listed: {error.message}") from None


async def runs_below(client: Client, *prefixes: str) -> list[WorkflowRun]:
    """Return the runs of workflows whose id begins so."""
    return [run for prefix in prefixes for run in await find_runs(client, f"WorkflowId STARTS_WITH {quoted(prefix)}")]


async def runs_of(client: Client, workflow_id: str) -> list[WorkflowRun]:
    """Return all runs of one workflow."""
    return await find_runs(client, f"WorkflowId = {quoted(workflow_id)}")


async def runs_of_tenant(client: Client, tenant: str) -> tuple[list[WorkflowRun], int]:
    """Return the runs of a tenant's workflows, and how many may be its own and cannot be decoded here.

    The server lists those with the search attribute; of our workflows without it the first event is read.
    """
    try:
        runs = await find_runs(client, f"{TENANT_ATTRIBUTE} = {quoted(tenant_value(tenant))}")
        unnamed = await find_runs(client, f"{OURS} AND {TENANT_ATTRIBUTE} IS NULL")
    except _NotRegisteredError:
        runs, unnamed = [], await find_runs(client, OURS)
    places = asyncio.Semaphore(READ_AT_ONCE)

    async def belongs(run: WorkflowRun) -> bool | None:
        async with places:
            return await _belongs(client, run, tenant)

    found = await asyncio.gather(*map(belongs, unnamed))
    return [*runs, *(run for run, own in zip(unnamed, found, strict=True) if own)], found.count(None)


async def _belongs(client: Client, run: WorkflowRun, tenant: str) -> bool | None:
    """Return whether a run's start names a tenant, or where that cannot be decoded, one of its calls; None where neither says."""
    first = await anext(_events(client, run, page_size=1), None)
    if first is None:
        return False
    if (request := await _request(client, first)) is not None:
        return tenant in {*_fairness_keys(first), *map(tenant_named, request)}
    # The priorities of what a workflow starts name its tenant in plain, whichever key its payloads need. To read
    # a whole history is slow, so it is done only where the start cannot be decoded.
    async for event in _events(client, run):
        if tenant in _fairness_keys(event):
            return True
    return None


async def read_payloads(client: Client, run: WorkflowRun) -> set[Path]:
    """Return the files of large payloads, within their folder, that a run's history names: none where it is gone already."""
    raws = [event.SerializeToString() async for event in _events(client, run)]
    claims = [claim for raw in raws if _DRIVER in raw for claim in _CLAIM.finditer(raw)]
    return {payload_file(claim[1].decode(), owner[1].decode() if (owner := _OWNER.search(claim[0])) else "") for claim in claims}


@contextmanager
def _unless_gone(what: str) -> Iterator[None]:
    """End the block quietly where its workflow is gone; any other refusal of the server is `what` could not be done."""
    try:
        yield
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise ServerUnreachable(f"{what}: {error.message}") from None


async def _events(client: Client, run: WorkflowRun, page_size: int | None = None) -> AsyncIterator[HistoryEvent]:
    handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
    with _unless_gone(f"the history of {run.workflow_id!r} cannot be read"):
        async for event in handle.fetch_history_events(page_size=page_size):
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


async def runs_still(client: Client, run: WorkflowRun) -> bool:
    """Return whether a run is open: the list, which found it, lags behind. Raise ServerUnreachable where the server does not answer."""
    with _unless_gone(f"the workflow {run.workflow_id!r} cannot be described"):
        return (await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).describe()).status == WorkflowExecutionStatus.RUNNING
    return False


async def end_run(client: Client, run: WorkflowRun) -> None:
    """Terminate a run that was open; one that has closed since stays as it is. Raise ServerUnreachable where the server refuses."""
    with _unless_gone(f"{run.workflow_id!r} cannot be terminated"):
        if run.is_open:
            await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).terminate("it is forgotten")


async def delete_runs(client: Client, runs: Sequence[WorkflowRun]) -> None:
    """Delete the histories of runs, and wait until they are gone; one that is gone already is skipped.

    The server deletes a history some 10 to 30 seconds after it was asked: all are asked for first.

    Raises:
        ServerUnreachable: The server refuses, or does not delete one in time.
    """
    for run in runs:
        await request_deletion(client, run.workflow_id, run.run_id)
    for run in runs:
        handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
        try:
            with _unless_gone(f"the history of {run.workflow_id!r} cannot be read"):
                async with asyncio.timeout(DELETED_SECONDS):
                    while True:
                        await handle.describe()
                        await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise ServerUnreachable(f"the server has not deleted {run.workflow_id!r} yet; run the command again") from None


async def request_deletion(client: Client, workflow_id: str, run_id: str = "") -> None:
    """Ask the server to delete the history of a run, of the newest one without its id; a run that is open ends at once."""
    name = ExecutionName(workflow_id=workflow_id, run_id=run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=name)
    with _unless_gone(f"the history of {workflow_id!r} cannot be deleted"):
        await client.workflow_service.delete_workflow_execution(request)
