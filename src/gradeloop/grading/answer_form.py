"""The form of a grader's answer: one property for each criterion, by its position, in the dialect that a model's API takes."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from gradeloop.contract.base import OmitEmpty, Tolerant
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.grading.scoring import CallGroup

LONGEST_TEXT = {"full": 600, "short": 240}
"""The most characters of a text in an answer, by profile, where the dialect bounds texts: a rambling model ends there."""

MOST_QUOTES = 8
"""The most quotes of a row, where the dialect bounds lists."""

BESIDE_ROWS = 2
"""The properties of an answer beside its rows."""

ROW_TOKENS = {"full": 500, "short": 200}
"""The tokens of a completion's cap for each criterion, by profile."""

SPARE_TOKENS = {"full": 1_000, "short": 150}
"""The tokens of a completion's cap beside the rows, by profile."""


class AnswerForm(Tolerant):
    """The form in which a model is asked for a verdict; it is chosen once for a conversation, and each of its calls carries it."""

    by: Literal["schema", "tags"] = "schema"
    """A JSON Schema that the API enforces, or tags of the conversation's own around the answer."""
    profile: Literal["full", "short"] = "full"
    bounds: OmitEmpty[Literal["none", "lists", "all"]] = "none"
    """The lengths that the schema bounds: none, those of lists, or also those of texts."""
    properties: OmitEmpty[int | None] = None
    """The most properties of a schema, those of nested objects included; None without a limit."""
    budget: OmitEmpty[int | None] = None
    """The characters of all records in the prompt; None where the model's context is not known."""
    model: OmitEmpty[str] = ""
    """The key of the model for which it was chosen; another one, such as a fallback, has a form of its own."""


FULL = AnswerForm()
"""The form for a model of which no more is known than that its API enforces schemas."""


def model_key(model: ModelSpec) -> str:
    """Return a short sum of a model with its settings, its fallbacks aside."""
    settings = model.chain[0].model_dump_json(exclude={"config": {"timeout"}})
    return hashlib.sha256(settings.encode()).hexdigest()[:12]


def keys_of(ids: Sequence[str]) -> dict[str, str]:
    """Return the ids of criteria by their keys in an answer, which are their positions in the call group: `k1` is the first."""
    return {f"k{at}": name for at, name in enumerate(ids, 1)}


def names_of(ids: Sequence[str]) -> dict[str, str]:
    """Return the keys of criteria by their ids."""
    return {name: key for key, name in keys_of(ids).items()}


def asked_first(group: CallGroup, form: AnswerForm) -> tuple[str, ...]:
    """Return the ids that the first call about a group asks for; the conversation asks for the others later."""
    return group.ids[: most_criteria(group, form)]


def most_criteria(group: CallGroup, form: AnswerForm) -> int | None:
    """Return how many criteria of a group one call asks for; None for all, where a schema of the model's dialect may hold them."""
    if form.properties is None or form.by == "tags":
        return None
    widest = 1 + max(len(_row(criterion, {}, {})["properties"]) + 2 * criterion.quoted for criterion in group.criteria)
    most = max(1, (form.properties - BESIDE_ROWS) // widest)
    return most if most < len(group.ids) else None


def completion_tokens(form: AnswerForm, criteria: int) -> int:
    """Return the cap of a completion that answers for so many criteria."""
    return SPARE_TOKENS[form.profile] + ROW_TOKENS[form.profile] * criteria


def verdict_schema(group: CallGroup, asked: Sequence[str], form: AnswerForm) -> dict[str, Any]:
    """Return the JSON Schema of an answer: every property required, no unions, the reason before the verdict.

    The short profile has no text beside the rows: small models fill each text that they are offered, also one that says that nothing could
    be judged. Equal shapes have equal schemas, whatever their criteria are called, so that a provider compiles one grammar for them.

    `asked`: the ids of the group that the answer is about.
    """
    longest = {"maxLength": LONGEST_TEXT[form.profile]} if form.bounds == "all" else {}
    text: dict[str, Any] = {"type": "string"} | longest
    several = {} if form.bounds == "none" else {"maxItems": MOST_QUOTES}
    criteria = dict(zip(group.ids, group.criteria, strict=True))
    rows = {key: _row(criteria[name], text, several) for key, name in keys_of(group.ids).items() if name in asked}
    return _closed(rows | ({"unjudgeable": text, "summary": text} if form.profile == "full" else {}))


def _row(criterion: Criterion, text: dict[str, Any], several: dict[str, Any]) -> dict[str, Any]:
    quote = _closed({"record": {"type": "integer"}, "quote": text})
    quotes = {"quotes": {"type": "array", "items": quote} | several} if criterion.quoted else {}
    score = {"score": {"type": "number"}} if criterion.score else {}
    return _closed({**quotes, "reason": text, **score, "passed": {"type": "boolean"}, "gap": text})


def pass_score_schema(categories: Iterable[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema of an answer `{reason, pass, score}`, as promptfoo's graders give it, or `{reason, category}`."""
    if names := sorted(categories):
        return _closed({"reason": {"type": "string"}, "category": {"type": "string", "enum": names}})
    return _closed({"reason": {"type": "string"}, "pass": {"type": "boolean"}, "score": {"type": "number"}})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
