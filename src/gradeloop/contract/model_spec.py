"""Models with their settings, remote graders and tools, and the budget of a thread."""

import json
import re
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from gradeloop.contract.base import OmitEmpty, OrText, Strict
from gradeloop.contract.messages import Usage
from gradeloop.text import clip, did_you_mean

PROVIDERS = ("anthropic", "openai", "google_genai", "openrouter", "openai_compatible", "http_request", "scripted")
"""The providers of every worker; a worker has endpoints with other names besides, which only it knows."""

PROVIDER_NAME = r"[a-z][a-z0-9_-]{0,63}"
"""The names that a provider or an endpoint may have."""

ALIASES = {"google": "google_genai", "gemini": "google_genai", "openai:chat": "openai_chat", "openai:responses": "openai"}
ALIASES |= {"azure_openai": "azure", "mistralai": "mistral"}

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

LONGEST_TIMEOUT = 21_600
"""Seconds that one model call may be given: six hours, several times what the slowest models take."""

CALL_SECONDS = 540.0
"""Seconds that one model call may take in all, unless its model, its completion or the worker's settings need more."""

CallTimeout = Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)]
"""Seconds that one model call may take in all."""


class ModelConfig(Strict):
    """The settings of a model call; the provider's defaults hold for absent ones: `ModelConfig(temperature=0, max_tokens=500)`."""

    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Tokens of one completion; a reply that is cut there is asked for once more with four times as many."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """The sampling temperature, where the model takes one."""
    reasoning_effort: Effort | None = None
    """The effort of a reasoning model, if it takes one."""
    thinking: Literal["adaptive", "between_tools", "disabled"] | Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The thinking of a reasoning model; a number is its budget in tokens, if the model accepts one."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The seed, where the provider takes one."""
    structured_output: bool | None = None
    """Whether the server enforces a JSON Schema; by default as the worker's table of models says."""
    timeout: OmitEmpty[CallTimeout | None] = None
    """Seconds that one call may take in all, and a stream be silent; the worker's own by default, an hour for models that are slow."""
    extra: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """Keys that are added to the request's body unchanged, for settings that have no field here."""
    base_url: str | None = None
    """The base URL of an OpenAI-compatible server, which must be on the worker's allow-list."""

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^\s/?#@]+(/[^\s?#@]*)?$", value):
            raise ValueError(f"{clip(value)} is not a base URL; write http(s)://host[:port][/path], without user, query or fragment")
        return value


class FallbackModel(OrText):
    """A provider's model with its settings."""

    id: str
    """The model as `provider:model`."""
    config: ModelConfig = ModelConfig()
    """The settings of its calls."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return {"id": value} if isinstance(value, str) else value

    @field_validator("id")
    @classmethod
    def _is_known(cls, value: str) -> str:
        provider, separator, model = _split(value)
        if not separator or not model.strip():
            raise ValueError(f"{clip(value)} names no model; write 'provider:model', for example 'anthropic:claude-haiku-4-5'")
        provider = ALIASES.get(provider, provider)
        if not re.fullmatch(PROVIDER_NAME, provider):
            cure = "write small letters, digits, '-' and '_', a letter first"
            raise ValueError(f"{clip(provider)} is not a provider's name; {cure}.{did_you_mean(provider.lower(), sorted(PROVIDERS))}")
        return f"{provider}:{model}"

    @property
    def provider(self) -> str:
        """The name of the provider, or of the worker's endpoint."""
        return _split(self.id)[0]

    @property
    def model(self) -> str:
        """The model's name, as its provider knows it."""
        return _split(self.id)[2]


FALLBACK_SECONDS = 60.0
"""Seconds of an outage after which a fallback is asked, unless the model says otherwise: most rate limits are over by then."""

FALLBACKS = 8
"""The most fallbacks of a model."""


class ModelSpec(FallbackModel):
    """A provider's model with settings and fallbacks: `ModelSpec(id="openai:gpt-5-mini", fallback=["anthropic:claude-haiku-4-5"])`."""

    fallback: OmitEmpty[Annotated[tuple[FallbackModel, ...], Field(max_length=FALLBACKS)]] = ()
    """The models that are asked in this order after an outage, or where the model is not served; every call begins with the first again."""
    fallback_after: OmitEmpty[Annotated[float, Field(ge=0, le=604_800)] | None] = None
    """Seconds from a call's first failure on after which the next model is asked; 60 by default."""
    on_refusal: OmitEmpty[bool] = False
    """Whether the next model is asked also where one refuses the content."""

    @field_validator("fallback", mode="before")
    @classmethod
    def _is_a_flat_list(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, str | dict):
            raise ValueError(f"{clip(str(value))} is not a list; write fallback: [model, ...]")  # noqa: TRY004 - pydantic tells no other
        for entry in value if isinstance(value, list | tuple) else ():
            if isinstance(entry, dict) and not {"fallback", "fallback_after", "on_refusal"}.isdisjoint(entry):
                raise ValueError("a fallback has no fallback of its own; list all models in the first one's fallback, in order")
        return value

    @model_validator(mode="after")
    def _falls_back_elsewhere(self) -> Self:
        if not self.fallback and (self.fallback_after is not None or self.on_refusal):
            name = "on_refusal" if self.on_refusal else "fallback_after"
            raise ValueError(f"{name} is for a model with a fallback; list one in fallback: [model, ...], or leave it out")
        models = [(self.id, self.config), *((model.id, model.config) for model in self.fallback)]
        if twin := next((model for model, config in models if models.count((model, config)) > 1), None):
            raise ValueError(f"fallback: {twin!r} is asked twice with the same config; keep it once")
        return self

    @property
    def chain(self) -> "tuple[ModelSpec, ...]":
        """The models that a call may ask, in order: the model itself and its fallbacks."""
        first = ModelSpec(id=self.id, config=self.config) if self.fallback else self
        return (first, *(ModelSpec(id=model.id, config=model.config) for model in self.fallback))


