"""Recorded histories: `make histories` records those that are missing; whoever deletes one has it recorded anew."""

import json
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner

from rig.counting_server import CountingServer
from rig.processes import Engine, WorkerProcess, engine_in
from workflows.visibility import TenantAttribute

FOLDER = Path(__file__).parents[1] / "histories"

KILLED = "killed"
"""The story of each kind of workflow whose worker is killed in the middle of a call, and that another worker brings to its end."""


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the stories that are to be recorded: those without a recording, where that is asked for."""
    recording = bool(os.environ.get("GRADELOOP_RECORD_HISTORIES"))
    return [name for name in names if recording and not (folder / f"{name}.json").exists()]


async def recorder(address: str) -> Client:
    """Return a client of the server for recording, which names no machine."""
    return await Client.connect(address, identity="recorder", data_converter=pydantic_data_converter)


def keep(file: Path, recorded: WorkflowHistory | Mapping[str, WorkflowHistory]) -> None:
    """Write down a history, or several by name; processes and machines are left out."""
    if isinstance(recorded, WorkflowHistory):
        found = recorded.to_json_dict()
    else:
        found = {name: history.to_json_dict() for name, history in recorded.items()}
    text = json.dumps(_without_traces(found), indent=1, ensure_ascii=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r"\d+@[\w.-]+?(?=[-\"])", "recorder", text) + "\n")


def read(file: Path) -> dict[str, WorkflowHistory]:
    """Return the recorded histories of a file, by name; that of a file with only one has none."""
    kept = json.loads(file.read_text())
    several = {"": kept} if "events" in kept else kept
    return {name: WorkflowHistory.from_json(f"recorded-{file.stem}", one) for name, one in several.items()}


def _without_traces(part: Any) -> Any:
    """Return a history's JSON without stack traces, which name the recorder's files."""
    if isinstance(part, dict):
        return {key: _without_traces(value) for key, value in part.items() if key != "stackTrace"}
    return [_without_traces(value) for value in part] if isinstance(part, list) else part


async def differences(
    workflows: Sequence[type], histories: Mapping[str, WorkflowHistory], runner: WorkflowRunner | None = None
) -> dict[str, str]:
    """Replay histories with one worker, and return why those differ that do.

    Args:
        workflows: The workflows' code.
        histories: The histories by name.
        runner: A sandbox, which loads `workflows` anew for each history; without one they replay as a worker runs them.
    """

    async def each() -> AsyncIterator[WorkflowHistory]:
        for history in histories.values():
            yield history

    replayer = Replayer(
        workflows=workflows,
        workflow_runner=runner or UnsandboxedWorkflowRunner(),
        data_converter=pydantic_data_converter,
        interceptors=[TenantAttribute(registered=True)],
    )
    names, found = {id(history): name for name, history in histories.items()}, {}
    async with replayer.workflow_replay_iterator(each()) as results:
        async for result in results:
            found[names.pop(id(result.history))] = str(result.replay_failure or "")
    assert not names, f"never replayed: {', '.join(names.values())}"
    return {name: why for name, why in found.items() if why}


def attempts(history: WorkflowHistory) -> list[int]:
    """Return the attempts of a history's activities that ended, in order."""
    starts = (event.activity_task_started_event_attributes for event in history.events)
    return [start.attempt for start in starts if start.attempt]


@dataclass
class Mortal:
    """A worker process that can be killed, its models, and its server."""

    engine: Engine
    client: Client
    models: CountingServer
    queue: str
    store: str
    worker: WorkerProcess
    id: str = f"recorded-{KILLED}"
    """The id of the workflow."""

    async def start(self, workflow: str, argument: object, **options: Any) -> WorkflowHandle[Any, Any]:
        """Start a workflow."""
        return await self.client.start_workflow(workflow, argument, **{"id": self.id, "task_queue": self.queue} | options)

    async def die_in(self, *calls: tuple[str, str], times: int = 1) -> None:
        """Kill the worker when all of these calls are in flight, by thread and name and so many of each, and start another one."""
        gates = [self.models.hold(f"{thread} {name}") for thread, name in calls]
        for thread, name in calls:
            await self.models.called(thread, name, times)
        self.worker.kill()
        for gate in gates:
            gate.open.set()
        await self.worker.start()


@asynccontextmanager
async def mortal(folder: Path) -> AsyncIterator[Mortal]:
    """Serve a queue by a process, with a server, a store and models of its own."""
    models, queue, store = CountingServer(), f"killed-{uuid4()}", f"sqlite:///{folder / 'results.db'}"
    await models.start()
    try:
        async with engine_in(folder) as engine:
            worker = await WorkerProcess(engine, queue, models.url, variables={"GRADELOOP_STORE": store}).start()
            stage = Mortal(engine, await engine.client(), models, queue, store, worker)
            try:
                yield stage
            finally:
                stage.worker.kill()
    finally:
        await models.close()
