"""A pytest suite against a draft in a sandbox: what the suite's process says is read here, where the draft is never imported."""

import hmac
import json
import secrets
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradeloop.sandbox.execution import MIB, Execution, Limits, Sandbox, SandboxError

RUNNER = Path(__file__).with_name("suite_runner.py")

WORK = "work"
"""The folder of suite and draft, below the one that belongs to the run."""

SEAL = 64
"""The characters of the seal with which a line begins."""

REPORT_BYTES = 4 * MIB
"""The bytes that the runner's lines may have beside what is printed."""

PROOF_BYTES = 512 * MIB
"""The address space that pytest has in a self-test."""

_TAKEN = {"conftest", "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "sitecustomize", "usercustomize"}
"""The names under which pytest or Python itself would import the draft, beside those of the standard library."""

_BESIDE = """import unittest


def test_{0}():
    assert {first!r} == {second!r}


def test_{1}():
    assert {first!r} == {first!r}


class Test{2}(unittest.TestCase):
    def test_{3}(self):
        self.assertEqual({first!r}, {second!r})

    def test_{4}(self):
        self.assertEqual({first!r}, {first!r})


def test_{5}():
    assert {second!r} == {first!r}


def test_{6}():
    assert {second!r} == {second!r}


class Test{7}(unittest.TestCase):
    def test_{8}(self):
        self.assertEqual({second!r}, {first!r})

    def test_{9}(self):
        self.assertEqual({second!r}, {second!r})
"""
"""Tests beside the suite, by random names: half of them must pass and half must fail, half of them run first and half last."""

_TESTS_FAILED = 1
"""pytest's exit code, which those of the tests beside the suite that must fail decide."""


class UnfitSuite(ValueError):
    """The suite is at fault, which says nothing about the draft."""


@dataclass
class SuiteRun:
    """The result of a suite."""

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """The failed tests, and why."""
    error: str = ""
    """The reason why the run as a whole has passed nothing; else empty."""

    @property
    def ok(self) -> bool:
        """Whether there was a test, and every one passed."""
        return self.passed > 0 and not self.failed and not self.error


_CHOOSERS = ("pytest_collect", "pytest_ignore_collect", "pytest_pycollect", "collect_ignore", "__test__")
"""The words by which a suite chooses among its own tests."""


class _Untrusted(Exception):
    """A run reports something else than the runner does."""


_SHAPES: dict[str, tuple[type, ...]] = {
    "unfit": (str,),
    "begun": (list,),
    "test": (str,),
    "deselected": (str,),
    "broken": (str, str, str),
    "left out": (str, str, str),
    "passed": (str, str, str),
    "skipped": (str, str, str),
    "failed": (str, str, str),
    "stopped": (str, str),
    "end": (int, list),
}
"""The runner's events, and what each of them says."""

_PROOF = {
    "test_proof.py": (
        "from draft import VALUE\n\n\ndef test_that_passes(tmp_path, capsys):\n    assert tmp_path.is_dir()\n\n\n"
        "def test_value():\n    assert VALUE == 'right'\n"
    )
}

_Events = dict[str, list[list[Any]]]


def run_suite(box: Sandbox, code: str, files: Mapping[str, str], *, module: str = "draft", limits: Limits | None = None) -> SuiteRun:
    """Run a suite, by file name, against the code of a module.

    Raises:
        UnfitSuite: The suite is not Python, lacks a module, or fails before it imports the draft.
        SandboxError: The sandbox, or pytest in it, has failed.
    """
    _refuse_names(files, module)
    limits = limits or Limits()
    # Suite and draft share a process, and the draft may try anything to look as if it passed. Three things
    # make that visible. Each line of the report is sealed by a key over all lines before it, so none can be
    # added, dropped or changed later. Tests with random names stand before and behind the suite's own, half
    # of which must fail: a draft that changes how tests are run changes these, too. And the runner says which
    # of pytest's functions are no longer what they were. A pass counts only if all three agree; a failure
    # needs no proof.
    key, beside, runner = (secrets.token_hex(size) for size in (32, 8, 8))
    names = [f"k{secrets.token_hex(8)}" for _ in range(10)]
    own = sorted(name for name in files if name.endswith(".py"))
    beside_file = f"{beside}/test_{beside}.py"
    request = {"key": key, "suite": own, "beside": f"../{beside_file}", "module": module, "work": WORK}
    given = {f"{WORK}/{name}": text for name, text in files.items()} | {
        f"{WORK}/{module}.py": code,
        beside_file: _BESIDE.format(*names, first=secrets.token_hex(8), second=secrets.token_hex(8)),
        f"{runner}/run.py": RUNNER.read_text(),
        f"{runner}/request.json": json.dumps(request),
    }
    ended = box.run(
        [sys.executable, "-E", "-s", "-B", "-X", "utf8", f"{runner}/run.py"],
        given,
        replace(limits, output_bytes=limits.output_bytes + REPORT_BYTES),
    )
    if ended.status == "limit":
        return SuiteRun(error=f"the run was stopped: {ended.error}")
    expected = _Expected(files, beside, names)
    try:
        return _judge(ended, _read_events(ended.stdout, key), expected)
    except _Untrusted as why:
        if expected.mentions("pytest_plugins", "pluginmanager"):
            raise UnfitSuite(f"a plugin of the suite is in the way of the tests that are run beside it: {why}") from None
        return SuiteRun(error=f"the run cannot be trusted: {why}")


def prove_suites(box: Sandbox, limits: Limits) -> str:
    """Run a suite that has to pass and one that has to fail; return what is wrong, which is nothing without pytest."""
    if find_spec("pytest") is None:
        return ""
    limits = replace(limits, memory_bytes=max(limits.memory_bytes, PROOF_BYTES))
    try:
        with ThreadPoolExecutor() as pool:
            good, bad = pool.map(lambda value: run_suite(box, f"VALUE = {value!r}", _PROOF, limits=limits), ("right", "wrong"))
    except SandboxError as error:
        # Without pytest nothing is wrong, as where it is installed beside the interpreter's own packages.
        return "" if "No module named 'pytest'" in str(error) else str(error)
    if not good.ok:
        return f"a suite that has to pass does not: {good.error or good.failed}"
    if bad.ok or (bad.passed, [*bad.failed]) != (1, ["test_proof.py::test_value"]):
        return f"a suite in which one test has to fail ends otherwise: {bad.error or bad.failed}"
    return ""


def _refuse_names(files: Mapping[str, str], module: str) -> None:
    if not module.isidentifier():
        raise UnfitSuite(f"module is {module!r}; give a Python name")
    if module in _TAKEN or module in sys.stdlib_module_names:
        raise UnfitSuite(f"module is {module!r}, which Python or pytest has itself; give another name")
    if f"{module}.py" in files:
        raise UnfitSuite(f"the file name '{module}.py' is taken; rename it, or the draft's module")


@dataclass(frozen=True)
class _Expected:
    """The files that a run was given, beside the draft."""

    files: Mapping[str, str]
    beside: str
    names: list[str]

    def mentions(self, *words: str) -> bool:
        """Tell whether the suite itself speaks of something."""
        return any(word in text for text in self.files.values() for word in words)

    def has(self, nodeid: str) -> bool:
        """Tell whether a node of pytest belongs to the suite's own files or folders."""
        place = nodeid.partition("::")[0]
        return any(name == place or name.startswith(f"{place}/") for name in self.files) and place != ""

    def tests_beside(self) -> dict[str, bool]:
        """Return the tests beside the suite, and whether they must pass."""
        file, names = f"{self.beside}/test_{self.beside}.py", self.names
        ids: dict[str, bool] = {}
        for at in (0, 5):
            ids |= {f"{file}::test_{names[at]}": False, f"{file}::test_{names[at + 1]}": True}
            ids |= {f"{file}::Test{names[at + 2]}::test_{names[at + 3]}": False, f"{file}::Test{names[at + 2]}::test_{names[at + 4]}": True}
        return ids


def _read_events(stdout: str, key: str) -> _Events:
    """Return the events by their first word."""
    seal = hmac.new(bytes.fromhex(key), digestmod="sha256")
    events: _Events = {word: [] for word in _SHAPES}
    for line in stdout.splitlines():
        text = line[SEAL:]
        seal.update(text.encode(errors="replace"))
        if not hmac.compare_digest(seal.hexdigest().encode(), line[:SEAL].encode(errors="replace")):
            raise _Untrusted("something else was written in the place of its report")
        event = json.loads(text)
        if [*map(type, event[1:])] != [*_SHAPES[event[0]]]:
            raise _Untrusted(f"it says {text[:100]!r}")
        events[event[0]].append(event[1:])
    return events


# Blame comes before counting. What the suite or the machine has done wrong raises, since it says nothing
# about the draft, and all else is the draft's. Only a run without failures has to be proved, since a draft
# gains nothing by a forged failure.
def _judge(ended: Execution, events: _Events, expected: _Expected) -> SuiteRun:
    for (why,) in events["unfit"]:
        raise UnfitSuite(why)
    if not events["begun"]:
        raise SandboxError(f"pytest did not start in {ended.sandbox}: {ended.stderr.strip()[-1000:] or ended.error}")
    _refuse_machinery(events, expected)
    beside = expected.tests_beside()
    failed = _failures(events, expected)
    passed = [name for name, *_ in events["passed"] if name not in beside and name not in failed]
    skipped = sum(1 for name, *_ in events["skipped"] if name not in failed)
    run = SuiteRun(len(passed), skipped, failed)
    if not events["end"] and not events["stopped"] and not events["broken"]:
        return replace(run, error=f"the run ended before its tests did: {ended.error or 'the code left the process'}")
    if not failed:
        _refuse_forgery(events, expected, passed)
        if not passed:
            run.failed["the run"] = "no test passed" if any(name not in beside for (name,) in events["test"]) else "no test was found"
    return run


def _refuse_machinery(events: _Events, expected: _Expected) -> None:
    """Raise where the draft is not to blame for what could not be collected."""
    for name, why, where in events["broken"]:
        if where in {"missing", "suite alone"}:
            raise UnfitSuite(f"{name} cannot be imported: {why}")
        if not expected.has(name):
            raise SandboxError(f"pytest cannot collect {name or 'the folder'!r}, which is not of the suite: {why}")
    for why, where in events["stopped"]:
        if not where:
            raise SandboxError(f"pytest itself failed: {why}")
        if where in {"missing", "suite alone"}:
            raise UnfitSuite(f"the suite stops pytest: {why}")


def _failures(events: _Events, expected: _Expected) -> dict[str, str]:
    """Return the tests of the suite that have not passed, and why."""
    beside = expected.tests_beside()
    failed = {name: why for name, why, _ in events["broken"]}
    failed |= {name: why for name, why, where in events["left out"] if where == "draft" or not expected.mentions("skip")}
    for name, why, when in events["failed"]:
        if name not in beside:
            failed.setdefault(name, why)
        elif when == "teardown":  # of what the whole run has set up
            failed["the end of the run"] = why
    # A draft may leave tests out to hide that it fails them. So a skip counts as one only where the suite itself
    # speaks of skipping.
    for name, *_ in events["skipped"]:
        if name not in beside and not expected.mentions("skip", "Skip", "xfail", "expectedFailure"):
            failed.setdefault(name, "it was left out, which the suite does nowhere")
    for why, _ in events["stopped"]:
        failed["the run"] = f"it was stopped: {why}"
    return {name: why.encode(errors="replace").decode() for name, why in failed.items()} or _left_out(events, expected)


def _left_out(events: _Events, expected: _Expected) -> dict[str, str]:
    """Return the tests that the suite has and that were not run."""
    if not events["end"]:
        return {}
    beside, may_choose = expected.tests_beside(), expected.mentions(*_CHOOSERS)
    known = {name for (name,) in events["test"]} - beside.keys()
    ran = {name for word in ("passed", "skipped", "failed") for name, *_ in events[word]}
    deselected = {name for (name,) in events["deselected"]}
    missing = known - ran - (deselected if may_choose else set())
    # The tests in `begun` were read from the source before the draft could be imported. One that was never
    # collected has been taken away. Where the suite chooses among its tests, nobody can tell who did that, so
    # only those that were collected have to run.
    if not may_choose:
        files = {name.partition("::")[0] for name, *_ in events["left out"]}
        found = {name.partition("[")[0] for name in known}
        missing |= {name for name in events["begun"][0][0] if name.partition("::")[0] not in files} - found
    return dict.fromkeys(sorted(missing), "it was not run")


def _refuse_forgery(events: _Events, expected: _Expected, passed: list[str]) -> None:
    """Raise where a pass may be none: the tests beside the suite did not end as they must, or pytest is not what it was."""
    for name, must_pass in expected.tests_beside().items():
        ended = [word for word in ("passed", "failed") for found, _, when in events[word] if found == name and when == "call"]
        if ended != ["passed" if must_pass else "failed"]:
            wanted = "pass" if must_pass else "fail"
            raise _Untrusted(f"a test beside the suite that has to {wanted} has not: the draft changes how tests are run")
    if len(passed) != len(set(passed)):
        raise _Untrusted("a test has two results")
    (code, changed), *more = events["end"]
    names = [str(name) for name in changed]
    if names and all(expected.mentions(name.rpartition(".")[2]) for name in names):
        raise UnfitSuite(f"the suite itself changes {names[0]}, so what the draft changes would not be seen")
    if names or more:
        raise _Untrusted(f"the draft changes {', '.join(names[:5]) or 'the end of the run'}")
    if code != _TESTS_FAILED:
        raise _Untrusted(f"pytest left with {code}, though the tests beside the suite have failed")
