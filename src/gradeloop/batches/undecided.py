"""The cases that no judge decided: what an inbox shows of batches, beside the threads that wait."""

from collections.abc import Iterator, Sequence

from rich.rule import Rule
from rich.text import Text

from gradeloop.batches.answer import failure_reason
from gradeloop.batches.reader import BatchReader
from gradeloop.client.waiting import StoredQuestions
from gradeloop.contract.base import Strict
from gradeloop.reports.html import batch_path, case_path, part
from gradeloop.store.engine import Store
from gradeloop.text import headline, one_line

LOOKED_AT = 50
"""The newest batches of which the unsure cases are looked for."""

MOST_CASES = 20
"""The most cases of a batch that are named; its page has all."""

OUTPUT_CHARACTERS = 300
"""The most characters of a case's output."""


class UndecidedCase(Strict):
    """A case of which its judge is unsure."""

    id: str
    why: str
    """How the votes are divided, in one line."""
    output: str = ""
    """The beginning of the output that is judged, in one line."""


class UndecidedBatch(Strict):
    """A batch with cases that its judge does not decide."""

    batch_id: str
    name: str | None
    """The suite's name."""
    total: int
    """How many cases are unsure."""
    cases: tuple[UndecidedCase, ...]
    """The first of them, in the order of the batch."""


async def undecided_batches(reader: BatchReader) -> list[UndecidedBatch]:
    """Return the batches whose judges leave cases to people, the oldest first.

    Of the batches of a suite the newest alone counts: its cases were judged anew. A batch that still runs has not decided yet.

    Raises:
        StoreUnavailable: The store cannot be used.
    """
    newest = {summary.name or summary.batch_id: summary for summary in reversed(await reader.summaries(LOOKED_AT))}
    found = []
    for summary in sorted(newest.values(), key=lambda summary: summary.created):
        if summary.unsure and summary.status != "running":
            cases = await reader.results_of_status(summary.batch_id, "unsure", MOST_CASES)
            rows = tuple(
                UndecidedCase(id=case.id, why=failure_reason(case), output=headline(case.output or "", OUTPUT_CHARACTERS)) for case in cases
            )
            found.append(UndecidedBatch(batch_id=summary.batch_id, name=summary.name, total=summary.unsure, cases=rows))
    return found


async def waiting(store: Store, _person: str | None) -> StoredQuestions:
    """Return the cases that no judge decides, for an inbox."""
    return questions(await undecided_batches(BatchReader(store)))


def questions(found: Sequence[UndecidedBatch]) -> StoredQuestions:
    """Return batches with unsure cases as an inbox shows them."""
    paths = {"batch_path": batch_path, "case_path": case_path}
    return StoredQuestions(lambda: _lines(found), lambda: part("live_undecided.html", undecided=found, **paths) if found else "")


def _lines(undecided: Sequence[UndecidedBatch]) -> Iterator[Text | Rule]:
    if undecided:
        yield Text(f"{sum(batch.total for batch in undecided):,} unsure in batches: votes disagree, and no judge decides", "bold yellow")
    for batch in undecided:
        yield Rule(style="dim")
        yield Text(one_line(batch.name or batch.batch_id), "bold").append(f"  {one_line(batch.batch_id)}", "dim")
        for case in batch.cases:
            yield Text(f"  {one_line(case.id)}: ").append(one_line(case.why), "yellow")
            if case.output:
                yield Text(f"    {one_line(case.output)}", "dim")
        if batch.total > len(batch.cases):
            yield Text(f"  and {batch.total - len(batch.cases):,} more", "dim")
        yield Text(f"  read them: gradeloop report {batch.batch_id} --open")
