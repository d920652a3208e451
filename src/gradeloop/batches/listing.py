"""A list of batches for a terminal."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from gradeloop.batches.case_result import BatchStatus, BatchSummary
from gradeloop.batches.ending import counts
from gradeloop.printable import money
from gradeloop.terminal_table import WIDE, Column, table

_STYLES: dict[BatchStatus, str] = {"running": "cyan", "paused": "bold yellow", "finished": "green", "stopped": "bold red"}


def batch_table(summaries: Sequence[BatchSummary], width: int) -> Table:
    """Return a row per batch, for a terminal of that width."""
    columns = [
        Column("batch", [batch.batch_id for batch in summaries], wraps=True),
        Column("suite", [batch.name or "" for batch in summaries], wraps=True, wide=True),
        Column("created", [_local_time(batch.created) for batch in summaries], wide=True),
        Column("status", [Text(batch.status, _STYLES[batch.status]) for batch in summaries]),
        Column("cases", [f"{', '.join(counts(batch)) or 'none'} of {batch.total:,}" for batch in summaries], wraps=True),
        Column("cost", [money(batch.usage.cost_usd) for batch in summaries], "dim", wide=True),
    ]
    return table([column for column in columns if width >= WIDE or not column.wide])


def _local_time(created: str) -> str:
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return created
