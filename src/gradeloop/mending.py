"""An answer that is no verdict: mended in two turns, then asked for what is missing alone, then given up."""

from typing import Protocol

from gradeloop.prompts import missing, repair
from gradeloop.transcript import Message
from gradeloop.verdict import Malformed, Verdict, VerdictRow

REPAIRS = 2
"""Turns in which a grader may mend a malformed verdict."""


class Mendable(Protocol):
    """What is kept of a conversation with a grader beside its messages."""

    repairs: int
    pending: tuple[str, ...]
    """The criteria that were left out, once they are asked for alone."""
    rows: tuple[VerdictRow, ...]
    """The rows that came before those."""
    explanation: str
    missing: tuple[str, ...]
    """Ids without a row, however often it was asked."""
    error: str | None
    """Why there is no verdict, or rows are missing."""


class NoVerdict(Exception):
    """The grader gave none, and is not asked again."""


def whole(held: Mendable, verdict: Verdict) -> Verdict:
    """Return the verdict with the rows that came before it, where it answers for the rest alone."""
    if not held.pending:
        return verdict
    said = verdict.explanation if verdict.result == "failed" else held.explanation or verdict.explanation
    return verdict.model_copy(update={"criteria": (*held.rows, *verdict.criteria), "explanation": said})


def mend(held: Mendable, malformed: Malformed, asked: tuple[str, ...]) -> Verdict | Message:
    """Return what the grader is asked next; a verdict where nothing is asked any more, and what is left stays open.

    Raises:
        NoVerdict: Two repairs were in vain, and missing ids are not all that is wrong.
    """
    problems = "; ".join(malformed.problems)
    if held.pending:
        return _incomplete(held, malformed, problems)
    if held.repairs < REPAIRS:
        held.repairs += 1
        return repair(malformed.problems, asked)
    if not malformed.missing:
        raise NoVerdict(f"malformed_verdict: after {REPAIRS} repairs: {problems}")
    held.pending, held.rows, held.explanation = malformed.missing, malformed.rows, malformed.explanation
    return missing(malformed.missing)


def _incomplete(held: Mendable, malformed: Malformed, problems: str) -> Verdict:
    """Return the rows that are there; the others stay open, which the tally may or may not bear."""
    error = f"malformed_verdict: asked for the missing criteria alone: {problems}"
    if not malformed.missing:
        raise NoVerdict(error)
    held.error, held.missing = error, malformed.missing
    return Verdict(criteria=(*held.rows, *malformed.rows), explanation=held.explanation, result="needs_revision")
