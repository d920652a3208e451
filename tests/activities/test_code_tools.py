"""The tools that run code: what they find, what they refuse, and what no draft can forge.

The quick tests use one sandbox for programs that this machine has, the slow ones the other.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from temporalio.client import Client

from activities.tools.base import Tool, ToolContext, tool_of
from activities.tools.registry import build_rows
from gradeloop.sandbox import SandboxError, pytest_suite
from gradeloop.sandbox.choice import SandboxChoice, SandboxMode, choose_sandboxes
from gradeloop.sandbox.programs import landlock_version
from gradeloop.settings.worker import WorkerSettings
from tests.rig import forgeries
from tests.rig.tables import over
from tests.rig.threads import draft, request, serving

ROOT = Path(__file__).parents[2]

PACKAGES = Path(pytest.__file__).parent.parent
"""Where pytest is installed; an interpreter that everybody may run can have it elsewhere than below its own prefix."""


@cache
def choice_of(name: SandboxMode) -> SandboxChoice:
    """Return the choice of a machine that has this sandbox alone."""
    return choose_sandboxes(name, [str(PACKAGES)])


@dataclass(frozen=True)
class Place:
    """A worker's tools in one sandbox."""

    name: SandboxMode

    def tools(self, **settings: Any) -> dict[str, Tool]:
        """Return the built-in tools by name, under these settings."""
        offered, _ = build_rows(ToolContext(WorkerSettings(**settings), choice_of(self.name)))
        return {tool.spec.name: tool for tool in map(tool_of, offered)}

    async def call(self, name: str, arguments: dict[str, Any], text: str = "", **settings: Any) -> Any:
        """Call a tool as a model does."""
        return await self.tools(**settings)[name].run(arguments, text)


def holding(name: SandboxMode) -> Place:
    """Return a sandbox by name, if this machine has it."""
    if not choice_of(name).tried[0].passed:
        pytest.skip(f"{name} does not hold on this machine: {choice_of(name).why_not()}")
    return Place(name)


def place_of(number: int, *, of_commands: bool = False) -> Place:
    """Return a sandbox for programs that this machine has, by its place in their order."""
    tried: list[str] = []
    for name in get_args(SandboxMode):
        if name not in {"landlock", "bubblewrap"}:
            continue
        choice = choice_of(name)
        if not choice.tried[0].passed:
            tried.append(f"{name} does not hold on this machine: {choice.why_not()}")
        elif of_commands and choice.commands is None:
            tried.append(f"{name} does not bound processes here")
        elif number == 0:
            return Place(name)
        else:
            number -= 1
    pytest.skip("; ".join(tried))


ONE, OTHER = 0, pytest.param(1, marks=pytest.mark.slow)


@pytest.fixture(params=["monty", ONE, OTHER])
def snippets(request: pytest.FixtureRequest) -> Place:
    return holding("monty") if request.param == "monty" else place_of(request.param)


@pytest.fixture(params=[ONE, OTHER])
def programs(request: pytest.FixtureRequest) -> Place:
    return place_of(request.param)


@pytest.fixture(params=[ONE, OTHER])
def commands(request: pytest.FixtureRequest) -> Place:
    return place_of(request.param, of_commands=True)


class TestRunPython:
    async def test_a_snippet_comes_back_with_what_it_prints(self, snippets: Place) -> None:
        outcome = await snippets.call("run_python", {"code": "print(1 + 1)\n2 + 3"})

        assert outcome == {"status": "ok", "stdout": "2\n"} | ({"value": 5} if snippets.name == "monty" else {})

    @pytest.mark.parametrize(
        ("code", "status", "expected"),
        [
            ("1 / 0", "raised", "ZeroDivisionError"),
            ("while True:\n    pass", "limit", "TimeoutError"),
            ("x = []\nwhile True:\n    x.append('x' * 16_000_000)", "limit", "MemoryError"),
            ("open('/etc/hosts').read()", "raised", "Error"),
        ],
    )
    async def test_one_that_fails_or_takes_too_much_says_so(self, snippets: Place, code: str, status: str, expected: str) -> None:
        seconds = 2 if expected == "TimeoutError" else 60  # whatever else happens comes in its own time

        outcome = await snippets.call("run_python", {"code": code}, sandbox={"seconds": seconds})

        assert outcome["status"] == status, outcome
        assert expected in outcome["error"]

    async def test_in_a_sandbox_for_programs_it_knows_all_of_python(self, programs: Place) -> None:
        code = "import sys\nclass A(dict):\n    pass\nprint(A(x=1))\nsys.stderr.write('w')"

        assert await programs.call("run_python", {"code": code}) == {"status": "ok", "stdout": "{'x': 1}\n", "stderr": "w"}


