"""Results as tables: of a batch a row a test, and a column a generator where there are several; of judgements a row each."""

import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from gradeloop.batches.answer import ANSWER_STYLES, STATUS_LABELS, BatchAnswer, failure_reason, score_text, status_counts
from gradeloop.batches.column_table import ColumnFigures, column_rows
from gradeloop.batches.contract import CaseResult, CaseStatus
from gradeloop.cli.render.table import GAP, LEAST_WIDTH, MOST_NAME, PIPED, WHY_CHARACTERS, WIDE, Column, table
from gradeloop.contract.messages import Usage
from gradeloop.judges.contract import JudgeConfig, JudgeResult
from gradeloop.judges.pass_rule import PassRule
from gradeloop.judges.schema import keys_of, value_at
from gradeloop.text import counted, encodable, money, one_line, percent, token_count

ROWS = 50
"""The most tests on a terminal; the output files have every case."""

CELL_CHARACTERS = 250
"""The most characters of an output in a cell, unless a flag says otherwise: as many as promptfoo shows."""

LEAST_CELL = 18
"""The least width of a generator's column; where there is no room for it, every case has a row of its own."""

RECENT = 200
"""The tests that are kept while they may get further cases: more than the generators and prompts of one test make."""

_BAD: frozenset[CaseStatus] = frozenset({"failed", "error", "waiting"})


class _Cell(NamedTuple):
    """A case in a table."""

    case: str
    prompt: str
    generator: str
    status: CaseStatus
    score: str
    output: str
    why: str
    cost: str


_Rows = dict[str, list[_Cell]]
"""Tests by their names, each with its cases of one prompt and one repetition, one a generator."""


class _Shown:
    """The part of a batch's results that a terminal shows: the first tests, the first that did not pass, and the count of each status."""

    def __init__(self, results: Iterable[CaseResult], characters: int) -> None:
        self.first: _Rows = {}
        self.bad: _Rows = {}
        self.statuses: Counter[CaseStatus] = Counter()
        self._recent: OrderedDict[str, list[_Cell]] = OrderedDict()
        self._seen = 0
        prompts: set[str] = set()
        generators: dict[str, None] = {}
        for result in results:
            self.statuses[result.status] += 1
            self._add(result, characters)
            for names, name in ((prompts, result.prompt), (generators, result.label)):
                if len(names) < ROWS:
                    names.update({name or "": None})
        self.several_prompts, self.generators = len(prompts) > 1, tuple(generators)

    @property
    def rows(self) -> _Rows:
        """The tests that are shown: all where they are few, else those that did not pass."""
        return self.first if self._seen <= ROWS else self.bad

    def _add(self, result: CaseResult, characters: int) -> None:
        key = _test_of(result)
        row = self._recent.get(key)
        if row is None:
            row = self._recent[key] = []
            self._seen += 1
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        if len(self.first) < ROWS:
            self.first.setdefault(key, row)
        if result.status in _BAD and len(self.bad) < ROWS:
            self.bad.setdefault(key, row)
        row.append(_cell(result, characters))


def _test_of(result: CaseResult) -> str:
    """Return a case's id without its generator's label, which it ends with where there are several."""
    repeats = f"/{result.repeat + 1}"
    for ending, rest in ((f"/{result.label}{repeats}", repeats), (f"/{result.label}", "")):
        if result.label and result.id.endswith(ending):
            return f"{result.id.removesuffix(ending)}{rest}"
    return result.id


def _cell(result: CaseResult, characters: int) -> _Cell:
    case, prompt, generator = ((name or "")[: 2 * MOST_NAME] for name in (result.id, result.prompt, result.label))
    output = one_line(encodable((result.output or "")[: 2 * characters]))
    output = output if len(output) <= characters else f"{output[: characters - 1]}…"
    why = failure_reason(result)[:WHY_CHARACTERS]
    return _Cell(case, prompt, generator, result.status, score_text(result), output, why, money(result.usage.cost_usd))


def result_lines(results: Iterable[CaseResult], width: int, characters: int | None = None) -> Iterator[Table | Text]:
    """Yield the results as a table, for a terminal of that width; above 50 tests, only those that did not pass, and a count of the rest.

    `characters`: the most characters of an output; 250 by default.
    """
    shown = _Shown(results, characters or CELL_CHARACTERS)
    cells = [cell for row in shown.rows.values() for cell in row]
    if cells:
        beside = _side_by_side(shown.rows, shown.generators, width) if len(shown.generators) > 1 and width < PIPED else None
        yield beside or _table(cells, shown, width)
    listed: Counter[CaseStatus] = Counter(cell.status for cell in cells)
    rest = shown.statuses - listed
    if rest:
        counts = ", ".join(status_counts(rest))
        yield Text(f"and {rest.total():,} more: {counts}" if cells else counts, "dim")


