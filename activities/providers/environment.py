"""The worker's keys and endpoints, the models that they allow, and the addresses that are public.

A key comes from a variable, from a file that may change at any moment, or is a token of Entra ID's.
"""

import asyncio
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from activities.errors import model_fault
from gradeloop.contract.model_spec import HTTP_REQUEST, PROVIDERS, ModelSpec
from gradeloop.contract.provider import Cloud, Endpoint, ModelFault
from gradeloop.errors import InvalidRequest
from gradeloop.settings import catalog
from gradeloop.settings.endpoints import (
    ENTRA,
    PROVIDERS_VARIABLE,
    RESERVED_SETTINGS,
    EndpointSettings,
    NamedEndpoint,
    declare_endpoints,
    default_model,
    expand,
    named_endpoints,
    names_file,
    presets_by_name,
    referenced_variables,
)
from gradeloop.settings.secrets import environment_secrets, remember_secret
from gradeloop.text import clip

IPAddress = IPv4Address | IPv6Address

NOT_GLOBAL = (
    # IPv4, as `ipaddress.IPv4Address.is_global` of Python 3.13 has it
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24"),
    *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
    # IPv6, as `ipaddress.IPv6Address.is_global` of Python 3.13 has it
    *("::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/10"),
)
"""The networks of IANA's special-purpose registries that are not globally reachable; 6to4 and Teredo are among them."""

GLOBAL_WITHIN = (
    *("192.0.0.9/32", "192.0.0.10/32"),
    *("2001:1::1/128", "2001:1::2/128", "2001:3::/32", "2001:4:112::/48", "2001:20::/28", "2001:30::/28"),
)
"""The exceptions of those registries, which are globally reachable."""

NOT_GLOBAL_EITHER = (
    *("224.0.0.0/4", "ff00::/8"),  # multicast
    "::/96",  # IPv4-compatible, `::a.b.c.d`: RFC 4291, deprecated
    "::ffff:0:0:0/96",  # IPv4-translated: RFC 2765, for translators within a site
    "fec0::/10",  # site-local: RFC 3879, deprecated
    "3fff::/20",  # documentation: RFC 9637
    "5f00::/16",  # segment routing: RFC 9602
    "168.63.129.16/32",  # Azure's host, which answers every virtual machine there
)
"""The networks that Python 3.13's tables count as global, and that lead to nobody in public."""

_NAT64 = IPv6Network("64:ff9b::/96")

_REFUSED, _EXCEPTED = ([ip_network(text) for text in texts] for texts in ((*NOT_GLOBAL, *NOT_GLOBAL_EITHER), GLOBAL_WITHIN))


def is_public(address: IPAddress) -> bool:
    """Return whether an address is one that anybody's packets reach; an embedded IPv4 address counts where packets go there."""
    target = reached_address(address)
    return not _within(target, _REFUSED) or _within(target, _EXCEPTED)


def reached_address(address: IPAddress) -> IPAddress:
    """Return the IPv4 address to which packets for a mapped or a NAT64 address go; any other address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _within(address: IPAddress, networks: list[IPv4Network | IPv6Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


_USER = re.compile(r"//[^/]*@")
"""The user and the password in a URL."""

_DEVIOUS = re.compile(r"[^\x21-\x7e]|[@\\]|%(?:2[eEfF]|5[cC])|/\.{1,2}(?:/|$)|[^:]//")
"""Spellings that a server, or a client on the way to it, may read as another path."""

_PORTS = {"http": 80, "https": 443}


def base_url(value: str, variable: str) -> str:
    """Return a base URL without its last slash; raise InvalidRequest, which begins with `variable`, where it is none, or ambiguous."""
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value) or is_devious(value) or split_url(value) is None:
        cure = "write http(s)://host[:port][/path], without user, query or fragment"
        raise InvalidRequest(f"{variable}: {clip(_USER.sub('//', value))} is not a base URL; {cure}")
    return value.rstrip("/")


def is_devious(url: str) -> bool:
    """Return whether a server, or a client on the way to it, may read a URL as another path."""
    return _DEVIOUS.search(url) is not None


def split_url(url: str) -> SplitResult | None:
    """Split a URL; None where its host or port is not one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname else None


def names_public_host(url: str) -> bool:
    """Return whether a URL is https and names a public host, as far as the name shows; the address behind it is checked at the call."""
    parts = None if is_devious(url) else split_url(url)
    if parts is None or parts.scheme != "https" or not parts.hostname:
        return False
    try:
        return is_public(ip_address(parts.hostname))
    except ValueError:
        return not _is_private_name(parts.hostname)


