"""`gradeloop diff`: compare two batches, and return the exit code."""

from collections.abc import Sequence
from functools import cache

from gradeloop.batches.reader import BatchReader
from gradeloop.comparisons.comparing import compared
from gradeloop.comparisons.comparison import Comparison
from gradeloop.comparisons.gate import Gate
from gradeloop.comparisons.named_batch import named_batch
from gradeloop.departure import CAPPED, NO_VERDICT, SATISFIED
from gradeloop.store import own_store


def comparison_of(a: str, b: str) -> Comparison:
    """Compare two batches, named by id, as `latest~N`, or by file.

    Raises:
        InvalidRequest: One is neither, or they have no case in common.
        StoreUnavailable: One is in the store, and that cannot be used.
    """

    @cache
    def reader() -> BatchReader:
        return BatchReader(own_store())

    return compared(named_batch(a, reader), named_batch(b, reader))


def code_of(found: Comparison, gates: Sequence[Gate]) -> int:
    """Return the exit code: 1 if a gate fails, 3 if it had no case to look at."""
    if gates and found.overall is None and not any(found.hits(each) for each in gates):
        return NO_VERDICT
    return CAPPED if any(found.hits(each) for each in gates) else SATISFIED
