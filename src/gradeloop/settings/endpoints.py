"""Endpoints of models: protocols, presets, a worker's tables `[providers.NAME]`, ceilings of calls, and the default model."""

import json
import os
import re
import socket
import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, JsonValue, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticKnownError

from gradeloop.contract.base import Documented, Strict
from gradeloop.contract.model_spec import ALIASES, HTTP_REQUEST, PROVIDER_NAME, PROVIDERS, ModelConfig, ModelSpec
from gradeloop.contract.provider import Cloud, ModelProtocol
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Registry
from gradeloop.grading.grants import named_in
from gradeloop.text import clip, closest, did_you_mean

if TYPE_CHECKING:
    from gradeloop.settings.trust import ConfigFile

BUILT_IN = (
    ModelProtocol("anthropic", "activities.providers.anthropic:connect", "anthropic", "gradeloop[anthropic]", "anthropic", log_probs=False),
    ModelProtocol("openai_responses", "activities.providers.openai_responses:connect", "openai", "gradeloop[openai]", "openai"),
    ModelProtocol("openai_chat", "activities.providers.openai_chat:connect", "openai", "gradeloop[openai]"),
    ModelProtocol("google", "activities.providers.google:connect", "google.genai", "gradeloop[google]", "google_genai"),
    ModelProtocol(HTTP_REQUEST, "activities.providers.http_request:connect", log_probs=False, open=False),
    ModelProtocol("scripted", "activities.providers.scripted:connect", open=False),
)

PROTOCOLS = Registry[ModelProtocol]("protocols", "protocol", "gradeloop.settings.endpoints:BUILT_IN")
"""The protocols in which models are called; a new one is a row and its adapter."""

CLOUD_PACKAGES: Mapping[Cloud, str] = {"azure": "azure.identity", "bedrock": "boto3", "vertex": "google.auth.transport.requests"}
"""The package that a cloud's endpoints need beside their protocol's, for tokens in the case of Azure; its extra has the cloud's name."""


def _is_a_protocol(value: str) -> str:
    known = [row.name for row in PROTOCOLS if row.open]
    if value not in known:
        expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise PydanticKnownError("literal_error", {"expected": expected})
    return value


EndpointProtocol = Annotated[
    str,
    AfterValidator(_is_a_protocol),
    WithJsonSchema({"enum": [row.name for row in BUILT_IN if row.open], "type": "string"}),
]

PROVIDERS_VARIABLE = "GRADELOOP_PROVIDERS"

ENTRA = "entra"
"""The `key` of an endpoint on Azure that takes tokens of Entra ID."""

OF_GENERATION = frozenset({"topP", "topK", "stopSequences", "presencePenalty", "frequencyPenalty", "mediaResolution"})
"""Google's settings of a reply: `extra` names them as it does all others, and a request has them in its `generationConfig`."""

RESERVED_SETTINGS = frozenset(
    {
        "model", "messages", "input", "contents", "system", "instructions", "systeminstruction", "tools", "tool_choice", "toolconfig",
        "stream", "stream_options", "response_format", "text", "output_config", "generationconfig", "store", "include", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "n", "api_key", "apikey", "key", "authorization", "headers", "extra_headers",
        "prompt_cache_key", "cache_control",
    }
)  # fmt: skip
"""Keys that neither a request's `extra` nor an endpoint's `body` may set: we set them, or they are secrets."""

