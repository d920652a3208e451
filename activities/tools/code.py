"""The tools `run_python`, `run_pytest` and `run_command`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from activities.tools.base import ToolContext, ToolUnavailable, require_package
from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import code_of
from gradeloop.grading.code_checks import code_call, parse_code_check, read_assertion
from gradeloop.grading.json_schema import compile_pattern
from gradeloop.sandbox.pytest_suite import SuiteRun, run_suite
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

FAILURES_SHOWN = 50
"""Failed tests that are listed; the others are counted."""

_TEST = re.compile(r"\bdef test")


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
        if suite and suite not in suites:
            raise ValueError(f"there is no suite {suite!r}; known: {', '.join(suites) or 'none, set pytest.suites'}")
        given = {**(suites[suite] if suite else {}), **(files or {})}
        # Where there is no suite to run, that is the suite's mistake, and does not fail the draft.
        if (size := sum(len(text.encode(errors="replace")) for text in given.values())) > SUITE_BYTES:
            raise ValueError(f"the suite has {size} bytes, {SUITE_BYTES} at most")
        if not any(name.endswith(".py") and _TEST.search(text) for name, text in given.items()):
            raise ValueError("the suite has no test: files needs a Python file with a function test_...")
        return _report(run_suite(box, code_of(draft), given, module=module, limits=limits))

    return run_pytest


def _read(folder: Path) -> dict[str, str]:
    found = [file for file in sorted(folder.rglob("*.*")) if file.suffix in {".py", ".json", ".txt"} and "__pycache__" not in file.parts]
    return {str(file.relative_to(folder)): file.read_text() for file in found}


def _report(run: SuiteRun) -> dict[str, Any]:
    if run.error:
        return {"ok": False, "error": run.error}
    skipped = {"skipped": run.skipped} if run.skipped else {}
    further = {"failed_in_all": len(run.failed)} if len(run.failed) > FAILURES_SHOWN else {}
    return {"ok": run.ok, "passed": run.passed, **skipped, "failed": dict(list(run.failed.items())[:FAILURES_SHOWN]), **further}


def build_code_check(context: ToolContext) -> Callable[..., CheckOutcome]:
    """Return the tool `code_check`."""
    code_sandbox = context.code

    def code_check(  # noqa: PLR0913, PLR0917 - a criterion's check gives them by name
        language: Literal["javascript", "python"],
        code: str,
        draft: str,
        file: str = "",
        function: str = "",
        config: JsonValue = None,
        threshold: float | None = None,
        negate: bool = False,
        context: dict[str, JsonValue] | None = None,
    ) -> CheckOutcome:
        """Call a function with the draft, in a sandbox; it returns true or false, a score, or {pass, score, reason}.

        Args:
            language: Python, or JavaScript by Node or QuickJS.
            code: An expression over `output` and `context`, or a body with `return`; with `file`, all of a file.
            file: The name of the file that the code is.
            function: The file's function; empty for what a file of JavaScript exports.
            config: What the function finds as context.config.
            threshold: The lowest score that passes; without it a score above 0 does.
            negate: True passes where it does not hold.
            context: What the function finds as `context`: vars, prompt and more.
        """
        given = {"language": language, "code": code, "file": file, "function": function, "config": config}
        check = parse_code_check(given | {"threshold": threshold, "negate": negate, "context": context or {}})
        (result,) = code_sandbox.call([code_call(check, draft, check.context)])
        return read_assertion(result, check)

    return code_check


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
