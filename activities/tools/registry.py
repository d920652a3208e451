"""The tools of a worker by name: built-in ones, those of files and packages, those of MCP servers."""

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, JsonValue, ValidationError, create_model

from activities.tools.base import DIGITS, Tool, ToolContext, ToolUnavailable, in_process, require_package, tool_of
from activities.tools.code import build_code_check, build_run_command, build_run_pytest, build_run_python
from activities.tools.file_tools import build_file_tool
from activities.tools.mcp import McpServers
from activities.tools.text import count_tokens, json_schema_check, regex_check, text_check, word_count
from activities.tools.web import build_fetch_page
from gradeloop.contract.messages import EvidenceTool
from gradeloop.contract.model_spec import OfferedTool
from gradeloop.contract.provider import ToolSpec
from gradeloop.errors import InvalidRequest, explain
from gradeloop.extensions import Registry
from gradeloop.settings.worker import WorkerSettings
from gradeloop.text import did_you_mean

Function = Callable[..., Any]


def _build_count_tokens(_: ToolContext) -> Function:
    require_package("bpe_openai")
    return in_process(count_tokens)


BUILT_IN = (
    EvidenceTool("run_python", build_run_python),
    EvidenceTool("run_pytest", build_run_pytest),
    EvidenceTool("run_command", build_run_command),
    EvidenceTool("fetch_page", build_fetch_page),
    EvidenceTool.of(in_process(json_schema_check)),
    EvidenceTool.of(in_process(regex_check)),
    EvidenceTool("count_tokens", _build_count_tokens),
    EvidenceTool.of(in_process(word_count)),
    EvidenceTool.of(in_process(text_check)),
    EvidenceTool("code_check", build_code_check),
    *(EvidenceTool(name, partial(build_file_tool, name)) for name in ("read_file", "list_files", "search_files")),
)
"""All built-in tools but `read_transcript`, which is part of grading itself."""

TOOLS = Registry[EvidenceTool]("tools", "tool", "activities.tools.registry:BUILT_IN")
"""The tools of a worker, beside those of its files and its MCP servers."""


def build_rows(context: ToolContext) -> tuple[list[Function], dict[str, str]]:
    """Return the functions that this worker can offer, and for every other row why not."""
    offered: list[Function] = []
    refused: dict[str, str] = {}
    for row in TOOLS:
        try:
            offered.append(row.build(context))
        except ToolUnavailable as why:
            refused[row.name] = str(why)
    return offered, refused


ENTRY_POINTS = "gradeloop.tools"
"""The entry-point group in which an installed package offers a function or a module of functions."""

READ_TRANSCRIPT = ToolSpec(
    name="read_transcript",
    description="Show a record of the judged conversation whole, from an offset on, in stretches.",
    parameters={
        "type": "object",
        "properties": {
            "record": {"type": "integer", "description": "The record's number."},
            "offset": {"type": "integer", "description": "The character to start at; 0, or next_offset of the stretch before."},
        },
        "required": ["record", "offset"],
        "additionalProperties": False,
    },
)
"""The tool that only graders have: where their records were cut, and where it is named."""

RESERVED = READ_TRANSCRIPT.name


