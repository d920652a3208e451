"""Hostile programs and attacks on the interpreter get nowhere, in every sandbox that this machine offers, and in a container's too."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types
import pytest

from gradeloop.sandbox import Execution, Limits, Sandbox, SandboxError, choice, programs, pytest_suite
from gradeloop.sandbox.choice import SandboxChoice, choose_sandboxes, self_test
from gradeloop.sandbox.execution import MIB, SandboxName
from gradeloop.sandbox.monty import Monty
from gradeloop.sandbox.programs import Bubblewrap, Landlock
from tests.rig.attacks import HOSTILE, INTERPRETER
from tests.rig.sandbox_host import SECONDS

CANARY = "canary-7f3a9c"
ATTACKS = HOSTILE | INTERPRETER

STALL_MS = 250.0
OVERTIME_MS = 4000.0
"""Some 200 ms on a machine that does nothing else; the tests share theirs."""

HARMLESS = {
    "everybody killed",
    "a file of others locked away",
    "its own environment",
    "a frame",
    "garbage",
    "a regular expression",
    "endless errors",
}
"""What may end well, since it reaches nobody: among its own processes, or with what it sees of itself."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Landlock, seccomp and namespaces are Linux's")


@dataclass(frozen=True)
class Host:
    """What came of all attacks on one worker in small."""

    report: dict[str, Any]
    alive: bool
    left: list[str]


@cache
def tried() -> dict[SandboxName, str]:
    """Return the sandboxes that were tried here, and why one of them does not hold."""
    return {sandbox.name: sandbox.why for sandbox in choose_sandboxes(all_of_them=True).tried}


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    @cache
    def host(place: str) -> Host:
        name = place.removesuffix(" in a container")
        if why := tried().get(name):  # type: ignore[call-overload]  # one of them
            pytest.skip(f"{name} does not hold on this machine: {why}")
        if place != name and platform.machine() != "x86_64":
            pytest.skip("the container's filter is written for x86_64")
        folder = tmp_path_factory.mktemp("attacked")
        (folder / "canaries").mkdir()
        (folder / "tmp").mkdir()
        (folder / "secret").write_text(CANARY)
        for file in ("precious", "precious.py"):
            (folder / "canaries" / file).write_text(f'"""{CANARY}"""\n')
        environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "GRADELOOP_CANARY": CANARY, "HOME": str(folder)}
        use = "auto" if place != name else name
        command = [sys.executable, str(Path(__file__).parents[1].joinpath("rig", "sandbox_host.py")), use, str(folder)]
        command += ["container"] if place != name else []
        ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=110, start_new_session=True)
        assert ended.returncode == 0, ended.stderr
        left = [
            process.info["cmdline"]
            for process in psutil.process_iter(["cmdline"])
            if str(folder) in " ".join(process.info["cmdline"] or [])
        ]
        return Host(json.loads(ended.stdout), ended.returncode == 0, [" ".join(process) for process in left])

    return host


PLACES = ["monty", "landlock", "bubblewrap", "landlock in a container"]


@linux
@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
class TestAttacks:
    @pytest.mark.parametrize("attack", ATTACKS)
    def test_gives_nothing_away_and_ends_in_time(self, attacked: Callable[[str], Host], place: str, attack: str) -> None:
        end = attacked(place).report["ends"][attack]

        assert end["status"] != "error", end
        assert not end["leaked"], end
        assert end["wall_ms"] <= SECONDS * 1000 + OVERTIME_MS, end
        assert end.get("size", 0) <= MIB
        assert end["status"] in {"raised", "limit", "unsupported"} or attack in HARMLESS, end

    def test_nobody_was_reached_and_nothing_is_left(self, attacked: Callable[[str], Host], place: str) -> None:
        host = attacked(place)

        assert host.report["reached"] == []
        assert (host.report["precious"], host.report["mode"]) == (True, 0o644)
        assert host.report["left"] == ["precious", "precious.py"]
        assert host.report["folders"] == []
        assert host.left == []

    def test_the_event_loop_goes_on(self, attacked: Callable[[str], Host], place: str) -> None:
        assert attacked(place).report["longest_stall_ms"] <= STALL_MS

    def test_the_right_one_was_chosen(self, attacked: Callable[[str], Host], place: str) -> None:
        assert attacked(place).report["chosen"] == place.removesuffix(" in a container")


