"""What the worker takes from its environment for model calls: keys, endpoints, and which other endpoints are allowed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from gradeloop.errors import InvalidRequest
from gradeloop.modelspec import ModelSpec
from gradeloop.strict import clip

ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"
OPENROUTER_URL = "https://openrouter.ai/api/v1"

NO_KEY = "EMPTY"
"""What a server without keys is sent; the SDK insists on one."""

_PORTS = {"http": 80, "https": 443}
_DEVIOUS = re.compile(r"[^\x21-\x7e]|[@\\]|%(?:2[eEfF]|5[cC])|/\.{1,2}(?:/|$)|[^:]//")
"""Spellings that a server, or a client on the way to it, may read as another path."""


@dataclass(frozen=True)
class Endpoint:
    """Where a provider listens and the key that it knows us by."""

    base_url: str
    key: str | None = field(default=None, repr=False)
    named: bool = False
    """Whether the environment itself named the address."""


@dataclass(frozen=True)
class Environment:
    """The worker's keys and endpoints, read once."""

    anthropic: Endpoint = Endpoint(ANTHROPIC_URL)
    openai: Endpoint = Endpoint(OPENAI_URL)
    openrouter: Endpoint = Endpoint(OPENROUTER_URL)
    base_urls: tuple[str, ...] = ()
    """Prefixes that a request's `base_url` may have, from `GRADELOOP_BASE_URLS`."""
    ambient_headers: frozenset[str] = frozenset()
    """Headers that an SDK would take from its own variable and send to any host; they are left out of every request."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Environment":
        """Read the variables; white space around a value is dropped, an empty one counts as unset.

        Raises:
            InvalidRequest: A variable holds no base URL.
        """
        listed = environ.get("GRADELOOP_BASE_URLS", "").split(",")
        headers = f"{environ.get('ANTHROPIC_CUSTOM_HEADERS', '')}\n{environ.get('OPENAI_CUSTOM_HEADERS', '')}"
        return cls(
            anthropic=_endpoint(environ, "ANTHROPIC", ANTHROPIC_URL),
            openai=_endpoint(environ, "OPENAI", OPENAI_URL),
            openrouter=Endpoint(OPENROUTER_URL, _value(environ, "OPENROUTER_API_KEY")),
            base_urls=tuple(_base_url(url.strip(), "GRADELOOP_BASE_URLS") for url in listed if url.strip()),
            ambient_headers=frozenset(line.split(":")[0].strip() for line in headers.splitlines() if ":" in line),
        )

    @property
    def secrets(self) -> frozenset[str]:
        """The keys, which no message may show."""
        return frozenset(endpoint.key for endpoint in (self.anthropic, self.openai, self.openrouter) if endpoint.key)

    def endpoint(self, spec: ModelSpec) -> Endpoint:
        """Return where a model's calls go, and with which key: one goes to no other address than its own."""
        if spec.provider == "openai_compatible":
            url = (spec.config.base_url or self.openai.base_url).rstrip("/")
            return Endpoint(url, (self.openai.key if self.owns(url) else None) or NO_KEY)
        own = {"anthropic": self.anthropic, "openai": self.openai, "openrouter": self.openrouter}
        return own.get(spec.provider, Endpoint(""))

    def owns(self, base_url: str) -> bool:
        """Say whether `base_url` is the address that `OPENAI_BASE_URL` names, and so may get its key."""
        return self.openai.named and _same(base_url, self.openai.base_url)

    def allows(self, base_url: str) -> bool:
        """Say whether a request may name `base_url`: the environment's own, or one at or below a listed prefix."""
        return self.owns(base_url) or any(_below(base_url, prefix) for prefix in self.base_urls)


def _value(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, "").strip() or None


def _endpoint(environ: Mapping[str, str], prefix: str, default: str) -> Endpoint:
    named = _value(environ, f"{prefix}_BASE_URL")
    key = _value(environ, f"{prefix}_API_KEY")
    return Endpoint(default, key) if named is None else Endpoint(_base_url(named, f"{prefix}_BASE_URL"), key, named=True)


def _base_url(value: str, variable: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value) or _DEVIOUS.search(value) or _split(value) is None:
        cure = "write http(s)://host[:port][/path], without user, query or fragment"
        raise InvalidRequest(f"{variable}: {clip(value)} is no base URL; {cure}")
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
