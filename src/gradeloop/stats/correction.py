"""Pass rates as people see them: corrected for a judge that errs, held against a threshold, or from the labels of a drawn sample."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal, TypeVar

from gradeloop.stats.intervals import CONFIDENCE, Figures, wilson

_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class JudgeError(Figures):
    """How often a judge was right where people said what holds: counts of labels."""

    passed: int
    """Runs that people passed."""
    passed_found: int
    """Those of them that the judge passed."""
    failed: int
    """Runs that people failed."""
    failed_found: int
    """Those of them that the judge failed."""

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[bool, bool]]) -> "JudgeError":
        """Return the counts of pairs of what people say of a run, whether it passes, and what the judge says."""
        counts = Counter(pairs)
        good, bad = counts[True, True] + counts[True, False], counts[False, True] + counts[False, False]
        return cls(passed=good, passed_found=counts[True, True], failed=bad, failed_found=counts[False, False])


class CorrectedRate(Figures):
    """A pass rate corrected for the judge's error, with its 95 % interval."""

    raw: float
    """The rate that the judge says, uncorrected."""
    value: float
    low: float
    high: float


def corrected_rate(passed: int, runs: int, error: JudgeError) -> CorrectedRate | None:
    """Return the pass rate corrected for the judge's sensitivity and specificity, with an interval for all three estimates.

    Args:
        passed: How many runs the judge passed.
        runs: How many it judged.
        error: How often it was right where people labelled; these runs are not among those of the rate.

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
    square = _Z * _Z
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
    width = _Z * math.sqrt(variance) / slope
    low, high = _clipped(middle + shift - width), _clipped(middle + shift + width)
    return CorrectedRate(raw=raw, value=value, low=min(low, value), high=max(high, value))


def _clipped(share: float) -> float:
    return max(0.0, min(1.0, share))


MOST_LABELS = 1_000_000
"""More labels than this are not asked for."""


def labels_wanted(passed: int, runs: int, error: JudgeError, threshold: float) -> int | None:
    """Return how many labels in all would let the corrected rate's interval lie on one side of a threshold.

    It is assumed that more labels find the same rates in the same proportion of good and bad runs.

    Args:
        passed: How many runs the judge passed.
        runs: How many it judged.
        error: The labels so far; with none of a class, 9 of 10 right are assumed for it.
        threshold: The rate that is asked for, 0 to 1.

    Returns:
        The number, at least what there is; None where no number of labels would do, since the rate itself is too close to the threshold.
    """
    good, bad = max(error.passed, 1), max(error.failed, 1)
    found = {"passed_found": error.passed_found if error.passed else 0.9, "failed_found": error.failed_found if error.failed else 0.9}
    factor = 1.0
    while factor * (good + bad) <= MOST_LABELS:
        counts = {name: count * factor for name, count in ({"passed": good, "failed": bad} | found).items()}
        rate = corrected_rate(passed, runs, JudgeError.model_construct(**counts))  # type: ignore[arg-type]  # fractions, as they are assumed
        if rate is not None and not rate.low < threshold <= rate.high:
            return math.ceil(factor * (good + bad))
        factor *= 1.1
    return None


class GatedRate(Figures):
    """A pass rate beside the one corrected for the judge's error, and what follows for a threshold."""

    passed: int
    runs: int
    corrected: CorrectedRate | None
    error: JudgeError
    threshold: float | None
    decision: Literal["passed", "failed", "inconclusive"] | None
    """Passed where the interval's lower bound reaches the threshold, failed where its upper bound does not; None without a threshold."""
    wanted: int | None = None
    """The number of labels that would decide, where the decision is inconclusive; None where no number would."""

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
    if rate is None or rate.low < threshold <= rate.high:
        return found.model_copy(update={"decision": "inconclusive", "wanted": labels_wanted(passed, runs, error, threshold)})
    return found.model_copy(update={"decision": "passed" if rate.low >= threshold else "failed"})


Run = TypeVar("Run", bound=Hashable)
"""The name of a run: its id, or its id and what it says."""


def hold_verdicts(
    people: Mapping[Run, Sequence[bool]], verdicts: Mapping[Run, bool], known: Mapping[Run, bool], threshold: float | None
) -> GatedRate:
    """Return the pass rate of verdicts, corrected by those that are known of what people labelled.

    Args:
        people: Whether people say that a labelled run passes; most of them decide, and where they are split they say nothing.
        verdicts: The verdicts whose rate is asked for; those with a label measure the error instead, unless all have one.
        known: These verdicts, and further ones of the same judge that have a label.
        threshold: The least rate, 0 to 1; None to decide nothing.
    """
    pairs = [(2 * sum(votes) > len(votes), known[run]) for run, votes in people.items() if run in known and 2 * sum(votes) != len(votes)]
    counted = [said for run, said in verdicts.items() if run not in people] or list(verdicts.values())
    return hold_rate(sum(counted), len(counted), JudgeError.of_pairs(pairs), threshold)


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


def labelled_rate(passed: int, judged: int, labels: SampleLabels) -> CorrectedRate | None:
    """Return the rate at which people would pass all judged runs, with an interval for the labels and for the runs.

    Each label counts for as many runs as it stands for: a run that the judge failed had another chance to be labelled than one that it
    passed, and each is weighed by the inverse of its chance (Horvitz and Thompson, stratified by what the judge said).

    Args:
        passed: How many runs the judge passed.
        judged: How many it passed or failed.
        labels: What people say of a sample of them.

    Returns:
        The estimate; None where a group that there is has too few labels.

    Source: the intervals of the parts are Wilson's, put together by Zou and Donner 2008, https://doi.org/10.1002/sim.3095.
    """
    if not judged or (passed and labels.of_passed < LEAST_LABELS) or (passed < judged and labels.of_failed < LEAST_LABELS):
        return None
    weight, weights = passed / judged, wilson(passed, judged)
    good = labels.right_passes / labels.of_passed if labels.of_passed else 0.0
    bad = labels.wrong_fails / labels.of_failed if labels.of_failed else 0.0
    of_good = wilson(labels.right_passes, labels.of_passed) if labels.of_passed else None
    of_bad = wilson(labels.wrong_fails, labels.of_failed) if labels.of_failed else None
    value, slope = weight * good + (1 - weight) * bad, good - bad
    below = [(weight * (good - of_good.low)) if of_good else 0.0, ((1 - weight) * (bad - of_bad.low)) if of_bad else 0.0]
    above = [(weight * (of_good.high - good)) if of_good else 0.0, ((1 - weight) * (of_bad.high - bad)) if of_bad else 0.0]
    down, up = slope * (weight - weights.low), slope * (weights.high - weight)
    below.append(down if slope >= 0 else up)
    above.append(up if slope >= 0 else down)
    low, high = value - math.hypot(*below), value + math.hypot(*above)
    return CorrectedRate(raw=weight, value=value, low=max(low, 0.0), high=min(high, 1.0))
