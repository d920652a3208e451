"""A command that leaves nothing behind, however it ends: `python -m tests.supervised -m pytest ARGS`.

Tests start servers and workers that outlive the command that started them, as those of a user do; an interrupted run does not come to end
them. This process adopts what lost its parent, ends it after the command, and removes the folder that all of them had for temporary files.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

SET_CHILD_SUBREAPER = 36  # prctl(2): orphans become children of this process, which can then count them
FRUGAL = {"GOGC": "200", "GOMAXPROCS": "1"}
"""Settings with which Temporal's server, a program in Go, takes more memory and less processor time: each test process runs one."""
PATIENCE = 10.0
"""Seconds that what the tests left running has to end by itself."""
INTERRUPTED = 130
"""The exit code of a command that a signal ended."""


def adopt_orphans() -> None:
    """Make processes that lose their parent children of this one; elsewhere than on Linux they are not counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Return the processes whose parent is this one."""
    with suppress(OSError):
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return [int(number) for number in text.split()]
    return []


def reaped() -> float:
    """Return the CPU seconds of all children that have ended, with their own."""
    used = os.times()
    return used.children_user + used.children_system


def end_what_is_left(patience: float = PATIENCE) -> None:
    """Wait for the orphans of a command, and end those that stay."""
    until, asked = time.monotonic() + patience, False
    while children():
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > until:
            for process in children():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL if asked else signal.SIGTERM)
            until, asked = time.monotonic() + PATIENCE, True
        time.sleep(0.1)


def supervise(arguments: list[str]) -> int:
    """Run Python with these arguments in a temporary folder of its own, then end all that it started; return its exit code."""
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="gl-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)  # as the system's own: some tests run what they start as another user
        # What pytest keeps of the last runs stays where it looks for it.
        environment = {**FRUGAL, "PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir(), **os.environ, "TMPDIR": folder}
        command: subprocess.Popen[bytes] | None = None

        def interrupt(number: int, _: FrameType | None) -> None:
            if number != signal.SIGINT and command is not None:  # a terminal sends that one to the whole group
                command.send_signal(signal.SIGINT)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        command = subprocess.Popen([sys.executable, *arguments], env=environment)
        code = wait_for(command.pid)
        end_what_is_left(0 if code < 0 or code == 2 else PATIENCE)
    return code if code >= 0 else INTERRUPTED


def wait_for(pid: int) -> int:
    """Reap every child until that process has ended, and return its exit code, negative for a signal."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    raise SystemExit(supervise(sys.argv[1:]))
