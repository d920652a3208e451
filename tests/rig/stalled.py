"""Processes that are stopped, as by a laptop's lid: they hold their ports and answer nobody."""

import os
import signal
import time
from pathlib import Path


def thread_states(pid: int) -> list[str]:
    """Return what the kernel says of each thread of a process: `T` is stopped."""
    return [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]


def stall(pid: int) -> None:
    """Stop a process with its group, and return once none of its threads runs: one that does could still answer."""
    os.killpg(pid, signal.SIGSTOP)
    while any(state != "T" for state in thread_states(pid)):
        time.sleep(0.01)
