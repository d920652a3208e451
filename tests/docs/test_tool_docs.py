"""The pages about tools and threats say what the code does: signatures, limits, settings, and tests that are there."""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from activities import tool_call
from activities.tools import code, files, mcp, web
from activities.tools.base import Tool, ToolContext, tool_of
from activities.tools.registry import BUILTIN_NAMES, READ_TRANSCRIPT, build_builtins
from gradeloop.contract.criterion import Criterion
from gradeloop.grading import checks as json_schema
from gradeloop.grading import checks as patterns
from gradeloop.grading import checks as text_check
from gradeloop.sandbox import cgroups, monty, suite_runner
from gradeloop.sandbox.choice import choose_sandboxes
from gradeloop.settings.worker import FetchSettings, McpSettings, SandboxSettings, WorkerSettings, load_settings
from tests.rig.attacks import HOSTILE, INTERPRETER

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "tools"
THREATS = ROOT / "docs" / "threat-model.md"


@cache
def offered() -> dict[str, Tool]:
    """Return all built-in tools, with settings that let each of them be."""
    settings = WorkerSettings(commands={"x": {"argv": ["/bin/sh"]}}, fetch={"hosts": ["a"]}, files={"roots": {"r": ROOT}})
    return {tool.spec.name: tool for tool in map(tool_of, build_builtins(ToolContext(settings, choose_sandboxes()))[0])}


def text(name: str) -> str:
    """Return a tool's page."""
    return (PAGES / f"{name}.md").read_text()


def limits(name: str) -> dict[str, str]:
    """Return the table of limits of a tool's page."""
    found = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text(name), flags=re.MULTILINE)
    return {row[0]: row[1] for row in found if row[0] != "limit" and not row[0].startswith("---")}


def test_every_tool_has_a_page_and_every_page_a_tool() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    listed = set(re.findall(r"\[`(\w+)`\]\(\1\.md\)", text("README")))

    assert pages == {*BUILTIN_NAMES, READ_TRANSCRIPT.name} == listed


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_a_pages_signature_is_the_tools(name: str) -> None:
    if name not in offered():
        pytest.skip(f"{name} is not to be had on this machine")
    (block,) = re.findall(rf"^```python\n({name}\(.*\)) -> \{{.*\}}$", text(name), flags=re.MULTILINE)
    tool, function = offered()[name], ast.parse(f"def {block.replace('|', 'or')}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    defaults = [None] * (len(function.args.args) - len(function.args.defaults)) + [
        ast.literal_eval(default) for default in function.args.defaults
    ]
    parameters = {argument.arg: default for argument, default in zip(function.args.args, defaults, strict=True)}
    hidden = {"draft", "operation_id"}
    shown = {name: parameter for name, parameter in inspect.signature(tool.function).parameters.items() if name not in hidden}

    assert list(parameters) == list(shown)
    for parameter_name, parameter in shown.items():
        assert parameters[parameter_name] == (None if parameter.default is inspect.Parameter.empty else parameter.default)
    assert tool.required == tuple(key for key, parameter in shown.items() if parameter.default is inspect.Parameter.empty)


