"""Batches on the wire: cases, results, requests, and the typed doors to the workflows."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, JsonValue, model_validator
from pydantic_core import to_json
from temporalio import workflow

from gradeloop.batches.draft_checks import CALL_CHECK, COMPARISON_CHECK
from gradeloop.batches.ratings import AfterEach, Rating
from gradeloop.contract.base import READS_SHARES, Bounded, CodeText, OmitEmpty, Strict, Tolerant
from gradeloop.contract.evaluation import CriterionRow, Row, criterion_rows, html_table, lowest_row
from gradeloop.contract.messages import IMAGES, Attachment, Messages, Usage
from gradeloop.contract.model_spec import HTTP_REQUEST, Budget, ModelSpec
from gradeloop.contract.named_metrics import MOST_SHARES, DerivedMetrics, MetricShare
from gradeloop.contract.notice import Webhooks
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import BATCH_WORKFLOW, MAX_ITERATIONS, Generator, Grader, Priority
from gradeloop.errors import InvalidRequest, explained
from gradeloop.judges.contract import JudgeResult, JudgingRequest, OwnGrader
from gradeloop.judges.judgements import Label
from gradeloop.stats.correction import GatedRate
from gradeloop.stats.decided import EarlyAnswer, UntilDecided
from gradeloop.text import clip, did_you_mean

CASE_BYTES = 1024 * 1024
"""The largest case as JSON: it is uploaded in one payload."""

DRAFT_MARK = "draft/"
"""The beginning of the names of marks that stand for a draft as it was written."""

COMPARED_CASES = 100
"""The most cases whose outputs are compared with one another."""

CaseId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$")]

_Votes = Annotated[float, Field(gt=0, le=1)]
Abstention = OmitEmpty[Annotated[_Votes | Annotated[dict[str, _Votes], Field(min_length=1)] | None, READS_SHARES]]
"""The least share of a criterion's votes, 0 to 1, with which its verdict decides; of all criteria with votes, or by a criterion's id."""

CaseStatus = Literal["queued", "waiting", "passed", "failed", "unsure", "error", "ungraded"]
"""`queued`: no verdict yet, or not run; `waiting`: the case waits for a person; `ungraded`: it ended, and nothing judged it whole;
`unsure`: so many votes disagree that its judge does not decide it, by `abstain`; neither a pass nor a fail.
"""

RETRIES = 7
"""Retries of a model call by default: with doubling pauses they outlast a server's restart; what outlasts them is an error or an outage."""


