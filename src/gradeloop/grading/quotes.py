"""Quotes looked up in the conversation: verbatim, with white space folded, characters composed, and typographic quotes and dashes equal."""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from gradeloop.contract.evaluation import Malformed, Quote, QuoteMatch, Verdict, VerdictRow
from gradeloop.contract.messages import Message
from gradeloop.grading.prompts import escape_invisible, records
from gradeloop.text import read_json

QUOTE_BYTES = 12
"""The least bytes, in UTF-8, of a quote that is part of a line: a shorter one stands in almost any text."""

NEAR_CHARACTERS = 40
"""The least characters of a quote that may be near a passage: shorter ones resemble too much."""

LONGEST_NEAR = 2_000
"""The most characters of a quote that is compared with passages: the comparison takes the product of both lengths."""

SIMILARITY = 95.0
"""The least similarity to a passage that counts as near, in per cent, by rapidfuzz's `partial_ratio`."""

_PLAIN = str.maketrans(dict.fromkeys("‘’‚‛", "'") | dict.fromkeys("“”„‟", '"') | dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"))
"""Typographic quotes and dashes, and the characters of a keyboard that they equal."""


def verify_quotes(reading: Verdict | Malformed, messages: Sequence[Message]) -> Verdict | Malformed:
    """Return the answer as it was read, with every quote of its rows marked as found or not in the record that it names.

    A judge's finding about a part of a longer run is not evidence: a quote of such a finding is not found.
    """
    texts = [_Record("" if record.get("type") == "finding" else str(record["text"])) for record in records(messages)]
    if isinstance(reading, Verdict):
        return reading.model_copy(update={"criteria": tuple(_verified(row, texts) for row in reading.criteria)})
    return reading.model_copy(update={"rows": tuple(_verified(row, texts) for row in reading.rows)})


def _verified(row: VerdictRow, texts: Sequence["_Record"]) -> VerdictRow:
    if row.quotes is None:
        return row
    return row.model_copy(update={"quotes": tuple(_looked_up(quote, texts) for quote in row.quotes)})


def _looked_up(quote: Quote, texts: Sequence["_Record"]) -> Quote:
    # A quote counts only in the record that it names, and only verbatim after folding. A near passage is shown
    # to people and proves nothing: a paraphrase is where a grader's mistake hides. Records are those that the
    # grader was shown, by the same numbers.
    record = texts[quote.record] if 0 <= quote.record < len(texts) else None
    if record is not None and any(record.has(wanted) for wanted in written_forms(quote.quote)):
        return quote.model_copy(update={"quote_match": "exact", "quote_verified": True})
    nearest = None if record is None else record.nearest(quote.quote)
    match: QuoteMatch = "none" if nearest is None else "near"
    return quote.model_copy(update={"quote_match": match, "quote_verified": False, "quote_nearest": nearest})


class _Record:
    """A record in which quotes are looked up; what that needs of it is computed once."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _folded(self) -> str:
        return fold(self._text)

    @cached_property
    def _shown(self) -> str:
        """The text with its hidden characters as escapes, as graders see them."""
        return escape_invisible(self._folded)

    @cached_property
    def _lines(self) -> frozenset[str]:
        return frozenset(map(fold, self._text.splitlines()))

    @cached_property
    def _values(self) -> frozenset[str]:
        """The values of a record that is JSON, those of texts with and without their quotation marks."""
        try:
            return frozenset(map(fold, _written_values(read_json(self._text))))
        except ValueError:
            return frozenset()

    def has(self, quote: str) -> bool:
        """Tell whether a quote is verbatim, and long enough or a whole line or value."""
        wanted = fold(quote)
        if not wanted or not (wanted in self._folded or wanted in self._shown):
            return False
        return len(" ".join(quote.split()).encode(errors="replace")) >= QUOTE_BYTES or wanted in self._lines or self._has_value(wanted)

    def _has_value(self, wanted: str) -> bool:
        if wanted in self._values:
            return True
        try:
            return fold(_as_json(json.loads(wanted))) in self._values
        except (ValueError, RecursionError):
            return False

    def nearest(self, quote: str) -> str | None:
        """Return the passage that a quote resembles; None where there is none, or where the quote is verbatim and too short."""
        span = nearest_passage(fold(quote), self._folded)
        return None if span is None else self._folded[span[0] : span[1]].strip()


def _written_values(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON of any shape
    yield _as_json(value)
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _written_values(inner)


def _as_json(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return json.dumps(value, ensure_ascii=False)


def written_forms(quote: str) -> Iterator[str]:
    """Yield a quote, and where it has backslashes also what it says by JSON's escapes, as records are written."""
    yield quote
    if "\\" in quote:
        try:
            yield str(json.loads(f'"{quote}"', strict=False))
        except ValueError:
            yield quote.replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t")


def nearest_passage(wanted: str, text: str) -> tuple[int, int] | None:
    """Return start and end of the passage that a long quote resembles; both texts are folded."""
    if not NEAR_CHARACTERS <= len(wanted) <= LONGEST_NEAR:
        return None
    from rapidfuzz import fuzz

    alignment = fuzz.partial_ratio_alignment(wanted, text, score_cutoff=SIMILARITY)
    return None if alignment is None or alignment.score < SIMILARITY else (alignment.dest_start, alignment.dest_end)


# Folding changes lengths in two ways: composing characters, and turning white space into single blanks. A
# position is therefore mapped back in two steps: from the folded text to the composed one by its words, and
# from there to the original by its characters. A mark that is placed by the length of the folded text would lie
# beside the quote.
class FoldedText:
    """A folded text that maps positions back to the original text."""

    def __init__(self, text: str) -> None:
        composed, self._starts, self._ends = _composed(text)
        tokens = list(re.finditer(r"\S+", composed))
        self.text = " ".join(token.group() for token in tokens).translate(_PLAIN)
        self._token_starts = [token.start() for token in tokens]
        self._folded_starts = list(accumulate((len(token.group()) + 1 for token in tokens), initial=0))

    def span(self, wanted: str) -> tuple[int, int] | None:
        """Return start and end of a quote in the original text; None where it is not found."""
        needle = fold(wanted)
        at = self.text.find(needle) if needle else -1
        return None if at < 0 else self.unfolded(at, at + len(needle))

    def unfolded(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end in the original text of a span of the folded text, which has no blank at either end."""
        first, last = self._position(start), self._position(end - 1)
        return (self._starts[first], self._ends[last]) if self._starts else (first, last + 1)

    def _position(self, offset: int) -> int:
        token = bisect_right(self._folded_starts, offset) - 1
        return self._token_starts[token] + offset - self._folded_starts[token]


def fold(text: str) -> str:
    """Return the text with every run of white space as one blank, its characters composed (NFC), its quotes and dashes plain."""
    return " ".join(unicodedata.normalize("NFC", text).split()).translate(_PLAIN)


def _composed(text: str) -> tuple[str, list[int], list[int]]:
    """Return the text in NFC, and where each of its characters starts and ends in the original; no positions where nothing changes."""
    if unicodedata.is_normalized("NFC", text):
        return text, [], []
    bounds = [at for at, character in enumerate(text) if at == 0 or not _composes(character)] + [len(text)]
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in pairwise(bounds):
        part = unicodedata.normalize("NFC", text[start:end])
        parts.append(part)
        starts += [start] * len(part)
        ends += [end] * len(part)
    return "".join(parts), starts, ends


def _composes(character: str) -> bool:
    """Tell whether a character may become one with those before it: a mark, or a vowel or final of Hangul."""
    return "\u1160" <= character <= "\u11ff" or unicodedata.category(character).startswith("M")
