"""The models that a worker can call, all through one pool of connections."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from activities.errors import model_fault, note_paid, paid_by
from activities.providers.address_call import read_call
from activities.providers.anthropic import AnthropicMessages
from activities.providers.base import deadline
from activities.providers.cap_field import LearnsCapField
from activities.providers.endpoint import Endpoint
from activities.providers.environment import Environment, settings_complaint
from activities.providers.google import GoogleGenAI
from activities.providers.keys import KeySource
from activities.providers.openai_chat import OpenAIChat
from activities.providers.openai_responses import OpenAIResponses
from activities.providers.scripted import Script, Scripted
from activities.store_attempts import invalid
from gradeloop.contract.http_call import HTTP_REQUEST
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import CapField, FailureKind, ModelFault, ModelReply, ModelRequest, Provider
from gradeloop.settings.catalog import load_catalogue
from gradeloop.settings.default_model import DEFAULTS
from gradeloop.settings.endpoints import EndpointProtocol, unknown_provider
from gradeloop.settings.prices import PUBLISHED, load_prices
from gradeloop.text import clip

if TYPE_CHECKING:
    from activities.providers.http import SdkClients

_EXTRAS: dict[EndpointProtocol, str] = {
    "anthropic": "anthropic",
    "openai_responses": "openai",
    "openai_chat": "openai",
    "google": "google",
}
"""The extra that installs what a protocol needs; what a cloud needs beside it is an extra of the cloud's name."""

_PACKAGES = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google.genai",
    "azure": "azure.identity",
    "bedrock": "boto3",
    "vertex": "google.auth.transport.requests",
}
"""The package that is imported, by the extra that installs it."""

_ROTATIONS = 3
"""How often a call is made again with another key, where the endpoint refuses one that has changed since."""

_NOT_SET = "is not set in the worker's environment"