class ToolRegistry:
    """The tools of a worker by name."""

    def __init__(
        self,
        functions: Iterable[Function] = (),
        context: ToolContext | None = None,
        mcp: McpServers | None = None,
        unread: Iterable[str] = (),
    ) -> None:
        context = context or ToolContext(WorkerSettings())
        offered, self.refused = build_rows(context)
        self.refused |= mcp.refused if mcp else {}
        self.code = context.code
        """The sandboxes in which assertions in code run."""
        self._tools: dict[str, Tool] = {}
        for tool in (*map(tool_of, offered), *map(tool_of, functions), *(mcp.tools if mcp else ()), *map(_unread_tool, unread)):
            self._add(tool)
        for name in context.settings.needs_approval:
            if context.settings.uncounted and name not in self._tools:  # a tool of settings that do not count
                continue
            self._get(name, "needs_approval").needs_approval = True

    @classmethod
    def load(cls, files: Sequence[Path], context: ToolContext | None = None, mcp: McpServers | None = None) -> "ToolRegistry":
        """Load the built-in tools, the installed ones, those of `files`, and those of MCP servers.

        Raises:
            InvalidRequest: A file is missing, does not import, or offers no tool; a name is taken twice.
        """
        return cls([*_installed(), *(function for path in files for function in _load_file(path))], context, mcp)

    @classmethod
    def looked_at(cls, files: Sequence[Path], context: ToolContext) -> "ToolRegistry":
        """Return what `load` would, but run no line of `files` and ask no MCP server: only the names of their tools are known.

        Raises:
            InvalidRequest: A file is not Python; a name is taken twice.
        """
        names = [f"{server}__{name}" for server, settings in context.settings.mcp.items() for name in settings.tools]
        for path in files:
            try:
                body = ast.parse(path.read_bytes(), str(path)).body
            except (OSError, SyntaxError, ValueError) as error:
                raise _no_import(path, error) from None
            nodes = [node for one in body if not isinstance(one, ast.ClassDef) for node in ast.walk(one)]
            found = {node.name: None for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
            names += [name for name in found if not name.startswith("_")]
        return cls(_installed(), context, unread=names)

    def _add(self, tool: Tool) -> None:
        if tool.spec.name in self._tools or tool.spec.name in {RESERVED, *self.refused}:
            raise InvalidRequest(f"the tool name {tool.spec.name!r} is taken; rename the function")
        self._tools[tool.spec.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def named(self, names: Iterable[str]) -> Iterator[Tool]:
        """Yield those of the tools that this worker has."""
        return (self._tools[name] for name in names if name in self._tools)

    def specs(self, tools: Iterable[OfferedTool]) -> tuple[ToolSpec, ...]:
        """Return the tools as a model sees them, remote ones among them."""
        return tuple(self._spec(tool) for tool in tools)

    def _spec(self, tool: OfferedTool) -> ToolSpec:
        if not isinstance(tool, str):
            return ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
        return READ_TRANSCRIPT if tool == RESERVED else self._get(tool).spec

    def refuse_unknown(self, tools: Iterable[OfferedTool], where: str, *, judges: bool = False) -> None:
        """Raise InvalidRequest at the first tool that this worker has not; `judges` where they are a grader's."""
        for tool in tools:
            name = tool if isinstance(tool, str) else tool.name
            if name == RESERVED and (not judges or not isinstance(tool, str)):
                raise InvalidRequest(f"{where}: {RESERVED} shows a grader what it judges; leave it out here")
            if isinstance(tool, str) and name != RESERVED:
                self._get(name, where)

    def refuse_non_check(self, name: str, given: Mapping[str, JsonValue], where: str) -> None:
        """Raise InvalidRequest where the tool is unknown, needs more than the draft, or does not take the arguments."""
        tool = self._get(name, where)
        parameter = tool.check_parameter(given)
        if parameter is None or tool.arguments is None:
            needs = f"; it needs {', '.join(tool.required)}" if tool.required else ""
            cure = "a check takes it as its only required parameter, beside the arguments that the rubric gives"
            raise InvalidRequest(f"{where}: the tool {name!r} needs more than the draft{needs}; {cure}")
        # The draft is not known yet, so an empty text stands for it. Mistakes only of that parameter say nothing
        # about the rubric and are ignored.
        try:
            tool.arguments.model_validate({**given} if tool.takes_draft else {**given, parameter: ""})
        except ValidationError as error:
            if any(mistake["loc"][:1] != (parameter,) for mistake in error.errors()):
                known = [field.alias or key for key, field in tool.arguments.model_fields.items()]
                wrong = any(mistake["type"] == "extra_forbidden" for mistake in error.errors())
                cure = f". Known: {', '.join(key for key in known if key != parameter)}." if wrong else ""
                raise InvalidRequest(f"{where}: the arguments of {name!r}: {explain(error)}{cure}") from None

    def refuse_non_grader(self, name: str, where: str) -> None:
        """Raise InvalidRequest where the function is unknown or does not take a grader's question."""
        tool = self._get(name, where)
        if tool.question_parameter is None and tool.function is not _unread:
            raise InvalidRequest(f"{where}: the function {name!r} takes no question; a grader takes one required parameter, a dict")

    def cacheable(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those tools on which a verdict may rest that is reused."""
        return tuple(tool.spec.name for tool in self.named(names) if tool.version is not None)

    def sha256(self, tools: Iterable[OfferedTool]) -> str:
        """Return the first digits of the sha256 of the tools as a model sees them, with the versions that they declare."""
        versions = ((tool, self._get(tool).version if isinstance(tool, str) and tool != RESERVED else None) for tool in tools)
        rows = [[self._spec(tool).model_dump(mode="json"), version] for tool, version in versions]
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:DIGITS]

    def _get(self, name: str, where: str = "tools") -> Tool:
        if name in self.refused:
            raise InvalidRequest(f"{where}: the tool {name!r} is not available on this worker: {self.refused[name]}")
        if name not in self._tools:
            raise InvalidRequest(
                f"{where}: unknown tool {name!r}.{did_you_mean(name, sorted(self._tools))} Give the worker its file by --tools"
            )
        return self._tools[name]


def _installed() -> list[Function]:
    return [function for point in entry_points(group=ENTRY_POINTS) for function in _functions(point.load())]


def _unread(**_: JsonValue) -> None:
    """Stand in for a function whose file was not run."""


def _unread_tool(name: str) -> Tool:
    """Return a tool that takes whatever it is given, as far as is known."""
    arguments = create_model(name, __config__=ConfigDict(extra="allow"))
    return Tool(ToolSpec(name=name, description=name, parameters={}), _unread, arguments, takes_draft=True)


def _load_file(path: Path) -> list[Callable[..., Any]]:
    if not path.is_file():
        raise InvalidRequest(f"the tools file {str(path)!r} does not exist")
    functions = _functions(_import(path))
    if not functions:
        raise InvalidRequest(f"the tools file {str(path)!r} has no public function")
    return functions


def _no_import(path: Path, error: BaseException) -> InvalidRequest:
    return InvalidRequest(f"the tools file {str(path)!r} does not import: {type(error).__name__}: {error}")


def _import(path: Path) -> ModuleType:
    name = f"gradeloop_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"the tools file {str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the author's module raises is the author's mistake
        raise _no_import(path, error) from None
    return module


def _functions(offered: object) -> list[Callable[..., Any]]:
    if inspect.isfunction(offered):
        return [offered]
    members = vars(offered).items() if isinstance(offered, ModuleType) else ()
    own = [value for name, value in members if inspect.isfunction(value) and not name.startswith("_")]
    return [function for function in own if function.__module__ == getattr(offered, "__name__", None)]


def describe_tools(context: ToolContext, registry: ToolRegistry) -> dict[str, Any]:
    """Return the sandboxes, the tools and where they may reach, as JSON without the values of any variable."""
    settings, choice = context.settings, context.sandboxes
    chosen = {"snippets": choice.snippets, "programs": choice.programs, "commands": choice.commands}
    return {
        "config": str(settings.config) if settings.config else None,
        "uncounted": list(settings.uncounted),
        "sandboxes": [{"name": test.name, "why_not": test.why, "missing": test.missing} for test in choice.tried],
        "replaced": list(choice.replaced()),
        "chosen": {use: box.name if box else None for use, box in chosen.items()},
        "limits": settings.sandbox.model_dump(mode="json"),
        "tools": [_describe(tool) for tool in registry],
        "refused": registry.refused,
        "roots": {name: str(path) for name, path in settings.files.roots.items()},
        "commands": {name: list(command.argv) for name, command in settings.commands.items()},
        "hosts": list(settings.fetch.hosts),
        "mcp": {name: list(server.tools) for name, server in settings.mcp.items()},
        "concurrency": settings.max_concurrent_activities,
    }


def _describe(tool: Tool) -> str:
    marks = [*(["needs approval"] if tool.needs_approval else ()), *(["runs once"] if not tool.repeatable else ())]
    return f"{tool.spec.name} ({', '.join(marks)})" if marks else tool.spec.name
