"""Where gradeloop is known to come to another verdict than promptfoo 0.123.1 on the same suite, and why."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """A difference that is meant."""

    name: str
    why: str
    ours: frozenset[str]
    """What we come to: passed, failed, error, or refused, where the suite is not run at all."""


NO_VERDICT = Difference(
    "no verdict",
    "An answer that is not `{reason, pass, score}` is asked for again; without a verdict the case is an error. There a missing or null "
    "`pass` is true, a missing score follows it, a score may exceed 1, and prose fails.",
    frozenset({"error"}),
)
WHOLE_ANSWER = Difference(
    "whole answer",
    "The answer as a whole is the verdict. There the first thing in braces is, or `{}` is read out of half an answer.",
    frozenset({"failed", "error"}),
)
ASKED_AGAIN = Difference(
    "asked again",
    "A failed call is repeated, and so is one without a verdict. There either fails the test after one call.",
    frozenset({"passed"}),
)
DOWN = Difference(
    "no judge",
    "A judge that cannot be had is an error, after all repetitions. There it is a failed test, as if the output were at fault.",
    frozenset({"error"}),
)
AS_WRITTEN = Difference(
    "as written",
    "The judge is shown the output as it was written. There it is parsed and written anew: 1.10 becomes 1.1, null nothing.",
    frozenset({"passed"}),
)
NO_TEMPLATE = Difference(
    "values stay values",
    "A variable's value is data; one with braces is refused, or stays as it is. There it is rendered as a template of its own.",
    frozenset({"failed", "refused"}),
)
THRESHOLD_KEPT = Difference(
    "threshold kept",
    "`llm-rubric(0.8): ...` in a table has a threshold. There the number is dropped in silence.",
    frozenset({"failed"}),
)
NOTHING_DECIDES = Difference(
    "nothing decides",
    "A test in which nothing decides is refused. There it passes.",
    frozenset({"refused"}),
)

KNOWN: Mapping[str, Difference] = {
    "unfit/an empty object": NO_VERDICT,
    "unfit/no pass, score 0": NO_VERDICT,
    "unfit/pass is null, score 0": NO_VERDICT,
    "unfit/pass is the word false": NO_VERDICT,
    "unfit/no score": NO_VERDICT,
    "unfit/a score beyond 1": NO_VERDICT,
    "unfit/prose": NO_VERDICT,
    "unfit/no score, with a threshold": NO_VERDICT,
    "unfit/no pass, with a threshold": NO_VERDICT,
    "negated_unfit/negated, an empty object": NO_VERDICT,
    "negated_unfit/negated, prose": NO_VERDICT,
    "unfit/a brace in the reason": WHOLE_ANSWER,
    "unfit/an object before the verdict": WHOLE_ANSWER,
    "outages/down for one call": ASKED_AGAIN,
    "outages/prose at first": ASKED_AGAIN,
    "outages/down for good": DOWN,
    "literal/1.10": AS_WRITTEN,
    "literal/null": AS_WRITTEN,
    "literal/an object with spaces": AS_WRITTEN,
    "nested_template/a sum in braces": NO_TEMPLATE,
    "table_threshold/a threshold that is missed": THRESHOLD_KEPT,
    "weightless/weight 0 alone": NOTHING_DECIDES,
}
"""By the suite's file and the test's description."""

NOTHING_ASKED = "A test without assertions is `ungraded`. There it passes."
_CODE_RAISES = "Code that raises is an error of the case. There it is a failed test."
_LATENCY = "A `latency` of 3 s measures this machine: here the first call of a worker loads its SDK."

PROMPT_DIFFERENCES: Mapping[str, str] = {
    "assistant-cli/promptfooconfig.yaml": NOTHING_ASKED,
    "multiple-configs/configs/config1.yaml": NOTHING_ASKED,
    "multiple-configs/configs/config2.yaml": NOTHING_ASKED,
    "openai-multiline-yaml/promptfooconfig.yaml": NOTHING_ASKED,
    "openai-responses/promptfooconfig.yaml": NOTHING_ASKED,
    "simple-cli/promptfooconfig.yaml": NOTHING_ASKED,
    "test-markdown/promptfooconfig.yaml": NOTHING_ASKED,
    "bert-score/promptfooconfig-advanced.yaml": _CODE_RAISES,
    "openai-tools-call/promptfooconfig.yaml": _CODE_RAISES,
    "gpt-4o-vs-4o-mini/promptfooconfig.yaml": _LATENCY,
}
"""Why a configuration of others comes to something else in `lab.promptfoo_prompts`, by its name."""
