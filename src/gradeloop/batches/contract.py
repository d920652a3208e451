"""Batches on the wire: cases, results, requests, and the typed doors to the workflows."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError, model_validator
from pydantic_core import to_json
from temporalio import workflow

from gradeloop.contract.base import FirstMistakes, Recorded, Sparse, Strict
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Messages, Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import MAX_ITERATIONS, Generator, Grader, Priority
from gradeloop.errors import InvalidRequest, explain

CASE_BYTES = 1024 * 1024
"""The largest case as JSON: it is uploaded in one payload."""

CaseId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$")]

CaseStatus = Literal["queued", "waiting", "passed", "failed", "error"]
"""`queued` is every case without a verdict that may still get one; `waiting` is one for a person."""


class Case(Strict):
    """One row of a batch, with everything in it filled in."""

    id: CaseId
    """Unique in its batch; the same from one run of a suite to the next, so that two batches can be compared."""
    description: Sparse[str | None] = None
    vars: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)
    """What the suite filled its texts with; shown, never sent."""
    prompt: Sparse[str | None] = None
    """The label of the suite's prompt."""
    label: Sparse[str | None] = None
    """The column of a matrix: the generator's label; equal for all cases of a generator."""
    messages: Sparse[Messages] = ()
    """The conversation before the output; its last message is the user's."""
    output: str | None = None
    """What is judged; None where `generator` drafts it."""
    generator: Sparse[Generator | None] = None
    rubric: Rubric
    grader: Sparse[Grader | None] = None
    repeat: Sparse[Annotated[int, Field(ge=0)]] = 0
    """Which repetition of the same case, from 0: each has a draft and verdicts of its own."""
    loop: Sparse[bool] = False
    """True runs the full loop: draft, judge, revise."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = Field(default=3, exclude_if=lambda value: value == 3)  # noqa: PLR2004 - the default

    @model_validator(mode="after")
    def _hangs_together(self) -> "Case":
        if (self.output is None) == (self.generator is None):
            raise ValueError("give either the output that is judged, or the generator that drafts it")
        if self.loop and self.generator is None:
            raise ValueError("loop needs a generator; a given output is only judged")
        if self.generator is not None and (not self.messages or self.messages[-1].role != "user"):
            raise ValueError("messages must end with the user's, which the generator answers")
        if not self.rubric.criteria:
            raise ValueError("rubric: it is empty; there is nothing to judge by")
        if self.output is not None and not self.output.strip() and not self.messages:
            raise ValueError("output is empty, and there is no conversation before it; there is nothing to judge")
        if self.rubric.asked_of_people and not self.loop:
            raise ValueError("rubric: a criterion is for a person, whom only a case with loop: true can wait for")
        return self

    def size(self) -> int:
        """Return the bytes of the case as JSON."""
        return len(to_json(self))


MAX_CASES = 100_000
UPLOAD_BYTES = 1024 * 1024
"""Of the cases in one upload, as JSON; a single case may be as large, and a payload may be twice as large."""

UPLOAD_CASES = 1_000

BATCH_PRIORITY = Priority(level=4)
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
    priority: Priority = BATCH_PRIORITY


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


BatchStatus = Literal["running", "paused", "finished", "stopped"]
"""`paused` by a limit or a person; `stopped` by a cancel, a termination or a failure of the batch itself."""

SCHEMA = "gradeloop.batch/1"
"""Of every file that results are written to."""


class CaseResult(Strict):
    """What a case came to. An error is never a verdict: neither passed nor failed."""

    index: int
    """Position in the batch, from 0."""
    id: str
    """The case's."""
    repeat: Sparse[int] = 0
    """Which repetition of the same case, from 0."""
    description: Sparse[str | None] = None
    prompt: Sparse[str | None] = None
    label: Sparse[str | None] = None
    vars: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)
    status: CaseStatus
    score: float | None = None
    """0 to 1, by the rubric's own scoring; None without a verdict."""
    output: str | None = None
    """What was judged: of a case with `loop` the best draft; None where none was written."""
    explanation: str = ""
    criteria: tuple[CriterionRow, ...] = ()
    error: str | None = None
    """Why there is no verdict; for a `queued` case, why it was not run."""
    usage: Usage = Usage()
    """Of its drafting and judging in this attempt; what came from the cache costs nothing."""
    cached: bool = False
    """True where every verdict came from the cache."""
    grader: str | None = None
    """The model that judged; None where checks alone decided."""
    attempt: int = 0
    """How often the case was run again before."""
    iterations: Sparse[int | None] = None
    """Of a case with `loop`."""
    thread_id: Sparse[str | None] = None
    """The workflow that holds the whole story, where the case has one of its own."""
    finished: str | None = None
    """When, ISO 8601, UTC."""

    @property
    def worst(self) -> CriterionRow | None:
        """The criterion that went worst: the first that is not passed, the one with the lowest score first."""
        failing = [row for row in self.criteria if not row.passed]
        return min(failing, key=lambda row: 0.0 if row.score is None else row.score, default=None)


class BatchSummary(Strict):
    """Where a batch stands."""

    batch_id: str
    name: str | None = None
    """The suite's."""
    created: str
    """ISO 8601, UTC."""
    status: BatchStatus
    reason: str | None = None
    """Why it is paused or stopped."""
    total: int
    passed: int = 0
    failed: int = 0
    errors: int = 0
    waiting: int = 0
    cached: int = 0
    """Cases all of whose verdicts came from the cache."""
    usage: Usage = Usage()
    """Of all attempts of all cases."""
    budget: Budget | None = None
    pass_rate: float = 1.0
    """Below which share of passed cases the batch counts as failed."""
    throttled: int = 0
    """How often a provider refused a call for its rate."""
    throttled_by: str | None = None
    """By whom last."""

    @property
    def done(self) -> int:
        """Cases that have ended: with a verdict, or with an error."""
        return self.passed + self.failed + self.errors

    @property
    def open(self) -> int:
        """Cases without an end, those that wait for a person left out."""
        return self.total - self.done - self.waiting


