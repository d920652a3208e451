"""Assertions in code reach nothing, and say nothing about an output when they try: in Python, in Node and in QuickJS."""

import itertools
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradeloop.grading.code_checks import CodeCheck, code_call, read_assertion
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.code_calls import CodeCall, CodeResult, CodeSandbox, Engine, local_code_sandbox
from gradeloop.sandbox.monty import Monty
from tests.rig.attacks import HOSTILE
from tests.rig.code_attacks import JAVASCRIPT

CANARY = "canary-2b8e41"
SECONDS = 4.0

chosen = local_code_sandbox().choice


def sandbox(engine: Engine, seconds: float = 5.0) -> CodeSandbox:
    """Return the sandbox of an engine, or skip where this machine lacks it."""
    if chosen().programs is None:
        pytest.skip(f"no sandbox for programs works here: {chosen().why_not()}")
    if (engine == "node" and not shutil.which("node")) or (engine == "quickjs" and find_spec("quickjs") is None):
        pytest.skip(f"{engine} is not installed")
    return CodeSandbox(chosen, seconds=seconds, javascript=None if engine == "python" else engine)


@dataclass(frozen=True)
class Goals:
    """What attacks aim at."""

    folder: Path
    port: int
    touched: list[str]

    def front(self, *, python: bool) -> str:
        """Return the lines that name the goals."""
        values = {
            "SECRET": str(self.folder / "secret"),
            "FOLDER": str(self.folder / "canaries"),
            "PORT": self.port,
            "SOCKET": str(self.folder / "socket"),
            "WORKER": os.getpid(),
        }
        return "".join(f"{name} = {value!r}\n" if python else f"const {name} = {value!r};\n" for name, value in values.items())

    def reached(self) -> list[str]:
        """Return what attacks have reached."""
        canaries = self.folder / "canaries"
        harmed = [] if (canaries / "precious").read_text() == CANARY else ["a file of others"]
        return [*self.touched, *harmed, *(file.name for file in canaries.iterdir() if file.name != "precious")]


@pytest.fixture
def goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Goals]:
    (tmp_path / "canaries").mkdir()
    (tmp_path / "canaries" / "precious").write_text(CANARY)
    (tmp_path / "secret").write_text(CANARY)
    monkeypatch.setenv("GRADELOOP_CANARY", CANARY)
    touched: list[str] = []
    with socket.socket() as network, socket.socket(socket.AF_UNIX) as local:
        network.bind(("127.0.0.1", 0))
        monkeypatch.chdir(tmp_path)  # a socket's path has 107 characters at most
        local.bind("socket")
        for listener in (network, local):
            listener.listen()
            threading.Thread(target=_wait, args=(listener, touched), daemon=True).start()
        yield Goals(tmp_path, network.getsockname()[1], touched)


def _wait(listener: socket.socket, touched: list[str]) -> None:
    try:
        listener.accept()
    except OSError:
        return
    touched.append("a socket")


HONEST = {"javascript": "output === 'never'", "python": "output == 'never'"}


def attack(engine: Engine, code: str, goals: Goals) -> tuple[CodeResult, CodeResult]:
    """Return how an attack ended, and the honest assertion after it."""
    language = "python" if engine == "python" else "javascript"
    attacking = CodeCheck(language=language, code=goals.front(python=language == "python") + code)
    honest = CodeCheck(language=language, code=HONEST[language])
    first, second = sandbox(engine, SECONDS).call([code_call(check, "an output", {"vars": {}}) for check in (attacking, honest)])
    return first, second


CASES = [
    *(pytest.param("python", name, id=f"python: {name}") for name in HOSTILE),
    *(pytest.param(engine, name, id=f"{engine}: {name}") for engine in ("node", "quickjs") for name in JAVASCRIPT),
]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_an_attack_reaches_nothing_and_is_an_error_and_the_next_assertion_is_as_it_would_be(
    engine: Engine, name: str, goals: Goals
) -> None:
    first, second = attack(engine, (HOSTILE if engine == "python" else JAVASCRIPT)[name], goals)

    with pytest.raises(ValueError) as error:  # noqa: PT011 - whatever it is, it is not a verdict
        read_assertion(first, CodeCheck(language="python", code="x"))
    assert CANARY not in str(error.value)
    assert goals.reached() == []
    assert second == CodeResult(value=False)


@pytest.mark.parametrize("engine", ["node", "quickjs"])
def test_an_engine_is_found_however_short_a_call_may_be(engine: Engine) -> None:
    assert sandbox(engine, 0.001).engine("javascript") == engine


def test_there_are_forty_attacks_in_each_sandbox() -> None:
    assert min(len(HOSTILE), len(JAVASCRIPT)) >= 40