class Case(Strict):
    """A case of a batch: what is judged, or who drafts it, and by which rubric: `Case(id="a", output="Hi!", rubric="- polite")`."""

    id: CaseId
    """Unique in its batch; the same from one run of a suite to the next, so that two batches can be compared."""
    description: OmitEmpty[str | None] = None
    vars: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """The variables that the suite's texts were filled with; shown, never sent to a model."""
    prompt: OmitEmpty[str | None] = None
    """The label of the suite's prompt."""
    label: OmitEmpty[str | None] = None
    """The column of a matrix: the generator's label; equal for all cases of a generator."""
    messages: OmitEmpty[Messages] = ()
    """The conversation before the output; its last message is the user's where a generator answers it."""
    images: OmitEmpty[Annotated[tuple[Attachment, ...], Field(max_length=IMAGES)]] = ()
    """The images of the conversation, whose labels stand in its texts: the model that drafts sees them, whoever judges the labels."""
    output: str | None = None
    """The output that is judged; None where `generator` drafts it."""
    generator: OmitEmpty[Generator | None] = None
    rubric: Rubric
    grader: OmitEmpty[OwnGrader | None] = None
    abstain: Abstention = None
    escalate: OmitEmpty[ModelSpec | None] = None
    """The model that is asked anew what the graders are unsure of; by default nobody is, and a person decides."""
    transforms: OmitEmpty[tuple[CodeText, ...]] = ()
    """Functions that make of the output what is judged, one after the other."""
    repeat: OmitEmpty[Annotated[int, Field(ge=0)]] = 0
    """The number of the repetition, from 0; every repetition has a draft and verdicts of its own."""
    loop: OmitEmpty[bool] = False
    """Whether the case runs the full loop: draft, judge, revise."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = Field(default=3, exclude_if=lambda value: value == 3)  # noqa: PLR2004 - the default
    judging: OmitEmpty[JudgingRequest | None] = None
    """The judgement of a finished run, where the case is one; the rubric is then the judge's, or empty for a judge with a schema."""
    asks_nothing: OmitEmpty[bool] = False
    """Whether the case asks for no verdict: its rubric is empty, and it ends as `ungraded`."""
    compared_with: OmitEmpty[Annotated[tuple[CaseId, ...], Field(max_length=COMPARED_CASES)]] = ()
    """The ids of the cases whose outputs are compared with one another, its own among them, where a check of the rubric compares them."""
    metrics: OmitEmpty[Annotated[tuple[MetricShare, ...], Field(max_length=MOST_SHARES)]] = ()
    """The named metrics of the suite in which the criteria's scores count."""
    follows: OmitEmpty[dict[str, CaseId]] = Field(default_factory=dict)
    """Cases that end first, by the names of the marks for their outputs: `draft/...` for the draft, others for what was judged of it."""
    left_out: OmitEmpty[tuple[str, ...]] = ()
    """Assertions of the suite that are not judged, each with the reason. The case never passes; with nothing to judge it does not run."""
    after_each: OmitEmpty[tuple[CodeText, ...]] = ()
    """Functions that are called in the sandbox once the case has ended, and add scores and metadata to its result."""
    metadata: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """Facts about the test that those functions are given."""

    @property
    def asks(self) -> bool:
        """Whether the suite asks for a verdict on the case, even where all of it is left out."""
        return bool(self.left_out) or not self.asks_nothing

    @property
    def runs(self) -> bool:
        """Whether there is something to draft or to judge; else the case is only reported."""
        return self.output is not None or self.generator is not None or self.judging is not None

    @model_validator(mode="after")
    def _hangs_together(self) -> "Case":
        if not self.runs and self.left_out:
            return self
        if [self.output is None, self.generator is None, self.judging is None].count(False) != 1:
            raise ValueError("give either the output that is judged, or the generator that drafts it")
        if self.loop and self.generator is None:
            raise ValueError("loop needs a generator; a given output is only judged")
        if self.generator is not None and (not self.messages or self.messages[-1].role != "user"):
            raise ValueError("messages must end with the user's, which the generator answers")
        if not self.rubric.criteria and not self.asks_nothing:
            raise ValueError("rubric: it is empty; there is nothing to judge by")
        if self.output is not None and not self.output.strip() and not self.messages:
            raise ValueError("output is empty, and there is no conversation before it; there is nothing to judge")
        if self.rubric.asked_of_people and not self.loop:
            raise ValueError("rubric: a criterion is for a person, whom only a case with loop: true can wait for")
        if self.loop and self.transforms:
            raise ValueError("transforms: a draft that is revised is judged as it is; leave transforms or loop out")
        if self.rubric.checks(CALL_CHECK) and (self.loop or self.generator is None or self.generator.model is None):
            raise ValueError(
                "rubric: latency, cost and finish-reason are those of one call that drafts; leave them out of a loop, and "
                "of an output that was given"
            )
        return self

    @model_validator(mode="after")
    def _is_compared_with_others(self) -> "Case":
        if not self.compared_with:
            return self
        if self.id not in self.compared_with or len(set(self.compared_with)) != len(self.compared_with) or len(self.compared_with) == 1:
            raise ValueError("compared_with: give the ids of two cases or more, each once, and this one's among them")
        if self.loop or self.judging is not None:
            raise ValueError("compared_with: what is compared is an output, given or drafted in one call; leave loop and judging out")
        if not self.rubric.checks(COMPARISON_CHECK):
            raise ValueError("compared_with: no check of the rubric compares; leave it out")
        return self

    @model_validator(mode="after")
    def _drafts_in_one_call(self) -> "Case":
        if self.loop and self.generator is not None and self.generator.shapes_one_call:
            raise ValueError("generator: functions, output_form and http_request are for a draft that is one call; leave them or loop out")
        if self.loop and any(criterion.transform for criterion in self.rubric.judged):
            raise ValueError("rubric: a transform is for a draft that is judged once; leave transform or loop out")
        model = self.generator.model if self.generator else None
        if self.images and self.generator and (self.loop or model is None or model.provider == HTTP_REQUEST):
            raise ValueError("images: they are for a draft that is one call of a model; leave them, or loop and other generators, out")
        return self

    @model_validator(mode="after")
    def _abstains_on_votes(self) -> "Case":
        if self.escalate is not None and self.abstain is None:
            raise ValueError("escalate names a model for unsure verdicts, and abstain says of none that it is; add abstain: SHARE")
        if self.abstain is None or not self.runs:
            return self
        if self.loop or self.judging is not None or self.compared_with:
            raise ValueError("abstain: it is for an output that is judged once; leave abstain, or loop and comparisons, out")
        voted = [criterion.id for criterion in self.rubric.judged if len(criterion.judges) > 1]
        cure = "give the criterion votes or a panel"
        if isinstance(self.abstain, dict):
            if odd := next((name for name in self.abstain if name not in voted), None):
                hint = did_you_mean(odd, voted) if voted else ""
                raise ValueError(f"abstain: {clip(odd)} is not a criterion with several votes; {cure}.{hint}")
        elif self.rubric.judged and not voted:
            raise ValueError(f"abstain: no criterion has several votes; {cure}")
        grader = self.grader or Grader()
        if self.escalate is not None and (grader.tools or grader.remote or (self.generator and self.generator.model is None)):
            raise ValueError("escalate: a grader with tools, or one that is not ours, is not asked anew; leave escalate out")
        return self

    def size(self) -> int:
        """Return the bytes of the case as JSON."""
        return len(to_json(self))


