"""A comparison for a terminal: one line that sums it up, then what got worse, what better, and by which criteria."""

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.table import Table
from rich.text import Text

from gradeloop.batches.table import GAP, LEAST_NAME, NAME_CHARACTERS, WHY_CHARACTERS, WIDE
from gradeloop.comparisons.comparison import CaseRow, Comparison, CriterionTally, Outcome
from gradeloop.comparisons.comparison_wording import beside, came_to, counts_line, overall_lines, passed_of, scores, why, word
from gradeloop.printable import one_line

ROWS = 20
"""Of each kind, shown on a terminal; `--json` and the page have all."""

STYLES: dict[Outcome, str] = {"regressed": "bold red", "lost": "bold yellow", "improved": "green", "gained": "cyan"}

_TOLD: tuple[Outcome, ...] = ("regressed", "lost", "improved", "gained")
_LISTED: tuple[Outcome, ...] = ("removed", "added")
_RIGHT = frozenset({"regressed", "improved", "passed in A", "in B"})


def comparison_lines(found: Comparison, width: int) -> Iterator[Text | Table]:
    """Yield the comparison, for a terminal of that width."""
    yield Text(counts_line(found.counts, len(found.cases)), "bold red" if found.counts.get("regressed") else "bold")
    if found.overall is not None:
        yield from (Text(line) for line in overall_lines(found.overall))
    yield from (Text(f"note: {one_line(note)}", "yellow") for note in found.notes)
    yield _both(found, width)
    for outcome in _TOLD:
        yield from _section(outcome, [row for row in found.cases if row.outcome == outcome], width)
    for outcome in _LISTED:
        yield from _names(outcome, [row.id for row in found.cases if row.outcome == outcome])
    yield from _quiet(found.cases)
    yield from _criteria([each for each in found.criteria if each.counts.keys() - {"same", "unjudged"}], width)


def _both(found: Comparison, width: int) -> Table:
    """Return the two batches beside each other."""
    columns = {name: (told, beside(found.b)[name]) for name, told in beside(found.a).items()}
    narrow = {"batch", "pass rate", "cost"}
    shown = {name: cells for name, cells in columns.items() if any(cells) and (width >= WIDE or name in narrow)}
    table = _table({"": ["A", "B"], **{name: [*cells] for name, cells in shown.items()}}, width, {}, shrinks="batch")
    table.columns[0].style = "bold"
    return table


def _section(outcome: Outcome, rows: Sequence[CaseRow], width: int) -> Iterator[Text | Table]:
    if not rows:
        return
    yield Text(f"\n{len(rows):,} {word(outcome)}", STYLES[outcome])
    told = rows[:ROWS]
    cells = {
        "case": [one_line(row.id)[:NAME_CHARACTERS] for row in told],
        "A": [came_to(row.a) for row in told],
        "B": [came_to(row.b) for row in told],
        "score": [scores(row) for row in told],
        "why": [why(row)[:WHY_CHARACTERS] for row in told],
    }
    hidden = set() if width >= WIDE else {"score", "A"}
    yield _table({name: column for name, column in cells.items() if any(column) and name not in hidden}, width, {"B": STYLES[outcome]})
    yield from _more(len(rows) - len(told))


def _names(outcome: Outcome, ids: Sequence[str]) -> Iterator[Text]:
    if ids:
        shown = ", ".join(one_line(name)[:NAME_CHARACTERS] for name in ids[:ROWS])
        yield Text(f"\n{len(ids):,} {word(outcome)}: ", "bold").append(shown, "default")
        yield from _more(len(ids) - ROWS)


def _quiet(rows: Sequence[CaseRow]) -> Iterator[Text]:
    """Yield what moved under verdicts that stay."""
    noise = [row for row in rows if row.noise]
    moved = [row for row in rows if row.outcome == "same" and row.score_change]
    if noise:
        told = ", ".join(f"{one_line(row.id)[:NAME_CHARACTERS]} {came_to(row.a)} -> {came_to(row.b)}" for row in noise[:3])
        more = f", and {len(noise) - 3:,} more" if len(noise) > 3 else ""  # noqa: PLR2004 - examples
        yield Text(f"\n{len(noise):,} of the same moved within noise: ", "dim").append(f"{told}{more}")
    if moved:
        down = [row for row in moved if row.score_change == "down"]
        furthest = f"; furthest down: {one_line(down[0].id)[:NAME_CHARACTERS]} {scores(down[0])}" if down else ""
        yield Text(f"\nscores under the same verdict: {len(down):,} down, {len(moved) - len(down):,} up{furthest}", "dim")


def _criteria(tallies: Sequence[CriterionTally], width: int) -> Iterator[Text | Table]:
    if not tallies:
        return
    told = tallies[:ROWS]
    yield Text("\nby criterion", "bold")
    texts = [one_line(each.name) + (f" (and {each.texts - 1} other texts)" if each.texts > 1 else "") for each in told]
    cells = {
        "criterion": [one_line(each.id)[:NAME_CHARACTERS] for each in told],
        "regressed": [f"{each.counts.get('regressed', 0):,}" for each in told],
        "improved": [f"{each.counts.get('improved', 0):,}" for each in told],
        "passed in A": [passed_of(each.a) for each in told],
        "in B": [passed_of(each.b) for each in told],
        "why": [text[:WHY_CHARACTERS] for text in texts],
    }
    hidden = set() if width >= WIDE else {"passed in A", "in B"}
    yield _table({name: column for name, column in cells.items() if name not in hidden}, width, {"regressed": "red"}, heads={"why": "text"})
    yield from _more(len(tallies) - len(told))


def _more(number: int) -> Iterator[Text]:
    if number > 0:
        yield Text(f"and {number:,} more; --json has all", "dim")


def _table(
    cells: dict[str, list[str]], width: int, styles: dict[str, str], *, shrinks: str = "case", heads: dict[str, str] | None = None
) -> Table:
    """Return columns of texts; the ids have a third of the width at most, and `why` has what is left."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    widths = {name: max(Text(each).cell_len for each in (name, *column)) for name, column in cells.items()}
    widths |= {name: min(widths[name], max(width // 3, LEAST_NAME)) for name in (shrinks, "criterion") if name in widths}
    if "why" in widths:
        others = sum(size + GAP for name, size in widths.items() if name != "why")
        widths["why"] = min(widths["why"], max(width - others, LEAST_NAME))
    for name, size in widths.items():
        justify: Literal["left", "right"] = "right" if name in _RIGHT else "left"
        table.add_column((heads or {}).get(name, name), no_wrap=True, overflow="ellipsis", justify=justify, width=size)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*(Text(text, styles.get(name, "")) for name, text in zip(cells, row, strict=True)))
    return table
