"""The tools that this worker has: built-in ones, those of entry points, and those of the files that it was given."""

import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from activities.providers.model import ToolSpec
from activities.tools.run_python import run_python
from activities.tools.tool import Tool, tool_of
from gradeloop.errors import InvalidRequest
from gradeloop.strict import did_you_mean

ENTRY_POINTS = "gradeloop.tools"
"""The entry-point group in which an installed package offers a function or a module of functions."""

DIGITS = 16
"""Of the sha256 of a grader's tools, which every call's result carries: enough to tell two sets of tools apart."""

RESERVED = "read_transcript"
"""The name of the tool that a grader is given where its records were cut."""


class Toolbox:
    """Tools by name."""

    def __init__(self, functions: Iterable[Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for function in (run_python, *functions):
            self._add(tool_of(function))

    @classmethod
    def load(cls, files: Sequence[Path]) -> "Toolbox":
        """Load the built-in tools, the installed ones, and those of `files`.

        Raises:
            InvalidRequest: A file is missing, does not import, or offers no tool; a name is taken twice.
        """
        installed = [function for point in entry_points(group=ENTRY_POINTS) for function in _functions(point.load())]
        return cls([*installed, *(function for path in files for function in _of_file(path))])

    def _add(self, tool: Tool) -> None:
        if tool.spec.name in self._tools or tool.spec.name == RESERVED:
            raise InvalidRequest(f"the tool name {tool.spec.name!r} is taken; rename the function")
        self._tools[tool.spec.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def specs(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Return what a model is told of the tools `names`."""
        return tuple(self._get(name).spec for name in names)

    def refuse_unknown(self, names: Iterable[str], where: str) -> None:
        """Raise InvalidRequest at the first name that this worker has no tool of."""
        for name in names:
            self._get(name, where)

    def refuse_non_check(self, name: str, where: str) -> None:
        """Raise InvalidRequest where the tool is unknown or needs more than the draft."""
        if self._get(name, where).check_parameter is None:
            raise InvalidRequest(f"{where}: the tool {name!r} needs more than the draft; a check takes it as its only required parameter")

    def refuse_non_grader(self, name: str, where: str) -> None:
        """Raise InvalidRequest where the function is unknown or does not take what a grader is asked."""
        if self._get(name, where).grader_parameter is None:
            raise InvalidRequest(f"{where}: the function {name!r} takes no question; a grader takes one required parameter, a dict")

    def cacheable(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those tools on which a verdict may rest that is reused."""
        return tuple(name for name in names if self._get(name).version is not None)

    def sha256(self, names: Iterable[str]) -> str:
        """Return the first digits of the sha256 of what a model is told of the tools, with the versions that they declare."""
        told = [[self._get(name).spec.model_dump(mode="json"), self._get(name).version] for name in names]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:DIGITS]

    def _get(self, name: str, where: str = "tools") -> Tool:
        if name not in self._tools:
            raise InvalidRequest(
                f"{where}: unknown tool {name!r}.{did_you_mean(name, sorted(self._tools))} Give the worker its file by --tools"
            )
        return self._tools[name]


def _of_file(path: Path) -> list[Callable[..., Any]]:
    if not path.is_file():
        raise InvalidRequest(f"the tools file {str(path)!r} does not exist")
    functions = _functions(_imported(path))
    if not functions:
        raise InvalidRequest(f"the tools file {str(path)!r} has no public function")
    return functions


def _imported(path: Path) -> ModuleType:
    name = f"gradeloop_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"the tools file {str(path)!r} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the author's module raises is the author's mistake
        raise InvalidRequest(f"the tools file {str(path)!r} does not import: {type(error).__name__}: {error}") from None
    return module


def _functions(offered: object) -> list[Callable[..., Any]]:
    if inspect.isfunction(offered):
        return [offered]
    members = vars(offered).items() if isinstance(offered, ModuleType) else ()
    own = [value for name, value in members if inspect.isfunction(value) and not name.startswith("_")]
    return [function for function in own if function.__module__ == getattr(offered, "__name__", None)]
