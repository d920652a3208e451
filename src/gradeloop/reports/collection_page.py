"""The page of a batch or of judgements: a table of runs, each of which opens."""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradeloop.batches.outputs import gap_of
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage
from gradeloop.reports.html import Live, document
from gradeloop.reports.model import RunReport, Verdict
from gradeloop.reports.run_page import LIVE_SCRIPTS, LIVE_STYLES, criterion_mark, run_part

GAP_CHARACTERS = 400
"""Of what a row of the table says."""

FILTERS = {
    "failed": "failures",
    "error": "errors",
    "waiting": "waiting",
    "none": "not run",
    "contested": "contested",
    "unverified": "unverified criterion",
    "person": "overridden",
    "differs": "generators disagree",
}


@dataclass(frozen=True)
class CaseRow:
    """A case in the table."""

    number: int
    """From 0, in the order of the batch."""
    id: str
    verdict: Verdict
    word: str
    score: float | None
    worst: str
    """The id of the criterion that went worst; empty where none did."""
    why: str
    """The error, or what is said against that criterion."""
    about: str
    """The case's description."""
    test: str
    """The case's id without the generator's label and the repetition: what the rows of a matrix are."""
    column: str
    """The generator's label."""
    usage: Usage
    flags: frozenset[str]
    """Which filters show it."""
    place: tuple[int, int] | None = None
    """Of what it opens: the pack, and where in it; None where it opens nothing here."""


def row_of(number: int, story: RunReport, *, test: str, column: str) -> CaseRow:
    """Return a story's row."""
    rows = story.evaluations[-1].criteria if story.evaluations else ()
    worst = _worst(rows)
    why = story.error or (
        gap_of(worst) if worst else _judged(story) if story.judged else "" if story.verdict == "passed" else _explanation(story)
    )
    return CaseRow(
        number=number,
        id=story.name,
        verdict=story.verdict,
        word=story.word,
        score=story.score,
        worst=worst.id if worst else "",
        why=why[:GAP_CHARACTERS],
        about=(story.about.get("description") or "")[:GAP_CHARACTERS],
        test=test,
        column=column,
        usage=story.usage,
        flags=frozenset(_flags(story, rows)),
    )


def with_differences(rows: Sequence[CaseRow]) -> list[CaseRow]:
    """Return the rows, those of a test marked on which the generators came to different verdicts; errors say nothing."""
    verdicts: dict[str, dict[str, set[Verdict]]] = {}
    for row in rows:
        if row.verdict in {"passed", "failed"}:
            verdicts.setdefault(row.test, {}).setdefault(row.column, set()).add(row.verdict)
    differing = {
        test for test, columns in verdicts.items() if len(columns) > 1 and len({frozenset(column) for column in columns.values()}) > 1
    }
    return [replace(row, flags=row.flags | {"differs"}) if row.test in differing else row for row in rows]


def filters(rows: Sequence[CaseRow]) -> list[tuple[str, str, int]]:
    """Return the filters that show something: their flag, their words, how many rows."""
    counts = Counter(flag for row in rows for flag in row.flags)
    return [(flag, words, counts[flag]) for flag, words in FILTERS.items() if counts[flag]]


@dataclass(frozen=True)
class GeneratorColumn:
    """What a generator came to."""

    label: str
    passed: int
    failed: int
    errors: int
    score: float | None
    """The mean of those that have one."""
    usage: Usage

    @property
    def rate(self) -> float | None:
        """The share that passed of what was judged."""
        judged = self.passed + self.failed
        return self.passed / judged if judged else None


def columns(rows: Sequence[CaseRow]) -> list[GeneratorColumn]:
    """Return the generators, in the order in which they come."""
    return [_column(label, [row for row in rows if row.column == label]) for label in dict.fromkeys(row.column for row in rows)]


