"""What a case came to, and what a batch comes to."""

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field, JsonValue

from gradeloop.batches.case import Case, CaseStatus
from gradeloop.budget import Budget
from gradeloop.evaluation import CriterionRow
from gradeloop.strict import Sparse, Strict
from gradeloop.usage import Usage

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


def ended(case: Case, status: CaseStatus, **more: Any) -> CaseResult:  # noqa: ANN401 - a result's other fields
    """Return a result with what is known of its case."""
    told = {"repeat": case.repeat, "description": case.description, "prompt": case.prompt, "label": case.label, "vars": case.vars}
    more = {"usage": Usage()} | more
    finished = datetime.now(UTC).isoformat(timespec="milliseconds")
    return CaseResult(index=0, id=case.id, status=status, finished=finished, **told, **more)
