"""The tools `run_python`, `run_pytest` and `run_command`."""

import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from activities.tools.base import ToolContext, ToolUnavailable, require_package
from gradeloop.contract.messages import code_of
from gradeloop.grading.checks import compile_pattern
from gradeloop.sandbox import Execution, SandboxError
from gradeloop.settings.worker import CommandSettings


def build_run_python(context: ToolContext) -> Callable[..., dict[str, Any]]:
    """Return the tool `run_python`."""
    box, limits = context.sandbox(context.sandboxes.snippets), context.limits(snippet=True)

    def run_python(code: str) -> dict[str, Any]:
        """Run a snippet of Python in a sandbox without files, network or time to waste.

        Its status and what it prints come back, and the value of its last expression where the sandbox is monty, in which classes
        with bases, `yield` and about half of the standard library are not available (status "unsupported").
        """
        ended = box.run(code, limits=limits)
        result: dict[str, Any] = {"status": ended.status, "stdout": ended.stdout}
        if ended.stderr:
            result["stderr"] = ended.stderr
        if ended.status != "ok":
            return result | {"error": ended.error}
        return result | ({"value": ended.value} if box.name == "monty" else {})

    return run_python


SUITE_BYTES = 1024 * 1024
"""The bytes of all files of a suite together."""

MESSAGE_CHARACTERS = 1_000
"""The characters that are kept of a failed test's message."""

FAILURES_SHOWN = 50
"""Failed tests that are listed; the others are counted."""

_TEST = re.compile(r"\bdef test")

RUNNER = """
import ast, json, os, sys
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
sys.path.insert(0, os.getcwd())
import pytest


def main(nonce, out, write, leave):
    results = {"passed": 0, "skipped": 0, "failed": {}, "errors": {}}

    def message(report):
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        lines = text.strip().splitlines()
        return "\\n".join(lines if crash is not None else lines[-3:])[:MESSAGE]

    class Results:
        def pytest_collectreport(self, report):
            if report.failed:
                results["errors"][report.nodeid] = message(report)

        def pytest_runtest_logreport(self, report):
            if report.failed:
                results["failed" if report.when == "call" else "errors"][report.nodeid] = message(report)
            elif report.skipped:
                results["skipped"] += 1
            elif report.when == "call":
                results["passed"] += 1

    for name in SUITE:
        try:
            ast.parse(open(name, encoding="utf-8").read())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            write(out, (nonce + json.dumps({"unfit": f"{name} is no Python: {error}"[:MESSAGE]}) + nonce).encode())
            leave(0)
    # Without `--confcutdir`, which is the folder of `-c` then, pytest collects the parent folder, which is closed.
    places = ["-c", os.devnull, "--rootdir", ".", "--confcutdir", "."]
    flags = ["-q", "-p", "no:cacheprovider", "--tb=short", "--no-header", "--no-summary", *places]
    results["exit"] = int(pytest.main([*flags, *SUITE], plugins=[Results()]))
    write(out, (nonce + json.dumps(results) + nonce).encode())
    leave(0)


main(NONCE, os.dup(1), os.write, os._exit)
"""
"""Runs the suite and writes its own report, marked by a code that it was given: what a draft prints is no report."""


_EXITS = {
    2: "it was interrupted",
    3: "pytest itself failed, as where the code exits",
    5: "no test was found",
}
"""pytest's exit codes, where no test is to blame."""


def build_run_pytest(context: ToolContext) -> Callable[..., dict[str, Any]]:
    """Return the tool `run_pytest`."""
    require_package("pytest")
    box, limits = context.sandbox(context.sandboxes.programs), context.limits()
    suites = {name: _read(folder) for name, folder in context.settings.pytest.suites.items()}

    def run_pytest(draft: str, files: dict[str, str] | None = None, suite: str = "", module: str = "draft") -> dict[str, Any]:
        """Run a pytest suite against the draft, in full CPython, in a sandbox without network or other files.

        The draft's last fenced code block, or the whole draft where it has none, is there as the module `draft`, so a test begins
        with `from draft import ...`. Passed tests are counted, failed ones told.

        Args:
            files: The suite, by file name: {"test_it.py": "..."}.
            suite: The name of a suite that the worker has, instead of files or beside them.
            module: Another name for the draft's module.
        """
        if not module.isidentifier():
            raise ValueError(f"module is {module!r}; give a Python name")
        if suite and suite not in suites:
            raise ValueError(f"there is no suite {suite!r}; known: {', '.join(suites) or 'none, set pytest.suites'}")
        given = {**(suites[suite] if suite else {}), **(files or {})}
        _refuse_unfit(given, module)
        nonce = secrets.token_hex()
        names = sorted(name for name in given if name.endswith(".py"))
        front = f"NONCE, MESSAGE, SUITE = {nonce!r}, {MESSAGE_CHARACTERS}, {names!r}\n"
        ended = box.run(
            [sys.executable, "-E", "-s", "-B", "-X", "utf8", "run_suite.py"],
            {**given, f"{module}.py": code_of(draft), "run_suite.py": front + RUNNER},
            limits,
        )
        return _report(ended, nonce)

    return run_pytest