@dataclass(frozen=True)
class MatrixRow:
    """A test, and what each generator came to: one row a repetition."""

    test: str
    cells: tuple[tuple[CaseRow, ...], ...]
    differs: bool


def matrix(rows: Sequence[CaseRow]) -> list[MatrixRow]:
    """Return tests by generators; nothing where no test was put to two generators."""
    labels = list(dict.fromkeys(row.column for row in rows))
    if len(labels) < 2:  # noqa: PLR2004 - a matrix has columns
        return []
    tests: dict[str, dict[str, list[CaseRow]]] = {}
    for row in rows:
        tests.setdefault(row.test, {}).setdefault(row.column, []).append(row)
    if all(len(held) == 1 for held in tests.values()):
        return []
    return [
        MatrixRow(
            test,
            tuple(tuple(held.get(label, ())) for label in labels),
            any("differs" in row.flags for each in held.values() for row in each),
        )
        for test, held in tests.items()
    ]


def _column(label: str, rows: Sequence[CaseRow]) -> GeneratorColumn:
    counts = Counter(row.verdict for row in rows)
    scores = [row.score for row in rows if row.score is not None]
    usage = sum((row.usage for row in rows), Usage())
    return GeneratorColumn(label, counts["passed"], counts["failed"], counts["error"], sum(scores) / len(scores) if scores else None, usage)


def _worst(rows: Sequence[CriterionRow]) -> CriterionRow | None:
    failing = [row for row in rows if criterion_mark(row).standing != "passed"]
    return min(failing, key=lambda row: 0.0 if row.score is None else row.score, default=None)


def _judged(story: RunReport) -> str:
    """Return what a judge with a schema of its own says, in short."""
    output = story.judged.output if story.judged else {}
    return "; ".join(f"{name}: {value}" for name, value in output.items() if isinstance(value, str | int | float | bool))


def _explanation(story: RunReport) -> str:
    return story.evaluations[-1].explanation if story.evaluations else ""


def _flags(story: RunReport, rows: Sequence[CriterionRow]) -> list[str]:
    held = {
        story.verdict: True,
        "contested": any(row.contested for row in rows),
        "unverified": any(row.unverified for row in rows),
        "person": story.overridden is not None,
    }
    return [flag for flag, holds in held.items() if holds]


BINS = 10


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram, in the drawing's own units."""

    label: str
    count: int
    x: float
    y: float
    height: float


WIDTH, HEIGHT, GAP = 30.0, 96.0, 4.0
"""Of a bar at most, and the room between two."""


def histogram(scores: Sequence[float]) -> list[Bar]:
    """Return how many scores lie in each tenth; 1 has a bar of its own, since that is what most want."""
    counts = [0] * (BINS + 1)
    for score in scores:
        counts[min(int(score * BINS + 1e-9), BINS)] += 1
    most = max(counts, default=0) or 1
    labels = [*(f"{at / BINS:.1f}" for at in range(BINS)), "1"]
    return [_bar(at, label, count, most) for at, (label, count) in enumerate(zip(labels, counts, strict=True))]


def _bar(at: int, label: str, count: int, most: int) -> Bar:
    height = max(round(HEIGHT * count / most, 1), 1.5) if count else 0.0
    return Bar(label, count, at * (WIDTH + GAP), round(HEIGHT - height, 1), height)


@dataclass(frozen=True)
class CriterionCount:
    """How a criterion went over all cases."""

    id: str
    name: str
    failed: int
    judged: int

    @property
    def share(self) -> float:
        """The part that failed of what was judged."""
        return self.failed / self.judged if self.judged else 0.0


class Criteria:
    """Counts of criteria, taken case by case."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}

    def take(self, rows: Sequence[CriterionRow]) -> None:
        """Count a case's verdicts; what has no verdict is not counted."""
        for row in rows:
            standing = criterion_mark(row).standing
            if standing != "unverified":
                held = self._counts.setdefault((row.id, row.name), [0, 0])
                held[0] += standing == "failed"
                held[1] += 1

    def worst(self, most: int) -> list[CriterionCount]:
        """Return the criteria that failed most often, the most often first; none that never failed."""
        counts = [CriterionCount(name, told, failed, judged) for (name, told), (failed, judged) in self._counts.items() if failed]
        return sorted(counts, key=lambda count: (-count.failed, -count.share, count.id))[:most]


