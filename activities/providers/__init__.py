"""The models that a worker can call, all through one pool of connections, and the examination of its keys for `gradeloop doctor`."""

import asyncio
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from activities.errors import invalid, model_fault, note_paid, paid_by
from activities.providers.base import deadline
from activities.providers.environment import Environment, KeyVariable, is_local, settings_complaint
from activities.providers.http_request import read_call
from activities.providers.probe import Description
from activities.providers.scripted import Script
from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import HTTP_REQUEST, PROVIDERS, ModelSpec
from gradeloop.contract.provider import Endpoint, FailureKind, ModelFault, ModelReply, ModelRequest, Provider
from gradeloop.extensions import load
from gradeloop.settings import catalog
from gradeloop.settings.endpoints import CLOUD_PACKAGES, DEFAULTS, PROTOCOLS, unknown_provider
from gradeloop.text import clip

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("gradeloop.providers")

FRESH_SECONDS = 3600.0
"""Seconds for which the facts about a server count."""

FAILED_SECONDS = 60.0
"""Seconds after which a server that could not be asked is asked again."""

SLOTS = 4
"""Calls in flight at a local server that does not say how many it makes at once."""

BATCHING = frozenset({"vllm", "sglang", "litellm"})
"""The kinds of servers that take what comes, and say nothing of slots."""

_ROTATIONS = 3
"""Repeats of a call with another key, where the endpoint refuses one that has changed since."""

_NOT_SET = "is not set in the worker's environment"


