"""The answer of a gate before all cases are asked, by a test for draws without replacement that may be looked at after every case.

The cases are a finite population in random order, so that what has been seen is a hypergeometric sample, whatever the cases have in common.
For the least number of passes with which the gate would be open, the likelihood of the sample under larger numbers, averaged over a fixed
grid, is divided by its likelihood under the largest number with which the gate would be shut. As long as the gate would be shut, that
ratio is a non-negative supermartingale which begins at 1: with a smaller number of passes the next case passes less often, and a pass is
what raises it. By Ville's inequality it ever reaches 1 / risk with a probability of at most the risk. The same holds of failures and an
open gate. Only one of the two can be wrong, so each may use the whole risk.

Source: I. Waudby-Smith and A. Ramdas, Confidence sequences for sampling without replacement, NeurIPS 2020 (the prior-posterior-ratio
martingale of a hypergeometric sample, section 2); J. Ville, Étude critique de la notion de collectif, 1939.
"""

import math
import random
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import Field

from gradeloop.stats.intervals import Figures

GRID = 32
"""The numbers over which the likelihood is averaged, equally far from one another."""

WORLDS, STEPS = 200, 40_000
"""The most worlds in which the share asked is measured, and the most cases that are asked in all of them."""

SLACK = 1e-9
"""The part of the wanted share that may be missing, as in the gate of a batch that has ended."""

Answer = Literal["passed", "failed"]

Kind = Literal["passed", "failed", "neither"]
"""The word of a case to a gate: one that is unsure, an error or not judged says neither, and is held against either answer."""


class EarlyAnswer(Figures):
    """The answer of a gate that was known before all cases were asked: `EarlyAnswer(answer="passed", asked=81, risk=0.05, wanted=0.9)`."""

    answer: Answer
    asked: int
    """The number of cases, in the order of the batch, after which it was known."""
    risk: float
    """The largest probability that asking all cases would say otherwise."""
    wanted: float
    """The share of the cases, 0 to 1, for which it holds that as many pass, or do not."""
    corrected: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether it is the answer of the rate that labels correct."""


class UntilDecided(Figures):
    """The wish that a batch ends as soon as its answer is known: `UntilDecided(risk=0.05)`."""

    risk: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The largest probability that asking all cases would say otherwise."""
    seed: int | None = None
    """The seed of the random order in which the cases were uploaded, as far as it is known."""
    pass_if: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """The values of a judge's output that pass a judgement, by key; by default a case passes as its rubric says."""
    first: int = Field(default=0, exclude_if=lambda value: not value)
    """The number of cases before all others: labels of them may measure the judge's error, or they may regress from a baseline."""


class EarlyGate:
    """A gate that is told of cases in their random order, until its answer is known.

    Example:
        ```python
        gate = EarlyGate(500, 0.9)
        for _ in range(100):
            gate.take("passed")
        gate.decision  # EarlyAnswer(answer="passed", asked=..., risk=0.05, wanted=0.9)
        ```
    """

    def __init__(self, total: int, wanted: float, risk: float = 0.05, *, bounds: tuple[int, int] | None = None, seen: int = 0) -> None:
        """Begin with no case.

        Args:
            total: The number of all cases.
            wanted: The least share of them, 0 to 1, that must pass.
            risk: The largest probability that the answer is another one than that of all cases.
            bounds: The least number of passes that passes, and the greatest that fails, where not their share decides; between them
                neither is the answer, and each is given for half the risk.
            seen: The number of cases that came before these, and are counted in the answer.
        """
        least = max(0, math.ceil((wanted - SLACK) * total))
        least, most = bounds or (least, least - 1)
        self._limit, self._corrected = math.log(1 if most == least - 1 else 2) - math.log(risk), bounds is not None
        self.decision: EarlyAnswer | None = None
        """The answer, once it is known."""
        self.seen = seen
        """The cases that were taken."""
        self._risk, self._wanted = risk, wanted
        logs = [0.0, *accumulate(math.log(number) for number in range(1, total + 1))]
        self.sides = (_Side(total, least - 1, "passed", logs), _Side(total, total - most - 1, "failed", logs))

    # The order is random and fixed before the first case, and every case is taken in it, errors included. If cases were taken as they end,
    # quick ones would come first, and their share is not that of all. The gate may look after each case, since Ville's bound holds for the
    # whole path and not for one look. Invariant: each side's ratio is at most 1 on average while its answer is wrong. A case that says
    # neither counts against both sides; without it the sample would be one of fewer cases than the ratio assumes.
    def take(self, kind: Kind) -> None:
        """Take the next case; once there is a decision, nothing changes it."""
        if self.decision is not None:
            return
        self.seen += 1
        for side in self.sides:
            side.take(kind)
            if side.reaches(self._limit):
                about = {"risk": self._risk, "wanted": self._wanted, "corrected": self._corrected}
                self.decision = EarlyAnswer(answer=side.answer, asked=self.seen, **about)
                return


class _Side:
    """The evidence for one of the two answers: that more cases are of its kind than the other one allows."""

    def __init__(self, total: int, null: int, answer: Answer, logs: list[float]) -> None:
        self.answer, self._total, self._null, self._logs = answer, total, max(-1, min(null, total)), logs
        self.of_kind = self.others = 0
        null, room = self._null, total - self._null
        self._alternatives = sorted({null + max(1, round(room * step / GRID)) for step in range(1, GRID + 1)}) if room else []

    def take(self, kind: Kind) -> None:
        self.of_kind += kind == self.answer
        self.others += kind != self.answer

    def reaches(self, limit: float) -> bool:
        """Return whether the logarithm of the ratio is that large; it is infinite where the other answer has become impossible."""
        if self.of_kind > self._null:
            return True
        # The mean over the grid is at most its largest term. So where even the likeliest number stays below the
        # limit, the mean need not be computed, and almost every look ends here. The likelihood rises up to that
        # number and falls behind it, hence the nearest possible number is the best one.
        most = self._total - self.others
        likeliest = (self._total + 1) * self.of_kind // (self.of_kind + self.others)
        best = self._log(min(most, max(self._null + 1, likeliest))) if self._null < most else -math.inf
        if best - self._log(self._null if self._null < most else 0) < limit:  # no number explains more: most looks end here
            return False
        known = [self._log(number) for number in self._alternatives if number <= most]
        ratio = math.fsum(math.exp(one - best) for one in known) / len(self._alternatives)
        return ratio > 0 and best + math.log(ratio) - self._log(self._null) >= limit

    def _log(self, number: int) -> float:
        """Return the logarithm of the likelihood of what was seen if so many cases of all are of the kind, up to a constant."""
        rest = self._total - number
        return self._logs[number] - self._logs[number - self.of_kind] + self._logs[rest] - self._logs[rest - self.others]


def share_asked(total: int, wanted: float, rate: float, risk: float = 0.05) -> float:
    """Return the share of the cases, 0 to 1, that is asked on average if so many of all pass, measured in simulated worlds.

    Example:
        ```python
        share_asked(500, 0.9, 0.97)  # about 0.15
        ```
    """
    generator, passing, asked = random.Random(0), round(rate * total), list[int]()  # noqa: S311 - simulated worlds
    while len(asked) < WORLDS and sum(asked) < STEPS:
        gate, left = EarlyGate(total, wanted, risk), passing
        for seen in range(total):
            passes = generator.random() * (total - seen) < left
            left -= passes
            gate.take("passed" if passes else "failed")
            if gate.decision is not None:
                break
        asked.append(gate.decision.asked if gate.decision is not None else total)
    return sum(asked) / len(asked) / total
