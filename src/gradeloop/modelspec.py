"""Which model answers: `"provider:model"`, or an object with its settings."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, JsonValue, field_validator, model_validator

from gradeloop.printable import clip, did_you_mean
from gradeloop.strict import OrText, Sparse, Strict

Provider = Literal["anthropic", "openai", "google_genai", "openrouter", "openai_compatible", "scripted"]
PROVIDERS: tuple[str, ...] = get_args(Provider)
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
    def provider(self) -> Provider:
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
