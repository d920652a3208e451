"""Who is called: models with their settings, graders and tools of other workers, and the budget for all of it."""

import json
import re
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from gradeloop.contract.base import OrText, Sparse, Strict
from gradeloop.contract.messages import Usage
from gradeloop.text import clip, did_you_mean

ProviderName = Literal["anthropic", "openai", "google_genai", "openrouter", "openai_compatible", "scripted"]
PROVIDERS: tuple[str, ...] = get_args(ProviderName)
ALIASES = {"google": "google_genai", "gemini": "google_genai"}

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ModelConfig(Strict):
    """Settings of a model call; what is absent is left to the provider."""

    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    reasoning_effort: Effort | None = None
    thinking: Literal["adaptive", "disabled"] | Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """How a model that thinks before it answers does so; a number is its budget in tokens, where it takes one."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    structured_output: bool | None = None
    """Whether the server keeps a JSON Schema; by default as the worker's table of models says."""
    extra: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)
    """What is added to the request's body as it is, for settings that have no name here."""
    base_url: str | None = None
    """Where an OpenAI-compatible server listens; must be on the worker's allow-list."""

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^\s/?#@]+(/[^\s?#@]*)?$", value):
            raise ValueError(f"{clip(value)} is no base URL; write http(s)://host[:port][/path], without user, query or fragment")
        return value


class ModelSpec(OrText):
    """A provider's model and its settings."""

    id: str
    config: ModelConfig = ModelConfig()

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
        if provider not in PROVIDERS:
            raise ValueError(f"Unknown provider {provider!r}.{did_you_mean(provider, sorted(PROVIDERS))}")
        return f"{provider}:{model}"

    @property
    def provider(self) -> ProviderName:
        """The provider's name."""
        return _split(self.id)[0]  # type: ignore[return-value]  # the validator admits no other

    @property
    def model(self) -> str:
        """The model's name, as its provider knows it."""
        return _split(self.id)[2]


def _split(value: str) -> tuple[str, str, str]:
    """Split at the first `:`, or at the first `/` where it comes earlier (`openrouter/mistralai/m:free`)."""
    found = re.search(r"[:/]", value)
    at = found.start() if found else len(value)
    return value[:at].strip(), value[at : at + 1], value[at + 1 :].strip()


Name = Annotated[str, Field(min_length=1, max_length=200)]


class RemoteGrader(Strict):
    """A grader that is not ours: an activity on somebody else's worker, in any language, or a function in our worker's tools."""

    activity: Sparse[Name | None] = None
    task_queue: Sparse[Name | None] = None
    function: Sparse[Name | None] = None

    @model_validator(mode="after")
    def _is_one(self) -> "RemoteGrader":
        if (self.activity is None) == (self.function is None) or (self.activity is None) != (self.task_queue is None):
            raise ValueError("write {activity, task_queue}, or {function} for a function of the worker's tools")
        return self

    @property
    def id(self) -> str:
        """The name by which rows and evaluations tell who judged."""
        return f"function:{self.function}" if self.function else f"activity:{self.activity}"


GraderSpec = ModelSpec | RemoteGrader


def parse_grader_spec(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    """Read who judges: a model as text or object, or somebody else, told by its keys, so that a mistake is told of one of them."""
    if isinstance(value, ModelSpec | RemoteGrader):
        return value
    elsewhere = isinstance(value, dict) and not {"activity", "task_queue", "function"}.isdisjoint(value)
    return RemoteGrader.model_validate(value) if elsewhere else ModelSpec.model_validate(value)


PARAMETERS_BYTES = 16 * 1024

_NO_PARAMETERS: dict[str, JsonValue] = {"type": "object", "properties": {}}

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]


class RemoteTool(Strict):
    """What a model is told of the tool, and where it is served.

    The activity is given `{call, operation_id, arguments, draft}` and returns text or any JSON.
    """

    name: ToolName
    description: Annotated[str, Field(min_length=1, max_length=4_000)]
    parameters: dict[str, JsonValue] = Field(default_factory=lambda: dict(_NO_PARAMETERS))
    """A JSON Schema of type `object`."""
    activity: Annotated[str, Field(min_length=1, max_length=200)]
    """The activity's type."""
    task_queue: Annotated[str, Field(min_length=1, max_length=200)]
    needs_approval: Sparse[bool] = False
    """True: a person approves each call."""
    repeatable: bool = Field(default=True, exclude_if=lambda value: value is True)
    """False: it runs at most once a call, and where nobody knows whether it ran, the model is told so."""

    @model_validator(mode="after")
    def _takes_an_object(self) -> Self:
        if self.parameters.get("type") != "object" or not isinstance(self.parameters.get("properties", {}), dict):
            raise ValueError('parameters is no JSON Schema of an object; write {"type": "object", "properties": {...}}')
        if (size := len(json.dumps(self.parameters))) > PARAMETERS_BYTES:
            raise ValueError(f"parameters has {size} bytes as JSON, {PARAMETERS_BYTES} at most")
        return self


def _kind(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    return "<elsewhere>" if isinstance(value, dict | RemoteTool) else "<name>"


OfferedTool = Annotated[Annotated[ToolName, Tag("<name>")] | Annotated[RemoteTool, Tag("<elsewhere>")], Discriminator(_kind)]
"""The name of a tool that the worker has, or a tool elsewhere."""


def tool_names(tools: tuple[OfferedTool, ...]) -> tuple[str, ...]:
    """Return the names of all tools."""
    return tuple(tool if isinstance(tool, str) else tool.name for tool in tools)


def worker_tools(tools: tuple[OfferedTool, ...]) -> tuple[str, ...]:
    """Return the names of those that the worker has."""
    return tuple(tool for tool in tools if isinstance(tool, str))


def remote_tools(tools: tuple[OfferedTool, ...]) -> dict[str, RemoteTool]:
    """Return the others by name."""
    return {tool.name: tool for tool in tools if not isinstance(tool, str)}


def refuse_duplicate_tools(tools: tuple[OfferedTool, ...]) -> None:
    """Raise where two tools have one name."""
    names = tool_names(tools)
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tools: {twins[0]!r} is there twice; give each tool a name of its own")


class Budget(Strict):
    """What a thread's model calls may cost in all; checked before each call."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens in and out."""
    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """US dollars by the worker's price table; refused where the price of a model is not known."""

    @model_validator(mode="after")
    def _limits_something(self) -> "Budget":
        if self.max_tokens is None and self.max_cost_usd is None:
            raise ValueError("the budget limits nothing; give max_tokens, max_cost_usd or both")
        return self

    def overrun(self, usage: Usage) -> str | None:
        """Say what is used up, or None where another call may be made."""
        if self.max_tokens is not None and usage.tokens >= self.max_tokens:
            return f"{usage.tokens} of {self.max_tokens} tokens are used"
        if self.max_cost_usd is not None and (usage.cost_usd or 0) >= self.max_cost_usd:
            return f"{usage.cost_usd:.6g} of {self.max_cost_usd:g} US dollars are spent"
        return None
