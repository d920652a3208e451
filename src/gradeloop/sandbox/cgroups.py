"""A control group for each run, where the system has delegated one (cgroup v2): the kernel bounds what all its processes use together."""

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gradeloop.sandbox.execution import Limits

MOUNTED = Path("/sys/fs/cgroup")

OWN = Path("/proc/self/cgroup")

CONTROLLERS = frozenset({"memory", "pids"})
"""The controllers that a run's group needs: each bounds what a limit of a process alone leaves open."""

THREADS = 64
"""The threads and processes together that a run may have beside the processes that its limits grant."""

END_SECONDS = 5.0
"""The seconds within which the processes of a killed group are gone."""


class RunGroup:
    """The control group of one run."""

    def __init__(self, path: Path) -> None:
        """Take the group's folder, which exists."""
        self.path = path

    def limit(self, limits: Limits) -> None:
        """Set the limits of the group; a run that exceeds its memory is ended as a whole."""
        (self.path / "memory.max").write_text(str(limits.memory_bytes))
        (self.path / "pids.max").write_text(str(limits.processes + THREADS))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with contextlib.suppress(OSError):  # a kernel without swap has no limit for it
                (self.path / name).write_text(value)

    def take(self, process: int) -> None:
        """Put a process and those that it has started into the group.

        Whoever is in the group starts others there, so each one's children are listed once it is.

        Raises:
            OSError: The system does not allow it.
        """
        pending = [process]
        while pending:
            moved = pending.pop()
            (self.path / "cgroup.procs").write_text(str(moved))
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{moved}/task"):  # noqa: PTH208 - names alone
                    pending += map(int, Path(f"/proc/{moved}/task/{task}/children").read_text().split())

    def exceeded(self, limits: Limits) -> str:
        """Return which limit the kernel has ended the run for, else nothing."""
        with contextlib.suppress(OSError):
            for line in (self.path / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name in {"oom_kill", "oom_group_kill"} and int(count) > 0:
                    return f"MemoryError: its processes use more than {limits.memory_bytes} bytes of memory together"
        return ""

    def remove(self) -> None:
        """Kill whatever is left in the group, and remove it; one that the kernel keeps is left empty."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return


@cache
def delegated() -> Path | None:
    """Return the group below which runs get groups of their own; None where the system has delegated none."""
    return find_delegated(MOUNTED, OWN)


def find_delegated(mounted: Path, own: Path) -> Path | None:
    """Return a group in which this process may make others that memory and processes can be bounded in.

    It is the parent of the process's own group, as with systemd's `Delegate=` and `DelegateSubgroup=`, or the own one: a group with
    processes has none with limits below it, unless it is the root.

    Args:
        mounted: Where the tree of groups is mounted.
        own: The file that names the process's own group.
    """
    try:
        name = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    group = mounted / name.lstrip("/")
    return next((place for place in (group.parent, group) if place.is_relative_to(mounted) and _can_hold_runs(place)), None)


def _can_hold_runs(group: Path) -> bool:
    """Tell whether groups can be made in a group, have both controllers, and take a process of ours."""
    probe = RunGroup(group / _name())
    try:
        missing = CONTROLLERS - set((group / "cgroup.subtree_control").read_text().split())
        if missing:
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(missing)))
        probe.path.mkdir()
        with subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE) as process:
            try:
                probe.take(process.pid)
            finally:
                process.kill()
    except OSError:
        return False
    finally:
        probe.remove()
    return set((group / "cgroup.subtree_control").read_text().replace("+", "").split()) >= CONTROLLERS


def _name() -> str:
    return f"gradeloop-{uuid.uuid4().hex}"


@contextmanager
def run_group(limits: Limits) -> Iterator[RunGroup | None]:
    """Make a group for a run, and remove it with all that is left in it; None where the system has delegated none."""
    parent = delegated()
    if parent is None:
        yield None
        return
    group = RunGroup(parent / _name())
    group.path.mkdir()
    try:
        group.limit(limits)
        yield group
    finally:
        group.remove()
