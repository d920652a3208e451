"""A judge whose answer is of its author's own shape: a rubric in words, a schema, a prompt. Docent's rubric JSON is read as it is."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from gradeloop.judges.output_schema import refuse_schema
from gradeloop.judges.template import PromptTemplate, refuse_templates
from gradeloop.modelspec import ModelSpec
from gradeloop.printable import clip, did_you_mean
from gradeloop.prompts import prompt
from gradeloop.rubric import RUBRIC_BYTES
from gradeloop.strict import Items, Sparse, Strict

ROLLOUTS = 25

Mode = Literal["XML_KEY", "CONSTRAINED_DECODING"]

DEFAULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["match", "no match"]},
        "explanation": {"type": "string", "citations": True},
    },
    "required": ["label", "explanation"],
}
"""As in Docent."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
REASONING = ("reasoning", "thinking", "think", "scratchpad")
"""Tags between which a model thinks: what stands there is no answer."""

_CONTEXT = ("context_window", "uses_byok")
"""What Docent's own page notes beside a model."""


def default_templates(mode: Mode, key: str) -> tuple[PromptTemplate, ...]:
    """Return the one message that is sent where a judge has no templates of its own."""
    form = "constrained" if mode == "CONSTRAINED_DECODING" else "tagged"
    return (PromptTemplate(role="user", content=prompt(f"judge_{form}").replace("@key@", key)),)


class SchemaJudge(Strict):
    """A rubric in words, the schema of the answer, and how to ask."""

    id: Annotated[str, Field(max_length=200)] = ""
    """Of the rubric; by default `rubric-` and the first digits of its sha256."""
    version: Annotated[int, Field(ge=1)] = 1
    name: Sparse[Annotated[str, Field(max_length=200)] | None] = None
    rubric_text: str
    output_schema: dict[str, Any] = Field(default_factory=lambda: dict(DEFAULT_SCHEMA))
    prompt_templates: Items[PromptTemplate] | None = None
    """The messages that are sent; one of ours by default."""
    judge_model: ModelSpec | None = None
    """By default the first of a table for which the worker has a key."""
    output_parsing_mode: Mode = "XML_KEY"
    response_xml_key: str = "response"
    output_format: Literal["json", "yaml"] = "json"
    """How the answer between the tags is written; Docent's newer rubrics say yaml."""
    n_rollouts_per_input: Annotated[int, Field(ge=1, le=ROLLOUTS)] = 1
    judge_variant: Literal["majority", "multi-reflect"] = "majority"
    rollout_type: Literal["single_turn"] = "single_turn"
    bad_citations: Literal["flag", "fail"] = Field(default="flag", exclude_if=lambda value: value == "flag")
    """Whether an answer that cites what is not there is invalid."""
    show_metadata: Sparse[bool] = False
    """Whether the judge sees what is known about the run, which may hold the answer."""

    @model_validator(mode="before")
    @classmethod
    def _reads_mode(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if not isinstance(value, dict):
            return value
        mode = value.get("output_parsing_mode")
        return value | {"output_parsing_mode": mode.upper()} if isinstance(mode, str) else value

    @field_validator("judge_model", mode="before")
    @classmethod
    def _reads_model(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return _docents(value) if isinstance(value, dict) and ("provider" in value or "model_name" in value) else value

    @field_validator("rubric_text")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("rubric_text is empty; say what the judge decides, and how")
        if (size := len(value.encode(errors="surrogatepass"))) > RUBRIC_BYTES:
            raise ValueError(f"rubric_text has {size} bytes, {RUBRIC_BYTES} at most; shorten it")
        return value

    @field_validator("output_schema", mode="before")
    @classmethod
    def _is_a_schema(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        refuse_schema(value)
        return value

    @model_validator(mode="after")
    def _hangs_together(self) -> "SchemaJudge":
        key, constrained = self.response_xml_key, self.output_parsing_mode == "CONSTRAINED_DECODING"
        if not _KEY.fullmatch(key):
            raise ValueError(f"response_xml_key is {clip(key)}; write a tag's name: a letter, then letters, digits, '_', '.', '-'")
        if key in REASONING:
            raise ValueError(f"response_xml_key is {clip(key)}, between whose tags models think; name another")
        if self.prompt_templates is not None:
            refuse_templates(self.prompt_templates, None if constrained else key)
        return self

    @property
    def templates(self) -> tuple[PromptTemplate, ...]:
        """The messages that are sent, ours where it has none."""
        return self.prompt_templates or default_templates(self.output_parsing_mode, self.response_xml_key)

    @property
    def constrained(self) -> bool:
        """True where the provider keeps the schema."""
        return self.output_parsing_mode == "CONSTRAINED_DECODING"

    def sha256(self) -> str:
        """Return the sha256 of all that decides how it judges, but for its id, version and name; what is written out equals a default."""
        told = self.model_dump(mode="json", exclude={"id", "version", "name"}, exclude_none=True, exclude_defaults=True)
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def rubric_id(self) -> str:
        """Its id, or one made of its content."""
        return self.id or f"rubric-{self.sha256()[:12]}"


def _docents(value: dict[str, Any]) -> dict[str, Any]:
    """Read Docent's `{provider, model_name, reasoning_effort?, served_providers?}` as a model of ours."""
    known = ["provider", "model_name", "reasoning_effort", "served_providers", *_CONTEXT]
    if unknown := next((key for key in value if key not in known), None):
        raise ValueError(f"unknown key {clip(str(unknown))}.{did_you_mean(str(unknown), known)}")
    for name in ("provider", "model_name"):
        if not isinstance(value.get(name), str) or not value[name].strip():
            raise ValueError(f"{name} is missing; write it as text, for example provider: openai, model_name: gpt-5-mini")
    config: dict[str, Any] = {}
    if value.get("reasoning_effort") is not None:
        config["reasoning_effort"] = value["reasoning_effort"]
    if value.get("served_providers") is not None:
        if value["provider"] != "openrouter":
            raise ValueError("served_providers is for the provider openrouter; leave it out")
        config["extra"] = {"provider": {"only": value["served_providers"]}}
    return {"id": f"{value['provider']}:{value['model_name']}", "config": config}