def is_local(url: str) -> bool:
    """Return whether a URL names this machine or a private network, as far as the name shows."""
    host = getattr(split_url(url), "hostname", None) or ""
    try:
        return not is_public(ip_address(host))
    except ValueError:
        return bool(host) and _is_private_name(host)


def _is_private_name(host: str) -> bool:
    return "." not in host or host.endswith((".localhost", ".local", ".internal"))


def _origin_and_path(url: str) -> tuple[tuple[str, str, int | None], list[str]] | None:
    """Return the origin and the path's segments; None for a URL whose path may be read in two ways."""
    parts = None if is_devious(url) else split_url(url)
    if parts is None:
        return None
    origin = (parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme.lower()))
    return origin, [segment for segment in parts.path.split("/") if segment]


def same_place(url: str, other: str) -> bool:
    """Return whether two URLs name one place, which neither may leave open."""
    place = _origin_and_path(url)
    return place is not None and place == _origin_and_path(other)


# Paths are compared segment by segment. As texts, a prefix ending in `/team` would also allow
# `/team-of-others`, and one that ends with the host would allow `host.evil.example`.
def is_below(url: str, prefix: str) -> bool:
    """Return whether a URL is at or below another one."""
    place, top = _origin_and_path(url), _origin_and_path(prefix)
    return place is not None and top is not None and place[0] == top[0] and place[1][: len(top[1])] == top[1]


logger = logging.getLogger("gradeloop.providers")

NO_KEY = "EMPTY"
"""The key that is sent to a server without keys; the SDK insists on one."""

AZURE_PATH = "/openai/v1"
"""The path of Azure's v1 surface below a resource's address."""

ANYWHERE = "https://*"
"""The entry of `GRADELOOP_BASE_URLS` that allows every public server."""

_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)

_WITHOUT_ADDRESS = {"openai_compatible": "openai_chat", HTTP_REQUEST: HTTP_REQUEST, "scripted": "scripted"}
"""The protocols of the providers that have no address of their own."""

KEY_BYTES = 64 * 1024
"""The largest file of a key: many times the longest token."""

RACY_SECONDS = 2.0
"""The age from which a file's time and size show that it is the same: two writes within a tick of the clock look alike."""

AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
"""The scope of a token: the inference of Azure OpenAI and Foundry."""

RENEW_SECONDS = 300.0
"""Seconds before its end at which a token is renewed, so that none ends on the way."""


class KeySource(ABC):
    """The source of an endpoint's key."""

    origin: str
    """The variable, file or credential to correct where there is no key."""

    @abstractmethod
    def current(self) -> str | None:
        """Return the key as it is now; None where there is none."""

    async def renew(self) -> None:  # noqa: B027 - most keys are there
        """Fetch a key where one has to be fetched, before a call; raise ModelFault where none can be had."""

    def forget(self) -> None:  # noqa: B027 - a process's variables do not change
        """Read the key anew at its next use, since the endpoint refused it."""


class KeyVariable(KeySource):
    """A key in a variable of the worker, read once."""

    def __init__(self, names: tuple[str, ...], environ: Mapping[str, str]) -> None:
        found = next((name for name in names if environ.get(name, "").strip()), None)
        self._key = environ[found].strip() if found else None
        self.origin = found or (f"{names[0]} (or {names[1]})" if len(names) > 1 else names[0] if names else "the key")
        if self._key and not environment_secrets(dict.fromkeys(names, self._key)):  # by its name it is not a secret
            remember_secret(self._key)

    def current(self) -> str | None:
        """Return the variable's value."""
        return self._key


class KeyFile(KeySource):
    """A key in a file, which is read anew when the file changes; while it is away or empty, the last key counts."""

    def __init__(self, path: Path) -> None:
        self.origin = f"the key file {str(path)!r}"
        self._path = path
        self._key: str | None = None
        self._state: tuple[int, int, int] | None = None
        self._away = False

    def current(self) -> str | None:
        """Return the file's content, without the white space around it."""
        try:
            facts = self._path.stat()
            state = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            if state == self._state:
                return self._key
            with self._path.open("rb") as content:
                text = content.read(KEY_BYTES).decode(errors="replace").strip()
        except OSError as error:
            if not self._away:
                logger.warning("%s cannot be read (%s)", self.origin, error.strerror)
            self._away, self._state = True, None
            return self._key
        self._away = False
        # A file that was written just now may be written once more within the same tick of the clock, with the
        # same size. So its state is kept only when it is older, and until then each call reads it. An empty
        # file is one in the middle of a rotation: the last key counts on.
        settled = time.time() - facts.st_mtime > RACY_SECONDS
        self._state = state if settled and text else None
        if text and text != self._key:
            if self._key is not None:
                logger.info("%s has another key now", self.origin)
            self._key = text
            remember_secret(text)
        return self._key

    def forget(self) -> None:
        """Read the file at the next use, whatever its time says."""
        self._state = None


