"""What a model can be asked for, by family: a dated table, and a safe path for models that it does not know."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

from gradeloop.modelspec import Effort, ModelSpec
from gradeloop.strict import Strict


class Capability(Strict):
    """What a family of models takes; the defaults are the safe path."""

    temperature: bool = False
    """Whether it takes a temperature."""
    seed: bool = False
    efforts: tuple[Effort, ...] = ()
    """The values of reasoning_effort that it takes."""
    thinking: tuple[Literal["adaptive", "budget", "disabled"], ...] = ()
    """The settings of thinking that it takes."""
    answer: Literal["schema", "tagged"] = "tagged"
    """Whether its API keeps a JSON Schema, or the answer stands between tags of the call's own."""
    schema_with_tools: bool = False
    """Whether one request may have tools and a schema."""
    stream: bool = False
    """Whether its replies are streamed."""
    max_output: int | None = None
    """Tokens of the longest completion; None where nobody said."""


class Family(Capability):
    """Models of one provider whose names match."""

    provider: str
    models: str
    """A regular expression for the whole name."""


class Catalogue(Strict):
    """The table."""

    as_of: str
    families: tuple[Family, ...]


@cache
def catalogue() -> Catalogue:
    """Return the table, read once."""
    text = (files("activities.providers") / "capabilities.toml").read_text(encoding="utf-8")
    return Catalogue.model_validate(tomllib.loads(text))


def capability(spec: ModelSpec) -> Capability:
    """Return what a model takes: its family's, the first that matches; what the request itself says of the schema counts more."""
    found = _family(spec.provider, spec.model)
    if spec.config.structured_output is None:
        return found
    return found.model_copy(update={"answer": "schema" if spec.config.structured_output else "tagged"})


@cache
def _family(provider: str, model: str) -> Capability:
    fits = (each for each in catalogue().families if each.provider == provider and re.fullmatch(each.models, model))
    return next(fits, Capability())
