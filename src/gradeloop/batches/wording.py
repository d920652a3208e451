"""The status of a case and the reason for it, as a word and a colour."""

from collections.abc import Mapping

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import CaseResult
from gradeloop.evaluation import CriterionRow
from gradeloop.printable import one_line

VERDICTS: dict[CaseStatus, tuple[str, str]] = {
    "passed": ("passed", "green"),
    "failed": ("failed", "red"),
    "error": ("error", "bold yellow"),
    "waiting": ("waiting", "yellow"),
    "queued": ("not run", "dim"),
}
"""The word for each status, and its style on a terminal."""


def tally(numbers: Mapping[CaseStatus, int]) -> list[str]:
    """Return how many cases have each status; a status that no case has is left out."""
    words = {status: "errors" if status == "error" and numbers.get(status) != 1 else word for status, (word, _) in VERDICTS.items()}
    return [f"{numbers[status]:,} {word}" for status, word in words.items() if numbers.get(status)]


def gap_of(row: CriterionRow) -> str:
    """Return why a criterion failed: the gap, or the reason if there is none."""
    return row.gap or row.reason


def why(result: CaseResult) -> str:
    """Return in one line why a case did not pass: its error, its worst criterion, or the grader's explanation."""
    worst = result.worst
    if result.error is not None:
        return one_line(result.error)
    if worst is not None:
        return one_line(f"{worst.id}: {gap_of(worst) or worst.name}")
    return "" if result.status == "passed" else one_line(result.explanation)


def score(result: CaseResult) -> str:
    """Return the score with two decimals; nothing if there is none."""
    return "" if result.score is None else f"{result.score:.2f}"
