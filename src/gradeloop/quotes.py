"""Quotes looked up in the conversation: word for word, white space aside, or nearly so where they are long."""

import re
from collections.abc import Sequence

from gradeloop.folding import folded
from gradeloop.records import records, visible
from gradeloop.transcript import Message
from gradeloop.verdict import Quote, Verdict

FUZZY_CHARACTERS = 40
"""From this length on a quote may differ a little: shorter ones come close to too much."""

LONGEST_FUZZY = 2_000
"""Up to this length: a longer one is compared word for word, so that looking it up takes no time."""

SIMILARITY = 95.0
"""Of a long quote to a passage, in per cent, by rapidfuzz's `partial_ratio`."""

_DIGITS = re.compile(r"\d+")


def verified(verdict: Verdict, messages: Sequence[Message]) -> Verdict:
    """Return the verdict with each quote marked as found in the record that it names, or not."""
    texts = [folded(str(record["text"])) for record in records(messages)]
    rows = []
    for row in verdict.criteria:
        quotes = [quote.model_copy(update={"quote_verified": _stands(quote, texts)}) for quote in row.quotes or ()]
        rows.append(row.model_copy(update={"quotes": tuple(quotes)}) if row.quotes is not None else row)
    return verdict.model_copy(update={"criteria": tuple(rows)})


def _stands(quote: Quote, texts: Sequence[str]) -> bool:
    if not 0 <= quote.record < len(texts):
        return False
    wanted, text = folded(quote.quote), texts[quote.record]
    if not wanted:
        return False
    return wanted in text or wanted in visible(text) or _nearly(wanted, text)


def _nearly(wanted: str, text: str) -> bool:
    """True where a long quote stands there with small differences, and with the same numbers."""
    span = nearest(wanted, text)
    return span is not None and _DIGITS.findall(wanted) == _DIGITS.findall(_widened(text, *span))


def nearest(wanted: str, text: str) -> tuple[int, int] | None:
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