SHAPES = """Here it is:

```python
import dataclasses


class Shape:
    def sides(self):
        raise NotImplementedError


@dataclasses.dataclass
class Square(Shape):
    side: int

    def sides(self):
        for _ in range(4):
            yield self.side

    @property
    def area(self):
        return self.side ** 2
```
"""
SUITE = {
    "test_shapes.py": (
        "import pytest\nfrom draft import Shape, Square\n\n"
        "def test_sides():\n    assert list(Square(2).sides()) == [2, 2, 2, 2]\n\n"
        "@pytest.mark.parametrize('side', [1, 2, 3])\ndef test_area(side):\n    assert Square(side).area == side ** 2\n\n"
        "def test_abstract():\n    with pytest.raises(NotImplementedError):\n        Shape().sides()\n"
    )
}


class TestRunPytest:
    async def test_a_valid_draft_with_classes_and_yield_passes(self, programs: Place) -> None:
        assert await programs.call("run_pytest", {"files": SUITE}, SHAPES) == {"ok": True, "passed": 5, "failed": {}}

    async def test_a_wrong_one_fails_by_the_tests_that_fail(self, programs: Place) -> None:
        outcome = await programs.call("run_pytest", {"files": SUITE}, SHAPES.replace("range(4)", "range(3)"))

        assert (outcome["ok"], outcome["passed"], list(outcome["failed"])) == (False, 4, ["test_shapes.py::test_sides"])
        assert outcome["failed"]["test_shapes.py::test_sides"].startswith("assert [2, 2, 2] == [2, 2, 2, 2]")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("def broken(:", "SyntaxError"),
            ("x = 1", "cannot import name 'Shape'"),
            ("raise SystemExit(0)", "it was stopped: SystemExit: 0"),
        ],
    )
    async def test_a_draft_that_does_not_import_fails(self, programs: Place, text: str, expected: str) -> None:
        found = await programs.call("run_pytest", {"files": SUITE}, text)

        assert (found["ok"], found["passed"]) == (False, 0)
        assert expected in str(found["failed"])

    @pytest.mark.parametrize(
        "text",
        [
            "import os\nos._exit(0)",
            "import os\nos.write(1, b'5 passed')\nos._exit(0)",
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "import atexit, os\nprint('{\"passed\": 5}')\nos._exit(0)",
        ],
    )
    async def test_a_draft_that_leaves_has_passed_nothing(self, programs: Place, text: str) -> None:
        found = await programs.call("run_pytest", {"files": SUITE}, text)

        assert found["ok"] is False
        assert found["error"].startswith("the run ended before its tests did: ")

    async def test_a_draft_that_never_ends_is_stopped(self, programs: Place) -> None:
        found = await programs.call("run_pytest", {"files": SUITE}, "while True:\n    pass", sandbox={"program_seconds": 1})

        assert found == {"ok": False, "error": "the run was stopped: TimeoutError: it took more than 1 seconds"}

    async def test_the_workers_secrets_and_files_are_not_there(
        self, programs: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
        (tmp_path / "secret").write_text("canary")
        suite = {
            "test_it.py": f"import os, pytest\n\ndef test_it():\n    assert 'OPENAI_API_KEY' not in os.environ\n"
            f"    with pytest.raises(OSError):\n        open({str(tmp_path / 'secret')!r})\n"
        }

        assert (await programs.call("run_pytest", {"files": suite}, "x = 1"))["ok"] is True

    async def test_a_suite_of_the_worker_is_named(self, programs: Place, tmp_path: Path) -> None:
        (tmp_path / "test_shapes.py").write_text(SUITE["test_shapes.py"])

        found = await programs.call("run_pytest", {"suite": "shapes"}, SHAPES, pytest={"suites": {"shapes": tmp_path}})

        assert found["passed"] == 5

    @over(
        ("arguments", "expected"),
        [
            ({}, "the suite has no test"),
            ({"files": {"a.py": "x = 1"}}, "the suite has no test"),
            ({"files": {"test_a.py": "def test_(:"}}, "test_a.py is not Python"),
            ({"suite": "nope"}, "there is no suite 'nope'; known: none"),
            ({"files": SUITE, "module": "a b"}, "module is 'a b'; give a Python name"),
            ({"files": SUITE | {"draft.py": "x = 1"}}, "the file name 'draft.py' is taken"),
            ({"files": {"test_a.py": "def test_a():\n    '" + "x" * 1_100_000 + "'"}}, "the suite has 1100\\d+ bytes, 1048576 at most"),
        ],
    )
    async def test_a_suite_that_is_none_is_the_suites_mistake_no_word_on_the_draft(
        self, programs: Place, arguments: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(ValueError, match=expected):
            await programs.call("run_pytest", arguments, SHAPES)

    @pytest.mark.slow
    async def test_it_serves_as_a_criterion_without_a_model(self, programs: Place, client: Client) -> None:
        check = {"tool": "run_pytest", "arguments": {"files": SUITE}}
        rubric = {"criteria": [{"id": "tests", "description": "The tests pass", "check": check}]}
        wrong = SHAPES.replace("range(4)", "range(3)")
        async with serving(client, draft(text=wrong), draft(1, SHAPES), sandboxes=choice_of(programs.name)) as served:
            result = await served.run(request(rubric, grader=None))

        assert (result.status, result.iterations) == ("satisfied", 2)
        assert "test_shapes.py::test_sides" in (result.evaluations[0].criteria[0].gap or "")


COMMANDS: dict[str, Any] = {
    "commands": {
        "count": {"argv": ["/usr/bin/wc", "-w", "draft.txt"]},
        "show": {"argv": ["/bin/cat"], "arguments": ["-n", "[a-z]+\\.txt"], "file": "code.txt", "extract": "code"},
        "shell": {"argv": ["/bin/sh", "-c", "cat /etc/passwd; echo $HOME; exit 3"]},
    }
}


class TestRunCommand:
    @pytest.mark.slow
    async def test_a_command_sees_the_draft(self, commands: Place) -> None:
        outcome = await commands.call("run_command", {"command": "count"}, "one two three", **COMMANDS)

        assert outcome == {"ok": True, "stdout": "3 draft.txt\n", "stderr": "", "exit_code": 0}

    async def test_a_further_argument_has_to_match_and_no_shell_reads_it(self, commands: Place) -> None:
        outcome = await commands.call("run_command", {"command": "show", "arguments": ["-n", "code.txt"]}, "```\na = 1\n```", **COMMANDS)

        assert outcome["stdout"].split() == ["1", "a", "=", "1"]
        for bad in ("/etc/passwd", "code.txt; ls", "$(ls)", "-nn", "code.txt\n"):
            with pytest.raises(ValueError, match="is not allowed; what matches is: "):
                await commands.call("run_command", {"command": "show", "arguments": [bad]}, "x", **COMMANDS)

    async def test_it_sees_no_settings_of_the_system(self, commands: Place) -> None:
        outcome = await commands.call("run_command", {"command": "shell"}, "x", **COMMANDS)

        assert (outcome["ok"], outcome["exit_code"]) == (False, 3)
        assert "root" not in outcome["stdout"]

    async def test_another_command_is_refused_and_the_model_is_told_which_there_are(self, commands: Place) -> None:
        with pytest.raises(ValueError, match="there is no command 'rm'; known: count, show, shell"):
            await commands.call("run_command", {"command": "rm"}, "x", **COMMANDS)
        assert "count: /usr/bin/wc -w draft.txt (draft.txt holds the draft)" in commands.tools(**COMMANDS)["run_command"].spec.description


HONEST = {
    "mine.py": "import pytest\n\n@pytest.fixture(autouse=True)\ndef always():\n    yield\n",
    "conftest.py": """
import pytest, draft

pytest_plugins = ["mine"]

@pytest.fixture(autouse=True)
def counted(request):
    assert "test_" in request.module.__name__
    yield

@pytest.fixture(scope="session")
def square():
    yield draft.Square(2)

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().sections.append(("mine", "x"))

def pytest_generate_tests(metafunc):
    if "generated" in metafunc.fixturenames:
        metafunc.parametrize("generated", [1, 2])

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name)
    items[:] = [item for item in items if "unwanted" not in item.name]
""",
    "helper.py": "from draft import Shape\n\ndef sides(shape):\n    return len(list(shape.sides()))\n",
    "data/in.json": "[2]",
    "test_all.py": """
import asyncio, functools, importlib, json, logging, os, pathlib, sys, threading, unittest, warnings
from unittest import mock
import pytest
import draft
from draft import Shape, Square
from helper import sides

def twice(function):
    @functools.wraps(function)
    def run(*arguments, **more):
        function(*arguments, **more)
        return function(*arguments, **more)
    return run

def bare(function):
    return lambda: function()

def test_square(square): assert sides(square) == 4
def test_generated(generated): assert Square(generated).area == generated ** 2
def test_folder(tmp_path, monkeypatch, request):
    assert json.load(open("data/in.json")) == [2]
    assert pathlib.Path(__file__).parent == pathlib.Path.cwd()
    (tmp_path / "x").write_text("y")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "json", None)
    assert open("x").read() == "y"
def test_output(capsys, caplog, recwarn):
    print("said")
    assert capsys.readouterr().out == "said\\n"
def test_printed(capfd):
    os.write(1, b"raw")
    print("said")
    logging.warning("logged")
    assert capfd.readouterr().out == "rawsaid\\n"
@pytest.mark.parametrize("side", [1, 2], ids=["a", "a"])
@pytest.mark.parametrize("other", [1.5, None])
def test_many(side, other): assert Square(side).side == pytest.approx(side)
@pytest.mark.skip(reason="later")
def test_later(): assert False
@pytest.mark.skipif(sys.version_info > (3,), reason="new")
def test_new(): assert False
@pytest.mark.xfail
def test_known(): assert False
@pytest.mark.xfail(raises=NotImplementedError, strict=True)
def test_abstract(): Shape().sides()
def test_imperative(): pytest.skip("now")
def test_module(): pytest.importorskip("nowhere_to_be_found")
@twice
def test_twice(): assert True
@bare
def test_bare(): assert True
@mock.patch("draft.Square.sides", return_value=[1])
def test_mocked(sides): assert Square(1).sides() == [1]
def test_reloaded(): importlib.reload(draft)
def test_threads():
    thread = threading.Thread(target=Shape)
    thread.start()
    thread.join()
def test_async(): asyncio.run(asyncio.sleep(0))
def test_warning():
    with pytest.warns(UserWarning):
        warnings.warn("x")
def test_raises():
    with pytest.raises(NotImplementedError):
        Shape().sides()
def test_subtests(subtests):
    for side in range(3):
        with subtests.test(side=side):
            assert Square(side).area == side ** 2
def test_unwanted(): assert False
def test_patched(monkeypatch): monkeypatch.setattr("_pytest.runner.show_test_item", lambda item: None)
class TestPlain:
    @pytest.fixture
    def one(self): return 1
    def setup_method(self): self.square = Square(3)
    def test_one(self, one): assert one == 1
    @staticmethod
    def test_static(): assert True
    @classmethod
    def test_class(cls): assert cls is TestPlain
class TestOuter:
    class TestInner:
        def test_inner(self): assert True
class TestUnit(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.square = Square(2)
    def setUp(self): self.sides = sides(self.square)
    def test_sides(self):
        with self.subTest("four"):
            self.assertEqual(self.sides, 4)
        with self.subTest("raises"), self.assertRaises(NotImplementedError):
            Shape().sides()
    @unittest.skip("later")
    def test_later(self): self.fail()
    def test_now(self): self.skipTest("now")
    def test_parts(self):
        with self.subTest("one"):
            self.skipTest("now")
    @unittest.expectedFailure
    def test_known(self): self.fail()
class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def test_it(self): await asyncio.sleep(0)
""",
    "deep/__init__.py": "",
    "deep/conftest.py": "import pytest\n\n@pytest.fixture\ndef deep():\n    return 1\n",
    "deep/test_deep.py": "from .test_other import other\n\ndef test_deep(deep):\n    assert other() == deep\n",
    "deep/test_other.py": "def other():\n    return 1\n",
    "test_left.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n\ndef test_never():\n    assert False\n",
}
"""A suite that uses much of what pytest has."""


BROKEN = (
    *product(("raise ValueError('draft')", "import draft.nowhere", "\0"), ("conftest.py", "test_a.py", "helper.py")),
    *(("x = 1", "test_a.py"), ("x = 1", "helper.py"), ("def broken(:", "conftest.py")),
    *(("def broken(:", "helper.py"), ("import nowhere", "conftest.py"), ("import nowhere", "test_a.py")),
)
"""Drafts that cannot be imported, and the files of the suite that import them."""


class TestSuites:
    async def test_whatever_pytest_offers_an_honest_suite_is_counted_as_it_is(self, programs: Place) -> None:
        found = await programs.call("run_pytest", {"files": HONEST}, SHAPES)

        assert found == {"ok": True, "passed": 28, "skipped": 9, "failed": {}}

    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            (
                {"test_a.py": "import nowhere\nfrom draft import Shape\n\ndef test_a():\n    pass\n"},
                "test_a.py cannot be imported: (?s:.*)nowhere",
            ),
            ({"test_a.py": "1 / 0\nfrom draft import Shape\n\ndef test_a():\n    pass\n"}, "test_a.py cannot be imported: ZeroDivision"),
            ({"conftest.py": "1 / 0", "test_a.py": "def test_a():\n    pass\n"}, "conftest.py cannot be imported: ZeroDivisionError"),
            ({"deep/conftest.py": "1 / 0", "deep/test_a.py": "def test_a():\n    pass\n"}, "deep/conftest.py cannot be imported"),
            (
                {"test_a.py": "import _pytest.nodes\n\ndef test_a():\n    _pytest.nodes.Node.add_marker = lambda *_: None\n"},
                "the suite itself changes _pytest.nodes.Node.add_marker",
            ),
            (
                {
                    "conftest.py": "pytest_plugins = ['mine']",
                    "mine.py": "import pytest\n\n@pytest.fixture(autouse=True)\ndef odd(request):\n    assert request.module.VALUE",
                    "test_a.py": "VALUE = 1\n\ndef test_a():\n    pass\n",
                },
                "a plugin of the suite is in the way of the tests that are run beside it",
            ),
        ],
    )
    async def test_a_suite_that_fails_by_itself_is_no_word_on_the_draft(
        self, programs: Place, files: dict[str, str], expected: str
    ) -> None:
        with pytest.raises(ValueError, match=expected):
            await programs.call("run_pytest", {"files": files}, SHAPES)

    @pytest.mark.parametrize(
        ("text", "file"),
        [
            ("x = 1", "conftest.py"),
            ("def broken(:", "test_a.py"),
            ("import nowhere", "helper.py"),
            *(pytest.param(text, file, marks=pytest.mark.slow) for text, file in BROKEN),
        ],
    )
    async def test_a_draft_that_cannot_be_imported_fails_wherever_the_suite_imports_it(self, programs: Place, text: str, file: str) -> None:
        files = {"test_a.py": "def test_a():\n    pass\n", "helper.py": "x = 1"} | {
            file: "from draft import Shape\n\ndef test_a():\n    pass\n"
        }

        found = await programs.call("run_pytest", {"files": files}, text)

        assert (found["ok"], found["passed"], list(found["failed"])) == (False, 0, [file])

    async def test_what_cannot_be_collected_outside_of_the_suite_is_no_word_on_the_draft(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        if not choice_of("landlock").tried[0].passed:
            pytest.skip("landlock does not hold on this machine")
        place = Place("landlock")
        runner = tmp_path / "runner.py"
        runner.write_text(pytest_suite.RUNNER.read_text().replace('"--confcutdir", ".."', ""))
        monkeypatch.setattr(pytest_suite, "RUNNER", runner)

        with pytest.raises(SandboxError, match=r"pytest cannot collect '.*', which is not of the suite: PermissionError"):
            await place.call("run_pytest", {"files": SUITE}, SHAPES)

    @over("module", ["conftest", "json", "pytest", "sitecustomize"])
    async def test_a_module_that_python_or_pytest_has_itself_is_refused(self, programs: Place, module: str) -> None:
        with pytest.raises(ValueError, match=f"module is '{module}', which Python or pytest has itself; give another name"):
            await programs.call("run_pytest", {"files": SUITE, "module": module}, SHAPES)


FORGERIES = forgeries.FORGERIES

SAMPLE = {
    "walks the frames for a descriptor and a function that writes",
    "patches the report of one test",
    "hunts for the reporter",
    "takes the tests away",
    "skips the test that fails",
    "leaves",
}
"""One forgery of each kind: by its words, the report, the reporter, the tests, their outcome, the end."""


class TestForgery:
    async def refuse(self, place: Place, forgery: str, files: dict[str, str]) -> None:
        text = forgeries.WRONG + FORGERIES[forgery]

        found = await place.call("run_pytest", {"files": files}, text)

        assert found["ok"] is False, found

    @pytest.mark.parametrize("forgery", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in FORGERIES])
    async def test_a_wrong_draft_that_forges_the_report_fails(self, programs: Place, forgery: str) -> None:
        await self.refuse(programs, forgery, forgeries.SUITE)

    @pytest.mark.slow
    @pytest.mark.parametrize("forgery", FORGERIES)
    async def test_it_does_so_in_the_words_of_unittest(self, forgery: str) -> None:
        await self.refuse(place_of(ONE), forgery, forgeries.UNITTEST)

    @pytest.mark.slow
    @pytest.mark.parametrize("suite", [forgeries.SUITE, forgeries.UNITTEST], ids=["pytest", "unittest"])
    @pytest.mark.parametrize("forgery", [name for name in FORGERIES if "skip" in name or "expects" in name])
    async def test_a_test_that_the_draft_leaves_out_fails_where_the_suite_leaves_out_others(
        self, programs: Place, forgery: str, suite: dict[str, str]
    ) -> None:
        other = "import pytest\n\n@pytest.mark.skip\ndef test_a():\n    pass\n\n@pytest.mark.xfail\ndef test_b():\n    assert False\n"

        await self.refuse(programs, forgery, {**suite, "test_other.py": other})


