"""Quotes looked up in the conversation, with white space and typography folded."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from gradeloop.contract.evaluation import Quote, Verdict
from gradeloop.contract.messages import Message
from gradeloop.grading.prompts import escape_invisible, records


def fold(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())


class FoldedText:
    """A folded text that remembers where its characters stood."""

    def __init__(self, text: str) -> None:
        words = [(word.start(), word.group()) for word in re.finditer(r"\S+", text)]
        self.text = " ".join(word for _, word in words)
        self._starts = [start for start, _ in words]
        self._begun = list(accumulate((len(word) + 1 for _, word in words), initial=0))

    def span(self, wanted: str) -> tuple[int, int] | None:
        """Return where a quote stands, in characters of the text as it is; None where it does not."""
        needle = fold(wanted)
        at = self.text.find(needle) if needle else -1
        return None if at < 0 else self.unfolded(at, at + len(needle))

    def unfolded(self, start: int, end: int) -> tuple[int, int]:
        """Return where a stretch of the folded text stands in the text as it is; at neither end may there be a blank."""
        return self._place(start), self._place(end - 1) + 1

    def _place(self, offset: int) -> int:
        word = bisect_right(self._begun, offset) - 1
        return self._starts[word] + offset - self._begun[word]


FUZZY_CHARACTERS = 40
"""From this length on a quote may differ a little: shorter ones come close to too much."""

LONGEST_FUZZY = 2_000
"""Up to this length: a longer one is compared word for word, so that looking it up takes no time."""

SIMILARITY = 95.0
"""Of a long quote to a passage, in per cent, by rapidfuzz's `partial_ratio`."""

_DIGITS = re.compile(r"\d+")


def verify_quotes(verdict: Verdict, messages: Sequence[Message]) -> Verdict:
    """Return the verdict with each quote marked as found in the record that it names, or not."""
    texts = [fold(str(record["text"])) for record in records(messages)]
    rows = []
    for row in verdict.criteria:
        quotes = [quote.model_copy(update={"quote_verified": _stands(quote, texts)}) for quote in row.quotes or ()]
        rows.append(row.model_copy(update={"quotes": tuple(quotes)}) if row.quotes is not None else row)
    return verdict.model_copy(update={"criteria": tuple(rows)})


def _stands(quote: Quote, texts: Sequence[str]) -> bool:
    if not 0 <= quote.record < len(texts):
        return False
    wanted, text = fold(quote.quote), texts[quote.record]
    if not wanted:
        return False
    return wanted in text or wanted in escape_invisible(text) or _nearly(wanted, text)


def _nearly(wanted: str, text: str) -> bool:
    """True where a long quote stands there with small differences, and with the same numbers."""
    span = nearest_passage(wanted, text)
    return span is not None and _DIGITS.findall(wanted) == _DIGITS.findall(_widened(text, *span))


def nearest_passage(wanted: str, text: str) -> tuple[int, int] | None:
    """Return where the passage stands that a long quote is close to; both with white space folded."""
    if not FUZZY_CHARACTERS <= len(wanted) <= LONGEST_FUZZY:
        return None
    from rapidfuzz import fuzz

    place = fuzz.partial_ratio_alignment(wanted, text, score_cutoff=SIMILARITY)
    return None if place is None or place.score < SIMILARITY else (place.dest_start, place.dest_end)


def _widened(text: str, start: int, stop: int) -> str:
    """Return a passage with the numbers whole that its ends cut through."""
    while start > 0 and text[start].isdigit() and text[start - 1].isdigit():
        start -= 1
    while stop < len(text) and text[stop - 1].isdigit() and text[stop].isdigit():
        stop += 1
    return text[start:stop]
