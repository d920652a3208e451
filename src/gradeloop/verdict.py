"""What a grader may say: a row a criterion, a reason before each verdict."""

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from gradeloop.strict import Sparse, Strict

VerdictResult = Literal["satisfied", "needs_revision", "failed"]


class Quote(Strict):
    """What a grader judges by, in the words of the conversation."""

    record: int
    quote: str
    quote_verified: Sparse[bool | None] = None
    """Whether it was found there; nothing a grader may say."""


class VerdictRow(Strict):
    """The grader's word on one criterion."""

    id: str
    reason: str
    passed: bool
    gap: str | None
    score: Sparse[Annotated[float, Field(allow_inf_nan=False)] | None] = None
    """On the criterion's own scale."""
    quotes: Sparse[tuple[Quote, ...] | None] = None
    metadata: Sparse[dict[str, JsonValue] | None] = None
    """Of a grader that is not ours."""


class Verdict(Strict):
    """The grader's whole answer."""

    criteria: tuple[VerdictRow, ...]
    explanation: str
    result: VerdictResult


class Malformed(Strict):
    """An answer that is no verdict: never a grade."""

    problems: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Ids without a row, where that is all that is wrong."""
    rows: tuple[VerdictRow, ...] = ()
    """The well-formed rows, where missing ids are all that is wrong."""
    explanation: str = ""


def verdict_schema(*, scored: bool = False, quoted: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a verdict, in the dialect that all providers take."""
    text: dict[str, Any] = {"type": "string"}
    null = {"type": "null"}
    quotes: dict[str, Any] = {"type": "array", "items": _closed({"record": {"type": "integer"}, "quote": text})}
    row: dict[str, Any] = {"id": text} | ({"quotes": quotes} if quoted else {}) | {"reason": text}
    row |= {"score": {"anyOf": [{"type": "number"}, null]}} if scored else {}
    row |= {"passed": {"type": "boolean"}, "gap": {"anyOf": [text, null]}}
    verdict = {
        "criteria": {"type": "array", "items": _closed(row)},
        "explanation": text,
        "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
    }
    return _closed(verdict)


def pass_score_schema() -> dict[str, Any]:
    """Return the JSON Schema of an answer `{reason, pass, score}`, as promptfoo's graders give it."""
    return _closed({"reason": {"type": "string"}, "pass": {"type": "boolean"}, "score": {"type": "number"}})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
