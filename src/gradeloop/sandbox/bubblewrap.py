"""The sandbox of `bwrap`: full CPython, or any program, in namespaces of its own, without network, with a folder in memory."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from gradeloop.sandbox import cgroups
from gradeloop.sandbox.cgroups import THREADS
from gradeloop.sandbox.execution import MIB, Execution, Limits, SandboxMissing
from gradeloop.sandbox.programs import LAUNCHER, Launch, build_launch_request, interpreter, nobody, readable, supervise
from gradeloop.sandbox.seccomp import Policy

FOLDER = "/sandbox"

SHARED = "/dev/shm"  # noqa: S108 - of the program's own namespace
"""Where programs have memory in common; all of the rest of `/dev` is read-only."""

SHARED_BYTES = 8 * MIB

NOBODY = "65534"


class Bubblewrap:
    """A sandbox that runs programs in namespaces, inside of which the filter of system calls and the limits apply."""

    name: Literal["bubblewrap"] = "bubblewrap"

    def __init__(self, read_only: Sequence[str] = ()) -> None:
        self._read_only = read_only

    def run(self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        """Run a program as `Sandbox.run` says."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxMissing("bwrap is not installed; Debian and Ubuntu have it as the package bubblewrap")
        limits = limits or Limits()
        policy = Policy(processes=limits.processes > 1, signals=True)
        request = build_launch_request(program, files, limits, policy, FOLDER)
        request["limits"]["NPROC"] = limits.processes + THREADS
        user = nobody([interpreter(), sys.base_prefix, str(LAUNCHER)], bounded=cgroups.delegated() is None) if policy.processes else None
        return supervise(Launch(self.name, _prefix(bwrap, self._read_only, limits), request, user=user, in_memory=(FOLDER, SHARED)), limits)


def _prefix(bwrap: str, read_only: Sequence[str], limits: Limits) -> list[str]:
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    command += ["--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"]
    for path in [path for path in readable(read_only) if not path.startswith("/dev")] + [str(LAUNCHER)]:
        command += ["--ro-bind", path, path]
    command += ["--dev", "/dev", "--size", str(min(SHARED_BYTES, limits.disk_bytes)), "--perms", "1777", "--tmpfs", SHARED]
    command += ["--size", str(limits.disk_bytes), "--perms", "0700", "--tmpfs", FOLDER, "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", FOLDER, "--"]
