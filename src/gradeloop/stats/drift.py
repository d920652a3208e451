"""Tests for drift of a rate, which may be read after every window without more false alarms than they state."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gradeloop.stats.intervals import Figures, upper_bound

Direction = Literal["down", "up"]

SHIFTS = (0.25, 0.5, 1.0, 1.5, 2.5)
"""Shifts of the log-odds that the test bets on: from 0.95 to 0.937, 0.92, 0.875, 0.81 and 0.61."""

_LOWEST = 1e-6
"""A baseline of exactly 0 or 1 would make one single result an infinite surprise."""


class DriftState(Figures):
    """The state of a drift test between windows; a new state begins a test."""

    windows: int = 0
    log_evidence: tuple[float, ...] = ()
    """The logarithm of the evidence for each shift; empty before the first window."""


@dataclass(frozen=True)
class DriftTest:
    """A sequential test of whether a rate has left its baseline, at an unknown time and by an unknown amount.

    In `horizon` windows of a rate that has not left it the chance of any alarm is at most `alpha`, however often it is looked at, and
    however many runs the windows have. The evidence is the Shiryaev-Roberts sum over all windows in which the change may have begun,
    averaged over several amounts; as a mixture of e-processes with equal weights it exceeds `horizon / alpha` with probability `alpha` at
    most (Ville's inequality).

    Source: Shin, Ramdas and Rinaldo 2022, https://arxiv.org/abs/2203.03532.
    """

    baseline: float
    """The rate that is not to be left, 0 to 1: a target, or `lowest_likely_rate` of the runs before."""
    direction: Direction = "down"
    alpha: float = 0.05
    horizon: int = 1000
    """The windows for which `alpha` holds; a test that goes on is as good for any other so many."""

    def after(self, state: DriftState, passed: int, runs: int) -> DriftState:
        """Return the state after one more window; a window without runs says nothing, and is not counted."""
        if not runs:
            return state
        hits, base = (passed, self._base) if self.direction == "down" else (runs - passed, self._base)
        before = state.log_evidence or (-math.inf,) * len(SHIFTS)
        evidence = []
        for log_before, shift in zip(before, SHIFTS, strict=True):
            moved = 1 / (1 + (1 - base) / base * math.exp(shift))  # its log-odds are so much lower
            log_ratio = hits * math.log(moved / base) + (runs - hits) * math.log((1 - moved) / (1 - base))
            evidence.append(log_ratio + _log_sum(log_before, 0.0))
        return DriftState(windows=state.windows + 1, log_evidence=tuple(evidence))

    def evidence(self, state: DriftState) -> float:
        """Return the evidence as a share of what an alarm needs: an alarm is due from 1 on."""
        if not state.log_evidence:
            return 0.0
        total = -math.inf
        for value in state.log_evidence:
            total = _log_sum(total, value)
        return math.exp(min(total - math.log(len(SHIFTS)) - math.log(self.horizon / self.alpha), 700.0))

    def alarms(self, state: DriftState) -> bool:
        """Return whether the rate has left its baseline."""
        return self.evidence(state) >= 1

    @property
    def _base(self) -> float:
        """The baseline as a rate that the test expects to fall."""
        rate = self.baseline if self.direction == "down" else 1 - self.baseline
        return min(max(rate, _LOWEST), 1 - _LOWEST)


class CusumState(Figures):
    """The state of a CUSUM between windows."""

    total: float = 0.0


@dataclass(frozen=True)
class Cusum:
    """Page's cumulative sum for a decline from one rate to a known worse one.

    The chance of any alarm in `horizon` windows at `baseline` or above is at most `alpha`: at the end of each window the sum's
    exponential is at most the Shiryaev-Roberts sum of that one alternative.

    Source: Page 1954, https://doi.org/10.1093/biomet/41.1-2.100.
    """

    baseline: float
    worse: float
    """The rate that is to be noticed, below the baseline."""
    alpha: float = 0.05
    horizon: int = 1000
    """The windows for which `alpha` holds."""

    def after(self, state: CusumState, passed: int, runs: int) -> CusumState:
        """Return the state after one more window."""
        base, worse = (min(max(rate, _LOWEST), 1 - _LOWEST) for rate in (self.baseline, self.worse))
        step = passed * math.log(worse / base) + (runs - passed) * math.log((1 - worse) / (1 - base))
        return CusumState(total=max(0.0, state.total + step))

    def alarms(self, state: CusumState) -> bool:
        """Return whether the rate has declined."""
        return state.total >= math.log(self.horizon / self.alpha)


@lru_cache(maxsize=1024)
def lowest_likely_rate(passed: int, runs: int, error: float = 0.025) -> float:
    """Return the lowest rate at which so many of the runs would pass with a probability above `error`, exactly.

    As the baseline of a `DriftTest` with half of its `alpha` it takes in that the rate before is itself an estimate.

    Source: Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404.
    """
    return 1 - upper_bound(runs - passed, runs, error) if runs else 0.0


def _log_sum(one: float, other: float) -> float:
    """Return the logarithm of the sum of two numbers by their logarithms."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
