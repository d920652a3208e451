"""The choice of this machine's sandboxes: every one is tested, and the strongest that passes is used."""

import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gradeloop.sandbox.execution import Limits, Sandbox, SandboxError, SandboxMissing, SandboxName
from gradeloop.sandbox.monty import Monty
from gradeloop.sandbox.programs import Bubblewrap, Landlock
from gradeloop.sandbox.pytest_suite import prove_suites

SandboxMode = Literal["auto", "monty", "bubblewrap", "landlock"]

SELF_TEST_SECONDS = 10.0
"""The time limit of a self-test, far above the 50 ms that it takes: a slow machine is not a reason to refuse a safe sandbox."""

SUITE_SECONDS = 60.0
"""The time limit of a suite in a self-test; it takes half a second where nothing else runs."""

STORM = 200
"""The processes that the self-test tries to start, three times as many as it may."""

_ATTEMPTS = """
import json, os, socket
KNOWN = {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE", "PWD", "PYTHONDONTWRITEBYTECODE"}
reached = []

def attempt(name, action):
    try:
        if action():
            reached.append(name)
    except BaseException:
        pass

def child():
    number = os.fork()
    if number == 0:
        os._exit(0)
    return True

def environ_of(process):
    with open(f"/proc/{process}/environ", "rb") as file:
        return file.read()

def connected():
    with socket.create_connection(("127.0.0.1", PORT), 1):
        return True

def written():
    with open(FOLDER + "/written", "w") as file:
        return file.write("x")

attempt("a file", lambda: open(FOLDER + "/canary").read())
attempt("another folder", lambda: os.listdir(FOLDER))
attempt("writing outside", written)
attempt("the network", connected)
attempt("the worker's environment", lambda: environ_of(WORKER))
attempt("its parent's environment", lambda: environ_of(os.getppid()))
attempt("the worker, by a signal", lambda: WORKER != os.getpid() and os.kill(WORKER, 0) is None)
attempt("the worker's variables", lambda: set(os.environ) - KNOWN)
attempt("another process", child)
attempt("a session of its own", lambda: os.setsid() or True)
print(json.dumps(reached))
"""
"""The attempts of the self-test's program, which prints the names of those that succeed."""

_SNIPPET = """
reached = []
try:
    open(FOLDER + "/canary").read()
    reached.append("a file")
except BaseException:
    pass
reached
"""


@dataclass(frozen=True)
class SelfTest:
    """The result of a sandbox's self-test."""

    name: SandboxName
    why: str
    """The reason why it cannot be trusted; empty if it passed."""
    missing: bool = False
    """Whether the machine does not have it at all."""
    unbounded: str = ""
    """The reason why it cannot run commands although it passed: it does not bound how many processes they start."""

    @property
    def passed(self) -> bool:
        """Whether the sandbox can be trusted."""
        return not self.why


@dataclass(frozen=True)
class SandboxChoice:
    """The sandboxes that were chosen on this machine."""

    snippets: Sandbox | None
    """The sandbox for Python snippets."""
    programs: Sandbox | None
    """The sandbox for full CPython."""
    commands: Sandbox | None
    """The sandbox for programs that may start others."""
    tried: tuple[SelfTest, ...]

    def replaced(self) -> Iterator[str]:
        """Yield a sentence for every sandbox that is there and is not used, or not for everything, because it failed a test."""
        for test in self.tried:
            if test.why and not test.missing:
                instead = f"{self.programs.name} is used instead" if self.programs else "no other one works for programs"
                yield f"the sandbox {test.name} is there, but fails its self-test: {test.why}; {instead}"
            elif test.unbounded:
                instead = f"{self.commands.name} is used for them" if self.commands else "no other one works for them"
                yield f"the sandbox {test.name} is not used for commands: {test.unbounded}; {instead}"

    def why_not(self) -> str:
        """Return why there is no sandbox, by the self-tests that failed."""
        return "; ".join(f"{test.name}: {test.why}" for test in self.tried if test.why) or "none was tried"