@lru_cache(maxsize=1024)
def _split(value: str) -> tuple[str, str, str]:
    """Split a model's id at the first `:`, or behind an alias, or at the first `/` where it comes earlier (`openrouter/a/m:free`)."""
    provider, separator, model = value.partition(":")
    if "/" in provider:
        provider, separator, model = value.partition("/")
    elif (longer := f"{provider}:{model.partition(':')[0]}") in ALIASES:
        provider, separator, model = longer, *model.partition(":")[1:]
    return provider.strip(), separator, model.strip()


Name = Annotated[str, Field(min_length=1, max_length=200)]


class RemoteGrader(Strict):
    """A remote grader: an activity of another worker, in any language, or a function in the worker's tools."""

    activity: OmitEmpty[Name | None] = None
    """The type of an activity that judges."""
    task_queue: OmitEmpty[Name | None] = None
    """The task queue on which the activity is served."""
    function: OmitEmpty[Name | None] = None
    """The name of a function of the worker's tools."""

    @model_validator(mode="after")
    def _is_one(self) -> "RemoteGrader":
        if (self.activity is None) == (self.function is None) or (self.activity is None) != (self.task_queue is None):
            raise ValueError("write {activity, task_queue}, or {function} for a function of the worker's tools")
        return self

    @property
    def id(self) -> str:
        """The name of the grader in rows and evaluations."""
        return f"function:{self.function}" if self.function else f"activity:{self.activity}"


GraderSpec = ModelSpec | RemoteGrader


def parse_grader_spec(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    """Parse a grader, a model or a remote grader by its keys, so that an error message is about one of the two."""
    if isinstance(value, ModelSpec | RemoteGrader):
        return value
    is_remote = isinstance(value, dict) and not {"activity", "task_queue", "function"}.isdisjoint(value)
    return RemoteGrader.model_validate(value) if is_remote else ModelSpec.model_validate(value)


PARAMETERS_BYTES = 16 * 1024
"""The largest JSON Schema of a remote tool: every call of the model has it in its prompt."""

_NO_PARAMETERS: dict[str, JsonValue] = {"type": "object", "properties": {}}

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]


class RemoteTool(Strict):
    """A tool of another worker: its description for the model, and the task queue on which it is served.

    The activity takes `{call, operation_id, arguments, draft}` and returns text or any JSON.
    """

    name: ToolName
    """Its name for models and checks."""
    description: Annotated[str, Field(min_length=1, max_length=4_000)]
    """Its purpose, as the model reads it."""
    parameters: dict[str, JsonValue] = Field(default_factory=lambda: dict(_NO_PARAMETERS))
    """The JSON Schema of the arguments, of type `object`."""
    activity: Annotated[str, Field(min_length=1, max_length=200)]
    """The type of the activity."""
    task_queue: Annotated[str, Field(min_length=1, max_length=200)]
    """The task queue on which it is served; a call fails after 60 s without a worker."""
    needs_approval: OmitEmpty[bool] = False
    """Whether a person approves every call."""
    repeatable: bool = Field(default=True, exclude_if=lambda value: value is True)
    """Whether a call may run again after a failure; if not, it runs at most once, and the model is told where its outcome is unknown."""

    @model_validator(mode="after")
    def _takes_an_object(self) -> Self:
        if self.parameters.get("type") != "object" or not isinstance(self.parameters.get("properties", {}), dict):
            raise ValueError('parameters is not a JSON Schema of an object; write {"type": "object", "properties": {...}}')
        if (size := len(json.dumps(self.parameters))) > PARAMETERS_BYTES:
            raise ValueError(f"parameters has {size} bytes as JSON, {PARAMETERS_BYTES} at most")
        return self


