"""Judgements as a person sees them: a table, and one line that sums them up."""

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
from gradeloop.printable import clip, did_you_mean, one_line

CELL = 60
KEYS = 6
"""Columns of a table; `--json` has every key."""

DISAGREEMENTS = 20
"""Shown on a terminal; `--json` has all of them."""


class Rule:
    """What counts as passed: `satisfied` of a judge with criteria, else what `--pass KEY=VALUE` says, all of it."""

    def __init__(self, judge: JudgeConfig, wanted: Sequence[str]) -> None:
        self._wanted = [self._read(judge, each) for each in wanted]
        if isinstance(judge, CriteriaJudge) and not self._wanted:
            self._wanted = [(("result",), "satisfied")]

    @property
    def stated(self) -> bool:
        """True where something counts as passed."""
        return bool(self._wanted)

    def passed(self, result: JudgeResult) -> bool | None:
        """Say whether a result passes; None where it is a FAILURE, or nothing is stated."""
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
    """Return the value that is meant, of the type that the key has."""
    schema = judge.output_schema
    for name in path:
        schema = schema["properties"][name]
    if schema["type"] == "string":
        told: JsonValue = value
    else:
        try:
            told = json.loads(value)
        except ValueError:
            told = None
    if "enum" in schema and told not in schema["enum"]:
        known = [str(each) for each in schema["enum"]]
        raise InvalidRequest(f"--pass {clip(text)}: no judgement has that value.{did_you_mean(value, known)}")
    if told is None:
        raise InvalidRequest(f"--pass {clip(text)}: {clip(value)} is no {schema['type']}; write one")
    return told


def result_table(judge: JudgeConfig, results: Sequence[tuple[JudgeResult, int]], rule: Rule) -> Table:
    """Return a row a judgement: what it comes to, its doubts, its citations, its cost."""
    keys = keys_of(judge.output_schema)[:KEYS]
    repeated = any(repeat for _, repeat in results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", *(["repeat"] if repeated else []), "verdict", *(key.name for key in keys), "citations", "notes"):
        table.add_column(heading, overflow="fold")
    for result, repeat in results:
        values = [_shown(value_at(result.output, key.path)) for key in keys]
        verdict = _verdict(result, rule)
        counts = result.result_metadata.get("citation_counts")
        cited = f"{counts['verified']} of {counts['cited']}" if isinstance(counts, dict) and counts.get("cited") else ""
        table.add_row(Text(one_line(result.agent_run_id)), *([str(repeat)] if repeated else []), verdict, *values, cited, _notes(result))
    return table


def _verdict(result: JudgeResult, rule: Rule) -> Text:
    passed = rule.passed(result)
    if result.failed:
        return Text("FAILURE", style="bold yellow")
    return Text("judged") if passed is None else Text("passed", style="green") if passed else Text("not passed", style="red")


def _shown(value: JsonValue) -> Text:
    if value is None:
        return Text("")
    told = value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else json.dumps(value)
    return Text(one_line(told)[:CELL])


def _notes(result: JudgeResult) -> Text:
    told = result.result_metadata
    if result.failed:
        return Text(one_line(str(told.get("reason") or ""))[:200])
    parts = [f"tied: {', '.join(map(str, ties))}" for ties in [told.get("ties")] if isinstance(ties, list) and ties]
    parts += [f"contested: {', '.join(map(str, split))}" for split in [told.get("contested")] if isinstance(split, list) and split]
    rollouts = told.get("rollouts")
    lost = sum(isinstance(each, dict) and each.get("output") is None for each in rollouts) if isinstance(rollouts, list) else 0
    parts += [f"{lost} of {len(rollouts)} rollouts left out"] if lost and isinstance(rollouts, list) else []
    parts += ["cut to fit"] if told.get("elided") else []
    return Text("; ".join(parts), style="yellow")


def sum_line(results: Sequence[JudgeResult], rule: Rule) -> str:
    """Return what all judgements come to, in one line."""
    failures = sum(each.failed for each in results)
    judged = len(results) - failures
    passed = sum(bool(rule.passed(each)) for each in results)
    rate = f", {passed} passed ({passed / judged:.0%})" if rule.stated and judged else ""
    costs = [each.usage.cost_usd for each in results if each.usage.calls]
    cost = f", ${sum(each for each in costs if each is not None):.4f}" if costs and None not in costs else ""
    tokens = sum(each.usage.tokens for each in results)
    return f"Results: {judged} judged{rate}, {failures} failure{'' if failures == 1 else 's'}; {tokens:,} tokens{cost}"


def agreement_lines(found: Agreement) -> Iterator[str | Table]:
    """Yield how far a judge agrees, a key at a time, and where it does not."""
    told = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("key", "pairs", "accuracy", "kappa", "alpha", "mean error"):
        told.add_column(heading)
    for each in found.keys:
        numbers = (each.kappa, each.alpha, each.mean_error)
        told.add_row(Text(each.key), str(each.pairs), f"{each.accuracy:.1%}", *("" if n is None else f"{n:.3f}" for n in numbers))
    yield f"{found.judged} of {found.labels} labels have a judgement"
    yield told
    for each in found.keys:
        if each.confusion:
            yield ""
            yield f"{each.key}: rows are labels, columns the judge"
            yield _confusion(each.confusion)
    for odd in found.disagreements[:DISAGREEMENTS]:
        yield ""
        by = one_line(odd.by)
        yield f"{one_line(odd.agent_run_id)}: {odd.key} is {json.dumps(odd.label)} by {by}, {json.dumps(odd.judge)} by the judge"
        yield f"  {by}: {one_line(odd.label_reason) or 'no reason given'}"
        yield f"  judge: {one_line(odd.judge_reason) or 'no reason given'}"
    if len(found.disagreements) > DISAGREEMENTS:
        yield f"and {len(found.disagreements) - DISAGREEMENTS} more disagreements; --json lists them all"


def _confusion(rows: dict[str, dict[str, int]]) -> Table:
    columns = sorted({name for row in rows.values() for name in row} | set(rows))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", *columns):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in sorted(rows):
        table.add_row(Text(name), *(str(rows[name].get(column, 0)) for column in columns))
    return table