def holding(name: str) -> Sandbox:
    """Return a sandbox, if it holds here."""
    if why := tried().get(name, "not for this system"):  # type: ignore[call-overload]  # one of them
        pytest.skip(f"{name} does not hold on this machine: {why}")
    return Landlock() if name == "landlock" else Bubblewrap()


@pytest.fixture(params=["landlock", "bubblewrap"])
def box(request: pytest.FixtureRequest) -> Sandbox:
    return holding(request.param)


def test_a_whole_program_runs_with_its_files(box: Sandbox) -> None:
    code = (
        "from helper import Shape\nimport dataclasses, json, threading, asyncio\n"
        "class Square(Shape):\n    def sides(self):\n        yield from range(4)\n"
        "thread = threading.Thread(target=print, args=('thread',))\nthread.start()\nthread.join()\n"
        "asyncio.run(asyncio.sleep(0))\nopen('out.txt', 'w').write('x')\nprint(len(list(Square().sides())), open('data/in.txt').read())"
    )
    files = {"helper.py": "class Shape:\n    pass\n", "data/in.txt": "é"}

    ended = box.run(code, files)

    assert (ended.status, ended.stdout, ended.stderr, ended.exit_code) == ("ok", "thread\n4 é\n", "", 0)
    assert (ended.sandbox, ended.truncated) == (box.name, False)
    assert 0 < ended.wall_ms < 5000


def test_a_programs_failure_is_its_own(box: Sandbox) -> None:
    ended = box.run("import sys\nprint('out')\nsys.exit('no')")

    assert (ended.status, ended.stdout, ended.stderr, ended.error, ended.exit_code) == ("raised", "out\n", "no\n", "no", 1)


def test_a_signal_that_ends_it_is_named(box: Sandbox) -> None:
    ended = box.run("import os\nos.abort()")

    assert (ended.status, ended.error, ended.exit_code) == ("raised", "it was ended by SIGABRT", None)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("while True:\n    pass", "TimeoutError: it took more than 0.3 seconds"),
        ("print('x' * 2_000_000)", "it printed more than 1048576 bytes"),
        ("x = bytearray(10 ** 10)", "MemoryError"),
    ],
)
def test_a_limit_says_which(box: Sandbox, code: str, expected: str) -> None:
    ended = box.run(code, limits=Limits(seconds=5 if "x" in code else 0.3))

    assert (ended.status, ended.error) == ("limit", expected)
    assert ended.truncated is ("printed" in expected)


@pytest.mark.slow
def test_a_grandchild_that_holds_the_output_open_is_not_waited_for() -> None:
    commands = choose_sandboxes().commands
    if commands is None:
        pytest.skip("no sandbox for commands holds here")

    ended = commands.run(["/bin/sh", "-c", "sleep 60 & echo done"], limits=Limits(seconds=20, processes=4))

    assert (ended.status, ended.stdout) == ("ok", "done\n")
    assert ended.wall_ms < 10_000


@pytest.mark.slow
def test_what_a_command_started_is_ended_with_it() -> None:
    commands = choose_sandboxes().commands
    if commands is None:
        pytest.skip("no sandbox for commands holds here")
    marker = "71234.5"

    commands.run(["/bin/sh", "-c", f"sleep {marker} & sleep {marker}"], limits=Limits(seconds=0.4, processes=4))

    left = [process for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or [])]
    _, alive = psutil.wait_procs(left, timeout=60)  # what is killed has no end at once on a busy machine
    running = [process for process in psutil.process_iter(["status"]) if process.info["status"] != psutil.STATUS_ZOMBIE]
    assert [process for process in alive if process in running] == []


