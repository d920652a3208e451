"""Runs of a workflow, timed: one after the other, many at once, and what they cost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

import psutil  # type: ignore[import-untyped]  # it ships no types
from temporalio.client import Client

from lab.subjects import Subject


@dataclass(frozen=True)
class Cost:
    """What a number of runs took."""

    runs: int
    seconds: float
    worker_cpu: float
    """Seconds of CPU of the worker process."""
    server_cpu: float
    """Seconds of CPU of the Temporal server."""
    caller_cpu: float
    """Seconds of CPU of this process, which asks."""

    @property
    def rate(self) -> float:
        """Runs a second."""
        return self.runs / self.seconds


@dataclass(frozen=True)
class History:
    """What a run leaves in the server."""

    events: int
    bytes: int


@dataclass(frozen=True)
class Bench:
    """A subject with its worker, on the server that all subjects share."""

    subject: Subject
    client: Client
    worker: int
    """The worker's process id."""
    server: int
    """The server's process id."""

    async def run(self) -> str:
        """Run the subject once and return the workflow's id."""
        name = f"{self.subject.name}-{uuid4()}"
        queue = self.subject.task_queue
        await self.client.execute_workflow(self.subject.workflow, args=self.subject.arguments, id=name, task_queue=queue)
        return name

    async def latency(self) -> float:
        """Return the seconds of one run."""
        began = time.perf_counter()
        await self.run()
        return time.perf_counter() - began

    async def history(self) -> History:
        """Return what one run leaves behind."""
        described = await self.client.get_workflow_handle(await self.run()).describe()
        info = described.raw_description.workflow_execution_info
        return History(info.history_length, info.history_size_bytes)

    async def at_once(self, many: int, runs: int) -> Cost:
        """Return the cost of `runs` runs, `many` of them in flight."""
        gate = asyncio.Semaphore(many)

        async def one() -> None:
            async with gate:
                await self.run()

        return await self.cost(runs, lambda: asyncio.gather(*(one() for _ in range(runs))))

    async def cost(self, runs: int, work: Callable[[], Awaitable[object]]) -> Cost:
        """Do some work of `runs` runs, and return its cost."""
        worker, server, caller = _cpu(self.worker), _cpu(self.server), time.process_time()
        began = time.perf_counter()
        await work()
        seconds = time.perf_counter() - began
        return Cost(runs, seconds, _cpu(self.worker) - worker, _cpu(self.server) - server, time.process_time() - caller)


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
