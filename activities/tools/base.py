"""Tools: typed functions that models may call, and what the built-in ones may use."""

import asyncio
import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from gradeloop.contract.provider import ToolSpec
from gradeloop.errors import InvalidRequest
from gradeloop.sandbox import Limits, Sandbox
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.code_calls import CodeSandbox
from gradeloop.sandbox.execution import MIB
from gradeloop.sandbox.monty import Monty
from gradeloop.sandbox.processes import await_in_process, await_in_thread
from gradeloop.settings.worker import WorkerSettings

DRAFT = "draft"
"""A parameter of this name is given the draft; the model neither sees nor fills it."""

OPERATION_ID = "operation_id"
"""A parameter of this name is given the call's own id, the same at every attempt; the model neither sees nor fills it."""

CACHEABLE = "cacheable"
"""The attribute by which a function declares, with a version, that a verdict which rests on it may be reused."""

NEEDS_APPROVAL = "needs_approval"
"""The attribute, True, by which a function declares that a person has to approve each call."""

REPEATABLE = "repeatable"
"""The attribute, False, by which a function declares that it must not run twice for the same call."""

DIGITS = 16
"""The first digits of a sha256, as many as tell one set of tools, or one tool's schema, from another."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_FIELD = "parameter_"
"""The beginning of every field's name, since a parameter may be called as one of pydantic's own methods: schema, json, copy."""


@dataclass
class Tool:
    """A function and what is known of it; the description of an MCP server's tool may change while the worker runs."""

    spec: ToolSpec
    function: Callable[..., Any]
    arguments: type[BaseModel] | None
    """The model of the arguments; None where a server validates them: the function takes them as one dict."""
    takes_draft: bool = False
    takes_operation: bool = False
    required: tuple[str, ...] = ()
    """The parameters without a default."""
    version: str | None = None
    """The version that the function declares as `cacheable`: as long as it is the same, the same call gives the same value."""
    needs_approval: bool = False
    repeatable: bool = True
    refresh: Callable[[], Awaitable[None]] | None = None
    """Reads the tool's description and parameters again, before it is called."""

    @property
    def sha256(self) -> str:
        """The first digits of the sha256 of the tool as a model sees it."""
        return hashlib.sha256(json.dumps(self.spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:DIGITS]

    @property
    def question_parameter(self) -> str | None:
        """The parameter in which a grader's function gets its question; None where it cannot serve as a grader."""
        return self.required[0] if len(self.required) == 1 and self.arguments is not None else None

    def check_parameter(self, given: Mapping[str, JsonValue]) -> str | None:
        """Return the parameter that gets the draft of a check, beside the rubric's arguments; None where it cannot serve as a check."""
        missing = [name for name in self.required if name not in given]
        if self.arguments is None:
            return None
        if self.takes_draft:
            return None if missing else DRAFT
        return missing[0] if len(missing) == 1 else None

    async def run(self, arguments: Mapping[str, JsonValue], draft: str, operation: str = "") -> Any:  # noqa: ANN401 - whatever it returns
        """Call the function with validated arguments; a plain one runs in a thread.

        Raises:
            ValidationError: The arguments do not fit the signature.
        """
        if self.arguments is None:
            values: dict[str, Any] = {"arguments": dict(arguments)}
        else:
            checked = self.arguments.model_validate(dict(arguments))
            values = {name.removeprefix(_FIELD): getattr(checked, name) for name in self.arguments.model_fields}
        return await self._call(values, draft, operation)

    async def check(self, draft: str, given: Mapping[str, JsonValue], operation: str = "") -> Any:  # noqa: ANN401 - whatever it returns
        """Call the function on a draft, with the arguments that the rubric gives."""
        parameter = self.check_parameter(given)
        if parameter is None:
            raise InvalidRequest(f"the tool {self.spec.name!r} cannot serve as a check")
        arguments = {**given} if parameter == DRAFT and self.takes_draft else {**given, parameter: draft}
        return await self.run(arguments, draft, operation)

    async def judge(self, question: Mapping[str, JsonValue], draft: str, operation: str = "") -> Any:  # noqa: ANN401 - whatever it returns
        """Call the function with a grader's question."""
        if self.question_parameter is None:
            raise InvalidRequest(f"the tool {self.spec.name!r} cannot serve as a grader")
        return await self._call({self.question_parameter: dict(question)}, draft, operation)

    async def _call(self, values: dict[str, Any], draft: str, operation: str) -> Any:  # noqa: ANN401 - whatever the function returns
        values |= ({DRAFT: draft} if self.takes_draft else {}) | ({OPERATION_ID: operation} if self.takes_operation else {})
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        return await call_in_thread(self.function, values)


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return the tool that a function is, by its name, signature, docstring and attributes.

    Raises:
        InvalidRequest: A parameter has no annotation, or one that has no JSON Schema; an attribute makes no sense.
    """
    name = function.__name__
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty or parameter.kind not in _NAMED:
            raise InvalidRequest(f"the tool {name!r}: parameter {parameter.name!r} needs a type annotation and a name of its own")
    shown = [parameter for parameter in parameters if parameter.name not in {DRAFT, OPERATION_ID}]
    try:
        defaults = {parameter.name: {} if _required(parameter) else {"default": parameter.default} for parameter in shown}
        fields: dict[str, Any] = {f"{_FIELD}{one.name}": (one.annotation, Field(alias=one.name, **defaults[one.name])) for one in shown}
        arguments = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        schema = arguments.model_json_schema()
    except Exception as error:  # noqa: BLE001 - pydantic raises many kinds, each the author's mistake
        raise InvalidRequest(f"the tool {name!r} has a parameter without a JSON Schema: {error}") from None
    return Tool(
        spec=ToolSpec(name=name, description=inspect.getdoc(function) or name, parameters=_bare(schema)),
        function=function,
        arguments=arguments,
        takes_draft=any(parameter.name == DRAFT for parameter in parameters),
        takes_operation=any(parameter.name == OPERATION_ID for parameter in parameters),
        required=tuple(parameter.name for parameter in shown if _required(parameter)),
        version=_version(function),
        needs_approval=_flag(function, NEEDS_APPROVAL, default=False),
        repeatable=_flag(function, REPEATABLE, default=True),
    )


def _version(function: Callable[..., Any]) -> str | None:
    declared = getattr(function, CACHEABLE, None)
    if declared is not None and not (isinstance(declared, str) and declared):
        raise InvalidRequest(f"the tool {function.__name__!r}: {CACHEABLE} is {declared!r}; give a version as text, such as '1'")
    return declared


def _flag(function: Callable[..., Any], name: str, *, default: bool) -> bool:
    declared = getattr(function, name, default)
    if not isinstance(declared, bool):
        raise InvalidRequest(f"the tool {function.__name__!r}: {name} is {declared!r}; give True or False")
    return declared


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without pydantic's titles, which are of no use to a model."""
    properties = {key: {k: v for k, v in value.items() if k != "title"} for key, value in schema.get("properties", {}).items()}
    return {key: value for key, value in schema.items() if key != "title"} | {"properties": properties}


CONCURRENT_CALLS = 32
"""Calls in threads at once; one that is given up counts no more, though its thread goes on."""

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def call_in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
    """Call the function in a thread and return its value; given up, it goes on, since Python cannot end a thread."""
    async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CONCURRENT_CALLS)):
        return await await_in_thread(functools.partial(function, **values), f"tool {getattr(function, '__name__', '')}")