MAX_CASES = 100_000
"""The most cases of one batch: some hours of judging even with a hundred calls in flight."""

UPLOAD_BYTES = 1024 * 1024
"""The most bytes of the cases in one upload, as JSON; a single case may be as large, and a payload may be twice as large."""

UPLOAD_CASES = 1_000
"""The most cases in one upload."""

JUDGING_PREFIX = "judge:"
"""The beginning of the ids of batches that hold the judgements of one command."""

MONITOR_PREFIX = f"{JUDGING_PREFIX}monitor-"
"""The beginning of the ids of batches that hold what a monitor judges in one tick."""

BATCH_PRIORITY = Priority(level=4)
"""The default priority of a batch: its calls come after those of threads, which have level 3."""

Parsed = TypeVar("Parsed", bound=Strict)

BatchId = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]

CONCURRENCY = 50
"""Calls in flight where a batch does not say how many; a local server then gets no more than it has slots."""


class BatchRequest(Strict):
    """The one argument of the workflow `GradingBatch`: `BatchRequest(batch_id="nightly", total=500)`; the cases are stored by then."""

    batch_id: BatchId
    total: Annotated[int, Field(ge=1, le=MAX_CASES)]
    """The number of cases that were uploaded."""
    name: Annotated[str, Field(max_length=200)] | None = None
    suite: OmitEmpty[Annotated[str, Field(max_length=200)] | None] = None
    """The suite, where `name` is the description of a run; only for lists and searches."""
    at_once: Annotated[int, Field(ge=1, le=1000)] = CONCURRENCY
    """The most calls in flight; never more than 80 % of the slots of all workers of the queue."""
    budget: Budget | None = None
    """The budget of all attempts together; the batch pauses when it is used up."""
    max_errors: Annotated[int, Field(ge=1)] | None = None
    """The batch pauses when this many cases are errors."""
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The batch pauses when more than this share of the ended cases are errors, from the 20th case on; 1 never pauses it."""
    pass_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The least share of passed cases, which reports and exit codes use; the workflow does not."""
    allow_errors: Annotated[float, Field(ge=0, le=1)] = Field(default=0.0, exclude_if=lambda value: not value)
    """The share of all cases that may end in an error, which reports and exit codes use; the workflow does not."""
    corrected: OmitEmpty[GatedRate | None] = None
    """The pass rate corrected by labels, which `eval --labels` leaves with an ended batch for reports; the workflow does not use it."""
    asks: bool = Field(default=True, exclude_if=lambda value: value is True)
    """Whether a verdict is asked for in any case; exit codes use it, the workflow does not."""
    derived_metrics: DerivedMetrics = Field(default=(), exclude_if=lambda value: not value)
    """Figures calculated from the cases' named metrics, which reports use; the workflow does not."""
    until_decided: OmitEmpty[UntilDecided | None] = None
    """The batch ends as soon as its answer about `pass_rate` is known; its cases are in random order then. By default all are asked."""
    labels: OmitEmpty[tuple[Label, ...]] = ()
    """The labels that correct the rate that `until_decided` looks at, with digests of outputs; by default it is that of the judge."""
    baseline: OmitEmpty[str | None] = None
    """The batch or file of results against which no case may regress; then `pass_rate` does not decide."""
    decision: OmitEmpty[EarlyAnswer | None] = None
    """The answer that was known before all cases were asked, which the worker writes; with a `baseline` that of all, too."""
    retries: Annotated[int, Field(ge=0, le=20)] = RETRIES
    """Retries of a call after a transient error."""
    cache: bool = True
    """Whether drafts and verdicts of earlier batches are reused from the cache."""
    delay: Annotated[int, Field(ge=0, le=60_000)] = Field(default=0, exclude_if=lambda value: not value)
    """Milliseconds to wait before every call; it is a pause between calls where `at_once` is 1."""
    again: Literal["errors", "invalid", "failures"] | None = None
    """Ended cases that run again on resume: `errors`; `invalid` adds judgements without a valid answer; `failures` adds failures, which are
    graded without the cache. A case whose calls lost their workers runs again only if it is named."""
    cases: OmitEmpty[tuple[str, ...]] = ()
    """Ids of the ended cases that run again; all that `again` says by default."""
    priority: Priority = BATCH_PRIORITY


