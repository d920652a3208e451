"""What the server says of a thread that did not answer, as gradeloop's own errors."""

from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, ThreadClosed, ThreadNotFound, ThreadTooLarge

_REFUSALS: dict[str, type[InvalidRequest]] = {"InvalidRequest": InvalidRequest, "ThreadTooLarge": ThreadTooLarge}


class Again(Exception):
    """The thread went on in another run of its workflow: the update is to be sent again."""


def refused(error: WorkflowUpdateFailedError, thread_id: str) -> Exception:
    """Return what a refused or failed update means."""
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) else None
    if kind in {"ThreadRolling", "AcceptedUpdateCompletedWorkflow"}:
        return Again()
    return _REFUSALS.get(kind or "", InvalidRequest)(f"{thread_id}: {getattr(cause, 'message', cause)}")


def failure(error: RPCError, thread_id: str) -> GradeloopError:
    """Return what a failed call of the server means."""
    if error.status == RPCStatusCode.NOT_FOUND:
        return ThreadNotFound(f"there is no thread {thread_id!r} on this server")
    return ServerUnreachable(f"the Temporal server did not answer for {thread_id!r}: {error.message}")


def ended(error: WorkflowFailureError, thread_id: str) -> GradeloopError:
    """Return how a thread without a result ended."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return _REFUSALS.get(cause.type or "", ThreadClosed)(cause.message)
    how = {CancelledError: "was cancelled", TerminatedError: "was terminated"}.get(type(cause), f"ended: {cause}")
    return ThreadClosed(f"the thread {thread_id!r} {how}")
