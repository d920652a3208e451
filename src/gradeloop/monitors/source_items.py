"""What a monitor's source yields, one thing after the other."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.text import encodable, headline
from gradeloop.transcripts.json_access import ODD_SHAPES
from gradeloop.transcripts.readers import Reading, read_run_file


class SourceItem(NamedTuple):
    """One thing that a source has: a run, what cannot be read, or only a new place."""

    cursor: str | None
    """The place behind it, from which a later tick reads on; None for no other than before."""
    run: AgentRun | None = None
    unreadable: str | None = None


def reasons(before: tuple[str, ...], items: Iterable[SourceItem]) -> tuple[str, ...]:
    """Return the first five reasons for which items cannot be read, each as a line that a store holds."""
    return (*before, *(headline(encodable(item.unreadable), 400) for item in items if item.unreadable is not None))[:5]


def read_items(path: Path, name: str) -> Iterator[SourceItem]:
    """Yield the runs of a file, and why others of it cannot be read, whatever it has."""
    reading = Reading(skip_bad=True)
    try:
        for run in read_run_file(path, reading):
            yield SourceItem(None, run)
    except ODD_SHAPES as error:
        reading.left_out.append(str(error) if isinstance(error, InvalidRequest) else f"{path} cannot be read: {error}")
    for text in reading.left_out:
        yield SourceItem(None, unreadable=text.replace(str(path), name))