class Upload(Strict):
    """The one argument of the workflow `StoreCases`: consecutive cases of a batch."""

    batch_id: BatchId
    first: Annotated[int, Field(ge=0, lt=MAX_CASES)]
    """The position of the first of these cases in the batch."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1, max_length=UPLOAD_CASES), Bounded(UPLOAD_CASES)]


def parse_batch(raw: object) -> BatchRequest:
    """Validate the raw argument of `GradingBatch`; raise InvalidRequest with field, value and cure."""
    return _parse(BatchRequest, raw, "batch_id and total")


def parse_upload(raw: object) -> Upload:
    """Validate the raw argument of `StoreCases`, as `parse_batch` does."""
    return _parse(Upload, raw, _UPLOAD_KEYS)


def count_uploaded(raw: object) -> int:
    """Return how many cases the raw argument of `StoreCases` has, validated later; raise InvalidRequest where it is not an object."""
    cases = _object(raw, _UPLOAD_KEYS).get("cases")
    return len(cases) if isinstance(cases, list) else 0


_UPLOAD_KEYS = "batch_id, first and cases"


def _object(raw: object, keys: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the request is not an object; send one JSON object with {keys}")
    return raw


def _parse(model: type[Parsed], raw: object, keys: str) -> Parsed:
    with explained():
        return model.model_validate(_object(raw, keys))


BatchStatus = Literal["running", "paused", "finished", "stopped"]
"""`paused`: by a limit or a person; `stopped`: by a cancel, a termination or a failure of the batch itself."""

SCHEMA = "gradeloop.batch/1"
"""The schema that every file of results names."""


class CaseResult(Strict):
    """The result of a case; an error is never a verdict, neither passed nor failed: `CaseResult.rows()` has its criteria."""

    index: int
    """The case's position in the batch, from 0."""
    id: str
    """The case's id."""
    repeat: OmitEmpty[int] = 0
    """The number of the repetition, from 0."""
    description: OmitEmpty[str | None] = None
    prompt: OmitEmpty[str | None] = None
    label: OmitEmpty[str | None] = None
    vars: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    status: CaseStatus
    score: float | None = None
    """The score by the rubric's own scoring, 0 to 1 unless an assertion in code gives more or less; None without a verdict."""
    output: str | None = None
    """The output that was judged, the best draft where the case loops; None where no draft was written."""
    explanation: str = ""
    criteria: tuple[CriterionRow, ...] = ()
    decided_by: OmitEmpty[tuple[str, ...] | None] = None
    """Ids of the criteria for which the case did not pass, the worst first; None where that is not known."""
    missed_threshold: OmitEmpty[float | None] = None
    """The rubric's threshold, if the gate passed and only the score missed it."""
    worst_criterion: OmitEmpty[str | None] = None
    """The id of the criterion that did not pass with the lowest score; one of weight 0 never is it."""
    optional: OmitEmpty[tuple[str, ...]] = ()
    """Ids of the criteria that do not decide whether the case passes."""
    unsure: OmitEmpty[tuple[str, ...]] = ()
    """Ids of the criteria whose votes disagree too much, where it hangs on them whether the case passes."""
    escalated_from: OmitEmpty[str | None] = None
    """The model that was unsure, where the model of `escalate` decided."""
    error: str | None = None
    """The reason why there is no verdict, or why a `queued` case did not run."""
    metrics: OmitEmpty[tuple[MetricShare, ...]] = ()
    """The named metrics of the suite in which the criteria's scores count."""
    left_out: OmitEmpty[tuple[str, ...]] = ()
    """Assertions of the suite that were not judged, each with the reason."""
    usage: Usage = Usage()
    """The usage of drafting and judging in this attempt; a cached draft or verdict costs nothing."""
    cached: bool = False
    """True where the verdicts or the draft came from the cache, and nothing was paid for."""
    grader: str | None = None
    """The model that judged; None if only checks decided."""
    attempt: int = 0
    """Number of earlier attempts, from 0."""
    iterations: OmitEmpty[int | None] = None
    """The number of drafts of a case that loops."""
    thread_id: OmitEmpty[str | None] = None
    """The workflow that graded the case, where the case has a workflow of its own."""
    judgement: OmitEmpty[JudgeResult | None] = None
    """The judgement of a finished run, where the case is one."""
    finished: str | None = None
    """The time when the case ended, ISO 8601, UTC."""
    ratings: OmitEmpty[tuple[Rating, ...]] = ()
    after_each: OmitEmpty[AfterEach | None] = None
    """Scores and metadata of the case's hooks, or which of them failed; they change no verdict."""

    @property
    def base_id(self) -> str:
        """The case's id without the number of its repetition: that of all repetitions."""
        return self.id.removesuffix(f"/{self.repeat + 1}")

    def rows(self) -> list[Row]:
        """Return a row for every criterion, as `pandas.DataFrame` takes them; one row where there is none, as for an error."""
        about: Row = {"case": self.id, "repeat": self.repeat, "status": self.status, "score": self.score, "error": self.error}
        return criterion_rows(self.criteria, about) or [about]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the criteria, or why there is no verdict."""
        return html_table(f"{self.id}: {self.status}", criterion_rows(self.criteria, {}) or [{"error": self.error}])

    @property
    def worst(self) -> CriterionRow | None:
        """The row of the worst criterion, among criteria of unknown weight that with the lowest score; None without one."""
        if self.decided_by is not None:
            return next((row for row in self.criteria if row.id == self.worst_criterion), None)
        return lowest_row(self.criteria)

    @property
    def deciding(self) -> tuple[CriterionRow, ...]:
        """The rows of the criteria that decided, the worst first; only the worst if it is unknown which did."""
        if self.decided_by is None:
            return (self.worst,) if self.worst is not None else ()
        rows = {row.id: row for row in self.criteria}
        return tuple(rows[name] for name in self.decided_by if name in rows)


class BatchSummary(Strict):
    """The status, counts and usage of a batch: `(await batches.result("nightly")).passed`."""

    batch_id: str
    name: str | None = None
    suite: OmitEmpty[str | None] = None
    tenant: OmitEmpty[str | None] = None
    models: OmitEmpty[tuple[str, ...]] = ()
    created: str
    """ISO 8601, UTC."""
    status: BatchStatus
    reason: str | None = None
    """The reason why the batch is paused or stopped; null otherwise."""
    total: int
    passed: int = 0
    failed: int = 0
    unsure: int = Field(default=0, exclude_if=lambda value: not value)
    """Cases that their judge does not decide, by the suite's `abstain`."""
    errors: int = 0
    ungraded: int = 0
    """Cases that ended without being judged whole: nothing was asked of them, or something of it was left out."""
    waiting: int = 0
    cached: int = 0
    """Cases whose verdicts or draft came from the cache, and that cost nothing."""
    usage: Usage = Usage()
    """The usage of all attempts of all cases."""
    budget: Budget | None = None
    pass_rate: float = 1.0
    """The share of judged cases, 0 to 1, that must pass."""
    allow_errors: float = Field(default=0.0, exclude_if=lambda value: not value)
    """The share of all cases, 0 to 1, that may end in an error."""
    corrected: OmitEmpty[GatedRate | None] = None
    """The pass rate corrected by labels; where it has a decision, that is the batch's answer. None without labels."""
    baseline: OmitEmpty[str | None] = None
    """The batch or file of results against which no case may regress, where that decides instead of `pass_rate`."""
    decision: OmitEmpty[EarlyAnswer | None] = None
    """The answer that was known before all cases were asked; with a `baseline` that of all, too."""
    asks: bool = Field(default=True, exclude_if=lambda value: value is True)
    """Whether a verdict was asked for in any case."""
    derived_metrics: DerivedMetrics = Field(default=(), exclude_if=lambda value: not value)
    """Figures calculated from the cases' named metrics, in this order."""
    throttled: int = 0
    """The number of calls that a provider refused for their rate."""
    throttled_by: str | None = None
    """The model that refused the last of them."""

    @property
    def done(self) -> int:
        """The number of cases that ended: with a verdict, unsure, an error, or ungraded."""
        return self.passed + self.failed + self.unsure + self.errors + self.ungraded

    @property
    def open(self) -> int:
        """The number of cases that have not ended, without those that wait for a person."""
        return self.total - self.done - self.waiting

    @property
    def decided(self) -> EarlyAnswer | None:
        """The answer of a comparison with a `baseline`, or of a rate before all cases were asked; None where another is wanted now."""
        known = self.decision if self.status == "finished" and (self.open or self.baseline) else None
        return known if known is not None and (self.baseline or known.wanted == self.pass_rate) else None


