"""The worker's keys and endpoints, and the models that they allow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from activities.providers.addresses import is_public
from activities.providers.endpoint import NO_KEY, Endpoint, NamedServer, base_url, is_devious, named_servers, split_url
from gradeloop.contract.http_call import HTTP_REQUEST
from gradeloop.contract.model_spec import PROVIDERS, ModelSpec
from gradeloop.settings import catalog
from gradeloop.settings.default_model import MISTRAL_URL, default_model
from gradeloop.settings.endpoints import RESERVED_SETTINGS, EndpointProtocol, EndpointSettings, declare_endpoints, named_endpoints

ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
OPENROUTER_URL = "https://openrouter.ai/api/v1"

ANYWHERE = "https://*"
"""The entry of `GRADELOOP_BASE_URLS` that allows every public server."""

PROTOCOLS: Mapping[str, EndpointProtocol] = {
    "anthropic": "anthropic",
    "openai": "openai_responses",
    "google_genai": "google",
    "openrouter": "openai_chat",
    "openai_compatible": "openai_chat",
}
"""The protocols of the providers that need no table."""

_VERTEX = ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Environment:
    """The worker's keys and endpoints, read once."""

    anthropic: Endpoint = field(default_factory=lambda: Endpoint(ANTHROPIC_URL))
    openai: Endpoint = field(default_factory=lambda: Endpoint(OPENAI_URL))
    google: Endpoint = field(default_factory=lambda: Endpoint(GOOGLE_URL))
    openrouter: Endpoint = field(default_factory=lambda: Endpoint(OPENROUTER_URL))
    base_urls: tuple[str, ...] = ()
    """Prefixes that a request's `base_url` may have, from `GRADELOOP_BASE_URLS`."""
    compatible: tuple[Endpoint, ...] = ()
    """Known servers of the compatible protocol for which the worker has a key: Mistral, Azure OpenAI."""
    default: ModelSpec | None = None
    """The grader where none is named."""
    prices: Path | None = None
    """The user's own prices, from `GRADELOOP_PRICES`."""
    ambient_headers: frozenset[str] = frozenset()
    """Headers that an SDK would take from its own variable and send to any host; they are left out of every request."""
    servers: Mapping[str, NamedServer] = field(default_factory=dict)
    """The endpoints with names: presets, and those of the worker's settings."""

    @classmethod
    def read(cls, environ: Mapping[str, str], endpoints: Mapping[str, EndpointSettings] | None = None) -> "Environment":
        """Read the variables; white space around a value is dropped, an empty one counts as unset.

        Args:
            environ: The variables.
            endpoints: The endpoints of the worker's settings, by name.

        Raises:
            InvalidRequest: A variable, or an endpoint, holds no base URL.
        """
        own_endpoints = endpoints or {}
        declare_endpoints(named_endpoints(own_endpoints))
        listed = [url.strip() for url in environ.get("GRADELOOP_BASE_URLS", "").split(",")]
        own = _value(environ, "GRADELOOP_PRICES")
        chosen = default_model(environ, [name for name, endpoint in own_endpoints.items() if endpoint.key is not None])
        headers = f"{environ.get('ANTHROPIC_CUSTOM_HEADERS', '')}\n{environ.get('OPENAI_CUSTOM_HEADERS', '')}"
        return cls(
            anthropic=_endpoint(environ, "ANTHROPIC", ANTHROPIC_URL),
            openai=_endpoint(environ, "OPENAI", OPENAI_URL),
            google=_google(environ),
            openrouter=Endpoint(OPENROUTER_URL, _value(environ, "OPENROUTER_API_KEY"), origin="OPENROUTER_API_KEY"),
            compatible=tuple(_compatible(environ)),
            default=chosen.spec if chosen else None,
            prices=Path(own) if own else None,
            base_urls=tuple(url if url == ANYWHERE else base_url(url, "GRADELOOP_BASE_URLS") for url in listed if url),
            ambient_headers=frozenset(line.split(":")[0].strip() for line in headers.splitlines() if ":" in line),
            servers=named_servers(own_endpoints, environ, frozenset(PROVIDERS)),
        )

    @property
    def secrets(self) -> frozenset[str]:
        """The keys, which no message may show."""
        endpoints = (self.anthropic, self.openai, self.google, self.openrouter, *self.compatible)
        named = (server.source.current() for server in self.servers.values())
        return frozenset(key for key in (*(endpoint.key for endpoint in endpoints), *named) if key)

    def missing_keys(self) -> list[str]:
        """Return what to set for the endpoints that the worker's own settings name and that have no key now."""
        servers = self.servers.items()
        lacking = [(name, server) for name, server in servers if server.configured and not server.keyless and not server.takes_tokens]
        return [f"{name}: {server.source.origin}" for name, server in lacking if server.complaint or server.source.current() is None]

    def endpoint(self, spec: ModelSpec) -> Endpoint:
        """Return where a model's calls go, and with which key: a key goes to no other address than its own."""
        if server := self.servers.get(spec.provider):
            return server.now()
        if spec.provider == HTTP_REQUEST and spec.config.base_url:
            return Endpoint(spec.config.base_url, guarded=not self._lists(spec.config.base_url))
        if spec.provider == "openai_compatible":
            url = (spec.config.base_url or self.openai.base_url).rstrip("/")
            known = next((endpoint for endpoint in self.compatible if _same(url, endpoint.base_url)), None)
            own_key = self.openai.key if self.owns(url) else None
            return known or Endpoint(url, own_key or NO_KEY, guarded=not self._lists(url), origin=self.openai.origin if own_key else "")
        own = {"anthropic": self.anthropic, "openai": self.openai, "google_genai": self.google, "openrouter": self.openrouter}
        return own.get(spec.provider, Endpoint(""))

    def protocol(self, provider: str) -> EndpointProtocol | None:
        """Return the protocol of a provider or an endpoint; None of one that this worker does not know."""
        server = self.servers.get(provider)
        return server.place.protocol if server else PROTOCOLS.get(provider)

    def owns(self, url: str) -> bool:
        """Return whether a base URL is the address that `OPENAI_BASE_URL` names, and so may get its key."""
        return self.openai.named and _same(url, self.openai.base_url)

    def allows(self, url: str) -> bool:
        """Return whether a request may name a base URL: a known one, one at or below a listed prefix, or any public one."""
        return self._lists(url) or (ANYWHERE in self.base_urls and _is_public(url))

    def _lists(self, url: str) -> bool:
        known = any(_same(url, endpoint.base_url) for endpoint in self.compatible)
        return known or self.owns(url) or any(_below(url, prefix) for prefix in self.base_urls if prefix != ANYWHERE)


