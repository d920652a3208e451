"""The models that a worker can call, all through one pool of connections."""

import asyncio
import math
import re
import time
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from activities.errors import ModelFault, model_fault
from activities.providers.anthropic import AnthropicMessages
from activities.providers.base import ModelReply, ModelRequest, Provider, completion_cap, deadline
from activities.providers.environment import Endpoint, Environment, settings_complaint
from activities.providers.google import GoogleGenAI
from activities.providers.openai_chat import OpenAIChat
from activities.providers.openai_responses import OpenAIResponses
from activities.providers.scripted import Script, Scripted
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.settings.catalog import load_catalogue
from gradeloop.settings.default_model import DEFAULTS
from gradeloop.settings.prices import PUBLISHED, load_prices
from gradeloop.text import clip

if TYPE_CHECKING:
    from activities.providers.http import SdkClients

_VARIABLES = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "google_genai": "GOOGLE_API_KEY (or GEMINI_API_KEY)",
    "openrouter": "OPENROUTER_API_KEY",
}
_EXTRAS = {"anthropic": "anthropic", "openai": "openai", "google_genai": "google", "openrouter": "openai", "openai_compatible": "openai"}
_PACKAGES = {"anthropic": "anthropic", "openai": "openai", "google": "google.genai"}
"""The package that is imported, by the extra that installs it."""


class Providers:
    """Model calls by spec, with the worker's keys and under one deadline."""

    def __init__(self, environment: Environment, script: Script | None = None) -> None:
        self._environment = environment
        self._script = script
        self._prices = load_prices(environment.prices)
        load_catalogue()  # so that a table that cannot be read is refused at the start
        self._adapters: dict[tuple[str, str], Provider] = {}
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

    def get(self, spec: ModelSpec) -> Provider:
        """Return the adapter for a model, made at its first use.

        Raises:
            ModelFault: As `check`.
        """
        self.check(spec)
        endpoint = self._environment.endpoint(spec)
        key = (spec.provider, endpoint.base_url)
        if key not in self._adapters:
            self._adapters[key] = self._adapter(spec, endpoint)
        return self._adapters[key]

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
        return replace(reply, usage=self._metered(request.spec, reply.usage, clock() - started))

    async def _attempt(self, request: ModelRequest) -> ModelReply:
        model, seconds = request.spec.id, deadline(completion_cap(request))
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._load(_EXTRAS.get(request.spec.provider))
                return await self.get(request.spec).complete(request)
        except Exception as error:
            fault = model_fault(error, model=model, secrets=self.secrets)
            if fault is None:
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                fault = ModelFault("timeout", f"no reply within {seconds:g} s", model=model)
            raise fault from None

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

    def _complaint(self, spec: ModelSpec) -> str | None:
        if spec.provider == "scripted":
            return None if self._script else f"{spec.id!r} needs a file of replies; name it with `scripted:` where the worker is started"
        extra = _EXTRAS[spec.provider]
        if not _installed(extra):
            return f"{spec.id!r} needs a package that is not installed here; run: pip install 'gradeloop[{extra}]'"
        return self._address_complaint(spec) or self._key_complaint(spec) or settings_complaint(spec)

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
        return f"base_url {clip(url)} is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS: {url}"

    def _key_complaint(self, spec: ModelSpec) -> str | None:
        endpoint, variable = self._environment.endpoint(spec), _VARIABLES.get(spec.provider, "OPENAI_API_KEY")
        key = endpoint.key
        if endpoint.project:
            return None
        if key is None:
            return f"{variable} is not set in the worker's environment; set it to use {spec.id!r}"
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            return f"{variable} holds white space or a character that no key has; set it again"
        return None

    def _adapter(self, spec: ModelSpec, endpoint: Endpoint) -> Provider:
        if spec.provider == "scripted" and self._script:
            return Scripted(self._script)
        if spec.provider == "anthropic":
            return AnthropicMessages(self._clients.anthropic(endpoint))
        if spec.provider == "google_genai":
            return GoogleGenAI(self._clients.google(endpoint))
        if spec.provider == "openai":
            return OpenAIResponses(self._clients.openai(endpoint))
        return OpenAIChat(self._clients.openai(endpoint))


def _installed(extra: str) -> bool:
    try:
        return find_spec(_PACKAGES[extra]) is not None
    except ModuleNotFoundError:  # of the package above it
        return False