def _tool_form(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    return "<remote>" if isinstance(value, dict | RemoteTool) else "<name>"


OfferedTool = Annotated[Annotated[ToolName, Tag("<name>")] | Annotated[RemoteTool, Tag("<remote>")], Discriminator(_tool_form)]
"""The name of one of the worker's tools, or the definition of a remote tool."""


def tool_names(tools: tuple[OfferedTool, ...]) -> tuple[str, ...]:
    """Return the names of all tools."""
    return tuple(tool if isinstance(tool, str) else tool.name for tool in tools)


def worker_tools(tools: tuple[OfferedTool, ...]) -> tuple[str, ...]:
    """Return the names of the worker's own tools."""
    return tuple(tool for tool in tools if isinstance(tool, str))


def remote_tools(tools: tuple[OfferedTool, ...]) -> dict[str, RemoteTool]:
    """Return the remote tools by name."""
    return {tool.name: tool for tool in tools if not isinstance(tool, str)}


def refuse_duplicate_tools(tools: tuple[OfferedTool, ...]) -> None:
    """Raise ValueError where two tools have the same name."""
    names = tool_names(tools)
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tools: {twins[0]!r} is there twice; give each tool a name of its own")


TOOL_CALLS = 25
"""The tool calls of one conversation, unless its settings say otherwise; then comes one last turn without tools."""

TURNS = 30
"""The turns of one conversation with tools, unless its settings say otherwise; then comes one last turn without."""


class ToolLimits(Strict):
    """The limits of one conversation with tools, a generator's until its draft or a grader's about one draft."""

    max_tool_calls: OmitEmpty[Annotated[int, Field(ge=1, le=200)] | None] = None
    """Tool calls; 25 by default. The model gets one last turn without tools."""
    max_turns: OmitEmpty[Annotated[int, Field(ge=1, le=200)] | None] = None
    """Turns with tools; 30 by default."""

    @property
    def tool_calls(self) -> int:
        """The most tool calls."""
        return self.max_tool_calls or TOOL_CALLS

    @property
    def turns(self) -> int:
        """The most turns."""
        return self.max_turns or TURNS


class Budget(Strict):
    """The limits of a thread's model calls in total, checked before every call: `Budget(max_cost_usd=0.5)`.

    A model whose server does not report what its calls use is refused after its first call.
    """

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The limit of prompt and completion tokens together."""
    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The limit in US dollars by the worker's price table; refused where the price of a model is unknown."""

    @model_validator(mode="after")
    def _limits_something(self) -> "Budget":
        if self.max_tokens is None and self.max_cost_usd is None:
            raise ValueError("the budget limits nothing; give max_tokens, max_cost_usd or both")
        return self

    def overrun(self, usage: Usage) -> str | None:
        """Return which limit is used up; None where none is known to be."""
        if self.max_tokens is not None and usage.tokens is not None and usage.tokens >= self.max_tokens:
            return f"{usage.tokens} of {self.max_tokens} tokens are used"
        if self.max_cost_usd is not None and (usage.cost_usd or 0) >= self.max_cost_usd:
            return f"{usage.cost_usd:.6g} of {self.max_cost_usd:g} US dollars are spent"
        return None

    def refusal(self, usage: Usage, cure: str = "") -> str | None:
        """Return why no other call may be made; None where one may be.

        Args:
            usage: What the calls until now have used.
            cure: What to do where a limit is used up; it follows the reason.
        """
        needed = (usage.tokens if self.max_tokens is not None else 0, usage.cost_usd if self.max_cost_usd is not None else 0)
        if usage.tokens is None and None in needed:
            return "the budget cannot be checked: a model's server does not report the tokens of its calls; use another model, or no budget"
        overrun = self.overrun(usage)
        return None if overrun is None else f"the budget is used up: {overrun}{cure and '; '}{cure}"


HTTP_REQUEST = "http_request"
"""The provider of such a generator: its model is the method, its `base_url` the address, and its `extra` an `HttpCall`."""

HEADER_BYTES = 4_000

_SECRET = re.compile(r"authorization|cookie|api[-_]?key|token|secret|password|signature|credential", re.IGNORECASE)
_RESERVED = {"host", "content-length", "connection", "transfer-encoding", "accept-encoding", "upgrade", "te", "trailer", "expect"}

HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
HeaderValue = Annotated[str, Field(max_length=HEADER_BYTES, pattern=r"^[\x20-\x7e]*$")]


class HttpCall(Strict):
    """One request to an address, and where in its reply the draft is."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: OmitEmpty[dict[HeaderName, HeaderValue]] = Field(default_factory=dict)
    """Headers of the request, of which none may hold a key."""
    query: OmitEmpty[dict[str, str]] = Field(default_factory=dict)
    body: OmitEmpty[JsonValue] = None
    """The body: a text as it is, anything else as JSON; none for None."""
    path: OmitEmpty[tuple[str | int, ...]] = ()
    """The path of the draft in the reply's JSON; the whole reply if it is empty."""

    @model_validator(mode="after")
    def _names_no_key(self) -> Self:
        for name in self.headers:
            if _SECRET.search(name):
                raise ValueError(f"headers: {name!r} holds a key, which no request names; serve the generator as an activity")
            if name.lower() in _RESERVED:
                raise ValueError(f"headers: {name!r} is set by the connection; leave it out")
        return self

    def body_text(self) -> str | None:
        """Return the body as it is sent."""
        return self.body if self.body is None or isinstance(self.body, str) else json.dumps(self.body, ensure_ascii=False)
