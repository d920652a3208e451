"""The measures of a judge: people's labels of runs, its own judgements that count, and how often it does not repeat itself."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from gradeloop.contract.base import Strict
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest, explained
from gradeloop.judges.contract import JUDGEMENTS_SCHEMA, CriteriaJudge, JudgeConfig, JudgeResult, judging_id
from gradeloop.judges.schema import problems_of, refuse_schema, value_at, values_in
from gradeloop.stats.intervals import Estimate
from gradeloop.stats.reliability import Rated, flip_rate
from gradeloop.text import canonical_json, clip, counted, did_you_mean, one_line, strict_json

_DOCENT_KEYS = ("id", "label_set_id", "creator_email", "created_at")
"""Keys of Docent's labels that are ignored."""


class Label(Strict):
    """Annotation of one run by one person."""

    agent_run_id: str = Field(min_length=1)
    label_value: dict[str, JsonValue]
    """The values by key of the judge's output, `{"label": "match"}`; some of the keys are enough."""
    reason: str = ""
    created_by: str = "label"
    """The person, who has one label per run."""
    cluster: str = ""
    """The sample or prompt that runs share, which therefore resemble each other; the run itself by default."""
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
    own, ids = judge.output_schema["properties"], [criterion.id for criterion in judge.rubric.criteria]
    kinds = {"criteria": "boolean", "scores": "number"}
    by_id = {name: {"type": "object", "properties": {one: {"type": kind} for one in ids}} for name, kind in kinds.items()}
    own = {name: own[name] for name in ("result", "score")} | by_id | {"explanation": own["explanation"]}
    return _optional({"type": "object", "properties": own})


