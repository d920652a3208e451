"""The table of a page: which runs it lists, and which of them open, so that the file can still be mailed."""

from collections import Counter
from dataclasses import replace

from gradeloop.reports.case_rows import CaseRow
from gradeloop.reports.packing import Packer
from gradeloop.reports.pages import run_part
from gradeloop.reports.run_story import RunStory

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

    def take(self, row: CaseRow, story: RunStory) -> None:
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
