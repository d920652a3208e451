"""What model calls cost, in tokens."""

from pydantic import NonNegativeInt

from gradeloop.strict import Strict


class Usage(Strict):
    """Tokens and calls, summed over the model calls that were recorded."""

    input: NonNegativeInt = 0
    """Prompt tokens, the cached ones included."""
    cached: NonNegativeInt = 0
    """Prompt tokens that the provider read from its cache."""
    output: NonNegativeInt = 0
    """Completion tokens, reasoning included."""
    reasoning: NonNegativeInt = 0
    """Completion tokens spent on reasoning."""
    calls: NonNegativeInt = 0
    """Model calls that returned."""

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum, field by field."""
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})

    def minus(self, earlier: "Usage") -> "Usage":
        """Return what was added since `earlier`."""
        return Usage(**{name: getattr(self, name) - getattr(earlier, name) for name in Usage.model_fields})