class EntraToken(KeySource):
    """Tokens of Entra ID, by whatever of this machine's credentials `azure-identity` finds first."""

    origin = "a credential for Entra ID (az login, a managed identity, or AZURE_CLIENT_ID and those beside it)"

    def __init__(self) -> None:
        self._credential: Any = None  # azure-identity's, which only Azure's users have
        self._token: str | None = None
        self._ends = 0.0
        self._fetching = asyncio.Lock()

    def current(self) -> str | None:
        """Return the token that was fetched last."""
        return self._token

    async def renew(self) -> None:
        """Fetch a token where there is none, or where it ends soon.

        Raises:
            ModelFault: Of kind `auth` where no credential gives one; of kind `connection` where whoever gives it cannot be reached.
        """
        # Calls that begin together would each ask for a token: the lock lets one fetch it, and the others find
        # it.
        async with self._fetching:
            if self._token is None or time.time() > self._ends - RENEW_SECONDS:
                await self._fetch()

    async def _fetch(self) -> None:
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

        try:
            token = await asyncio.to_thread(self._ask)
        except ClientAuthenticationError as error:
            raise ModelFault("auth", f"Entra ID gives no token: {error.message}") from None
        except ServiceRequestError as error:
            raise ModelFault("connection", f"Entra ID is not reached: {error.message}") from None
        self._token, self._ends = str(token.token), float(token.expires_on)
        remember_secret(self._token)

    def _ask(self) -> Any:  # noqa: ANN401 - as above
        if self._credential is None:
            from azure.identity import DefaultAzureCredential

            self._credential = DefaultAzureCredential(exclude_interactive_browser_credential=True)
        return self._credential.get_token(AZURE_SCOPE)

    def forget(self) -> None:
        """Fetch a token at the next use."""
        self._token = None


@dataclass(frozen=True)
class NamedServer:
    """An endpoint with a name, whose key may change while the worker runs."""

    place: Endpoint
    """The endpoint, without its key."""
    keyless: bool
    source: KeySource = field(compare=False, repr=False)
    configured: bool = False
    """Whether the worker's own settings name it."""
    complaint: str | None = None
    """The reason why it cannot be called; None if it can."""

    def now(self) -> Endpoint:
        """Return the endpoint with its key as it is now."""
        return self._lasting if isinstance(self.source, KeyVariable) else self._with_key()

    @cached_property
    def _lasting(self) -> Endpoint:
        return self._with_key()

    def _with_key(self) -> Endpoint:
        if self.place.project and self.place.cloud is None:
            return self.place
        key = self.source.current()
        if key is None and self.keyless and self.place.cloud is None:
            key = NO_KEY
        return replace(self.place, key=key, origin=self.source.origin)

    # A key may change between its reading and its use. Only a refusal with another key at hand is worth a
    # second try; without this test every wrong key would be sent twice, at each call.
    async def has_other_key(self, used: str | None, error: Exception) -> bool:
        """Return whether the endpoint refused a key, in whose place there is another one by now."""
        fault = model_fault(error, model="")
        if fault is None or fault.kind != "auth":
            return False
        self.source.forget()
        await self.source.renew()
        return self.source.current() not in {None, used}

    @property
    def takes_tokens(self) -> bool:
        """Whether its key is a token of Entra ID, which is fetched before a call."""
        return isinstance(self.source, EntraToken)


def named_servers(own: Mapping[str, EndpointSettings], environ: Mapping[str, str]) -> dict[str, NamedServer]:
    """Return the endpoints that can be called by name; raise InvalidRequest where an address is not a base URL."""
    return {name: _server(endpoint, environ, name in own) for name, endpoint in named_endpoints(own).items()}


