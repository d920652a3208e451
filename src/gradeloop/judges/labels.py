"""People's labels of runs, the schema that they follow, and the keys by which a judge is compared with them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest, explained
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig
from gradeloop.judges.schema import problems_of, refuse_schema, values_in
from gradeloop.text import canonical_json, clip, did_you_mean, strict_json

_DOCENT_KEYS = ("id", "label_set_id", "creator_email", "created_at")
"""Keys of Docent's labels that are ignored."""


class Label(Strict):
    """What one person says about one run."""

    agent_run_id: str = Field(min_length=1)
    label_value: dict[str, JsonValue]
    """The values by key of the judge's output, `{"label": "match"}`; some of the keys are enough."""
    reason: str = ""
    created_by: str = "label"
    """The person, who has one label per run."""
    output: str | None = None
    """The output of a case of a suite when it was labelled: `eval --labels` counts the label only for this output."""

    @model_validator(mode="before")
    @classmethod
    def _ignores_docent_keys(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {key: inner for key, inner in value.items() if key not in _DOCENT_KEYS} if isinstance(value, dict) else value


class LabelSet(Strict):
    """Labels, all of one schema."""

    label_schema: dict[str, JsonValue]
    labels: tuple[Label, ...]


def label_schema(judge: JudgeConfig) -> dict[str, Any]:
    """Return the schema of labels for a judge: its output schema, with every key optional.

    A criteria judge's labels have `result`, `score`, and by criterion's id `criteria` and `scores`: `{"criteria": {"c1": true}}`,
    `{"scores": {"c1": 4}}`.
    """
    if not isinstance(judge, CriteriaJudge):
        return _optional(judge.output_schema)
    ids = [criterion.id for criterion in judge.rubric.criteria]
    return {
        "type": "object",
        "properties": {
            "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "criteria": {"type": "object", "properties": {name: {"type": "boolean"} for name in ids}, "additionalProperties": False},
            "scores": {"type": "object", "properties": {name: {"type": "number"} for name in ids}, "additionalProperties": False},
            "explanation": {"type": "string"},
        },
        "additionalProperties": False,
    }


def comparable(judge: JudgeConfig, output: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a judge's output in the shape of its labels."""
    rows = output.get("criteria")
    if not isinstance(judge, CriteriaJudge) or not isinstance(rows, list):
        return dict(output)
    known = [row for row in rows if isinstance(row, dict) and not row.get("unverified")]
    scores: dict[str, JsonValue] = {str(row["id"]): row["score"] for row in known if row.get("score") is not None}
    return {**output, "criteria": {str(row["id"]): row["passed"] for row in known}, "scores": scores}


def _optional(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without required keys, and closed to unknown ones: a typo in a label is no new key."""
    optional = {keyword: value for keyword, value in schema.items() if keyword not in {"required", "items", "properties"}}
    if "items" in schema:
        optional["items"] = _optional(schema["items"])
    if "properties" in schema:
        optional["properties"] = {name: _optional(inner) for name, inner in schema["properties"].items()}
        optional["additionalProperties"] = False
    return optional


_ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}


def is_labels(path: Path) -> bool:
    """Return whether a file's first line is that of labels."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    return path.suffix == ".jsonl" and any(f'"{key}"' in first for key in ("label_schema", "agent_run_id"))


CASE_LABELS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"status": {"type": "string", "enum": ["passed", "failed"]}},
    "additionalProperties": False,
}
"""The schema of labels on the cases of a suite: what the `status` of a result ought to be."""


def read_case_labels(path: Path) -> LabelSet:
    """Read labels on the cases of a suite: `{"agent_run_id": CASE, "label_value": {"status": "passed"}, "output": "..."}` a line.

    Raises:
        InvalidRequest: As for `read_labels`; or the file has a schema of its own, or a label does not say of which output it is.
    """
    found = read_labels(path, schema=CASE_LABELS)
    if found.label_schema != CASE_LABELS:
        raise InvalidRequest(f"{path}, line 1: labels on the cases of a suite have no label_schema of their own; leave that line out")
    for label in found.labels:
        if label.output is None:
            problem = f"{path}: the label of {label.agent_run_id!r} by {label.created_by!r} has no output"
            raise InvalidRequest(f"{problem}; add the text that was labelled, as eval -o FILE.jsonl has it")
    return found


def read_labels(path: Path, judge: JudgeConfig | None = None, *, schema: Mapping[str, Any] = _ANYTHING) -> LabelSet:
    """Read labels from JSON lines; a first line `{"label_schema": {...}}` gives them a schema of their own.

    Args:
        path: The labels.
        judge: The judge whose output they follow.
        schema: The schema of their values, without a judge; by default any values are taken.

    Raises:
        InvalidRequest: A line is no label, or breaks the schema; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the labels {str(path)!r} cannot be read: {error}") from None
    rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise InvalidRequest(f"the labels {str(path)!r} are empty; write a label a line")
    schema = schema if judge is None else label_schema(judge)
    first = _parse_json(path, *rows[0])
    if isinstance(first, dict) and set(first) == {"label_schema"}:
        try:
            refuse_schema(first["label_schema"])
        except ValueError as error:
            raise InvalidRequest(f"{path}, line 1: {str(error).replace('output_schema', 'label_schema')}") from None
        schema, rows = _optional(first["label_schema"]), rows[1:]
    labels: dict[tuple[str, str, str | None], Label] = {}
    for number, line in rows:
        label = _parse_label(path, number, line, schema)
        output = label.output if schema is CASE_LABELS else None
        if labels.setdefault((label.agent_run_id, label.created_by, output), label) is not label:
            problem = f"a second label for {label.agent_run_id!r} by {label.created_by!r}"
            raise InvalidRequest(f"{path}, line {number}: {problem}; keep one, or say who says so in created_by")
    return LabelSet(label_schema=dict(schema), labels=tuple(labels.values()))


def _parse_json(path: Path, number: int, line: str) -> Any:  # noqa: ANN401 - JSON of any shape
    try:
        return strict_json(line.strip())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}, line {number}: no JSON: {error}; write one label a line") from None


def _parse_label(path: Path, number: int, line: str, schema: Mapping[str, Any]) -> Label:
    with explained(f"{path}, line {number}: "):
        label = Label.model_validate(_parse_json(path, number, line))
    closed = schema.get("additionalProperties") is not True
    unknown = next((name for name in label.label_value if closed and name not in schema["properties"]), None)
    if unknown is not None:
        raise InvalidRequest(f"{path}, line {number}: label_value has {clip(unknown)}.{did_you_mean(unknown, list(schema['properties']))}")
    if problem := next(iter(problems_of(schema, label.label_value)), None):
        raise InvalidRequest(f"{path}, line {number}: label_value {problem.removeprefix('$').lstrip('.')}")
    return label


KeyKind = Literal["category", "ordered", "number", "set"]


@dataclass(frozen=True)
class ComparedKey:
    """A value of the output by which judge and people are compared."""

    path: tuple[str, ...]
    kind: KeyKind
    values: tuple[JsonValue, ...] = ()
    """The values of a category, in the schema's order."""
    positive: JsonValue = None
    """The value that passes, of a category; None where nothing says which."""

    @property
    def name(self) -> str:
        """The path as text: `outcome.label`."""
        return ".".join(self.path)


def compared_keys(
    schema: Mapping[str, Any], ordered: Collection[str] = (), positive: Mapping[str, JsonValue] | None = None
) -> list[ComparedKey]:
    """Return the keys of a label schema that can be compared: choices, numbers, and lists as sets; texts cannot.

    Args:
        schema: The schema of the labels.
        ordered: Names of enums whose values are written from least to most; enums of numbers are ordered anyway.
        positive: The value that passes, by the key's name.

    Raises:
        InvalidRequest: A name is that of no key, or a value is none of its key's.
    """
    keys = [key for path, inner in values_in(schema) if (key := _compared_key(path, inner, ordered, positive or {})) is not None]
    names = [key.name for key in keys]
    for name in (*ordered, *(positive or {})):
        if name not in names:
            raise InvalidRequest(f"{clip(name)} is no key of the labels that can be compared.{did_you_mean(name, names)}")
    return keys


def _compared_key(
    path: tuple[str, ...], schema: Mapping[str, Any], ordered: Collection[str], positive: Mapping[str, JsonValue]
) -> ComparedKey | None:
    kind, name = schema["type"], ".".join(path)
    if kind == "array":
        return ComparedKey(path, "set")
    if "enum" in schema or kind == "boolean":
        values, is_number = tuple(schema.get("enum", (True, False))), kind in {"integer", "number"}
        shown = tuple(sorted(values)) if is_number else values
        return ComparedKey(path, "ordered" if is_number or name in ordered else "category", shown, _positive(name, values, positive))
    return ComparedKey(path, "number") if kind in {"integer", "number"} else None


def _positive(name: str, values: tuple[JsonValue, ...], positive: Mapping[str, JsonValue]) -> JsonValue:
    if name in positive:
        return next((value for value in values if canonical_json(value) == canonical_json(positive[name])), None)
    if values == ("satisfied", "needs_revision", "failed"):
        return values[0]
    return True if True in values and isinstance(values[0], bool) else None


def comparable_value(kind: str, value: JsonValue) -> float | str | frozenset[str]:
    """Return a value as it is compared: numbers as numbers, lists as sets, everything else as canonical JSON."""
    if kind == "number" and isinstance(value, int | float):
        return float(value)
    if kind == "set" and isinstance(value, list):
        return frozenset(map(canonical_json, value))
    return canonical_json(value)
