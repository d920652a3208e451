"""Keys tried against their providers, for `gradeloop doctor`."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Literal

from activities.errors import model_fault
from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.base import Strict
from gradeloop.contract.model_spec import PROVIDERS, ModelSpec
from gradeloop.contract.provider import Endpoint
from gradeloop.settings.catalog import PriceTable, load_catalogue, load_prices, published_version, retirement_of
from gradeloop.settings.endpoints import PROTOCOLS

SECONDS = 15.0
"""Seconds within which a provider answers."""

KeyVerdict = Literal["accepted", "refused", "unreachable", "not installed", "not set", "not asked"]


class KeyReport(Strict):
    """The answer of a provider to the worker's key."""

    provider: str
    address: str
    verdict: KeyVerdict
    why: str | None = None
    unpriced: tuple[str, ...] = ()
    """The models of text that the provider lists and no table prices."""
    retiring: tuple[str, ...] = ()
    """Those that it lists and stops serving within two months, or should not serve any more, each with the day."""


class WorkerExamination(Strict):
    """The keys and tables of a worker with this environment."""

    keys: tuple[KeyReport, ...]
    models_as_of: str
    prices_as_of: str
    published_prices: str
    """The version of genai-prices."""
    own_models: int
    """The families that the user's own table of models adds."""
    own_models_as_of: date | None
    own_prices: int
    """The rows that the user's own price table adds."""
    own_prices_as_of: date | None


async def examine(environment: Environment) -> WorkerExamination:
    """Ask every provider whose key is set.

    Raises:
        InvalidRequest: The user's own prices cannot be read.
    """
    providers, table = Providers(environment), load_prices(environment.prices)
    places = list(_asked(environment))
    for protocol in dict.fromkeys(str(place.protocol) for _, place in places):
        with suppress(ModuleNotFoundError, ValueError):  # which the report says; or there is none
            import_module(PROTOCOLS.find(protocol).package)  # that it takes seconds on a slow machine is no provider's silence
    try:
        reports = await asyncio.gather(*(_report(name, place, providers, environment, table) for name, place in places))
    finally:
        await providers.aclose()
    models = load_catalogue()
    return WorkerExamination(
        keys=tuple(reports),
        models_as_of=models.as_of,
        prices_as_of=table.as_of,
        published_prices=published_version(),
        own_models=models.own,
        own_models_as_of=models.own_as_of,
        own_prices=table.own,
        own_prices_as_of=table.own_as_of,
    )


def _asked(environment: Environment) -> Iterator[tuple[str, Endpoint]]:
    """Yield the endpoints that have keys or are the worker's own; a cloud's own clients list no models."""
    servers = {name: (server, server.now()) for name, server in environment.servers.items()}
    ours = [name for name in servers if name in PROVIDERS and not servers[name][0].configured]
    yield from ((name, place) for name in ours if (place := servers[name][1]).key or place.project)
    yield from (("openai_compatible", place) for place in environment.compatible)
    known = {place.base_url for place in environment.compatible}
    for name, (server, place) in servers.items():
        is_ours = server.configured or (name not in ours and place.key is not None and not server.keyless)
        if is_ours and place.cloud not in {"bedrock", "vertex"} and place.base_url not in known and not server.takes_tokens:
            yield name, place


TEXT = re.compile(
    r"(gpt-|o\d|chatgpt-|claude-|gemini-|mistral-|ministral-|magistral-)"
    r"(?!.*(image|audio|realtime|tts|transcribe|live|search|embed|robotics))"
)
"""The names of models that write text, as far as the providers' own names tell."""

SOON = timedelta(days=60)
"""The time before its last day in which a model is named."""


async def _report(name: str, place: Endpoint, providers: Providers, environment: Environment, table: PriceTable) -> KeyReport:
    server, report = environment.servers.get(name), partial(KeyReport, provider=name, address=place.base_url)
    if server and (missing := server.complaint or (None if place.key or place.project else f"{server.source.origin} has none")):
        return report(verdict="not set", why=missing)
    try:
        async with asyncio.timeout(SECONDS):
            adapter = providers.adapter(name, place)
            if not hasattr(adapter, "models"):
                return report(verdict="not asked", why="its protocol lists no models")
            listed: tuple[str, ...] = await adapter.models()
    except ModuleNotFoundError as error:
        return report(verdict="not installed", why=f"the package {error.name} is missing")
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is reported
        fault = model_fault(error, model=name, secrets=environment.secrets)
        refused = fault is not None and fault.kind in {"auth", "bad_request", "quota_exhausted"}
        why = str(fault) if fault else f"{type(error).__name__}: {error}"
        return report(verdict="refused" if refused else "unreachable", why=why)
    specs, until = [ModelSpec(id=f"{name}:{model}") for model in listed if model.strip()], datetime.now(UTC).date() + SOON
    unpriced = [spec.model for spec in specs if TEXT.match(spec.model) and table.price(spec, address=place.base_url) is None]
    retiring = [f"{spec.model} ({end.on})" for spec in specs if (end := retirement_of(spec)) and end.on <= until]
    return report(verdict="accepted", unpriced=tuple(unpriced), retiring=tuple(retiring))
