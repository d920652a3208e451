"""Quotes looked up in the conversation, with white space folded."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from gradeloop.contract.evaluation import Malformed, Quote, Verdict, VerdictRow
from gradeloop.contract.messages import Message
from gradeloop.grading.prompts import escape_invisible, records

FUZZY_CHARACTERS = 40
"""The length from which on a quote may differ a little: shorter ones resemble too much."""


LONGEST_FUZZY = 2_000
"""The length up to which a quote may differ: a longer one must match exactly, which is fast."""


SIMILARITY = 95.0
"""The least similarity of a long quote to a passage, in per cent, by rapidfuzz's `partial_ratio`."""


_DIGITS = re.compile(r"\d+")


def verify_quotes(reading: Verdict | Malformed, messages: Sequence[Message]) -> Verdict | Malformed:
    """Return the answer as it was read, with every quote of its rows marked as found or not in the record that it names."""
    texts = [fold(str(record["text"])) for record in records(messages)]
    if isinstance(reading, Verdict):
        return reading.model_copy(update={"criteria": tuple(_verified(row, texts) for row in reading.criteria)})
    return reading.model_copy(update={"rows": tuple(_verified(row, texts) for row in reading.rows)})


def _verified(row: VerdictRow, texts: Sequence[str]) -> VerdictRow:
    if row.quotes is None:
        return row
    quotes = tuple(quote.model_copy(update={"quote_verified": _is_found(quote, texts)}) for quote in row.quotes)
    return row.model_copy(update={"quotes": quotes})


def _is_found(quote: Quote, texts: Sequence[str]) -> bool:
    if not 0 <= quote.record < len(texts):
        return False
    wanted, text = fold(quote.quote), texts[quote.record]
    if not wanted:
        return False
    return wanted in text or wanted in escape_invisible(text) or _resembles(wanted, text)


def _resembles(wanted: str, text: str) -> bool:
    """Tell whether the text has a long quote with small differences and the same numbers."""
    span = nearest_passage(wanted, text)
    return span is not None and _DIGITS.findall(wanted) == _DIGITS.findall(_widened(text, *span))


def nearest_passage(wanted: str, text: str) -> tuple[int, int] | None:
    """Return start and end of the passage that a long quote resembles; both texts have white space folded."""
    if not FUZZY_CHARACTERS <= len(wanted) <= LONGEST_FUZZY:
        return None
    from rapidfuzz import fuzz

    alignment = fuzz.partial_ratio_alignment(wanted, text, score_cutoff=SIMILARITY)
    return None if alignment is None or alignment.score < SIMILARITY else (alignment.dest_start, alignment.dest_end)


def _widened(text: str, start: int, stop: int) -> str:
    """Return the passage, extended over the digits of numbers at its ends."""
    while start > 0 and text[start].isdigit() and text[start - 1].isdigit():
        start -= 1
    while stop < len(text) and text[stop - 1].isdigit() and text[stop].isdigit():
        stop += 1
    return text[start:stop]


class FoldedText:
    """A folded text that maps positions back to the original text."""

    def __init__(self, text: str) -> None:
        tokens = list(re.finditer(r"\S+", text))
        self.text = " ".join(token.group() for token in tokens)
        self._starts = [token.start() for token in tokens]
        self._folded_starts = list(accumulate((len(token.group()) + 1 for token in tokens), initial=0))

    def span(self, wanted: str) -> tuple[int, int] | None:
        """Return start and end of a quote in the original text; None where it is not found."""
        needle = fold(wanted)
        at = self.text.find(needle) if needle else -1
        return None if at < 0 else self.unfolded(at, at + len(needle))

    def unfolded(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end in the original text of a span of the folded text, which has no blank at either end."""
        return self._position(start), self._position(end - 1) + 1

    def _position(self, offset: int) -> int:
        token = bisect_right(self._folded_starts, offset) - 1
        return self._starts[token] + offset - self._folded_starts[token]


def fold(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())
