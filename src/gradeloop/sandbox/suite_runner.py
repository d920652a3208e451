"""Runs a pytest suite and says what happens as it happens, a sealed line for each event. Run as a script; pytest and the standard library.

It makes no report: whoever reads its lines does, and never imports the draft. Everything here shares a process with the draft, so
nothing here is secret from code that looks for it; what it does is show where pytest, the suite or the lines are not what they were.
"""

import ast
import fcntl
import hmac
import json
import os
import secrets
import shutil
import sys
import traceback
import types
import unittest
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts
from _pytest.unittest import TestCaseFunction

CHARACTERS = 1_000
"""The characters that are kept of a failure's message."""

_WATCHED = ("_pytest", "pluggy", "pytest", "unittest")
"""The packages whose functions decide whether a test passes."""

_OWN_PLACES = {"_pytest", "pluggy", "unittest", Path(__file__).name}
"""The folders and the file of those that run a test, in whose frames nothing of a suite or a draft is."""

_LEFT_OUT = (pytest.skip.Exception, pytest.xfail.Exception)

_SKIPPED = "the draft leaves the test out"

Send = Callable[..., None]
Defined = dict[str, list[types.CodeType]]
Functions = dict[tuple[str, str, str], tuple[types.FunctionType, types.CodeType]]


def _sender(key: str) -> Send:
    """Return the function that writes an event to what was standard output, of which nothing else knows the number."""
    # The report leaves by a descriptor of a random number, and standard output goes to standard error: what
    # draft and suite print cannot stand between its lines. Functions are bound here, before the draft can
    # replace them in their modules.
    out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 64 + secrets.randbelow(128))
    os.dup2(2, 1)
    seal, dumps, write = hmac.new(bytes.fromhex(key), digestmod="sha256"), json.dumps, os.write

    def send(*event: object) -> None:
        text = dumps(event).encode()
        seal.update(text)
        line = seal.hexdigest().encode() + text + b"\n"
        while line:
            line = line[write(out, line) :]

    return send


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-3:])[:CHARACTERS]


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if isinstance(report.longrepr, tuple):
        return _last_lines(report.longrepr[2])
    return _last_lines(str(report.longrepr)) if crash is None else str(crash.message).strip()[:CHARACTERS]


# These have to be collected whatever the draft does. So only those count that the source itself shows to be
# tests. A second definition, a decorator that is not pytest's mark, or another base class may turn a function
# into anything.
def _tests(tree: ast.Module) -> Iterator[str]:
    """Yield the tests of a file that nothing but pytest's own marks decides about, as `name` or `Class::name`."""
    seen = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and seen.count(node.name) == 1 and _is_plain(node):
            yield node.name
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test") and seen.count(node.name) == 1 and not node.decorator_list:
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            names = [method.name for method in methods]
            if {"__init__", "__new__"} & set(names) or not {ast.unparse(base) for base in node.bases} <= {"unittest.TestCase", "TestCase"}:
                continue
            plain = (method.name for method in methods if names.count(method.name) == 1 and _is_plain(method))
            yield from (f"{node.name}::{name}" for name in plain if name.startswith("test"))


def _is_plain(function: ast.FunctionDef) -> bool:
    return all(ast.unparse(decorator).startswith("pytest.mark.") for decorator in function.decorator_list)


