"""What a comparison keeps of a case: its verdicts, and nothing of its output."""

from dataclasses import dataclass
from functools import lru_cache
from sys import intern

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import CaseResult
from gradeloop.evaluation import CriterionRow

GAP_CHARACTERS = 300
"""Kept of what is said against a criterion: 100,000 cases fit into memory, and a table shows less."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict on a criterion."""

    id: str
    name: str
    passed: bool | None
    """As a person says who overrode it; None where nobody gave a verdict."""
    overridden: bool = False
    gap: str = ""


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One run of a case."""

    id: str
    repeat: int
    status: CaseStatus
    score: float | None
    marks: tuple[Mark, ...]
    error: str = ""

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: an error is none."""
        return self.status in {"passed", "failed"}


def compared_case(result: CaseResult) -> ComparedCase:
    """Return what a comparison keeps of a result."""
    marks = tuple(_mark(row) for row in result.criteria)
    return ComparedCase(result.id, result.repeat, result.status, result.score, marks, _cut(result.error))


def _mark(row: CriterionRow) -> Mark:
    said = row.override
    if said is not None:
        return Mark(intern(row.id), intern(row.name), said.passed, overridden=True, gap="" if said.passed else _cut(said.why))
    passed = None if row.unverified else row.passed
    return _passing(row.id, row.name) if passed else Mark(intern(row.id), intern(row.name), passed, gap=_cut(row.gap or row.reason))


@lru_cache(maxsize=10_000)
def _passing(name: str, text: str) -> Mark:
    """Return the pass of a criterion, which most cases share."""
    return Mark(intern(name), intern(text), passed=True)


def _cut(text: str | None) -> str:
    """Return the beginning of what is said against a case or a criterion."""
    whole = text or ""
    return whole if len(whole) <= GAP_CHARACTERS else f"{whole[: GAP_CHARACTERS - 1]}…"
