"""Unsure cases of batches, as an inbox shows them beside the threads that wait."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.rule import Rule
from rich.text import Text

from gradeloop.batches.answer import failure_reason
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.trends import group_by_suite
from gradeloop.client.waiting import StoredQuestions
from gradeloop.reports.html import batch_path, case_path, part
from gradeloop.store.engine import Store
from gradeloop.text import counted, headline, one_line

LOOKED_AT = 50
"""Newest batches whose unsure cases are listed."""

MOST_CASES = 20
"""The most cases of a batch that are named; its page has all."""

OUTPUT_CHARACTERS = 300
"""The most characters of a case's output."""


@dataclass(frozen=True)
class UnsureBatch:
    """A batch with cases that its judge does not decide."""

    summary: BatchSummary
    cases: Sequence[CaseResult]
    """The first of them, in the order of the batch."""


async def unsure_batches(reader: BatchReader) -> list[UnsureBatch]:
    """Return the batches whose judges leave cases to people, the oldest first.

    Only the newest batch of a suite counts, and no batch that still runs.

    Raises:
        StoreUnavailable: The store cannot be used.
    """
    newest = [suite[0] for suite in group_by_suite(await reader.summaries(LOOKED_AT))]
    unsure = [summary for summary in reversed(newest) if summary.unsure and summary.status != "running"]
    cases = await reader.first_results([summary.batch_id for summary in unsure], ["unsure"], MOST_CASES) if unsure else {}
    return [UnsureBatch(summary, cases.get(summary.batch_id, ())) for summary in unsure]


async def waiting(store: Store, _person: str | None) -> StoredQuestions:
    """Return the cases that no judge decides, for an inbox."""
    return questions(await unsure_batches(BatchReader(store)))


def questions(found: Sequence[UnsureBatch]) -> StoredQuestions:
    """Return batches with unsure cases as an inbox shows them."""
    values = {"why": failure_reason, "output": _output, "batch_path": batch_path, "case_path": case_path}
    what = counted(sum(batch.summary.unsure for batch in found), "unsure case") if found else ""
    return StoredQuestions(lambda: _lines(found), lambda: part("live_unsure.html", unsure=found, **values) if found else "", what)


def _output(case: CaseResult) -> str:
    return headline(case.output or "", OUTPUT_CHARACTERS)


def _lines(unsure: Sequence[UnsureBatch]) -> Iterator[Text | Rule]:
    if unsure:
        total = sum(batch.summary.unsure for batch in unsure)
        yield Text(f"{total:,} unsure in batches: votes disagree, and no judge decides", "bold yellow")
    for batch in unsure:
        yield Rule(style="dim")
        name, total = batch.summary.batch_id, batch.summary.unsure
        yield Text(one_line(batch.summary.name or name), "bold").append(f"  {one_line(name)}", "dim")
        for case in batch.cases:
            yield Text(f"  {one_line(case.id)}: ").append(one_line(failure_reason(case)), "yellow")
            if output := _output(case):
                yield Text(f"    {one_line(output)}", "dim")
        if total > len(batch.cases):
            yield Text(f"  and {total - len(batch.cases):,} more", "dim")
        yield Text(f"  read them: gradeloop report {name} --open")