class Providers:
    """Model calls by spec, with the worker's keys and under one deadline."""

    needs_keys: bool = True
    """Whether a model without its key, or without its replies, is refused; False where none is going to be called."""

    probe: bool = False
    """Whether servers of which no table knows are asked what they are."""

    counts_slots: bool = False
    """Whether a server was called that takes only so many calls at once, which only this worker counts."""

    on_refused_key: Callable[[str, str], None] = staticmethod(lambda _variable, _key: None)
    """Is told of a key that a provider refused, or that is missing, with its variable."""

    def __init__(self, environment: Environment, script: Script | None = None, *, call_timeout: float | None = None) -> None:
        """Read what the models cost.

        `call_timeout`: seconds that a call may take in all, unless its model or its completion needs more; 540 by default.
        """
        self._call_timeout = call_timeout
        self._environment = environment
        self.script = script
        self._prices = catalog.load_prices(environment.prices)
        catalog.load_catalogue()  # so that a table that cannot be read is refused at the start
        self._adapters: dict[tuple[str, str], tuple[Endpoint, Provider]] = {}
        self._memories: dict[tuple[str, str], dict[str, str]] = {}
        self._pools: dict[bool, httpx2.AsyncClient] = {}
        self._loaded: set[str] = set()
        self._asked: dict[tuple[str, str, str], _Asked] = defaultdict(_Asked)
        self._answered: dict[tuple[str, str], float] = {}  # seconds since 1970, by provider and base URL

    @property
    def ambient_headers(self) -> frozenset[str]:
        """Headers that SDKs would send to any host; see `Connections`."""
        return self._environment.ambient_headers

    def client(self, endpoint: Endpoint) -> "httpx2.AsyncClient":
        """Return the pool of connections for an endpoint; see `Connections`."""
        from activities.providers import http  # httpx2, which nobody needs before the first call

        if endpoint.guarded not in self._pools:
            self._pools[endpoint.guarded] = http.http_client(http.sdk_timeout(), guarded=endpoint.guarded)
        return self._pools[endpoint.guarded]

    def memory(self, endpoint: Endpoint) -> dict[str, str]:
        """Return what an endpoint's adapters remember; see `Connections`."""
        return self._memories.setdefault((endpoint.provider, endpoint.base_url), {})

    def check(self, spec: ModelSpec) -> None:
        """Raise ModelFault of kind `config`, in one sentence that names the cure, for a model that this worker cannot call."""
        complaint = self._complaint(spec)
        if complaint:
            raise ModelFault("config", complaint, model=spec.id)

    def refuse_unknown(self, specs: Iterable[ModelSpec | None]) -> None:
        """Refuse models, and their fallbacks, of providers that no setting of this worker names: to ask again cures nothing.

        Raises:
            ApplicationError: Of type `InvalidRequest`.
        """
        for model in (model for spec in specs if spec is not None for model in spec.chain):
            if (complaint := unknown_provider(model.provider, self._environment.servers)) is not None:
                raise invalid(f"{model.id!r}: {complaint}")

    def get(self, spec: ModelSpec) -> Provider:
        """Return the adapter for a model, made at its first use, and anew where its key has changed.

        Raises:
            ModelFault: As `check`.
        """
        self.check(spec)
        endpoint = self._environment.endpoint(spec)
        key = (spec.provider, endpoint.base_url)
        made = self._adapters.get(key)
        if made is None or made[0] != endpoint:
            made = self._adapters[key] = (endpoint, self.adapter(spec.provider, endpoint))
        return made[1]

    def adapter(self, provider: str, endpoint: Endpoint) -> Provider:
        """Make the adapter of a provider's protocol for an endpoint."""
        made: Provider = load(PROTOCOLS.find(self._environment.protocol(provider) or "").adapter)(self, endpoint)
        return made

    @property
    def secrets(self) -> frozenset[str]:
        """The keys, which nothing may show."""
        return self._environment.secrets

    def default_grader(self) -> ModelSpec:
        """Return the model that judges where none is named; raise ModelFault of kind `config` where this worker has no key."""
        if self._environment.default is None:
            names = ", ".join(dict.fromkeys(row.variables[0] for row in DEFAULTS))
            raise ModelFault("config", f"no grader is named and no provider key is set; name one in grader.model, or set one of {names}")
        return self._environment.default

    def cost(self, spec: ModelSpec, usage: Usage) -> float | None:
        """Return what one call cost in US dollars; None where the model's price is not known."""
        return self._prices.cost(spec, usage, address=self.address_of(spec))

    def address_of(self, spec: ModelSpec) -> str:
        """Return the base URL at which a model is called; empty for the scripted provider."""
        return self._environment.endpoint(spec).base_url

    def cure(self, spec: ModelSpec, kind: FailureKind) -> str:
        """Return what to change after a call that failed for good, as the end of its message; empty where nothing is known."""
        if kind == "not_found":
            return "; correct the model's name or its address, or name another model"
        origin = self._environment.endpoint(spec).origin
        return f"; correct {origin}, or name another model" if kind in {"auth", "quota_exhausted"} and origin else ""

    def note_answer(self, spec: ModelSpec) -> None:
        """Note that a model's endpoint has just answered a call of this worker."""
        self._answered[spec.provider, self.address_of(spec)] = time.time()

    def answered_since(self, spec: ModelSpec, moment: float) -> bool:
        """Return whether a model's endpoint has answered a call of this worker since a moment, in seconds since 1970."""
        return self._answered.get((spec.provider, self.address_of(spec)), -math.inf) >= moment

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one paid call, within its deadline; its usage says what it cost, also where it failed.

        Raises:
            ModelFault: The call failed or gave no answer; its message shows no key.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            reply = await self._attempt(request)
        except ModelFault as fault:
            fault.usage = self._metered(request.spec, fault.usage or Usage(), clock() - started)
            raise
        except asyncio.CancelledError as error:
            note_paid(error, self._metered(request.spec, paid_by(error) or Usage(), clock() - started))
            raise
        return replace(reply, usage=self._metered(request.spec, reply.usage, clock() - started))

    async def understand(self, spec: ModelSpec, *, trial: bool) -> Usage | None:
        """Ask the server of a model that is in no table what it is, and return the cost; None where it is known or cannot be asked.

        Of callers at the same time one asks and the others wait. The trial, which is paid for, is left out where settings say its result.
        """
        # One caller asks, and the others wait for the same answer: the first batch on a new server has hundreds
        # of calls that all need it. A failure is remembered, too, but shortly, or each of them would wait for
        # the same silence anew. The trial is paid for, so it is counted with the call that made it, and left
        # out where nobody needs its result.
        trial, place = trial and spec.config.structured_output is None, self._environment.endpoint(spec)
        if not self.asks(spec) or not (trial or is_local(place.base_url)):
            return None
        asked, clock = self._asked[spec.provider, place.base_url, spec.model], asyncio.get_running_loop().time
        async with asked.lock:
            if clock() < asked.until and (asked.tried or not trial):
                return None
            started, asked.tried, known = clock(), trial, catalog.server_facts(spec)
            try:
                found = await self.describe(spec, trial=trial)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong, the call goes on, and tells it
                logger.info("nothing is known of the server of %s: %s", spec.id, model_fault(error, model="") or type(error).__name__)
                asked.until = clock() + FAILED_SECONDS
                return None
            looked = found.facts.model_dump(include={"kind", "models", "context", "slots", "parameters"})
            catalog.declare_facts(spec, found.facts if (trial and found.settled) or known is None else known.model_copy(update=looked))
            asked.until = clock() + (FRESH_SECONDS if found.settled else FAILED_SECONDS)
            attempts = found.usage.attempts
            return self._metered(spec, found.usage, clock() - started).model_copy(update={"attempts": attempts}) if attempts else None

    def asks(self, spec: ModelSpec) -> bool:
        """Return whether the server of a model is asked what it is, before its first call."""
        return self.probe and self._environment.protocol(spec.provider) == "openai_chat" and catalog.is_answer_open(spec)

    def at_once(self, spec: ModelSpec, asked: int | None) -> int | None:
        """Return how many calls a local server gets at once: as many as asked, else as it has slots, `SLOTS` where it does not say.

        None for servers that batch whatever comes.
        """
        facts = catalog.server_facts(spec)
        if facts is None or not facts.models or facts.kind in BATCHING or not is_local(self.address_of(spec)):
            return None
        self.counts_slots |= asked is None
        return asked or facts.slots or SLOTS

    async def describe(self, spec: ModelSpec, *, trial: bool) -> Description:
        """Ask a model's server of Chat Completions what it is; raise Exception where it cannot be asked."""
        for package, _ in self._packages(spec.provider):
            await self._load(package)
        if server := self._environment.servers.get(spec.provider):
            await server.source.renew()
            spec = _with_body(spec, server.place)
        adapter: Any = self.get(spec)
        found: Description = await adapter.describe(spec, trial=trial)
        return found

    async def _attempt(self, request: ModelRequest) -> ModelReply:
        model, seconds = request.spec.id, deadline(request, self._call_timeout)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._served(request)
        except Exception as error:
            fault = model_fault(error, model=model, secrets=self.secrets)
            if fault is None:
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                fault = _timed_out(request, seconds, paid_by(error))
            endpoint = self._environment.endpoint(request.spec)
            if fault.kind == "auth" and endpoint.key:
                self.on_refused_key(endpoint.origin, endpoint.key)
            raise fault from None

    # A key may change while a worker runs: a file that is renewed, a token that ends. Each call takes the key of its moment; where the
    # endpoint refuses that and there is another one by now, the call is made again with it, a few times at most. The key that was used is
    # compared, never the time: of many calls in flight, each tries once for each key that it saw. Without this, the calls at a rotation
    # would fail for good, since no retry cures `auth`; and with more tries a wrong key would be sent again and again.
    async def _served(self, request: ModelRequest) -> ModelReply:
        """Make a call, and once more where the endpoint refuses a key that has changed meanwhile."""
        spec, server = request.spec, self._environment.servers.get(request.spec.provider)
        for package, _ in self._packages(spec.provider):
            await self._load(package)
        sent = replace(request, spec=_with_body(spec, server.place)) if server else request
        if server is None or isinstance(server.source, KeyVariable):  # a key that stays
            return await self.get(spec).complete(sent)
        self.check(spec)
        await server.source.renew()
        for _ in range(_ROTATIONS):
            used = server.source.current()
            try:
                return await self.get(spec).complete(sent)
            except Exception as error:
                if not await server.has_other_key(used, error):
                    raise
        return await self.get(spec).complete(sent)

    def _packages(self, provider: str) -> Iterator[tuple[str, str]]:
        """Yield the packages that a provider's calls need, each with what pip installs."""
        protocol, server = self._environment.protocol(provider), self._environment.servers.get(provider)
        if protocol and (row := PROTOCOLS.find(protocol)).package:
            yield row.package, row.install
        if server and server.place.cloud and (server.place.cloud != "azure" or server.takes_tokens):
            yield CLOUD_PACKAGES[server.place.cloud], f"gradeloop[{server.place.cloud}]"

    def _metered(self, spec: ModelSpec, usage: Usage, seconds: float) -> Usage:
        cost = usage.cost_usd
        if cost is None and usage.calls:
            cost = self.cost(spec, usage)
        return usage.model_copy(update={"attempts": 1, "seconds": round(seconds, 3), "cost_usd": cost})

    async def _load(self, package: str) -> None:
        """Import an SDK, and the prices, at its first use, in a thread.

        It takes seconds on a busy machine, in which all calls must send heartbeats.
        """
        if package not in self._loaded and _installed(package):
            for module in (package, catalog.PUBLISHED):
                await asyncio.to_thread(import_module, module)
            self._loaded.add(package)

    async def aclose(self) -> None:
        """Close the connections."""
        self._adapters.clear()
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    def refuse_without_logprobs(self, spec: ModelSpec) -> None:
        """Raise ModelFault of kind `config` for a model whose protocol has no log probabilities, and one with such a fallback."""
        for model in spec.chain:
            protocol = self._environment.protocol(model.provider)
            if protocol and not PROTOCOLS.find(protocol).log_probs:
                why = f"{model.id!r}: its API does not say how probable its tokens are, which perplexity is calculated from; leave one out"
                raise ModelFault("config", why, model=spec.id)

    def _complaint(self, spec: ModelSpec) -> str | None:
        # Only the first complaint is said: an unknown provider, a missing package, then the address, the key and the
        # settings. Each is of use only once those before it are cured.
        if spec.provider == "scripted":
            known = self.script or not self.needs_keys
            return None if known else f"{spec.id!r} needs a file of replies; name it with `scripted:` where the worker is started"
        if spec.provider == HTTP_REQUEST:
            if spec.config.base_url:
                read_call(spec)
            return self._address_complaint(spec, "the address that is called")
        if self._environment.protocol(spec.provider) is None:
            return f"{spec.id!r}: {unknown_provider(spec.provider, self._environment.servers)}"
        server = self._environment.servers.get(spec.provider)
        if server and server.complaint and self.needs_keys:
            return f"{spec.id!r} cannot be called: {server.complaint}; set it in the worker's environment"
        for package, requirement in self._packages(spec.provider):
            for_tokens = package == CLOUD_PACKAGES["azure"]
            if not _installed(package) and (self.needs_keys or not for_tokens):
                what = "AZURE_OPENAI_API_KEY, or for tokens of Entra ID a package" if for_tokens else "a package"
                return f"{spec.id!r} needs {what} that is not installed here; run: pip install {requirement!r}"
        of_the_key = self._key_complaint(spec) if self.needs_keys else None
        if spec.provider == "openai_compatible":
            place = None if self._environment.openai.named else "the address of its server (or OPENAI_BASE_URL at the worker)"
            of_the_address = self._address_complaint(spec, place)
        else:
            other = f"{f'openai_compatible:{spec.model}'!r}, not to {spec.id!r}; change the provider or leave it out"
            of_the_address = f"base_url belongs to {other}" if spec.config.base_url else None
        return of_the_address or of_the_key or settings_complaint(spec)

    def _address_complaint(self, spec: ModelSpec, needed: str | None) -> str | None:
        """Return why a model's own address cannot be called; `needed` says which it needs where it names none."""
        if (url := spec.config.base_url) is None:
            return f"{spec.id!r} needs config.base_url, {needed}" if needed else None
        cure = f"add it to the worker's GRADELOOP_BASE_URLS: {url}"
        named = spec.provider != HTTP_REQUEST and self._environment.serves(url)
        return None if named or self._environment.allows(url) else f"base_url {clip(url)} is not allowed on this worker; {cure}"

    def _key_complaint(self, spec: ModelSpec) -> str | None:
        endpoint, server = self._environment.endpoint(spec), self._environment.servers.get(spec.provider)
        key, origin = endpoint.key, endpoint.origin
        if endpoint.project or (server and (server.takes_tokens or (server.keyless and key is None))):
            return None
        if key is None:
            self.on_refused_key(origin, "")
            in_file = origin.startswith("the key file")
            return f"{origin} {'holds no key' if in_file else _NOT_SET}; set it to use {spec.id!r}"
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            return f"{origin} holds white space or a character that no key has; set it again"
        return None