def test_the_pages_limits_are_the_codes() -> None:
    box, fetch = SandboxSettings(), FetchSettings()

    assert (box.seconds, box.program_seconds, box.memory_mib, box.disk_mib, box.output_kib, box.processes) == (5, 60, 512, 64, 1024, 32)
    assert limits("run_python") == {
        "time": "`sandbox.seconds`, 5; in monty as much again asleep",
        "memory": f"{monty.MEMORY_BYTES // 2**20} MiB in monty, else `sandbox.memory_mib`, {box.memory_mib}",
        "output": f"`sandbox.output_kib`, {box.output_kib}; 64 KiB reach the grader",
    }
    assert limits("run_pytest")["the suite"] == f"{code.SUITE_BYTES // 2**20} MiB"
    assert limits("run_pytest")["reported"] == f"{code.FAILURES_SHOWN} failed tests, {suite_runner.CHARACTERS:,} characters each"
    assert limits("run_command")["processes"] == f"`sandbox.processes`, {box.processes}, and {cgroups.THREADS} threads beside them"
    assert limits("read_file")["per call"].startswith(f"{files.STRETCH_BYTES // 1024} KiB")
    assert limits("list_files")["files"] == f"{files.LISTED:,}"
    assert limits("search_files") == {
        "matches": f"{files.MATCHES}, {files.LINE_CHARACTERS} characters of each line",
        "a file": f"{files.SEARCHED_BYTES // 2**20} MiB; larger and binary files are skipped",
        "time": f"{files.SEARCH_SECONDS:.0f} s",
    }
    assert limits("fetch_page") == {
        "time": f"`fetch.seconds`, {fetch.seconds:.0f}",
        "a page": f"`fetch.max_kib`, {fetch.max_kib}; 64 KiB reach the grader",
        "redirections": f"{web.REDIRECTS}",
    }
    assert limits("json_schema_check") == {
        "the draft's JSON": f"{json_schema.JSON_BYTES // 2**20} MiB, nested {json_schema.DEPTH} deep",
        "steps": f"{json_schema.STEPS:,}",
        "reported": f"{json_schema.ERRORS} errors",
    }
    assert limits("text_check") == {
        "a pattern": f"{patterns.PATTERN_CHARACTERS:,} characters",
        "JSON": f"{json_schema.JSON_BYTES // 2**20} MiB, nested {json_schema.DEPTH} deep; {text_check.BEGINNINGS:,} starts tried",
    }
    assert limits("regex_check")["a pattern"] == f"{patterns.PATTERN_CHARACTERS:,} characters"
    assert limits("read_transcript")["per call"] == f"{tool_call.PAGE_CHARACTERS:,} characters"
    assert f'`_meta["{mcp.OPERATION_META}"]`' in text("README")


def criteria() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the criteria that the pages show."""
    for path in PAGES.glob("*.md"):
        for block in re.findall(r"^```yaml\n(.*?)^```$", path.read_text(), flags=re.MULTILINE | re.DOTALL):
            yield path.stem, YAML(typ="safe").load(block)


@pytest.mark.parametrize(("name", "criterion"), list(criteria()), ids=[criterion[0] for criterion in criteria()])
def test_a_pages_criterion_is_one_that_its_tool_serves(name: str, criterion: dict[str, Any]) -> None:
    check = Criterion.model_validate(criterion).check

    assert check is not None
    assert check.tool == name
    if name in offered():
        assert offered()[name].check_parameter(check.arguments) is not None


def test_the_settings_of_the_page_are_settings(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text("README"), flags=re.MULTILINE | re.DOTALL)
    folder = tmp_path / "project"
    for name in ("docs", "tests/duplicates", "../prompts"):
        (folder / name).resolve().mkdir(parents=True)
    block = block.replace('"ruff"', '"/bin/sh"')
    (folder / "gradeloop.toml").write_text(block)

    settings = load_settings(["--config", str(folder / "gradeloop.toml")])
    documented = tomllib.loads(block)

    assert set(documented["sandbox"]) == set(SandboxSettings.model_fields)
    assert {name: documented["sandbox"][name] for name in documented["sandbox"] if name != "read_only"} == {
        name: value for name, value in SandboxSettings().model_dump().items() if name != "read_only"
    }
    assert set(documented["fetch"]) == set(FetchSettings.model_fields)
    assert set(McpSettings.model_fields) - set(documented["mcp"]["wiki"]) == {"url", "headers"}
    beside = set(re.findall(r"`(\w+)`", text("README").split("Beside these: ")[1].split("as `gradeloop worker")[0]))
    private = {"config", "folder", "trust", "ready_file", "until_idle", "examine"}
    assert set(WorkerSettings.model_fields) == set(documented) | beside | private
    assert settings.mcp["wiki"].tools == ("search", "read")


def test_every_threat_names_a_test_that_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:::(\w+))?`", THREATS.read_text())

    assert len(named) > 25
    for file, first, second in named:
        tree = ast.parse((ROOT / file).read_text())
        scope: list[ast.stmt] = tree.body
        for name in filter(None, (first, second)):
            found = [
                node for node in scope if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
            ]
            assert found, f"{file}::{first}::{second}"
            scope = found[0].body


def test_as_many_attacks_as_the_page_says() -> None:
    assert f"{len(HOSTILE)} hostile programs and {len(INTERPRETER)} attacks" in THREATS.read_text().replace("\n", " ")
