"""Agreement of a judge with the labels of people."""

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError, model_validator

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest, explain
from gradeloop.grading.checks import strict_json
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult
from gradeloop.judges.schema import OutputKey, keys_of, problems_of, refuse_schema, value_at
from gradeloop.text import clip, did_you_mean

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
    ids = {criterion.id: {"type": "boolean"} for criterion in judge.rubric.criteria}
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


JUDGE = "judge"


class Disagreement(Strict):
    """A run of which judge and person say different things."""

    agent_run_id: str
    key: str
    label: JsonValue
    judge: JsonValue
    by: str
    label_reason: str
    judge_reason: str


class KeyAgreement(Strict):
    """Agreement on one key."""

    key: str
    pairs: int
    """Of a label and the judge's value for it."""
    accuracy: float
    """The share of pairs that are equal."""
    kappa: float | None
    """Cohen's, unweighted; None for numbers, and where everybody always says the same."""
    alpha: float | None
    """Krippendorff's, over the judge and every person: nominal for what is voted on, interval for numbers; None as above."""
    mean_error: float | None = None
    """Of numbers, the mean absolute difference."""
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By the label's value, then by the judge's; both as JSON, so that `true` is no text."""


class Agreement(Strict):
    """What comes out of labels and judgements."""

    labels: int
    judged: int
    """Labels whose run the judge gave an output for."""
    missing: tuple[str, ...]
    """Runs with a label and no output."""
    keys: tuple[KeyAgreement, ...]
    disagreements: tuple[Disagreement, ...]


@dataclass(frozen=True)
class _Pair:
    label: Label
    said: JsonValue
    judged: JsonValue
    reason: str


def measure_agreement(judge: JudgeConfig, labels: LabelSet, results: Sequence[JudgeResult]) -> Agreement:
    """Return how far results agree with labels; of several results for a run, the first counts.

    Raises:
        InvalidRequest: No labelled run has an output, or the packages for the statistics are missing.
    """
    outputs: dict[str, dict[str, JsonValue]] = {}
    for result in results:
        if not result.failed:
            outputs.setdefault(result.agent_run_id, result.output)
    found = [label for label in labels.labels if label.agent_run_id in outputs]
    if not found:
        raise InvalidRequest("none of the labelled runs has a judgement; judge them first, or check the ids (agent_run_id)")
    told: list[KeyAgreement] = []
    disagreements: list[Disagreement] = []
    for key in keys_of(labels.label_schema):
        pairs = [pair for each in found if (pair := _pair(judge, key, each, outputs[each.agent_run_id])) is not None]
        if pairs:
            told.append(_key(key, pairs))
            disagreements += [_disagreement(key, pair) for pair in pairs if not _equal(pair.said, pair.judged)]
    missing = tuple(dict.fromkeys(label.agent_run_id for label in labels.labels if label.agent_run_id not in outputs))
    if not told:
        raise InvalidRequest("the labels and the judge's outputs have no key in common that can be compared")
    return Agreement(labels=len(labels.labels), judged=len(found), missing=missing, keys=tuple(told), disagreements=tuple(disagreements))


def _pair(judge: JudgeConfig, key: OutputKey, label: Label, output: dict[str, JsonValue]) -> _Pair | None:
    said, judged = value_at(label.label_value, key.path), value_at(comparable(judge, output), key.path)
    if said is None or judged is None:
        return None
    return _Pair(label, said, judged, _reason(judge, key, output))


def _reason(judge: JudgeConfig, key: OutputKey, output: Mapping[str, JsonValue]) -> str:
    """Return why the judge says so: the row's reason, or the explanation, or the first text that is no choice."""
    rows = output.get("criteria")
    if isinstance(judge, CriteriaJudge) and key.path[0] == "criteria" and isinstance(rows, list):
        return next((str(row.get("reason") or "") for row in rows if isinstance(row, dict) and row.get("id") == key.path[-1]), "")
    texts = [name for name, each in judge.output_schema["properties"].items() if each["type"] == "string" and "enum" not in each]
    named = ("explanation", *texts)
    return next((str(output[name]) for name in named if output.get(name)), "")


