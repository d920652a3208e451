"""Differences between two drafts, in words, or in lines where both are long."""

import re
from dataclasses import dataclass

from gradeloop.contract.evaluation import DraftPiece

COMPARED = 200_000_000
"""The most that a comparison takes, as the product of both lengths: 0.1 s, some 25 MB. Longer drafts are compared by lines, if at all."""

CHARACTERS = 1_000_000
"""The most characters of two drafts together that are compared at all."""

CONTEXT = 160
"""Characters that are shown before and after a change; the rest between two changes is left out."""

LANDMARK = 3
"""Characters that stay between two changes and are shown as changed with them: a comma, an `is`."""

_WORDS = re.compile(r"\w+|[^\S\n]+|\n|[^\w\s]")


@dataclass(frozen=True)
class Changes:
    """Differences of a draft from the one before."""

    pieces: tuple[DraftPiece, ...]
    added: int
    """Words that were not there before."""
    removed: int

    @property
    def none(self) -> bool:
        """True where both are the same."""
        return not self.added and not self.removed and all(piece.kind in {"same", "left_out"} for piece in self.pieces)


def changes(before: str, after: str, *, most: int = CHARACTERS, by_line: bool = False) -> Changes | None:
    """Return what changed; None where the drafts are too long to be compared, with more than `most` characters together."""
    if len(before) + len(after) > most:
        return None
    for parts in (_lines,) if by_line else (_WORDS.findall, _lines):
        old, new = parts(before), parts(after)
        if len(old) * len(new) <= COMPARED:
            pieces = _merged(_compare(old, new))
            words = {
                kind: sum(len(re.findall(r"\w+", piece.text)) for piece in pieces if piece.kind == kind) for kind in ("added", "removed")
            }
            shown = [short for at, piece in enumerate(pieces) for short in _shortened(piece, first=at == 0, last=at == len(pieces) - 1)]
            return Changes(tuple(shown), words["added"], words["removed"])
    return None


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _compare(old: list[str], new: list[str]) -> list[DraftPiece]:
    from rapidfuzz.distance import Indel

    found: list[DraftPiece] = []
    for step in Indel.opcodes(old, new):
        if step.tag == "insert":
            found.append(DraftPiece(kind="added", text="".join(new[step.dest_start : step.dest_end])))
        else:
            found.append(DraftPiece(kind="same" if step.tag == "equal" else "removed", text="".join(old[step.src_start : step.src_end])))
    return found


def _merged(pieces: list[DraftPiece]) -> list[DraftPiece]:
    """Return the pieces with what is small between two changes as a part of both, and removals before additions."""
    merged: list[DraftPiece] = []
    removed = added = ""

    def close() -> None:
        merged.extend(piece for piece in (DraftPiece(kind="removed", text=removed), DraftPiece(kind="added", text=added)) if piece.text)

    for at, piece in enumerate(pieces):
        small = "\n" not in piece.text and len(piece.text.strip()) <= LANDMARK
        between = piece.kind == "same" and (removed or added) and at + 1 < len(pieces) and small
        if piece.kind == "same" and not between:
            close()
            merged.append(piece)
            removed = added = ""
        else:
            removed += piece.text if piece.kind != "added" else ""
            added += piece.text if piece.kind != "removed" else ""
    close()
    return merged


def _shortened(piece: DraftPiece, *, first: bool, last: bool) -> list[DraftPiece]:
    """Return an unchanged stretch without its middle, or without its far end at the ends of the draft."""
    head, tail = 0 if first else CONTEXT, 0 if last else CONTEXT
    if piece.kind != "same" or len(piece.text) <= head + tail + CONTEXT:
        return [piece]
    start, end = piece.text[:head], piece.text[len(piece.text) - tail :]
    left = len(piece.text) - head - tail
    left_out = DraftPiece(kind="left_out", text=f"… {left:,} unchanged characters …")
    return [part for part in (DraftPiece(kind="same", text=start), left_out, DraftPiece(kind="same", text=end)) if part.text]
