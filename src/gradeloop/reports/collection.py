"""Many runs on one page: a table of them, what can be seen across them, and each one's own page inside."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gradeloop.reports.case_rows import columns, filters, matrix, row_of, with_differences
from gradeloop.reports.charts import Criteria, histogram
from gradeloop.reports.document import Live, document
from gradeloop.reports.pages import LIVE_SCRIPTS, LIVE_STYLES
from gradeloop.reports.run_story import RunStory, Verdict
from gradeloop.reports.table import Table

WORST = 10
"""Criteria that are shown as the worst."""


@dataclass(frozen=True)
class Entry:
    """A run of a collection."""

    story: RunStory
    test: str
    """What it has in common with the runs of other generators."""
    column: str = ""
    """The generator's label."""


@dataclass(frozen=True)
class Tile:
    """A number at the head of the page."""

    label: str
    value: str
    kind: Verdict | None = None


@dataclass(frozen=True)
class Head:
    """What a collection is called and comes to."""

    name: str
    word: str
    """Its status; empty where it has none."""
    verdict: Verdict
    noun: str
    """What it is a collection of: `case`, `judgement`."""
    tiles: tuple[Tile, ...]
    about: dict[str, str]
    notes: tuple[str, ...] = ()
    batch_id: str | None = None
    """Of a batch on a live page."""
    running: bool = False


def collection_page(head: Head, entries: Iterable[Entry], *, live: Live | None = None) -> str:
    """Return the page of many runs; on a live one, each run has a page of its own instead of being inside."""
    table, criteria = Table(is_open=live is None), Criteria()
    for number, entry in enumerate(entries):
        table.take(row_of(number, entry.story, test=entry.test, column=entry.column), entry.story)
        criteria.take(entry.story.evaluations[-1].criteria if entry.story.evaluations else ())
    everyone = with_differences(table.everyone)
    rows = [row for row in everyone if row.number in table.listed]
    context = {
        "head": replace(head, notes=(*head.notes, *table.notes)),
        "rows": rows,
        "filters": filters(rows),
        "columns": columns(everyone),
        "matrix": matrix(rows),
        "bars": histogram([row.score for row in everyone if row.score is not None]),
        "worst": criteria.worst(WORST),
        "packs": table.packed(),
    }
    scripts, styles = (("cases.js", *LIVE_SCRIPTS), LIVE_STYLES) if live else (("cases.js",), ())
    return document("collection.html", title=f"{head.name} · gradeloop", scripts=scripts, styles=styles, live=live, **context)
