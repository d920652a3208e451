"""The gate and the score, computed from rows alone: what a model says of the whole decides nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradeloop.rubric import Rubric
from gradeloop.units import TOLERANCE, Mark, mean

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