def _with_body(spec: ModelSpec, place: Endpoint) -> ModelSpec:
    """Return a model with its endpoint's own keys of the body, before which the model's come."""
    more = {"extra": {**place.body, **spec.config.extra}}
    return spec.model_copy(update={"config": spec.config.model_copy(update=more)}) if place.body else spec


@dataclass
class _Asked:
    """Time until which the facts about a model's server count, by the loop's clock, and whether a trial was among the questions."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    until: float = -math.inf
    tried: bool = False


def _timed_out(request: ModelRequest, seconds: float, paid: Usage | None) -> ModelFault:
    """Return the fault of a call that took too long, with what the provider charges for it as far as that is known."""
    where = "config.timeout" if request.spec.config.timeout else "config.timeout of the model, or the worker's call_timeout"
    cost = "what the provider charges for it is not known"
    if paid is not None:
        cost = f"{paid.input or 0} prompt and {paid.output or 0} completion tokens were reported by then, and are counted as paid"
    text = f"no whole reply within {seconds:g} s; {cost}; raise {where}, if the model needs longer"
    return ModelFault("timeout", text, model=request.spec.id, usage=paid)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


KEY_SECONDS = 15.0
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


class ServerReport(Strict):
    """A local model server that answers."""

    address: str
    facts: catalog.ServerFacts


class WorkerExamination(Strict):
    """The keys, servers and tables of a worker with this environment."""

    keys: tuple[KeyReport, ...]
    servers: tuple[ServerReport, ...]
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
    """Ask every provider whose key is set; raise InvalidRequest where the user's own prices cannot be read."""
    providers, table = Providers(environment), catalog.load_prices(environment.prices)
    places = list(_asked(environment))
    for protocol in dict.fromkeys(str(place.protocol) for _, place in places):
        with suppress(ModuleNotFoundError, ValueError):  # which the report says; or there is none
            import_module(PROTOCOLS.find(protocol).package)  # that it takes seconds on a slow machine is not a provider's silence
    try:
        reports = await asyncio.gather(*(_report(name, place, providers, environment, table) for name, place in places))
        servers = [server.place for server in environment.servers.values()]
        local = {place.base_url: place.provider for place in servers if place.protocol == "openai_chat" and is_local(place.base_url)}
        if environment.openai.named and is_local(environment.openai.base_url):
            local[environment.openai.base_url] = "openai_compatible"
        found = await asyncio.gather(*(_server_report(providers, name, address) for address, name in local.items()))
    finally:
        await providers.aclose()
    models = catalog.load_catalogue()
    return WorkerExamination(
        keys=tuple(reports),
        servers=tuple(report for report in found if report is not None),
        models_as_of=models.as_of,
        prices_as_of=table.as_of,
        published_prices=catalog.published_version(),
        own_models=models.own,
        own_models_as_of=models.own_as_of,
        own_prices=table.own,
        own_prices_as_of=table.own_as_of,
    )