NO_STORE = "this worker has no store"
"""The beginning of the refusal of every batch by a worker without a store."""

NO_OUTPUT = "no_output"
"""The error type of a call about a case that has no output to judge."""


CaseKind = Literal["calls", "thread", "judging"]


class CasePlan(Tolerant):
    """The way a case runs: as calls of the batch, or as its own workflow."""

    kind: CaseKind
    drafted: bool
    """Whether a call of the batch drafts the output first."""
    units: int
    """The number of questions to graders: one for each call group and vote."""
    first: OmitEmpty[tuple[int, ...]] = ()
    """The questions that are asked first where a batch ends once it is decided, as no other may be needed; by default all."""
    follows: OmitEmpty[tuple[CaseId, ...]] = ()
    """The cases that end first."""


class DueCase(Tolerant):
    """A case that has not ended, with what its shard needs to run it."""

    position: int
    id: str
    attempt: int
    plan: CasePlan


class CaseCall(Strict):
    """The argument of a call about a case: the case, its attempt, and the number of the question."""

    batch_id: str
    position: int
    attempt: int
    nonce: str
    """The random code in the fence around the judged output."""
    unit: OmitEmpty[int] = 0
    cache: bool = Field(default=True, exclude_if=lambda value: value is True)
    raised: OmitEmpty[bool] = False
    """Whether an earlier reply was cut off, so that this one gets a larger completion."""
    carried: Usage = Field(default=Usage(), exclude_if=lambda value: not value.attempts)
    """The usage of the reply that was cut off."""
    retries: int = Field(default=RETRIES, ge=0, exclude_if=lambda value: value == RETRIES)
    """Retries after a transient error of one kind; only time limits an outage and a rate limit."""
    decides: OmitEmpty[bool] = False
    """Whether the batch ends as soon as its answer is known."""

    @property
    def attempts(self) -> int:
        """The attempts of one kind of failure after which it is final."""
        return self.retries + 1


