"""Tables and lines of every command, and how they are printed."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.exit_codes import BROKEN_PIPE, leave
from gradeloop.text import counted, json_without_commands, money, one_line

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}

WIDE = 72
"""The least width of a terminal that shows the columns marked `wide`."""

GAP = 2
"""Blank characters between two columns."""

PIPED = 10_000
"""The width of a pipe or file: another program reads an id or a command whole."""

LEAST_WIDTH, MOST_NAME = 8, 60
"""The bounds of a column that shares the width: wide enough to distinguish ids, and never wider than an id needs."""

WHY_CHARACTERS = 300
"""The most characters of an explanation in a cell."""

ID_WIDTH = 24
"""The most characters to which ids are padded so that they line up."""


def line_width() -> int:
    """Return the width of the terminal that stdout is; `PIPED` where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED


class Line(NamedTuple):
    """A line in two parts: a long body wraps and continues below its own first character."""

    head: Text
    body: Text


class Column(NamedTuple):
    """A column of a table; a cell of plain text is made printable and fits on one line."""

    heading: str
    cells: Sequence[Text | str]
    style: str = ""
    right: bool = False
    wraps: bool = False
    """True if long cells wrap in a table without a given width."""
    share: int = 0
    """The column gets at most one `share`th of the width; 0 for no limit."""
    fills: bool = False
    """True for the column that gets the width that the others leave."""
    wide: bool = False
    """True if a narrow terminal leaves the column out."""


def table(columns: Iterable[Column], width: int | None = None) -> Table:
    """Return a table without empty columns, whose rows each fit on one line of that width; or, without a width, one whose cells wrap."""
    room = WIDE if width is None else width
    shown = [column for column in columns if (any(column.cells) or not column.cells) and (room >= WIDE or not column.wide)]
    cells = [[cell if isinstance(cell, Text) else Text(one_line(cell), column.style) for cell in column.cells] for column in shown]
    widths = [None] * len(shown) if width is None else _widths(shown, cells, width)
    while width is not None and sum(size or 0 for size in widths) + GAP * (len(shown) - 1) > width and any(one.wide for one in shown):
        at = max(at for at, column in enumerate(shown) if column.wide)  # else all are cut until none can be read
        del shown[at], cells[at]
        widths = _widths(shown, cells, width)
    result = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for column, size in zip(shown, widths, strict=True):
        overflow = {"no_wrap": not column.wraps, "overflow": "fold"} if width is None else {"no_wrap": True, "overflow": "ellipsis"}
        result.add_column(Text(column.heading), justify="right" if column.right else "left", width=size, **overflow)  # type: ignore[arg-type]
    for row in zip(*cells, strict=True):
        result.add_row(*row)
    return result


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int) -> list[int | None]:
    """Return the width of each column: of its longest cell, within its share; the column that fills the row gets the rest."""
    sizes = [max(len(column.heading), *(cell.cell_len for cell in texts)) for column, texts in zip(columns, cells, strict=True)]
    for at, column in enumerate(columns):
        if column.share and width < PIPED:
            sizes[at] = min(sizes[at], max(width // column.share, LEAST_WIDTH), MOST_NAME)
    for at, column in enumerate(columns):
        if column.fills:
            others = sum(sizes) - sizes[at] + GAP * (len(sizes) - 1)
            sizes[at] = min(sizes[at], max(width - others, LEAST_WIDTH))
    return [*sizes]


def id_width(ids: Iterable[str]) -> int:
    """Return the width at which ids line up."""
    return min(max((len(name) for name in ids), default=0), ID_WIDTH)


def mark(row: CriterionRow | None) -> tuple[str, str]:
    """Return the mark of a criterion's verdict and its style; without a row, the mark of a criterion that is not graded yet."""
    return ("·", "dim") if row is None else MARKS[None if row.unverified else row.passed]


def criterion_line(row: CriterionRow, width: int = 0) -> Line:
    """Return a criterion's verdict as a line, its id padded to the width."""
    sign, style = mark(row)
    beside = [f"score {row.score:g}"] if row.score is not None else []
    beside += [row.votes_text] if row.votes else []
    beside += ["cached"] if row.by == "cached" else []
    beside += [f"by {one_line(row.grader or '')} instead of {one_line(row.instead_of)}"] if row.instead_of else []
    beside += [f"{one_line(vote.grader)} voted instead of {one_line(vote.instead_of)}" for vote in row.votes if vote.instead_of]
    beside += [f"overridden by {one_line(row.override.by)}"] if row.override is not None else []
    body = Text(one_line(row.name)).append("".join(f"  ({fact})" for fact in beside), "dim")
    return Line(Text(f"{sign} {row.id:{width}}  ", style), body.append(f": {one_line(row.gap)}", style) if row.gap else body)


def usage_line(usage: Usage, grader: str | None = None) -> str:
    """Return how many calls were made, their tokens, and their cost where it is known."""
    by = f" of {one_line(grader)}" if grader else ""
    cost = f", {money(usage.cost_usd)}" if usage.cost_usd else ""
    tokens = "tokens not reported" if usage.tokens is None else f"{usage.input:,} tokens in, {usage.output:,} out"
    return f"{counted(usage.calls, 'model call')}{by}, {tokens}{cost}"


def show_lines(value: object, lines: Any, *, as_json: bool) -> None:  # noqa: ANN401 - whatever rich can print
    """Print a value as JSON, or as lines, which wrap only on a terminal."""
    if as_json:
        typer.echo(json_without_commands(json.dumps(value, ensure_ascii=False, default=str)))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    given = console.width
    for line in lines:
        console.width = line_width() if isinstance(line, str | Table) else given  # a rule would fill it
        console.print(line, soft_wrap=isinstance(line, Text))


class Terminal(Console):
    """A console that ends the program when the output pipe is closed."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Leave with the exit code of a closed output pipe."""
        leave(BROKEN_PIPE)
