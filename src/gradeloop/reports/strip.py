"""Criteria by iterations: where a run stood after each pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradeloop.criterion import Criterion
from gradeloop.evaluation import CriterionRow, Evaluation
from gradeloop.reports.standing import Stands, stands
from gradeloop.rubric import Rubric


@dataclass(frozen=True)
class StripRow:
    """A criterion, and how it stood after each pass; None where a pass says nothing of it."""

    id: str
    name: str
    tags: tuple[str, ...]
    cells: tuple[Stands | None, ...]


@dataclass(frozen=True)
class Strip:
    """One grading run."""

    grading_run_id: str
    evaluations: tuple[tuple[int, Evaluation], ...]
    """Each with its index in the story."""
    rows: tuple[StripRow, ...]

    @property
    def scores(self) -> tuple[float | None, ...]:
        """What the passes scored."""
        return tuple(evaluation.score for _, evaluation in self.evaluations)


def strips(evaluations: Sequence[Evaluation], rubric: Rubric | None) -> tuple[Strip, ...]:
    """Return a strip for each grading run, in order."""
    runs: dict[str, list[tuple[int, Evaluation]]] = {}
    for at, evaluation in enumerate(evaluations):
        runs.setdefault(evaluation.grading_run_id, []).append((at, evaluation))
    return tuple(Strip(name, tuple(passes), _rows(passes, rubric)) for name, passes in runs.items())


def tags_of(criterion: Criterion | None) -> tuple[str, ...]:
    """Return what is special about a criterion, in words."""
    if criterion is None:
        return ()
    told = {
        "optional": not criterion.required,
        f"check {criterion.check.tool}" if criterion.check else "": criterion.check is not None,
        "a person decides": criterion.human,
        "must not hold": criterion.negate,
        f"weight {criterion.weight:g}": criterion.weight != 1,
        f"{len(criterion.judges)} votes": len(criterion.judges) > 1,
    }
    return tuple(words for words, holds in told.items() if holds)


def _rows(passes: Sequence[tuple[int, Evaluation]], rubric: Rubric | None) -> tuple[StripRow, ...]:
    held: list[dict[str, CriterionRow]] = [{row.id: row for row in evaluation.criteria} for _, evaluation in passes]
    names = {row.id: row.name for each in held for row in each.values()}
    known = {each.id: each for each in rubric.criteria} if rubric else {}
    return tuple(
        StripRow(name, told, tags_of(known.get(name)), tuple(stands(each[name]) if name in each else None for each in held))
        for name, told in names.items()
    )
