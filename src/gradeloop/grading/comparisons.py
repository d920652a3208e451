"""Checks that compare the outputs of one test with one another: the one a judge chooses passes, or the one with the best scores."""

import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.rubric import Rubric
from gradeloop.text import clip, did_you_mean

COMPARISON_CHECK = "comparison_check"
"""The tool that compares outputs; only a batch knows those of other cases."""

COMPARISON_KINDS = ("select-best", "max-score")
"""The kinds of comparisons, by promptfoo's names."""

CRITERION_CHARACTERS = 10_000
"""The longest text by which a judge chooses."""

_ARGUMENTS = {"select-best": {"kind", "value", "grader"}, "max-score": {"kind", "method", "weights", "threshold"}}


def comparisons_of(rubric: Rubric) -> list[Criterion]:
    """Return the criteria of a rubric that compare outputs."""
    return [criterion for criterion in rubric.checked if criterion.check and criterion.check.tool == COMPARISON_CHECK]


def without_comparisons(rubric: Rubric) -> Rubric:
    """Return a rubric with the criteria alone that each output meets or misses by itself."""
    rest = tuple(criterion for criterion in rubric.criteria if not (criterion.check and criterion.check.tool == COMPARISON_CHECK))
    return rubric.model_copy(update={"criteria": rest})


def validate_comparison(arguments: Mapping[str, JsonValue]) -> None:
    """Raise ValueError where arguments are missing or unfit for the kind."""
    kind = str(arguments.get("kind"))
    if kind not in COMPARISON_KINDS:
        raise ValueError(f"there is no kind {clip(kind)}.{did_you_mean(kind, list(COMPARISON_KINDS))}")
    if odd := sorted(set(arguments) - _ARGUMENTS[kind]):
        raise ValueError(f"unknown argument {odd[0]!r} of {kind}; give {', '.join(sorted(_ARGUMENTS[kind]))}")
    value = arguments.get("value")
    if kind == "select-best" and not (isinstance(value, str) and len(value.strip()) > 0 and len(value) <= CRITERION_CHARACTERS):
        raise ValueError(
            f"the value of select-best is {clip(str(value))}; write by what the best is chosen, {CRITERION_CHARACTERS} characters at most"
        )
    if kind == "max-score":
        _validate_scoring(arguments)


def _validate_scoring(arguments: Mapping[str, JsonValue]) -> None:
    if arguments.get("method", "average") not in {"average", "sum"}:
        raise ValueError(f"the method of max-score is {clip(str(arguments['method']))}; write average or sum")
    weights = arguments.get("weights", {})
    if not isinstance(weights, dict):
        raise ValueError(f"the weights of max-score are {clip(str(weights))}; write a number for each criterion's id")  # noqa: TRY004 - as all others
    for name, value in {**weights, "threshold": arguments.get("threshold", 0)}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} of max-score is {clip(str(value))}; write a number from 0")


def describe_comparison(arguments: Mapping[str, JsonValue]) -> str:
    """Return the requirement as a sentence."""
    if arguments["kind"] == "select-best":
        return f"of the test's outputs it is the best by: {str(arguments['value']).strip()}"
    return "of the test's outputs it has the best scores"


def total_score(rubric: Rubric, scores: Mapping[str, float], arguments: Mapping[str, JsonValue]) -> float:
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


def best_by_score(totals: Sequence[float], arguments: Mapping[str, JsonValue]) -> list[CheckOutcome]:
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
