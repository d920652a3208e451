"""Several subjects on one server, each with a worker process of its own that is watched while it works."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from lab.measure import Bench, Cost, History
from lab.replies import READY
from lab.subjects import Subject

ROOT = Path(__file__).parent.parent
DEADLOCK = "TMPRL1101"
"""The SDK's rule number for a workflow task that took more than two seconds of its worker."""

_WAITED = TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START


@dataclass(frozen=True)
class Contestant:
    """What is measured: a workflow, and the command that serves it."""

    subject: Subject
    command: Sequence[str]
    """Gets the server's address appended."""


@dataclass
class Worker:
    """A worker process and what it says."""

    process: asyncio.subprocess.Process
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    lines: list[str] = field(default_factory=list)

    async def listen(self) -> None:
        """Keep its words until it ends."""
        if self.process.stdout is not None:
            async for line in self.process.stdout:
                self.lines.append(line.decode(errors="replace").rstrip())
                if self.lines[-1] == READY:
                    self.ready.set()
        self.ready.set()

    @property
    def deadlocks(self) -> int:
        """Warnings of a workflow that did not let go of its task."""
        return sum(DEADLOCK in line for line in self.lines)


@dataclass(frozen=True)
class Crowd:
    """What became of many runs at once."""

    cost: Cost
    failed_tasks: int
    """Workflow tasks that failed, or took longer than they may."""
    late_tasks: int
    """Workflow tasks that no worker took up in time, which then went to any of them."""
    deadlocks: int


@dataclass
class Measured:
    """Everything about one contestant."""

    latencies: list[float] = field(default_factory=list)
    """Seconds."""
    crowds: dict[int, list[Crowd]] = field(default_factory=dict)
    """By the number of runs in flight."""
    history: History | None = None


@dataclass(frozen=True)
class Lane:
    """A contestant at work."""

    bench: Bench
    worker: Worker
    measured: Measured = field(default_factory=Measured)

    async def alone(self) -> None:
        """Time one run."""
        self.measured.latencies.append(await self.bench.latency())

    async def together(self, many: int, runs: int) -> None:
        """Time `runs` runs, `many` of them in flight, and count the workflow tasks that failed."""
        since, warned = datetime.now(UTC), self.worker.deadlocks
        cost = await self.bench.at_once(many, runs)
        ended = [event async for event in self._task_ends(since)]
        late = sum(event.workflow_task_timed_out_event_attributes.timeout_type == _WAITED for event in ended)
        crowd = Crowd(cost, len(ended) - late, late, self.worker.deadlocks - warned)
        self.measured.crowds.setdefault(many, []).append(crowd)

    async def _task_ends(self, since: datetime) -> AsyncIterator[HistoryEvent]:
        """Yield the ends of workflow tasks that did not complete."""
        asked = f"TaskQueue = '{self.bench.subject.task_queue}' AND StartTime >= '{since.isoformat()}'"
        async for found in self.bench.client.list_workflows(asked):
            handle = self.bench.client.get_workflow_handle(found.id, run_id=found.run_id)
            async for event in handle.fetch_history_events():
                if event.event_type in {EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT}:
                    yield event


@asynccontextmanager
async def lane(contestant: Contestant, client: Client, address: str, server: int) -> AsyncIterator[Lane]:
    """Serve a contestant from a process of its own."""
    # The peer's libraries warn at every call; what they print would count as their work.
    quiet = {"PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | quiet
    pipe, out = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        *contestant.command, address, cwd=ROOT, env=environment, stdout=pipe, stderr=out, limit=1 << 24
    )
    worker = Worker(process)
    listening = asyncio.create_task(worker.listen())
    try:
        await worker.ready.wait()
        if process.returncode is not None or READY not in worker.lines:
            raise RuntimeError(f"the worker of {contestant.subject.name} does not start:\n" + "\n".join(worker.lines[-20:]))
        yield Lane(Bench(contestant.subject, client, process.pid, server), worker)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await listening
