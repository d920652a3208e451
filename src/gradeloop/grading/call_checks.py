"""Checks of the call that drafted an output: how long it took, what it cost, how it ended, how probable its tokens were."""

import math
from collections.abc import Callable

from pydantic import JsonValue

from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import Usage
from gradeloop.grading.checks import Arguments, CheckedDraft, CheckKind, refuse_unknown
from gradeloop.text import clip

CALL_CHECK = "call_check"
"""The tool that checks the call of a draft; only a batch knows that call."""

CALLED = "tool_calls"
"""The reason for which a draft ended that calls functions, by whatever name its provider has for it."""

Found = tuple[bool, str, float | None]
"""Whether a call meets the value of its check, what was found, and its share of the score where it has one."""


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

KINDS = (
    _call_kind("latency", _latency, "the draft takes {} {} milliseconds", _LATENCY),
    _call_kind("cost", _cost, "the draft costs {} {} US dollars", _COST),
    _call_kind("finish-reason", _finish_reason, "the draft {} for the reason {}", _REASON),
    _call_kind("perplexity", _perplexity, "the perplexity of the draft is {} {}", _HIGHEST, logprobs=True),
    _call_kind("perplexity-score", _perplexity_score, "1 / (1 + the perplexity of the draft) is {} {}", _LOWEST, logprobs=True),
)
"""The kinds of checks of a call."""
