"""Recorded ticks and backfills of a monitor replay on today's workflow code; `make histories` records them."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from gradeloop.monitors.contract import BackfillCall, MonitorBackfill, MonitorDefinition, Monitoring, MonitorTick
from gradeloop.monitors.overview import MonitorReader
from gradeloop.store.engine import Store
from gradeloop.temporal.server import ServerInfo
from tests.monitors.test_monitoring import watched
from tests.rig.batches import passes
from tests.rig.histories import FOLDER as HISTORIES
from tests.rig.histories import KILLED, keep, missing, mortal, read, recorder
from workflows import RUNNER
from workflows.batches.judging import WriteBackWorkflow
from workflows.monitors.monitoring import MonitorBackfillWorkflow, MonitoringWorkflow

FOLDER = HISTORIES / "monitors"


async def judged(server: ServerInfo, folder: Path) -> WorkflowHistory:
    """Run a tick that judges two runs."""
    async with watched(await recorder(server.address), folder, passes()) as monitor:
        monitor.write("a.jsonl", "a", "b")
        argument, queue = MonitorTick(monitor=monitor.name), monitor.batches.served.task_queue
        tick = await monitor.batches.client.start_workflow(Monitoring.run, argument, id="recorded-tick", task_queue=queue)
        await tick.result()
        return await tick.fetch_history()


async def backfilled(server: ServerInfo, folder: Path) -> WorkflowHistory:
    """Run a backfill that finds a run to judge."""
    async with watched(await recorder(server.address), folder, passes(), sample=0.000001) as monitor:
        monitor.write("a.jsonl", "a")
        await monitor.tick()
        call, queue = BackfillCall(monitor=monitor.name, since="2026-01-01", share=1.0), monitor.batches.served.task_queue
        backfill = await monitor.batches.client.start_workflow(MonitorBackfill.run, call, id="recorded-backfill", task_queue=queue)
        await backfill.result()
        return await backfill.fetch_history()


async def killed(_: ServerInfo, folder: Path) -> WorkflowHistory:
    """Run a tick whose worker is killed while a run is judged."""
    (runs := folder / "runs").mkdir()
    said = [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "draft 1 of it"}]
    (runs / "a.jsonl").write_text(json.dumps({"id": "a", "messages": said}) + "\n")
    async with mortal(folder) as stage:
        judge = {"rubric": "- it is good", "grader": {"model": stage.models.model("grader", "tick")}}
        source = {"kind": "folder", "path": str(runs), "quiet": 0}
        store = Store(stage.store)
        await MonitorReader(store).create(MonitorDefinition.model_validate({"name": "m", "source": source, "judge": judge}))
        store.close()
        tick = await stage.start("Monitoring", MonitorTick(monitor="m"))
        await stage.die_in(("tick", "grader 1"))
        await tick.result()
        return await tick.fetch_history()


async def written_back(server: ServerInfo, folder: Path, child: bool = False) -> WorkflowHistory:
    """Run a tick whose scores are to be written back, by a worker without a key."""
    async with watched(await recorder(server.address), folder, passes(), write_back="langfuse") as monitor:
        monitor.write("a.jsonl", "a")
        argument, queue = MonitorTick(monitor=monitor.name), monitor.batches.served.task_queue
        tick = await monitor.batches.client.start_workflow(Monitoring.run, argument, id="recorded-written-tick", task_queue=queue)
        await tick.result()
        writing = monitor.batches.client.get_workflow_handle(f"write-back/monitor/{monitor.name}/1")
        await writing.result()
        return await (writing if child else tick).fetch_history()


async def the_write_back(server: ServerInfo, folder: Path) -> WorkflowHistory:
    """Run the write-back of such a tick."""
    return await written_back(server, folder, child=True)


STORIES: dict[str, Callable[[ServerInfo, Path], Awaitable[WorkflowHistory]]] = {
    "judged": judged,
    "backfilled": backfilled,
    "written_back": written_back,
    "the_write_back": the_write_back,
    KILLED: killed,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
async def test_a_recorded_tick_or_backfill_replays(name: str, temporal_server: ServerInfo, tmp_path: Path) -> None:
    for lacking in missing(FOLDER, [name]):
        keep(FOLDER / f"{lacking}.json", await STORIES[lacking](temporal_server, tmp_path))
    (history,) = read(FOLDER / f"{name}.json").values()
    workflows = [MonitoringWorkflow, MonitorBackfillWorkflow, WriteBackWorkflow]

    await Replayer(workflows=workflows, workflow_runner=RUNNER, data_converter=pydantic_data_converter).replay_workflow(history)

    assert len(history.events) > 7
