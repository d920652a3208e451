"""A batch as it was read for a comparison, from wherever it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradeloop.batches.case_result import BatchStatus
from gradeloop.comparisons.compared_case import ComparedCase
from gradeloop.strict import Strict


class Cost(Strict):
    """The tokens and the cost of a batch."""

    tokens: int = 0
    """In and out."""
    cost_usd: float | None = None
    """None where it is not known, or nothing was called."""


@dataclass(frozen=True)
class BatchSource:
    """A batch as it was read."""

    source: str
    cases: Sequence[ComparedCase]
    batch_id: str | None = None
    suite: str | None = None
    created: str | None = None
    status: BatchStatus | None = None
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()


def total_cost(parts: Iterable[Cost]) -> Cost:
    """Return the sum; a part whose cost is not known makes it unknown, but for one that used nothing."""
    tokens, dollars, unknown = 0, 0.0, False
    for part in parts:
        tokens += part.tokens
        dollars += part.cost_usd or 0.0
        unknown |= part.cost_usd is None and part.tokens > 0
    return Cost(tokens=tokens, cost_usd=None if unknown or not tokens else dollars)
