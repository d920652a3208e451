"""Texts with every run of white space as one blank, and the way back to the text as it stands."""

import re
from bisect import bisect_right
from itertools import accumulate


def folded(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())


class Folded:
    """A folded text that remembers where its characters stood."""

    def __init__(self, text: str) -> None:
        words = [(word.start(), word.group()) for word in re.finditer(r"\S+", text)]
        self.text = " ".join(word for _, word in words)
        self._starts = [start for start, _ in words]
        self._begun = list(accumulate((len(word) + 1 for _, word in words), initial=0))

    def span(self, wanted: str) -> tuple[int, int] | None:
        """Return where a quote stands, in characters of the text as it is; None where it does not."""
        needle = folded(wanted)
        at = self.text.find(needle) if needle else -1
        return None if at < 0 else self.unfolded(at, at + len(needle))

    def unfolded(self, start: int, end: int) -> tuple[int, int]:
        """Return where a stretch of the folded text stands in the text as it is; at neither end may there be a blank."""
        return self._place(start), self._place(end - 1) + 1

    def _place(self, offset: int) -> int:
        word = bisect_right(self._begun, offset) - 1
        return self._starts[word] + offset - self._begun[word]
