"""Texts with the passages marked that somebody quotes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradeloop.folding import Folded
from gradeloop.records import record_starts, visible
from gradeloop.transcript import Message


@dataclass(frozen=True)
class Mark:
    """A passage of a text that is referred to."""

    name: str
    """The anchor that links lead to."""
    start: int
    end: int


@dataclass(frozen=True)
class Segment:
    """A stretch of a text, marked or not."""

    text: str
    marked: bool
    names: tuple[str, ...] = ()
    """Anchors of the passages that begin here."""


def segments(text: str, marks: Iterable[Mark]) -> tuple[Segment, ...]:
    """Return a text cut at the ends of its marks, which may overlap."""
    inside = [each for each in marks if 0 <= each.start < each.end <= len(text)]
    if not inside:
        return (Segment(text, marked=False),)
    cuts = sorted({0, len(text), *(each.start for each in inside), *(each.end for each in inside)})
    found = []
    for start, end in pairwise(cuts):
        covered = any(each.start <= start and end <= each.end for each in inside)
        found.append(Segment(text[start:end], covered, tuple(each.name for each in inside if each.start == start)))
    return tuple(found)


@dataclass(frozen=True)
class Place:
    """Where a quote stands."""

    message: int
    """Index of the message."""
    span: tuple[int, int] | None
    """Characters of its content; None where the words are not found there, or stand in a tool call."""


class Quoted:
    """The messages of a conversation, in which quotes are looked up as the records that graders see."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._starts = record_starts(messages)
        self._folded: dict[int, Folded] = {}

    def place(self, record: int, quote: str) -> Place | None:
        """Return where a quote stands; None where there is no such record."""
        message = next((at for at in range(len(self._messages)) if self._starts[at] <= record < self._starts[at + 1]), None)
        if message is None:
            return None
        is_text = record == self._starts[message] and bool(self._messages[message].content)
        return Place(message, self._span(message, quote) if is_text else None)

    def _span(self, message: int, quote: str) -> tuple[int, int] | None:
        text = self._messages[message].content
        folded = self._folded.setdefault(message, Folded(text))
        return folded.span(quote) or _seen(text, quote) or _nearest(folded, quote)


def _seen(text: str, quote: str) -> tuple[int, int] | None:
    """Return where a quote stands that shows hidden characters as escapes, as the grader saw them."""
    if visible(text) == text:
        return None
    shown, starts = [], [0]
    for character in text:
        shown.append(visible(character))
        starts.append(starts[-1] + len(shown[-1]))
    span = Folded("".join(shown)).span(quote)
    if span is None:
        return None
    inside = [at for at in range(len(text)) if starts[at] < span[1] and starts[at + 1] > span[0]]
    return (inside[0], inside[-1] + 1) if inside else None


def _nearest(folded: Folded, quote: str) -> tuple[int, int] | None:
    """Return where the words stand that come closest to a long quote, as it was verified."""
    from gradeloop.quotes import nearest

    span = nearest(" ".join(quote.split()), folded.text)
    if span is None:
        return None
    cut = folded.text[span[0] : span[1]]
    start, end = span[0] + len(cut) - len(cut.lstrip()), span[1] - len(cut) + len(cut.rstrip())
    return folded.unfolded(start, end) if start < end else None
