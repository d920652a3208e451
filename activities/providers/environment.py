"""The worker's keys and endpoints, and the models that they allow."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from activities.providers.addresses import base_url, is_below, names_public_host, same_place
from activities.providers.keys import EntraToken, KeyFile, KeySource, KeyVariable
from gradeloop.contract.model_spec import HTTP_REQUEST, PROVIDERS, ModelSpec
from gradeloop.contract.provider import Cloud, Endpoint
from gradeloop.errors import InvalidRequest
from gradeloop.settings import catalog
from gradeloop.settings.default_model import default_model
from gradeloop.settings.endpoints import (
    ENTRA,
    PROVIDERS_VARIABLE,
    RESERVED_SETTINGS,
    EndpointSettings,
    NamedEndpoint,
    declare_endpoints,
    expand,
    named_endpoints,
    names_file,
    presets_by_name,
    referenced_variables,
)
from gradeloop.settings.secrets import remember_secret

NO_KEY = "EMPTY"
"""The key that is sent to a server without keys; the SDK insists on one."""

AZURE_PATH = "/openai/v1"
"""The path of Azure's v1 surface below a resource's address."""

ANYWHERE = "https://*"
"""The entry of `GRADELOOP_BASE_URLS` that allows every public server."""

_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)

_WITHOUT_ADDRESS = {"openai_compatible": "openai_chat", HTTP_REQUEST: HTTP_REQUEST, "scripted": "scripted"}
"""The protocols of the providers that have no address of their own."""


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
        if self.place.project and self.place.cloud is None:
            return self.place
        key = self.source.current()
        if key is None and self.keyless and self.place.cloud is None:
            key = NO_KEY
        return replace(self.place, key=key, origin=self.source.origin)

    @property
    def takes_tokens(self) -> bool:
        """Whether its key is a token of Entra ID, which is fetched before a call."""
        return isinstance(self.source, EntraToken)


def named_servers(own: Mapping[str, EndpointSettings], environ: Mapping[str, str]) -> dict[str, NamedServer]:
    """Return the endpoints that can be called by name.

    Args:
        own: The worker's own tables.
        environ: The worker's variables.

    Raises:
        InvalidRequest: An address that is named here is no base URL.
    """
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
        InvalidRequest: The address is no base URL.
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
    compatible: tuple[Endpoint, ...] = ()
    """Known servers of the compatible protocol for which the worker has a key: Mistral, Azure OpenAI."""
    default: ModelSpec | None = None
    """The grader where none is named."""
    prices: Path | None = None
    """The user's own prices, from `GRADELOOP_PRICES`."""
    ambient_headers: frozenset[str] = frozenset()
    """Headers that an SDK would take from its own variable and send to any host; they are left out of every request."""

    @classmethod
    def read(cls, environ: Mapping[str, str], endpoints: Mapping[str, EndpointSettings] | None = None) -> "Environment":
        """Read the variables; white space around a value is dropped, an empty one counts as unset.

        Args:
            environ: The variables.
            endpoints: The endpoints of the worker's settings, by name.

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
            return known or Endpoint(url, own_key or NO_KEY, guarded=not self._lists(url), provider=spec.provider, origin=origin)
        return Endpoint("")

    def protocol(self, provider: str) -> str | None:
        """Return the protocol of a provider or an endpoint; None of one that this worker does not know."""
        server = self.servers.get(provider)
        return server.place.protocol if server else _WITHOUT_ADDRESS.get(provider)

    def owns(self, url: str) -> bool:
        """Return whether a base URL is the address that `OPENAI_BASE_URL` names, and so may get its key."""
        return self.openai.named and same_place(url, self.openai.base_url)

    def allows(self, url: str) -> bool:
        """Return whether a request may name a base URL: a known one, one at or below a listed prefix, or any public one."""
        return self._lists(url) or (ANYWHERE in self.base_urls and names_public_host(url))

    def _lists(self, url: str) -> bool:
        known = any(same_place(url, endpoint.base_url) for endpoint in self.compatible)
        return known or self.owns(url) or any(is_below(url, prefix) for prefix in self.base_urls if prefix != ANYWHERE)


def settings_complaint(spec: ModelSpec) -> str | None:
    """Return which setting the model does not take, and what it takes; None where it takes all, as far as is known."""
    return catalog.settings_complaint(spec) or _extra_complaint(spec)


def _extra_complaint(spec: ModelSpec) -> str | None:
    reserved = sorted(name for name in spec.config.extra if name.lower() in RESERVED_SETTINGS)
    if not reserved:
        return None
    return f"extra.{reserved[0]} of {spec.id!r} is not for a request to set; leave it out, or use the setting of its own"
