"""A test of a suite, and the defaults of all tests."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator

from gradeloop.batches.case import CaseId
from gradeloop.modelspec import ModelSpec
from gradeloop.printable import clip
from gradeloop.request import MAX_ITERATIONS, Grader
from gradeloop.rubric import Rubric
from gradeloop.strict import Strict
from gradeloop.text_check_arguments import KINDS
from gradeloop.transcript import ToolCall
from gradeloop.units import Threshold


def _grader(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    return {"model": value} if isinstance(value, str) or (isinstance(value, dict) and "id" in value) else value


def one_line(value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
    """Refuse a name that could not be told from another one, or not be typed."""
    if isinstance(value, str) and (not value or value != value.strip() or len(value.splitlines()) > 1):
        raise ValueError(f"{clip(value)} is no name; write one line without white space around it")
    return value


GraderSetting = Annotated[Grader, BeforeValidator(_grader, json_schema_input_type=ModelSpec | Grader)]
"""A model as text or object, or all that a thread's grader may have."""

Assertions = Annotated[
    tuple[JsonValue, ...],
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"enum": ["llm-rubric", "not-llm-rubric", "assert-set", *KINDS, *(f"not-{kind}" for kind in KINDS)]},
                    "value": {"description": "The expected value; for llm-rubric, the criterion."},
                    "assert": {"type": "array", "description": "The members of an assert-set."},
                    "threshold": {"type": "number"},
                    "weight": {
                        "type": "number",
                        "minimum": 0,
                        "description": "Weight in the score; 0 reports the assertion without counting it.",
                    },
                    "metric": {"type": "string", "description": "The criterion's id."},
                    "provider": {"description": "The model that judges this assertion."},
                    "rubricPrompt": {"description": "The grader's prompt, with {{ output }} in it."},
                },
                "required": ["type"],
            },
        }
    ),
]
"""Assertions in promptfoo's format; their fields are checked where they become criteria."""


class Said(Strict):
    """A message of a prompt, or of the conversation that a test brings along."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    role: Literal["system", "user", "assistant", "tool"]
    """Who speaks; `system` may only come first and becomes the generator's system prompt."""
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Options(Strict):
    """How the assertions of type `llm-rubric` are judged."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    provider: JsonValue = None
    """The model that judges them."""
    rubric_prompt: JsonValue = Field(default=None, alias="rubricPrompt")
    """The grader's prompt, with `{{ output }}` in it."""


class Defaults(Strict):
    """Settings of all tests that do not override them."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    vars: dict[str, JsonValue] = Field(default_factory=dict)
    """Values that replace `{{ name }}` in prompts, messages, rubric and assertions."""
    rubric: Rubric | None = None
    """What done looks like: text with a criterion a line, an object, or `file://` a file of either."""
    assertions: Assertions = Field(default=(), alias="assert")
    """Assertions in promptfoo's format, instead of a rubric; the defaults' assertions come before the test's own."""
    threshold: Threshold | None = None
    """The score that a case must reach: in addition to a rubric's own gate, or instead of it with assertions."""
    messages: tuple[Said, ...] = ()
    """The conversation, instead of the prompts."""
    loop: bool | None = None
    """Whether the generator revises its draft by the grader's feedback."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None
    """How many drafts a case with `loop` may take at most."""
    grader: GraderSetting | None = None
    """The grader that replaces the suite's."""
    options: Options = Options()
    """How the assertions of type `llm-rubric` are judged."""

    @model_validator(mode="after")
    def _is_judged_one_way(self) -> "Defaults":
        if self.rubric is not None and self.assertions:
            raise ValueError("rubric and assert exclude each other; keep one, criteria can be assertions of type llm-rubric")
        return self


class SuiteTest(Defaults):
    """A test: a question or a finished output, and how it is judged."""

    id: Annotated[CaseId | None, BeforeValidator(one_line, json_schema_input_type=CaseId | None)] = None
    """The case's name; made from description, vars and messages by default."""
    description: Annotated[str, Field(max_length=1000)] | None = None
    """Shown beside the id."""
    output: str | None = None
    """A finished output to judge; without it a generator drafts one."""
