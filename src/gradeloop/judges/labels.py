"""What people said of runs, to be held against what a judge said."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError, model_validator

from gradeloop.errors import InvalidRequest, explain
from gradeloop.judges.config import CriteriaJudge, JudgeConfig
from gradeloop.judges.output_schema import refuse_schema
from gradeloop.judges.validation import problems_of
from gradeloop.printable import clip, did_you_mean
from gradeloop.strict import Strict
from gradeloop.strict_json import strict_json

_DOCENTS = ("id", "label_set_id", "creator_email", "created_at")
"""What Docent's labels have beside it; it plays no part."""


class Label(Strict):
    """One person's word on one run."""

    agent_run_id: str = Field(min_length=1)
    label_value: dict[str, JsonValue]
    """By key of the judge's output: `{"label": "match"}`; some of the keys are enough."""
    reason: str = ""
    created_by: str = "label"
    """Who says so; one label a run and person."""

    @model_validator(mode="before")
    @classmethod
    def _leaves_out(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {key: each for key, each in value.items() if key not in _DOCENTS} if isinstance(value, dict) else value


class LabelSet(Strict):
    """Labels, all of one schema."""

    label_schema: dict[str, JsonValue]
    labels: tuple[Label, ...]


def label_schema(judge: JudgeConfig) -> dict[str, Any]:
    """Return what labels about a judge's runs may say: its output schema, of which no key must be there.

    For a judge with criteria that is `result`, `score`, and `criteria` as an object of ids: `{"criteria": {"c1": true}}`.
    """
    if not isinstance(judge, CriteriaJudge):
        return _optional(judge.output_schema)
    ids = {each.id: {"type": "boolean"} for each in judge.rubric.criteria}
    return {
        "type": "object",
        "properties": {
            "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "criteria": {"type": "object", "properties": ids, "additionalProperties": False},
            "explanation": {"type": "string"},
        },
        "additionalProperties": False,
    }


def comparable(judge: JudgeConfig, output: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a judge's output in the shape of its labels."""
    rows = output.get("criteria")
    if not isinstance(judge, CriteriaJudge) or not isinstance(rows, list):
        return dict(output)
    return {**output, "criteria": {str(row["id"]): row["passed"] for row in rows if isinstance(row, dict) and not row.get("unverified")}}


def _optional(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without what must be there, closed to unknown names: a typo in a label is no new key."""
    told = {key: value for key, value in schema.items() if key not in {"required", "items", "properties"}}
    if "items" in schema:
        told["items"] = _optional(schema["items"])
    if "properties" in schema:
        told |= {"properties": {name: _optional(each) for name, each in schema["properties"].items()}, "additionalProperties": False}
    return told


def read_labels(path: Path, judge: JudgeConfig) -> LabelSet:
    """Read a file of JSON lines, a label each; a first line `{"label_schema": {...}}` gives them a schema of their own.

    Raises:
        InvalidRequest: A line is no label, or does not keep the schema; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the labels {str(path)!r} cannot be read: {error}") from None
    rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise InvalidRequest(f"the labels {str(path)!r} are empty; write a label a line")
    schema = label_schema(judge)
    first = _value(path, *rows[0])
    if isinstance(first, dict) and set(first) == {"label_schema"}:
        schema, rows = _own(path, first["label_schema"]), rows[1:]
    labels = [_label(path, number, line, schema) for number, line in rows]
    _refuse_twins(path, rows, labels)
    return LabelSet(label_schema=schema, labels=tuple(labels))


def _own(path: Path, schema: Any) -> dict[str, Any]:  # noqa: ANN401 - raw input of any shape
    try:
        refuse_schema(schema)
    except ValueError as error:
        raise InvalidRequest(f"{path}, line 1: {str(error).replace('output_schema', 'label_schema')}") from None
    return _optional(schema)


def _value(path: Path, number: int, line: str) -> Any:  # noqa: ANN401 - JSON of any shape
    try:
        return strict_json(line.strip())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}, line {number}: no JSON: {error}; write one label a line") from None


def _label(path: Path, number: int, line: str, schema: Mapping[str, Any]) -> Label:
    try:
        label = Label.model_validate(_value(path, number, line))
    except ValidationError as error:
        raise InvalidRequest(f"{path}, line {number}: {explain(error)}") from None
    unknown = next((name for name in label.label_value if name not in schema["properties"]), None)
    if unknown is not None:
        raise InvalidRequest(f"{path}, line {number}: label_value has {clip(unknown)}.{did_you_mean(unknown, list(schema['properties']))}")
    if problem := next(iter(problems_of(schema, label.label_value)), None):
        raise InvalidRequest(f"{path}, line {number}: label_value {problem.removeprefix('$').lstrip('.')}")
    return label


def _refuse_twins(path: Path, rows: Sequence[tuple[int, str]], labels: Sequence[Label]) -> None:
    for number, label in _twins(rows, labels):
        told = f"a second label for {label.agent_run_id!r} by {label.created_by!r}"
        raise InvalidRequest(f"{path}, line {number}: {told}; keep one, or say who says so in created_by")


def _twins(rows: Sequence[tuple[int, str]], labels: Sequence[Label]) -> Iterator[tuple[int, Label]]:
    seen: set[tuple[str, str]] = set()
    for (number, _), label in zip(rows, labels, strict=True):
        place = (label.agent_run_id, label.created_by)
        if place in seen:
            yield number, label
        seen.add(place)