def column_lines(columns: Sequence[ColumnFigures], width: int) -> Iterator[Table]:
    """Yield the columns of a batch as a table, a row each, for a terminal of that width; nothing where there is only one."""
    if rows := column_rows(columns):
        name, *figures = rows[0]
        shown = [figure for figure in figures if figure in COLUMN_FIGURES[: None if width >= WIDE else 3]]
        yield table([Column(name, [row[name] for row in rows], wraps=True), *(Column(one, [row[one] for row in rows]) for one in shown)])


COLUMN_FIGURES = ("pass rate", "95% interval", "passed", "unsure", "errors", "cost", "latency")
"""The figures of a column that a terminal shows, a narrow one the first three; the number that failed follows from them."""


def _table(cells: Sequence[_Cell], shown: _Shown, width: int) -> Table:
    """Return a table with a row a case, each on one line."""
    several, explained = len(shown.generators) > 1, any(cell.why for cell in cells)
    columns = [
        Column("case", [cell.case for cell in cells], share=5),
        *([Column("prompt", [cell.prompt for cell in cells], share=5, wide=True)] if shown.several_prompts else []),
        *([Column("generator", [cell.generator for cell in cells], share=5)] if several else []),
        Column("verdict", [Text(*STATUS_LABELS[cell.status]) for cell in cells]),
        Column("score", [cell.score for cell in cells], right=True, wide=several),
        Column("output", [cell.output for cell in cells], share=4 if explained else 0, fills=not explained, wide=True),
        Column("why", [Text(cell.why, STATUS_LABELS[cell.status][1] if cell.status in _BAD else "dim") for cell in cells], fills=True),
        Column("cost", [cell.cost for cell in cells], "dim", right=True, wide=True),
    ]
    return table(columns, width)


def _side_by_side(rows: _Rows, generators: Sequence[str], width: int) -> Table | None:
    """Return a table with a row a test and a column a generator; None where they have no room beside each other."""
    first = min(max(*map(len, rows), len("case")), max(width // 5, LEAST_WIDTH), MOST_NAME)
    size = (width - first) // len(generators) - GAP
    if size < LEAST_CELL or any(len({cell.generator for cell in row}) < len(row) for row in rows.values()):
        return None
    result = Table(box=None, padding=(0, GAP, 1, 0), pad_edge=False, header_style="dim")
    result.add_column(Text("case"), width=first, overflow="fold")
    for name in generators:
        result.add_column(Text(one_line(name) or "given output"), width=size, overflow="fold")
    for name, row in rows.items():
        found = {cell.generator: cell for cell in row}
        result.add_row(Text(one_line(name[: 2 * MOST_NAME])), *(_said(found.get(name)) for name in generators))
    return result


def _said(cell: _Cell | None) -> Text:
    """Return a case in a generator's column: its verdict and score, its output, and why it did not pass."""
    if cell is None:
        return Text("")
    label, style = STATUS_LABELS[cell.status]
    text = Text().append(label, style).append(f" {cell.score}  " if cell.score else "  ").append(cell.output)
    return text.append(f"\n{cell.why}", style if cell.status in _BAD else "dim") if cell.why else text


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
            *(Column(key.name, [_judgement_value(value_at(result.output, key.path)) for result in judged], wraps=True) for key in keys),
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


def _judgement_value(value: JsonValue) -> str:
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
    apart = (f", {unsure} unsure" if unsure else "") + (f", {escalated} decided by the escalation judge" if escalated else "")
    rate = f", {passed} passed ({percent(passed / judged)})" if rule.stated and judged else ""
    costs = [result.usage.cost_usd for result in results if result.usage.calls]
    cost = f", {money(sum(cost for cost in costs if cost is not None))}" if any(costs) and None not in costs else ""
    tokens = token_count(sum((result.usage for result in results), Usage()).tokens)
    return f"Results: {judged} judged{rate}{apart}, {counted(failures, 'failure')}; {tokens} tokens{cost}"


def failure_lines(results: Sequence[JudgeResult]) -> list[str]:
    """Return what is to be done about failures, and about what the escalation judge left unsure.

    It says which of them the same command asks about again, and which only `--retry errors` does.
    """
    failures = [bool(result.result_metadata.get("again")) for result in results if result.failed]
    unsure = [bool(result.result_metadata.get("escalation_again")) for result in results if result.result_metadata.get("escalation")]
    lines = []
    for what, judge, again in (("failure", "judge", failures), ("unsure judgement", "escalation judge", unsure)):
        if invalid := again.count(False):
            lines.append(f"{counted(invalid, what)}: the {judge}'s answers stayed invalid; the same command with --retry errors asks again")
        if unanswered := again.count(True):
            lines.append(f"{counted(unanswered, what)}: no {judge} answered; the same command asks again")
    return lines


def answer_line(answer: BatchAnswer) -> Text:
    """Return an answer in its colour."""
    return Text(answer.text, ANSWER_STYLES[answer.word])
