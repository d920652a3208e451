"""Failures in a few lines: the first cases that did not pass, each with the words of what it hangs on."""

from dataclasses import dataclass

from gradeloop.reports.model import RunReport, Verdict
from gradeloop.reports.run_page import AnswerPart, failing_rows, run_answer
from gradeloop.text import headline

MOST = 3
"""The cases that are named."""

WORDS, WHY = 160, 200
"""The most characters of an error, and of why a case failed."""

FAILING: tuple[Verdict, ...] = ("failed", "error")
"""The verdicts of what failed: a verdict that is not a pass, and no verdict at all."""

UNDECIDED: tuple[Verdict, ...] = ("unsure",)


def failing_order(first: Verdict) -> list[Verdict]:
    """Return the verdicts of what failed, that of the answer's colour first."""
    return sorted(FAILING, key=lambda verdict: verdict != first)


@dataclass(frozen=True)
class Failure:
    """A case, or a judged run, that did not pass."""

    name: str
    number: int
    """Its position among all, from 0."""
    verdict: Verdict
    parts: tuple[AnswerPart, ...]
    """The criteria that it does not meet, by their words; else its error, or why it is unsure."""
    more: int = 0
    """Number of further criteria that it does not meet."""
    why: str = ""
    """Reason that it does not meet the first of them, in short; empty where nobody said it."""


def failure_of(report: RunReport, number: int = 0) -> Failure:
    """Return what a run that did not pass failed on."""
    if report.verdict == "failed":
        answer = run_answer(report)
        gap = next((row.why_failed for row in failing_rows(report) if answer.parts and row.id == answer.parts[0].id), "")
        explanation = report.evaluations[-1].explanation if report.evaluations and not answer.parts else ""
        return Failure(report.name, number, report.verdict, answer.parts, answer.more, headline(gap or explanation, WHY))
    text = report.error or next(iter(report.notes), "")
    return Failure(report.name, number, report.verdict, (AnswerPart(headline(text, WORDS)),) if text else ())


class FailureList:
    """Takes runs as they come, and keeps the first that did not pass."""

    def __init__(self) -> None:
        self._found: dict[Verdict, list[Failure]] = {verdict: [] for verdict in (*FAILING, *UNDECIDED)}
        self._counts = dict.fromkeys(self._found, 0)

    def take(self, number: int, report: RunReport) -> None:
        """Take a run, at its position among all."""
        if report.verdict in self._found:
            self._counts[report.verdict] += 1
            if len(self._found[report.verdict]) < MOST:
                self._found[report.verdict].append(failure_of(report, number))

    def named(self, first: Verdict) -> tuple[Failure, ...]:
        """Return the failures to name, those of the colour of the answer first; what is unsure only where nothing failed."""
        failed = [failure for verdict in failing_order(first) for failure in self._found[verdict]]
        return tuple((failed or [failure for verdict in UNDECIDED for failure in self._found[verdict]])[:MOST])

    def more(self, first: Verdict) -> dict[Verdict, int]:
        """Return how many there are beside the named ones, by verdict, in the same order; without those of which none is left."""
        named = [failure.verdict for failure in self.named(first)]
        of = UNDECIDED if named and named[0] in UNDECIDED else failing_order(first)
        return {verdict: left for verdict in of if (left := self._counts[verdict] - named.count(verdict))}
