"""A grader that nobody named: found once a run, by the worker's keys, and named in each evaluation."""

from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.tools.registry import ToolRegistry
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import RunResult
from gradeloop.settings.worker import WorkerSettings
from tests.rig.threads import Models, draft, grade, refusal, request, row, until
from worker import build

STORY = [draft(), grade(0, row("c1", "more")), draft(1), grade(1)]


class Choosing(Models):
    """Scripted models, of which one judges by default."""

    def __init__(self, default: str) -> None:
        super().__init__(STORY, {})
        self._default = default

    def default_grader(self) -> ModelSpec:
        """Return the default."""
        return ModelSpec(id=self._default)


def ungraded(**more: Any) -> dict[str, Any]:
    """Return a request that names no grader."""
    argument = request("- good", **more)
    argument.pop("grader")
    return argument | more


async def run(client: Client, models: Models, argument: dict[str, Any]) -> RunResult:
    """Run one thread to its end."""
    queue = f"queue-{uuid4()}"
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result: RunResult = await client.execute_workflow("GradingThread", argument, id=queue, task_queue=queue, result_type=RunResult)
    return result


@pytest.mark.parametrize("more", [{}, {"grader": {}}, {"grader": None}, {"grader": {"system_prompt": "Be brief."}}])
async def test_the_workers_default_judges_and_every_evaluation_names_it(client: Client, more: dict[str, Any]) -> None:
    models = Choosing("scripted:chosen")
    result = await run(client, models, ungraded(**more))

    assert (result.status, [evaluation.grader for evaluation in result.evaluations]) == ("satisfied", ["scripted:chosen"] * 2)
    assert {request.spec.id for request in models.requests_of("grader")} == {"scripted:chosen"}


@pytest.mark.slow
async def test_a_worker_with_other_keys_does_not_change_the_judge_in_the_middle_of_a_run(client: Client) -> None:
    queue, first, second = f"queue-{uuid4()}", Choosing("scripted:first"), Choosing("scripted:second")
    gate = first.gate("generator", 1)
    async with build(client, first, ToolRegistry(), WorkerSettings(task_queue=queue, drain_seconds=0)):
        thread = await client.start_workflow("GradingThread", ungraded(), id=queue, task_queue=queue, result_type=RunResult)
        await gate.reached.wait()
    async with build(client, second, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result = await thread.result()

    assert [evaluation.grader for evaluation in result.evaluations] == ["scripted:first"] * 2
    assert {request.spec.id for request in second.requests_of("grader")} == {"scripted:first"}


async def test_a_rubric_that_comes_later_finds_its_judge_with_its_first_call(client: Client) -> None:
    models, queue = Choosing("scripted:chosen"), f"queue-{uuid4()}"
    argument = ungraded(idle_timeout=60)
    argument.pop("rubric")
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=queue)):
        thread = await client.start_workflow("GradingThread", argument, id=queue, task_queue=queue, result_type=RunResult)
        while (await thread.query("result")) is None:
            await until(thread, "idle")
        await thread.signal("supply_rubric", "- good")
        await thread.signal("close")
        result = await thread.result()

    assert result.evaluations[0].grader == "scripted:chosen"


async def test_without_any_key_the_thread_is_refused_before_anybody_is_called(client: Client) -> None:
    models, queue = Models(STORY, {}), f"queue-{uuid4()}"
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=queue)):
        thread = await client.start_workflow("GradingThread", ungraded(), id=queue, task_queue=queue, result_type=RunResult)
        answer = await refusal(thread)

    assert answer.startswith("no grader is named and no provider key is set")
    assert models.requests == []
