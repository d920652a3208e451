"""Settings and prices of models: dated tables of families and prices, with a user's own rows before them, and genai-prices offline."""

import os
import re
import time
import tomllib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Effort, ModelConfig, ModelSpec
from gradeloop.errors import InvalidRequest, explain
from gradeloop.settings.endpoints import is_azure, listed_model

MODELS = "GRADELOOP_MODELS"
"""The variable that names a user's own table of models."""

Thinking = Literal["adaptive", "budget", "between_tools", "disabled"]


def refuse_non_pattern(value: str) -> str:
    """Return a regular expression as it is; raise ValueError where it is none."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


@lru_cache(maxsize=4096)
def matches(pattern: str, name: str) -> bool:
    """Return whether a regular expression matches a whole name."""
    return re.fullmatch(pattern, name) is not None


class Dialect(Strict):
    """The part of JSON Schema that an API enforces."""

    bounds: Literal["none", "lists", "all"] = "none"
    """The lengths that a schema may limit: those of lists, or those of texts, too."""
    properties: int | None = None
    """The most properties in all objects of a schema; None where no limit is published."""


class Capability(Dialect):
    """The settings that a family of models takes; None is not known, and a setting of it is passed on as it is."""

    temperature: bool | Literal["without_reasoning"] | None = None
    """True if it takes a temperature, False if not, or only at the effort `none`."""
    default_effort: Effort | None = None
    """The effort at which it reasons where a request names none."""
    seed: bool | None = None
    efforts: tuple[Effort, ...] | None = None
    """The values of `reasoning_effort` that it takes."""
    thinking: tuple[Thinking, ...] | None = None
    """The settings of `thinking` that it takes."""
    efforts_unthinking: tuple[Effort, ...] | None = None
    """The efforts that it takes beside `thinking` that is `disabled` or `between_tools`; None for all of `efforts`."""
    min_budget: int | None = None
    """The smallest number of tokens that it takes as `thinking`."""
    max_budget: int | None = None
    answer: Literal["schema", "tagged"] | None = None
    """`schema` if its API enforces a JSON Schema; else the answer stands between tags of the call's own. None: ask the endpoint."""
    context: int | None = None
    """Tokens of the longest prompt and completion together."""
    parameters: int | None = None
    """The number of its weights."""
    reasons: bool | None = None
    """Whether it reasons before it answers."""
    schema_with_tools: bool = False
    """Whether one request may have tools and a schema."""
    stream: bool = False
    """Whether its replies are streamed."""
    slow: bool = False
    """Whether a call may take an hour."""
    max_output: int | None = None
    """Tokens of the longest completion; None where it is unknown."""


ServerKind = Literal["llamacpp", "ollama", "lmstudio", "vllm", "sglang", "tgi", "litellm", "unknown"]


class ServerFacts(Strict):
    """The facts that a model server was found to have; None is not known."""

    kind: ServerKind = "unknown"
    models: tuple[str, ...] = ()
    """The models that it lists."""
    answer: Literal["schema", "tagged"] | None = None
    bounds: Literal["none", "lists", "all"] = "none"
    context: int | None = None
    """Tokens of the longest prompt and completion of one slot."""
    slots: int | None = None
    """Calls that it makes at the same time."""
    parameters: int | None = None
    """The number of the model's weights."""
    stream: bool | None = None
    reasons: bool | None = None
    """Whether it thought before it answered."""


class Family(Capability):
    """The settings that the models of one provider take whose names match."""

    provider: str
    models: str
    """A regular expression for the whole name."""
    like: str | None = None
    """The provider whose row of the same model counts for all that this one leaves open; the pattern's group `model` is its name there."""

    @field_validator("models")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        return refuse_non_pattern(value)


