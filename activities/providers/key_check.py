"""Keys tried against their providers, for `gradeloop doctor`."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from typing import Literal

from activities.errors import model_fault
from activities.providers.endpoint import Endpoint
from activities.providers.environment import Environment
from activities.providers.http import SdkClients
from gradeloop.contract.base import Strict
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.settings.catalog import load_catalogue, retirement_of
from gradeloop.settings.endpoints import EndpointProtocol
from gradeloop.settings.prices import PriceTable, load_prices, published_version

SECONDS = 15.0
"""How long a provider has to answer."""

PAGE = 200
"""The models of a provider that are looked at."""

KeyVerdict = Literal["accepted", "refused", "unreachable", "not installed", "not set"]


class KeyReport(Strict):
    """Whether a provider accepts the worker's key."""

    provider: str
    address: str
    verdict: KeyVerdict
    why: str | None = None
    unpriced: tuple[str, ...] = ()
    """The models of text that the provider lists and no table prices."""
    retiring: tuple[str, ...] = ()
    """Those that it lists and stops serving within two months, or should not serve any more, each with the day."""


class WorkerExamination(Strict):
    """What a worker with this environment can do."""

    keys: tuple[KeyReport, ...]
    models_as_of: str
    prices_as_of: str
    published_prices: str
    """The version of genai-prices."""
    own_models: int
    """How many families the user's own table of models adds."""
    own_models_as_of: date | None
    own_prices: int
    """How many rows the user's own price table adds."""
    own_prices_as_of: date | None


async def examine(environment: Environment) -> WorkerExamination:
    """Ask every provider whose key is set.

    Raises:
        InvalidRequest: The user's own prices cannot be read.
    """
    clients, table = SdkClients(environment.ambient_headers), load_prices(environment.prices)
    named: dict[str, tuple[Endpoint, AskProvider]] = {
        "anthropic": (environment.anthropic, _anthropic),
        "openai": (environment.openai, _openai),
        "google_genai": (environment.google, _google),
        "openrouter": (environment.openrouter, _openrouter),
    }
    usable = [(name, endpoint, ask) for name, (endpoint, ask) in named.items() if endpoint.key or endpoint.project]
    usable = [(name, endpoint, ask) for name, endpoint, ask in usable if name not in environment.servers]
    usable += [("openai_compatible", endpoint, _openai) for endpoint in environment.compatible]
    known = {endpoint.base_url for endpoint in environment.compatible}
    usable += [(name, place, _BY_PROTOCOL[protocol]) for name, place in _keyed(environment, known) if (protocol := place.protocol)]
    for ask in dict.fromkeys(ask for _, _, ask in usable):
        with suppress(ModuleNotFoundError):  # which the report says
            import_module(_PACKAGES[ask])  # that it takes seconds on a slow machine is no provider's silence
    try:
        reports = await asyncio.gather(*(_report(name, endpoint, ask, clients, environment, table) for name, endpoint, ask in usable))
    finally:
        await clients.aclose()
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


def _keyed(environment: Environment, known: Collection[str]) -> Iterator[tuple[str, Endpoint]]:
    """Yield the endpoints with names that have keys or are the worker's own; a cloud's own clients list no models."""
    for name, server in environment.servers.items():
        place = server.now()
        is_ours = server.configured or (place.key is not None and not server.keyless)
        if is_ours and place.cloud not in {"bedrock", "vertex"} and place.base_url not in known and not server.takes_tokens:
            yield name, place


AskProvider = Callable[[SdkClients, Endpoint], Awaitable[tuple[str, ...]]]
"""Asks a provider with a key, and returns the names of the models that it lists."""

TEXT = re.compile(
    r"(gpt-|o\d|chatgpt-|claude-|gemini-|mistral-|ministral-|magistral-)"
    r"(?!.*(image|audio|realtime|tts|transcribe|live|search|embed|robotics))"
)
"""How the name of a model begins that writes text, as far as the providers' own names tell."""

SOON = timedelta(days=60)
"""How long before its last day a model is named."""


def _unpriced(name: str, endpoint: Endpoint, listed: tuple[str, ...], table: PriceTable) -> tuple[str, ...]:
    specs = [ModelSpec(id=f"{name}:{model}") for model in listed if TEXT.match(model)]
    return tuple(spec.model for spec in specs if table.price(spec, address=endpoint.base_url) is None)


def _retiring(name: str, listed: tuple[str, ...]) -> tuple[str, ...]:
    until = datetime.now(UTC).date() + SOON
    ends = [(model, retirement_of(ModelSpec(id=f"{name}:{model}"))) for model in listed if model.strip()]
    return tuple(f"{model} ({end.on})" for model, end in ends if end and end.on <= until)


async def _report(
    name: str, endpoint: Endpoint, ask: AskProvider, clients: SdkClients, environment: Environment, table: PriceTable
) -> KeyReport:
    server = environment.servers.get(name)
    if server and (missing := server.complaint or (None if endpoint.key else f"{server.source.origin} has none")):
        return KeyReport(provider=name, address=endpoint.base_url, verdict="not set", why=missing)
    try:
        async with asyncio.timeout(SECONDS):
            listed = await ask(clients, endpoint)
    except ModuleNotFoundError as error:
        return KeyReport(provider=name, address=endpoint.base_url, verdict="not installed", why=f"the package {error.name} is missing")
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is reported
        fault = model_fault(error, model=name, secrets=environment.secrets)
        refused = fault is not None and fault.kind in {"auth", "bad_request", "quota_exhausted"}
        why = str(fault) if fault else f"{type(error).__name__}: {error}"
        return KeyReport(provider=name, address=endpoint.base_url, verdict="refused" if refused else "unreachable", why=why)
    unpriced, retiring = _unpriced(name, endpoint, listed, table), _retiring(name, listed)
    return KeyReport(provider=name, address=endpoint.base_url, verdict="accepted", unpriced=unpriced, retiring=retiring)


async def _anthropic(clients: SdkClients, endpoint: Endpoint) -> tuple[str, ...]:
    return _listed(await clients.anthropic(endpoint).get("/v1/models", cast_to=object, options={"params": {"limit": PAGE}}))


async def _openai(clients: SdkClients, endpoint: Endpoint) -> tuple[str, ...]:
    return _listed(await clients.openai(endpoint).get("/models", cast_to=object))


def _listed(answer: object) -> tuple[str, ...]:
    """Return the names of models, in whatever form a server lists them."""
    rows = answer.get("data") if isinstance(answer, dict) else answer
    names = [row.get("id") if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else []
    return tuple(name for name in names if isinstance(name, str))


async def _openrouter(clients: SdkClients, endpoint: Endpoint) -> tuple[str, ...]:
    """Ask for the key itself, since the list of models is open to everybody; what a call costs, the server says itself."""
    await clients.openai(endpoint).get("/key", cast_to=object)
    return ()


async def _google(clients: SdkClients, endpoint: Endpoint) -> tuple[str, ...]:
    page = await clients.google(endpoint).aio.models.list(config={"page_size": PAGE})
    return tuple((model.name or "").removeprefix("models/") for model in page.page)


_PACKAGES: dict[AskProvider, str] = {_anthropic: "anthropic", _openai: "openai", _openrouter: "openai", _google: "google.genai"}
"""What has the client that asks."""

_BY_PROTOCOL: dict[EndpointProtocol, AskProvider] = {
    "anthropic": _anthropic,
    "openai_responses": _openai,
    "openai_chat": _openai,
    "google": _google,
}