def choose_sandboxes(use: SandboxMode = "auto", read_only: Sequence[str] = (), *, all_of_them: bool = False) -> SandboxChoice:
    """Return the first sandboxes that pass their self-tests.

    Args:
        use: A sandbox by name, or `auto`: monty for snippets; bubblewrap, else Landlock, for programs.
        read_only: Further paths that programs may read.
        all_of_them: Whether sandboxes that are not needed are tested too, for a report.
    """
    known: list[Sandbox] = [Monty(), Bubblewrap(read_only), Landlock(read_only)]
    wanted = [box for box in known if use in {"auto", box.name}]
    tried: list[SelfTest] = []
    snippets: Sandbox | None = None
    programs: Sandbox | None = None
    commands: Sandbox | None = None
    for box in wanted:
        # A self-test starts programs and takes its time, so the search ends with the first sandboxes that will do.
        if programs is not None and commands is not None and not all_of_them:
            break
        test = self_test(box)
        if test.passed:
            snippets = snippets or box
        if test.passed and box.name != "monty":
            test = replace(test, unbounded=why_unbounded(box))
            programs = programs or box
            commands = commands or (None if test.unbounded else box)
        tried.append(test)
    return SandboxChoice(snippets, programs, commands, tuple(tried))


# The bound is tried, not read: whether it holds depends on the kernel, the user and the container. Where it
# holds, the shell cannot fork and ends with an error. A timeout proves nothing, as 200 processes asleep end
# so, too.
def why_unbounded(box: Sandbox) -> str:
    """Return why the sandbox does not limit how many processes a program starts; empty where it does."""
    storm = f"i=0; while [ $i -lt {STORM} ]; do sleep 5 & i=$((i+1)); done"
    try:
        ended = box.run(["/bin/sh", "-c", storm], limits=Limits(seconds=SELF_TEST_SECONDS, processes=2))
    except SandboxError as error:
        return str(error)
    return "" if ended.status in {"raised", "limit"} and "Timeout" not in ended.error else f"a program starts {STORM} processes"


def self_test(box: Sandbox) -> SelfTest:
    """Test a sandbox with a program that attacks a secret file, a folder, a listening socket and the worker's environment.

    In one for programs, a suite of pytest that has to pass and one that has to fail run too.
    """
    with tempfile.TemporaryDirectory(prefix="gradeloop-canary-") as folder, socket.socket() as listener:
        Path(folder, "canary").write_text(secrets.token_hex())
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        values = f"FOLDER = {folder!r}\nPORT = {listener.getsockname()[1]}\nWORKER = {os.getpid()}\n"
        try:
            ended = box.run(values + (_SNIPPET if box.name == "monty" else _ATTEMPTS), limits=Limits(seconds=SELF_TEST_SECONDS))
        except SandboxError as error:
            return SelfTest(box.name, str(error), isinstance(error, SandboxMissing))
        except Exception as error:  # noqa: BLE001 - a sandbox that cannot even be tried, whatever it lacks
            return SelfTest(box.name, f"{type(error).__name__}: {error}")
        if ended.status != "ok":
            return SelfTest(box.name, f"its self-test ended as {ended.status}: {ended.error}")
        reached = ended.value if box.name == "monty" else _parse_reached(ended.stdout)
        if not isinstance(reached, list):
            return SelfTest(box.name, "its self-test did not say what it reached")
        # The program's own word is not enough: it may have written the file and failed to say so.
        reached += ["writing outside"] if Path(folder, "written").exists() else []
        if reached:
            return SelfTest(box.name, f"a program reaches {', '.join(reached)}")
        return SelfTest(box.name, "" if box.name == "monty" else prove_suites(box, Limits(seconds=SUITE_SECONDS)))


def _parse_reached(stdout: str) -> object:
    try:
        return json.loads(stdout)
    except ValueError:
        return None
