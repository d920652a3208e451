"""The two rules of a thread that hold whatever comes at once: how calls end once it is asked to stop, and whose rubric a draft is for."""

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ChildWorkflowError, is_cancelled_exception

from workflows.thread_state import Invocation, StopReason, Thread

_WEIGHT: dict[StopReason, int] = {"rubric": 1, "person": 2, "cancel": 3}

Result = TypeVar("Result")


@dataclass(frozen=True)
class Arrived(Generic[Result]):
    """A call's result, which is recorded and counted, also where the thread is stopping."""

    result: Result


@dataclass(frozen=True)
class NotDone:
    """A call that was in flight when the thread was asked to stop, and has no result: it is made again when the run goes on."""

    error: ActivityError | ChildWorkflowError | None
    """The error with which it ended, of whatever kind; its cost is counted."""


@dataclass(frozen=True)
class Failed:
    """A call that nobody asked to stop, and that failed for good."""

    error: ActivityError | ChildWorkflowError


CallEnd = Arrived[Result] | NotDone | Failed


# A stop and a failure can cross, and their order shows nothing: a call that was cancelled may also end with a
# time-out or a provider's error. So once a stop is asked for, every call without a result counts as not done.
# Otherwise the same stop would end one turn as interrupted and another one as failed. A result that does arrive
# counts in any case, since it is paid for.
def end_without_result(thread: Thread, error: ActivityError | ChildWorkflowError) -> NotDone | Failed:
    """Return how a call ended that has no result: a thread that is stopping learns nothing from it but what it cost."""
    return Failed(error) if thread.stopping is None else NotDone(error)


def raise_when_cancelled(error: ActivityError | ChildWorkflowError) -> None:
    """Raise where a call of a workflow without a thread is not done, since it or its workflow was cancelled, whatever it ended with.

    Raises:
        CancelledError: The workflow is being cancelled.
        ActivityError: The call was.
        ChildWorkflowError: The child was.
    """
    if is_cancelled_exception(error):
        raise error
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError from None


def ask_to_stop(thread: Thread, reason: StopReason) -> None:
    """Have the turn in flight stop; of several reasons the weightiest counts, and turns that wait now are not served."""
    if thread.stopping is None or _WEIGHT[reason] > _WEIGHT[thread.stopping]:
        thread.stopping = reason
    if reason == "person":
        thread.dropping = len(thread.queue)


def is_cancelled(thread: Thread) -> bool:
    """Return whether the workflow is cancelled."""
    return thread.stopping == "cancel"


def must_end_turn(thread: Thread) -> bool:
    """Return whether the turn in flight is to end, rather than to go on under another rubric."""
    return thread.stopping in {"person", "cancel"}


def turns_dropped_by_stop(thread: Thread) -> list[Invocation]:
    """Take the turns out of the queue that had been waiting when the stop was asked for, and return them; later ones are served."""
    dropped, thread.queue = thread.queue[: thread.dropping], thread.queue[thread.dropping :]
    return dropped


def forget_stop(thread: Thread) -> None:
    """End a stop whose turn has ended, by it or before it; a cancellation stays."""
    thread.stopping = "cancel" if thread.stopping == "cancel" else None
    thread.dropping = 0


def forget_rubric_stop(thread: Thread) -> None:
    """End a stop that another rubric asked for: it is in force now, or was withdrawn."""
    if thread.stopping == "rubric":
        thread.stopping = None


def draft_is_due(thread: Thread) -> bool:
    """Return whether a draft is to come: one is being written, or the user's current message has none yet."""
    return thread.drafting is not None or thread.last_draft(thread.request) is None
