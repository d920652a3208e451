"""A recorded tick replays on today's workflow code; a missing one is recorded with `GRADELOOP_RECORD_HISTORIES=1`."""

import os
import re
from pathlib import Path

from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from gradeloop.monitors.contract import BackfillCall, MonitorBackfill, Monitoring, MonitorTick
from tests.monitors.test_monitoring import watched
from tests.rig.batches import passes
from workflows import RUNNER
from workflows.monitoring import MonitorBackfillWorkflow, MonitoringWorkflow

HISTORY = Path(__file__).parents[1] / "histories" / "monitors" / "judged.json"


async def test_a_recorded_tick_replays(client: Client, tmp_path: Path) -> None:
    if os.environ.get("GRADELOOP_RECORD_HISTORIES") and not HISTORY.exists():
        await record(client, tmp_path)
    history = WorkflowHistory.from_json("recorded-tick", HISTORY.read_text())

    await Replayer(workflows=[MonitoringWorkflow], workflow_runner=RUNNER, data_converter=pydantic_data_converter).replay_workflow(history)

    assert len(history.events) > 10


BACKFILLED = HISTORY.parent / "backfilled.json"


async def test_a_recorded_backfill_replays(client: Client, tmp_path: Path) -> None:
    if os.environ.get("GRADELOOP_RECORD_HISTORIES") and not BACKFILLED.exists():
        await record_backfill(client, tmp_path)
    history = WorkflowHistory.from_json("recorded-backfill", BACKFILLED.read_text())

    await Replayer(workflows=[MonitorBackfillWorkflow], workflow_runner=RUNNER, data_converter=pydantic_data_converter).replay_workflow(
        history
    )

    assert len(history.events) > 7


async def record_backfill(client: Client, tmp_path: Path) -> None:
    """Write the history of a backfill that finds a run to judge."""
    async with watched(client, tmp_path, passes(), sample=0.000001) as monitor:
        monitor.write("a.jsonl", "a")
        await monitor.tick()
        call, queue = BackfillCall(monitor=monitor.name, since="2026-01-01", share=1.0), monitor.batches.served.task_queue
        backfill = await client.start_workflow(MonitorBackfill.run, call, id="recorded-backfill", task_queue=queue)
        await backfill.result()
        history = (await backfill.fetch_history()).to_json()
        BACKFILLED.write_text(re.sub(r"\d+@[\w.-]+?(?=[-\"])", "recorder", history) + "\n")


async def record(client: Client, tmp_path: Path) -> None:
    """Write the history of a tick that judges two runs."""
    async with watched(client, tmp_path, passes()) as monitor:
        monitor.write("a.jsonl", "a", "b")
        queue = monitor.batches.served.task_queue
        tick = await client.start_workflow(Monitoring.run, MonitorTick(monitor=monitor.name), id="recorded-tick", task_queue=queue)
        await tick.result()
        HISTORY.parent.mkdir(exist_ok=True)
        history = (await tick.fetch_history()).to_json()
        HISTORY.write_text(re.sub(r"\d+@[\w.-]+?(?=[-\"])", "recorder", history) + "\n")
