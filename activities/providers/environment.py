"""The worker's keys and endpoints, and the models that they allow."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from activities.providers.addresses import is_public
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.errors import InvalidRequest
from gradeloop.settings import catalog
from gradeloop.settings.default_model import MISTRAL_URL, default_model
from gradeloop.text import clip

ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
OPENROUTER_URL = "https://openrouter.ai/api/v1"

ANYWHERE = "https://*"
"""The entry of `GRADELOOP_BASE_URLS` that allows every public server."""

NO_KEY = "EMPTY"
"""The key that is sent to a server without keys; the SDK insists on one."""

_VERTEX = ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI")
_PORTS = {"http": 80, "https": 443}
_USER = re.compile(r"//[^/]*@")
"""The user and the password in a URL."""

_DEVIOUS = re.compile(r"[^\x21-\x7e]|[@\\]|%(?:2[eEfF]|5[cC])|/\.{1,2}(?:/|$)|[^:]//")
"""Spellings that a server, or a client on the way to it, may read as another path."""


@dataclass(frozen=True)
class Endpoint:
    """Where a provider listens, and our key there."""

    base_url: str
    key: str | None = field(default=None, repr=False)
    named: bool = False
    """Whether the environment itself named the address."""
    project: str | None = None
    """The Google Cloud project whose Vertex AI is called, with the machine's own credentials and no key."""
    location: str | None = None
    """The region of that project."""
    guarded: bool = False
    """Whether a wildcard alone allows the address, so that it may lead to no private network."""


@dataclass(frozen=True)
class Environment:
    """The worker's keys and endpoints, read once."""

    anthropic: Endpoint = Endpoint(ANTHROPIC_URL)
    openai: Endpoint = Endpoint(OPENAI_URL)
    google: Endpoint = Endpoint(GOOGLE_URL)
    openrouter: Endpoint = Endpoint(OPENROUTER_URL)
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

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Environment":
        """Read the variables; white space around a value is dropped, an empty one counts as unset.

        Raises:
            InvalidRequest: A variable holds no base URL.
        """
        listed = [url.strip() for url in environ.get("GRADELOOP_BASE_URLS", "").split(",")]
        own, chosen = _value(environ, "GRADELOOP_PRICES"), default_model(environ)
        headers = f"{environ.get('ANTHROPIC_CUSTOM_HEADERS', '')}\n{environ.get('OPENAI_CUSTOM_HEADERS', '')}"
        return cls(
            anthropic=_endpoint(environ, "ANTHROPIC", ANTHROPIC_URL),
            openai=_endpoint(environ, "OPENAI", OPENAI_URL),
            google=_google(environ),
            openrouter=Endpoint(OPENROUTER_URL, _value(environ, "OPENROUTER_API_KEY")),
            compatible=tuple(_compatible(environ)),
            default=chosen.spec if chosen else None,
            prices=Path(own) if own else None,
            base_urls=tuple(url if url == ANYWHERE else _base_url(url, "GRADELOOP_BASE_URLS") for url in listed if url),
            ambient_headers=frozenset(line.split(":")[0].strip() for line in headers.splitlines() if ":" in line),
        )

    @property
    def secrets(self) -> frozenset[str]:
        """The keys, which no message may show."""
        endpoints = (self.anthropic, self.openai, self.google, self.openrouter, *self.compatible)
        return frozenset(endpoint.key for endpoint in endpoints if endpoint.key)

    def endpoint(self, spec: ModelSpec) -> Endpoint:
        """Return where a model's calls go, and with which key: a key goes to no other address than its own."""
        if spec.provider == "openai_compatible":
            url = (spec.config.base_url or self.openai.base_url).rstrip("/")
            known = next((endpoint for endpoint in self.compatible if _same(url, endpoint.base_url)), None)
            return known or Endpoint(url, (self.openai.key if self.owns(url) else None) or NO_KEY, guarded=not self._lists(url))
        own = {"anthropic": self.anthropic, "openai": self.openai, "google_genai": self.google, "openrouter": self.openrouter}
        return own.get(spec.provider, Endpoint(""))

    def owns(self, base_url: str) -> bool:
        """Return whether `base_url` is the address that `OPENAI_BASE_URL` names, and so may get its key."""
        return self.openai.named and _same(base_url, self.openai.base_url)

    def allows(self, base_url: str) -> bool:
        """Return whether a request may name `base_url`: a known one, one at or below a listed prefix, or any public one."""
        return self._lists(base_url) or (ANYWHERE in self.base_urls and _is_public(base_url))

    def _lists(self, base_url: str) -> bool:
        known = any(_same(base_url, endpoint.base_url) for endpoint in self.compatible)
        return known or self.owns(base_url) or any(_below(base_url, prefix) for prefix in self.base_urls if prefix != ANYWHERE)


