"""Cases on their way from a suite to the store, on disk: all are looked at before the first is sent, and few are in memory."""

import tempfile
from collections.abc import Iterable, Iterator

from gradeloop.batches.case import Case

IN_MEMORY = 8 * 1024 * 1024
"""Bytes of JSON above which a file takes them."""


class Spool:
    """Cases that were all read."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - it lives as long as this
        self.total = 0
        for case in cases:
            self._file.write(case.model_dump_json().encode() + b"\n")
            self.total += 1

    def __iter__(self) -> Iterator[Case]:
        self._file.seek(0)
        for line in self._file:
            yield Case.model_validate_json(line)

    def close(self) -> None:
        """Give the memory or the file back."""
        self._file.close()

    def __del__(self) -> None:
        """Give it back where a mistake ended the command before the cases were sent."""
        self.close()
