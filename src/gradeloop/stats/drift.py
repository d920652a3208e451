"""A test for drift of a rate, which may be read after every window without more false alarms than it states."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from gradeloop.stats.intervals import Figures, wilson

SHIFTS = (0.25, 0.5, 1.0, 1.5, 2.5)
"""Shifts of the log-odds that the test bets on: from 0.95 to 0.937, 0.92, 0.875, 0.81 and 0.61."""

_LOWEST = 1e-6
"""A baseline of exactly 0 or 1 would make one single result an infinite surprise."""

_ENOUGH = 700.0
"""The largest logarithm of evidence that is added: a float holds no more, and no alarm needs as much."""

_PRIOR = 1 / 30
"""The variance between windows before any was seen, as a share of that of one run: a rate of 0.92 then varies by 0.05."""

_PRIOR_PAIRS = 8
"""The pairs of blocks for which what is known at the scale before counts."""

_MOST = 5
"""The most weight of a scale's largest difference, as a multiple of the others': one step does not show variance."""


class Spread(Figures):
    """The variance of the rates of windows, at every scale: blocks of 1, 2, 4 and more windows, each beside the next one.

    Differences of neighbours (the Allan variance) see what comes and goes, such as a daily cycle, and hardly a step or a slow drift.

    Source: Allan 1966, https://doi.org/10.1109/PROC.1966.4634.
    """

    windows: int = 0
    rates: float = 0.0
    """The sum of the windows' rates."""
    sizes: float = 0.0
    """The sum of the squares of the windows' runs."""
    noise: float = 0.0
    """The sum of the variances that the rates have by chance, since they are of so few runs."""
    scales: tuple[tuple[float, float, float], ...] = ()
    """Figures of each scale: the mean of the newest first block of a pair, and of the squared differences of all pairs the sum
    without the largest, and the largest."""

    def after(self, rate: float, runs: int) -> "Spread":
        """Return the spread with one more window."""
        # The scales work like the digits of a binary counter. Scale k holds a first block of 2^k windows while
        # digit k of the number of windows is 1. One more window carries: two blocks of one size are a pair,
        # whose difference is kept, and their mean is a block of the next scale. So the state grows only with
        # the logarithm of the windows.
        windows, rates, block, scale = self.windows + 1, self.rates + rate, rate, 0
        chance = rate * (1 - rate) / (runs - 1) if runs > 1 else rates / windows * (1 - rates / windows)  # one run varies as all do
        scales = [*self.scales, (0.0, 0.0, 0.0)][: windows.bit_length()]
        while self.windows >> scale & 1:
            first, others, largest = scales[scale]
            square, block = (first - block) ** 2, (first + block) / 2
            scales[scale] = (first, others + min(square, largest), max(square, largest))
            scale += 1
        scales[scale] = (block, *scales[scale][1:])
        return Spread(windows=windows, rates=rates, sizes=self.sizes + runs**2, noise=self.noise + chance, scales=tuple(scales))

    def variance(self, rate: float, longest: int) -> float:
        """Return the variance of a window's rate beyond that of its runs, with that which its neighbours share: 0 where nothing varies.

        It is the largest of all scales, where a scale with few pairs of blocks is taken to be twice the one before.

        `rate`: the rate that is tested, of which the variance is a share before a window was seen.
        """
        # At each scale the mean squared difference of neighbouring blocks shows their variance, less what few
        # runs vary by chance. A scale with few pairs is mostly the scale before, doubled: the longest scales
        # have one or two pairs, whose difference would be mere noise. The largest difference is capped against
        # the others, or the one step that the test is for would count as variance and hide itself.
        noise = self.noise / max(self.windows, 1)
        most, known = 0.0, _PRIOR / 2 * rate * (1 - rate)
        for scale, (_, others, largest) in enumerate(self.scales or ((0.0, 0.0, 0.0),)):
            size, pairs = 2**scale, self.windows >> scale + 1
            if scale and (not pairs or size > longest):
                break
            total = others * size / 2 + _PRIOR_PAIRS * (2 * known + noise)
            total += min(largest * size / 2, _MOST * total / (pairs + _PRIOR_PAIRS - 1))
            known = max(total / (pairs + _PRIOR_PAIRS) - noise, 0.0)
            most = max(most, known)
        return most