def _codes(code: types.CodeType, prefix: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """Yield the code of the functions of a module and of its classes."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield prefix + constant.co_name, constant
            if not prefix:
                yield from _codes(constant, f"{constant.co_name}::")


def _compile(name: str, config: pytest.Config) -> Defined:
    """Return the code of a suite's functions, both as Python and as pytest compile it."""
    path = str(Path.cwd() / name)
    source = Path(path).read_bytes()
    plain, rewritten = ast.parse(source, path), ast.parse(source, path)
    rewrite_asserts(rewritten, source, path, config)
    found: Defined = {}
    for tree in (plain, rewritten):
        for function, code in _codes(compile(tree, path, "exec", dont_inherit=True)):
            found.setdefault(function, []).append(code)
    return found


def _functions() -> Functions:
    """Return the functions of the packages that decide, by module, class and name."""
    found: Functions = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _WATCHED:
            places = [("", vars(module))] + [(key, vars(value)) for key, value in vars(module).items() if isinstance(value, type)]
            for place, names in places:
                for key, value in list(names.items()):
                    function = getattr(value, "__func__", getattr(value, "fget", value))
                    if isinstance(function, types.FunctionType):
                        found[name, place, key] = function, function.__code__
    return found


class SuitePlugin:
    """A plugin of pytest that sends what happens to each test, and keeps the tests beside the suite out of the reach of its hooks."""

    def __init__(self, request: Mapping[str, Any], send: Send) -> None:
        self._files: list[str] = request["suite"]
        self._beside: str = request["beside"]
        self._module: str = request["module"]
        self._work = f"{request['work']}/"
        self._draft = str(Path(f"{self._module}.py").resolve())
        self._send = send
        self._defined: dict[str, Defined] = {}
        self._plain: set[str] = set()
        self._raised: dict[str, str] = {}
        self._asked_for = False
        self._before: Functions = {}
        self._modules: dict[str, types.ModuleType] = {}

    def changed(self) -> list[str]:
        """Return the names of what decides about tests and is no more what it was before the draft could be imported."""
        now = _functions()
        changed = [".".join(filter(None, place)) for place, function in self._before.items() if now.get(place) != function]
        return [name for name, module in self._modules.items() if sys.modules.get(name) is not module] + changed

    def find_spec(self, name: str, *_: object) -> None:
        """Note that the draft is imported, as a finder of modules that finds none."""
        self._asked_for = self._asked_for or name == self._module

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, None, None]:
        """Note what suite and pytest are, before any file of the suite has run."""
        for name in self._files:
            self._defined[name] = _compile(name, early_config)
            self._plain |= {f"{name}::{test}" for test in _tests(ast.parse(Path(name).read_bytes()))}
        self._watch_skips()
        self._before = _functions()
        self._modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _WATCHED}
        sys.meta_path.insert(0, self)
        self._send("begun", sorted(self._plain))
        try:
            return (yield)
        except Exception as error:
            cause = error.__cause__ or error
            file = getattr(error, "path", None)
            self._send("broken", os.path.relpath(file) if file else "", _last_lines(f"{type(cause).__name__}: {cause}"), self._where(cause))
            raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Send that a file could not be collected, or skips itself."""
        report = yield
        info = getattr(getattr(report, "call", None), "excinfo", None)
        if report.outcome != "passed":
            where = self._where(info.value) if info is not None else ""
            self._send("broken" if report.failed else "left out", self._name(report.nodeid), _message(report), where)
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Send that there is a test."""
        self._send("test", self._name(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Let the suite choose among its own tests, and put the others before and behind them."""
        beside = [item for item in items if self._beside in item.nodeid]
        items[:] = suite = [item for item in items if self._beside not in item.nodeid]
        result = yield
        for item in suite:
            if item not in items:
                self._send("deselected", self._name(item.nodeid))
        middle = len(beside) // 2
        items[:] = [*beside[:middle], *items, *beside[middle:]]
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what the setup raises."""
        return (yield from self._watch(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what the test raises."""
        result = yield from self._watch(item)
        for info in getattr(item, "_excinfo", None) or ():  # a unittest's exceptions, which pytest raises later
            self._note(item, info.value)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what pytest itself knows of an exception."""
        report = yield
        if call.excinfo is not None:
            self._note(item, call.excinfo.value)
        if call.when == "call" and self._replaced(item):
            self._raised.setdefault(item.nodeid, "it is not the test that the suite defines")
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send how a test has ended; what was raised counts, whatever the report makes of it."""
        name, raised = self._name(report.nodeid), self._raised.get(report.nodeid)
        if report.failed:
            self._send("failed", name, _message(report), str(report.when))
        elif report.skipped and type(report) is pytest.TestReport:
            by_draft = raised is not None and raised.startswith(_SKIPPED)
            self._send("failed" if by_draft else "skipped", name, raised or "", str(report.when))
        elif report.when == "call" and type(report) is pytest.TestReport:  # and not one of a part of a test
            self._send("passed" if raised is None else "failed", name, raised or "", "call")

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Send that pytest itself has failed."""
        self._send("stopped", _last_lines(f"{type(excinfo.value).__name__}: {excinfo.value}"), self._where(excinfo.value))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Send that the run was interrupted, which nothing outside of it does; pytest itself does so after an error in collection."""
        if not isinstance(excinfo.value, pytest.Session.Interrupted):
            self._send("stopped", _last_lines(f"{type(excinfo.value).__name__}: {excinfo.value}"), "draft")

    def _watch_skips(self) -> None:
        """Note the exception by which a unittest leaves itself out, of which pytest keeps only the reason."""
        add_skip = TestCaseFunction.addSkip

        def noted(item: TestCaseFunction, case: unittest.TestCase, reason: str, **options: bool) -> None:
            error = sys.exc_info()[1]
            if error is not None:
                self._note(item, error)
            add_skip(item, case, reason, **options)

        TestCaseFunction.addSkip = noted  # type: ignore[assignment, method-assign]  # there is no hook for it

    def _watch(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        except BaseException as error:
            self._note(item, error)
            raise

    def _note(self, item: pytest.Item, error: BaseException) -> None:
        """Keep the first exception of a test, and of a skip or an expected failure whether the draft is behind it."""
        if not isinstance(error, (*_LEFT_OUT, unittest.SkipTest)):
            self._raised.setdefault(item.nodeid, _last_lines(f"{type(error).__name__}: {error}"))
        elif self._where(error) == "draft":
            self._raised.setdefault(item.nodeid, f"{_SKIPPED}: {error}"[:CHARACTERS])

    def _name(self, nodeid: str) -> str:
        return nodeid.removeprefix(self._work)

    def _where(self, error: BaseException) -> str:
        """Say where an exception comes from: the draft, the suite, a module that is missing, or neither of them."""
        # The blame follows the frames. If the draft's file is in the trace, it is the draft's, and so it is
        # where the last frame has no file, as `exec` makes it. A missing module is the suite's, as is an error
        # before anybody has asked for the draft (`suite alone`): a draft cannot fail a suite that never reached
        # it. Frames of pytest itself are nobody's.
        if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, ImportError) and str(error.name).partition(".")[0] == self._module:
            return "draft"
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        outside = [file for file in files if not file.startswith("<frozen ") and not _OWN_PLACES & {*Path(file).parts}]
        if self._draft in files or (outside and not Path(outside[-1]).is_file()):
            return "draft"
        if isinstance(error, ModuleNotFoundError):
            return "missing"
        folder = str(Path(self._draft).parent)
        inside = any(file.startswith(folder) for file in files)
        return "" if not inside else "suite" if self._asked_for else "suite alone"

    def _replaced(self, item: pytest.Item) -> bool:
        """Tell whether a test is not the one that its file defines."""
        name = self._name(item.nodeid).partition("[")[0]
        file, _, test = name.partition("::")
        function = getattr(item, "function", None) or getattr(item, "obj", None)
        return name in self._plain and getattr(function, "__code__", None) not in self._defined[file].get(test, [])


def main() -> None:
    """Run the suite of the request that lies beside this file, and remove both."""
    here = Path(__file__).resolve().parent
    request = json.loads((here / "request.json").read_text())
    shutil.rmtree(here)
    os.chdir(request["work"])
    sys.path[0] = str(Path.cwd())
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    send = _sender(request.pop("key"))
    for name in request["suite"]:
        try:
            ast.parse(Path(name).read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            send("unfit", f"{name} is not Python: {error}"[:CHARACTERS])
            os._exit(0)
    suite = SuitePlugin(request, send)
    # Without `--confcutdir`, which is the folder of `-c` then, pytest collects the parent folder, which is closed.
    places = ["-c", os.devnull, "--rootdir", "..", "--confcutdir", ".."]
    flags = ["-q", "-p", "no:cacheprovider", "--tb=short", "--no-header", "--no-summary", *places]
    leave = os._exit
    code = int(pytest.main([*flags, request["beside"], *request["suite"]], plugins=[suite]))
    send("end", code, suite.changed())
    leave(0)


if __name__ == "__main__":
    main()
