"""The models that a worker can call, all through one connection pool."""

import asyncio
import re
from importlib import import_module
from importlib.util import find_spec

from activities.failures import ModelFault, fault_of
from activities.providers.anthropic import AnthropicMessages
from activities.providers.clients import Clients
from activities.providers.environment import Endpoint, Environment
from activities.providers.model import DEADLINE, ModelReply, ModelRequest, Provider
from activities.providers.openai_chat import OpenAIChat
from activities.providers.scripted import Script, Scripted
from gradeloop.modelspec import ModelSpec
from gradeloop.strict import clip

_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openrouter": "OPENROUTER_API_KEY"}
_EXTRAS = {"anthropic": "anthropic", "openai": "openai", "openrouter": "openai", "openai_compatible": "openai"}
_ANTHROPIC_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Providers:
    """Model calls by spec, with the worker's keys and under one deadline."""

    def __init__(self, environment: Environment, script: Script | None = None) -> None:
        self._environment = environment
        self._script = script
        self._clients = Clients(environment.ambient_headers)
        self._adapters: dict[tuple[str, str], Provider] = {}
        self._loaded: set[str] = set()

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
        place = (spec.provider, endpoint.base_url)
        if place not in self._adapters:
            self._adapters[place] = self._adapter(spec, endpoint)
        return self._adapters[place]

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one paid call, within `DEADLINE` seconds in all.

        Raises:
            ModelFault: The call failed or gave no answer; its message shows no key.
        """
        model, deadline = request.spec.id, asyncio.timeout(DEADLINE)
        try:
            async with deadline:
                await self._load(_EXTRAS.get(request.spec.provider))
                return await self.get(request.spec).complete(request)
        except Exception as error:
            fault = fault_of(error, model=model, secrets=self._environment.secrets)
            if fault is None:
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                fault = ModelFault("timeout", f"no reply within {DEADLINE:g} s", model=model)
            raise fault from None

    async def _load(self, package: str | None) -> None:
        """Import an SDK at its first use, in a thread: it takes seconds on a busy machine, in which all calls must send heartbeats."""
        if package and package not in self._loaded and find_spec(package):
            await asyncio.to_thread(import_module, package)
            self._loaded.add(package)

    async def aclose(self) -> None:
        """Close the connections."""
        self._adapters.clear()
        await self._clients.aclose()

    def _complaint(self, spec: ModelSpec) -> str | None:
        if spec.provider == "scripted":
            return None if self._script else f"{spec.id!r} needs a file of replies; name it with `scripted:` where the worker is started"
        extra = _EXTRAS[spec.provider]
        if find_spec(extra) is None:
            return f"{spec.id!r} needs a package that is not installed here; run: pip install 'gradeloop[{extra}]'"
        return self._address_complaint(spec) or self._key_complaint(spec) or _config_complaint(spec)

    def _address_complaint(self, spec: ModelSpec) -> str | None:
        url, environment = spec.config.base_url, self._environment
        if spec.provider != "openai_compatible":
            right = f"openai_compatible:{spec.model}"
            return f"base_url belongs to {right!r}, not to {spec.id!r}; change the provider or leave it out" if url else None
        if url is None:
            named = environment.openai.named
            return None if named else f"{spec.id!r} needs config.base_url, the address of its server (or OPENAI_BASE_URL at the worker)"
        if environment.allows(url):
            return None
        return f"base_url {clip(url)} is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS: {url}"

    def _key_complaint(self, spec: ModelSpec) -> str | None:
        key, variable = self._environment.endpoint(spec).key, _VARIABLES.get(spec.provider, "OPENAI_API_KEY")
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
        return OpenAIChat(self._clients.openai(endpoint))


def _config_complaint(spec: ModelSpec) -> str | None:
    config = spec.config
    if spec.provider != "anthropic":
        return None
    if config.temperature is not None:
        return f"temperature {config.temperature:g} cannot be set for {spec.id!r}: the Messages API takes none; leave it out"
    if config.reasoning_effort not in (None, *_ANTHROPIC_EFFORTS):
        return f"reasoning_effort {config.reasoning_effort!r} is unknown to {spec.id!r}. Known: {', '.join(_ANTHROPIC_EFFORTS)}."
    return None
