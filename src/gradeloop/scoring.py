"""The gate and the score, computed from rows alone: what a model says of the whole decides nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradeloop.criterion import Criterion
from gradeloop.evaluation import CriterionRow, Evaluation, Judgement, Override, Result, Status
from gradeloop.printable import ROW_CHARACTERS
from gradeloop.rubric import Rubric
from gradeloop.units import TOLERANCE, Mark, mean

PASS_CHARACTERS = 200_000
"""What is kept of all reasons and gaps of a pass: with 100 criteria 1,000 of each, so that many passes fit into a thread."""

BEST = Mark(passed=True, share=1.0)


@dataclass(frozen=True)
class Standing:
    """What a pass came to."""

    gate: bool
    score: float | None
    """0 to 1; None where nothing that counts was graded."""
    satisfied: bool


def standing(rubric: Rubric, marks: Mapping[str, Mark]) -> Standing:
    """Compute gate, score and whether the rubric is met; an id without a mark was not graded."""
    at_the_gate = [unit.holds(marks) for unit in rubric.gate_units]
    gate = any(at_the_gate) if rubric.gate == "any" else all(at_the_gate)
    shares = [(unit.weight, share) for unit in rubric.units if (share := unit.share(marks)) is not None]
    score = float(gate) if rubric.scoring == "binary" else mean(shares)
    enough = rubric.threshold is None or (score is not None and score >= rubric.threshold - TOLERANCE)
    return Standing(gate, score, gate and enough)


def may_be_met(rubric: Rubric, marks: Mapping[str, Mark], unknown: Iterable[str] = ()) -> bool:
    """Return whether the rubric would be met if all that is unknown, or has no mark, were at its best."""
    best = {each.id for each in rubric.criteria if each.id not in marks} | set(unknown)
    return standing(rubric, {**marks, **dict.fromkeys(best, BEST)}).satisfied


def row_characters(rows: int) -> int:
    """Return what is kept of a reason or gap where there are so many rows."""
    return min(ROW_CHARACTERS, PASS_CHARACTERS // (2 * max(rows, 1)))


def marks_of(rubric: Rubric, rows: Sequence[CriterionRow]) -> dict[str, Mark]:
    """Return what each graded row counts; a person's override counts instead of the machine's verdict."""
    criteria = {criterion.id: criterion for criterion in rubric.criteria}
    graded = (row for row in rows if row.id in criteria and (row.override or not row.unverified))
    return {row.id: _row_mark(criteria[row.id], row) for row in graded}


def _row_mark(criterion: Criterion, row: CriterionRow) -> Mark:
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