def in_process(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a module's own function as one that runs in a process that can be killed: whatever it is given, the worker goes on."""

    @functools.wraps(function)
    async def call(**values: Any) -> Any:  # noqa: ANN401 - whatever the function takes and returns
        return await await_in_process(function, values)

    return call


UNTRIED = SandboxChoice(Monty(), None, None, ())
"""The sandboxes of a worker that has tried none: monty for snippets, which needs nothing of the machine."""


class ToolUnavailable(Exception):
    """This worker cannot offer a tool; the message says why, and the cure."""


@dataclass(frozen=True)
class ToolContext:
    """The settings and sandboxes of a worker's built-in tools."""

    settings: WorkerSettings
    sandboxes: SandboxChoice = UNTRIED

    @property
    def code(self) -> CodeSandbox:
        """The sandboxes for calls of code."""
        return CodeSandbox(lambda: self.sandboxes, seconds=self.settings.sandbox.seconds, imports=self.settings.sandbox.imports)

    def sandbox(self, chosen: Sandbox | None) -> Sandbox:
        """Return the sandbox that was chosen for a use.

        Raises:
            ToolUnavailable: None works on this machine.
        """
        if chosen is None:
            why = self.sandboxes.why_not() if self.sandboxes.tried else "this worker has tried none"
            raise ToolUnavailable(f"no sandbox for programs works on this machine ({why}); `gradeloop doctor` says what is missing")
        return chosen

    def limits(self, *, snippet: bool = False, processes: int = 1) -> Limits:
        """Return the limits of a run, from the settings."""
        settings = self.settings.sandbox
        return Limits(
            seconds=settings.seconds if snippet else settings.program_seconds,
            memory_bytes=settings.memory_mib * MIB,
            output_bytes=settings.output_kib * 1024,
            disk_bytes=settings.disk_mib * MIB,
            processes=processes,
        )


def require_package(name: str, extra: str = "evidence") -> None:
    """Refuse a tool whose package is missing.

    Raises:
        ToolUnavailable: It is not installed.
    """
    if find_spec(name) is None:
        raise ToolUnavailable(f"the package {name!r} is not installed; pip install 'gradeloop[{extra}]'")