class Retirement(Strict):
    """The day from which a provider no longer serves some models."""

    provider: str
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Their names; dated snapshots of them are meant, too."""
    on: date
    instead: str | None = None
    """The model that the provider recommends instead."""

    def names(self, spec: ModelSpec) -> bool:
        """Return whether a model is one of these, or a dated snapshot of one."""
        if spec.provider != self.provider:
            return False
        base = re.sub(r"-(20\d{6}|20\d\d-\d\d-\d\d|\d{4}|latest)$", "", spec.model)
        return spec.model in self.models or base in self.models


class Catalogue(Strict):
    """The dated table of what models take, and of those that are no longer served."""

    as_of: str
    families: tuple[Family, ...]
    retired: tuple[Retirement, ...] = ()
    dialects: dict[str, Dialect] = Field(default_factory=dict)
    """The dialects of providers, and of the cloud `azure`, that families leave open."""
    own: int = 0
    """The number of families that are a user's own."""
    own_as_of: date | None = None
    """Date of the user's own table, if it names one."""


class OwnModels(Strict):
    """A user's own table of models."""

    as_of: date | None = None
    families: tuple[Family, ...] = ()
    retired: tuple[Retirement, ...] = ()


_Table = TypeVar("_Table", bound=Strict)


def read_own_table(path: Path, kind: type[_Table], variable: str) -> _Table:
    """Read a user's own table; raise InvalidRequest, which names variable, file, row and field, where it is not such a table."""
    try:
        return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{variable}: {str(path)!r} is not a readable TOML file: {error}") from None
    except ValidationError as error:
        raise InvalidRequest(f"{variable}: {str(path)!r}: {explain(error)}") from None


@cache
def load_shipped_catalogue() -> Catalogue:
    """Load the table that is shipped, once: each family with what its group says."""
    table = tomllib.loads((files("gradeloop.settings") / "capabilities.toml").read_text(encoding="utf-8"))
    families = [group | family for group in table.pop("groups") for family in group.pop("families")]
    return Catalogue.model_validate(table | {"families": families})


def read_catalogue(own: str) -> Catalogue:
    """Read the shipped table behind the rows of a user's own file, if any; raise InvalidRequest where that is not such a table."""
    if not own:
        return load_shipped_catalogue()
    table, shipped = read_own_table(Path(own), OwnModels, MODELS), load_shipped_catalogue()
    return Catalogue(
        as_of=shipped.as_of,
        families=(*table.families, *shipped.families),
        retired=(*table.retired, *shipped.retired),
        dialects=shipped.dialects,
        own=len(table.families),
        own_as_of=table.as_of,
    )


_load = cache(read_catalogue)


def load_catalogue() -> Catalogue:
    """Load the shipped table, with the rows of the file that `GRADELOOP_MODELS` names before it; a process reads each file once.

    Raises:
        InvalidRequest: The user's file is not such a table.
    """
    return _load(os.environ.get(MODELS, "").strip())


def capability_of(spec: ModelSpec) -> Capability:
    """Return what a model takes, by the first family that matches; the request's own `structured_output` overrides the family's answer."""
    takes = _family(os.environ.get(MODELS, ""), *listed_model(spec.provider, spec.model))
    if is_azure(spec.provider, spec.config.base_url):
        takes = _spoken(takes, "azure", frozenset())
    if (facts := server_facts(spec)) is not None:
        form = {"answer": facts.answer, "bounds": facts.bounds} if takes.answer is None and facts.answer else {}
        more = {"stream": takes.stream or bool(facts.stream), "context": takes.context or facts.context, "parameters": facts.parameters}
        takes = takes.model_copy(update={**form, **more, "reasons": facts.reasons if takes.reasons is None else takes.reasons})
    if spec.config.structured_output is None:
        return takes
    return takes.model_copy(update={"answer": "schema" if spec.config.structured_output else "tagged"})


_facts: dict[tuple[str, str | None, str], ServerFacts] = {}


def declare_facts(spec: ModelSpec, facts: ServerFacts) -> None:
    """Make the facts about a model's server known in this process, where they count for all that no table says."""
    _facts[spec.provider, spec.config.base_url, spec.model] = facts