def test_a_folder_for_temporary_files_that_is_ones_own_is_no_hindrance(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert box.run("print(open('in.txt').read())", {"in.txt": "x"}).stdout == "x\n"
    assert list(tmp_path.iterdir()) == []


def test_a_command_is_named_by_its_path(box: Sandbox) -> None:
    with pytest.raises(SandboxError, match="'ls' is not an absolute path to a program"):
        box.run(["ls"])


def test_a_file_stays_in_the_folder(box: Sandbox, subtests: pytest.Subtests) -> None:
    for name in ("../x", "/etc/x", "a/../../x", "", "."):
        with subtests.test(name=name), pytest.raises(SandboxError, match="leads out of the program's folder"):
            box.run("pass", {name: "x"})


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 3, 4, 5])
def test_older_landlocks_hold_too(version: int, tmp_path: Path) -> None:
    holding("landlock")
    old = Landlock(at_most=version)

    assert self_test(old).why == ""
    ended = old.run(f"import os\nos.kill({os.getpid()}, 0)")
    assert ended.error == "PermissionError: [Errno 1] Operation not permitted"


@pytest.mark.slow
def test_an_interpreter_path_with_two_dots_is_no_hindrance(box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = Path(sys.executable)
    (tmp_path / "link").symlink_to(executable.parent)
    for way in (f"{tmp_path}/{'../' * len(tmp_path.parts)}{executable}", f"{tmp_path}/link/../{executable.parent.name}/{executable.name}"):
        monkeypatch.setattr(sys, "executable", way.replace("//", "/"))

        assert self_test(box).why == ""
        assert box.run([sys.executable, "-c", "print(1)"]).stdout == "1\n"


def test_a_sandbox_that_is_there_and_fails_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    holding("landlock")
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no permissions to create a new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    found = choose_sandboxes()

    said = list(found.replaced())
    assert len(said) == 1
    assert said[0].startswith("the sandbox bubblewrap is there, but fails its self-test: ")
    assert "no permissions to create a new namespace" in said[0]
    assert said[0].endswith("; landlock is used instead")


@pytest.mark.slow
def test_a_sandbox_that_is_not_there_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    found = choose_sandboxes(all_of_them=True)

    assert [test.missing for test in found.tried if test.name == "bubblewrap"] == [True]
    assert not any("bubblewrap" in sentence for sentence in found.replaced())


WRITES = "import os\npart = b'x' * 1_000_000\n"
MANY = (
    "n = 0\nwhile True:\n    n += 1\n    with open(f'{folder}/f{{n}}', 'wb') as file:\n        file.write(b'x' * 1_000_000)\n"
    "    print(n * 1_000_000)\n"
)
KEEPS: dict[str, str] = {
    "files without a name": WRITES + (
        "while True:\n    fd = os.open('.', os.O_TMPFILE | os.O_RDWR)\n    for _ in range(10):\n        os.write(fd, part)\n"
    ),
    "removed files that are open": WRITES + (
        "n = 0\nwhile True:\n    n += 1\n    fd = os.open(f'f{n}', os.O_CREAT | os.O_RDWR)\n    os.unlink(f'f{n}')\n"
        "    for _ in range(10):\n        os.write(fd, part)\n"
    ),
    "removed files that are allocated": (
        "import os, time\nn = 0\nwhile True:\n    n += 1\n    fd = os.open(f'f{n}', os.O_CREAT | os.O_RDWR)\n    os.unlink(f'f{n}')\n"
        "    os.posix_fallocate(fd, 0, 10_000_000)\n    time.sleep(0.01)\n    print(n * 10_000_000)\n"
    ),
    "removed files that are mapped": WRITES + (
        "import mmap\nkept, n = [], 0\nwhile True:\n    n += 1\n    fd = os.open(f'f{n}', os.O_CREAT | os.O_RDWR)\n"
        "    for _ in range(10):\n        os.write(fd, part)\n    kept.append(mmap.mmap(fd, 4096))\n"
        "    os.unlink(f'f{n}')\n    os.close(fd)\n"
    ),
    "files in /dev": MANY.format(folder="/dev"),
    "shared memory": MANY.format(folder="/dev/shm"),
    "memory without a name": "import os\nfd = os.memfd_create('x')\nwhile True:\n    os.write(fd, b'x' * 1_000_000)\n",
    "empty files": "n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'wb').close()\n",
}  # fmt: skip


@pytest.mark.slow
def test_no_program_keeps_more_of_the_disk_than_it_may(box: Sandbox, subtests: pytest.Subtests) -> None:
    for name, program in KEEPS.items():
        with subtests.test(name=name):
            ended = box.run(program, limits=Limits(seconds=60, disk_bytes=24 * MIB))

            assert ended.status in {"limit", "raised"}
            assert "Timeout" not in ended.error
            assert "Too many open files" not in ended.error
            assert max(map(int, ended.stdout.split()), default=0) <= 1000 * MIB


def run_together(box: Sandbox, code: str) -> Execution:
    """Run a program that starts others, with the system's Python, which nobody else is kept from either."""
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("the system has no Python")
    try:
        return box.run([python, "-I", "-S", "-c", code], limits=Limits(seconds=20, memory_bytes=256 * MIB, processes=8))
    except SandboxError as error:
        pytest.skip(str(error))


def test_the_memory_of_a_run_is_bounded_whoever_uses_it(box: Sandbox) -> None:
    code = (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        kept = bytearray(os.urandom(1024)) * (60 * 1024)\n"
        "        time.sleep(20)\n        os._exit(0)\ntime.sleep(20)\n"
    )

    ended = run_together(box, code)

    assert (ended.status, ended.error) == ("limit", f"MemoryError: its processes use more than {256 * MIB} bytes of memory together")


def test_what_processes_share_is_counted_once(box: Sandbox) -> None:
    code = (
        "import os, time\nkept = bytearray(os.urandom(1024)) * (100 * 1024)\nchildren = []\nfor _ in range(6):\n    child = os.fork()\n"
        "    if child == 0:\n        time.sleep(0.5)\n        os._exit(0)\n    children.append(child)\n"
        "for child in children:\n    os.waitpid(child, 0)\nprint('done')\n"
    )

    ended = run_together(box, code)

    assert (ended.status, ended.stdout) == ("ok", "done\n")


def test_the_processes_of_a_run_are_counted(box: Sandbox) -> None:
    code = "import os, time\nfor _ in range(12):\n    if os.fork() == 0:\n        time.sleep(20)\n        os._exit(0)\ntime.sleep(20)\n"

    ended = run_together(box, code)

    assert (ended.status, ended.error) == ("limit", "it started more than 8 processes")


class Broken:
    """A sandbox that is none: it runs the program as it is."""

    name: SandboxName = "landlock"

    def run(self, program: Any, files: Any = None, limits: Any = None) -> Execution:
        ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=240)
        return Execution("ok" if ended.returncode == 0 else "raised", ended.stdout, ended.stderr)


