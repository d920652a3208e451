"""Criteria over all cases: in how many each got worse, and in how many better."""

from collections import Counter
from dataclasses import dataclass, field

from gradeloop.comparisons.comparison import OUTCOMES, CriterionSide, CriterionTally, Outcome

_TEXTS = 1_000
"""Texts of a criterion that are told apart: with variables in them each case has one of its own."""


@dataclass
class _Sum:
    name: str
    texts: set[str] = field(default_factory=set)
    counts: Counter[Outcome] = field(default_factory=Counter)
    a: Counter[str] = field(default_factory=Counter)
    b: Counter[str] = field(default_factory=Counter)


class Tallies:
    """What is added up, case by case, of criteria by their ids."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self.reworded: Counter[str] = Counter()
        """In how many cases a criterion's text is another one in B."""

    def add(self, name: str, text: str, outcome: Outcome, a: CriterionSide | None, b: CriterionSide | None, *, reworded: bool) -> None:
        """Count a criterion of one case."""
        found = self._sums.setdefault(name, _Sum(text))
        found.counts[outcome] += 1
        if len(found.texts) < _TEXTS:
            found.texts.add(text)
        self.reworded[name] += reworded
        if a is None or b is None:
            return
        for total, side in ((found.a, a), (found.b, b)):
            total.update(judged=side.judged, passed=side.passed, overridden=int(side.overridden))

    def worst_first(self) -> tuple[CriterionTally, ...]:
        """Return the criteria, those that regressed in most cases first."""
        order = sorted(self._sums.items(), key=lambda each: (-each[1].counts["regressed"], each[1].counts["improved"]))
        return tuple(_tally(name, found) for name, found in order)


def _tally(name: str, found: _Sum) -> CriterionTally:
    counts = {outcome: found.counts[outcome] for outcome in OUTCOMES if found.counts[outcome]}
    a, b = (
        CriterionSide(judged=total["judged"], passed=total["passed"], overridden=total["overridden"] > 0) for total in (found.a, found.b)
    )
    return CriterionTally(id=name, name=found.name, texts=len(found.texts), counts=counts, a=a, b=b)
