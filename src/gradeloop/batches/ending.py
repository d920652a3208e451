"""The end of a batch: its `Results:` line and its exit code follow one rule."""

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import BatchSummary
from gradeloop.batches.wording import tally
from gradeloop.departure import CAPPED, NO_VERDICT, SATISFIED
from gradeloop.printable import counted, one_line
from gradeloop.units import TOLERANCE

_MOST_DECIMALS = 6
"""The most decimals of a percentage: enough to tell one case in a hundred thousand from its limit."""


def code_of(summary: BatchSummary, *, allow_errors: float = 0.0, pass_rate: float | None = None) -> int:
    """Return the exit code of a batch: 3 where it is not judged as a whole, else 1 where too few cases pass, else 0.

    Args:
        summary: The batch's counts and status.
        allow_errors: The share of all cases, 0 to 1, that may end in an error; these count neither as passed nor as failed.
        pass_rate: The share of judged cases, 0 to 1, that must pass; the batch's own where it is None.
    """
    rate = rate_of(summary)
    whole = summary.status in {"running", "finished"} and not summary.open and not summary.waiting
    if not whole or rate is None or summary.errors > allow_errors * summary.total + TOLERANCE:
        return NO_VERDICT
    return SATISFIED if _reaches(rate, summary.pass_rate if pass_rate is None else pass_rate) else CAPPED


def rate_of(summary: BatchSummary) -> float | None:
    """Return the share of judged cases that passed, 0 to 1; None where none was judged: errors are no verdicts."""
    judged = summary.passed + summary.failed
    return summary.passed / judged if judged else None


def counts(summary: BatchSummary) -> list[str]:
    """Return how many cases have each status; a status that no case has is left out."""
    ended: dict[CaseStatus, int] = {"passed": summary.passed, "failed": summary.failed, "error": summary.errors}
    return tally(ended | {"waiting": summary.waiting, "queued": summary.open})


def spent(summary: BatchSummary) -> list[str]:
    """Return the tokens that the batch used, and its cost if that is known."""
    tokens, cost = summary.usage.tokens, summary.usage.cost_usd
    return [*([counted(tokens, "token")] if tokens else []), *([f"${cost:.4f}"] if cost else [])]


def results_line(summary: BatchSummary, *, pass_rate: float | None = None) -> str:
    """Return the result of the batch in one line; `pass_rate` as for `code_of`."""
    parts = [f"Results: {', '.join(counts(summary)) or 'none'} of {summary.total:,}{_rate_words(summary, pass_rate)}"]
    parts += [f"{summary.cached:,} cached"] if summary.cached else []
    parts += [", ".join(spent(summary))] if spent(summary) else []
    if summary.status in {"paused", "stopped"}:
        parts.append(f"{summary.status}{': ' if summary.reason else ''}{one_line(summary.reason or '')}")
    return "; ".join(parts)


def _rate_words(summary: BatchSummary, pass_rate: float | None) -> str:
    rate = rate_of(summary)
    if rate is None:
        return ""
    wanted = summary.pass_rate if pass_rate is None else pass_rate
    return f" ({_percent(rate, wanted)} of {summary.passed + summary.failed:,} judged, {_plain(wanted, 4)} wanted)"


def _reaches(rate: float, wanted: float) -> bool:
    return rate >= wanted - TOLERANCE


def _percent(rate: float, wanted: float) -> str:
    """Return a rate as a percentage, with enough decimals to show on which side of its limit it is, and that it is neither all nor none."""
    for decimals in range(1, _MOST_DECIMALS):
        rounded = round(rate, decimals + 2)
        if _reaches(rounded, wanted) == _reaches(rate, wanted) and (rounded in {0.0, 1.0}) == (rate in {0.0, 1.0}):
            return _plain(rate, decimals)
    return _plain(rate, _MOST_DECIMALS)


def _plain(rate: float, decimals: int) -> str:
    text = f"{rate * 100:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.')}%"
