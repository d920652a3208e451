"""A pass rate as people see it, from the labels of a sample that was drawn by what a judge said."""

import math

from gradeloop.contract.base import Strict
from gradeloop.stats.correction import CorrectedRate
from gradeloop.stats.intervals import wilson

LEAST_LABELS = 10
"""The fewest labelled runs of those that the judge passed, and of those that it failed, from which anything is said."""


class SampleLabels(Strict):
    """What people say of some of the runs that a judge passed, and of some that it failed."""

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
