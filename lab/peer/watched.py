"""A command that is watched while it runs: its time, the CPU of its whole process tree, and the most memory that the tree held."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types

EVERY = 0.1
"""Seconds between two looks at the memory: each costs about a millisecond."""

_TOLD = 2000


@dataclass(frozen=True)
class Watched:
    """What a command took."""

    seconds: float
    cpu: float
    """Seconds, of the process and of all children that it waited for, as the kernel counts them."""
    megabytes: float
    """The most that the tree held, RSS added up; pages that processes share count once for each."""
    exit_code: int
    output: str
    """Both streams."""

    def must(self, *expected: int) -> "Watched":
        """Return itself where the exit code is an expected one.

        Raises:
            RuntimeError: It is another; the message ends with what the command said.
        """
        if self.exit_code not in expected:
            raise RuntimeError(f"it ended with {self.exit_code}, and says:\n{self.output[-_TOLD:]}")
        return self


def watched(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Watched:
    """Run a command to its end in this folder."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        with subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as process:
            most, (ended, status, usage) = 0, os.wait4(process.pid, os.WNOHANG)
            while not ended:
                most = max(most, _held(process.pid))
                time.sleep(EVERY)
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.perf_counter() - began
        said.seek(0)
        text = said.read().decode(errors="replace")
    return Watched(seconds, usage.ru_utime + usage.ru_stime, most / 1024**2, process.returncode, text)


def _held(pid: int) -> int:
    """Return the bytes of a process and its children; of those that end meanwhile nothing."""
    held = 0
    try:
        root = psutil.Process(pid)
        for child in (root, *root.children(recursive=True)):
            held += child.memory_info().rss
    except psutil.NoSuchProcess:
        return held
    return held
