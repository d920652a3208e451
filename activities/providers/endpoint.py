"""Where a model is called, with which key, and how an endpoint's table becomes that."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from pydantic import JsonValue

from activities.providers.keys import EntraToken, KeyFile, KeySource, KeyVariable
from gradeloop.errors import InvalidRequest
from gradeloop.settings.endpoints import (
    ENTRA,
    PROVIDERS_VARIABLE,
    Cloud,
    EndpointProtocol,
    EndpointSettings,
    NamedEndpoint,
    expand,
    named_endpoints,
    names_file,
    presets_by_name,
    referenced_variables,
)
from gradeloop.settings.secrets import remember_secret
from gradeloop.text import clip

NO_KEY = "EMPTY"
"""The key that is sent to a server without keys; the SDK insists on one."""

AZURE_PATH = "/openai/v1"
"""The path of Azure's v1 surface below a resource's address."""

_USER = re.compile(r"//[^/]*@")
"""The user and the password in a URL."""

_DEVIOUS = re.compile(r"[^\x21-\x7e]|[@\\]|%(?:2[eEfF]|5[cC])|/\.{1,2}(?:/|$)|[^:]//")
"""Spellings that a server, or a client on the way to it, may read as another path."""

_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)


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
    """The region of a cloud."""
    guarded: bool = False
    """Whether a wildcard alone allows the address, so that it may lead to no private network."""
    protocol: EndpointProtocol | None = None
    """The protocol that it speaks; None where the provider itself says it."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keys of every request's body."""
    cloud: Cloud | None = None
    """The cloud whose own client is used."""
    origin: str = field(default="", compare=False)
    """The variable or file of the key; empty where the server is called without one."""


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
    """Why it cannot be called; None where it can."""

    def now(self) -> Endpoint:
        """Return the endpoint with its key as it is now."""
        key = self.source.current()
        if key is None and self.keyless and self.place.cloud is None:
            key = NO_KEY
        return replace(self.place, key=key, origin=self.source.origin)

    @property
    def takes_tokens(self) -> bool:
        """Whether its key is a token of Entra ID, which is fetched before a call."""
        return isinstance(self.source, EntraToken)


def named_servers(own: Mapping[str, EndpointSettings], environ: Mapping[str, str], providers: frozenset[str]) -> dict[str, NamedServer]:
    """Return the endpoints that can be called by name.

    Args:
        own: The worker's own tables.
        environ: The worker's variables.
        providers: The providers that need no table, and are no named endpoint without one.

    Raises:
        InvalidRequest: An address is no base URL.
    """
    known = named_endpoints(own)
    return {name: _server(endpoint, environ, name in own) for name, endpoint in known.items() if name in own or name not in providers}


def _server(endpoint: NamedEndpoint, environ: Mapping[str, str], configured: bool) -> NamedServer:
    source, complaint = _source(endpoint, environ), None
    try:
        place = _place(endpoint, environ)
    except KeyError as error:
        place, complaint = Endpoint("", protocol=endpoint.protocol, cloud=endpoint.cloud), f"{error.args[0]} is not set"
    except InvalidRequest as error:
        if configured:
            raise
        place, complaint = Endpoint("", protocol=endpoint.protocol, cloud=endpoint.cloud), str(error)
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
        InvalidRequest: The address is no base URL.
    """
    region = endpoint.region or _first(endpoint.regions, environ) or ("global" if endpoint.cloud == "vertex" else None)
    named = expand(endpoint.base_url, environ)
    address = base_url(named, _origin(endpoint)) if named else _cloud_address(endpoint.cloud, region)
    if endpoint.cloud == "azure":
        address = f"{address.removesuffix(AZURE_PATH)}{AZURE_PATH}"
    headers = {name: expand(text, environ) for name, text in endpoint.headers.items()}
    query = {name: expand(text, environ) for name, text in endpoint.query.items()}
    _remember(endpoint, headers, environ)
    return Endpoint(
        address,
        named=bool(named),
        project=(endpoint.project or _first(endpoint.projects, environ)) if endpoint.cloud == "vertex" else None,
        location=region,
        protocol=endpoint.protocol,
        headers=headers,
        query=query,
        body=endpoint.body,
        cloud=endpoint.cloud,
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


def base_url(value: str, variable: str) -> str:
    """Return a base URL without the slash at its end.

    Raises:
        InvalidRequest: It is none, or may be read in two ways; the message begins with `variable`.
    """
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value) or is_devious(value) or split_url(value) is None:
        cure = "write http(s)://host[:port][/path], without user, query or fragment"
        raise InvalidRequest(f"{variable}: {clip(_USER.sub('//', value))} is no base URL; {cure}")
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
