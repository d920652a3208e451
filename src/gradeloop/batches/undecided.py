"""The cases that no judge decided: what an inbox shows of batches, beside the threads that wait."""

from gradeloop.batches.answer import failure_reason
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import Strict
from gradeloop.text import headline

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
