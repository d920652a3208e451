"""Every path on which a tenant's calls are made: its workflows are listed by it, its calls are charged to it and take their turns by it."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from activities.calls.tenant_budgets import TenantBudgets
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchRequest, Case
from gradeloop.batches.judge_many import judge_many
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.thread import TENANT_ATTRIBUTE, Priority, tenant_value
from gradeloop.contract.transcript import AgentRun
from gradeloop.grading.cache_key import tenant_digits
from gradeloop.judges.client import Judge
from gradeloop.monitors.contract import BackfillCall, MonitorBackfill, MonitorDefinition, Monitoring, MonitorTick
from gradeloop.monitors.overview import MonitorReader
from gradeloop.temporal.histories import WorkflowRun, find_runs
from tests.batches.test_comparisons import chooses, three
from tests.rig.batches import JUDGE, Batches, batching, case, drafted, fails, passes
from tests.rig.judging import FRANCE, MATCH, PARIS, answers
from tests.rig.threads import Reply, request
from workflows.batches.grading_batch import BatchShard, GradingBatchWorkflow, StoreCasesWorkflow
from workflows.batches.judging import JudgingWorkflow
from workflows.grading_thread import GradingThreadWorkflow
from workflows.monitors.monitoring import MonitorBackfillWorkflow, MonitoringWorkflow
from workflows.visibility import TenantAttribute

MONITORS = (MonitoringWorkflow, MonitorBackfillWorkflow)
WRITES = [{"role": "generator", "text": "a draft", "iteration": at} for at in (0, 1)]


def priority(tenant: str) -> dict[str, Any]:
    return {"priority": {"level": 2, "tenant": tenant}}


async def a_thread_that_revises(batches: Batches, tenant: str) -> None:
    rubric = {"criteria": ["it is good"]}
    given = request(rubric, {"role": "user", "content": "hi"}, grader=JUDGE, max_iterations=2, **priority(tenant))
    await batches.served.run(given)


async def a_thread_whose_generator_is_a_workflow(batches: Batches, tenant: str) -> None:
    queue = f"theirs-{uuid4()}"
    async with Worker(batches.client, task_queue=queue, workflows=[Drafts], workflow_runner=UnsandboxedWorkflowRunner()):
        given = request({"criteria": ["it is good"]}, {"role": "user", "content": "hi"}, grader=JUDGE, **priority(tenant))
        await batches.served.run(given | {"generator": {"workflow": "Drafts", "task_queue": queue}})


async def a_judgement_that_is_repaired(batches: Batches, tenant: str) -> None:
    judge = Judge(FRANCE, batches.client, task_queue=batches.served.task_queue, priority=Priority(level=2, tenant=tenant))
    await judge(PARIS)


async def judgements_in_a_batch(batches: Batches, tenant: str) -> None:
    judge = Judge(FRANCE, batches.client, task_queue=batches.served.task_queue, priority=Priority(level=2, tenant=tenant))
    await judge_many(judge, [AgentRun.model_validate(PARIS)], lambda _: None, store=batches.store)


async def a_batch_with_loops(batches: Batches, tenant: str) -> None:
    known = BatchClient(batches.client, batches.served.task_queue)
    cases = [case("a"), drafted("b"), drafted("c", loop=True, max_iterations=2)]
    name = f"batch-{uuid4()}"
    await known.upload(name, [Case.model_validate(one) for one in cases], tenant=tenant)
    await known.start(BatchRequest(batch_id=name, total=len(cases), priority=Priority(level=2, tenant=tenant)))
    await known.result(name)


async def outputs_compared_by_a_model(batches: Batches, tenant: str) -> None:
    await batches.run(three(), **priority(tenant))


async def a_monitor(batches: Batches, tenant: str) -> None:
    name, folder = f"m-{uuid4().hex[:8]}", batches.store.file.parent / "runs" if batches.store.file else Path()
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps({"id": "r", "messages": PARIS["transcripts"][0]["messages"]}) + "\n")
    judge = {"rubric": "- it is good", "grader": JUDGE}
    source = {"kind": "folder", "path": str(folder), "quiet": 0}
    definition = MonitorDefinition.model_validate({"name": name, "source": source, "judge": judge, "tenant": tenant})
    await MonitorReader(batches.store).create(definition)
    queue, own = batches.served.task_queue, definition.priority
    await batches.client.execute_workflow(
        Monitoring.run, MonitorTick(monitor=name, priority=own), id=f"monitor/{name}-{uuid4()}", task_queue=queue
    )
    call = BackfillCall(monitor=name, since="2026-01-01", preview=True, priority=own)
    await batches.client.execute_workflow(MonitorBackfill.run, call, id=f"monitor/{name}/backfill", task_queue=queue)


@workflow.defn
class Drafts:
    """Somebody's workflow that drafts."""

    @workflow.run
    async def run(self, _: dict[str, Any]) -> str:
        return "their draft"