def _value(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, "").strip() or None


def _endpoint(environ: Mapping[str, str], prefix: str, default: str) -> Endpoint:
    named, origin = _value(environ, f"{prefix}_BASE_URL"), f"{prefix}_API_KEY"
    url = default if named is None else base_url(named, f"{prefix}_BASE_URL")
    return Endpoint(url, _value(environ, origin), named=named is not None, origin=origin)


def _google(environ: Mapping[str, str]) -> Endpoint:
    """Read the endpoint of Gemini, whose key has three names; the SDK's own order."""
    names = [name for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY") if _value(environ, name)]
    origin = names[0] if names else "GOOGLE_API_KEY (or GEMINI_API_KEY)"
    named, project = _value(environ, "GOOGLE_GEMINI_BASE_URL"), _value(environ, "GOOGLE_CLOUD_PROJECT")
    uses_vertex = any(environ.get(name, "").strip().lower() in {"1", "true"} for name in _VERTEX)
    if uses_vertex and project:
        location = _value(environ, "GOOGLE_CLOUD_LOCATION") or "global"
        return Endpoint(base_url(named or GOOGLE_URL, "GOOGLE_GEMINI_BASE_URL"), None, named is not None, project, location)
    url = GOOGLE_URL if named is None else base_url(named, "GOOGLE_GEMINI_BASE_URL")
    return Endpoint(url, _value(environ, origin), named=named is not None, origin=origin)


def _compatible(environ: Mapping[str, str]) -> Iterator[Endpoint]:
    """Yield the known compatible servers whose key is set; Azure's v1 surface takes the key as OpenAI's does."""
    if key := _value(environ, "MISTRAL_API_KEY"):
        yield Endpoint(MISTRAL_URL, key, origin="MISTRAL_API_KEY")
    azure, key = _value(environ, "AZURE_OPENAI_ENDPOINT"), _value(environ, "AZURE_OPENAI_API_KEY")
    if azure and key:
        yield Endpoint(f"{base_url(azure, 'AZURE_OPENAI_ENDPOINT')}/openai/v1", key, origin="AZURE_OPENAI_API_KEY")


def _is_public(url: str) -> bool:
    """Return whether a URL is https and names a public host, as far as the name shows; the address behind it is checked at the call."""
    parts = None if is_devious(url) else split_url(url)
    if parts is None or parts.scheme != "https" or not parts.hostname:
        return False
    try:
        return is_public(ip_address(parts.hostname))
    except ValueError:
        return "." in parts.hostname and not parts.hostname.endswith((".localhost", ".local", ".internal"))


def _place(url: str) -> tuple[tuple[str, str, int | None], list[str]] | None:
    """Return the origin and the path's segments; None for a URL whose path may be read in two ways."""
    parts = None if is_devious(url) else split_url(url)
    if parts is None:
        return None
    origin = (parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme.lower()))
    return origin, [segment for segment in parts.path.split("/") if segment]


def _same(url: str, other: str) -> bool:
    place = _place(url)
    return place is not None and place == _place(other)


def _below(url: str, prefix: str) -> bool:
    place, top = _place(url), _place(prefix)
    return place is not None and top is not None and place[0] == top[0] and place[1][: len(top[1])] == top[1]


def settings_complaint(spec: ModelSpec) -> str | None:
    """Return which setting the model does not take, and what it takes; None where it takes all, as far as is known."""
    return catalog.settings_complaint(spec) or _extra_complaint(spec)


def _extra_complaint(spec: ModelSpec) -> str | None:
    reserved = sorted(name for name in spec.config.extra if name.lower() in RESERVED_SETTINGS)
    if not reserved:
        return None
    return f"extra.{reserved[0]} of {spec.id!r} is not for a request to set; leave it out, or use the setting of its own"