def everybodys_interpreter(folder: Path) -> Path:
    """Make an environment of this one's packages that every user may run, or skip where there is none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [Path(sys.executable).resolve(), *(Path(place, version) for place in ("/usr/local/bin", "/usr/bin"))]
    for needed in (PACKAGES, ROOT, folder):
        if not is_open(needed):
            pytest.skip(f"no other user can reach {needed}")
    found = next((path for path in candidates if path.exists() and is_open(path)), None)
    if found is None:
        pytest.skip(f"no other user can run a {version} of this machine")
    subprocess.run([found, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (places,) = (folder / "venv" / "lib").glob("*/site-packages")
    (places / "packages.pth").write_text(f"import site; site.addsitedir({str(PACKAGES)!r})\n")
    return folder / "venv" / "bin" / "python"


def is_open(path: Path) -> bool:
    """Tell whether every user may reach the path."""
    return all(parent.stat().st_mode & 0o001 for parent in (*path.parents, *path.resolve().parents))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_tool_runs_in_every_sandbox_as_another_user_too() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    user = 61_183
    with tempfile.TemporaryDirectory(prefix="gradeloop-user-") as made:
        folder = Path(made).resolve()
        folder.chmod(0o755)
        python = everybodys_interpreter(folder)
        (folder / "home").mkdir()
        os.chown(folder / "home", user, user)
        home = str(folder / "home")
        environment = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        chosen = "(TestRunPython or TestRunPytest or TestRunCommand or TestSuites) and not criterion"
        command = [str(python), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", chosen, __file__]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, user=user, group=user, extra_groups=()
        )

        assert done.returncode == 0, done.stdout + done.stderr
        assert "passed" in done.stdout
        assert "landlock does not hold" not in done.stdout or not landlock_version()
        assert "does not bound processes here" not in done.stdout, done.stdout