PARTS = 20
"""In one pack: what is unpacked to show one of them."""


class Packer:
    """Packs parts as they come: each pack is a JSON list of texts, in zlib's format, as base64.

    Args:
        most: Bytes that the packs may have together, as base64.
        share: Of them that parts may use which are not urgent.
    """

    def __init__(self, most: int, share: float = 0.6) -> None:
        self._most = most
        self._share = share
        self._held: list[str] = []
        self._size = 0
        self.packs: list[str] = []

    def takes(self, *, urgent: bool) -> bool:
        """Tell whether there is room for another part."""
        return self._size < self._most * (1.0 if urgent else self._share)

    def add(self, part: str) -> tuple[int, int]:
        """Take a part, and return its place: the pack, and where in it."""
        place = (len(self.packs), len(self._held))
        self._held.append(part)
        if len(self._held) == PARTS:
            self.close()
        return place

    def close(self) -> None:
        """Pack what is held."""
        if self._held:
            text = json.dumps(self._held, ensure_ascii=False, separators=(",", ":"))
            packed = base64.b64encode(zlib.compress(text.encode(errors="replace"), 9)).decode()
            self.packs.append(packed)
            self._size += len(packed)
            self._held = []


PACKED_BYTES = 11_500_000
"""Of all that is folded away: with the table of 5,000 cases, below the 20 MB that mail takes."""

TABLE_BYTES = 7_500_000
"""Of all rows of the table, their cells in the matrix included: some 5,000 cases that passed, and 4,000 that did not."""

ROW_BYTES = 700
"""Of a row without its texts."""

PASSING = 0.55
"""The part of the table that cases may have that passed; the rest is for what did not."""


class Table:
    """Takes rows as they come; what did not pass goes before what did.

    Args:
        is_open: Whether a row opens its run inside of the page.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._packer = Packer(PACKED_BYTES)
        self._spent = 0
        self._left_out = Counter[str]()
        self._closed = 0
        self.everyone: list[CaseRow] = []
        """Every row; those that are not listed without their words."""
        self.listed: set[int] = set()
        """Numbers of the rows that the table shows."""

    def take(self, row: CaseRow, story: RunReport) -> None:
        """List a row, and pack its run, where there is room."""
        urgent = row.flags != {"passed"}
        size = ROW_BYTES + len(row.id) + len(row.why) + len(row.about)
        if self._spent + size > TABLE_BYTES * (1.0 if urgent else PASSING):
            self._left_out[row.word] += 1
            self.everyone.append(replace(row, why="", about=""))
            return
        self._spent += size
        self.listed.add(row.number)
        if self._is_open and self._packer.takes(urgent=urgent):
            row = replace(row, place=self._packer.add(run_part(story, key=f"c{row.number}")))
        self._closed += self._is_open and row.place is None
        self.everyone.append(row)

    def packed(self) -> list[str]:
        """Return the packs."""
        self._packer.close()
        return self._packer.packs

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not listed, or does not open, in words."""
        more = ", ".join(f"{number:,} {word}" for word, number in self._left_out.items())
        told = {
            f"Counted but not listed here: {more}.": bool(self._left_out),
            f"{self._closed:,} cannot be opened here, so that the file stays below 20 MB; see: gradeloop batches show BATCH CASE": (
                self._closed > 0
            ),
        }
        return tuple(words for words, holds in told.items() if holds)


WORST = 10
"""Criteria that are shown as the worst."""


@dataclass(frozen=True)
class Entry:
    """A run of a collection."""

    story: RunReport
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
