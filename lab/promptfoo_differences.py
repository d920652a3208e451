"""Where gradeloop is known to come to another verdict than promptfoo 0.123.1 on the same tests, and why."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """A kind of difference that is meant."""

    why: str
    ours: frozenset[str]
    """What we come to: passed, failed, error, ungraded, or refused."""


KINDS: Mapping[str, Difference] = {
    "no verdict": Difference(
        "A judge that gives no whole `{reason, pass, score}` is asked again, then the case is an error. There a missing `pass` is true, "
        "the first thing in braces is the verdict, and an outage is a failed test.",
        frozenset({"error", "passed", "failed"}),
    ),
    "negated": Difference(
        "`not-` is the opposite of the type without it, its score 1 minus that one's. There it has no effect on `factuality` and "
        "`model-graded-closedqa`, keeps the score of code, and passes `not-similar` at the threshold itself.",
        frozenset({"passed", "failed"}),
    ),
    "as it stands": Difference(
        "An output and the value of a variable are data, which are judged as they stand. There `1.10` becomes 1.1 before it is judged, "
        "`{a}` is JSON, and a value is a template, too.",
        frozenset({"passed", "failed", "ungraded"}),
    ),
    "nothing decides": Difference("A test in which nothing decides is `ungraded`. There it passes.", frozenset({"ungraded"})),
    "compared": Difference(
        "`select-best` and `max-score` count in the score as any assertion does. There the score is 0 where they fail, and without "
        "another assertion.",
        frozenset({"passed", "failed"}),
    ),
}
"""By name; `docs/suites.md` has each of them."""

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
