"""The 95 % intervals of pass rates and of their differences, exact bounds, and McNemar's test."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


ROUNDING = 1e-12
"""Error of sums: figures this close are the same one, and a spread below this is none."""

Parts = Sequence[tuple[float, float]]
"""Number of the runs or labels of each cluster that count, and of all that it has, at least one."""


class Figures(BaseModel):
    """A frozen model of figures, which refuses unknown keys, but ignores them in what a later version recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _ignores_later_keys(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - raw input of any shape
        later = info.context is not None and isinstance(value, Mapping)  # the one context that there is says that the data is recorded
        return {key: item for key, item in value.items() if key in cls.model_fields} if later else value


class Interval(Figures):
    """The 95 % confidence interval of a rate, or of a difference of two."""

    low: float
    high: float


class Estimate(Figures):
    """A figure with its 95 % interval; without a value where it is undefined, and without an interval where that is."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    of: int = 0
    """The number of runs over which it is computed."""

    @classmethod
    def within(cls, value: float | None, interval: Interval | None, of: int) -> "Estimate":
        """Return a figure with the interval in which it lies."""
        return cls(value=value, low=interval and interval.low, high=interval and interval.high, of=of)

    @classmethod
    def share(cls, part: float, whole: int) -> "Estimate":
        """Return a share with Wilson's interval."""
        return cls.within(part / whole, wilson(part, whole), whole) if whole else cls()

    @classmethod
    def of_clusters(cls, clusters: Iterable[Parts], *, several: bool = False) -> "Estimate":
        """Return the share of rows, each a part and a whole, with the interval over their clusters; Wilson's where each row is one.

        `several`: whether clusters of one row are clusters all the same, since they have more rows that do not count here.
        """
        rows = [row for row in clusters if row]
        summed = [row for row in map(_summed, rows) if row[1]]
        (part, whole), count = _summed(summed), sum(map(len, rows))
        if not whole:
            return cls(of=count)
        alone = len(summed) < 2 or (not several and all(len(row) == 1 for row in rows))  # noqa: PLR2004 - no spread of one
        return cls.within(part / whole, wilson(part / whole * count, count) if alone else clustered(summed), count)

    @classmethod
    def weighted(cls, parts: Sequence[tuple[float, "Estimate"]]) -> "Estimate":
        """Return the sum of independent figures, each times its weight.

        Source: the limits of each are recovered as variances (MOVER): Zou, Huang and Zhang 2009, https://doi.org/10.1002/sim.3525.
        """
        value, low, high = 0.0, 0.0, 0.0
        for weight, one in parts:
            if one.value is None or one.low is None or one.high is None:
                return cls()
            value += weight * one.value
            low, high = math.hypot(low, weight * (one.value - one.low)), math.hypot(high, weight * (one.high - one.value))
        return cls(value=value, low=value - low, high=value + high, of=sum(one.of for _, one in parts))

    def texts(self, form: str = "{:.1%}") -> tuple[str, str]:
        """Return the figure and its interval as text."""
        if self.value is None:
            return "undefined", ""
        bounds = "" if self.low is None or self.high is None else f"{form.format(self.low)} to {form.format(self.high)}"
        return form.format(self.value), bounds


def wilson(passed: float, runs: float, z: float = Z) -> Interval:
    """Return Wilson's score interval of a rate, which unlike the usual interval holds for few runs, and at 0 and 1.

    Args:
        passed: How many passed; a fraction where the runs are means themselves, and then the interval is too wide, never too narrow.
        runs: How many there were, above 0; a fraction where they are worth fewer independent ones.
        z: The quantile of the interval's level.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    square = z * z
    middle, width = 2 * passed + square, z * math.sqrt(square + 4 * passed * (1 - passed / runs))
    low, high = ((middle + sign * width) / (2 * (runs + square)) for sign in (-1, 1))
    return Interval(low=0.0 if passed <= 0 else low, high=1.0 if passed >= runs else high)


def t_quantile(degrees: int) -> float:
    """Return the quantile of Student's t at the upper end of a 95 % interval, within 0.3 % from 3 degrees of freedom on.

    Source: the expansion of Abramowitz and Stegun 1964, 26.7.5.
    """
    return Z + math.fsum(term / float(degrees) ** power for power, term in enumerate(_T_TERMS, 1))


_T_TERMS = (
    (Z**3 + Z) / 4,
    (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
    (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
    (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92_160,
)


def clustered(parts: Parts) -> Interval:
    """Return the interval of a share over two or more clusters, whose runs resemble each other: Wilson's, over the runs they are worth."""
    part, whole = _summed(parts)
    worth = independent_runs(parts)
    return wilson(part / whole * worth, worth, t_quantile(len(parts) - 1))


def _summed(parts: Parts) -> tuple[float, float]:
    return math.fsum(part for part, _ in parts), math.fsum(whole for _, whole in parts)


def independent_runs(parts: Parts) -> float:
    """Return how many independent runs those of two or more clusters are worth, at most as many as there are.

    Source: Kish 1965, the design effect of a ratio; Student's t for few clusters, as in Korn and Graubard 1998.
    """
    count, (part, whole) = len(parts), _summed(parts)
    added = _ADDED * whole / count**2
    rows = [*parts, (added, added), (0.0, added)]  # without these, few clusters that happen to be alike promise that all are
    all_rows = whole + 2 * added
    share = (part + added) / all_rows
    spread = count / (count - 1) * math.fsum((one - share * size) ** 2 for one, size in rows) / all_rows**2
    return min(share * (1 - share) / spread, whole)


def worth_of_one(parts: Parts) -> float:
    """Return how many independent runs one is worth, at most 1."""
    count, (_, total) = len(parts), _summed(parts)
    if not 1 < count < total:
        return 1.0 if count == total else 1 / total
    return independent_runs(parts) / total * (Z / t_quantile(count - 1)) ** 2


def dispersion(parts: Parts) -> float:
    """Return how much more the shares of two or more parts vary than by chance, at least 1: so many runs are worth one independent run.

    Source: McCullagh and Nelder 1989, Generalized Linear Models, 4.5.2: Pearson's statistic over its degrees of freedom.
    """
    part, whole = _summed(parts)
    share = (part + 0.5) / (whole + 1)
    squares = math.fsum(size * (one / size - share) ** 2 for one, size in parts)
    return max(squares / (share * (1 - share) * (len(parts) - 1)), 1.0)


_ADDED = 5.0
"""The size of the two clusters that are added, times the number of clusters, in mean clusters: chosen by simulation."""


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
    return min(1.0, 2 * at_most(min(fell, rose), fell + rose, 0.5))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values, 0 to 1, corrected for there being several, in their order.

    Source: Holm 1979, https://www.jstor.org/stable/4615733.
    """
    corrected, least = [0.0] * len(values), 0.0
    for done, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        corrected[at] = least = max(least, min(1.0, (len(values) - done) * values[at]))
    return corrected


def upper_bound(errors: int, count: int, level: float) -> float:
    """Return the highest rate under which so few errors still have this probability.

    Source: Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404.
    """
    if not count or errors >= count:
        return 1.0
    low, high = errors / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(errors, count, middle) > level else (low, middle)
    return high


def at_most(errors: int, count: int, share: float) -> float:
    """Return the probability of at most so many errors; logarithms make 100,000 as fast as ten."""
    if share >= 1:
        return 0.0
    log_share, log_rest, ways = math.log(share or 1e-300), math.log1p(-share), math.lgamma(count + 1)
    return math.fsum(
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * log_share + (count - k) * log_rest) for k in range(errors + 1)
    )


def mean(values: Iterable[float]) -> float | None:
    """Return the mean; None where there is nothing."""
    known = list(values)
    return math.fsum(known) / len(known) if known else None
