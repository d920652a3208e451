"""A tool that is not ours: an activity on its owner's worker, in any language, declared in the request."""

import json
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from gradeloop.strict import Sparse, Strict

PARAMETERS_BYTES = 16 * 1024

_NO_PARAMETERS: dict[str, JsonValue] = {"type": "object", "properties": {}}

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]


class ToolElsewhere(Strict):
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
    return "<elsewhere>" if isinstance(value, dict | ToolElsewhere) else "<name>"


OfferedTool = Annotated[Annotated[ToolName, Tag("<name>")] | Annotated[ToolElsewhere, Tag("<elsewhere>")], Discriminator(_kind)]
"""The name of a tool that the worker has, or a tool elsewhere."""


def names_of(tools: tuple[OfferedTool, ...]) -> tuple[str, ...]:
    """Return the names of all tools."""
    return tuple(tool if isinstance(tool, str) else tool.name for tool in tools)


def ours(tools: tuple[OfferedTool, ...]) -> tuple[str, ...]:
    """Return the names of those that the worker has."""
    return tuple(tool for tool in tools if isinstance(tool, str))


def elsewhere(tools: tuple[OfferedTool, ...]) -> dict[str, ToolElsewhere]:
    """Return the others by name."""
    return {tool.name: tool for tool in tools if not isinstance(tool, str)}


def refuse_twins(tools: tuple[OfferedTool, ...]) -> None:
    """Raise where two tools have one name."""
    names = names_of(tools)
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tools: {twins[0]!r} is there twice; give each tool a name of its own")
