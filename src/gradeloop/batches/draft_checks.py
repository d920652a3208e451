"""Checks of what only a batch knows: the call that drafted an output, and the outputs of the other cases of its test."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn

from pydantic import JsonValue

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import EvidenceTool, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.checks import Arguments, CheckedDraft, CheckKind, KindOf, refuse_unknown, run_check
from gradeloop.text import clip

CALL_CHECK = "call_check"
"""The tool that checks the call of a draft; only a batch knows that call."""

CALLED = "tool_calls"
"""The reason for which a draft ended that calls functions, by whatever name its provider has for it."""

Found = tuple[bool, str, float | None]
"""True if a call meets the value of its check, then what was found, and its share of the score where it has one."""


def _call_kind(
    name: str,
    find: Callable[[CheckedDraft, Usage, JsonValue], Found],
    sentence: str,
    words: tuple[str, str, str],
    *,
    logprobs: bool = False,
) -> CheckKind:
    """Return a kind of check.

    Args:
        name: Its name.
        find: Looks at a draft, what its call took, and the value.
        sentence: The requirement, with places for a relation and the value.
        words: The relation, the relation where it is negated, and what the value is.
        logprobs: Whether it needs log probabilities; then any draft with them passes where there is no value, as in promptfoo.
    """

    def run(draft: CheckedDraft, arguments: Arguments) -> CheckOutcome:
        if draft.spent is None:
            raise ValueError(f"{name}: nobody here drafted the output, so its call is not known")
        value, negate = arguments.get("value"), bool(arguments.get("negate"))
        met, found, share = find(draft, draft.spent, value)
        passed = value is None or met != negate
        return CheckOutcome(passed=passed, gap=None if passed else found, share=1 - share if negate and share is not None else share)

    def describe(arguments: Arguments) -> str:
        value = arguments.get("value")
        if value is None:
            return f"{sentence.partition(' is ')[0]} is known"
        return sentence.format(words[bool(arguments.get("negate"))], clip(value) if isinstance(value, str) else value)

    def validate(arguments: Arguments) -> None:
        refuse_unknown(arguments, "kind", "value", "negate")
        value = arguments.get("value")
        if find is _finish_reason:
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} has no value; write {words[2]}")
        elif value is None and logprobs:
            return
        elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"the threshold of {name} is {clip(str(value))}; write {words[2]}")

    return CheckKind(name, run, describe, validate, CALL_CHECK, needs_logprobs=logprobs)


def _latency(_: CheckedDraft, spent: Usage, value: JsonValue) -> Found:
    return spent.seconds * 1000 <= float(str(value)), f"it took {spent.seconds * 1000:.0f} milliseconds", None


def _cost(_: CheckedDraft, spent: Usage, value: JsonValue) -> Found:
    if spent.cost_usd is None:
        raise ValueError("cost: the price of the model is not known on this worker; add it to the file that GRADELOOP_PRICES names")
    return spent.cost_usd <= float(str(value)), f"it cost {spent.cost_usd:.6g} US dollars", None


def _finish_reason(draft: CheckedDraft, _: Usage, value: JsonValue) -> Found:
    return value == draft.ended, f"it ended for the reason {draft.ended}", None


def _perplexity(draft: CheckedDraft, _: Usage, value: JsonValue) -> Found:
    perplexity = _perplexity_of(draft, "perplexity")
    return value is None or perplexity <= float(str(value)), f"its perplexity is {perplexity:.4g}", None


def _perplexity_score(draft: CheckedDraft, _: Usage, value: JsonValue) -> Found:
    perplexity = _perplexity_of(draft, "perplexity-score")
    score = 1 / (1 + perplexity)
    return value is None or score >= float(str(value)), f"its perplexity is {perplexity:.4g}, its score {score:.4g}", score


def _perplexity_of(draft: CheckedDraft, kind: str) -> float:
    if draft.logprobs is None:
        raise ValueError(f"{kind}: the reply of the model does not say how probable its tokens were, so the draft is not judged by it")
    return draft.logprobs.perplexity


_LATENCY = ("at most", "more than", "the most milliseconds that it may take")
_COST = ("at most", "more than", "the most US dollars that it may take")
_REASON = ("ends", "does not end", "the reason, such as stop")
_HIGHEST = ("at most", "above", "the highest perplexity that passes, from 1 on")
_LOWEST = ("at least", "below", "the lowest score that passes, 0 to 0.5")

_CALL_KINDS = (
    _call_kind("latency", _latency, "the draft takes {} {} milliseconds", _LATENCY),
    _call_kind("cost", _cost, "the draft costs {} {} US dollars", _COST),
    _call_kind("finish-reason", _finish_reason, "the draft {} for the reason {}", _REASON),
    _call_kind("perplexity", _perplexity, "the perplexity of the draft is {} {}", _HIGHEST, logprobs=True),
    _call_kind("perplexity-score", _perplexity_score, "1 / (1 + the perplexity of the draft) is {} {}", _LOWEST, logprobs=True),
)


COMPARISON_CHECK = "comparison_check"
"""The tool that compares outputs; only a batch knows those of other cases."""

CRITERION_CHARACTERS = 10_000
"""The longest text by which a judge chooses."""


def without_comparisons(rubric: Rubric) -> Rubric:
    """Return a rubric with only the criteria that each output meets or misses by itself."""
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
    raise ValueError(f"{arguments['kind']}: only a batch knows the other outputs, by compared_with")


def _describe_choice(arguments: Arguments) -> str:
    return f"of the test's outputs it is the best by: {str(arguments['value']).strip()}"


KINDS = (
    *_CALL_KINDS,
    CheckKind("select-best", _run_alone, _describe_choice, _validate_choice, COMPARISON_CHECK, takes_grader=True),
    CheckKind("max-score", _run_alone, lambda _: "of the test's outputs it has the best scores", _validate_scoring, COMPARISON_CHECK),
)
"""The kinds of checks of a call, and of comparisons by promptfoo's names."""


def call_check(  # noqa: D417 - a tool's draft is not shown
    kind: Annotated[str, KindOf(CALL_CHECK)],
    draft: str,
    value: JsonValue = None,
    negate: bool = False,
) -> dict[str, Any]:
    """Check the call that drafted an output of a batch: time, cost, end, probability of its tokens; elsewhere no call is known.

    Args:
        kind: What of the call is checked.
        value: The most milliseconds or US dollars, the reason for which it ended, the highest perplexity, or its lowest score.
        negate: True passes where it does not hold.
    """
    outcome = run_check(CALL_CHECK, CheckedDraft(draft), {"kind": kind, "value": value, "negate": negate})
    return {"ok": outcome.passed}


def comparison_check(  # noqa: D417 - the same
    kind: Annotated[str, KindOf(COMPARISON_CHECK)],
    draft: str,
    value: str | None = None,
    grader: JsonValue = None,
    method: Literal["average", "sum"] = "average",
    weights: dict[str, float] | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Compare a draft with those of the other cases of its test, in a batch; elsewhere there are no others.

    Args:
        kind: Whether a judge chooses the best, or the scores of the other criteria decide.
        value: By what the judge chooses.
        grader: The model that judges.
        method: What of the scores decides.
        weights: The weights of criteria by their ids.
        threshold: The least that the best scores must come to.
    """
    del draft, value, grader, method, weights, threshold
    raise ValueError(f"{kind}: only a batch knows the other outputs, by compared_with")


TOOLS = (EvidenceTool.of(call_check), EvidenceTool.of(comparison_check))
"""The tools of these checks, which decide nothing outside of a batch."""
