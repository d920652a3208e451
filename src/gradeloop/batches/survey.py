"""What must be known of all results before the first of them is written: how many of each status, which variables, how long."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import CaseResult

MOST_NAMES = 1_000
"""Of variables that are listed: with more of them, no file has a column for each."""


@dataclass(frozen=True)
class Survey:
    """A first look at all results."""

    statuses: Counter[CaseStatus] = field(default_factory=Counter)
    names: tuple[str, ...] = ()
    """Of the variables, in the order in which they first appear; where there are more than `MOST_NAMES`, not all."""
    seconds: float = 0.0
    """In which requests were in flight, summed."""

    @classmethod
    def of(cls, results: Iterable[CaseResult]) -> Self:
        """Return what is known after all results have been looked at once."""
        statuses: Counter[CaseStatus] = Counter()
        names: dict[str, None] = {}
        seconds = 0.0
        for result in results:
            statuses[result.status] += 1
            names.update(dict.fromkeys(result.vars) if len(names) <= MOST_NAMES else {})
            seconds += result.usage.seconds
        return cls(statuses, tuple(names), seconds)
