"""A pass rate beside the one corrected for the judge's error, what follows for a threshold, and both in words."""

from typing import Literal

from gradeloop.contract.base import Strict
from gradeloop.stats.correction import CorrectedRate, JudgeError, corrected_rate, labels_wanted


class GatedRate(Strict):
    """A pass rate beside the one corrected for the judge's error, and what follows for a threshold."""

    passed: int
    runs: int
    corrected: CorrectedRate | None
    error: JudgeError
    threshold: float | None
    decision: Literal["passed", "failed", "inconclusive"] | None
    """Passed where the interval's lower bound reaches the threshold, failed where its upper bound does not; None without a threshold."""
    wanted: int | None = None
    """How many labels in all would decide, where the decision is inconclusive; None where no number of labels would."""

    def held_against(self, threshold: float | None) -> "GatedRate":
        """Return the same rate, held against another threshold, 0 to 1; None to decide nothing."""
        return hold_rate(self.passed, self.runs, self.error, threshold)


def hold_rate(passed: int, runs: int, error: JudgeError, threshold: float | None) -> GatedRate:
    """Return a pass rate, corrected, and what follows for a threshold.

    Args:
        passed: How many runs the judge passed.
        runs: How many it judged.
        error: How often it was right where people labelled; these runs are not among those of the rate.
        threshold: The least rate, 0 to 1; None to decide nothing.
    """
    rate = corrected_rate(passed, runs, error)
    found = GatedRate(passed=passed, runs=runs, corrected=rate, error=error, threshold=threshold, decision=None)
    if threshold is None:
        return found
    if rate is not None and rate.low >= threshold:
        return found.model_copy(update={"decision": "passed"})
    if rate is not None and rate.high < threshold:
        return found.model_copy(update={"decision": "failed"})
    return found.model_copy(update={"decision": "inconclusive", "wanted": labels_wanted(passed, runs, error, threshold)})


def gate_lines(found: GatedRate) -> list[str]:
    """Return what a person reads: the rate as the judge says, the corrected one, and the decision."""
    if not found.runs:
        return ["corrected pass rate: nothing was judged"]
    labels = found.error.passed + found.error.failed
    raw = f"{found.passed / found.runs:.1%} as the judge says"
    if found.corrected is None:
        lines = [f"corrected pass rate: unknown ({raw}); {labels} labels with a verdict, both kinds are needed, better than chance"]
    else:
        rate = found.corrected
        lines = [f"corrected pass rate: {rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%}), {raw}; by {labels} labels with a verdict"]
    if found.decision == "inconclusive":
        lines.append(f"inconclusive at {found.threshold:.1%}: {labels_cure(found)}")
    return lines


def labels_cure(found: GatedRate) -> str:
    """Return what would decide where the rate does not."""
    return "no number of labels would decide; judge more runs" if found.wanted is None else f"about {found.wanted} labels would decide"
