"""Many runs on one page: a table of them, what can be seen across them, and each one's own page inside."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gradeloop.reports.case_rows import CaseRow, columns, filters, matrix, row_of, with_differences
from gradeloop.reports.charts import Criteria, histogram
from gradeloop.reports.document import Live, document
from gradeloop.reports.packing import Packer
from gradeloop.reports.pages import LIVE_SCRIPTS, LIVE_STYLES, run_part
from gradeloop.reports.run_story import RunStory, Verdict

PACKED_BYTES = 11_500_000
"""Of all that is folded away: with the table of 5,000 cases, below the 20 MB that mail takes."""

TABLE_BYTES = 7_500_000
"""Of all rows of the table, their cells in the matrix included: some 5,000 cases that passed, and 4,000 that did not."""

ROW_BYTES = 700
"""Of a row without its texts."""

PASSING = 0.55
"""The part of the table that cases may have that passed; the rest is for what did not."""

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
    rows: list[CaseRow] = []
    packer, criteria = Packer(PACKED_BYTES), Criteria()
    left_out = Counter[str]()
    closed = spent = 0
    for number, entry in enumerate(entries):
        row = row_of(number, entry.story, test=entry.test, column=entry.column)
        criteria.take(entry.story.evaluations[-1].criteria if entry.story.evaluations else ())
        urgent = row.flags != {"passed"}
        size = ROW_BYTES + len(row.id) + len(row.why) + len(row.about)
        if spent + size > TABLE_BYTES * (1.0 if urgent else PASSING):
            left_out[row.word] += 1
            continue
        spent += size
        if live is None and packer.takes(urgent=urgent):
            row = replace(row, place=packer.add(run_part(entry.story, key=f"c{number}")))
        closed += live is None and row.place is None
        rows.append(row)
    packer.close()
    context = {
        "head": replace(head, notes=(*head.notes, *_notes(left_out, closed))),
        "rows": (rows := with_differences(rows)),
        "filters": filters(rows),
        "columns": columns(rows),
        "matrix": matrix(rows),
        "bars": histogram([row.score for row in rows if row.score is not None]),
        "worst": criteria.worst(WORST),
        "packs": packer.packs,
    }
    scripts, styles = (("cases.js", *LIVE_SCRIPTS), LIVE_STYLES) if live else (("cases.js",), ())
    return document("collection.html", title=f"{head.name} · gradeloop", scripts=scripts, styles=styles, live=live, **context)


def _notes(left_out: Mapping[str, int], closed: int) -> list[str]:
    more = ", ".join(f"{number:,} {word}" for word, number in left_out.items())
    told = {
        f"More are counted but not listed here: {more}.": bool(left_out),
        f"{closed:,} cannot be opened here, so that the file stays below 20 MB; shown by: gradeloop batches show BATCH CASE": closed > 0,
    }
    return [words for words, holds in told.items() if holds]
