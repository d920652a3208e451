"""A batch as a page: its cases from the store, and the threads of those that had one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gradeloop.batches.case import Case
from gradeloop.batches.case_result import BatchStatus, BatchSummary, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.client import GradingClient
from gradeloop.errors import GradeloopError
from gradeloop.printable import counted, money, percent
from gradeloop.reports.case_stories import case_story, thread_of, with_thread
from gradeloop.reports.collection import Entry, Head, Tile, collection_page
from gradeloop.reports.document import Live
from gradeloop.reports.run_story import RunStory, Verdict
from gradeloop.reports.thread_story import thread_story

THREADS = 1_000
"""Whose whole story is read; those that did not pass first."""

AT_ONCE = 8
"""Threads that are read at the same time."""

STATUSES: dict[BatchStatus, Verdict] = {"running": "running", "paused": "waiting", "finished": "none", "stopped": "error"}


@dataclass(frozen=True)
class BatchReport:
    """All that a batch's page is made of."""

    head: Head
    cases: Iterable[tuple[Case | None, CaseResult]]
    """In their order; read when the page is made."""
    threads: dict[str, RunStory] = field(default_factory=dict)
    """By their ids."""
    repeated: bool = False
    """True where cases are repeated."""


Opened = Callable[[str], Awaitable[GradingClient]]
"""Connects to where the threads of a batch are, and sees to it that a worker answers for them."""


async def batch_report(reader: BatchReader, name: str, opened: Opened | None = None) -> BatchReport:
    """Return the report of a batch of the store.

    Args:
        reader: Of the store.
        name: The batch's id, or `latest`.
        opened: Asked where a case has a thread; without it, or where it fails, the last drafts of such cases alone are told.

    Raises:
        InvalidRequest: There is no such batch.
    """
    summary = await reader.summary(name)
    wanted, repeated = await asyncio.to_thread(_threads, reader, summary.batch_id)
    found, notes = await read_threads(opened, summary.batch_id, wanted) if opened and wanted else ({}, [])
    return BatchReport(head_of(summary, notes), _Told(reader, summary.batch_id), found, repeated)


def batch_page(report: BatchReport, *, live: Live | None = None) -> str:
    """Return the page of a batch: one HTML document that needs nothing else."""
    return collection_page(report.head, entries(report), live=live)


def entries(report: BatchReport) -> Iterator[Entry]:
    """Yield the cases as runs, each with its place among tests and generators."""
    for case, result in report.cases:
        story = case_story(result, case)
        thread = report.threads.get(thread_of(result, report.head.batch_id) or "")
        label = result.label or ""
        yield Entry(with_thread(result, thread) if thread else story, _test(result, case, repeated=report.repeated), label)


def head_of(summary: BatchSummary, notes: Sequence[str] = ()) -> Head:
    """Return what a batch comes to."""
    judged = summary.passed + summary.failed
    rate = percent(summary.passed / judged) if judged else ""
    tiles: list[tuple[str, str, Verdict | None, bool]] = [
        ("passed", f"{summary.passed:,}", "passed", True),
        ("failed", f"{summary.failed:,}", "failed", True),
        ("errors", f"{summary.errors:,}", "error" if summary.errors else None, True),
        ("waiting", f"{summary.waiting:,}", None, bool(summary.waiting)),
        ("not run", f"{summary.open:,}", None, bool(summary.open)),
        (f"of {judged:,} judged, {percent(summary.pass_rate)} wanted", rate, None, bool(judged)),
        ("cached", f"{summary.cached:,}", None, bool(summary.cached)),
        ("tokens", f"{summary.usage.tokens:,}", None, bool(summary.usage.tokens)),
        ("cost", money(summary.usage.cost_usd), None, bool(summary.usage.cost_usd)),
    ]
    about = {"batch": summary.batch_id} | ({"started": summary.created} if summary.created else {})
    return Head(
        name=summary.name or summary.batch_id,
        word=summary.status + (f": {summary.reason}" if summary.reason else ""),
        verdict=STATUSES[summary.status],
        noun="case",
        tiles=tuple(Tile(label, value, kind) for label, value, kind, there in tiles if there),
        about=about,
        notes=tuple(notes),
        batch_id=summary.batch_id,
        running=summary.status == "running",
    )


async def read_threads(opened: Opened, batch_id: str, wanted: Sequence[str]) -> tuple[dict[str, RunStory], list[str]]:
    """Return the stories of a batch's threads by their ids, and in words which could not be read."""
    try:
        client = await opened(batch_id)
    except GradeloopError as error:
        return {}, [_missing(len(wanted), str(error))]
    found: dict[str, RunStory] = {}
    lost: dict[str, str] = {}
    free = asyncio.Semaphore(AT_ONCE)

    async def read(thread_id: str) -> None:
        async with free:
            if len(lost) < AT_ONCE or found:  # where none can be read, the others are not tried
                try:
                    found[thread_id] = await thread_story(client, thread_id)
                except GradeloopError as error:
                    lost[thread_id] = str(error)

    await asyncio.gather(*(read(each) for each in wanted[:THREADS]))
    missing = len(wanted) - len(found)
    why = next(iter(lost.values()), f"a report reads at most {THREADS:,} threads")
    return found, [_missing(missing, why)] if missing else []


def _missing(number: int, why: str) -> str:
    return f"Only the result is shown of {counted(number, 'case')} with a thread: {why}"


class _Told:
    """The cases of a batch, read anew each time they are gone through."""

    def __init__(self, reader: BatchReader, batch_id: str) -> None:
        self._reader = reader
        self._batch_id = batch_id

    def __iter__(self) -> Iterator[tuple[Case | None, CaseResult]]:
        return iter(self._reader.told(self._batch_id))


def _threads(reader: BatchReader, batch_id: str) -> tuple[list[str], bool]:
    """Return the threads of a batch's cases, those that did not pass first, and whether cases are repeated."""
    found: list[tuple[bool, str]] = []
    repeated = False
    for case, result in reader.told(batch_id):
        repeated |= case.repeat > 0
        if (name := thread_of(result, batch_id)) is not None:
            found.append((result.status == "passed", name))
    return [name for _, name in sorted(found, key=lambda pair: pair[0])], repeated


def _test(result: CaseResult, case: Case | None, *, repeated: bool) -> str:
    """Return a case's id without what tells its repetition and its generator apart."""
    repeat = case.repeat if case else result.repeat
    base = result.id.removesuffix(f"/{repeat + 1}") if repeated else result.id
    return base.removesuffix(f"/{result.label}") if result.label else base