_RESERVED_HEADERS = frozenset({"host", "content-length", "content-type", "connection", "transfer-encoding", "accept-encoding"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

CeilingName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*(:.+)?$", max_length=300)]
"""A provider (`openai`), all of whose calls are counted together, or one of its models (`openai:gpt-6-luna`)."""

ANY_TENANT = "*"
"""The name that stands for each tenant that has no budget of its own name."""


class CallCeilings(Strict, Documented):
    """The most that is asked of a provider or of a model; each value is optional."""

    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Start at most this many calls a minute, evenly spread."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Send and receive at most this many tokens a minute; what a call will take is reckoned from its prompt and from earlier replies."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Have at most this many calls in flight in one worker."""


class NamedEndpoint(Strict):
    """A provider that is known by name: a preset, or what the worker's own table says, over a preset where it names one."""

    name: str
    protocol: str = "openai_chat"
    base_url: str
    """Its address; `${NAME}` in it is a variable of the worker."""
    keys: tuple[str, ...] = ()
    """The variables that may have its key."""
    keyless: bool = False
    """Whether it may be called without a key."""
    tables: str = "openai_compatible"
    """The provider under which its models and prices are looked up."""
    prefix: str = ""
    """A regular expression for what stands before the model's name in those tables."""
    suffix: str = ""
    """A regular expression for what stands behind it."""
    start: str = ""
    """The command that starts a server of one's own; `{model}` in it is the model's name."""
    cloud: Cloud | None = None
    regions: tuple[str, ...] = ()
    """The variables that may have its region."""
    projects: tuple[str, ...] = ()
    """The variables that may have its project."""
    switches: tuple[str, ...] = ()
    """Variables; where one is 1 or true, the models of its project are called, with this machine's credentials and no key."""
    key: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    query: dict[str, str] = Field(default_factory=dict)
    body: dict[str, JsonValue] = Field(default_factory=dict)
    region: str | None = None
    project: str | None = None

    @model_validator(mode="after")
    def _has_one_key(self) -> "NamedEndpoint":
        if self.key is not None and _VARIABLE.fullmatch(self.key):
            object.__setattr__(self, "keys", (self.key,))
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        """The worker's variables by which it is called."""
        named = sorted(referenced_variables((self.base_url, *self.headers.values(), *self.query.values())))
        return tuple(dict.fromkeys((*self.keys, *named, *self.regions, *self.projects)))

    @property
    def secret_variables(self) -> frozenset[str]:
        """Those of its variables that others must not see."""
        return frozenset(self.keys) | referenced_variables((*self.headers.values(), *self.query.values()))


@cache
def presets_by_name() -> Mapping[str, NamedEndpoint]:
    """Return the presets, the table of providers that is shipped."""
    table = tomllib.loads((files("gradeloop.settings") / "presets.toml").read_text(encoding="utf-8"))
    return {row["name"]: NamedEndpoint.model_validate(row) for row in table["presets"]}


def names_file(key: str) -> bool:
    """Return whether an endpoint's `key` is the path of a file."""
    return key.startswith(("/", "./", "../", "~/"))


class EndpointSettings(Strict, Documented):
    """An endpoint with a name of its own: `NAME:model` is called there."""

    preset: str | None = None
    """The preset that says whatever is not said here; the one of the same name by default."""
    protocol: EndpointProtocol | None = None
    """The protocol that it speaks."""
    base_url: str | None = None
    """Its address; `${NAME}` in it is a variable of the worker."""
    key: str | None = None
    """The variable that has its key; or a file's path (`/...`, `./...`), read anew when it changes; or `entra`, for Azure's tokens."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of every request; `${NAME}` in a value is a variable of the worker."""
    query: dict[str, str] = Field(default_factory=dict)
    """Parameters of every request's address; `${NAME}` in a value is a variable of the worker."""
    body: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys that are added to every request's body; a request's own `extra` comes before them."""
    limits: CallCeilings = CallCeilings()
    """The ceilings of all calls of the endpoint together."""
    region: str | None = None
    """The region of a cloud."""
    project: str | None = None
    """The project of a cloud."""

    @field_validator("preset")
    @classmethod
    def _is_a_preset(cls, value: str | None) -> str | None:
        if value is not None and value not in presets_by_name():
            raise ValueError(f"there is no preset {value!r}.{did_you_mean(value, sorted(presets_by_name()))}")
        return value

    @field_validator("key")
    @classmethod
    def _names_a_key(cls, value: str | None) -> str | None:
        if value is None or value == ENTRA or names_file(value) or _VARIABLE.fullmatch(value):
            return value
        raise ValueError(
            "this is neither a variable's name in capital letters nor a file's path, which begins with '/', './', '../' or '~/'; "
            "a key itself has no place here: put it into a variable or a file, and name that"
        )

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _HEADER.fullmatch(name) or name.lower() in _RESERVED_HEADERS:
                raise ValueError(f"{clip(name)} is not a header that an endpoint may set; leave it out")
            if not re.fullmatch(r"[\x20-\x7e]*", text):
                raise ValueError(f"the value of {name} has a character that no header takes; write it in plain ASCII")
        return value

    @field_validator("body")
    @classmethod
    def _are_free(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if reserved := sorted(name for name in value if name.lower() in RESERVED_SETTINGS):
            raise ValueError(f"{reserved[0]!r} is not for an endpoint to set; leave it out")
        return value


def _are_whole(value: dict[str, EndpointSettings]) -> dict[str, EndpointSettings]:
    """Refuse names that no model's id can have, and endpoints of which too little is known."""
    for name, endpoint in value.items():
        if not re.fullmatch(PROVIDER_NAME, name) or name in {"openai_compatible", "scripted", *ALIASES}:
            cure = "write small letters, digits, '-' and '_', and no name that is taken"
            raise ValueError(f"{clip(name)} is not a name for an endpoint; {cure}")
        preset = preset_of(name, endpoint)
        if preset is None and endpoint.protocol is None:
            known = did_you_mean(name, sorted(presets_by_name()))
            raise ValueError(f"{name}: protocol is missing; give protocol and base_url, or a preset.{known}")
        if preset is None and endpoint.base_url is None:
            raise ValueError(f"{name}: base_url is missing; write http(s)://host[:port][/path]")
        if endpoint.key == ENTRA and (preset is None or preset.cloud != "azure"):
            raise ValueError(f"{name}: key 'entra' is for Azure; add preset = \"azure\", or name a variable or a file")
    return value


EndpointTable = Annotated[dict[str, EndpointSettings], AfterValidator(_are_whole)]
"""The endpoints of a worker, by name."""


def preset_of(name: str, endpoint: EndpointSettings) -> NamedEndpoint | None:
    """Return the preset from which an endpoint takes what it does not say; None where it says everything."""
    return presets_by_name().get(endpoint.preset or name)


def named_endpoints(own: Mapping[str, EndpointSettings]) -> dict[str, NamedEndpoint]:
    """Return every endpoint that can be called by name: the presets, with the worker's own tables over and beside them."""
    return {**presets_by_name(), **{name: _merged(name, endpoint) for name, endpoint in own.items()}}


def _merged(name: str, endpoint: EndpointSettings) -> NamedEndpoint:
    said: dict[str, Any] = endpoint.model_dump(exclude={"preset", "limits"}, exclude_none=True)
    if endpoint.key is not None:
        said["keyless"] = False
    preset = preset_of(name, endpoint)
    base = preset.model_dump() if preset else {"tables": PROTOCOLS.find(said["protocol"]).tables, "keyless": True}
    return NamedEndpoint.model_validate(base | said | {"name": name, "switches": ()})


def endpoint_ceilings(own: Mapping[str, EndpointSettings]) -> dict[str, CallCeilings]:
    """Return the ceilings of a worker's endpoints, by the name of each that has any."""
    return {name: endpoint.limits for name, endpoint in own.items() if endpoint.limits != CallCeilings()}


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with the values of the variables that it names, `${NAME}` or `${NAME:-otherwise}`.

    Raises:
        KeyError: One of them is not set, and nothing stands in its place.
    """

    def value(found: re.Match[str]) -> str:
        known = environ.get(found[1], "").strip()
        if not known and found[2] is None:
            raise KeyError(found[1])
        return known or found[2]

    return _REFERENCE.sub(value, text) if "$" in text else text


_declared: dict[str, NamedEndpoint] = {}


def declare_endpoints(endpoints: Mapping[str, NamedEndpoint]) -> None:
    """Make the endpoints of this process known by name, so that their models are found in the tables."""
    _declared.update(endpoints)


def listed_model(provider: str, model: str) -> tuple[str, str]:
    """Return the provider and the model's name under which the tables of models and prices know a model."""
    endpoint = _declared.get(provider) or presets_by_name().get(provider)
    if endpoint is None:
        return provider, model
    around = "|".join(edge for edge in (f"^{endpoint.prefix}", f"{endpoint.suffix}$") if len(edge) > 1)
    return endpoint.tables, (re.sub(around, "", model) if around else model).replace("@", "-")


AZURE_HOSTS = (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com")
"""Ends of the names of Azure's hosts."""


def is_azure(provider: str, base_url: str | None) -> bool:
    """Return whether Azure serves a provider's models, at their own address where they name one."""
    endpoint = _declared.get(provider) or presets_by_name().get("openai" if provider == "openai_compatible" else provider)
    with suppress(KeyError, ValueError):  # the worker says what is wrong with the address
        host = urlsplit(expand(base_url or (endpoint.base_url if endpoint else ""), os.environ)).hostname or ""
        if host.endswith(AZURE_HOSTS):
            return True
    return endpoint is not None and endpoint.cloud == "azure"


def own_names(environ: Mapping[str, str], file: "ConfigFile | None") -> frozenset[str]:
    """Return the names of the endpoints that a worker with this environment and this file has besides the presets.

    `scripted` is one where they name a file of replies. What is malformed counts for nothing here, since the worker refuses it.
    """
    prefix = f"{PROVIDERS_VARIABLE}__"
    apart = (name.removeprefix(prefix).partition("__")[0].lower() for name in environ if name.startswith(prefix))
    in_file = file.read().get("providers") if file is not None and file.trusted else None
    scripted = ("scripted",) if find_replies(environ, file) else ()
    return frozenset([*apart, *_table(environ), *(in_file if isinstance(in_file, dict) else ()), *scripted])


def find_replies(environ: Mapping[str, str], file: "ConfigFile | None") -> Path | None:
    """Return the file of scripted replies that GRADELOOP_SCRIPTED names, or else this file, as the worker reads it; None without one."""
    if named := environ.get("GRADELOOP_SCRIPTED", "").strip():
        return Path(named)
    in_file = file.read().get("scripted") if file is not None and file.trusted else None
    return file.path.parent / in_file if file is not None and isinstance(in_file, str) else None


def _table(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        table = json.loads(environ.get(PROVIDERS_VARIABLE, "").strip() or "{}")
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}


def preset_variables() -> frozenset[str]:
    """Return the variables by which the presets are called."""
    return frozenset(name for endpoint in named_endpoints({}).values() for name in endpoint.variables)


def unknown_provider(provider: str, own: Collection[str]) -> str | None:
    """Return why no worker with these endpoints of its own can call a provider's models; None where it can."""
    known = {*PROVIDERS, *presets_by_name(), *own}
    if provider in known:
        return None
    cure = f"an endpoint of your own is a table [providers.{provider}] in the worker's gradeloop.toml"
    close = closest(provider, sorted(known))
    usual = {rule.provider for rule in DEFAULTS} | (set(own) - presets_by_name().keys())
    some = f"Known: {', '.join(sorted(usual))}, and {len(known)} in all, in docs/reference.md."
    return f"unknown provider {provider!r}. {f'Did you mean {close!r}?' if close else some} Or else: {cure}."


CONNECT_SECONDS = 1.0
"""Seconds that this machine's own server may take to accept a connection: a refusal comes at once."""


def silent_address(provider: str, environ: Mapping[str, str]) -> str | None:
    """Return the address of a preset for servers of this machine, such as Ollama's, if nothing listens there; None in all other cases."""
    preset = presets_by_name().get(provider)
    if preset is None or not preset.keyless:
        return None
    try:
        address = expand(preset.base_url, environ)
        parts = urlsplit(address)
    except (KeyError, ValueError):  # the worker says what is wrong with it
        return None
    if parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        return None
    return address if _refuses(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)) else None


@cache
def _refuses(host: str, port: int) -> bool:
    """Return whether a connection is refused; asked once in a process, since a suite asks for each of its cases."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


LOOPBACK = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?(/[\w-][\w.-]*)*/?", re.ASCII)
"""The base URL of a server of this machine, spelled so that nothing reads it as another one."""


def loopback_servers(request: object) -> frozenset[str]:
    """Return the addresses of this machine's own servers of models that a request, or parts of one, name; its worker may call them."""
    models = (named.model for named in named_in(request) if named.model and named.model.provider == "openai_compatible")
    return frozenset(url for model in models if (url := model.config.base_url) and LOOPBACK.fullmatch(url))


def referenced_variables(texts: Iterable[str]) -> frozenset[str]:
    """Return the variables that texts name."""
    return frozenset(found[1] for text in texts for found in _REFERENCE.finditer(text))


MISTRAL_URL = "https://api.mistral.ai/v1"


class DefaultRule(NamedTuple):
    """A rule for the default model: it applies when all of its variables are set."""

    variables: tuple[str, ...]
    model: str
    base_url: str | None = None

    @property
    def provider(self) -> str:
        """The provider of its model."""
        return self.model.partition(":")[0]


DEFAULTS: tuple[DefaultRule, ...] = (
    DefaultRule(("OPENAI_API_KEY",), "openai:gpt-6-luna"),
    DefaultRule(("ANTHROPIC_API_KEY",), "anthropic:claude-haiku-5-5"),
    DefaultRule(("GEMINI_API_KEY",), "google_genai:gemini-3.6-flash"),
    DefaultRule(("GOOGLE_API_KEY",), "google_genai:gemini-3.6-flash"),
    DefaultRule(("PALM_API_KEY",), "google_genai:gemini-3.6-flash"),
    DefaultRule(("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_CLOUD_PROJECT"), "google_genai:gemini-3.6-flash"),
    DefaultRule(("MISTRAL_API_KEY",), "openai_compatible:mistral-small-latest", MISTRAL_URL),
    DefaultRule(
        ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_DEPLOYMENT"), "openai_compatible:{AZURE_OPENAI_DEPLOYMENT}", ""
    ),
    DefaultRule(("OPENROUTER_API_KEY",), "openrouter:anthropic/claude-haiku-5.5"),
)
"""Tried in order; as of 2026-11-22."""


def missing_key(provider: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable that has to be set before a provider's models can be called; None where none has to be."""
    preset = presets_by_name().get(provider)
    if preset is None or preset.keyless or preset.cloud == "azure" or _is_set(environ, *preset.keys, *preset.projects):
        return None
    return next((rule.variables[0] for rule in DEFAULTS if rule.provider == provider), preset.keys[0])


def keyed_providers(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the providers of every worker that need a key and have one in this environment."""
    presets = [preset for name, preset in presets_by_name().items() if name in PROVIDERS]
    return frozenset(preset.name for preset in presets if _is_set(environ, *preset.keys, *preset.projects))


def _is_set(environ: Mapping[str, str], *names: str) -> bool:
    return any(environ.get(name, "").strip() for name in names)


@dataclass(frozen=True)
class DefaultModel:
    """The default model, and the variable that made it so."""

    spec: ModelSpec
    variable: str


def default_model(environ: Mapping[str, str], keyed: Collection[str] = ()) -> DefaultModel | None:
    """Return the model of the first rule that applies; None if no provider's key is set.

    `keyed`: the providers whose keys the worker's own endpoints name, in a file or another variable.
    """
    for rule in DEFAULTS:
        if rule.provider in keyed and rule.base_url is None:
            return DefaultModel(ModelSpec(id=rule.model), f"the key of providers.{rule.provider}")
        values = {name: environ.get(name, "").strip() for name in rule.variables}
        if all(values.values()) and values.get("GOOGLE_GENAI_USE_VERTEXAI", "true").lower() in {"1", "true"}:
            base_url = f"{values['AZURE_OPENAI_ENDPOINT'].rstrip('/')}/openai/v1" if rule.base_url == "" else rule.base_url
            spec = ModelSpec(id=rule.model.format(**values), config=ModelConfig(base_url=base_url))
            return DefaultModel(spec, rule.variables[0])
    return None


WITHOUT_KEY = (
    "Without a key: a model of your own machine, {flag} ollama:qwen3 once Ollama serves it; or replies of your own, "
    "{flag} scripted:any with 'scripted: FILE' in a task or suite, with --scripted FILE for a judge; `gradeloop demo` shows a whole run"
)
"""Advice for a user without a key, in a sentence."""


def require_default_model(environ: Mapping[str, str], role: str) -> DefaultModel:
    """Return the default model for a role of the command line; raise InvalidRequest where no provider's key is set."""
    if found := default_model(environ):
        return found
    raise InvalidRequest(
        f"{role}.model is missing and no provider key is set; {cure_of_no_model('--grader' if role == 'grader' else '--model')}"
    )


def cure_of_no_model(flag: str) -> str:
    """Return what a user can do who has neither named a model, by this flag or in a file, nor set a provider's key."""
    names = ", ".join(dict.fromkeys(rule.variables[0] for rule in DEFAULTS))
    return f"name a model with {flag}, or set one of {names}. {WITHOUT_KEY.format(flag=flag)}"


UNNAMED = "scripted:unnamed"
"""The model of a role for which none is named, where nothing is going to be called."""


def refuse_unservable(
    request: BaseModel, environ: Mapping[str, str], *, scripted: bool, endpoints: Collection[str] = (), calls: bool = True, place: str = ""
) -> None:
    """Refuse a request that a worker with this environment would refuse, before one is started.

    `request`: the request; every model in it is looked at.
    `calls`: whether models are going to be called, and so need their keys and servers.

    Raises:
        InvalidRequest: A model's provider is unknown, or its key, or the file of scripted replies, is missing.
    """
    for model, where in ((named.model, f"{place}{named.where}: {named.value!r}") for named in named_in(request) if named.model):
        provider, is_own = model.provider, model.provider in endpoints
        if complaint := unknown_provider(provider, endpoints):
            raise InvalidRequest(f"{where}: {complaint}")
        if calls and not is_own and (missing := missing_key(provider, environ)):
            raise InvalidRequest(f"{where} needs a key and {missing} is not set; set it, or name another model")
        if provider == "scripted" and not (scripted or is_own) and model.id != UNNAMED:
            cure = "name it in GRADELOOP_SCRIPTED, as 'scripted:' in the task or suite, or with --scripted"
            raise InvalidRequest(f"{where} needs a file of replies; {cure}")
        if calls and not is_own and (address := silent_address(provider, environ)):
            start = presets_by_name()[provider].start.format(model=model.model)
            raise InvalidRequest(f"{where} has no server, as nothing listens at {address}; start it ({start}), or name another model")