class Providers:
    """Model calls by spec, with the worker's keys and under one deadline."""

    needs_keys: bool = True
    """Whether a model without its key, or without its replies, is refused; False where none is going to be called."""

    on_refused_key: Callable[[str, str], None] = staticmethod(lambda _variable, _key: None)
    """Is told of a key that a provider refused, or that is missing, with its variable."""

    def __init__(self, environment: Environment, script: Script | None = None, *, call_timeout: float | None = None) -> None:
        """Read what the models cost.

        Args:
            environment: The worker's keys and endpoints.
            script: What the scripted models say.
            call_timeout: Seconds that a call may take in all, unless its model or its completion needs more; 540 by default.
        """
        self._call_timeout = call_timeout
        self._environment = environment
        self._script = script
        self._prices = load_prices(environment.prices)
        load_catalogue()  # so that a table that cannot be read is refused at the start
        self._adapters: dict[tuple[str, str], tuple[Endpoint, Provider]] = {}
        self._learned: dict[tuple[str, str], dict[str, CapField]] = {}
        self._loaded: set[str] = set()
        self._answered: dict[tuple[str, str], float] = {}  # seconds since 1970, by provider and base URL

    @cached_property
    def _clients(self) -> "SdkClients":
        from activities.providers.http import SdkClients  # httpx2, which nobody needs before the first call

        return SdkClients(self._environment.ambient_headers)

    def check(self, spec: ModelSpec) -> None:
        """Refuse a model that this worker cannot call.

        Raises:
            ModelFault: Of kind `config`; its message is one sentence that names the cure.
        """
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
            made = self._adapters[key] = (endpoint, self._adapter(spec, endpoint))
        return made[1]

    @property
    def secrets(self) -> frozenset[str]:
        """The keys, which nothing may show."""
        return self._environment.secrets

    def default_grader(self) -> ModelSpec:
        """Return the model that judges where none is named.

        Raises:
            ModelFault: Of kind `config`: this worker has no key.
        """
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

    async def _served(self, request: ModelRequest) -> ModelReply:
        """Make a call, and once more where the endpoint refuses a key that has changed meanwhile."""
        spec, server = request.spec, self._environment.servers.get(request.spec.provider)
        for extra in self._extras(spec.provider):
            await self._load(extra)
        if server is None:
            return await self.get(spec).complete(request)
        self.check(spec)
        await server.source.renew()
        sent = _with_body(request, server.place)
        for _ in range(_ROTATIONS):
            used = server.source.current()
            try:
                return await self.get(spec).complete(sent)
            except Exception as error:
                if not await _has_other_key(server.source, used, error):
                    raise
        return await self.get(spec).complete(sent)

    def _extras(self, provider: str) -> tuple[str, ...]:
        """Return the extras that a provider's calls need."""
        protocol, server = self._environment.protocol(provider), self._environment.servers.get(provider)
        own = [_EXTRAS[protocol]] if protocol else []
        if server and (server.place.cloud in {"bedrock", "vertex"} or server.takes_tokens):
            own.append(str(server.place.cloud))
        return tuple(own)

    def _metered(self, spec: ModelSpec, usage: Usage, seconds: float) -> Usage:
        cost = usage.cost_usd
        if cost is None and usage.calls:
            cost = self.cost(spec, usage)
        return usage.model_copy(update={"attempts": 1, "seconds": round(seconds, 3), "cost_usd": cost})

    async def _load(self, extra: str | None) -> None:
        """Import an SDK, and the prices, at its first use, in a thread.

        It takes seconds on a busy machine, in which all calls must send heartbeats.
        """
        if extra and extra not in self._loaded and _installed(extra):
            for module in (_PACKAGES[extra], PUBLISHED):
                await asyncio.to_thread(import_module, module)
            self._loaded.add(extra)

    async def aclose(self) -> None:
        """Close the connections."""
        self._adapters.clear()
        if "_clients" in vars(self):
            await self._clients.aclose()

    def refuse_without_logprobs(self, spec: ModelSpec) -> None:
        """Refuse a model whose protocol has no log probabilities, and one with such a fallback.

        Raises:
            ModelFault: Of kind `config`.
        """
        for model in spec.chain:
            if model.provider == HTTP_REQUEST or self._environment.protocol(model.provider) == "anthropic":
                why = f"{model.id!r}: its API does not say how probable its tokens are, which perplexity is calculated from; leave one out"
                raise ModelFault("config", why, model=spec.id)

    def _complaint(self, spec: ModelSpec) -> str | None:
        if spec.provider == "scripted":
            known = self._script or not self.needs_keys
            return None if known else f"{spec.id!r} needs a file of replies; name it with `scripted:` where the worker is started"
        if spec.provider == HTTP_REQUEST:
            return self._request_complaint(spec)
        if self._environment.protocol(spec.provider) is None:
            return f"{spec.id!r}: {unknown_provider(spec.provider, self._environment.servers)}"
        server = self._environment.servers.get(spec.provider)
        if server and server.complaint and self.needs_keys:
            return f"{spec.id!r} cannot be called: {server.complaint}; set it in the worker's environment"
        for extra in self._extras(spec.provider):
            if not _installed(extra) and (extra != "azure" or self.needs_keys):
                what = "AZURE_OPENAI_API_KEY, or for tokens of Entra ID a package" if extra == "azure" else "a package"
                return f"{spec.id!r} needs {what} that is not installed here; run: pip install 'gradeloop[{extra}]'"
        of_the_key = self._key_complaint(spec) if self.needs_keys else None
        return self._address_complaint(spec) or of_the_key or settings_complaint(spec)

    def _request_complaint(self, spec: ModelSpec) -> str | None:
        url = spec.config.base_url
        if url is None:
            return f"{spec.id!r} needs config.base_url, the address that is called"
        read_call(spec)
        return None if self._environment.allows(url) else _unlisted(url)

    def _address_complaint(self, spec: ModelSpec) -> str | None:
        url, environment = spec.config.base_url, self._environment
        if spec.provider != "openai_compatible":
            compatible = f"openai_compatible:{spec.model}"
            return f"base_url belongs to {compatible!r}, not to {spec.id!r}; change the provider or leave it out" if url else None
        if url is None:
            return (
                None
                if environment.openai.named
                else f"{spec.id!r} needs config.base_url, the address of its server (or OPENAI_BASE_URL at the worker)"
            )
        if environment.allows(url):
            return None
        return _unlisted(url)

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

    def _adapter(self, spec: ModelSpec, endpoint: Endpoint) -> Provider:
        if spec.provider == "scripted" and self._script:
            return Scripted(self._script)
        if spec.provider == HTTP_REQUEST:
            from activities.providers.http_request import HttpRequest

            return HttpRequest(self._clients.plain(endpoint), endpoint.base_url)
        protocol = self._environment.protocol(spec.provider)
        if protocol == "anthropic":
            return AnthropicMessages(self._clients.anthropic(endpoint), endpoint.cloud)
        if protocol == "google":
            return GoogleGenAI(self._clients.google(endpoint), endpoint.query)
        if protocol == "openai_responses":
            return OpenAIResponses(self._clients.openai(endpoint))
        learned = self._learned.setdefault((spec.provider, endpoint.base_url), {})
        return LearnsCapField(OpenAIChat(self._clients.openai(endpoint)), urlsplit(endpoint.base_url).hostname or "", learned)


def _unlisted(url: str) -> str:
    return f"base_url {clip(url)} is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS: {url}"


async def _has_other_key(source: KeySource, used: str | None, error: Exception) -> bool:
    """Return whether an endpoint refused a key in whose place there is another one by now."""
    fault = model_fault(error, model="")
    if fault is None or fault.kind != "auth":
        return False
    source.forget()
    await source.renew()
    return source.current() not in {None, used}


def _with_body(request: ModelRequest, place: Endpoint) -> ModelRequest:
    """Return a request with its endpoint's own keys of the body, before which the request's come."""
    if not place.body:
        return request
    config = request.spec.config
    more = config.model_copy(update={"extra": {**place.body, **config.extra}})
    return replace(request, spec=request.spec.model_copy(update={"config": more}))


def _timed_out(request: ModelRequest, seconds: float, paid: Usage | None) -> ModelFault:
    """Return the fault of a call that took too long, with what the provider charges for it as far as that is known."""
    where = "config.timeout" if request.spec.config.timeout else "config.timeout of the model, or the worker's call_timeout"
    cost = "what the provider charges for it is not known"
    if paid is not None:
        cost = f"{paid.input or 0} prompt and {paid.output or 0} completion tokens were reported by then, and are counted as paid"
    text = f"no whole reply within {seconds:g} s; {cost}; raise {where}, if the model needs longer"
    return ModelFault("timeout", text, model=request.spec.id, usage=paid)


def _installed(extra: str) -> bool:
    try:
        return find_spec(_PACKAGES[extra]) is not None
    except ModuleNotFoundError:  # of the package above it
        return False
