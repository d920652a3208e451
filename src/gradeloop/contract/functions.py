"""Functions that models may call: those that nobody runs, whose call is the draft, with the form of a draft; and evidence tools."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from gradeloop.contract.base import Sparse, Strict

FUNCTION_BYTES = 64 * 1024
"""The largest JSON Schema of a function or of a draft's form: every call of the model has it in its prompt."""

FUNCTIONS = 128
"""The most functions of a generator, as the vendors have it."""

CallForm = Literal["chat", "function_call", "responses", "anthropic", "bedrock", "google"]
"""How a draft shows the functions that it calls: as the reply of OpenAI's Chat Completions (its older `function_call`, too), of its
Responses, of Anthropic's Messages, of Amazon's Nova or of Google's API has them."""

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$")]


class DeclaredFunction(Strict):
    """A function that a model may call in its draft; nobody runs it, and the call is the draft."""

    name: FunctionName
    description: Sparse[Annotated[str, Field(max_length=8_000)]] = ""
    parameters: Sparse[dict[str, JsonValue] | None] = None
    """The JSON Schema of the arguments, of type `object`; none for a function without arguments."""
    strict: Sparse[bool] = False
    """Whether the server enforces the schema, where it can."""

    @model_validator(mode="after")
    def _takes_an_object(self) -> Self:
        _refuse_large(self.parameters, f"the parameters of {self.name}")
        if self.parameters is not None and self.parameters.get("type", "object") != "object":
            raise ValueError('parameters is no JSON Schema of an object; write {"type": "object", "properties": {...}}')
        return self


class OutputForm(Strict):
    """The form that a draft is asked to have: JSON, of a schema where one is given."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    json_schema: Sparse[dict[str, JsonValue] | None] = None
    """The JSON Schema of the draft; without one it is any JSON object."""
    strict: Sparse[bool] = False
    """Whether the server enforces the schema, where it can enforce it more or less."""

    @model_validator(mode="after")
    def _is_small(self) -> Self:
        _refuse_large(self.json_schema, "json_schema")
        return self


def _refuse_large(schema: dict[str, JsonValue] | None, what: str) -> None:
    if schema is not None and (size := len(json.dumps(schema))) > FUNCTION_BYTES:
        raise ValueError(f"{what} has {size} bytes as JSON, {FUNCTION_BYTES} at most")


def refuse_odd_functions(functions: tuple[DeclaredFunction, ...], choice: str | None) -> None:
    """Raise ValueError where two functions have one name, or the choice is none of them."""
    names = [function.name for function in functions]
    if twin := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"functions: {twin!r} is there twice; give each function a name of its own")
    if choice is None or (choice in CHOICES and functions) or choice in names:
        return
    known = ", ".join([*CHOICES, *names]) if functions else "none, as there are no functions"
    raise ValueError(f"function_choice: {choice!r} is no choice; write one of: {known}")


CHOICES = ("auto", "none", "required")
"""Whether a model may call a function, or must; the name of a function says which one it must call."""


@dataclass(frozen=True)
class EvidenceTool:
    """A tool that a worker runs for graders and generators: a row of the registry `tools`.

    Example:
        ```python
        def count_vowels(draft: str) -> dict[str, int]:
            return {"vowels": sum(letter in "aeiou" for letter in draft)}

        TOOLS = (EvidenceTool.of(count_vowels),)
        ```
    """

    name: str
    build: Callable[[Any], Callable[..., Any]]
    """Takes the worker's `ToolContext`, and returns the function of that name; its annotations are the tool's parameters."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "EvidenceTool":
        """Return the tool that a function is on every worker."""
        return cls(function.__name__, lambda _: function)