async def _server_report(providers: Providers, name: str, address: str) -> ServerReport | None:
    """Return what a local server is; None where none answers. A trial is made where it has one model, so that none has to be loaded."""
    facts = catalog.ServerFacts()
    with suppress(Exception):  # nobody listens, or another process
        facts = (await providers.describe(ModelSpec(id=f"{name}:any"), trial=False)).facts
        if len(facts.models) == 1:
            async with asyncio.timeout(KEY_SECONDS):
                facts = (await providers.describe(ModelSpec(id=f"{name}:{facts.models[0]}"), trial=True)).facts
    return ServerReport(address=address, facts=facts) if facts.models else None


def _asked(environment: Environment) -> Iterator[tuple[str, Endpoint]]:
    """Yield the endpoints that have keys or are the worker's own; a cloud's own clients list no models."""
    servers = {name: (server, server.now()) for name, server in environment.servers.items()}
    ours = [name for name in servers if name in PROVIDERS and not servers[name][0].configured]
    yield from ((name, place) for name in ours if (place := servers[name][1]).key or place.project)
    yield from (("openai_compatible", place) for place in environment.compatible)
    known, listed = {place.base_url for place in environment.compatible}, {servers[name][1].base_url for name in ours}
    for name, (server, place) in servers.items():
        is_keyed = name not in ours and place.key is not None and not server.keyless and place.base_url not in listed
        is_ours = server.configured or is_keyed
        if is_ours and place.cloud not in {"bedrock", "vertex"} and place.base_url not in known and not server.takes_tokens:
            yield name, place


TEXT = re.compile(
    r"(gpt-|o\d|chatgpt-|claude-|gemini-|mistral-|ministral-|magistral-)"
    r"(?!.*(image|audio|realtime|tts|transcribe|live|search|embed|robotics))"
)
"""The names of models that write text, as far as the providers' own names tell."""

SOON = timedelta(days=60)
"""The time before its last day in which a model is named."""


async def _report(name: str, place: Endpoint, providers: Providers, environment: Environment, table: catalog.PriceTable) -> KeyReport:
    server, report = environment.servers.get(name), partial(KeyReport, provider=name, address=place.base_url)
    if server and (missing := server.complaint or (None if place.key or place.project else f"{server.source.origin} has none")):
        return report(verdict="not set", why=missing)
    try:
        async with asyncio.timeout(KEY_SECONDS):
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
    retiring = [f"{spec.model} ({end.on})" for spec in specs if (end := catalog.retirement_of(spec)) and end.on <= until]
    return report(verdict="accepted", unpriced=tuple(unpriced), retiring=tuple(retiring))
