"""Pass rates as people see them: corrected for a judge that errs, held against a threshold, or from the labels of a drawn sample."""

import math
from collections.abc import Iterable
from typing import Literal

from gradeloop.stats.intervals import Figures, Interval, Z, wilson, worth_of_one
from gradeloop.stats.reliability import Rated


class JudgeError(Figures):
    """Counts of labels by people that a judge got right."""

    passed: int
    """Runs that people passed."""
    passed_found: int
    """Those of them that the judge passed."""
    failed: int
    """Runs that people failed."""
    failed_found: int
    """Those of them that the judge failed."""

    def worth(self, good: float, bad: float) -> "JudgeError":
        """Return as many counts as those of people's passes and fails are worth, each of them; fractions, therefore."""
        passes = {"passed": self.passed * good, "passed_found": self.passed_found * good}
        return self.model_construct(**passes, failed=self.failed * bad, failed_found=self.failed_found * bad)  # type: ignore[arg-type]


class CorrectedRate(Figures):
    """A pass rate corrected for the judge's error, with its 95 % interval."""

    raw: float
    """The rate that the judge says, uncorrected."""
    value: float
    low: float
    high: float


def corrected_rate(passed: float, runs: float, error: JudgeError) -> CorrectedRate | None:
    """Return the pass rate corrected for the judge's sensitivity and specificity, with an interval for all three estimates.

    `error`: how often it was right where people labelled; these runs are not among those of the rate.

    Returns:
        The estimate, clipped to 0 to 1; None where nothing can be corrected: there are no runs, a class has no labels, or the judge is
        no better than chance on them.

    Source: Rogan and Gladen 1978, https://doi.org/10.1093/oxfordjournals.aje.a112510; the interval is that of Lang and Reiczigel 2014,
        https://doi.org/10.1016/j.prevetmed.2013.09.015, as used for judges by https://arxiv.org/abs/2511.21140.
    """
    if not runs or not error.passed or not error.failed:
        return None
    sensitivity, specificity = error.passed_found / error.passed, error.failed_found / error.failed
    if sensitivity + specificity <= 1:
        return None
    raw = passed / runs
    value = _clipped((raw + specificity - 1) / (sensitivity + specificity - 1))
    # The point estimate is Rogan and Gladen's. The interval is computed from counts to which Lang and
    # Reiczigel add pseudo-observations, since with the raw counts it fails at rates near 0 and 1. So the
    # estimate can lie outside of its interval, which is then widened to hold it.
    square = Z * Z
    rate, count = (passed + square / 2) / (runs + square), runs + square
    found, good = (error.passed_found + 1) / (error.passed + 2), error.passed + 2
    left, bad = (error.failed_found + 1) / (error.failed + 2), error.failed + 2
    slope = found + left - 1
    if slope <= 0:
        return CorrectedRate(raw=raw, value=value, low=0.0, high=1.0)
    middle = _clipped((rate + left - 1) / slope)
    found_variance, left_variance = found * (1 - found) / good, left * (1 - left) / bad
    shift = 2 * square * (middle * found_variance - (1 - middle) * left_variance)
    variance = rate * (1 - rate) / count + middle**2 * found_variance + (1 - middle) ** 2 * left_variance
    width = Z * math.sqrt(variance) / slope
    low, high = _clipped(middle + shift - width), _clipped(middle + shift + width)
    return CorrectedRate(raw=raw, value=value, low=min(low, value), high=max(high, value))


# Nothing promises that both ends of the interval grow with every pass, and some numbers have no corrected rate.
# So all numbers are tried, and a bound is one beyond which every number has the same decision. A search by
# halves could stop at a number that is followed by another decision.
def deciding_passes(runs: int, error: JudgeError, threshold: float) -> tuple[int, int]:
    """Return the least number of passes from which on a corrected rate reaches a threshold, and the greatest up to which it misses it.

    The arguments are those of `corrected_rate`, and the least rate, 0 to 1.
    """
    rates = [corrected_rate(passed, runs, error) for passed in range(runs + 1)]
    reached = [rate is not None and rate.low >= threshold for rate in rates]
    missed = [rate is not None and rate.high < threshold for rate in rates]
    return runs + 1 - ([*reversed(reached), False].index(False)), [*missed, False].index(False) - 1


