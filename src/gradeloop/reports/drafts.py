"""What changed from one draft to the next, word by word."""

import re
from dataclasses import dataclass
from typing import Literal

COMPARED = 200_000_000
"""Of a comparison, as the product of both lengths: 0.1 s and some 25 MB; what is longer is compared by lines, and then not at all."""

CHARACTERS = 1_000_000
"""Of both drafts together that are looked at at all."""

CONTEXT = 160
"""Characters that are shown before and behind a change; what lies between two is left out."""

LANDMARK = 3
"""Characters that stay between two changes and are shown as changed with them: a comma, an `is`."""

_WORDS = re.compile(r"\w+|[^\S\n]+|\n|[^\w\s]")


@dataclass(frozen=True)
class Piece:
    """A stretch of a comparison."""

    kind: Literal["same", "added", "removed", "left out"]
    text: str


@dataclass(frozen=True)
class Changes:
    """How a draft differs from the one before."""

    pieces: tuple[Piece, ...]
    added: int
    """Words that were not there before."""
    removed: int

    @property
    def none(self) -> bool:
        """True where both say the same."""
        return not self.added and not self.removed and all(piece.kind in {"same", "left out"} for piece in self.pieces)


def changes(before: str, after: str) -> Changes | None:
    """Return what changed; None where the drafts are too long to be compared."""
    if len(before) + len(after) > CHARACTERS:
        return None
    for parts in (_WORDS.findall, lambda text: text.splitlines(keepends=True)):
        old, new = parts(before), parts(after)
        if len(old) * len(new) <= COMPARED:
            return _told(_merged(_pieces(old, new)))
    return None


def _pieces(old: list[str], new: list[str]) -> list[Piece]:
    from rapidfuzz.distance import Indel

    found: list[Piece] = []
    for step in Indel.opcodes(old, new):
        if step.tag == "equal":
            found.append(Piece("same", "".join(old[step.src_start : step.src_end])))
        elif step.tag == "delete":
            found.append(Piece("removed", "".join(old[step.src_start : step.src_end])))
        else:
            found.append(Piece("added", "".join(new[step.dest_start : step.dest_end])))
    return found


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with what is small between two changes as a part of both, and what was removed before what was added."""
    merged: list[Piece] = []
    removed = added = ""
    for at, piece in enumerate(pieces):
        between = piece.kind == "same" and (removed or added) and at + 1 < len(pieces) and _is_small(piece.text)
        if piece.kind == "same" and not between:
            merged += [*_changed(removed, added), piece]
            removed = added = ""
        else:
            removed += piece.text if piece.kind != "added" else ""
            added += piece.text if piece.kind != "removed" else ""
    return merged + _changed(removed, added)


def _is_small(text: str) -> bool:
    """True for what is no landmark between two changes."""
    return "\n" not in text and len(text.strip()) <= LANDMARK


def _changed(removed: str, added: str) -> list[Piece]:
    told: list[tuple[Literal["removed", "added"], str]] = [("removed", removed), ("added", added)]
    return [Piece(kind, text) for kind, text in told if text]


def _told(pieces: list[Piece]) -> Changes:
    counts = {kind: sum(len(re.findall(r"\w+", each.text)) for each in pieces if each.kind == kind) for kind in ("added", "removed")}
    shown = [part for at, piece in enumerate(pieces) for part in _shortened(piece, first=at == 0, last=at == len(pieces) - 1)]
    return Changes(tuple(shown), counts["added"], counts["removed"])


def _shortened(piece: Piece, *, first: bool, last: bool) -> list[Piece]:
    """Return an unchanged stretch without its middle, or without its far end at the ends of the draft."""
    head, tail = 0 if first else CONTEXT, 0 if last else CONTEXT
    if piece.kind != "same" or len(piece.text) <= head + tail + CONTEXT:
        return [piece]
    start, end = piece.text[:head], piece.text[len(piece.text) - tail :]
    left = len(piece.text) - head - tail
    parts = [Piece("same", start), Piece("left out", f"… {left:,} unchanged characters …"), Piece("same", end)]
    return [part for part in parts if part.text]
