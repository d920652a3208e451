"""Checks that compare the outputs of one test with one another: the one a judge chooses passes, or the one with the best scores."""

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.checks import Arguments, CheckedDraft, CheckKind
from gradeloop.text import clip

COMPARISON_CHECK = "comparison_check"
"""The tool that compares outputs; only a batch knows those of other cases."""

CRITERION_CHARACTERS = 10_000
"""The longest text by which a judge chooses."""


def comparisons_of(rubric: Rubric) -> list[Criterion]:
    """Return the criteria of a rubric that compare outputs."""
    return [criterion for criterion in rubric.checked if criterion.check and criterion.check.tool == COMPARISON_CHECK]


def without_comparisons(rubric: Rubric) -> Rubric:
    """Return a rubric with the criteria alone that each output meets or misses by itself."""
    rest = tuple(criterion for criterion in rubric.criteria if not (criterion.check and criterion.check.tool == COMPARISON_CHECK))
    return rubric.model_copy(update={"criteria": rest})


def _refuse_unknown(arguments: Arguments, *known: str) -> None:
    if odd := sorted(set(arguments) - set(known)):
        raise ValueError(f"unknown argument {odd[0]!r} of {arguments['kind']}; give {', '.join(known)}")


def _validate_choice(arguments: Arguments) -> None:
    _refuse_unknown(arguments, "grader", "kind", "value")
    value, most = arguments.get("value"), CRITERION_CHARACTERS
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        raise ValueError(f"the value of select-best is {clip(str(value))}; write by what the best is chosen, {most} characters at most")


def _validate_scoring(arguments: Arguments) -> None:
    _refuse_unknown(arguments, "kind", "method", "threshold", "weights")
    if arguments.get("method", "average") not in {"average", "sum"}:
        raise ValueError(f"the method of max-score is {clip(str(arguments['method']))}; write average or sum")
    weights = arguments.get("weights", {})
    if not isinstance(weights, dict):
        raise ValueError(f"the weights of max-score are {clip(str(weights))}; write a number for each criterion's id")  # noqa: TRY004 - as all others
    for name, value in {**weights, "threshold": arguments.get("threshold", 0)}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} of max-score is {clip(str(value))}; write a number from 0")


def total_score(rubric: Rubric, scores: Mapping[str, float], arguments: Arguments) -> float:
    """Return what an output's own criteria come to for `max-score`.

    Args:
        rubric: The rubric, whose comparisons do not count.
        scores: The scores of its criteria, 0 to 1, by id.
        arguments: Of the check: `weights` by criterion take the place of the criteria's own, and `method` is their mean or their sum.
    """
    weights = arguments.get("weights")
    own = {criterion.id: criterion.weight for criterion in without_comparisons(rubric).criteria}
    chosen = {name: float(str(weights[name])) if isinstance(weights, dict) and name in weights else weight for name, weight in own.items()}
    total = sum(weight * scores.get(name, 0.0) for name, weight in chosen.items())
    whole = sum(chosen.values())
    return total if arguments.get("method") == "sum" else total / whole if whole else 0.0


def best_by_score(totals: Sequence[float], arguments: Arguments) -> list[CheckOutcome]:
    """Return what `max-score` says of each output: the first with the highest total passes, if that reaches the threshold."""
    best, threshold = max(range(len(totals)), key=lambda at: totals[at]), float(str(arguments.get("threshold") or 0))
    found = []
    for at, total in enumerate(totals):
        gap = f"its score is {total:.4g}, that of the best {totals[best]:.4g}" if at != best else None
        if at == best and total < threshold:
            gap = f"its score is {total:.4g}, the best, and below {threshold:g}"
        found.append(CheckOutcome(passed=gap is None, gap=gap))
    return found


def best_by_choice(count: int, chosen: int, why: str) -> list[CheckOutcome]:
    """Return what `select-best` says of each output: the one that was chosen passes."""
    gap = f"answer {chosen + 1} of {count} was chosen: {why}" if why else f"answer {chosen + 1} of {count} was chosen"
    return [CheckOutcome(passed=at == chosen, gap=None if at == chosen else gap) for at in range(count)]


def _run_alone(_: CheckedDraft, arguments: Arguments) -> NoReturn:
    raise ValueError(f"{arguments['kind']}: the other outputs are known in a batch alone, with compared_with")


def _describe_choice(arguments: Arguments) -> str:
    return f"of the test's outputs it is the best by: {str(arguments['value']).strip()}"


KINDS = (
    CheckKind("select-best", _run_alone, _describe_choice, _validate_choice, COMPARISON_CHECK),
    CheckKind("max-score", _run_alone, lambda _: "of the test's outputs it has the best scores", _validate_scoring, COMPARISON_CHECK),
)
"""The kinds of comparisons, by promptfoo's names."""
