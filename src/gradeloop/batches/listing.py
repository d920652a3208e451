"""Batches at a glance: a row a batch."""

from collections.abc import Iterable
from datetime import datetime

from rich.table import Table
from rich.text import Text

from gradeloop.batches.case_result import BatchStatus, BatchSummary
from gradeloop.batches.ending import counts
from gradeloop.batches.table import WIDE
from gradeloop.printable import one_line

_STYLES: dict[BatchStatus, str] = {"running": "cyan", "paused": "bold yellow", "finished": "green", "stopped": "bold red"}


def batch_table(summaries: Iterable[BatchSummary], width: int) -> Table:
    """Return a row a batch, for a terminal of that width: id, suite, when it was made, how it stands, what its cases came to, its cost."""
    shown = ("batch", "suite", "created", "status", "cases", "cost") if width >= WIDE else ("batch", "status", "cases")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in shown:
        table.add_column(heading, no_wrap=heading in {"created", "status", "cost"}, overflow="fold")
    for each in summaries:
        cells = _cells(each)
        table.add_row(*(cells[heading] for heading in shown))
    return table


def _cells(summary: BatchSummary) -> dict[str, Text]:
    return {
        "batch": Text(one_line(summary.batch_id)),
        "suite": Text(one_line(summary.name or "")),
        "created": Text(_when(summary.created)),
        "status": Text(summary.status, _STYLES[summary.status]),
        "cases": Text(f"{', '.join(counts(summary)) or 'none'} of {summary.total:,}"),
        "cost": Text(f"${summary.usage.cost_usd:.4f}" if summary.usage.cost_usd else "", "dim"),
    }


def _when(created: str) -> str:
    """Return a time as it is here."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return one_line(created)
