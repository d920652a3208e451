"""A paid call as the thread makes it: within its budget, counted whatever comes of it, once more where a reply was cut."""

from collections.abc import Callable
from typing import TypeVar

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows.calls import Calls, OverBudget
from workflows.options import MODEL_CALL
from workflows.run_state import Exchange
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from collections.abc import Sequence

    from pydantic import ValidationError

    from activities.failures import Spent
    from activities.generate import GenerateCall
    from activities.grade import GradeCall
    from activities.judge import JudgeCall
    from gradeloop.usage import Usage

Turn = TypeVar("Turn")


class PaidCalls:
    """The model calls of one conversation."""

    def __init__(self, thread: Thread, calls: Calls, exchange: Exchange, spend: Callable[[Usage], None]) -> None:
        self._thread = thread
        self._calls = calls
        self._exchange = exchange
        self._spend = spend

    async def make(
        self, activity: str, call: Callable[[], GenerateCall | GradeCall | JudgeCall], *, summary: str, result: type[Turn]
    ) -> Turn:
        """Make a call; one whose reply was cut is made once more, with a larger completion.

        Raises:
            OverBudget: The thread's budget is used up.
            ActivityError: The call failed for good.
        """
        while True:
            if told := self._thread.overrun:
                raise OverBudget(f"the budget is used up: {told}; resume with a larger one")
            try:
                return await self._calls.make(activity, call(), MODEL_CALL, summary=summary, result=result)
            except ActivityError as error:
                spent = spent_of(error)
                self._spend(spent.usage)
                if self._exchange.raised or not spent.raisable:
                    raise
                self._exchange.raised = True


def spent_of(error: ActivityError) -> Spent:
    """Return what a failed call cost, as it says itself, or its last heartbeat."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and not is_cancelled_exception(error):
        return _read(cause.details, Spent) or Spent(usage=Usage())
    beats = cause.last_heartbeat_details if isinstance(cause, exceptions.TimeoutError) else ()
    return Spent(usage=_read(beats, Usage) or Usage())


Model = TypeVar("Model", Spent, Usage)


def _read(details: Sequence[object], model: type[Model]) -> Model | None:
    try:
        return model.model_validate(details[0]) if details else None
    except ValidationError:
        return None