def server_facts(spec: ModelSpec) -> ServerFacts | None:
    """Return the facts about a model's server; None where it was not asked."""
    return _facts.get((spec.provider, spec.config.base_url, spec.model))


def is_answer_open(spec: ModelSpec) -> bool:
    """Return whether no table says how a model's answer is bound."""
    return _family(os.environ.get(MODELS, ""), *listed_model(spec.provider, spec.model)).answer is None


def _spoken(takes: Capability, name: str, said: AbstractSet[str]) -> Capability:
    """Return what a model takes in a dialect, of which `said` is said already."""
    dialect = load_catalogue().dialects.get(name, Dialect())
    return takes.model_copy(update={field: getattr(dialect, field) for field in Dialect.model_fields if field not in said})


@lru_cache(maxsize=1024)
def _family(own: str, provider: str, model: str) -> Capability:
    """Return what a model takes.

    `own`: the name of the user's own file, by which a result is remembered.
    """
    for family in load_catalogue().families:
        match = re.fullmatch(family.models, model) if family.provider == provider else None
        if match and family.like:
            base = _family(own, family.like, match["model"])
            said = {name: getattr(family, name) for name in family.model_fields_set & set(Capability.model_fields)}
            return base.model_copy(update=said)
        if match:
            return _spoken(family, provider, family.model_fields_set)
    return Capability()


def settings_complaint(spec: ModelSpec) -> str | None:
    """Return which setting the model does not take, and what it takes; None where it takes all, as far as is known."""
    config, takes = spec.config, capability_of(spec)
    known = f"by the table of {load_catalogue().as_of}"
    if config.temperature is not None and (why := _temperature_complaint(config, takes)):
        return f"temperature {config.temperature:g} cannot be set for {spec.id!r} ({known}); {why}"
    if config.seed is not None and takes.seed is False:
        return f"seed {config.seed} cannot be set for {spec.id!r} ({known}); leave it out"
    if config.reasoning_effort is not None and takes.efforts is not None and config.reasoning_effort not in takes.efforts:
        efforts = ", ".join(takes.efforts) or "none"
        return f"reasoning_effort {config.reasoning_effort!r} is unknown to {spec.id!r} ({known}). Known: {efforts}."
    if config.max_tokens is not None and takes.max_output is not None and config.max_tokens > takes.max_output:
        return f"max_tokens {config.max_tokens} is above what {spec.id!r} writes, {takes.max_output} ({known}); lower it"
    return _thinking_complaint(spec, takes, known)


def _temperature_complaint(config: ModelConfig, takes: Capability) -> str | None:
    if takes.temperature is False:
        return "leave it out"
    reasons = takes.temperature == "without_reasoning" and (config.reasoning_effort or takes.default_effort) != "none"
    return "it takes one only with reasoning_effort 'none'" if reasons else None


def _thinking_complaint(spec: ModelSpec, takes: Capability, known: str) -> str | None:
    thinking, effort = spec.config.thinking, spec.config.reasoning_effort
    if thinking is None or takes.thinking is None:
        return None
    if (thinking if isinstance(thinking, str) else "budget") not in takes.thinking:
        ways = ", ".join("a number of tokens" if way == "budget" else way for way in takes.thinking)
        return f"thinking {thinking!r} cannot be set for {spec.id!r} ({known}). It takes: {ways or 'none; use reasoning_effort'}."
    if isinstance(thinking, int):
        return _budget_complaint(thinking, spec.id, takes, known)
    beside = takes.efforts_unthinking if thinking in {"disabled", "between_tools"} else None
    if effort is None or beside is None or effort in beside:
        return None
    return f"thinking {thinking!r} cannot be set for {spec.id!r} with reasoning_effort {effort!r} ({known}), with {', '.join(beside)} alone"