class CaseAnswer(Tolerant):
    """The answer of a call about a case."""

    status: OmitEmpty[CaseStatus | None] = None
    """The status of the case where it has ended; None where it goes on."""
    again: OmitEmpty[bool] = False
    """Whether the grader's answer was not a verdict, so that it is asked again."""
    held: OmitEmpty[str | None] = None
    """The limit of the batch for which no model was asked; None where none is reached."""
    parked: OmitEmpty[bool] = False
    """Whether the case is judged but for what compares it with others, which are not judged yet."""
    compares: OmitEmpty[bool] = False
    """Whether it was the last of those that are compared, so that they are compared now."""
    due: OmitEmpty[tuple[int, ...]] = ()
    """The questions that have no answer yet and may still change the verdict, those in flight included, where a few are asked first."""
    slots: OmitEmpty[int | None] = None
    """The slots of all workers of the queue, where the case has ended."""


class CaseRange(Strict):
    """The cases of a batch from position `first` to before `last`."""

    batch_id: str
    first: int
    last: int


class OpenedBatch(Tolerant):
    """The answer of the activity that opens a batch."""

    stretches: tuple[tuple[int, int], ...]
    """The ranges of positions that have cases to run."""
    slots: int
    """The number of calls that all workers of the queue make at once."""
    webhooks: OmitEmpty[Webhooks] = Field(default_factory=dict)
    """Events that each webhook of the worker receives."""
    in_turn: OmitEmpty[bool] = False
    """Whether cases follow others, so that one range runs after the other."""


