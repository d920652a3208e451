"""What Temporal keeps of a workflow: the histories of all its runs, as far back as the server still has them."""

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message as Proto
from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.outcomes import failure
from gradeloop.printable import clip

GONE = {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}
"""How the server says that it has no such run; the latter of an id that is none of its own."""


class Unreadable(Exception):
    """A payload cannot be read; the message says why."""


@dataclass(frozen=True)
class RunHistory:
    """What happened in one run of a workflow."""

    events: Sequence[HistoryEvent]
    closed: bool


@dataclass(frozen=True)
class Histories:
    """The runs of a workflow."""

    runs: tuple[RunHistory, ...]
    """The oldest first."""
    notes: tuple[str, ...]
    """What is missing, in words."""


async def histories(temporal: Client, workflow_id: str) -> Histories:
    """Return the histories of a workflow's last run and of those that it goes on from.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    runs: list[RunHistory] = []
    seen: set[str] = set()
    try:
        last = await temporal.get_workflow_handle(workflow_id).describe()
        following, closed = last.run_id, last.status != WorkflowExecutionStatus.RUNNING
        while following not in seen:
            seen.add(following)
            history = await temporal.get_workflow_handle(workflow_id, run_id=following).fetch_history()
            runs.insert(0, RunHistory(history.events, closed))
            before, note = await _before(temporal, workflow_id, history.events[0])
            if before is None:
                return Histories(tuple(runs), (note,) if note else ())
            following, closed = before, True
    except RPCError as error:
        if error.status not in GONE:
            raise failure(error, workflow_id) from None
    return Histories(tuple(runs), (_missing(len(runs)),))


def _missing(found: int) -> str:
    if not found:
        return "the workflow's history has expired on the server, so its tool calls are not shown"
    return "the history of the workflow's first runs has expired on the server, so their tool calls are not shown"


async def _before(temporal: Client, workflow_id: str, first: HistoryEvent) -> tuple[str | None, str]:
    """Return the run that a run goes on from, if any, and what cannot be told."""
    begun = first.workflow_execution_started_event_attributes
    if begun.continued_execution_run_id:
        return begun.continued_execution_run_id, ""
    try:
        given = await started_with(temporal, first)
    except Unreadable as error:
        return None, f"the workflow's input cannot be read: {error}"
    checkpoint = mapping(given.get("checkpoint"))
    run_id = checkpoint.get("temporal_run_id")
    if not isinstance(run_id, str) or not run_id:
        return None, ""
    if (name := mapping(checkpoint.get("thread")).get("thread_id")) != workflow_id:
        return None, f"this thread continues from a checkpoint of {clip(str(name))}, whose tool calls are not shown"
    return run_id, ""


async def started_with(temporal: Client, first: HistoryEvent) -> dict[str, JsonValue]:
    """Return the object that a workflow was started with, by its first event; an empty one where it is none.

    Raises:
        Unreadable: It is stored where this client does not find it, or written as it cannot read.
    """
    values = await decoded(temporal, first.workflow_execution_started_event_attributes.input.payloads)
    return mapping(values[0]) if values else {}


async def decoded(temporal: Client, payloads: Sequence[Payload]) -> list[JsonValue]:
    """Return payloads as plain JSON, fetched from external storage where they are kept there.

    Raises:
        Unreadable: One of them cannot be had, or read.
    """
    try:
        return await temporal.data_converter.decode([_copy(each) for each in payloads])
    except Exception as error:  # noqa: BLE001 - a storage's or a codec's, whatever it raises
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def _copy(payload: Payload) -> Payload:
    """Return a payload of its own: some codecs write into what they are given."""
    mine: Proto = Payload()
    mine.CopyFrom(payload)
    return mine  # type: ignore[return-value]


def mapping(value: JsonValue) -> dict[str, JsonValue]:
    """Return the value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