@pytest.mark.slow
def test_inline_javascript_returns_its_expression_or_what_it_returns(subtests: pytest.Subtests) -> None:
    rows: list[Engine] = ["node", "quickjs"]
    rows2: list[tuple[str, object]] = [
        ("output.length > 3", True),
        ("output.length > 3;", True),
        ("return output === 'hello';", True),
        ("const x = context.vars.a;\nreturn {pass: x === 1, score: 0.5, reason: 'r'};", {"pass": True, "score": 0.5, "reason": "r"}),
        ("let y = 2; y > 1", True),
        ("(output, context) => output.length + context.vars.a", 6),
        ("await Promise.resolve(0.25)", 0.25),
        ("console.log('aside'), /h.l+o/u.test(output)", True),
    ]
    for engine, (code, value) in itertools.product(rows, rows2):
        with subtests.test(engine=engine, code=code, value=value):
            call = CodeCall("javascript", code, ("hello", {"vars": {"a": 1}}))

            assert sandbox(engine).call([call]) == [CodeResult(value=value)]  # type: ignore[arg-type]  # JSON of any shape


@pytest.mark.parametrize("engine", ["node", "quickjs"])
def test_large_values_come_back_whole_however_slowly_they_are_read(engine: Engine) -> None:
    calls = [CodeCall("javascript", f"'{letter}'.repeat(900_000)", ({}, {})) for letter in "abc"]

    assert [result.value for result in sandbox(engine).call(calls)] == [letter * 900_000 for letter in "abc"]


def test_a_file_of_javascript_is_called_by_what_it_exports(subtests: pytest.Subtests) -> None:
    rows: list[Engine] = ["node", "quickjs"]
    rows2: list[tuple[str, str, str]] = [
        ("a.js", "", "module.exports = (output) => output.length;"),
        ("a.js", "", "module.exports = { default: async (output) => output.length };"),
        ("a.js", "count", "module.exports = { count: (output) => output.length };"),
        ("a.mjs", "", "const size = 0;\nexport default (output) => output.length + size;"),
    ]
    for engine, (file, function, code) in itertools.product(rows, rows2):
        with subtests.test(engine=engine, file=file, function=function, code=code):
            call = CodeCall("javascript", code, ("hello", {}), file=file, function=function)

            assert sandbox(engine).call([call]) == [CodeResult(value=5)]


def test_a_node_that_lies_in_a_folder_of_the_users_own_runs_javascript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox("node")
    (tmp_path / "bin").mkdir()
    shutil.copy(Path(shutil.which("node") or "").resolve(), node := tmp_path / "bin" / "node")
    monkeypatch.setenv("PATH", f"{node.parent}:{os.environ['PATH']}")

    assert sandbox("node").call([CodeCall("javascript", "process.execPath", (None, None))]) == [CodeResult(value=str(node))]


@pytest.mark.parametrize("engine", ["node", "quickjs"])
@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("a.ts", "enum Kind { Word = 5 }\nexport default (output: string): number => output.length === Kind.Word ? 5 : 0;"),
        ("a.cts", "interface Given { vars: object }\nmodule.exports = (output: string, given: Given) => output.length;"),
    ],
)
def test_typescript_runs_where_node_takes_its_types_out_and_says_what_it_needs_elsewhere(engine: Engine, file: str, code: str) -> None:
    (ended,) = sandbox(engine).call([CodeCall("javascript", code, ("hello", {}), file=file)])
    asked = ["node", "--print", "require('module').stripTypeScriptTypes('let a: 1')"]  # Debian builds Node without it
    able = engine == "node" and subprocess.run(asked, capture_output=True, text=True, check=False).returncode == 0

    assert ended.value == (5 if able else None)
    why = rf"{file} is TypeScript, which (needs Node 22\.13 or newer|this Node was built without); write it in JavaScript, or install "
    assert able or re.search(why, ended.error or "")


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("len(output) > 3", True),
        ("import re\nif re.match('h', output):\n    return 0.5\nreturn 0", 0.5),
        ("print('aside') or {'pass': True}", {"pass": True}),
        ("text = '''a\n  b'''\nreturn text", "a\n  b"),
    ],
)
def test_inline_python_returns_its_expression_or_what_it_returns(code: str, value: object) -> None:
    calls = [CodeCall("python", code, ("hello", {}))]

    assert sandbox("python").call(calls) == [CodeResult(value=value)]  # type: ignore[arg-type]  # JSON of any shape


def test_a_process_tests_its_sandboxes_once_for_all_folders(tmp_path: Path) -> None:
    here, there = (local_code_sandbox((tmp_path / name,)) for name in ("here", "there"))

    assert here.choice() is there.choice()


def test_without_a_sandbox_for_programs_inline_python_runs_in_monty() -> None:
    box = CodeSandbox(lambda: SandboxChoice(Monty(), None, None, ()))
    calls = [
        CodeCall("python", code, ("hello", {"vars": {"a": 1}})) for code in ("len(output)", "x = context['vars']['a']\nreturn x + 1", "1/0")
    ]

    first, second, third = box.call(calls)

    assert (first.value, second.value) == (5, 2)
    assert "ZeroDivisionError" in (third.error or "")


def test_many_calls_of_one_start_and_one_that_stops_it_are_told_apart() -> None:
    codes = ["true"] * 5 + ["process.exit(0)"] + ["false"] * 5
    ended = sandbox("node").call([CodeCall("javascript", code, (None, None)) for code in codes])

    assert [result.value for result in ended] == [True] * 5 + [None] + [False] * 5
    assert [at for at, result in enumerate(ended) if result.error] == [5]
