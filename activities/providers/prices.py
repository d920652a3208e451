"""What a call costs, by a dated table and the user's own rows before it."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator

from gradeloop.errors import InvalidRequest, explain
from gradeloop.modelspec import ModelSpec
from gradeloop.strict import Strict
from gradeloop.usage import Usage

MILLION = 1_000_000

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(Strict):
    """US dollars per million tokens."""

    provider: str
    models: str
    """A regular expression for the whole name."""
    over: int = 0
    """The prompt's tokens above which this row counts."""
    input: Dollars
    cached: Dollars | None = None
    cache_written: Dollars | None = None
    output: Dollars

    @field_validator("models")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    def cost(self, usage: Usage) -> float:
        """Return what the tokens cost."""
        fresh = max(usage.input - usage.cached - usage.cache_written, 0)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_written is None else self.cache_written
        total = fresh * self.input + usage.cached * cached + usage.cache_written * written + usage.output * self.output
        return round(total / MILLION, 10)


class PriceTable(Strict):
    """Rows, of which the first that fits counts."""

    as_of: str
    prices: tuple[Price, ...]

    def cost(self, spec: ModelSpec, usage: Usage) -> float | None:
        """Return what one call cost in US dollars; None where the model's price is not known."""
        provider, model = spec.provider, spec.model
        rows = [row for row in self.prices if row.provider == provider and re.fullmatch(row.models, model)]
        first = next((row for row in rows if _reached(row, usage)), None)
        if first is None:
            return None
        tiers = [row for row in rows if row.models == first.models and _reached(row, usage)]
        return max(tiers, key=lambda row: row.over).cost(usage)


def _reached(row: Price, usage: Usage) -> bool:
    return row.over == 0 or usage.input > row.over


class OwnPrices(Strict):
    """A user's own table."""

    prices: tuple[Price, ...]


@cache
def known_prices() -> PriceTable:
    """Return the table that is shipped, read once."""
    return PriceTable.model_validate(tomllib.loads((files("activities.providers") / "prices.toml").read_text(encoding="utf-8")))


def prices(own: Path | None) -> PriceTable:
    """Return the shipped table, a user's rows before its own.

    Raises:
        InvalidRequest: The file is no such table; the message names file, row and field.
    """
    if own is None:
        return known_prices()
    try:
        rows = OwnPrices.model_validate(tomllib.loads(own.read_text(encoding="utf-8"))).prices
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"GRADELOOP_PRICES: {str(own)!r} is no readable TOML file: {error}") from None
    except ValidationError as error:
        raise InvalidRequest(f"GRADELOOP_PRICES: {str(own)!r}: {explain(error)}") from None
    shipped = known_prices()
    return PriceTable(as_of=shipped.as_of, prices=(*rows, *shipped.prices))
