"""promptfoo's model-graded assertions, each as a criterion with a prompt of ours and the form of answer `pass_score`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location


@dataclass(frozen=True)
class GradedType:
    """One type: what its criterion says, and what its grader is asked."""

    description: str
    """The criterion; `{value}` is the assertion's own text."""
    question: str
    """The grader's instructions, in which `score` and `pass` are explained."""
    shows: tuple[str, ...] = ()
    """The variables that the grader is shown besides the output."""
    optional: tuple[str, ...] = ()
    """Those that it is shown where the test has them."""
    threshold: float | None = None
    """The lowest score that passes where the assertion names none, as in promptfoo."""
    needs_value: bool = True
    """Whether the assertion says what the output is compared with."""
    asked: bool = False
    """Whether the grader is shown what was asked."""


_SCORE = "`score` runs from 0 to 1"

GRADED: Mapping[str, GradedType] = {
    "model-graded-closedqa": GradedType(
        "The answer meets this: {value}",
        "You decide whether an answer meets one criterion, and nothing else. Think first, in `reason`. `pass` is true only where the "
        "answer meets the criterion as it is written; `score` is then 1, else 0.",
        asked=True,
    ),
    "factuality": GradedType(
        "It contradicts none of these facts: {value}",
        "You compare the facts of an answer with those of a reference by experts; style, grammar and order play no part. In `reason` name "
        "one case: the answer states a subset of the reference's facts; a superset that agrees with it; the same facts; facts that "
        "contradict it; or differences that do not matter for the facts. `pass` is false where anything contradicts the reference, and "
        "where the answer states none of its facts; else it is true. `score` is 1 where it passes, else 0.",
        asked=True,
    ),
    "g-eval": GradedType(
        "{value}",
        f"You grade an answer by one criterion. In `reason` first write down the steps by which that criterion is assessed, then go "
        f"through them one by one with what is found in the answer. {_SCORE}, in tenths: 0 where nothing of the criterion is met, 1 where "
        "all of it is. `pass` is true, unless nothing of the criterion is met at all.",
        threshold=0.7,
        asked=True,
    ),
    "answer-relevance": GradedType(
        "The answer is relevant to what was asked",
        f"You grade whether an answer addresses what was asked. In `reason` say which questions the answer does answer, and whether it "
        f"evades. {_SCORE}: the share of the answer that addresses what was asked; 0 where it evades or says that it does not know. "
        "`pass` is false where the score is 0.",
        threshold=0.5,
        needs_value=False,
        asked=True,
    ),
    "context-recall": GradedType(
        "The context has all that this says: {value}",
        f"You grade whether a context has what a reference says. In `reason` go through the reference's sentences, and say of each "
        f"whether it follows from the context. {_SCORE}: the share of the sentences that follow from it. `pass` is false where none does. "
        "The answer itself plays no part.",
        shows=("context",),
        threshold=0.5,
    ),
    "context-relevance": GradedType(
        "The context is relevant to what was asked",
        f"You grade whether a context is relevant to a question. In `reason` name the sentences of the context that are needed to answer "
        f"the question. {_SCORE}: their share of all sentences of the context. `pass` is false where none is needed. The answer itself "
        "plays no part.",
        shows=("context",),
        optional=("query",),
        threshold=0.5,
        needs_value=False,
    ),
    "context-faithfulness": GradedType(
        "The answer claims nothing that the context does not have",
        f"You grade whether an answer is faithful to a context. In `reason` list the claims of the answer, and say of each whether it "
        f"follows from the context. {_SCORE}: the share of the claims that follow from it; 1 where it claims nothing. `pass` is false "
        "where none follows.",
        shows=("context",),
        optional=("query",),
        threshold=0.5,
        needs_value=False,
    ),
    "conversation-relevance": GradedType(
        "Every answer of the conversation is relevant to what came before it",
        f"You grade whether the answers of a conversation are relevant to what came before them: those of the conversation that the "
        f"criterion brings along where it does, else that of the output. In `reason` go through the answers, and name those that are not. "
        f"{_SCORE}: the share of the answers that are relevant. `pass` is false where none is.",
        optional=("_conversation",),
        threshold=0.5,
        needs_value=False,
        asked=True,
    ),
}
"""The types by name."""

_OTHER_NAMES = {"model-graded-factuality": "factuality", "context_faithfulness": "context-faithfulness"}

GRADED_TYPES = (*GRADED, "model-graded-factuality", *(f"not-{name}" for name in (*GRADED, "model-graded-factuality")))
"""All types that are judged by a prompt of ours."""

SHOWS_VARIABLES = tuple(name for name, graded in GRADED.items() if graded.shows or graded.optional)
"""The types whose criterion holds variables of the test, whatever its text says."""

GRADED_KEYS = frozenset({"type", "value", "threshold", "provider", "rubricPrompt", "weight", "metric", "transform"})
"""The keys that such an assertion may have."""


def build_graded(
    fields: Mapping[str, JsonValue], kind: str, where: Location, variables: Mapping[str, JsonValue], prompt: JsonValue
) -> dict[str, Any]:
    """Return the criterion of a model-graded assertion, without its grader.

    Args:
        fields: The assertion.
        kind: Its type.
        where: Its place.
        variables: The test's variables, of which some types show the grader their own.
        prompt: The author's own prompt, instead of ours.

    Raises:
        InvalidRequest: It lacks its value, or a variable that its type is about.
    """
    negate, name = kind.startswith("not-"), kind.removeprefix("not-")
    graded = GRADED[_OTHER_NAMES.get(name, name)]
    value = fields.get("value")
    if isinstance(value, list):
        value = "\n".join(f"- {item}" for item in value)
    if graded.needs_value and not (isinstance(value, str) and value.strip()):
        raise InvalidRequest(f"{where}: the assertion has no value; write what {name} compares the output with")
    if missing := next((shown for shown in graded.shows if shown not in variables), None):
        raise InvalidRequest(f"{where}: {name} is about the variable {missing}, which the test does not have; give it in vars")
    threshold = fields.get("threshold", graded.threshold)
    criterion: dict[str, Any] = {
        "description": _description(graded, value if isinstance(value, str) else "", variables, own=prompt is not None),
        "form": "pass_score",
        "score": {"min": 0, "max": 1} | ({"threshold": threshold} if threshold is not None else {}),
        "prompt": prompt if prompt is not None else _prompt(graded),
    }
    return criterion | ({"negate": True} if negate else {})


def _description(graded: GradedType, value: str, variables: Mapping[str, JsonValue], *, own: bool) -> JsonValue:
    """Return the criterion; what its type is about rides in it, so that the grader sees it behind the criterion's fence."""
    text = graded.description.replace("{value}", value)
    shown = [name for name in (*graded.optional, *graded.shows) if name in variables]
    if own or not shown:
        return text
    return {"criterion": text, **{name: f"{{{{ {name} }}}}" for name in shown}}


def _prompt(graded: GradedType) -> JsonValue:
    """Return the grader's prompt: the instructions, the criterion, and what is judged."""
    about = f", with {' and '.join(graded.shows)}" if graded.shows else ""
    shown = "The conversation, with the answer as its last record:\n{{ transcript }}" if graded.asked else "The answer:\n{{ output }}"
    parts = [graded.question, f"The criterion{about}:\n{{{{ rubric }}}}", shown]
    return [{"role": "user", "content": "\n\n".join(parts)}]