def _read(folder: Path) -> dict[str, str]:
    found = [file for file in sorted(folder.rglob("*.*")) if file.suffix in {".py", ".json", ".txt"} and "__pycache__" not in file.parts]
    return {str(file.relative_to(folder)): file.read_text() for file in found}


def _refuse_unfit(given: Mapping[str, str], module: str) -> None:
    """Raise where there is no suite to run, which is the suite's mistake and does not fail the draft."""
    if (size := sum(len(text.encode(errors="replace")) for text in given.values())) > SUITE_BYTES:
        raise ValueError(f"the suite has {size} bytes, {SUITE_BYTES} at most")
    if taken := {f"{module}.py", "run_suite.py"} & set(given):
        raise ValueError(f"the file name {min(taken)!r} is taken; rename it, or the draft's module")
    if not any(name.endswith(".py") and _TEST.search(text) for name, text in given.items()):
        raise ValueError("the suite has no test: files needs a Python file with a function test_...")


def _report(ended: Execution, nonce: str) -> dict[str, Any]:
    parts = ended.stdout.split(nonce)
    if ended.status == "limit":
        return {"ok": False, "error": f"the run was stopped: {ended.error}"}
    if len(parts) != 3:  # noqa: PLR2004 - before, the report, after
        if "No module named pytest" in ended.stderr or "No module named 'pytest'" in ended.stderr:
            raise SandboxError("pytest cannot be imported in the sandbox")
        return {"ok": False, "error": f"the run ended before its tests did: {ended.error or 'the code left the process'}"}
    report = json.loads(parts[1])
    if "unfit" in report:
        raise ValueError(report["unfit"])
    failures = {**report["failed"], **report["errors"]}
    shown = dict(list(failures.items())[:FAILURES_SHOWN])
    ok = not failures and report["passed"] > 0 and report["exit"] == 0
    if not ok and not failures:
        shown = {"the run": _EXITS.get(report["exit"], "no test passed")}
    return {"ok": ok, "passed": report["passed"], **({"skipped": report["skipped"]} if report["skipped"] else {}), "failed": shown} | (
        {"failed_in_all": len(failures)} if len(failures) > FAILURES_SHOWN else {}
    )


def build_run_command(context: ToolContext) -> Callable[..., dict[str, Any]]:
    """Return the tool `run_command`."""
    commands = context.settings.commands
    if not commands:
        raise ToolUnavailable("no command is allowed; name some under [commands] in gradeloop.toml")
    box = context.sandbox(context.sandboxes.commands)
    limits = context.limits(processes=context.settings.sandbox.processes)

    def run_command(command: str, draft: str, arguments: list[str] | None = None) -> dict[str, Any]:
        if command not in commands:
            raise ValueError(f"there is no command {command!r}; known: {', '.join(commands)}")
        allowed, further = commands[command], list(arguments or ())
        for argument in further:
            if not any(compile_pattern(pattern).fullmatch(argument) for pattern in allowed.arguments):
                patterns = ", ".join(repr(pattern) for pattern in allowed.arguments) or "none"
                raise ValueError(f"the argument {argument!r} is not allowed; what matches is: {patterns}")
        text = code_of(draft) if allowed.extract == "code" else draft
        ended = box.run([allowed.program, *allowed.argv[1:], *further], {allowed.file: text}, limits)
        result: dict[str, Any] = {"ok": ended.status == "ok", "stdout": ended.stdout, "stderr": ended.stderr}
        return result | ({"error": ended.error} if ended.status == "limit" else {"exit_code": ended.exit_code})

    run_command.__doc__ = "Run one of the worker's commands in a sandbox without network; no shell reads its arguments.\n\n" + "\n".join(
        f"{name}: {_describe(command)}" for name, command in commands.items()
    )
    return run_command


def _describe(command: CommandSettings) -> str:
    further = f", further arguments that match {', '.join(command.arguments)}" if command.arguments else ""
    content = "the draft's code" if command.extract == "code" else "the draft"
    return f"{command.description or ' '.join(command.argv)} ({command.file} holds {content}{further})"
