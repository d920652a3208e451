"""Keys tried against their providers, for `gradeloop doctor`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from activities.errors import model_fault
from activities.providers.environment import Endpoint, Environment
from activities.providers.http import SdkClients
from gradeloop.contract.base import Strict
from gradeloop.settings.catalog import load_catalogue, load_prices

SECONDS = 15.0

Verdict = Literal["accepted", "refused", "unreachable", "not installed"]


class KeyReport(Strict):
    """What a provider says of the worker's key."""

    provider: str
    address: str
    verdict: Verdict
    why: str | None = None


class WorkerExamination(Strict):
    """What a worker with this environment can do."""

    keys: tuple[KeyReport, ...]
    models_as_of: str
    prices_as_of: str
    own_prices: int
    """Rows of the user's own."""


async def examine(environment: Environment) -> WorkerExamination:
    """Ask every provider whose key is set.

    Raises:
        InvalidRequest: The user's own prices cannot be read.
    """
    clients, table = SdkClients(environment.ambient_headers), load_prices(environment.prices)
    named = {
        "anthropic": (environment.anthropic, _anthropic),
        "openai": (environment.openai, _openai),
        "google_genai": (environment.google, _google),
        "openrouter": (environment.openrouter, _openrouter),
    }
    asked = [(name, place, ask) for name, (place, ask) in named.items() if place.key or place.project]
    asked += [("openai_compatible", place, _openai) for place in environment.compatible]
    try:
        reports = await asyncio.gather(*(_report(name, place, ask, clients, environment) for name, place, ask in asked))
    finally:
        await clients.aclose()
    shipped = load_prices(None)
    return WorkerExamination(
        keys=tuple(reports),
        models_as_of=load_catalogue().as_of,
        prices_as_of=table.as_of,
        own_prices=len(table.prices) - len(shipped.prices),
    )


Ask = Callable[[SdkClients, Endpoint], Awaitable[object]]


async def _report(name: str, place: Endpoint, ask: Ask, clients: SdkClients, environment: Environment) -> KeyReport:
    try:
        async with asyncio.timeout(SECONDS):
            await ask(clients, place)
    except ModuleNotFoundError as error:
        return KeyReport(provider=name, address=place.base_url, verdict="not installed", why=f"the package {error.name} is missing")
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is asked for
        fault = model_fault(error, model=name, secrets=environment.secrets)
        refused = fault is not None and fault.kind in {"auth", "bad_request", "quota_exhausted"}
        why = str(fault) if fault else f"{type(error).__name__}: {error}"
        return KeyReport(provider=name, address=place.base_url, verdict="refused" if refused else "unreachable", why=why)
    return KeyReport(provider=name, address=place.base_url, verdict="accepted")


async def _anthropic(clients: SdkClients, place: Endpoint) -> object:
    return await clients.anthropic(place).models.list(limit=1)


async def _openai(clients: SdkClients, place: Endpoint) -> object:
    return await clients.openai(place).models.list()


async def _openrouter(clients: SdkClients, place: Endpoint) -> object:
    """Ask for the key itself: the list of models is open to everybody."""
    return await clients.openai(place).get("/key", cast_to=object)


async def _google(clients: SdkClients, place: Endpoint) -> object:
    return await clients.google(place).aio.models.list(config={"page_size": 1})