def _clipped(share: float) -> float:
    return max(0.0, min(1.0, share))


MOST_LABELS = 1_000_000
"""More labels than this are not asked for."""


def labels_wanted(passed: float, runs: float, error: JudgeError, threshold: float) -> int | None:
    """Return how many labels in all would let the corrected rate's interval lie on one side of a threshold.

    It is assumed that more labels find the same rates in the same proportion of good and bad runs.

    `error`: the labels so far; with none of a class, 9 of 10 right are assumed for it.
    `threshold`: the rate that is asked for, 0 to 1.

    Returns:
        The number, at least what there is; None where no number of labels would do, since the rate itself is too close to the threshold.
    """
    # The question is how many labels there would have to be if further ones looked like those so far. The
    # counts are multiplied until the interval lies on one side. Steps of 10 % are exact enough for an advice,
    # and the limit ends the search where the rate lies on the threshold.
    good, bad = max(error.passed, 1), max(error.failed, 1)
    found = {"passed_found": error.passed_found if error.passed else 0.9, "failed_found": error.failed_found if error.failed else 0.9}
    assumed, factor = JudgeError.model_construct(passed=good, failed=bad, **found), 1.0  # type: ignore[arg-type]  # fractions
    while factor * (good + bad) <= MOST_LABELS:
        rate = corrected_rate(passed, runs, assumed.worth(factor, factor))
        if rate is not None and not rate.low < threshold <= rate.high:
            return math.ceil(factor * (good + bad))
        factor *= 1.1
    return None


class GatedRate(Figures):
    """A pass rate beside the one corrected for the judge's error, and what follows for a threshold."""

    passed: int
    runs: int
    worth: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """The independent runs that a run, one that people passed, and one that they failed are worth: less than 1 where they share a case."""
    corrected: CorrectedRate | None
    error: JudgeError
    threshold: float | None
    decision: Literal["passed", "failed", "inconclusive"] | None
    """Passed where the interval's lower bound reaches the threshold, failed where its upper bound does not; None without a threshold."""
    wanted: int | None = None
    """The number of labels that would decide, where the decision is inconclusive; None where no number would."""

    def held_against(self, threshold: float | None) -> "GatedRate":
        """Return the same rate, held against another threshold, 0 to 1; None to decide nothing."""
        return hold_rate(self.passed, self.runs, self.error, threshold, self.worth)


