"""Keys tried against their providers, for `gradeloop doctor`."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Literal

from activities.errors import model_fault
from activities.providers.endpoint import Endpoint
from activities.providers.environment import Environment
from activities.providers.http import SdkClients
from gradeloop.contract.base import Strict
from gradeloop.settings.catalog import load_catalogue, load_prices
from gradeloop.settings.endpoints import EndpointProtocol

SECONDS = 15.0
"""How long a provider has to answer."""

KeyVerdict = Literal["accepted", "refused", "unreachable", "not installed", "not set"]


class KeyReport(Strict):
    """Whether a provider accepts the worker's key."""

    provider: str
    address: str
    verdict: KeyVerdict
    why: str | None = None


class WorkerExamination(Strict):
    """What a worker with this environment can do."""

    keys: tuple[KeyReport, ...]
    models_as_of: str
    prices_as_of: str
    own_prices: int
    """How many rows the user's own price table adds."""


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
    try:
        reports = await asyncio.gather(*(_report(name, endpoint, ask, clients, environment) for name, endpoint, ask in usable))
    finally:
        await clients.aclose()
    shipped = load_prices(None)
    return WorkerExamination(
        keys=tuple(reports),
        models_as_of=load_catalogue().as_of,
        prices_as_of=table.as_of,
        own_prices=len(table.prices) - len(shipped.prices),
    )


def _keyed(environment: Environment, known: Collection[str]) -> Iterator[tuple[str, Endpoint]]:
    """Yield the endpoints with names that have keys or are the worker's own; a cloud's own clients list no models."""
    for name, server in environment.servers.items():
        place = server.now()
        is_ours = server.configured or (place.key is not None and not server.keyless)
        if is_ours and place.cloud not in {"bedrock", "vertex"} and place.base_url not in known and not server.takes_tokens:
            yield name, place


AskProvider = Callable[[SdkClients, Endpoint], Awaitable[object]]


async def _report(name: str, endpoint: Endpoint, ask: AskProvider, clients: SdkClients, environment: Environment) -> KeyReport:
    server = environment.servers.get(name)
    if server and (missing := server.complaint or (None if endpoint.key else f"{server.source.origin} has none")):
        return KeyReport(provider=name, address=endpoint.base_url, verdict="not set", why=missing)
    try:
        async with asyncio.timeout(SECONDS):
            await ask(clients, endpoint)
    except ModuleNotFoundError as error:
        return KeyReport(provider=name, address=endpoint.base_url, verdict="not installed", why=f"the package {error.name} is missing")
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is reported
        fault = model_fault(error, model=name, secrets=environment.secrets)
        refused = fault is not None and fault.kind in {"auth", "bad_request", "quota_exhausted"}
        why = str(fault) if fault else f"{type(error).__name__}: {error}"
        return KeyReport(provider=name, address=endpoint.base_url, verdict="refused" if refused else "unreachable", why=why)
    return KeyReport(provider=name, address=endpoint.base_url, verdict="accepted")


async def _anthropic(clients: SdkClients, endpoint: Endpoint) -> object:
    return await clients.anthropic(endpoint).get("/v1/models", cast_to=object, options={"params": {"limit": 1}})


async def _openai(clients: SdkClients, endpoint: Endpoint) -> object:
    """Ask for the models, in whatever form the server lists them."""
    return await clients.openai(endpoint).get("/models", cast_to=object)


async def _openrouter(clients: SdkClients, endpoint: Endpoint) -> object:
    """Ask for the key itself, since the list of models is open to everybody."""
    return await clients.openai(endpoint).get("/key", cast_to=object)


async def _google(clients: SdkClients, endpoint: Endpoint) -> object:
    return await clients.google(endpoint).aio.models.list(config={"page_size": 1})


_BY_PROTOCOL: dict[EndpointProtocol, AskProvider] = {
    "anthropic": _anthropic,
    "openai_responses": _openai,
    "openai_chat": _openai,
    "google": _google,
}
