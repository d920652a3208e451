"""What model calls cost: tokens, calls, seconds, and money where the price is known."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from gradeloop.strict import Strict

_DECIMALS = 10
"""Of a cost in US dollars: sums of floats stay short, and a tenth of a nanodollar is below every price of a token."""


class Usage(Strict):
    """Tokens, calls, seconds and cost, summed over the model calls that were recorded."""

    input: NonNegativeInt = 0
    """Prompt tokens, the cached and the cache-written ones included."""
    cached: NonNegativeInt = 0
    """Prompt tokens that the provider read from its cache."""
    cache_written: NonNegativeInt = 0
    """Prompt tokens that the provider wrote to its cache, where it says so."""
    output: NonNegativeInt = 0
    """Completion tokens, reasoning included."""
    reasoning: NonNegativeInt = 0
    """Completion tokens spent on reasoning."""
    calls: NonNegativeInt = 0
    """Model calls that returned, malformed and refused replies included."""
    attempts: NonNegativeInt = 0
    """Requests that were sent, the failed ones included."""
    seconds: NonNegativeFloat = 0
    """Time in which a request was in flight, summed."""
    cost_usd: Annotated[float, Field(ge=0)] | None = None
    """US dollars by the worker's price table; None where nothing was called, or the price of some call is unknown."""

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum, field by field; an unknown cost makes the sum's cost unknown."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Usage(**sums, seconds=round(self.seconds + other.seconds, 3), cost_usd=_cost(self, other))

    def minus(self, earlier: "Usage") -> "Usage":
        """Return what was added since `earlier`."""
        differences = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTS}
        since = earlier.cost_usd or 0.0 if earlier.cost_usd is not None or not earlier.calls else None
        known = self.cost_usd is not None and since is not None
        cost = round(max(self.cost_usd - since, 0.0), _DECIMALS) if known and differences["calls"] else None  # type: ignore[operator]  # known
        return Usage(**differences, seconds=round(max(self.seconds - earlier.seconds, 0.0), 3), cost_usd=cost)

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input + self.output


_COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")


def _cost(one: Usage, other: Usage) -> float | None:
    """Add two costs; a part without calls adds nothing, and makes nothing unknown."""
    costs = [each.cost_usd for each in (one, other) if each.calls]
    known = [cost for cost in costs if cost is not None]
    return round(sum(known), _DECIMALS) if costs and len(known) == len(costs) else None
