"""What a batch is started with, and what uploads its cases first."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from gradeloop.batches.case import Case
from gradeloop.budget import Budget
from gradeloop.errors import InvalidRequest, explain
from gradeloop.request import Priority
from gradeloop.strict import FirstMistakes, Strict

MAX_CASES = 100_000
UPLOAD_BYTES = 1024 * 1024
"""Of the cases in one upload, as JSON; a single case may be as large, and a payload may be twice as large."""

UPLOAD_CASES = 1_000

BEHIND = Priority(level=4)
"""A batch's calls come after those of threads, which have level 3 by default."""

Parsed = TypeVar("Parsed", bound=Strict)

BatchId = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]


class BatchRequest(Strict):
    """The one argument of the workflow `GradingBatch`; the cases are in the store by then."""

    batch_id: BatchId
    total: Annotated[int, Field(ge=1, le=MAX_CASES)]
    """How many cases were uploaded."""
    name: Annotated[str, Field(max_length=200)] | None = None
    at_once: Annotated[int, Field(ge=1, le=1000)] = 50
    """Calls in flight at most, and never more than 80 % of the worker's slots."""
    budget: Budget | None = None
    """Of all attempts together; used up, the batch is paused."""
    max_errors: Annotated[int, Field(ge=1)] | None = None
    """Cases without a verdict at which the batch is paused."""
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Their share of the cases that have ended, counted from the 20th on: an outage pauses a batch. 1: never."""
    pass_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Kept for whoever reads the results; it steers nothing."""
    retries: Annotated[int, Field(ge=0, le=20)] = 7
    """Of one call that fails in passing."""
    cache: bool = True
    """False: every verdict is asked for anew."""
    again: Literal["errors", "failures"] | None = None
    """Which cases of an earlier attempt are run again, beside those that never ended; failures are, with the errors, asked anew."""
    priority: Priority = BEHIND


class Upload(Strict):
    """The one argument of the workflow `StoreCases`: a stretch of a batch's cases."""

    batch_id: BatchId
    first: Annotated[int, Field(ge=0, lt=MAX_CASES)]
    """Position of the first of them."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1, max_length=UPLOAD_CASES), FirstMistakes(UPLOAD_CASES)]


def parse_batch(raw: object) -> BatchRequest:
    """Validate the workflow's raw argument.

    Raises:
        InvalidRequest: With field, value and cure.
    """
    return _parsed(BatchRequest, raw, "batch_id and total")


def parse_upload(raw: object) -> Upload:
    """Validate the upload's raw argument.

    Raises:
        InvalidRequest: With field, value and cure.
    """
    return _parsed(Upload, raw, "batch_id, first and cases")


def _parsed(model: type[Parsed], raw: object, keys: str) -> Parsed:
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the request is no object; send one JSON object with {keys}")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
