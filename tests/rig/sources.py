"""Sources of monitors, read as ticks read them."""

from collections.abc import Iterator, Mapping
from typing import Any

from gradeloop.monitors.contract import SOURCES, Source
from gradeloop.monitors.files import SourceItem
from gradeloop.monitors.sources import SourceAccess
from gradeloop.store.engine import Store


def read_source(
    source: Source, cursor: str | None, environment: Mapping[str, str] | None = None, *, until: str | None = None
) -> Iterator[SourceItem]:
    """Yield what a source has behind a cursor."""
    store = Store("sqlite://")  # which none of these reads
    access = SourceAccess(store) if environment is None else SourceAccess(store, environment=environment)
    found: Any = SOURCES.find(source.kind).read(source, cursor, access, until)
    return iter(found)


def place_since(source: Source, since: str, cursor: str) -> str:
    """Return the place from which a source is read since what a person wrote."""
    return SOURCES.find(source.kind).since(source, since, cursor)
