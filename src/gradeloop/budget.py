"""What a thread may cost."""

from typing import Annotated

from pydantic import Field, model_validator

from gradeloop.strict import Strict
from gradeloop.usage import Usage


class Budget(Strict):
    """What a thread's model calls may cost in all; checked before each call."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens in and out."""
    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """US dollars by the worker's price table; refused where the price of a model is not known."""

    @model_validator(mode="after")
    def _limits_something(self) -> "Budget":
        if self.max_tokens is None and self.max_cost_usd is None:
            raise ValueError("the budget limits nothing; give max_tokens, max_cost_usd or both")
        return self

    def overrun(self, usage: Usage) -> str | None:
        """Say what is used up, or None where another call may be made."""
        if self.max_tokens is not None and usage.tokens >= self.max_tokens:
            return f"{usage.tokens} of {self.max_tokens} tokens are used"
        if self.max_cost_usd is not None and (usage.cost_usd or 0) >= self.max_cost_usd:
            return f"{usage.cost_usd:.6g} of {self.max_cost_usd:g} US dollars are spent"
        return None
