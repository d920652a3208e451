"""What both sandboxes for whole programs share: which folders a program sees, its limits, and what the launcher is told."""

import base64
import math
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradeloop.sandbox import seccomp
from gradeloop.sandbox.execution import Limits, SandboxError

MAIN = "main.py"
"""The file that Python source is put into."""

OPEN_FILES = 256

NOBODIES = range(61184, 65520)
"""Users that nobody is, one a run, where the worker is root: systemd's range for users that come and go."""

THREADS = 64
"""Threads and processes together that a run may have beside the processes that its limits grant."""

SYSTEM = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
)
"""What a program may read of the system beside the interpreter: libraries and programs, no settings, nobody's files."""


def readable(more: Sequence[str] = ()) -> list[str]:
    """Return the paths that a program may read and execute."""
    own = [sys.base_prefix, sys.prefix, *more]
    return [path for path in dict.fromkeys([*SYSTEM, *own]) if Path(path).exists()]


def argv_of(program: str | Sequence[str]) -> list[str]:
    """Return the command: Python source is run by this interpreter, with the standard library alone.

    Raises:
        SandboxError: The command is no absolute path to a program.
    """
    if isinstance(program, str):
        return [sys.executable, "-E", "-s", "-S", "-B", "-X", "utf8", MAIN]
    argv = list(program)
    if not argv or not Path(argv[0]).is_absolute() or not os.access(argv[0], os.X_OK):
        raise SandboxError(f"{argv[0] if argv else ''!r} is no absolute path to a program")
    return argv


def asked_of(
    program: str | Sequence[str], files: Mapping[str, str] | None, limits: Limits, policy: seccomp.Policy, folder: str
) -> dict[str, Any]:
    """Return what the launcher is told, but for its confinement on files."""
    machine = seccomp.architecture()
    given = dict(files or {})
    if isinstance(program, str):
        given[MAIN] = program
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    environment = {"PATH": path, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return {
        "machine": machine,
        "argv": argv_of(program),
        "environment": environment,
        "files": _encoded(given),
        "folder": folder,
        "filter": base64.b64encode(seccomp.program(machine, policy)).decode(),
        "limits": _rlimits(limits),
        "landlock": None,
        "uid": None,
    }


def _rlimits(limits: Limits) -> dict[str, int]:
    return {
        "AS": limits.memory_bytes,
        "CPU": math.ceil(limits.seconds) + 1,
        "FSIZE": limits.disk_bytes,
        "NOFILE": OPEN_FILES,
        "CORE": 0,
    }


def nobody(paths: Sequence[str], *, bounded: bool) -> int | None:
    """Return a user that nobody is, where the worker is root and such a user can reach the paths; else None.

    Raises:
        SandboxError: The number of processes is to be bounded, and only root can reach the paths, whom no such limit binds.
    """
    if os.geteuid() != 0:
        return None
    if all(_is_open(Path(path)) and _is_open(Path(path).resolve()) for path in paths):
        return random.choice(NOBODIES)  # noqa: S311 - no secret
    if bounded:
        shut = next(path for path in paths if not (_is_open(Path(path)) and _is_open(Path(path).resolve())))
        raise SandboxError(f"the worker is root, whom no limit on processes binds, and nobody else can reach {shut}")
    return None


def _is_open(path: Path) -> bool:
    """True where anybody may go through to the path."""
    return all(each.stat().st_mode & 0o001 for each in path.parents)


def _encoded(files: Mapping[str, str] | None) -> dict[str, str]:
    """Return files as the launcher reads them."""
    for name in files or {}:
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
            raise SandboxError(f"the file name {name!r} leads out of the program's folder; give a relative one")
    return {name: base64.b64encode(text.encode(errors="replace")).decode() for name, text in (files or {}).items()}
