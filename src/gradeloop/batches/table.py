"""Results as a table: every case of a small batch, of a large one those that did not pass."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import CaseResult
from gradeloop.batches.wording import VERDICTS, cost, score, tally, why
from gradeloop.printable import one_line

ROWS = 50
"""Shown on a terminal; the outputs have every case."""

WIDE = 72
"""From so many columns on, what a case cost and who drafted it fit beside the rest."""

NAME_CHARACTERS, WHY_CHARACTERS = 60, 300
GAP = 2
"""Between two columns."""

LEAST_NAME = 8
"""Columns that an id, a label or a reason has on the narrowest terminal; on wider ones an id has a fifth of it at most."""


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
    """Yield the results as a table, for a terminal of that width; of more than 50 those that did not pass, and sums for the rest."""
    seen = _Seen(results)
    total = seen.statuses.total()
    rows = seen.first if total <= ROWS else seen.bad
    if rows:
        yield _table(rows, seen, width)
    if total > len(rows):
        left = seen.statuses - Counter(row.status for row in rows)
        told = ", ".join(tally(left))
        yield Text(f"and {total - len(rows):,} more: {told}" if rows else told, "dim")


def _table(rows: Sequence[_Row], seen: _Seen, width: int) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    cells = {name: [_cell(row, name) for row in rows] for name in _fields(rows, seen, width)}
    widths = {name: max(len(name), *(cell.cell_len for cell in column)) for name, column in cells.items()}
    widths |= {name: min(widths[name], max(width // 5, LEAST_NAME)) for name in ("case", "prompt", "generator") if name in widths}
    if "why" in widths:
        others = sum(size for name, size in widths.items() if name != "why") + GAP * (len(widths) - 1)
        widths["why"] = min(widths["why"], max(width - others, LEAST_NAME))
    for name, size in widths.items():
        justify: Literal["left", "right"] = "right" if name in {"score", "cost"} else "left"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=justify, width=size)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def _fields(rows: Sequence[_Row], seen: _Seen, width: int) -> list[str]:
    """Return the columns that have something to tell, and room to tell it."""
    shown = {
        "case": True,
        "prompt": seen.several_prompts and width >= WIDE,
        "generator": seen.several_generators,
        "verdict": True,
        "score": any(row.score for row in rows) and (width >= WIDE or not seen.several_generators),
        "why": any(row.why for row in rows),
        "cost": any(row.cost for row in rows) and width >= WIDE,
    }
    return [name for name, holds in shown.items() if holds]


def _cell(row: _Row, name: str) -> Text:
    word, style = VERDICTS[row.status]
    cells = {
        "case": Text(row.case),
        "prompt": Text(row.prompt),
        "generator": Text(row.generator),
        "verdict": Text(word, style),
        "score": Text(row.score),
        "why": Text(row.why, style if row.status in _BAD else "dim"),
        "cost": Text(row.cost, "dim"),
    }
    return cells[name]


def _row(result: CaseResult) -> _Row:
    case, prompt, generator = (one_line(name or "")[:NAME_CHARACTERS] for name in (result.id, result.prompt, result.label))
    return _Row(case, prompt, generator, result.status, score(result), why(result)[:WHY_CHARACTERS], cost(result))
