"""What we record of a grading pass, computed in code from its rows."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field
from pydantic_core import to_json

from gradeloop.rubric import Rubric
from gradeloop.strict import Strict
from gradeloop.usage import Usage
from gradeloop.verdict import VerdictResult, VerdictRow

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

UNVERIFIED = "the grader gave no verdict"


def _absent(value: object) -> bool:
    return value is None or value is False


class CriterionRow(Strict):
    """What was decided about one criterion, by whom, and why."""

    id: str
    name: str
    """The criterion's description."""
    passed: bool
    reason: str
    gap: str | None = Field(default=None, exclude_if=_absent)
    unverified: bool = Field(default=False, exclude_if=_absent)
    """True where the grader never answered: neither a pass nor a confirmed fail."""
    by: Literal["model", "tool"] = "model"


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
    """Passed criteria over all criteria, 0 to 1; None where nothing could be graded."""
    unverified: bool = False
    usage: Usage = Usage()
    draft: int
    """Index of the judged message in the thread."""
    grader: str | None = None
    """The grader's model; None where checks alone decided."""

    def size(self) -> int:
        """Return the bytes of the evaluation as JSON."""
        return len(to_json(self))

    def curtailed(self) -> "Evaluation":
        """Return the evaluation without reasons, and gaps and explanation cut: what a full thread still holds."""
        rows = tuple(
            row.model_copy(update={"reason": "", "gap": row.gap and shortened(row.gap, CURTAILED_CHARACTERS)}) for row in self.criteria
        )
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


def shortened(text: str, limit: int = ROW_CHARACTERS) -> str:
    """Keep the first `limit` characters and say how many there were."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def rows_of(
    rubric: Rubric, verdicts: Sequence[VerdictRow], checks: Mapping[str, CheckOutcome], *, unverified: Sequence[str] = ()
) -> tuple[CriterionRow, ...]:
    """Return the rows in rubric order; a criterion that nobody decided has none."""
    judged = {row.id: row for row in verdicts}
    limit = min(ROW_CHARACTERS, PASS_CHARACTERS // (2 * max(len(rubric.criteria), 1)))
    rows = []
    for criterion in rubric.criteria:
        name, about = criterion.description, criterion.id
        if about in checks and criterion.check:
            outcome = checks[about]
            reason = f"{criterion.check.tool} {'passed' if outcome.passed else 'failed'}"
            gap = shortened(outcome.gap, limit) if outcome.gap else None
            rows.append(CriterionRow(id=about, name=name, passed=outcome.passed, reason=reason, gap=gap, by="tool"))
        elif about in judged:
            row = judged[about]
            gap = shortened(row.gap, limit) if row.gap else None
            rows.append(CriterionRow(id=about, name=name, passed=row.passed, reason=shortened(row.reason, limit), gap=gap))
        elif about in unverified:
            rows.append(CriterionRow(id=about, name=name, passed=False, reason=UNVERIFIED, gap=UNVERIFIED, unverified=True))
    return tuple(rows)


def gate_holds(rubric: Rubric, rows: Sequence[CriterionRow]) -> bool:
    """True where every gating criterion has a row that passed."""
    return rubric.gating <= {row.id for row in rows if row.passed}


def confirmed_failure(rubric: Rubric, rows: Sequence[CriterionRow]) -> bool:
    """True where some gating criterion was decided and did not pass."""
    return any(not row.passed and not row.unverified and row.id in rubric.gating for row in rows)


def result_of(rubric: Rubric, judgement: Judgement) -> Result:
    """Compute the pass's result from its rows; the grader's own word decides `failed` alone."""
    if judgement.error is not None:
        return "grader_error"
    if judgement.impossible:
        return "failed"
    return "satisfied" if gate_holds(rubric, judgement.rows) else "needs_revision"


def status_of(result: Result, *, last: bool) -> Status:
    """Return the run's status after a pass with `result`; `last` says that no iteration is left."""
    if result == "needs_revision":
        return "max_iterations_reached" if last else "running"
    return result


def score_of(rubric: Rubric, judgement: Judgement) -> float | None:
    """Return passed / all, or None where the pass has no complete grade."""
    if judgement.error is not None or judgement.impossible or not rubric.criteria:
        return None
    return sum(row.passed for row in judgement.rows) / len(rubric.criteria)


def best_of(rubric: Rubric, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the evaluation whose draft stands: gate held, then score, then gating criteria passed, then the latest."""

    def rank(evaluation: Evaluation) -> tuple[bool, float, int, int]:
        passed = {row.id for row in evaluation.criteria if row.passed}
        held = gate_holds(rubric, evaluation.criteria)
        score = -1.0 if evaluation.score is None else evaluation.score
        return held, score, len(rubric.gating & passed), evaluation.iteration

    return max(evaluations, key=rank, default=None)
