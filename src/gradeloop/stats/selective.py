"""Abstention: from which confidence on a judge may decide, so that its error stays below a stated risk."""

import math
from collections.abc import Sequence

from gradeloop.contract.base import Strict
from gradeloop.stats.intervals import CONFIDENCE


class Band(Strict):
    """The verdicts that a judge may give alone: those at least this confident."""

    threshold: float
    """The lowest confidence that decides; what is below it is unsure."""
    risk: float
    """The error rate that was asked for, of the verdicts that decide."""
    error: float
    """The share of errors among the labelled verdicts that decide."""
    bound: float
    """The upper bound of that error, at 95 % for all thresholds together."""
    coverage: float
    """The share of labelled verdicts that decide."""
    labels: int


def is_below(share: float, threshold: float) -> bool:
    """Return whether a share of votes is too small to decide; what rounding takes from it does not count."""
    return share < threshold - 1e-9


LEVELS = 20
"""The most thresholds that are tried; more of them would widen every bound."""


def choose_band(verdicts: Sequence[tuple[float, bool]], risk: float) -> Band | None:
    """Return the band that decides most while its error stays below a risk, with 95 % certainty.

    Every threshold is tested by the exact binomial bound of its error, divided among all thresholds that are tried.

    Args:
        verdicts: The confidence of each labelled verdict, and whether it was right.
        risk: The error rate to stay below, above 0 and below 1.

    Returns:
        None where no threshold can be trusted with so few labels.

    Source: Geifman and El-Yaniv 2017, "Selective Classification for Deep Neural Networks", https://arxiv.org/abs/1705.08500.
    """
    levels = sorted({confidence for confidence, _ in verdicts})
    tried = [levels[len(levels) * at // LEVELS] for at in range(LEVELS)] if len(levels) > LEVELS else levels
    for threshold in tried:
        decided = [right for confidence, right in verdicts if confidence >= threshold]
        errors = len(decided) - sum(decided)
        level = (1 - CONFIDENCE) / len(tried)
        if errors < len(decided) and _at_most(errors, len(decided), risk) <= level:
            return Band(
                threshold=threshold,
                risk=risk,
                error=errors / len(decided),
                bound=upper_bound(errors, len(decided), level),
                coverage=len(decided) / len(verdicts),
                labels=len(verdicts),
            )
    return None


def upper_bound(errors: int, count: int, level: float) -> float:
    """Return the highest rate under which so few errors still have this probability.

    Source: Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404.
    """
    if not count or errors >= count:
        return 1.0
    low, high = errors / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(errors, count, middle) > level else (low, middle)
    return high


def _at_most(errors: int, count: int, share: float) -> float:
    """Return the probability of at most so many errors."""
    if share >= 1:
        return 0.0
    log_share, log_rest, ways = math.log(share or 1e-300), math.log1p(-share), math.lgamma(count + 1)
    return math.fsum(
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * log_share + (count - k) * log_rest) for k in range(errors + 1)
    )