def _server(endpoint: NamedEndpoint, environ: Mapping[str, str], configured: bool) -> NamedServer:
    source, complaint = _source(endpoint, environ), None
    place = Endpoint("", protocol=endpoint.protocol, cloud=endpoint.cloud, provider=endpoint.name)
    try:
        place = _place(endpoint, environ)
    except KeyError as error:
        complaint = f"{error.args[0]} is not set"
    except InvalidRequest as error:
        if configured or endpoint.name in PROVIDERS or (source.current() is not None and not endpoint.keyless):
            raise
        complaint = str(error)
    if complaint is None and endpoint.cloud == "vertex" and place.project is None:
        complaint = f"{endpoint.projects[0] if endpoint.projects else 'project'} is not set"
    return NamedServer(place, endpoint.keyless, source, configured, complaint)


def _source(endpoint: NamedEndpoint, environ: Mapping[str, str]) -> KeySource:
    if endpoint.key is not None and names_file(endpoint.key):
        return KeyFile(Path(endpoint.key).expanduser())
    if endpoint.key == ENTRA:
        return EntraToken()
    variable = KeyVariable(endpoint.keys, environ)
    return EntraToken() if endpoint.cloud == "azure" and endpoint.key is None and variable.current() is None else variable


def _place(endpoint: NamedEndpoint, environ: Mapping[str, str]) -> Endpoint:
    """Return an endpoint with the worker's variables filled in.

    Raises:
        KeyError: One of them is not set; its argument is the variable's name.
        InvalidRequest: The address is not a base URL.
    """
    region = endpoint.region or _first(endpoint.regions, environ) or ("global" if endpoint.projects else None)
    text, references = expand(endpoint.base_url, environ), referenced_variables([endpoint.base_url])
    address = base_url(text, _origin(endpoint)) if text else _cloud_address(endpoint.cloud, region)
    in_project = endpoint.cloud == "vertex" or any(environ.get(name, "").strip().lower() in {"1", "true"} for name in endpoint.switches)
    project = (endpoint.project or _first(endpoint.projects, environ)) if in_project else None
    if endpoint.cloud == "azure":
        address = f"{address.removesuffix(AZURE_PATH)}{AZURE_PATH}"
    headers = {name: expand(text, environ) for name, text in endpoint.headers.items()}
    query = {name: expand(text, environ) for name, text in endpoint.query.items()}
    _remember(endpoint, headers, environ)
    return Endpoint(
        address,
        named=bool(text) and (not references or _first(tuple(references), environ) is not None),
        project=project,
        location=region,
        protocol=endpoint.protocol,
        headers=headers,
        query=query,
        body=endpoint.body,
        cloud=endpoint.cloud,
        provider=endpoint.name,
    )


def _origin(endpoint: NamedEndpoint) -> str:
    preset = presets_by_name().get(endpoint.name)
    variables = sorted(referenced_variables([endpoint.base_url]))
    from_preset = preset is not None and preset.base_url == endpoint.base_url and variables
    return variables[0] if from_preset else f"{PROVIDERS_VARIABLE} or [providers.{endpoint.name}]: base_url"


def _remember(endpoint: NamedEndpoint, headers: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Keep what an endpoint sends beside its key out of every text: variables' values, and headers that are named as secrets are."""
    for name in referenced_variables([*endpoint.headers.values(), *endpoint.query.values()]):
        remember_secret(environ.get(name, "").strip())
    for name, text in headers.items():
        if _SECRET_HEADER.search(name):
            remember_secret(text.rpartition(" ")[2])


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)


def _cloud_address(cloud: Cloud | None, region: str | None) -> str:
    """Return the address that the cloud's own client has for a region."""
    if cloud == "bedrock":
        return f"https://bedrock-runtime.{region}.amazonaws.com" if region else "https://bedrock-runtime.amazonaws.com"
    if region in {"us", "eu"}:
        return f"https://aiplatform.{region}.rep.googleapis.com/v1"
    return "https://aiplatform.googleapis.com/v1" if region == "global" else f"https://{region}-aiplatform.googleapis.com/v1"


