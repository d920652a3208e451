"""Full CPython, or any program, in namespaces of its own: no network, no other process, a folder in memory. Needs `bwrap`."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from gradeloop.sandbox.execution import Execution, Limits, SandboxError
from gradeloop.sandbox.programs import LAUNCHER, THREADS, Launch, build_launch_request, nobody, readable, supervise
from gradeloop.sandbox.seccomp import Policy

FOLDER = "/sandbox"
NOBODY = "65534"


class Bubblewrap:
    """Runs programs in namespaces; the filter of system calls and the limits apply inside of them."""

    name: Literal["bubblewrap"] = "bubblewrap"

    def __init__(self, read_only: Sequence[str] = ()) -> None:
        self._read_only = read_only

    def run(self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        """See `Sandbox.run`."""
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxError("bwrap is not installed; Debian and Ubuntu have it as the package bubblewrap")
        limits = limits or Limits()
        policy = Policy(processes=limits.processes > 1, signals=True)
        asked = build_launch_request(program, files, limits, policy, FOLDER)
        asked["limits"]["NPROC"] = limits.processes + THREADS
        user = nobody([sys.executable, sys.base_prefix, str(LAUNCHER)], bounded=True) if policy.processes else None
        return supervise(Launch(self.name, _prefix(found, self._read_only, limits), asked, user=user), limits)


def _prefix(bwrap: str, read_only: Sequence[str], limits: Limits) -> list[str]:
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    command += ["--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"]
    for path in [each for each in readable(read_only) if not each.startswith("/dev")] + [str(LAUNCHER)]:
        command += ["--ro-bind", path, path]
    command += ["--dev", "/dev", "--size", str(limits.disk_bytes), "--perms", "0700", "--tmpfs", FOLDER, "--remount-ro", "/"]
    return [*command, "--chdir", FOLDER, "--"]