def test_the_self_test_sees_through_a_bare_subprocess() -> None:
    answer = self_test(Broken()).why

    for reached in ("a file", "writing outside", "the network", "the worker's environment", "another process", "the worker, by a signal"):
        assert reached in answer


@pytest.mark.slow
def test_the_self_test_sees_that_pytest_cannot_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = holding("landlock")
    runner = tmp_path / "runner.py"
    runner.write_text(pytest_suite.RUNNER.read_text().replace('"--confcutdir", ".."', ""))
    monkeypatch.setattr(pytest_suite, "RUNNER", runner)

    assert re.match(r"pytest cannot collect '.*', which is not of the suite: PermissionError", self_test(box).why)


class Flattering:
    """A sandbox in which every draft is right."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self.name: SandboxName = box.name

    def run(self, program: Any, files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        return self._box.run(program, {name: text.replace("'wrong'", "'right'") for name, text in (files or {}).items()}, limits)


@pytest.mark.slow
def test_the_self_test_sees_that_a_wrong_draft_passes(box: Sandbox) -> None:
    assert self_test(Flattering(box)).why == "a suite in which one test has to fail ends otherwise: {}"


def test_where_none_holds_there_is_none_and_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LAUNCHER", Path("/nowhere/launcher.py"))
    monkeypatch.setattr(choice, "Monty", Broken)
    monkeypatch.setattr(Broken, "name", "monty")

    found = choose_sandboxes()

    assert found == SandboxChoice(None, None, None, found.tried)
    assert "monty: its self-test did not say what it reached" in found.why_not()
    assert "landlock could not confine the program" in found.why_not()


def test_monty_runs_no_programs() -> None:
    with pytest.raises(SandboxError, match="runs only Python snippets"):
        Monty().run(["/bin/ls"])
    with pytest.raises(SandboxError, match="runs only Python snippets"):
        Monty().run("1", {"a": "b"})