class DriftState(Figures):
    """The state of a drift test between windows; a new state begins a test."""

    windows: int = 0
    log_evidence: tuple[float, ...] = ()
    """The logarithm of the evidence for each shift; empty before the first window."""
    spread: Spread = Spread()

    def learned(self, passed: int, runs: int) -> "DriftState":
        """Return the state of a test that begins behind this window, which only says how far windows lie apart."""
        return DriftState(spread=self.spread.after(passed / runs, runs) if runs else self.spread)


@dataclass(frozen=True)
class DriftTest:
    """A sequential test of whether a rate has left its baseline, at an unknown time and by an unknown amount.

    In `horizon` windows whose rates vary around one that has not left it the chance of any alarm is at most `alpha`, however often it is
    looked at, however many runs the windows have, and whatever the distribution of their rates is: only their mean and their variance
    count, which is that of the runs and that between the windows before. A cycle in which the rate leaves the baseline for a while is
    known once the windows before have shown it.

    The evidence is the Shiryaev-Roberts sum over all windows in which the change may have begun, averaged over several amounts; as a
    mixture of e-processes with equal weights it exceeds `horizon / alpha` with probability `alpha` at most (Ville's inequality). A window
    counts as a square whose mean is at most 1 + d²/v at any rate that is not lower, with a variance v and a shift d (Cantelli).

    Source: Shin, Ramdas and Rinaldo 2022, https://arxiv.org/abs/2203.03532.
    """

    baseline: float
    """The rate that is not to be left, 0 to 1: a target, or `lowest_likely_rate` of the runs before."""
    direction: Literal["down", "up"] = "down"
    alpha: float = 0.05
    horizon: int = 1000
    """The windows for which `alpha` holds; a test that goes on is as good for any other so many."""
    longest: int = 64
    """The most windows that share what varies, such as half a day of them where the rate has a daily cycle."""

    # Each shift keeps one number, the evidence that the change began at any of the windows so far: E' = (1 + E) times this window's ratio.
    # Invariant: at the baseline the mean of each ratio is at most 1, whatever the distribution, since a window counts as a square over
    # 1 + d²/v. With a binomial likelihood, windows that differ by more than chance would raise false alarms. The variance comes only from
    # the windows before; with this window in it, a large step would excuse itself.
    def after(self, state: DriftState, passed: int, runs: int) -> DriftState:
        """Return the state after one more window, if it has runs; evidence without a spread, of an older release, is not continued."""
        if not runs:
            return state
        hits, base = (passed, self.baseline) if self.direction == "down" else (runs - passed, 1 - self.baseline)
        base = min(max(base, _LOWEST), 1 - _LOWEST)
        variance = base * (1 - base) / runs + state.spread.variance(base, self.longest)
        before = state.log_evidence if state.spread.windows and state.log_evidence else (-math.inf,) * len(SHIFTS)
        evidence = []
        for log_before, shift in zip(before, SHIFTS, strict=True):
            moved = base - 1 / (1 + (1 - base) / base * math.exp(shift))  # its log-odds are so much lower
            surprise = max(1 + moved * (base - hits / runs) / variance, _LOWEST)
            log_ratio = 2 * math.log(surprise) - math.log1p(moved**2 / variance)
            evidence.append(log_ratio + math.log1p(math.exp(min(log_before, _ENOUGH))))
        return DriftState(windows=state.windows + 1, log_evidence=tuple(evidence), spread=state.learned(passed, runs).spread)

    def evidence(self, state: DriftState) -> float:
        """Return the evidence as a share of what an alarm needs: an alarm is due from 1 on."""
        return math.fsum(math.exp(min(value, _ENOUGH)) for value in state.log_evidence) / len(SHIFTS) * self.alpha / self.horizon

    def alarms(self, state: DriftState) -> bool:
        """Return whether the rate has left its baseline."""
        return self.evidence(state) >= 1


def lowest_likely_rate(passed: int, runs: int, error: float, spread: Spread, longest: int = 64) -> float:
    """Return a rate below which that of these runs is with a probability of `error` at most, where their windows have such a spread.

    As the baseline of a `DriftTest` with half of its `alpha` it takes in that the rate before is itself an estimate.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953, of as many runs as are worth these ones (Kish's design effect).
    """
    if not runs:
        return 0.0
    rate = (passed + 0.5) / (runs + 1)
    inflation = 1 + spread.variance(rate, longest) * spread.sizes / (rate * (1 - rate) * runs)
    return wilson(passed / inflation, runs / inflation, NormalDist().inv_cdf(1 - error)).low
