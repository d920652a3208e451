"""What models take and what they cost: two dated tables."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Effort, ModelSpec
from gradeloop.errors import InvalidRequest, explain
from gradeloop.settings.endpoints import listed_model


class Capability(Strict):
    """What a family of models takes; the defaults ask for nothing that a model may refuse."""

    temperature: bool = False
    """Whether it takes a temperature."""
    seed: bool = False
    efforts: tuple[Effort, ...] = ()
    """The values of `reasoning_effort` that it takes."""
    thinking: tuple[Literal["adaptive", "budget", "disabled"], ...] = ()
    """The settings of `thinking` that it takes."""
    answer: Literal["schema", "tagged"] = "tagged"
    """Whether its API enforces a JSON Schema, or the answer stands between tags of the call's own."""
    schema_with_tools: bool = False
    """Whether one request may have tools and a schema."""
    stream: bool = False
    """Whether its replies are streamed."""
    max_output: int | None = None
    """Tokens of the longest completion; None where it is unknown."""


class Family(Capability):
    """What the models of one provider take whose names match."""

    provider: str
    models: str
    """A regular expression for the whole name."""


class Catalogue(Strict):
    """The dated table of what models take."""

    as_of: str
    families: tuple[Family, ...]


@cache
def load_catalogue() -> Catalogue:
    """Load the table that is shipped, once."""
    text = (files("gradeloop.settings") / "capabilities.toml").read_text(encoding="utf-8")
    return Catalogue.model_validate(tomllib.loads(text))


def capability_of(spec: ModelSpec) -> Capability:
    """Return what a model takes, by the first family that matches; the request's own `structured_output` overrides the family's answer."""
    family = _family(*listed_model(spec.provider, spec.model))
    if spec.config.structured_output is None:
        return family
    return family.model_copy(update={"answer": "schema" if spec.config.structured_output else "tagged"})


@cache
def _family(provider: str, model: str) -> Capability:
    families = (family for family in load_catalogue().families if family.provider == provider and re.fullmatch(family.models, model))
    return next(families, Capability())


MILLION = 1_000_000

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(Strict):
    """The price of a family of models, in US dollars per million tokens."""

    provider: str
    models: str
    """A regular expression for the whole name."""
    over: int = 0
    """The prompt's tokens above which this row applies."""
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

    def cost(self, usage: Usage) -> float | None:
        """Return what the tokens cost in US dollars; None where they are not known."""
        if usage.input is None or usage.output is None:
            return None
        fresh = max(usage.input - usage.cached - usage.cache_written, 0)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_written is None else self.cache_written
        total = fresh * self.input + usage.cached * cached + usage.cache_written * written + usage.output * self.output
        return round(total / MILLION, 10)


class PriceTable(Strict):
    """A dated table of prices; the first row that fits a model applies."""

    as_of: str
    prices: tuple[Price, ...]

    def cost(self, spec: ModelSpec, usage: Usage) -> float | None:
        """Return what one call cost in US dollars; None where the model's price, or what the call used, is unknown."""
        rows = self._rows(spec.provider, spec.model) or self._rows(*listed_model(spec.provider, spec.model))
        reached = [row for row in rows if row.over == 0 or (usage.input or 0) > row.over]
        if not reached:
            return None
        tiers = [row for row in reached if row.models == reached[0].models]
        return max(tiers, key=lambda row: row.over).cost(usage)

    def _rows(self, provider: str, model: str) -> list[Price]:
        return [row for row in self.prices if row.provider == provider and re.fullmatch(row.models, model)]


class OwnPrices(Strict):
    """A user's own rows of prices."""

    prices: tuple[Price, ...]


@cache
def load_shipped_prices() -> PriceTable:
    """Load the prices that are shipped, once."""
    return PriceTable.model_validate(tomllib.loads((files("gradeloop.settings") / "prices.toml").read_text(encoding="utf-8")))


def load_prices(own: Path | None) -> PriceTable:
    """Load the shipped prices, with a user's own rows before them.

    Raises:
        InvalidRequest: The user's file is no such table; the message names file, row and field.
    """
    if own is None:
        return load_shipped_prices()
    try:
        rows = OwnPrices.model_validate(tomllib.loads(own.read_text(encoding="utf-8"))).prices
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"GRADELOOP_PRICES: {str(own)!r} is no readable TOML file: {error}") from None
    except ValidationError as error:
        raise InvalidRequest(f"GRADELOOP_PRICES: {str(own)!r}: {explain(error)}") from None
    shipped = load_shipped_prices()
    return PriceTable(as_of=shipped.as_of, prices=(*rows, *shipped.prices))
