"""Resources that all processes of a run use together: measured as it runs, and bounded by the kernel where control groups are delegated."""

import contextlib
import errno
import os
import stat
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gradeloop.sandbox.execution import Limits

BLOCK_BYTES = 4096
"""The size of a disk block, which an empty file counts as."""

FEWEST_FILES = 1000
"""The files that a run may have in any case."""

OF_BUBBLEWRAP = 2
"""The processes of bubblewrap itself: outside of the run's namespace and its first one inside."""


@dataclass(frozen=True)
class Run:
    """The processes of a run, as the worker sees them."""

    leader: int
    """The process that the worker has started; it leads the run's session."""
    folder: Path | None
    """The program's folder, where it is on this machine's disk."""
    in_memory: tuple[str, ...] = ()
    """The places of its own namespace to which it can write, where it has one; there an orphan stays below the leader."""

    def processes(self) -> list[int]:
        """Return the run's processes that there are now."""
        return list(_descendants(self.leader)) if self.in_memory else list(_session(self.leader))


def most_files(limits: Limits) -> int:
    """Return how many files a run may have: each takes a block at least, if it is empty, too."""
    return max(FEWEST_FILES, limits.disk_bytes // BLOCK_BYTES)


def exceeded(run: Run, limits: Limits) -> str:
    """Return which limit the processes of a run exceed together, else nothing."""
    # The sum of the processes' memory counts shared pages once for each of them, so it is never lower than the
    # real one. It is cheap, and nearly every look ends with it. Only where it exceeds the limit is the exact
    # part of each process read, which takes the kernel much longer.
    processes = run.processes() if limits.processes > 1 or run.in_memory else [run.leader]
    if len(processes) > limits.processes + (OF_BUBBLEWRAP if run.in_memory else 0):
        return f"it started more than {limits.processes} processes"
    if (used := sum(map(_resident_bytes, processes))) > limits.memory_bytes and len(processes) > 1:
        used = sum(map(_proportional_bytes, processes))
    if used > limits.memory_bytes:
        return f"MemoryError: its processes use more than {limits.memory_bytes} bytes of memory together"
    if run.folder is None:
        return _overfull_namespace(processes, run.in_memory, limits)
    return overfull(run.folder, limits, sum(_removed_files(processes, run.folder, limits).values()))


def overfull(folder: Path, limits: Limits, more_bytes: int = 0) -> str:
    """Return which limit a folder exceeds, else nothing; it reads at most as many entries as the folder may have.

    `more_bytes`: what the run has on this disk beside the folder.
    """
    most = most_files(limits)
    entries, total = 0, more_bytes
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries_here:
                for entry in entries_here:
                    entries += 1
                    with contextlib.suppress(OSError):
                        facts = entry.stat(follow_symlinks=False)
                        total += facts.st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                    if entries > most:
                        return f"it made more than {most} files"
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # below it nobody would see what is written
                return "it made folders too deep"
    return f"it wrote more than {limits.disk_bytes} bytes to disk" if total > limits.disk_bytes else ""


def _overfull_namespace(processes: list[int], places: tuple[str, ...], limits: Limits) -> str:
    """Return whether a run has too many files in its own file systems in memory, whose bytes are bounded by their size."""
    most = most_files(limits)
    for process in processes[-1:]:
        for place in places:
            with contextlib.suppress(OSError):
                facts = os.statvfs(f"/proc/{process}/root{place}")
                if facts.f_files - facts.f_ffree > most:
                    return f"it made more than {most} files"
    return ""


def _removed_files(processes: list[int], folder: Path, limits: Limits) -> dict[tuple[int, int], int]:
    """Return the bytes of files that have no name any more, but that a process has open or mapped, by device and number."""
    # A file that was removed and is still open, or mapped, takes space that no look into the folder finds. So
    # a program could fill the disk while its folder seems empty. Device and number identify the file, so that
    # one that several processes have open counts once.
    found: dict[tuple[int, int], int] = {}
    for process in processes:
        for path in _descriptors(process):
            with contextlib.suppress(OSError):
                facts = os.stat(path)  # noqa: PTH116 - pathlib would resolve a name that is none
                if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0:
                    found[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
        for number, (span, inode) in enumerate(_removed_maps(process, folder)):
            try:
                facts = os.stat(f"/proc/{process}/map_files/{span}")  # noqa: PTH116 - as above
                found[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
            except OSError:  # only root sees how large it is, so it counts as much as a file may have
                found[-1 - number, inode] = limits.disk_bytes
    return found


def _descriptors(process: int) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(f"/proc/{process}/fd")]
    except OSError:
        return []


def _removed_maps(process: int, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the addresses and the number of each removed file that a process has mapped."""
    for line in _lines(f"/proc/{process}/maps"):
        fields = line.split(maxsplit=5)
        if len(fields) > 5 and fields[5].endswith(" (deleted)") and fields[5].startswith(f"{folder}/"):  # noqa: PLR2004
            yield fields[0], int(fields[4])


def _resident_bytes(process: int) -> int:
    """Return the memory of a process that is its own, and that which it shares with others of the run."""
    return _sum_of(f"/proc/{process}/status", ("RssAnon:", "RssShmem:"))


def _proportional_bytes(process: int) -> int:
    """Return a process's part of its memory, where what it shares is divided; it is dear, so it is asked for last."""
    return _sum_of(f"/proc/{process}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) or _resident_bytes(process)


def _sum_of(path: str, names: tuple[str, ...]) -> int:
    return sum(int(line.split()[1]) * 1024 for line in _lines(path) if line.startswith(names))


def _descendants(leader: int) -> Iterator[int]:
    pending = [leader]
    while pending:
        process = pending.pop()
        yield process
        for task in _names(f"/proc/{process}/task"):
            for line in _lines(f"/proc/{process}/task/{task}/children"):
                pending += map(int, line.split())


def _session(leader: int) -> Iterator[int]:
    for name in _names("/proc"):
        if name.isdecimal():
            for line in _lines(f"/proc/{name}/stat"):
                if line.rpartition(")")[2].split()[3] == str(leader):
                    yield int(name)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - it is read twenty times a second
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - as above
            return file.read().splitlines()
    except OSError:
        return []


MOUNTED = Path("/sys/fs/cgroup")

OWN = Path("/proc/self/cgroup")

CONTROLLERS = frozenset({"memory", "pids"})
"""The controllers that a run's group needs: each bounds what a limit of one process leaves open."""

THREADS = 64
"""The threads and processes together that a run may have beside the processes that its limits grant."""

END_SECONDS = 5.0
"""The seconds within which the processes of a killed group are gone."""


class RunGroup:
    """The control group (cgroup v2) of one run, where the system has delegated one."""

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
        # The launcher may have started others before it is in the group, as bubblewrap does. A child of a
        # process in the group is born in the group. So each process is moved first and its children are listed
        # afterwards: whatever it starts between the two is inside already, and none is missed.
        pending = [process]
        while pending:
            moved = pending.pop()
            (self.path / "cgroup.procs").write_text(str(moved))
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{moved}/task"):  # noqa: PTH208 - only names
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
