"""The 95 % intervals of pass rates and of their differences, and McNemar's test."""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from gradeloop.contract.base import Strict

CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Interval(Strict):
    """The 95 % confidence interval of a rate, or of a difference of two."""

    low: float
    high: float


def wilson(passed: float, runs: int) -> Interval:
    """Return Wilson's score interval of a rate, which unlike the usual interval holds for few runs, and at 0 and 1.

    Args:
        passed: How many passed; a fraction where the runs are means themselves, and then the interval is too wide, never too narrow.
        runs: How many there were, at least 1.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    square = _Z * _Z
    middle, width = 2 * passed + square, _Z * math.sqrt(square + 4 * passed * (1 - passed / runs))
    low, high = ((middle + sign * width) / (2 * (runs + square)) for sign in (-1, 1))
    return Interval(low=0.0 if passed <= 0 else low, high=1.0 if passed >= runs else high)


def difference(passed: int, runs: int, passed_before: int, runs_before: int) -> Interval:
    """Return the interval of the rate now minus the rate before, of independent runs.

    Source: Newcombe 1998, method 10, https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I.
    """
    return _squared_and_added(passed, runs, passed_before, runs_before, 0.0)


def paired_difference(now: Sequence[float], before: Sequence[float]) -> Interval:
    """Return the interval of the mean pass rate now minus the one before, of the same cases, at least one.

    A case counts once, however often it ran: runs of one case resemble each other, so that more of them say little about other cases.
    With one run for each case this is the source's method; with means the interval is too wide, never too narrow.

    Source: Newcombe 1998, paired method 10, https://doi.org/10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C.
    """
    count, passed, passed_before = len(now), math.fsum(now), math.fsum(before)
    together = count * math.fsum(one * other for one, other in zip(now, before, strict=True)) - passed * passed_before
    together = max(together - count / 2, 0.0) if together > 0 else together
    spread = math.sqrt(max(passed * (count - passed) * passed_before * (count - passed_before), 0.0))
    return _squared_and_added(passed, count, passed_before, count, together / spread if spread else 0.0)


def _squared_and_added(passed: float, runs: int, passed_before: float, runs_before: int, correlation: float) -> Interval:
    now, before = passed / runs, passed_before / runs_before
    one, other = wilson(passed, runs), wilson(passed_before, runs_before)
    below = _joined(now - one.low, other.high - before, correlation)
    above = _joined(one.high - now, before - other.low, correlation)
    return Interval(low=now - before - below, high=now - before + above)


def _joined(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(one * one - 2 * correlation * one * other + other * other, 0.0))


def mcnemar(fell: int, rose: int) -> float:
    """Return the two-sided p-value, 0 to 1, of McNemar's exact test on the cases whose verdict changed.

    Source: McNemar 1947, https://doi.org/10.1007/BF02295996; exact as in https://doi.org/10.1186/1471-2288-13-91.
    """
    count = fell + rose
    return min(1.0, 2 * math.fsum(_tosses(count, heads) for heads in range(min(fell, rose) + 1)))


def _tosses(count: int, heads: int) -> float:
    """Return the probability of so many heads in so many tosses; logarithms make 100,000 tosses as fast as ten."""
    return math.exp(math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1) - count * math.log(2))


def mean(values: Iterable[float]) -> float | None:
    """Return the mean; None where there is nothing."""
    known = list(values)
    return math.fsum(known) / len(known) if known else None
