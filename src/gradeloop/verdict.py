"""What a grader may say, read strictly: every criterion exactly once, by id, a reason before each verdict."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, Literal

from pydantic import ValidationError

from gradeloop.errors import PROBLEMS_TOLD, explain
from gradeloop.rubric import Rubric
from gradeloop.strict import Strict, clip

VerdictResult = Literal["satisfied", "needs_revision", "failed"]


class VerdictRow(Strict):
    """The grader's word on one criterion."""

    id: str
    reason: str
    passed: bool
    gap: str | None


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


def verdict_schema() -> dict[str, Any]:
    """Return the JSON Schema of a verdict, in the dialect that all providers take."""
    text, null = {"type": "string"}, {"type": "null"}
    row = {"id": text, "reason": text, "passed": {"type": "boolean"}, "gap": {"anyOf": [text, null]}}
    verdict = {
        "criteria": {"type": "array", "items": _closed(row)},
        "explanation": text,
        "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
    }
    return _closed(verdict)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read(text: str, rubric: Rubric, asked: Sequence[str], *, tag: str | None = None) -> Verdict | Malformed:
    """Read a grader's answer about the criteria `asked`.

    Nothing is coerced, searched for or repaired: the whole text is one JSON object that keeps the schema, answers each
    asked id once, gives a gap with every fail and agrees with itself. DESIGN of the rule: `docs/contract.md`, "Verdicts".

    Args:
        text: The answer.
        rubric: What is judged by.
        asked: The ids.
        tag: The name of the two tags between which the object stands, each of them once; without it, the object is all there is.
    """
    try:
        verdict = Verdict.model_validate(_strict_json(text if tag is None else between(text, tag)), strict=True)
    except ValidationError as error:
        return Malformed(problems=(explain(error),))
    except (ValueError, RecursionError) as error:
        return Malformed(problems=(f"the answer is not one JSON object: {error}",))
    return _checked(_without_idle_gaps(verdict), rubric, tuple(asked))


def between(text: str, tag: str) -> str:
    """Return what stands between the two tags of that name.

    Raises:
        ValueError: They do not stand in the text once each, the second at its end.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if (text.count(opening), text.count(closing)) != (1, 1):
        raise ValueError(f"{opening} and {closing} must each stand in it once, the object between them")
    _, _, rest = text.partition(opening)
    inside, found, after = rest.partition(closing)
    if not found or after.strip():
        raise ValueError(f"{closing} must come after the object, at the end")
    return inside


def _strict_json(text: str) -> Any:  # noqa: ANN401 - validated by the caller
    body = text.strip()
    if not body.startswith("{"):
        raise ValueError(f"it starts with {clip(body[:40])}")
    decoded = json.loads(body, object_pairs_hook=_no_doubles, parse_constant=_no_constant)
    return _tuples(decoded)


def _tuples(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Turn the list of rows into the tuple that strict validation takes."""
    if isinstance(value, dict) and isinstance(value.get("criteria"), list):
        return value | {"criteria": tuple(value["criteria"])}
    return value


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in pairs:
        if key in read:
            raise ValueError(f"the key {clip(key)} appears twice")
        read[key] = value
    return read


def _no_constant(name: str) -> Any:  # noqa: ANN401 - json's hook
    raise ValueError(f"{name} is not JSON")


def _without_idle_gaps(verdict: Verdict) -> Verdict:
    rows = tuple(row.model_copy(update={"gap": None}) if row.passed else row for row in verdict.criteria)
    return verdict.model_copy(update={"criteria": rows})


def _checked(verdict: Verdict, rubric: Rubric, asked: tuple[str, ...]) -> Verdict | Malformed:
    found = chain(_row_problems(verdict.criteria, asked), _summary_problems(verdict, rubric, asked))
    problems = list(islice(found, PROBLEMS_TOLD))
    answered = {row.id for row in verdict.criteria}
    missing = tuple(name for name in asked if name not in answered) if verdict.result != "failed" else ()
    if problems:
        absent = [f"no row for {', '.join(missing)}"] if missing else []
        return Malformed(problems=(*problems, *absent))
    if missing:
        problem = f"no row for {', '.join(missing)}"
        return Malformed(problems=(problem,), missing=missing, rows=verdict.criteria, explanation=verdict.explanation)
    return verdict


def _row_problems(rows: Iterable[VerdictRow], asked: tuple[str, ...]) -> Iterable[str]:
    seen: set[str] = set()
    for row in rows:
        if row.id not in asked:
            yield f"{clip(row.id)} is not asked; the ids are {', '.join(asked)}"
        elif row.id in seen:
            yield f"{row.id} is answered twice"
        seen.add(row.id)
        if not row.passed and not (row.gap or "").strip():
            yield f"{clip(row.id)} fails without a gap; say what is missing"


def _summary_problems(verdict: Verdict, rubric: Rubric, asked: tuple[str, ...]) -> Iterable[str]:
    if verdict.result == "failed":
        if not verdict.explanation.strip():
            yield "the result is 'failed' and the explanation is blank; say why the rubric cannot be judged"
        return
    whole = {row.id for row in verdict.criteria} == set(asked) == {criterion.id for criterion in rubric.criteria}
    if rubric.plain and whole:
        due = "satisfied" if all(row.passed for row in verdict.criteria) else "needs_revision"
        if verdict.result != due:
            yield f"the result is {verdict.result!r}, but the rows say {due!r}"