class ShardOpened(Tolerant):
    """The cases of a shard that have not ended."""

    due: tuple[DueCase, ...]
    slots: OmitEmpty[int | None] = None
    """The slots of all workers of the queue."""


class BatchClosing(Strict):
    """The end of a batch."""

    batch_id: str
    why: str | None = None
    stopped: bool = False


class ChildRequest(Tolerant):
    """The argument of the workflow that grades a case."""

    type: Literal["GradingThread", "Judging"] | None = None
    argument: dict[str, Any] = Field(default_factory=dict)
    known: OmitEmpty[CaseAnswer | None] = None
    """The answer where no workflow is started: the batch has reached a limit, or the case has ended."""


class FailedCall(Strict):
    """A question about a case, or its draft, that failed for good."""

    call: CaseCall
    what: Literal["draft", "unit", "case", "outage", "comparison"]
    """The part that failed; after an `outage` its cost is counted, and the case waits."""
    error: str
    usage: Usage = Usage()
    """The usage of the failed attempts."""


class ChildEnded(Strict):
    """A case whose workflow has ended."""

    call: CaseCall
    type: Literal["GradingThread", "Judging"]
    workflow_id: str
    run_id: str


UPLOAD_WORKFLOW = "StoreCases"


class BatchProgress(Strict):
    """The answer of the query `progress`."""

    held: str | None
    """The reason why no further case begins; None while cases begin."""
    shards: tuple[str, ...]
    """The workflow ids of the open shards; each answers the query `in_flight` with a number."""
    passed: int
    failed: int
    errors: int
    """The number of errors; like the other counts, of the shards that have ended in this Temporal run."""


@workflow.defn(name=UPLOAD_WORKFLOW)
class StoreCases:
    """Typed door to the workflow that writes cases into the worker's store."""

    @workflow.run
    async def run(self, request: Upload) -> int:
        """Store the cases and return how many the batch has then; the same upload again changes nothing.

        Raises:
            ApplicationError: `InvalidRequest`: an id is there twice, a position holds another case, or the worker cannot serve a case.
        """
        raise NotImplementedError


@workflow.defn(name=BATCH_WORKFLOW)
class GradingBatch:
    """Typed door to the workflow that grades all cases of a batch."""

    @workflow.run
    async def run(self, request: BatchRequest) -> BatchSummary:
        """Run every case of the batch that has not ended, and return the batch's summary.

        A batch that was paused, cancelled or lost resumes when it is started again under the same id.

        Raises:
            ApplicationError: `InvalidRequest` before any paid call.
        """
        raise NotImplementedError

    @workflow.signal
    async def pause(self) -> None:
        """Begin no further case; the cases in flight end."""
        raise NotImplementedError

    @workflow.query
    def progress(self) -> BatchProgress:
        """Return the progress that the workflow itself knows; the store knows more."""
        raise NotImplementedError
