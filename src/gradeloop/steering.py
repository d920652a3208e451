"""What a service sends to a thread that is there already: turns, and people's decisions."""

from typing import Annotated, TypeVar

from pydantic import Field, JsonValue, ValidationError, model_validator

from gradeloop.budget import Budget
from gradeloop.errors import InvalidRequest, explain
from gradeloop.request import MAX_ITERATIONS, refuse_foreign_end
from gradeloop.rubric import Rubric
from gradeloop.strict import Sparse, Strict
from gradeloop.transcript import Messages


class InvokeRequest(Strict):
    """The argument of the update `invoke`: one turn of a thread."""

    messages: Messages = ()
    rubric: Rubric | None = None
    """Absent or null: the sticky rubric stays. `""`: cleared."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None
    """Of the run that this turn opens; the thread's own by default."""
    budget: Sparse[Budget | None] = None
    """The thread's from now on; its own by default."""
    vars: Sparse[dict[str, JsonValue] | None] = None
    """The thread's from now on: the rubric, the sticky one too, is filled from them."""
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Makes the turn idempotent: the same key again attaches to it, or returns its result. The update id by default."""

    @model_validator(mode="after")
    def _is_a_turn(self) -> "InvokeRequest":
        refuse_foreign_end(self.messages)
        return self


class ResumeRequest(Strict):
    """The argument of the update `resume`; it may be left out."""

    budget: Budget | None = None
    """The thread's from now on; its own by default."""


class DecideRequest(Strict):
    """The argument of the update `decide`: a person's word on a criterion that waits for it."""

    grading_run_id: str
    iteration: int
    criterion: str
    passed: bool
    gap: Annotated[str, Field(max_length=4000)] | None = None
    """What is missing; needed where it does not pass."""
    by: Annotated[str, Field(min_length=1, max_length=200)]

    @model_validator(mode="after")
    def _says_what_is_missing(self) -> "DecideRequest":
        if not self.passed and not (self.gap or "").strip():
            raise ValueError("gap is missing; say what the author has to mend")
        return self


class OverrideRequest(Strict):
    """The argument of the update `override`: a person's verdict beside the machine's."""

    grading_run_id: str
    iteration: int
    criterion: str
    passed: bool
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    by: Annotated[str, Field(min_length=1, max_length=200)]


class ApproveRequest(Strict):
    """The argument of the update `approve`: a person lets a tool call go on."""

    call: Annotated[str, Field(min_length=1, max_length=500)]
    """Its id, as `waiting_for` tells it."""
    by: Annotated[str, Field(min_length=1, max_length=200)]


class DenyRequest(Strict):
    """The argument of the update `deny`: a person forbids a tool call."""

    call: Annotated[str, Field(min_length=1, max_length=500)]
    by: Annotated[str, Field(min_length=1, max_length=200)]
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    """Told to whoever wanted the call."""


Request = TypeVar("Request", InvokeRequest, ResumeRequest, DecideRequest, OverrideRequest, ApproveRequest, DenyRequest)


def parse(model: type[Request], raw: object) -> Request:
    """Validate the raw argument of an update; nothing counts as an empty object.

    Raises:
        InvalidRequest: With field, value and cure.
    """
    try:
        return model.model_validate({} if raw is None else raw)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