def hold_rate(
    passed: int, runs: int, error: JudgeError, threshold: float | None, worth: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> GatedRate:
    """Return a pass rate, corrected, and what follows for a threshold.

    Args:
        passed: How many runs the judge passed.
        runs: How many it judged.
        error: How often it was right where people labelled; these runs are not among those of the rate.
        threshold: The least rate, 0 to 1; None to decide nothing.
        worth: As `GatedRate.worth`.
    """
    independent = (passed * worth[0], runs * worth[0], error.worth(*worth[1:]))
    rate = corrected_rate(*independent)
    found = GatedRate(passed=passed, runs=runs, worth=worth, corrected=rate, error=error, threshold=threshold, decision=None)
    if threshold is None:
        return found
    if rate is None or rate.low < threshold <= rate.high:
        wanted = labels_wanted(*independent, threshold)
        return found.model_copy(update={"decision": "inconclusive", "wanted": wanted and math.ceil(wanted / min(worth[1:]))})
    return found.model_copy(update={"decision": "passed" if rate.low >= threshold else "failed"})


def hold_verdicts(rows: Iterable[Rated], threshold: float | None, earlier: Iterable[Rated] = ()) -> GatedRate:
    """Return the pass rate of verdicts, corrected by those of runs that people labelled; intervals are over clusters.

    Args:
        rows: The runs whose rate is asked for, with True and False for what passes and what fails. Of several labels most decide, and
            where people are split they say nothing. Runs with a label measure the error, and do not count in the rate, unless all have one.
        threshold: The least rate, 0 to 1; None to decide nothing.
        earlier: Further runs that have a label, and a verdict of the same judge.
    """
    # A run with a label measures the judge's error. So it does not count in the rate that this error corrects,
    # or one run would be used twice. Only where all runs have a label do they serve for both.
    judged = [row for row in rows if row.judged is not None]
    labelled = [(row, 2 * row.labels.count(True) - len(row.labels)) for row in (*judged, *earlier)]
    passed, runs, worth = _over_clusters((row.judged is True, row.cluster) for row in [row for row in judged if not row.labels] or judged)
    found, good, good_worth = _over_clusters((row.judged is True, row.cluster) for row, more in labelled if more > 0)
    left, bad, bad_worth = _over_clusters((row.judged is False, row.cluster) for row, more in labelled if more < 0)
    error = JudgeError(passed=good, passed_found=found, failed=bad, failed_found=left)
    return hold_rate(passed, runs, error, threshold, (worth, good_worth, bad_worth))


def _over_clusters(rows: Iterable[tuple[bool, str]]) -> tuple[int, int, float]:
    """Return how many of the runs count, how many there are, and how many independent ones each is worth."""
    clusters: dict[str | int, list[bool]] = {}
    for at, (counts, cluster) in enumerate(rows):
        clusters.setdefault(cluster or at, []).append(counts)
    parts = [(sum(row), len(row)) for row in clusters.values()]
    return sum(part for part, _ in parts), sum(size for _, size in parts), worth_of_one(parts)


LEAST_LABELS = 10
"""The fewest labelled runs of those that the judge passed, and of those that it failed, from which anything is said."""


class SampleLabels(Figures):
    """Counts of people's labels of some of the runs that a judge passed, and of some that it failed."""

    of_passed: int = 0
    """Labelled runs that the judge passed."""
    right_passes: int = 0
    """Those of them that people pass, too."""
    of_failed: int = 0
    """Labelled runs that the judge failed."""
    wrong_fails: int = 0
    """Those of them that people pass."""


def labelled_rate(passed: float, judged: float, labels: SampleLabels) -> CorrectedRate | None:
    """Return the rate at which people would pass all judged runs, with an interval for the labels and for the runs.

    Each label counts for as many runs as it stands for: a run that the judge failed had another chance to be labelled than one that it
    passed, and each is weighed by the inverse of its chance (Horvitz and Thompson, stratified by what the judge said).

    Returns:
        The estimate; None where a group that there is has too few labels.

    Source: the intervals of the parts are Wilson's, put together by Zou and Donner 2008, https://doi.org/10.1002/sim.3095.
    """
    if not judged or (passed and labels.of_passed < LEAST_LABELS) or (passed < judged and labels.of_failed < LEAST_LABELS):
        return None
    # Three estimates have an error: the share that the judge passed, and people's pass rate in each of the
    # two groups. The distance from each to its own limit takes the part that a variance would have, so the
    # limits stay asymmetric where a rate is near 0 or 1. Which limit of the share counts depends on which
    # group people pass more often.
    weight, weights = passed / judged, wilson(passed, judged)
    good, of_good = _share(labels.right_passes, labels.of_passed)
    bad, of_bad = _share(labels.wrong_fails, labels.of_failed)
    value, slope = weight * good + (1 - weight) * bad, good - bad
    down, up = slope * (weight - weights.low), slope * (weights.high - weight)
    low = value - math.hypot(weight * (good - of_good.low), (1 - weight) * (bad - of_bad.low), down if slope >= 0 else up)
    high = value + math.hypot(weight * (of_good.high - good), (1 - weight) * (of_bad.high - bad), up if slope >= 0 else down)
    return CorrectedRate(raw=weight, value=value, low=max(low, 0.0), high=min(high, 1.0))


def _share(part: int, whole: int) -> tuple[float, Interval]:
    """Return a share with Wilson's interval; both are 0 where there is no label, in a group without runs."""
    return (part / whole, wilson(part, whole)) if whole else (0.0, Interval(low=0.0, high=0.0))
