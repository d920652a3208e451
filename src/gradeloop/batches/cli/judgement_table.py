"""Judgements in the terminal: a table of results, the answer, one line of counts, and what is to be done about failures."""

import json
from collections.abc import Sequence

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from gradeloop.batches.answer import ANSWER_STYLES, BatchAnswer
from gradeloop.cli.render.table import Column, table
from gradeloop.contract.messages import Usage
from gradeloop.judges.contract import JudgeConfig, JudgeResult
from gradeloop.judges.pass_rule import PassRule
from gradeloop.judges.schema import keys_of, value_at
from gradeloop.text import counted, money, one_line, percent, token_count

CELL = 60
"""The most characters of a value in a table."""

KEYS = 6
"""The most output keys that a table shows; `--json` has every key."""


def result_table(judge: JudgeConfig, results: Sequence[tuple[JudgeResult, int]], rule: PassRule) -> Table:
    """Return a row per judgement: its verdict, its output, its citations and its doubts."""
    keys = keys_of(judge.output_schema)[:KEYS]
    judged = [result for result, _ in results]
    repeats = [Column("repeat", [str(repeat) for _, repeat in results])] if any(repeat for _, repeat in results) else []
    return table(
        [
            Column("run", [result.agent_run_id for result in judged], wraps=True),
            *repeats,
            Column("verdict", [_verdict(result, rule) for result in judged], wraps=True),
            *(Column(key.name, [_value_text(value_at(result.output, key.path)) for result in judged], wraps=True) for key in keys),
            Column("citations", [_citations(result) for result in judged], wraps=True),
            Column("notes", [_notes(result, rule) for result in judged], wraps=True),
        ]
    )


def _verdict(result: JudgeResult, rule: PassRule) -> Text:
    passed = rule.passed(result)
    if result.failed:
        return Text("FAILURE", style="bold yellow")
    if result.unsure:
        return Text("unsure", style="yellow")
    return Text("judged") if passed is None else Text("passed", style="green") if passed else Text("not passed", style="red")


def _value_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else json.dumps(value))[:CELL]


def _citations(result: JudgeResult) -> str:
    counts = result.result_metadata.get("citation_counts")
    return f"{counts['verified']} of {counts['cited']} found" if isinstance(counts, dict) and counts.get("cited") else ""


def _notes(result: JudgeResult, rule: PassRule) -> Text:
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
    in_parts = metadata.get("parts")
    parts += [f"judged in {len(in_parts)} parts"] if isinstance(in_parts, list) else []
    parts += ["transcript cut to fit"] if metadata.get("elided") else []
    parts += [f"unsure of {', '.join(result.unsure)}"] if result.unsure else []
    parts += [f"decided by {result.model}"] if result.escalated_from else []
    parts += [f"not escalated: {one_line(str(metadata['escalation']))[:120]}"] if metadata.get("escalation") else []
    return Text("; ".join([*parts, *map(one_line, rule.contradictions(result))]), style="yellow")


def results_line(results: Sequence[JudgeResult], rule: PassRule) -> str:
    """Return the result of all judgements in one line."""
    passed, judged, failures, unsure = rule.count(results)
    escalated = sum(result.escalated_from is not None for result in results)
    apart = (f", {unsure} unsure" if unsure else "") + (f", {escalated} decided by the dearer judge" if escalated else "")
    rate = f", {passed} passed ({percent(passed / judged)})" if rule.stated and judged else ""
    costs = [result.usage.cost_usd for result in results if result.usage.calls]
    cost = f", {money(sum(cost for cost in costs if cost is not None))}" if any(costs) and None not in costs else ""
    tokens = token_count(sum((result.usage for result in results), Usage()).tokens)
    return f"Results: {judged} judged{rate}{apart}, {counted(failures, 'failure')}; {tokens} tokens{cost}"


def failure_lines(results: Sequence[JudgeResult]) -> list[str]:
    """Return what is to be done about failures, and about what the dearer judge left unsure.

    It says which of them the same command asks about again, and which only `--retry errors` does.
    """
    failures = [bool(result.result_metadata.get("again")) for result in results if result.failed]
    unsure = [bool(result.result_metadata.get("escalation_again")) for result in results if result.result_metadata.get("escalation")]
    lines = []
    for what, judge, again in (("failure", "judge", failures), ("unsure judgement", "dearer judge", unsure)):
        if invalid := again.count(False):
            lines.append(f"{counted(invalid, what)}: the {judge}'s answers stayed invalid; the same command with --retry errors asks again")
        if unanswered := again.count(True):
            lines.append(f"{counted(unanswered, what)}: no {judge} answered; the same command asks again")
    return lines


def answer_line(answer: BatchAnswer) -> Text:
    """Return an answer in its colour."""
    return Text(answer.text, ANSWER_STYLES[answer.word])
