"""What we record of a grading pass, computed in code from its rows."""

from typing import Literal

from pydantic import JsonValue
from pydantic_core import to_json

from gradeloop.printable import shortened
from gradeloop.strict import Sparse, Strict
from gradeloop.usage import Usage
from gradeloop.verdict import Quote, VerdictResult

Result = Literal[VerdictResult, "grader_error"]
Status = Literal["running", "waiting", "interrupted", "satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"]
InterruptReason = Literal["person", "budget", "failure"]
"""Why a run is interrupted: somebody stopped it, the budget is used up, or the generator failed."""

TERMINAL: frozenset[Status] = frozenset({"satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"})

CURTAILED_CHARACTERS = 200
"""What a full thread keeps of a gap or an explanation."""


class Decision(Strict):
    """A person's word on a criterion."""

    passed: bool
    gap: Sparse[str | None] = None
    by: str


class Override(Strict):
    """A person's verdict beside the machine's."""

    passed: bool
    why: str
    by: str
    time: str
    """ISO 8601, UTC."""


class Vote(Strict):
    """How one of several graders voted."""

    grader: str
    passed: bool | None
    """None where it gave no verdict."""


class CriterionRow(Strict):
    """What was decided about one criterion, by whom, and why."""

    id: str
    name: str
    """The criterion's description."""
    passed: bool
    reason: str
    gap: Sparse[str | None] = None
    unverified: Sparse[bool] = False
    """True where nobody gave a verdict: neither a pass nor a confirmed fail."""
    by: Literal["model", "tool", "human", "cached"] = "model"
    """`cached`: by a model, which had answered the very same question before."""
    score: Sparse[float | None] = None
    """The grader's number on the criterion's scale, as it gave it; the median of several."""
    contested: Sparse[bool] = False
    """True where several graders were split."""
    votes: Sparse[tuple[Vote, ...]] = ()
    quotes: Sparse[tuple[Quote, ...]] = ()
    metadata: Sparse[dict[str, JsonValue] | None] = None
    """Whatever a grader that is not ours returned beside its verdict."""
    grader: Sparse[str | None] = None
    """Who judged, where the criterion names its own grader."""
    override: Sparse[Override | None] = None


class Evaluation(Strict):
    """One grading pass: the result, the rows, what it cost, and which draft it judged."""

    grading_run_id: str
    iteration: int
    result: Result
    """The grader's, computed from its rows."""
    status: Status
    """The run's, after this pass."""
    explanation: str
    criteria: tuple[CriterionRow, ...] = ()
    score: float | None = None
    """By the rubric's own scoring, 0 to 1; None where nothing could be graded."""
    unverified: bool = False
    usage: Usage = Usage()
    draft: int
    """Index of the judged message in the thread."""
    grader: str | None = None
    """The grader's model; None where checks alone decided."""
    rubric_sha256: Sparse[str | None] = None
    """Of the rubric that it was judged by, in its canonical form."""
    prompt_version: Sparse[str | None] = None
    """Of the texts around it that the grader was given."""
    overridden_result: Sparse[VerdictResult | None] = None
    """What it comes to with what people overrode."""

    def size(self) -> int:
        """Return the bytes of the evaluation as JSON."""
        return len(to_json(self))

    def curtailed(self) -> "Evaluation":
        """Return the evaluation without reasons and quotes, and gaps and explanation cut: what a full thread still holds."""
        bare = {"reason": "", "quotes": (), "metadata": None}
        rows = tuple(row.model_copy(update=bare | {"gap": row.gap and shortened(row.gap, CURTAILED_CHARACTERS)}) for row in self.criteria)
        return self.model_copy(update={"criteria": rows, "explanation": shortened(self.explanation, CURTAILED_CHARACTERS)})


class CheckOutcome(Strict):
    """A check's word on its criterion."""

    passed: bool
    gap: str | None = None


class Judgement(Strict):
    """A pass before it is placed in its run: the rows, and the grader's own summary."""

    rows: tuple[CriterionRow, ...] = ()
    explanation: str
    impossible: bool = False
    """True where the grader says that the rubric cannot be judged."""
    error: str | None = None
    """The machinery's failure, if the pass has no verdict."""