@dataclass(frozen=True)
class Environment:
    """The worker's keys and endpoints, read once."""

    servers: Mapping[str, NamedServer] = field(default_factory=lambda: named_servers({}, {}))
    """The endpoints with names: presets, and those of the worker's settings."""
    openai: Endpoint = field(default_factory=lambda: Endpoint(""))
    """The server that `OPENAI_BASE_URL` names, and its key."""
    base_urls: tuple[str, ...] = ()
    """Prefixes that a request's `base_url` may have, from `GRADELOOP_BASE_URLS`."""
    local: frozenset[str] = frozenset()
    """Servers of models on this machine that the command of this worker named, each by its whole address."""
    compatible: tuple[Endpoint, ...] = ()
    """Known servers of the compatible protocol for which the worker has a key: Mistral, Azure OpenAI."""
    default: ModelSpec | None = None
    """The grader where none is named."""
    prices: Path | None = None
    """The user's own prices, from `GRADELOOP_PRICES`."""
    ambient_headers: frozenset[str] = frozenset()
    """Headers that an SDK would take from its own variable and send to any host; they are left out of every request."""

    @classmethod
    def read(
        cls, environ: Mapping[str, str], endpoints: Mapping[str, EndpointSettings] | None = None, local: Iterable[str] = ()
    ) -> "Environment":
        """Read the variables; white space around a value is dropped, an empty one counts as unset.

        `local`: servers of models on this machine that requests may name.

        Raises:
            InvalidRequest: A variable, or an endpoint, holds no base URL.
        """
        own = endpoints or {}
        declare_endpoints(named_endpoints(own))
        presets, prices = named_servers({}, environ), environ.get("GRADELOOP_PRICES", "").strip()
        listed = [url.strip() for url in environ.get("GRADELOOP_BASE_URLS", "").split(",")]
        chosen = default_model(environ, [name for name, endpoint in own.items() if endpoint.key is not None])
        headers = f"{environ.get('ANTHROPIC_CUSTOM_HEADERS', '')}\n{environ.get('OPENAI_CUSTOM_HEADERS', '')}"
        return cls(
            servers=named_servers(own, environ) if own else presets,
            openai=presets["openai"].now(),
            compatible=tuple(place for name in ("mistral", "azure") if (place := presets[name].now()).base_url and place.key),
            default=chosen.spec if chosen else None,
            prices=Path(prices) if prices else None,
            local=frozenset(base_url(url, "--local-servers") for url in local),
            base_urls=tuple(url if url == ANYWHERE else base_url(url, "GRADELOOP_BASE_URLS") for url in listed if url),
            ambient_headers=frozenset(line.split(":")[0].strip() for line in headers.splitlines() if ":" in line),
        )

    @property
    def secrets(self) -> frozenset[str]:
        """The keys, which no message may show."""
        named = (server.source.current() for server in self.servers.values())
        return frozenset(key for key in (self.openai.key, *(place.key for place in self.compatible), *named) if key)

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
            known = next((endpoint for endpoint in self.compatible if same_place(url, endpoint.base_url)), None)
            own_key = self.openai.key if self.owns(url) else None
            origin = self.openai.origin if own_key else ""
            return known or Endpoint(url, own_key or NO_KEY, guarded=not self.serves(url), provider=spec.provider, origin=origin)
        return Endpoint("")

    def protocol(self, provider: str) -> str | None:
        """Return the protocol of a provider or an endpoint; None of one that this worker does not know."""
        server = self.servers.get(provider)
        return server.place.protocol if server else _WITHOUT_ADDRESS.get(provider)

    def owns(self, url: str) -> bool:
        """Return whether a base URL is the address that `OPENAI_BASE_URL` names, and so may get its key."""
        return self.openai.named and same_place(url, self.openai.base_url)

    def serves(self, url: str) -> bool:
        """Return whether a model may be called at a base URL in any network: one that is listed, or that this worker's command named."""
        return url.rstrip("/") in self.local or self._lists(url)

    def allows(self, url: str) -> bool:
        """Return whether a request may name a base URL: a known one, one at or below a listed prefix, or any public one."""
        return self._lists(url) or (ANYWHERE in self.base_urls and names_public_host(url))

    def _lists(self, url: str) -> bool:
        known = any(same_place(url, endpoint.base_url) for endpoint in self.compatible)
        return known or self.owns(url) or any(is_below(url, prefix) for prefix in self.base_urls if prefix != ANYWHERE)


def settings_complaint(spec: ModelSpec) -> str | None:
    """Return which setting the model does not take, and what it takes; None where it takes all, as far as is known."""
    reserved = sorted(name for name in spec.config.extra if name.lower() in RESERVED_SETTINGS)
    if (complaint := catalog.settings_complaint(spec)) or not reserved:
        return complaint
    return f"extra.{reserved[0]} of {spec.id!r} is not for a request to set; leave it out, or use the setting of its own"
