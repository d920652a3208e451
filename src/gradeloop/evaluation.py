"""What we record of a grading pass, computed in code from its rows."""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue
from pydantic_core import to_json

from gradeloop.criterion import Criterion
from gradeloop.rubric import Rubric
from gradeloop.scoring import standing
from gradeloop.strict import Strict
from gradeloop.units import Mark
from gradeloop.usage import Usage
from gradeloop.verdict import Quote, VerdictResult

Result = Literal[VerdictResult, "grader_error"]
Status = Literal["running", "waiting", "interrupted", "satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"]
InterruptReason = Literal["person", "budget", "failure"]
"""Why a run is interrupted: somebody stopped it, the budget is used up, or the generator failed."""

TERMINAL: frozenset[Status] = frozenset({"satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"})

ROW_CHARACTERS = 4_000
"""What is kept of a reason, a gap or an explanation: longer than any that helps."""

PASS_CHARACTERS = 200_000
"""What is kept of all reasons and gaps of a pass: with 100 criteria 1,000 of each, so that many passes fit into a thread."""

CURTAILED_CHARACTERS = 200
"""What a full thread keeps of a gap or an explanation."""


_SHORTENED = re.compile(r"… \(\d+ characters\)")


def _absent(value: object) -> bool:
    return value is None or value is False or value == ()


class Decision(Strict):
    """A person's word on a criterion."""

    passed: bool
    gap: str | None = Field(default=None, exclude_if=_absent)
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
    gap: str | None = Field(default=None, exclude_if=_absent)
    unverified: bool = Field(default=False, exclude_if=_absent)
    """True where nobody gave a verdict: neither a pass nor a confirmed fail."""
    by: Literal["model", "tool", "human", "cached"] = "model"
    """`cached`: by a model, which had answered the very same question before."""
    score: float | None = Field(default=None, exclude_if=_absent)
    """The grader's number on the criterion's scale, as it gave it; the median of several."""
    contested: bool = Field(default=False, exclude_if=_absent)
    """True where several graders were split."""
    votes: tuple[Vote, ...] = Field(default=(), exclude_if=_absent)
    quotes: tuple[Quote, ...] = Field(default=(), exclude_if=_absent)
    metadata: dict[str, JsonValue] | None = Field(default=None, exclude_if=_absent)
    """Whatever a grader that is not ours returned beside its verdict."""
    grader: str | None = Field(default=None, exclude_if=_absent)
    """Who judged, where the criterion names its own grader."""
    override: Override | None = Field(default=None, exclude_if=_absent)


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
    rubric_sha256: str | None = Field(default=None, exclude_if=_absent)
    """Of the rubric that it was judged by, in its canonical form."""
    prompt_version: str | None = Field(default=None, exclude_if=_absent)
    """Of the texts around it that the grader was given."""
    overridden_result: VerdictResult | None = Field(default=None, exclude_if=_absent)
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


def row_characters(rows: int) -> int:
    """Return what is kept of a reason or gap where there are so many rows."""
    return min(ROW_CHARACTERS, PASS_CHARACTERS // (2 * max(rows, 1)))


def shortened(text: str, limit: int = ROW_CHARACTERS) -> str:
    """Keep the first `limit` characters and say how many there were; what was shortened so before stays."""
    return text if len(text) <= limit or _SHORTENED.fullmatch(text, limit) else f"{text[:limit]}… ({len(text)} characters)"


def marks_of(rubric: Rubric, rows: Sequence[CriterionRow]) -> dict[str, Mark]:
    """Return what each graded row counts; a person's override counts instead of the machine's verdict."""
    criteria = {criterion.id: criterion for criterion in rubric.criteria}
    graded = (row for row in rows if row.id in criteria and (row.override or not row.unverified))
    return {row.id: _mark(criteria[row.id], row) for row in graded}


def _mark(criterion: Criterion, row: CriterionRow) -> Mark:
    if row.override:
        return Mark(row.override.passed, float(row.override.passed))
    if criterion.scale is None or row.score is None:
        return Mark(row.passed, float(row.passed))
    share = criterion.scale.share(row.score)
    return Mark(row.passed, 1 - share if criterion.negate else share)


def result_of(rubric: Rubric, judgement: Judgement) -> Result:
    """Compute the pass's result from its rows; the grader's own word decides `failed` alone."""
    if judgement.error is not None:
        return "grader_error"
    if judgement.impossible:
        return "failed"
    return "satisfied" if standing(rubric, marks_of(rubric, judgement.rows)).satisfied else "needs_revision"


def status_of(result: Result, *, last: bool) -> Status:
    """Return the run's status after a pass with `result`; `last` says that no iteration is left."""
    if result == "needs_revision":
        return "max_iterations_reached" if last else "running"
    return result


def score_of(rubric: Rubric, judgement: Judgement) -> float | None:
    """Return the score, or None where the pass has no complete grade."""
    if judgement.error is not None or judgement.impossible or not rubric.criteria:
        return None
    return standing(rubric, marks_of(rubric, judgement.rows)).score


def overridden(rubric: Rubric, evaluation: Evaluation, criterion: str, override: Override) -> Evaluation:
    """Return the evaluation with a person's verdict on a criterion, and what it comes to with that."""
    rows = tuple(row.model_copy(update={"override": override}) if row.id == criterion else row for row in evaluation.criteria)
    met = standing(rubric, marks_of(rubric, rows)).satisfied
    return evaluation.model_copy(update={"criteria": rows, "overridden_result": "satisfied" if met else "needs_revision"})


def best_of(rubric: Rubric, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the evaluation whose draft stands: gate held, then score, then gating criteria passed, then the latest."""

    def rank(evaluation: Evaluation) -> tuple[bool, bool, float, int, int]:
        marks = marks_of(rubric, evaluation.criteria)
        stands = standing(rubric, marks)
        graded = evaluation.result in {"satisfied", "needs_revision"}
        score = -1.0 if evaluation.score is None else evaluation.score
        passed = sum(marks[name].passed for name in rubric.gating if name in marks)
        return graded and stands.satisfied, graded and stands.gate, score, passed, evaluation.iteration

    return max(evaluations, key=rank, default=None)
