"""A tool: a typed Python function, seen by a model as name, description and JSON Schema."""

import asyncio
import concurrent.futures
import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, create_model

from activities.providers.model import ToolSpec
from gradeloop.errors import InvalidRequest

DRAFT = "draft"
"""A parameter of this name is given the draft; the model neither sees nor fills it."""

_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tool")


@dataclass(frozen=True)
class Tool:
    """A function and what is known of it."""

    spec: ToolSpec
    function: Callable[..., Any]
    arguments: type[BaseModel]
    takes_draft: bool
    check_parameter: str | None
    """Where a check puts the draft; None where the function cannot serve as a check."""

    async def run(self, arguments: Mapping[str, JsonValue], draft: str) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call the function with validated arguments; a plain one runs in a thread.

        Raises:
            ValidationError: The arguments do not fit the signature.
        """
        checked = self.arguments.model_validate(dict(arguments))
        values = {name: getattr(checked, name) for name in self.arguments.model_fields}
        return await self._call(values | ({DRAFT: draft} if self.takes_draft else {}))

    async def check(self, draft: str) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call the function on a draft alone."""
        if self.check_parameter is None:
            raise InvalidRequest(f"the tool {self.spec.name!r} cannot serve as a check")
        return await self._call({self.check_parameter: draft})

    async def _call(self, values: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        return await asyncio.get_running_loop().run_in_executor(_THREADS, functools.partial(_contained, self.function, values))


_NOT_FOR_THE_LOOP = (SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)


def _contained(function: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
    """Call a plain function; an exit, a cancellation or a `StopIteration` would mean something else to the event loop."""
    try:
        return function(**values)
    except _NOT_FOR_THE_LOOP as error:
        raise RuntimeError(repr(error)) from None


def tool_of(function: Callable[..., Any]) -> Tool:
    """Read a tool from a function's name, signature and docstring.

    Raises:
        InvalidRequest: A parameter has no annotation, or one that has no JSON Schema.
    """
    name = function.__name__
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty or parameter.kind not in _NAMED:
            raise InvalidRequest(f"the tool {name!r}: parameter {parameter.name!r} needs a type annotation and a name of its own")
    shown = [parameter for parameter in parameters if parameter.name != DRAFT]
    takes_draft = any(parameter.name == DRAFT for parameter in parameters)
    try:
        fields: dict[str, Any] = {each.name: (each.annotation, ... if _required(each) else each.default) for each in shown}
        arguments = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        schema = arguments.model_json_schema()
    except Exception as error:  # noqa: BLE001 - pydantic raises many kinds, each the author's mistake
        raise InvalidRequest(f"the tool {name!r} has a parameter without a JSON Schema: {error}") from None
    spec = ToolSpec(name=name, description=inspect.getdoc(function) or name, parameters=_bare(schema))
    return Tool(spec, function, arguments, takes_draft, _check_parameter(shown, takes_draft=takes_draft))


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _check_parameter(shown: list[inspect.Parameter], *, takes_draft: bool) -> str | None:
    required = [parameter.name for parameter in shown if _required(parameter)]
    if takes_draft:
        return None if required else DRAFT
    return required[0] if len(required) == 1 else None


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without pydantic's titles, which tell a model nothing."""
    properties = {key: {k: v for k, v in value.items() if k != "title"} for key, value in schema.get("properties", {}).items()}
    return {key: value for key, value in schema.items() if key != "title"} | {"properties": properties}
