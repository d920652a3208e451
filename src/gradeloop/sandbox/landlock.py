"""The sandbox of Landlock: full CPython, or any program, behind seccomp and limits, without namespaces, so inside of containers too."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from gradeloop.sandbox import cgroups
from gradeloop.sandbox.cgroups import THREADS
from gradeloop.sandbox.execution import Execution, Limits, SandboxMissing
from gradeloop.sandbox.programs import Launch, argv_of, build_launch_request, nobody, readable, run_folder, supervise
from gradeloop.sandbox.seccomp import Policy

_CREATE_RULESET, _VERSION_ASKED = 444, 1
_SIGNALS_SCOPED = 6
"""The version of Landlock from which on it confines signals to a program's own processes."""

DEVICES = ("/dev/null",)


def version() -> int:
    """Return the version of the kernel's Landlock; 0 where it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION_ASKED)
    return max(0, int(answer))


class Landlock:
    """A sandbox that runs programs with the rights of this process, less what Landlock, seccomp and limits take away."""

    name: Literal["landlock"] = "landlock"

    def __init__(self, read_only: Sequence[str] = (), *, at_most: int | None = None) -> None:
        """Take further paths that a program may read, and for tests an older version of Landlock."""
        self._read_only = read_only
        self._version = min(version(), at_most or version())

    def run(self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        """Run a program as `Sandbox.run` says."""
        if not self._version:
            raise SandboxMissing("this kernel has no Landlock; it came with Linux 5.13")
        limits = limits or Limits()
        policy = Policy(processes=limits.processes > 1, signals=self._version >= _SIGNALS_SCOPED)
        read = readable(self._read_only)
        with run_folder() as folder:
            request = build_launch_request(program, files, limits, policy, str(folder))
            needed = [argv_of(program)[0], str(folder), *(read if isinstance(program, str) else ())]
            uid = nobody(needed, bounded=policy.processes and cgroups.delegated() is None)
            if uid is not None:
                os.chown(folder, uid, uid)
            request["uid"] = uid
            request["landlock"] = {"read": read, "write": [str(folder), *DEVICES], "version": self._version}
            if policy.processes:
                request["limits"]["NPROC"] = limits.processes + THREADS + (0 if uid is not None else _tasks())
            return supervise(Launch(self.name, (), request, folder), limits)


def _tasks() -> int:
    """Return how many threads this user has on the machine: the limit counts them all."""
    total = 0
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if status.stat().st_uid == os.geteuid():
                total += sum(1 for _ in (status / "task").iterdir())
    return total
