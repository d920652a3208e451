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

CACHEABLE = "cacheable"
"""The attribute by which a function declares, with a version, that a verdict which rests on it may be reused."""

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
    grader_parameter: str | None
    """Where a grader's function gets what it is asked; None where it cannot serve as a grader."""
    version: str | None
    """What the function declares as `cacheable`: the same call gives the same value as long as this is the same."""

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

    async def judge(self, asked: Mapping[str, JsonValue], draft: str) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call the function with what a grader is asked."""
        if self.grader_parameter is None:
            raise InvalidRequest(f"the tool {self.spec.name!r} cannot serve as a grader")
        return await self._call({self.grader_parameter: dict(asked)} | ({DRAFT: draft} if self.takes_draft else {}))

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
    required = [parameter.name for parameter in shown if _required(parameter)]
    checks = _check_parameter(shown, takes_draft=takes_draft)
    return Tool(spec, function, arguments, takes_draft, checks, required[0] if len(required) == 1 else None, _version(function))


def _version(function: Callable[..., Any]) -> str | None:
    declared = getattr(function, CACHEABLE, None)
    if declared is not None and not (isinstance(declared, str) and declared):
        raise InvalidRequest(f"the tool {function.__name__!r}: {CACHEABLE} is {declared!r}; give a version as text, such as '1'")
    return declared


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
