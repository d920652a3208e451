"""What `gradeloop diff` does, apart from the terminal's flags."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gradeloop.batches.command import own_reader
from gradeloop.batches.reader import BatchReader
from gradeloop.departure import CAPPED, NO_VERDICT, SATISFIED
from gradeloop.errors import InvalidRequest
from gradeloop.reports.comparing import compared
from gradeloop.reports.comparison import Comparison
from gradeloop.reports.gate import Gate
from gradeloop.reports.named_batch import named_batch
from gradeloop.strict import clip

PAGE = ".html"


def comparison_of(a: str, b: str) -> Comparison:
    """Return how two batches compare, each by its id, as `latest~N`, or by its file.

    Raises:
        InvalidRequest: One is neither, or they have no case in common.
        StoreUnavailable: One is in the store, and that cannot be used.
    """

    @cache
    def reader() -> BatchReader:
        return own_reader()

    return compared(named_batch(a, reader), named_batch(b, reader))


def checked_page(path: Path | None) -> None:
    """Refuse an output that is no page, before anything is read.

    Raises:
        InvalidRequest: Its suffix is another one, or it has no folder.
    """
    if path is not None and path.suffix.lower() != PAGE:
        raise InvalidRequest(f"the output {clip(str(path))}: pages are HTML; name one, such as report{PAGE}")
    if path is not None and not path.absolute().parent.is_dir():
        raise InvalidRequest(f"the output {clip(str(path))}: there is no folder {clip(str(path.parent))}; make it first")


def code_of(found: Comparison, gates: Sequence[Gate]) -> int:
    """Return the exit code: 1 where a gate holds something against B, 3 where it had no case to look at."""
    if gates and found.overall is None and not any(found.hits(each) for each in gates):
        return NO_VERDICT
    return CAPPED if any(found.hits(each) for each in gates) else SATISFIED
