"""How a criterion stands after a pass, as a page shows it."""

from dataclasses import dataclass
from typing import Literal

from gradeloop.evaluation import CriterionRow

Standing = Literal["passed", "failed", "unverified"]

MARKS: dict[Standing, str] = {"passed": "✓", "failed": "✗", "unverified": "?"}
WORDS: dict[Standing, str] = {"passed": "passed", "failed": "not passed", "unverified": "no verdict"}


@dataclass(frozen=True)
class Stands:
    """A criterion's verdict in a mark and in words."""

    standing: Standing
    """What counts: a person's word before the grader's."""
    by_person: bool
    contested: bool
    words: str

    @property
    def mark(self) -> str:
        """One character for it."""
        return MARKS[self.standing]

    @property
    def classes(self) -> str:
        """What a style sheet knows it by."""
        marks = {"by-person": self.by_person, "contested": self.contested}
        return " ".join([self.standing, *(name for name, holds in marks.items() if holds)])


def stands(row: CriterionRow) -> Stands:
    """Return how a row stands."""
    graded: Standing = "unverified" if row.unverified else "passed" if row.passed else "failed"
    if row.override is None:
        by_person = row.by == "human"
        words = f"{WORDS[graded]}{', by a person' if by_person else ''}{_votes(row)}"
        return Stands(graded, by_person, row.contested, words)
    said: Standing = "passed" if row.override.passed else "failed"
    return Stands(said, True, row.contested, f"{WORDS[said]} by a person, {WORDS[graded]} by the grader{_votes(row)}")


def _votes(row: CriterionRow) -> str:
    if not row.votes:
        return ""
    return f", {sum(vote.passed is True for vote in row.votes)} of {len(row.votes)} votes{' (contested)' if row.contested else ''}"
