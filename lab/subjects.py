"""What is compared: a run of three iterations, and a bare workflow with as many activities; each has a worker process of its own.

`python -m lab.subjects NAME ADDRESS` serves one of them until it is told to stop.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from activities.tools.registry import ToolRegistry
from gradeloop.contract.thread import WORKFLOW
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.runtime import export_metrics, metrics_exporter
from gradeloop.temporal.worker_process import LoadedObjects
from lab.bare import ACTIVITIES, Bare, nothing
from worker import build

ITERATIONS = ACTIVITIES // 2
"""One `generate` and one `grade` each."""

READY = "ready"

_DRAFT = "Cherry petals drift\nover the slow green river\nspring forgets the snow"
_CRITERIA = ("it has three lines", "the lines have 5, 7 and 5 syllables", "the theme is spring")

REQUEST: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write a haiku about spring."}],
    "rubric": "\n".join(f"- {criterion}" for criterion in _CRITERIA),
    "generator": {"model": "scripted:instant"},
    "grader": {"model": "scripted:instant"},
    "max_iterations": ITERATIONS,
}


@dataclass(frozen=True)
class Subject:
    """A workflow to be started again and again."""

    name: str
    workflow: str
    arguments: list[object] = field(default_factory=list)
    queue: str | None = None
    """The queue that its worker serves; `bench-NAME` by default."""

    @property
    def task_queue(self) -> str:
        """The queue that its worker serves."""
        return self.queue or f"bench-{self.name}"


SUBJECTS = {
    "gradeloop": Subject("gradeloop", WORKFLOW, [REQUEST]),
    "bare": Subject("bare", Bare.__name__),
}


WATCHED = {name: Subject(name, WORKFLOW, [REQUEST]) for name in ("unwatched", "metrics", "sampled", "traced")}
"""The same run on workers that differ in what is exported of them."""


def _verdict(*, last: bool) -> dict[str, object]:
    gap = "" if last else "the second line has six syllables"
    rows = {f"k{at}": {"reason": "As read.", "passed": at != 2 or last, "gap": gap if at == 2 else ""} for at in (1, 2, 3)}
    return {**rows, "unjudgeable": "", "summary": "Judged line by line."}


def replies() -> Script:
    """Return instant replies of which the last draft alone passes."""
    drafts = [{"role": "generator", "iteration": at, "text": _DRAFT} for at in range(ITERATIONS)]
    verdicts = [{"role": "grader", "iteration": at, "verdict": _verdict(last=at == ITERATIONS - 1)} for at in range(ITERATIONS)]
    return Script.model_validate({"replies": [*drafts, *verdicts]})


def worker_of(client: Client, subject: Subject) -> Worker:
    """Return the subject's worker; the bare one has every setting of ours."""
    bare = subject.workflow != WORKFLOW
    settings = WorkerSettings(task_queue=f"{subject.task_queue}-settings" if bare else subject.task_queue)
    ours = build(client, Providers(Environment(), replies()), ToolRegistry(), settings)
    if not bare:
        return ours
    return Worker(**(ours.config() | {"task_queue": subject.task_queue, "workflows": [Bare], "activities": [nothing], "plugins": []}))


async def serve(subject: Subject, address: str) -> None:
    """Serve until SIGTERM."""
    export_metrics(metrics_exporter(os.environ.get("GRADELOOP_METRICS_ADDRESS"), os.environ))
    client = await connect(Connection(address, "default", embedded=True))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with worker_of(client, subject):
        with LoadedObjects().gc_freeze():  # as worker.py does
            print(READY, flush=True)
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve((SUBJECTS | WATCHED)[sys.argv[1]], sys.argv[2]))