PATHS: dict[Callable[[Batches, str], Awaitable[None]], tuple[set[str], list[Reply]]] = {
    a_thread_that_revises: ({"GradingThread"}, [fails(iteration=0), passes(iteration=1), *WRITES]),
    a_thread_whose_generator_is_a_workflow: ({"GradingThread", "Drafts"}, [passes()]),
    a_judgement_that_is_repaired: ({"Judging"}, [answers("no answer"), answers(MATCH, step=1)]),
    judgements_in_a_batch: ({"GradingBatch", "BatchShard", "StoreCases"}, [answers(MATCH)]),
    a_batch_with_loops: (
        {"GradingBatch", "BatchShard", "StoreCases", "GradingThread"},
        [fails("Write c", iteration=0), passes("Write c", iteration=1), passes(), *WRITES],
    ),
    outputs_compared_by_a_model: ({"GradingBatch", "BatchShard"}, chooses("2", "2")),
    a_monitor: ({"Monitoring", "MonitorBackfill", "GradingBatch", "BatchShard"}, [passes()]),
}
"""Each path with the types of its workflows, and what the models say."""


@pytest.mark.parametrize("path", [pytest.param(path, id=path.__name__) for path in PATHS])
async def test_whatever_is_done_for_a_tenant_is_listed_charged_and_keyed_by_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Callable[[Batches, str], Awaitable[None]]
) -> None:
    types, replies = PATHS[path]
    tenant, counted = f"acme's %_\\ ä {uuid4().hex[:8]}", list[str]()
    really = TenantBudgets.count

    async def count(budgets: TenantBudgets, whose: str, usage: Usage) -> None:
        counted.append(whose)
        await really(budgets, whose, usage)

    monkeypatch.setattr(TenantBudgets, "count", count)
    async with batching(client, tmp_path, *replies, tenant_budgets={"*": Budget(max_tokens=10**9)}) as batches:
        await path(batches, tenant)
        queue, requests = batches.served.task_queue, len(batches.served.models.requests)
        named = await find_runs(client, f"{TENANT_ATTRIBUTE} = '{tenant_value(tenant)}'")
        ours = await find_runs(client, f"TaskQueue = '{queue}'")
        keys = {key for run in named for key in await fairness_keys(client, run)}
        known = batches.store.do(lambda connection: connection.execute(text("SELECT key FROM verdicts")).scalars().all())
        await replay_all(client, named)

    listed = {run.workflow_id for run in named}
    assert {run.type for run in named} == types
    assert {run.type for run in ours if run.workflow_id not in listed} <= {"StoreCases"}  # of the rig, which names no tenant
    assert counted == [tenant] * requests != []
    assert keys == {tenant}
    assert all(key.startswith(tenant_digits(tenant)) for key in known)


async def fairness_keys(client: Client, run: WorkflowRun) -> set[str]:
    """Return the keys by which a run's activities take their turns: their own, else their workflow's."""
    history = await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).fetch_history()
    started = [event.activity_task_scheduled_event_attributes for event in history.events]
    own = history.events[0].workflow_execution_started_event_attributes.priority.fairness_key
    return {one.priority.fairness_key or own for one in started if one.activity_id}


async def replay_all(client: Client, runs: list[WorkflowRun]) -> None:
    """Replay runs of our types as a worker does that has the attribute, and as one does that has none."""
    ours = [GradingThreadWorkflow, JudgingWorkflow, GradingBatchWorkflow, BatchShard, StoreCasesWorkflow, *MONITORS]
    for registered in (True, False):
        replayer = Replayer(
            workflows=ours,
            workflow_runner=UnsandboxedWorkflowRunner(),
            data_converter=client.data_converter,
            interceptors=[TenantAttribute(registered=registered)],
        )
        for run in runs:
            if run.type != "Drafts":
                await replayer.replay_workflow(await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).fetch_history())
