"""Figures with their intervals, as tables of a terminal."""

from collections.abc import Mapping

from rich.table import Table

from gradeloop.calibration.figures import NAMES, figure_texts
from gradeloop.cli.render.table import Column, table
from gradeloop.stats.intervals import Estimate


def figure_table(figures: Mapping[str, Estimate]) -> Table:
    """Return figures as a table with their intervals."""
    texts = {name: figure_texts(name, figure) for name, figure in figures.items() if name != "recall"}
    return table(
        [
            Column("figure", [NAMES.get(name, name) for name in texts]),
            Column("value", [value for value, _ in texts.values()], right=True),
            Column("95 % interval", [interval for _, interval in texts.values()]),
            Column("runs", [str(figures[name].of) for name in texts], right=True),
        ]
    )
