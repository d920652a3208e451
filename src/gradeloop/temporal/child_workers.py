"""Further worker processes on the queue of a worker that a command started: a Python process uses one core, whatever the machine has."""

import asyncio
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gradeloop.errors import InvalidRequest
from gradeloop.settings.endpoints import endpoint_ceilings
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.connect import WorkerSpec, application_folder
from gradeloop.text import counted

logger = logging.getLogger("gradeloop.worker")

LOOK_SECONDS, LOOKS = 1.0, 5
"""The pause between two looks, and how many in turn must find the process busy: a shorter batch is done before another process serves."""

BUSY = 0.8
"""The share of a core from which a process counts as busy: with more work it would be no faster."""

ROOM = 0.25
"""The share of a core that must be idle on the machine."""

CGROUP = Path("/sys/fs/cgroup")
"""The folder that says how much memory a container has."""


def default_processes() -> int:
    """Return how many workers a command may have: the cores of this process but one, which the server and the command itself need."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


def find_child_workers(settings: WorkerSettings, arguments: Sequence[str], may: Callable[[], bool]) -> "ChildWorkers":
    """Return the further processes of a worker: none where no command started it, or all its calls have to go through one process.

    Args:
        settings: The worker's own.
        arguments: Those of its command line.
        may: Whether what it has called so far allows another process.
    """
    here = (settings.scripted, settings.record, settings.mcp, settings.metrics_address, settings.health_address)
    is_one = any(here) or settings.limits or endpoint_ceilings(settings.providers)  # a ceiling that is counted here
    of_command = settings.until_idle is not None and not settings.until_input_ends and settings.role == "all"
    most = (settings.processes or default_processes()) if of_command and not is_one else 1
    spec = WorkerSpec(tuple(settings.tools), config=ConfigFile(settings.config, named=True) if settings.config else None)
    contents = spec.contents()

    def may_start() -> bool:  # one that read other files would serve the queue differently
        try:
            return may() and spec.contents() == contents
        except InvalidRequest:
            return False

    flags = [*arguments]
    for flag in ("--until-idle", "--ready-file"):
        if flag in flags:
            del flags[flags.index(flag) : flags.index(flag) + 2]
    return ChildWorkers([sys.executable, str(application_folder() / "worker.py"), *flags, "--until-input-ends"], most, may_start)


class Machine:
    """Looks at what this machine has left for another process, by psutil, which `gradeloop[embedded]` brings."""

    def __init__(self) -> None:
        self._used, self._looked = time.process_time(), time.monotonic()
        self.is_known = importlib.util.find_spec("psutil") is not None

    def is_busy(self) -> bool:
        """Return whether this process was busy since the last look."""
        used, now = time.process_time(), time.monotonic()
        share = (used - self._used) / max(now - self._looked, 1e-3)
        self._used, self._looked = used, now
        return share >= BUSY

    def has_room(self) -> bool:
        """Return whether a core was partly idle since the last look, and whether there is memory for two processes like this one."""
        import psutil  # type: ignore[import-untyped]  # it ships no types

        idle = (1 - psutil.cpu_percent() / 100) * (psutil.cpu_count() or 1)
        return bool(idle >= ROOM and self._memory(psutil.virtual_memory().available) >= 2 * psutil.Process().memory_info().rss)

    @staticmethod
    def _memory(available: int) -> int:
        """Return the bytes that are left, by the container's limit where it has one."""
        try:
            most, taken = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        except (OSError, ValueError):  # no container, or one without a limit
            return available
        return min(available, most - taken)


class ChildWorkers:
    """The further processes of a worker: another starts when this one has been busy for a while, and the machine has room for it.

    Each serves the same queue until its standard input ends. So none outlives this process, however that ends; each gives its calls the
    drain time then, as after any stop.

    Args:
        command: What starts one.
        most: The most processes, this one among them.
        may: Whether another may start, as far as what this worker has called is concerned.
        machine: What tells how busy process and machine are.
        pause: Seconds between two looks.
    """

    def __init__(
        self,
        command: Sequence[str],
        most: int,
        may: Callable[[], bool],
        machine: Machine | None = None,
        pause: float = LOOK_SECONDS,
    ) -> None:
        self.command, self.most, self.may = tuple(command), most, may
        self._machine, self._pause = machine or Machine(), pause
        self.processes: list[asyncio.subprocess.Process] = []

    async def start_when_busy(self) -> None:
        """Start them one after another, until it is cancelled, there are as many as allowed, or one of them ends by itself."""
        looks = 0
        while self._machine.is_known and len(self.processes) < self.most - 1:
            await asyncio.sleep(self._pause)
            busy, room = self._machine.is_busy(), self._machine.has_room()
            looks = looks + 1 if busy and room and self.may() else 0
            if gone := next((process for process in self.processes if process.returncode is not None), None):
                logger.warning("another process of this worker ended by itself, with %d; no further one starts", gone.returncode)
                return
            if looks >= LOOKS:
                looks = 0
                self.processes.append(await asyncio.create_subprocess_exec(*self.command, stdin=asyncio.subprocess.PIPE))
                logger.info("%s serve the queue now, since the first was busy", counted(len(self.processes) + 1, "process"))

    def stop(self) -> None:
        """Tell all to stop, and let them drain."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()

    async def stopped(self) -> None:
        """Wait until all have ended."""
        self.stop()
        await asyncio.gather(*(process.wait() for process in self.processes))


async def input_ended(stopped: asyncio.Event) -> None:
    """Set `stopped` once this process's standard input ends: whoever held the other side stopped it, or is gone."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass
    stopped.set()