def comparable(judge: JudgeConfig, output: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a judge's output in the shape of its labels."""
    rows = output.get("criteria")
    if not isinstance(judge, CriteriaJudge) or not isinstance(rows, list):
        return dict(output)
    known = [row for row in rows if isinstance(row, dict) and not row.get("unverified")]
    scores: dict[str, JsonValue] = {str(row["id"]): row["score"] for row in known if row.get("score") is not None}
    return {**output, "criteria": {str(row["id"]): row["passed"] for row in known}, "scores": scores}


def _optional(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without required keys, and closed to unknown ones: a typo in a label must not make a new key."""
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

    `schema`: the schema of their values, without a judge; by default any values are taken.

    Raises:
        InvalidRequest: A line is not a label, or breaks the schema; the message names file and line.
    """
    rows = json_lines(path, read_text(path, "the labels"), "write one label a line")
    schema = schema if judge is None else label_schema(judge)
    if (first := next(rows, None)) is None:
        raise InvalidRequest(f"the labels {str(path)!r} are empty; write a label a line")
    if isinstance(first[1], dict) and set(first[1]) == {"label_schema"}:
        try:
            refuse_schema(first[1]["label_schema"])
        except ValueError as error:
            raise InvalidRequest(f"{path}, line 1: {str(error).replace('output_schema', 'label_schema')}") from None
        schema = _optional(first[1]["label_schema"])
    else:
        rows = chain([first], rows)
    labels: dict[tuple[str, str, str | None], Label] = {}
    for number, row in rows:
        with explained(f"{path}, line {number}: "):
            label = Label.model_validate(row)
        closed = schema.get("additionalProperties") is not True
        if unknown := next((name for name in label.label_value if closed and name not in schema["properties"]), None):
            hint = did_you_mean(unknown, list(schema["properties"]))
            raise InvalidRequest(f"{path}, line {number}: label_value has {clip(unknown)}.{hint}")
        if problem := next(iter(problems_of(schema, label.label_value)), None):
            raise InvalidRequest(f"{path}, line {number}: label_value {problem.removeprefix('$').lstrip('.')}")
        output = label.output if schema is CASE_LABELS else None
        if labels.setdefault((label.agent_run_id, label.created_by, output), label) is not label:
            problem = f"a second label for {label.agent_run_id!r} by {label.created_by!r}"
            raise InvalidRequest(f"{path}, line {number}: {problem}; keep one, or say who says so in created_by")
    return LabelSet(label_schema=dict(schema), labels=tuple(labels.values()))


def read_text(path: Path, what: str) -> str:
    """Return the text of a file; raise InvalidRequest where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{what} {str(path)!r} cannot be read: {error}") from None


def json_lines(path: Path, text: str, cure: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of JSON lines with their numbers, from 1; raise InvalidRequest at one that is not JSON."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, strict_json(line.strip())
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"{path}, line {number}: no JSON: {error}; {cure}") from None


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

    def rated(self, judged: JsonValue, labels: Iterable[JsonValue], cluster: str = "") -> Rated:
        """Return what judge and people say of a run, as it is compared."""
        people = sorted((comparable_value(self.kind, value) for value in labels), key=str)
        return Rated(None if judged is None else comparable_value(self.kind, judged), tuple(people), cluster)


def compared_keys(
    schema: Mapping[str, Any], ordered: Collection[str] = (), positive: Mapping[str, JsonValue] | None = None
) -> list[ComparedKey]:
    """Return the keys of a label schema that can be compared: choices, numbers, and lists as sets; texts cannot.

    `ordered`: names of enums whose values are written from least to most; enums of numbers are ordered anyway.

    Raises:
        InvalidRequest: A name is that of no key, or a value is none of its key's.
    """
    keys = list[ComparedKey]()
    for path, inner in values_in(schema):
        kind, name, is_number = inner["type"], ".".join(path), inner["type"] in {"integer", "number"}
        if "enum" in inner or kind == "boolean":
            values = tuple(inner.get("enum", (True, False)))
            shown, passing = tuple(sorted(values)) if is_number else values, _positive(name, values, positive or {})
            keys.append(ComparedKey(path, "ordered" if is_number or name in ordered else "category", shown, passing))
        elif is_number or kind == "array":
            keys.append(ComparedKey(path, "number" if is_number else "set"))
    names = [key.name for key in keys]
    for name in (*ordered, *(positive or {})):
        if name not in names:
            raise InvalidRequest(f"{clip(name)} is not a key of the labels that can be compared.{did_you_mean(name, names)}")
    return keys


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


@dataclass(frozen=True)
class Judgements:
    """The judge's results by the run's id: the first of a run's results is its verdict, the others are repetitions."""

    by_run: Mapping[str, tuple[JudgeResult, ...]]
    stale: tuple[str, ...] = field(default=())
    """Runs of which the judge spoke when they had another content, and which are therefore left out."""

    def verdict(self, run: str) -> JudgeResult | None:
        """Return the verdict on a run; None where it was not judged, or without an answer."""
        first = next(iter(self.by_run.get(run, ())), None)
        return None if first is None or first.failed else first


def select_judgements(judge: JudgeConfig, results: Sequence[JudgeResult], runs: Sequence[AgentRun] | None = None) -> Judgements:
    """Return the results that count for a judge: of these very runs by their content, and where no runs are given, of the newest content.

    `runs`: the runs that are meant; None for whatever run has a label's id.
    """
    grouped: dict[str, list[JudgeResult]] = {}
    for result in {result.id: result for result in reversed(results)}.values():
        grouped.setdefault(result.agent_run_id, []).insert(0, result)
    if runs is None:
        newest = {run: tuple(one for one in found if one.run_sha256 == found[0].run_sha256) for run, found in grouped.items()}
        return Judgements(newest)  # the results of the content that was judged last
    of_runs = {run.id: _of_content(judge, run, grouped[run.id]) for run in runs if run.id in grouped}
    return Judgements({run: mine for run, mine in of_runs.items() if mine}, tuple(run for run, mine in of_runs.items() if not mine))


REPEATS = 1000
"""The most repeats of one judgement that are looked for, as many as `--repeat` allows."""


def _of_content(judge: JudgeConfig, run: AgentRun, results: Sequence[JudgeResult]) -> tuple[JudgeResult, ...]:
    """Return the results of this judge and this run by their content, in the order of their repeats."""
    sha256, by = run.sha256(), judge.sha256()
    known = {result.id: result for result in results if (result.run_sha256, result.judge_sha256) == (sha256, by)}
    ids = takewhile(lambda _: known, (judging_id(judge, sha256, repeat) for repeat in range(REPEATS)))
    found = [known.pop(name) for name in ids if name in known]
    return (*found, *known.values())


def read_results(path: Path) -> list[JudgeResult]:
    """Read the judgements in a file that `gradeloop judge -o` or `--json` wrote, as JSON or JSON lines, in the order of the file.

    Raises:
        InvalidRequest: The file cannot be read, or holds none; the message names file and line.
    """
    text, results, cure = read_text(path, "the results"), list[JudgeResult](), ""
    if is_document(text):
        for number, row in enumerate(_rows_of_document(path, text), 1):
            with explained(f"{path}, judgement {number}: "):
                results.append(JudgeResult.model_validate(row))
    else:
        cure = f"; write some with `gradeloop judge JUDGE RUNS -o {path.name}`"
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                with explained(f"{path}, line {number}: this is not a judgement: "):
                    results.append(JudgeResult.model_validate_json(line))
    if not results:
        raise InvalidRequest(f"{path} holds no judgements{cure}")
    return results


_DOCUMENT = re.compile(r'\s*\{\s*"schema"\s*:\s*"gradeloop\.judgements/')


def is_document(text: str) -> bool:
    """Return whether a text begins as a JSON document of judgements, rather than as lines of them."""
    return _DOCUMENT.match(text) is not None


def _rows_of_document(path: Path, text: str) -> list[JsonValue]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is cut off, or no JSON: {error}; write it again with gradeloop judge -o") from None
    if found["schema"] != JUDGEMENTS_SCHEMA:
        raise InvalidRequest(f"{path}: the schema is {clip(str(found['schema']))}, and this gradeloop reads {JUDGEMENTS_SCHEMA}")
    rows = found.get("judgements") or []
    if not isinstance(rows, list):
        raise InvalidRequest(f"{path}: judgements is {clip(str(rows))}; write a list, as gradeloop judge -o does")
    return rows


def refuse_foreign_results(path: Path, judge: JudgeConfig, results: Sequence[JudgeResult]) -> None:
    """Raise InvalidRequest where a file has results of another judge, or of another version of this one."""
    own = f"{clip(judge.rubric_id)} version {judge.version}, judge_sha256 {judge.sha256()}"
    for number, result in enumerate(results, 1):
        by = f"{clip(result.rubric_id)} version {result.rubric_version}, judge_sha256 {result.judge_sha256}"
        if by != own:
            cure = "name the judge that wrote it, with its --grader if it had one"
            raise InvalidRequest(f"{path}, judgement {number}: {result.agent_run_id!r} was judged by {by}, and this judge is {own}; {cure}")


FLIPPING = 10
"""The most runs that are named as flipping."""


class FlipRate(Strict):
    """A run on which a judge contradicts itself."""

    agent_run_id: str
    rate: float
    values: tuple[JsonValue, ...]
    """The judge's values, repeat by repeat."""


class Stability(Strict):
    """The flip rate of repeated judgements of the same runs, for one key."""

    key: str
    runs: int
    """The number of runs that were judged at least twice."""
    judgements: int
    flip_rate: Estimate
    """The probability that two judgements of the same run differ; 1 minus it is the judge's agreement with itself."""
    flipping: tuple[FlipRate, ...]
    """The runs that flip most."""


def measure_stability(judge: JudgeConfig, judgements: Judgements, keys: Sequence[ComparedKey]) -> tuple[Stability, ...]:
    """Return how often repeated judgements differ, for each key; empty where no run was judged twice."""
    found = []
    for key in keys:
        rows = list[FlipRate]()
        for run, results in judgements.by_run.items():
            values = (value_at(comparable(judge, result.output), key.path) for result in results if not result.failed)
            given = tuple(value for value in values if value is not None)
            if (rate := flip_rate([comparable_value(key.kind, value) for value in given])) is not None:
                rows.append(FlipRate(agent_run_id=run, rate=rate, values=given))
        if rows:
            share, total = Estimate.share(sum(row.rate for row in rows), len(rows)), sum(len(row.values) for row in rows)
            worst = tuple(sorted((row for row in rows if row.rate), key=lambda row: -row.rate)[:FLIPPING])
            found.append(Stability(key=key.name, runs=len(rows), judgements=total, flip_rate=share, flipping=worst))
    return tuple(found)


SHOWN = 3
"""The most runs that flip on a terminal."""


def stability_lines(row: Stability) -> Iterator[str]:
    """Yield how often a judge contradicts itself."""
    value, interval = row.flip_rate.texts()
    yield f"{row.key}: two judgements of one run differ in {value} ({interval}); {counted(row.runs, 'run')} judged repeatedly"
    for run in row.flipping[:SHOWN]:
        yield f"  {one_line(run.agent_run_id)} flips in {run.rate:.0%}: {clip(json.dumps(list(run.values), ensure_ascii=False))}"
