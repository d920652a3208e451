"""A comparison for a terminal: one line that sums it up, the cases that changed, and the criteria behind the changes."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from gradeloop.comparisons.comparison import CaseRow, Comparison, CriterionTally, Outcome
from gradeloop.comparisons.comparison_wording import beside, counts_line, overall_lines, passed_of, result_of, scores, why, word
from gradeloop.printable import one_line
from gradeloop.terminal_table import MOST_NAME, WHY_CHARACTERS, Column, table

ROWS = 20
"""The most rows of a table on a terminal; `--json` and the page have all."""

STYLES: dict[Outcome, str] = {"regressed": "bold red", "lost": "bold yellow", "improved": "green", "gained": "cyan"}

_IN_TABLES: tuple[Outcome, ...] = ("regressed", "lost", "improved", "gained")
_IN_LISTS: tuple[Outcome, ...] = ("removed", "added")
_ALWAYS = {"batch", "pass rate", "cost"}
"""Facts about a batch that a narrow terminal shows too."""

_EXAMPLES = 3
"""Cases that are named where only their number matters."""


def comparison_lines(found: Comparison, width: int) -> Iterator[Text | Table]:
    """Yield the comparison, for a terminal of that width."""
    yield Text(counts_line(found.counts, len(found.cases)), "bold red" if found.counts.get("regressed") else "bold")
    yield from (Text(line) for line in overall_lines(found))
    yield from (Text(f"note: {one_line(note)}", "yellow") for note in found.notes)
    yield _both(found, width)
    for outcome in _IN_TABLES:
        yield from _cases(outcome, [row for row in found.cases if row.outcome == outcome], width)
    for outcome in _IN_LISTS:
        yield from _names(outcome, [row.id for row in found.cases if row.outcome == outcome])
    yield from _same_verdict(found.cases)
    yield from _criteria([tally for tally in found.criteria if tally.counts.keys() - {"same", "unjudged"}], width)


def _both(found: Comparison, width: int) -> Table:
    """Return a table with a row per batch."""
    a, b = beside(found.a), beside(found.b)
    facts = (Column(name, [a[name], b[name]], share=3 if name == "batch" else 0, wide=name not in _ALWAYS) for name in a)
    return table([Column("", ["A", "B"], "bold"), *facts], width)


def _cases(outcome: Outcome, rows: Sequence[CaseRow], width: int) -> Iterator[Text | Table]:
    if not rows:
        return
    yield Text(f"\n{len(rows):,} {word(outcome)}", STYLES[outcome])
    shown = rows[:ROWS]
    columns = [
        Column("case", [row.id for row in shown], share=3),
        Column("A", [result_of(row.a) for row in shown], wide=True),
        Column("B", [result_of(row.b) for row in shown], STYLES[outcome]),
        Column("score", [scores(row) for row in shown], wide=True),
        Column("why", [why(row)[:WHY_CHARACTERS] for row in shown], fills=True),
    ]
    yield table(columns, width)
    yield from _more(len(rows) - len(shown))


def _names(outcome: Outcome, ids: Sequence[str]) -> Iterator[Text]:
    if ids:
        shown = ", ".join(one_line(name)[:MOST_NAME] for name in ids[:ROWS])
        yield Text(f"\n{len(ids):,} {word(outcome)}: ", "bold").append(shown, "default")
        yield from _more(len(ids) - ROWS)


def _same_verdict(rows: Sequence[CaseRow]) -> Iterator[Text]:
    """Yield how the cases changed that have the same verdict in both batches."""
    noise = [row for row in rows if row.noise]
    moved = [row for row in rows if row.outcome == "same" and row.score_change]
    if noise:
        examples = ", ".join(f"{one_line(row.id)[:MOST_NAME]} {result_of(row.a)} -> {result_of(row.b)}" for row in noise[:_EXAMPLES])
        more = f", and {len(noise) - _EXAMPLES:,} more" if len(noise) > _EXAMPLES else ""
        yield Text(f"\n{len(noise):,} changed within noise: ", "dim").append(f"{examples}{more}")
    if moved:
        down = [row for row in moved if row.score_change == "down"]
        largest = f"; largest drop: {one_line(down[0].id)[:MOST_NAME]} {scores(down[0])}" if down else ""
        yield Text(f"\nscores under the same verdict: {len(down):,} down, {len(moved) - len(down):,} up{largest}", "dim")


def _criteria(tallies: Sequence[CriterionTally], width: int) -> Iterator[Text | Table]:
    if not tallies:
        return
    shown = tallies[:ROWS]
    yield Text("\nby criterion", "bold")
    texts = [one_line(tally.name) + (f" (and {tally.texts - 1} other texts)" if tally.texts > 1 else "") for tally in shown]
    columns = [
        Column("criterion", [tally.id for tally in shown], share=3),
        Column("regressed", [f"{tally.counts.get('regressed', 0):,}" for tally in shown], "red", right=True),
        Column("improved", [f"{tally.counts.get('improved', 0):,}" for tally in shown], right=True),
        Column("passed in A", [passed_of(tally.a) for tally in shown], right=True, wide=True),
        Column("in B", [passed_of(tally.b) for tally in shown], right=True, wide=True),
        Column("text", [text[:WHY_CHARACTERS] for text in texts], fills=True),
    ]
    yield table(columns, width)
    yield from _more(len(tallies) - len(shown))


def _more(number: int) -> Iterator[Text]:
    if number > 0:
        yield Text(f"and {number:,} more; --json lists them all", "dim")
