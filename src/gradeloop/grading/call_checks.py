"""Checks of the call that drafted an output: how long it took, what it cost, how it ended, how probable its tokens were."""

import math
from collections.abc import Mapping

from pydantic import JsonValue

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import LogProbs, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.text import clip, did_you_mean

CALL_CHECK = "call_check"
"""The tool that checks the call of a draft; only a batch knows that call."""

PROBABLE_KINDS = ("perplexity", "perplexity-score")
"""The kinds of checks for which a call asks how probable its tokens are."""

CALL_KINDS = ("latency", "cost", "finish-reason", *PROBABLE_KINDS)
"""The kinds of checks of a call."""

FINISHED = "stop"
"""The reason for which every draft ended that came whole: one that was cut, refused or filtered is an error and no draft."""

CALLED = "tool_calls"
"""The reason for which a draft ended that calls functions, by whatever name its provider has for it."""


def validate_call_check(arguments: Mapping[str, JsonValue]) -> None:
    """Raise ValueError where arguments are missing or unfit for the kind."""
    if odd := sorted(set(arguments) - {"kind", "value", "negate"}):
        raise ValueError(f"unknown argument {odd[0]!r}; give kind, value and negate")
    kind, value = arguments.get("kind"), arguments.get("value")
    if kind not in CALL_KINDS:
        raise ValueError(f"there is no kind {clip(str(kind))}.{did_you_mean(str(kind), list(CALL_KINDS))}")
    if kind == "finish-reason":
        if not isinstance(value, str) or not value:
            raise ValueError("finish-reason has no value; write the reason, such as stop")
    elif value is None and kind in PROBABLE_KINDS:
        return
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"the threshold of {kind} is {clip(str(value))}; write {_UNITS[str(kind)]}")


_UNITS = {
    "latency": "the most milliseconds that it may take",
    "cost": "the most US dollars that it may take",
    "perplexity": "the highest perplexity that passes, from 1 on",
    "perplexity-score": "the lowest score that passes, 0 to 0.5",
}


def needs_logprobs(rubric: Rubric) -> bool:
    """Return whether a check of the rubric asks how probable a draft's tokens were."""
    checks = (criterion.check for criterion in rubric.checked)
    return any(check and check.tool == CALL_CHECK and check.arguments.get("kind") in PROBABLE_KINDS for check in checks)


def describe_call_check(arguments: Mapping[str, JsonValue]) -> str:
    """Return the requirement as a sentence."""
    kind, value, negate = arguments["kind"], arguments.get("value"), bool(arguments.get("negate"))
    if kind == "finish-reason":
        return f"the draft {'does not end' if negate else 'ends'} for the reason {clip(str(value))}"
    if kind in PROBABLE_KINDS:
        what = "the perplexity of the draft" if kind == "perplexity" else "1 / (1 + the perplexity of the draft)"
        return f"{what} is {_RELATIONS[str(kind), negate]} {value}" if value is not None else f"{what} is known"
    what = f"the draft {'takes' if kind == 'latency' else 'costs'}"
    return f"{what} {'more than' if negate else 'at most'} {value} {'milliseconds' if kind == 'latency' else 'US dollars'}"


_RELATIONS = {
    ("perplexity", False): "at most",
    ("perplexity", True): "above",
    ("perplexity-score", False): "at least",
    ("perplexity-score", True): "below",
}


def run_call_check(
    spent: Usage | None, arguments: Mapping[str, JsonValue], ended: str = FINISHED, logprobs: LogProbs | None = None
) -> CheckOutcome:
    """Check the call of a draft.

    Args:
        spent: What the draft took, its repeated attempts included; None for an output that nobody here drafted.
        arguments: `kind`, `value`, and `negate`, which inverts the outcome.
        ended: The reason for which it ended.
        logprobs: How probable its tokens were; None where the reply does not say.

    Raises:
        ValueError: It is not known; the draft may still pass.
    """
    validate_call_check(arguments)
    kind, value = arguments["kind"], arguments.get("value")
    if spent is None:
        raise ValueError(f"{kind}: nobody here drafted the output, so its call is not known")
    if kind in PROBABLE_KINDS:
        return _probable(str(kind), None if value is None else float(str(value)), logprobs, negate=bool(arguments.get("negate")))
    if kind == "finish-reason":
        met, found = value == ended, f"it ended for the reason {ended}"
    elif kind == "latency":
        met, found = spent.seconds * 1000 <= float(str(value)), f"it took {spent.seconds * 1000:.0f} milliseconds"
    elif spent.cost_usd is None:
        raise ValueError("cost: the price of the model is not known on this worker; add it to the file that GRADELOOP_PRICES names")
    else:
        met, found = spent.cost_usd <= float(str(value)), f"it cost {spent.cost_usd:.6g} US dollars"
    passed = met != bool(arguments.get("negate"))
    return CheckOutcome(passed=passed, gap=None if passed else found)


def _probable(kind: str, threshold: float | None, logprobs: LogProbs | None, *, negate: bool) -> CheckOutcome:
    """Compare a draft's perplexity, or its score, with a threshold as promptfoo does: without one, any that is known passes."""
    if logprobs is None:
        raise ValueError(f"{kind}: the reply of the model does not say how probable its tokens were, so the draft is not judged by it")
    perplexity = logprobs.perplexity
    score = 1 / (1 + perplexity)
    if kind == "perplexity":
        met = threshold is None or (perplexity <= threshold) != negate
        return CheckOutcome(passed=met, gap=None if met else f"its perplexity is {perplexity:.4g}")
    met = threshold is None or (score >= threshold) != negate
    share = 1 - score if negate else score
    return CheckOutcome(passed=met, gap=None if met else f"its perplexity is {perplexity:.4g}, its score {score:.4g}", share=share)