def _budget_complaint(budget: int, model: str, takes: Capability, known: str) -> str | None:
    """Return what is wrong with a number of tokens; an answer must have room beside it."""
    most = min((limit for limit in (takes.max_budget, takes.max_output and takes.max_output - 1) if limit), default=None)
    if takes.min_budget is not None and budget < takes.min_budget:
        return f"thinking {budget} is below what {model!r} takes, {takes.min_budget} tokens ({known}); raise it"
    if most is not None and budget > most:
        return f"thinking {budget} is above what {model!r} takes, {most} tokens ({known}); lower it"
    return None


LEFT_OUT = {
    "openai": "the Responses API has no such setting",
    "google_genai": "the Gemini API takes thinking or reasoning_effort, not both",
}
"""The reasons why a provider's request has no place for `thinking`."""


def lacks_place_for_thinking(spec: ModelSpec) -> bool:
    """Return whether a model's protocol has no place for the `thinking` that is set."""
    thinking = spec.config.thinking
    if spec.provider == "openai":
        return thinking is not None and thinking != "disabled"
    return spec.provider == "google_genai" and thinking is not None and spec.config.reasoning_effort is not None


def settings_notes(spec: ModelSpec, today: date) -> tuple[str, ...]:
    """Return what an evaluation says about a model: that it is retired, or that settings went to it which no table knows."""
    if (gone := retirement_of(spec)) is None or gone.on > today:
        return tuple(_unchecked_notes(spec))
    cure = f", which names {gone.instead!r} instead" if gone.instead else ""
    return (f"{spec.id}: retired on {gone.on} by its provider{cure}", *_unchecked_notes(spec))


def retirement_of(spec: ModelSpec) -> Retirement | None:
    """Return when a model's provider stops serving it; None where no day is known."""
    return _retirement(os.environ.get(MODELS, ""), spec.id)


@lru_cache(maxsize=256)
def _retirement(own: str, model: str) -> Retirement | None:  # noqa: ARG001 - the user's own file, by which a result is remembered
    spec = ModelSpec(id=model)
    return next((row for row in load_catalogue().retired if row.names(spec)), None)


def _unchecked_notes(spec: ModelSpec) -> Iterator[str]:
    config, takes = spec.config, capability_of(spec)
    left_out = takes.thinking is None and lacks_place_for_thinking(spec)
    settings = {
        "temperature": (config.temperature, takes.temperature),
        "seed": (config.seed, takes.seed),
        "reasoning_effort": (config.reasoning_effort, takes.efforts),
        "thinking": (None if left_out else config.thinking, takes.thinking),
    }
    passed = [f"{name} {value!r}" for name, (value, known) in settings.items() if value is not None and known is None]
    if passed:
        table = f"the table of models of {load_catalogue().as_of}"
        yield f"{spec.id}: {table} does not say whether it takes {', '.join(passed)}; passed on as set"
    if left_out:
        yield f"{spec.id}: thinking {config.thinking!r} is left out; {LEFT_OUT[spec.provider]}"


PRICES = "GRADELOOP_PRICES"
"""The variable that names a user's own table of prices."""

