"""What a paid call that failed had cost until then."""

from collections.abc import Sequence
from typing import TypeVar

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from activities.failures import Spent
    from gradeloop.usage import Usage


def spent_of(error: ActivityError) -> Spent:
    """Return what a failed call cost, as it says itself, or its last heartbeat."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and not is_cancelled_exception(error):
        return _first_detail(cause.details, Spent) or Spent(usage=Usage())
    beats = cause.last_heartbeat_details if isinstance(cause, exceptions.TimeoutError) else ()
    return Spent(usage=_first_detail(beats, Usage) or Usage())


Model = TypeVar("Model", Spent, Usage)


def _first_detail(details: Sequence[object], model: type[Model]) -> Model | None:
    try:
        return model.model_validate(details[0]) if details else None
    except ValidationError:
        return None
