"""Results as a table: every case of a small batch; of a large one, those that did not pass."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import CaseResult
from gradeloop.batches.wording import VERDICTS, score, tally, why
from gradeloop.printable import money
from gradeloop.terminal_table import MOST_NAME, WHY_CHARACTERS, Column, table

ROWS = 50
"""The most rows on a terminal; the output files have every case."""

_BAD: frozenset[CaseStatus] = frozenset({"failed", "error", "waiting"})


class _Row(NamedTuple):
    case: str
    prompt: str
    generator: str
    status: CaseStatus
    score: str
    why: str
    cost: str


class _Seen:
    """What is kept of all results: the first rows, the first bad ones, and how many there are of each status."""

    def __init__(self, results: Iterable[CaseResult]) -> None:
        self.first: list[_Row] = []
        self.bad: list[_Row] = []
        self.statuses: Counter[CaseStatus] = Counter()
        prompts: set[str] = set()
        generators: set[str] = set()
        for result in results:
            self.statuses[result.status] += 1
            row = _row(result) if len(self.first) < ROWS or (result.status in _BAD and len(self.bad) < ROWS) else None
            if row is not None:
                self.first += [row] if len(self.first) < ROWS else []
                self.bad += [row] if result.status in _BAD and len(self.bad) < ROWS else []
            for names, name in ((prompts, result.prompt), (generators, result.label)):
                if len(names) <= 1:
                    names.add(name or "")
        self.several_prompts, self.several_generators = len(prompts) > 1, len(generators) > 1


def result_lines(results: Iterable[CaseResult], width: int) -> Iterator[Table | Text]:
    """Yield the results as a table, for a terminal of that width; of more than 50, those that did not pass, and a count of the rest."""
    seen = _Seen(results)
    total = seen.statuses.total()
    rows = seen.first if total <= ROWS else seen.bad
    if rows:
        yield _table(rows, seen, width)
    if total > len(rows):
        rest = ", ".join(tally(seen.statuses - Counter(row.status for row in rows)))
        yield Text(f"and {total - len(rows):,} more: {rest}" if rows else rest, "dim")


def _table(rows: Sequence[_Row], seen: _Seen, width: int) -> Table:
    columns = [
        Column("case", [row.case for row in rows], share=5),
        *([Column("prompt", [row.prompt for row in rows], share=5, wide=True)] if seen.several_prompts else []),
        *([Column("generator", [row.generator for row in rows], share=5)] if seen.several_generators else []),
        Column("verdict", [Text(*VERDICTS[row.status]) for row in rows]),
        Column("score", [row.score for row in rows], right=True, wide=seen.several_generators),
        Column("why", [Text(row.why, VERDICTS[row.status][1] if row.status in _BAD else "dim") for row in rows], fills=True),
        Column("cost", [row.cost for row in rows], "dim", right=True, wide=True),
    ]
    return table(columns, width)


def _row(result: CaseResult) -> _Row:
    case, prompt, generator = ((name or "")[: 2 * MOST_NAME] for name in (result.id, result.prompt, result.label))
    return _Row(case, prompt, generator, result.status, score(result), why(result)[:WHY_CHARACTERS], money(result.usage.cost_usd))