def _value(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, "").strip() or None


def _endpoint(environ: Mapping[str, str], prefix: str, default: str) -> Endpoint:
    named = _value(environ, f"{prefix}_BASE_URL")
    key = _value(environ, f"{prefix}_API_KEY")
    return Endpoint(default, key) if named is None else Endpoint(_base_url(named, f"{prefix}_BASE_URL"), key, named=True)


def _google(environ: Mapping[str, str]) -> Endpoint:
    """Read the endpoint of Gemini, whose key has three names; the SDK's own order."""
    key = next((key for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY") if (key := _value(environ, name))), None)
    named, project = _value(environ, "GOOGLE_GEMINI_BASE_URL"), _value(environ, "GOOGLE_CLOUD_PROJECT")
    uses_vertex = any(environ.get(name, "").strip().lower() in {"1", "true"} for name in _VERTEX)
    if uses_vertex and project:
        location = _value(environ, "GOOGLE_CLOUD_LOCATION") or "global"
        return Endpoint(_base_url(named or GOOGLE_URL, "GOOGLE_GEMINI_BASE_URL"), None, named is not None, project, location)
    return Endpoint(GOOGLE_URL, key) if named is None else Endpoint(_base_url(named, "GOOGLE_GEMINI_BASE_URL"), key, named=True)


def _compatible(environ: Mapping[str, str]) -> Iterator[Endpoint]:
    """Yield the known compatible servers whose key is set; Azure's v1 surface takes the key as OpenAI's does."""
    if key := _value(environ, "MISTRAL_API_KEY"):
        yield Endpoint(MISTRAL_URL, key)
    azure, key = _value(environ, "AZURE_OPENAI_ENDPOINT"), _value(environ, "AZURE_OPENAI_API_KEY")
    if azure and key:
        yield Endpoint(f"{_base_url(azure, 'AZURE_OPENAI_ENDPOINT')}/openai/v1", key)


def _is_public(url: str) -> bool:
    """Return whether a URL is https and names a public host, as far as the name shows; the address behind it is checked at the call."""
    parts = None if _DEVIOUS.search(url) else _split(url)
    if parts is None or parts.scheme != "https" or not parts.hostname:
        return False
    try:
        return is_public(ip_address(parts.hostname))
    except ValueError:
        return "." in parts.hostname and not parts.hostname.endswith((".localhost", ".local", ".internal"))


def _base_url(value: str, variable: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value) or _DEVIOUS.search(value) or _split(value) is None:
        cure = "write http(s)://host[:port][/path], without user, query or fragment"
        raise InvalidRequest(f"{variable}: {clip(_USER.sub('//', value))} is no base URL; {cure}")
    return value.rstrip("/")


def _split(url: str) -> SplitResult | None:
    """Split a URL; None where its host or port is not one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname else None


def _place(url: str) -> tuple[tuple[str, str, int | None], list[str]] | None:
    """Return the origin and the path's segments; None for a URL whose path may be read in two ways."""
    parts = None if _DEVIOUS.search(url) else _split(url)
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


RESERVED_SETTINGS = frozenset(
    {
        "model", "messages", "input", "contents", "system", "instructions", "systeminstruction", "tools", "tool_choice", "toolconfig",
        "stream", "stream_options", "response_format", "text", "output_config", "generationconfig", "store", "include", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "n", "api_key", "apikey", "key", "authorization", "headers", "extra_headers",
        "prompt_cache_key", "cache_control",
    }
)  # fmt: skip
"""What a request's `extra` may not set: we set it, or it is a secret."""


def settings_complaint(spec: ModelSpec) -> str | None:
    """Return which setting the model does not take, and what it takes; None where it takes all, as far as is known."""
    return catalog.settings_complaint(spec) or _extra_complaint(spec)


def _extra_complaint(spec: ModelSpec) -> str | None:
    reserved = sorted(name for name in spec.config.extra if name.lower() in RESERVED_SETTINGS)
    if not reserved:
        return None
    return f"extra.{reserved[0]} of {spec.id!r} is not for a request to set; leave it out, or use the setting of its own"
