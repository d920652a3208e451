"""Judgements for a terminal: a table, and one line that sums them up."""

import json
from collections.abc import Iterator, Sequence

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from gradeloop.errors import InvalidRequest
from gradeloop.judges.agreement import Agreement
from gradeloop.judges.config import CriteriaJudge, JudgeConfig
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.schema_shape import keys_of, value_at
from gradeloop.printable import clip, counted, did_you_mean, money, one_line, percent
from gradeloop.terminal_table import Column, table

CELL = 60
KEYS = 6
"""The most output keys that a table shows; `--json` has every key."""

DISAGREEMENTS = 20
"""The most disagreements on a terminal; `--json` has all of them."""


class Rule:
    """When a judgement passes: if a criteria judge says `satisfied`, or if the output has every `--pass KEY=VALUE`."""

    def __init__(self, judge: JudgeConfig, wanted: Sequence[str]) -> None:
        self._wanted = [self._read(judge, text) for text in wanted]
        if isinstance(judge, CriteriaJudge) and not self._wanted:
            self._wanted = [(("result",), "satisfied")]

    @property
    def stated(self) -> bool:
        """True if the rule can pass or fail a judgement."""
        return bool(self._wanted)

    def passed(self, result: JudgeResult) -> bool | None:
        """Return whether a result passes; None for a FAILURE, or without a rule."""
        if result.failed or not self._wanted:
            return None
        return all(json.dumps(value_at(result.output, path)) == json.dumps(value) for path, value in self._wanted)

    @staticmethod
    def _read(judge: JudgeConfig, text: str) -> tuple[tuple[str, ...], JsonValue]:
        name, found, value = text.partition("=")
        keys = {key.name: key for key in keys_of(judge.output_schema)}
        if not found or name.strip() not in keys:
            hint = did_you_mean(name.strip(), list(keys)) if keys else ""
            raise InvalidRequest(f"--pass {clip(text)} names no key of the judge's output; write KEY=VALUE.{hint}")
        path = keys[name.strip()].path
        return path, _value(judge, path, value.strip(), text)


def _value(judge: JudgeConfig, path: tuple[str, ...], value: str, text: str) -> JsonValue:
    """Return the value in the type that the key has."""
    schema = judge.output_schema
    for name in path:
        schema = schema["properties"][name]
    if schema["type"] == "string":
        wanted: JsonValue = value
    else:
        try:
            wanted = json.loads(value)
        except ValueError:
            wanted = None
    if "enum" in schema and wanted not in schema["enum"]:
        known = [str(value) for value in schema["enum"]]
        raise InvalidRequest(f"--pass {clip(text)}: the judge's schema does not allow that value.{did_you_mean(value, known)}")
    if wanted is None:
        raise InvalidRequest(f"--pass {clip(text)}: {clip(value)} is not of type {schema['type']}; write KEY=VALUE with such a value")
    return wanted


def result_table(judge: JudgeConfig, results: Sequence[tuple[JudgeResult, int]], rule: Rule) -> Table:
    """Return a row per judgement: its verdict, its output, its citations and its doubts."""
    keys = keys_of(judge.output_schema)[:KEYS]
    all_of = [result for result, _ in results]
    repeats = [Column("repeat", [str(repeat) for _, repeat in results])] if any(repeat for _, repeat in results) else []
    return table(
        [
            Column("run", [result.agent_run_id for result in all_of], wraps=True),
            *repeats,
            Column("verdict", [_verdict(result, rule) for result in all_of], wraps=True),
            *(Column(key.name, [_value_text(value_at(result.output, key.path)) for result in all_of], wraps=True) for key in keys),
            Column("citations", [_citations(result) for result in all_of], wraps=True),
            Column("notes", [_notes(result) for result in all_of], wraps=True),
        ]
    )


def _verdict(result: JudgeResult, rule: Rule) -> Text:
    passed = rule.passed(result)
    if result.failed:
        return Text("FAILURE", style="bold yellow")
    return Text("judged") if passed is None else Text("passed", style="green") if passed else Text("not passed", style="red")


def _value_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else json.dumps(value))[:CELL]


def _citations(result: JudgeResult) -> str:
    counts = result.result_metadata.get("citation_counts")
    return f"{counts['verified']} of {counts['cited']} found" if isinstance(counts, dict) and counts.get("cited") else ""


def _notes(result: JudgeResult) -> Text:
    metadata = result.result_metadata
    if result.failed:
        return Text(one_line(str(metadata.get("reason") or ""))[:200])
    parts = [
        f"{name}: {', '.join(map(str, keys))}"
        for name, keys in (("tied", metadata.get("ties")), ("contested", metadata.get("contested")))
        if isinstance(keys, list) and keys
    ]
    rollouts = metadata.get("rollouts")
    lost = sum(isinstance(rollout, dict) and rollout.get("output") is None for rollout in rollouts) if isinstance(rollouts, list) else 0
    parts += [f"{lost} of {len(rollouts)} rollouts failed"] if lost and isinstance(rollouts, list) else []
    parts += ["transcript cut to fit"] if metadata.get("elided") else []
    return Text("; ".join(parts), style="yellow")


def sum_line(results: Sequence[JudgeResult], rule: Rule) -> str:
    """Return the result of all judgements in one line."""
    failures = sum(result.failed for result in results)
    judged = len(results) - failures
    passed = sum(bool(rule.passed(result)) for result in results)
    rate = f", {passed} passed ({percent(passed / judged)})" if rule.stated and judged else ""
    costs = [result.usage.cost_usd for result in results if result.usage.calls]
    cost = f", {money(sum(cost for cost in costs if cost is not None))}" if any(costs) and None not in costs else ""
    tokens = sum(result.usage.tokens for result in results)
    return f"Results: {judged} judged{rate}, {counted(failures, 'failure')}; {tokens:,} tokens{cost}"


def agreement_lines(found: Agreement) -> Iterator[str | Table]:
    """Yield how far a judge agrees with people, by key, and where it does not."""
    yield f"{found.judged} of {found.labels} labels have a judgement"
    yield table(
        [
            Column("key", [key.key for key in found.keys], wraps=True),
            Column("pairs", [str(key.pairs) for key in found.keys]),
            Column("accuracy", [f"{key.accuracy:.1%}" for key in found.keys]),
            Column("kappa", [_number(key.kappa) for key in found.keys]),
            Column("alpha", [_number(key.alpha) for key in found.keys]),
            Column("mean error", [_number(key.mean_error) for key in found.keys]),
        ]
    )
    for key in found.keys:
        if key.confusion:
            yield ""
            yield f"{key.key}: rows are labels, columns the judge"
            yield _confusion(key.confusion)
    for odd in found.disagreements[:DISAGREEMENTS]:
        yield ""
        by = one_line(odd.by)
        yield f"{one_line(odd.agent_run_id)}: {odd.key} is {json.dumps(odd.label)} by {by}, {json.dumps(odd.judge)} by the judge"
        yield f"  {by}: {one_line(odd.label_reason) or 'no reason given'}"
        yield f"  judge: {one_line(odd.judge_reason) or 'no reason given'}"
    if len(found.disagreements) > DISAGREEMENTS:
        yield f"and {len(found.disagreements) - DISAGREEMENTS} more disagreements; --json lists them all"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _confusion(rows: dict[str, dict[str, int]]) -> Table:
    labels, names = sorted(rows), sorted({name for row in rows.values() for name in row} | set(rows))
    counts = (Column(name, [str(rows[label].get(name, 0)) for label in labels], right=True) for name in names)
    return table([Column("", labels, wraps=True), *counts])