def _disagreement(key: OutputKey, pair: _Pair) -> Disagreement:
    return Disagreement(
        agent_run_id=pair.label.agent_run_id,
        key=key.name,
        label=pair.said,
        judge=pair.judged,
        by=pair.label.created_by,
        label_reason=pair.label.reason,
        judge_reason=pair.reason,
    )


def _key(key: OutputKey, pairs: Sequence[_Pair]) -> KeyAgreement:
    equal = sum(_equal(pair.said, pair.judged) for pair in pairs)
    numeric = key.how == "median"
    confusion: dict[str, dict[str, int]] = {}
    for pair in pairs if not numeric else ():
        row = confusion.setdefault(json.dumps(pair.said), {})
        row[json.dumps(pair.judged)] = row.get(json.dumps(pair.judged), 0) + 1
    errors = [abs(float(pair.said) - float(pair.judged)) for pair in pairs] if numeric else []  # type: ignore[arg-type]  # numbers, by the schema
    return KeyAgreement(
        key=key.name,
        pairs=len(pairs),
        accuracy=equal / len(pairs),
        kappa=None if numeric else kappa([(json.dumps(pair.said), json.dumps(pair.judged)) for pair in pairs]),
        alpha=alpha(_ratings(pairs), numeric=numeric),
        mean_error=sum(errors) / len(errors) if errors else None,
        confusion=confusion,
    )


def _ratings(pairs: Sequence[_Pair]) -> list[tuple[str, str, JsonValue]]:
    """Return who said what of which run, the judge once a run."""
    judged = {pair.label.agent_run_id: (JUDGE, pair.label.agent_run_id, pair.judged) for pair in pairs}
    return [*judged.values(), *((f"person {pair.label.created_by}", pair.label.agent_run_id, pair.said) for pair in pairs)]


def kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Return Cohen's kappa of pairs of ratings; None where it is not defined, since both always say the same.

    Raises:
        InvalidRequest: scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import cohen_kappa_score  # type: ignore[import-untyped]  # it has no types
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    if len({each for pair in pairs for each in pair}) == 1:
        return None
    return _number(float(cohen_kappa_score([one for one, _ in pairs], [other for _, other in pairs])))


def alpha(ratings: Sequence[tuple[str, str, JsonValue]], *, numeric: bool) -> float | None:
    """Return Krippendorff's alpha of ratings by rater, unit and value; None where it is not defined, since all values are equal.

    Args:
        ratings: A rater need not have rated every unit.
        numeric: Whether values are numbers, whose distance counts; otherwise they are equal or not.

    Raises:
        InvalidRequest: The package krippendorff is not installed.
    """
    try:
        import krippendorff
        import numpy as np
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    told = [(rater, unit, float(value) if numeric else json.dumps(value)) for rater, unit, value in ratings]  # type: ignore[arg-type]  # as above
    domain = sorted({value for _, _, value in told}, key=str)
    if len(domain) == 1:
        return None
    raters, units = ([*dict.fromkeys(each[at] for each in told)] for at in (0, 1))
    table = np.full((len(raters), len(units)), math.nan)
    for rater, unit, value in told:
        table[raters.index(str(rater)), units.index(str(unit))] = float(value) if numeric else domain.index(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = krippendorff.alpha(reliability_data=table, level_of_measurement="interval" if numeric else "nominal")
    except ValueError:  # no unit has two ratings
        return None
    return _number(float(found))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _equal(one: JsonValue, other: JsonValue) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return one == other if numbers else json.dumps(one) == json.dumps(other)


def _missing(error: ModuleNotFoundError) -> InvalidRequest:
    return InvalidRequest(f"the statistics need a package that is not installed ({error.name}); run: pip install 'gradeloop[agreement]'")


def read_results(path: Path) -> list[JudgeResult]:
    """Return the judgements of a file that `gradeloop judge -o` or `--json` wrote.

    Raises:
        InvalidRequest: It cannot be read, or holds none; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the results {str(path)!r} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(JudgeResult.model_validate_json(line))
            except ValidationError as error:
                raise InvalidRequest(f"{path}, line {number}: this is no judgement: {explain(error)}") from None
    if not found:
        raise InvalidRequest(f"{path} holds no judgements; write some with `gradeloop judge JUDGE RUNS -o {path.name}`")
    return found
