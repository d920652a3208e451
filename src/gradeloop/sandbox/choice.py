"""The sandboxes of this machine: each is tested before it is trusted, and the strongest one that holds is chosen."""

import json
import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradeloop.sandbox.bubblewrap import Bubblewrap
from gradeloop.sandbox.execution import Limits, Sandbox, SandboxError, SandboxName
from gradeloop.sandbox.landlock import Landlock
from gradeloop.sandbox.monty import Monty

SandboxMode = Literal["auto", "monty", "bubblewrap", "landlock"]

SELF_TEST_SECONDS = 10.0
"""Far above what it takes, 50 ms: a slow machine is no reason to refuse a sandbox that holds."""

STORM = 200
"""Processes that the self-test tries to start; three times as many as it may."""

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
"""What a program tries; the names of what it reaches are the self-test's findings."""

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
    """How a sandbox fared in its self-test."""

    name: SandboxName
    why: str
    """Empty where it holds."""

    @property
    def held(self) -> bool:
        """True where it can be trusted."""
        return not self.why


@dataclass(frozen=True)
class SandboxChoice:
    """The sandboxes of this machine."""

    snippets: Sandbox | None
    """For Python snippets."""
    programs: Sandbox | None
    """For full CPython."""
    commands: Sandbox | None
    """For programs that may start others."""
    tried: tuple[SelfTest, ...]

    def why_not(self) -> str:
        """Say in words why there is none."""
        return "; ".join(f"{each.name}: {each.why}" for each in self.tried if each.why) or "none was tried"


def choose_sandboxes(use: SandboxMode = "auto", read_only: Sequence[str] = (), *, all_of_them: bool = False) -> SandboxChoice:
    """Return the first sandboxes that hold, of all or of the one that is wanted.

    Args:
        use: One of them by name, or `auto`: monty for snippets; bubblewrap, else Landlock, for programs.
        read_only: Further paths that programs may read.
        all_of_them: True tries those that are not needed, too, for somebody who wants to know.
    """
    known: list[Sandbox] = [Monty(), Bubblewrap(read_only), Landlock(read_only)]
    wanted = [box for box in known if use in {"auto", box.name}]
    tried: list[SelfTest] = []
    snippets: Sandbox | None = None
    programs: Sandbox | None = None
    commands: Sandbox | None = None
    for box in wanted:
        if programs is not None and commands is not None and not all_of_them:
            break
        found = self_test(box)
        tried.append(found)
        if found.held:
            snippets = snippets or box
        if found.held and box.name != "monty":
            programs = programs or box
            commands = commands or (box if bounds_processes(box) else None)
    return SandboxChoice(snippets, programs, commands, tuple(tried))


def bounds_processes(box: Sandbox) -> bool:
    """Tell whether a program that may start a few others cannot start many."""
    storm = f"i=0; while [ $i -lt {STORM} ]; do sleep 5 & i=$((i+1)); done"
    try:
        ended = box.run(["/bin/sh", "-c", storm], limits=Limits(seconds=SELF_TEST_SECONDS, processes=2))
    except SandboxError:
        return False
    return ended.status == "raised"


def self_test(box: Sandbox) -> SelfTest:
    """Attack a sandbox with canaries: a secret file, a folder, a listening socket, the worker's own environment."""
    with tempfile.TemporaryDirectory(prefix="gradeloop-canary-") as folder, socket.socket() as listener:
        Path(folder, "canary").write_text(secrets.token_hex())
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        values = f"FOLDER = {folder!r}\nPORT = {listener.getsockname()[1]}\nWORKER = {os.getpid()}\n"
        try:
            ended = box.run(values + (_SNIPPET if box.name == "monty" else _ATTEMPTS), limits=Limits(seconds=SELF_TEST_SECONDS))
        except SandboxError as error:
            return SelfTest(box.name, str(error))
        except Exception as error:  # noqa: BLE001 - a sandbox that cannot even be tried, whatever it lacks
            return SelfTest(box.name, f"{type(error).__name__}: {error}")
        if ended.status != "ok":
            return SelfTest(box.name, f"its self-test ended as {ended.status}: {ended.error}")
        reached = ended.value if box.name == "monty" else _read(ended.stdout)
        if not isinstance(reached, list):
            return SelfTest(box.name, "its self-test did not say what it reached")
        reached += ["writing outside"] if Path(folder, "written").exists() else []
        return SelfTest(box.name, f"a program reaches {', '.join(reached)}" if reached else "")


def _read(stdout: str) -> object:
    try:
        return json.loads(stdout)
    except ValueError:
        return None