PUBLISHED = "genai_prices.data_snapshot"
"""The module that holds the published prices: 1.6 MB of them, which nobody needs before the first call."""

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
        return refuse_non_pattern(value)

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
    """A dated table of prices; the first row that fits a model applies, and where none does, that of genai-prices."""

    as_of: str
    prices: tuple[Price, ...]
    own: int = 0
    """The number of rows that are a user's own."""
    own_as_of: date | None = None
    """Date of the user's own table, if it names one."""

    def price(self, spec: ModelSpec, tokens: int = 0, *, address: str = "") -> Price | None:
        """Return the row that applies to one call; None where the model's price is not known.

        `address`: the base URL at which it is called, by which the price of a compatible server's model is found.
        """
        listed = listed_model(spec.provider, spec.model)
        rows = self._rows(spec.provider, spec.model) or self._rows(*listed)
        reached = [row for row in rows if row.over == 0 or tokens > row.over]
        if not reached:  # genai-prices, as they hold now
            published = _published_prices(*listed, address or spec.config.base_url or "", int(time.time() // 60))
            reached = [row for row in published if row.over == 0 or tokens > row.over]
        # Rows of one pattern are the tiers of one price. The first pattern that fits decides, and within it the
        # highest tier that the prompt reaches; a tier of a later, wider pattern must not win by its threshold.
        return max((row for row in reached if row.models == reached[0].models), key=lambda row: row.over, default=None)

    def _rows(self, provider: str, model: str) -> list[Price]:
        return [row for row in self.prices if row.provider == provider and matches(row.models, model)]

    def cost(self, spec: ModelSpec, usage: Usage, *, address: str = "") -> float | None:
        """Return what one call cost in US dollars; None where the model's price, or what the call used, is unknown."""
        price = self.price(spec, usage.input or 0, address=address)
        return price.cost(usage) if price else None


class OwnPrices(Strict):
    """A user's own rows of prices."""

    as_of: date | None = None
    prices: tuple[Price, ...]


@cache
def load_shipped_prices() -> PriceTable:
    """Load the rows that are shipped, once."""
    return PriceTable.model_validate(tomllib.loads((files("gradeloop.settings") / "prices.toml").read_text(encoding="utf-8")))


def load_prices(own: Path | None) -> PriceTable:
    """Load the shipped prices behind a user's own rows; raise InvalidRequest, with file, row and field, where those cannot be read."""
    shipped = load_shipped_prices()
    if own is None:
        return shipped
    table = read_own_table(own, OwnPrices, PRICES)
    rows = (*table.prices, *shipped.prices)
    return PriceTable(as_of=shipped.as_of, prices=rows, own=len(table.prices), own_as_of=table.as_of)


def published_version() -> str:
    """Return the version of genai-prices, whose data are a part of it."""
    return version("genai-prices")


_PUBLISHERS = {"anthropic": "anthropic", "openai": "openai", "google_genai": "google", "openrouter": "openrouter"}
"""The names that genai-prices has for providers; it knows any other by the address of its server."""


# The minute is a part of the key, so that the cache is right for prices that change with the hour, and a
# worker that runs for weeks sees those that begin on a date.
@lru_cache(maxsize=1024)
def _published_prices(provider: str, model: str, address: str, minute: int) -> tuple[Price, ...]:
    """Return a model's prices in a minute since 1970, a row a tier: some change with a date, some with the hour."""
    from genai_prices.data_snapshot import get_snapshot

    publisher = _PUBLISHERS.get(provider)
    if publisher is None and not address:
        return ()
    try:
        found = get_snapshot().find_provider_model(model, None, publisher, None if publisher else address)[1]
    except LookupError:
        return ()
    prices = found.get_prices(datetime.fromtimestamp(minute * 60, UTC))
    if prices.input_mtok is None or prices.output_mtok is None:
        return ()
    kinds = {"input": "input_mtok", "cached": "cache_read_mtok", "cache_written": "cache_write_mtok", "output": "output_mtok"}
    given = {name: getattr(prices, key) for name, key in kinds.items()}
    starts = {0, *(tier.start for price in given.values() for tier in getattr(price, "tiers", ()))}
    return tuple(
        Price(provider=provider, models=re.escape(model), over=start, **{name: _at(price, start) for name, price in given.items()})
        for start in sorted(starts)
    )


def _at(price: Any, start: int) -> Any:  # noqa: ANN401 - genai-prices types its prices by name only
    """Return a price in the tier that begins at a prompt's length, which holds for all tokens of such a prompt."""
    if not hasattr(price, "tiers"):
        return None if price is None else float(price)
    reached = [tier.price for tier in price.tiers if start >= tier.start]
    return float(reached[-1] if reached else price.base)