def build_result(case: Case, status: CaseStatus, **more: Any) -> CaseResult:  # noqa: ANN401 - a result's other fields
    """Return a result with what is known of its case."""
    told = {"repeat": case.repeat, "description": case.description, "prompt": case.prompt, "label": case.label, "vars": case.vars}
    more = {"usage": Usage()} | more
    finished = datetime.now(UTC).isoformat(timespec="milliseconds")
    return CaseResult(index=0, id=case.id, status=status, finished=finished, **told, **more)


NO_OUTPUT = "no_output"
"""The type of the failure of a call about a case that has nothing to judge."""


def _absent(value: object) -> bool:
    return value is None or value is False


CaseKind = Literal["calls", "thread", "judging"]


class CasePlan(Recorded):
    """How a case is run."""

    kind: CaseKind
    drafted: bool
    """True where a model drafts it first, by a call of its own."""
    units: int
    """Questions to graders: one for each call group and vote."""


class DueCase(Recorded):
    """A case that has not ended, as its shard must know it."""

    position: int
    id: str
    attempt: int
    plan: CasePlan


class CaseCall(Strict):
    """A case, and which of its questions."""

    batch_id: str
    position: int
    attempt: int
    nonce: str
    """The case's random code, which marks the fence around what is judged."""
    unit: int = Field(default=0, exclude_if=lambda value: value == 0)
    cache: bool = Field(default=True, exclude_if=lambda value: value is True)
    raised: bool = Field(default=False, exclude_if=_absent)
    """True where a reply was cut before: this one gets a larger completion."""
    carried: Usage = Field(default=Usage(), exclude_if=lambda value: not value.attempts)
    """What the reply that was cut cost."""


class CaseAnswer(Recorded):
    """What came of a call."""

    status: Literal["queued", "waiting", "passed", "failed", "error"] | None = Field(default=None, exclude_if=_absent)
    """The case's, where the call ended it, or found it ended."""
    again: bool = Field(default=False, exclude_if=_absent)
    """True where the answer was no verdict and is to be asked for again."""
    held: str | None = Field(default=None, exclude_if=_absent)
    """Why nobody was asked: a limit of the batch."""


class CaseRange(Strict):
    """Cases of a batch, from `first` to before `last`."""

    batch_id: str
    first: int
    last: int


class OpenedBatch(Recorded):
    """What a batch must know before its shards are opened."""

    stretches: tuple[tuple[int, int], ...]
    """Those that have cases to be run."""
    slots: int
    """Calls that the worker makes at once."""


class ShardOpened(Recorded):
    """The cases of a shard."""

    due: tuple[DueCase, ...]


class BatchClosing(Strict):
    """How a batch ended."""

    batch_id: str
    why: str | None = None
    stopped: bool = False


class ChildRequest(Recorded):
    """What the workflow of a case is started with."""

    type: Literal["GradingThread", "Judging"] | None = None
    argument: dict[str, Any] = Field(default_factory=dict)
    known: CaseAnswer | None = Field(default=None, exclude_if=_absent)
    """Why none is started: a limit holds the batch, or the case has ended."""


class FailedCall(Strict):
    """A case's question, or its draft, that failed for good."""

    call: CaseCall
    what: Literal["draft", "unit", "case"]
    error: str
    usage: Usage = Usage()
    """What the failed attempts cost."""


class ChildEnded(Strict):
    """A case whose workflow has ended."""

    call: CaseCall
    type: Literal["GradingThread", "Judging"]
    workflow_id: str
    run_id: str


WORKFLOW = "GradingBatch"
UPLOAD_WORKFLOW = "StoreCases"


class BatchProgress(Strict):
    """The answer of the query `progress`."""

    held: str | None
    """Why no further case is begun; None while cases are."""
    shards: tuple[str, ...]
    """Ids of the shards that are open; each answers `in_flight` with a number."""
    passed: int
    failed: int
    errors: int
    """Of the shards that have ended in this Temporal run."""


@workflow.defn(name=UPLOAD_WORKFLOW)
class StoreCases:
    """Writes a stretch of cases into the store of the worker. The worker's own class answers."""

    @workflow.run
    async def run(self, request: Upload) -> int:
        """Store the cases and return how many the batch has then; the same upload again changes nothing.

        Raises:
            ApplicationError: `InvalidRequest`: an id is there twice, a position holds another case, the worker cannot serve one.
        """
        raise NotImplementedError


@workflow.defn(name=WORKFLOW)
class GradingBatch:
    """Many cases, graded to the last. The worker's own class answers."""

    @workflow.run
    async def run(self, request: BatchRequest) -> BatchSummary:
        """Run every case of the batch that has not ended, and return where it stands then.

        A batch that was paused, cancelled or lost goes on where it stood when it is started again under the same id.

        Raises:
            ApplicationError: `InvalidRequest` before any paid call.
        """
        raise NotImplementedError

    @workflow.signal
    async def pause(self) -> None:
        """Begin no further case; those in flight end."""
        raise NotImplementedError

    @workflow.query
    def progress(self) -> BatchProgress:
        """Return what the workflow itself knows; the store knows more."""
        raise NotImplementedError
