"""Anchors: labelled runs that are judged again and again, so that a change of the judge is told from a change of the world."""

import math
from typing import Annotated, Literal

from pydantic import Field

from gradeloop.contract.base import Strict
from gradeloop.stats.drift import DriftState, DriftTest, Spread, lowest_likely_rate
from gradeloop.text import percent

MOST_ANCHORS = 500
"""The most anchors of a monitor: all of them are judged in its first tick."""

ANCHORS_PER_TICK = 20
"""The anchors that a tick judges where nothing else is said."""

ANCHOR_BASELINE = 300
"""The repeated judgements of anchors from which a monitor takes how steady its judge is."""

CLEAR_FACTOR = 20
"""Likelihood ratio of the two explanations from which on one of them is reported."""

_LONGEST = 8
"""The ticks that may share how steady a judge is, since their anchors are judged in turn."""

_LEAST, _MOST = 0.005, 0.995
"""Bounds of a judge's steadiness: one odd verdict does not prove more."""

Moved = Literal["world", "judge", "unclear"]
"""Cause of a changed rate: the runs (`world`) or the judge; `unclear` while the anchors do not tell."""


class AnchorPlan(Strict):
    """The anchors of a monitor, which are in the store."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Checksum of the runs and their labels."""
    total: Annotated[int, Field(ge=2, le=MOST_ANCHORS)]
    per_tick: Annotated[int, Field(ge=1, le=MOST_ANCHORS)] = ANCHORS_PER_TICK
    """Number of anchors that a tick judges, in turn."""


class AnchorCounts(Strict):
    """Verdicts of a judge on some anchors, counted."""

    judged: int = 0
    """Anchors with a verdict."""
    right: int = 0
    """Those of which it says what their label says."""
    repeated: int = 0
    """Those that had a verdict before."""
    same: int = 0
    """Those of which it says what it first said."""
    passed_before: int = 0
    """Those that it passed at first."""
    passed_again: int = 0
    """Those that it passed at first, and now."""
    errors: int = 0
    """Anchors that ended in an error, or were not judged."""

    def plus(self, other: "AnchorCounts") -> "AnchorCounts":
        """Return the counts of both together."""
        return AnchorCounts.model_validate({name: getattr(self, name) + getattr(other, name) for name in AnchorCounts.model_fields})

    @property
    def text(self) -> str:
        """Text about them for people."""
        if self.repeated:
            return f"of {self.same} of {self.repeated} anchors it says what it first said"
        return "no anchor was judged a second time yet"


class AnchorState(Strict):
    """Steadiness of the judge at first, and the tests of whether it still holds."""

    same: int = 0
    repeated: int = 0
    passed_before: int = 0
    passed_again: int = 0
    spread: Spread = Spread()
    strict_spread: Spread = Spread()
    """The spread of the first ticks, of all anchors and of those that the judge passed at first."""
    test: DriftState = DriftState()
    """The test of all anchors."""
    strict_test: DriftState = DriftState()
    """The test of those that it passed at first, in which a stricter judge shows sooner."""

    @property
    def is_known(self) -> bool:
        """Whether the judge's own steadiness is known."""
        return self.repeated >= ANCHOR_BASELINE

    def after(self, counts: AnchorCounts, alpha: float) -> "AnchorState":
        """Return the state after a tick: its anchors are a part of the beginning, or evidence."""
        all_of_them, strict = (counts.same, counts.repeated), (counts.passed_again, counts.passed_before)
        if not self.is_known:
            names = ("same", "repeated", "passed_before", "passed_again")
            sums = {name: getattr(self, name) + getattr(counts, name) for name in names}
            known = {"test": self.test.learned(*all_of_them), "strict_test": self.strict_test.learned(*strict)}
            changed = sums | known | {"spread": known["test"].spread, "strict_spread": known["strict_test"].spread}
        else:
            test, strict_test = self.tests(alpha)
            changed = {"test": test.after(self.test, *all_of_them), "strict_test": strict_test.after(self.strict_test, *strict)}
        return self.model_copy(update=changed)

    def alarms(self, alpha: float) -> bool:
        """Return whether the judge says something else of more anchors than it did."""
        test, strict_test = self.tests(alpha)
        return self.is_known and (test.alarms(self.test) or strict_test.alarms(self.strict_test))

    def restarted(self) -> "AnchorState":
        """Return the state with tests that begin, but know how far ticks lie apart."""
        return self.model_copy(update={"test": self.test.learned(0, 0), "strict_test": self.strict_test.learned(0, 0)})

    def tests(self, alpha: float) -> tuple[DriftTest, DriftTest]:
        """Return the tests of how many anchors the judge still says the same of: of all, and of those that it passed at first.

        The chance of a false alarm is `alpha`: half for each test, and half of that for what is not known of the beginning.
        """
        first = lowest_likely_rate(self.same, self.repeated, alpha / 4, self.spread, _LONGEST)
        strict = lowest_likely_rate(self.passed_again, self.passed_before, alpha / 4, self.strict_spread, _LONGEST)
        return DriftTest(first, alpha=alpha / 4, longest=_LONGEST), DriftTest(strict, alpha=alpha / 4, longest=_LONGEST)

    @property
    def text(self) -> str:
        """Text about the beginning for people."""
        return f"{percent(self.same / self.repeated)} at the beginning" if self.repeated else "nothing is known of its beginning"


def moved_of(state: AnchorState, counts: AnchorCounts, fall: float, usual: float | None = None) -> Moved:
    """Return what explains that a rate has changed, by the likelihoods of what the anchors say.

    Had the judge moved, it would say something else of as large a share of the anchors as of the runs; had the world, of no more than ever.

    `usual`: the pass rate from which it fell: the anchors are then those that the judge passed at first, of which a stricter judge fails
    the same share as of the runs that it passed. None for any other rate, of which all anchors speak.
    """
    # Two explanations compete. If the world moved, the judge repeats itself on the anchors as steadily as
    # ever. If the judge moved, it contradicts itself on as large a share of the anchors as the rate has
    # fallen. The likelihood ratio of the two says which one the counts support, and a factor of CLEAR_FACTOR
    # is wanted before one is named: a wrong cause would send people to the wrong repair.
    known = (state.same, state.repeated, counts.same, counts.repeated)
    if usual:
        known, fall = (state.passed_again, state.passed_before, counts.passed_again, counts.passed_before), fall / usual
    first_same, first, same, total = known
    if not state.is_known or not first or not total or fall <= 0:
        return "unclear"
    steady = min(max((first_same + 0.5) / (first + 1), _LEAST), _MOST)
    moved = max(steady * (1 - fall), _LEAST)
    ratio = same * math.log(moved / steady) + (total - same) * math.log((1 - moved) / (1 - steady))
    if abs(ratio) < math.log(CLEAR_FACTOR):
        return "unclear"
    return "judge" if ratio > 0 else "world"
