"""An interrupted run goes on with other models, where the thread is open and where it is closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelConfig, ModelSpec
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest
from tests.rig.threads import JUDGE, WRITER, Role, Served, a_thread, answering, serving, start, verdict_text

OTHER = "scripted:other"

TWO_GRADERS = {
    "mode": "per_criterion",
    "criteria": [{"id": "c1", "description": "it is short"}, {"id": "c2", "description": "it is kind"}],
}


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


def models_of(served: Served, role: Role) -> list[str]:
    """Return the models that were asked for a role, in order."""
    return [request.spec.id for request in served.models.requests_of(role)]


async def interrupted(served: Served, thread: str, role: Role, **options: Any) -> RunResult:
    """Return the result of a run that is interrupted: a draft cannot be had, or somebody interrupts the grading."""
    if role == "generator":
        served.models.fail_first("generator", kind="not_found", usage=Usage())
        return await served.client.invoke(thread, "hello", start=start(**options))
    turn = await served.begun(thread, "grader", **options)
    await served.client.interrupt(thread)
    result = await turn
    served.models.release()
    return result


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("role", ["generator", "grader"])
async def test_a_run_is_resumed_with_another_model(served: Served, role: Role, is_open: bool) -> None:
    thread = a_thread()
    stopped = await interrupted(served, thread, role, generator={"model": WRITER, "system_prompt": "Be brief."})
    if not is_open:
        await served.client.close_thread(thread)
        await served.client.result(thread)

    model, grader = (OTHER, None) if role == "generator" else (None, OTHER)

    result = await served.client.resume(thread, model=model, grader=grader)
    further = await served.client.invoke(thread, "and again")

    assert (stopped.status, result.status, further.status) == ("interrupted", "satisfied", "satisfied")
    assert result.grading_run_id == stopped.grading_run_id
    drafted, judged = ([WRITER, OTHER, OTHER], [JUDGE, JUDGE]) if role == "generator" else ([WRITER, WRITER], [JUDGE, OTHER, OTHER])
    assert (models_of(served, "generator"), models_of(served, "grader")) == (drafted, judged)
    assert result.evaluations[-1].grader == judged[-1]
    assert all(request.system.startswith("Be brief.") for request in served.models.requests_of("generator"))


async def test_a_service_in_another_language_resumes_with_another_model(served: Served) -> None:
    thread = a_thread()
    await interrupted(served, thread, "generator")

    result = await served.handle(thread).execute_update("resume", {"model": OTHER, "grader": {"id": OTHER}}, result_type=dict)

    assert result["status"] == "satisfied"
    assert (models_of(served, "generator"), models_of(served, "grader")) == ([WRITER, OTHER], [OTHER])


async def test_a_model_of_the_same_provider_keeps_the_settings_of_the_one_before(served: Served) -> None:
    thread = a_thread()
    kept = {"id": WRITER, "config": {"max_tokens": 99}}
    await interrupted(served, thread, "generator", generator={"model": kept})
    served.models.fail_first("generator", kind="not_found", usage=Usage())
    await served.client.resume(thread, model=OTHER)
    await served.client.resume(thread, model={"id": OTHER, "config": {"max_tokens": 7}})

    caps = [request.spec.config.max_tokens for request in served.models.requests_of("generator")]
    assert caps == [99, 99, 7]


async def test_verdicts_that_are_there_stay_and_the_other_grader_is_asked_for_the_rest(served: Served) -> None:
    thread = a_thread()
    first, second = served.models.gate("grader", group=0), served.models.gate("grader", group=1)
    served.models.answers["grader"] = lambda _step, _: verdict_text()
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(rubric=TWO_GRADERS)))
    await served.models.called("grader", 2)
    first.opened.set()
    await served.until(thread, lambda state: state.usage.calls == 2)
    await served.client.interrupt(thread)
    await turn
    second.opened.set()

    result = await served.client.resume(thread, grader=OTHER)

    assert result.status == "satisfied"
    assert models_of(served, "grader") == [JUDGE, JUDGE, OTHER]


@pytest.mark.parametrize(
    ("changed", "resumed", "words"),
    [
        ({"generator": {"activity": "write", "task_queue": "nowhere"}}, {"model": OTHER}, f"model: '{OTHER}' cannot replace an activity"),
        ({"grader": {"activity": "judge", "task_queue": "nowhere"}}, {"grader": OTHER}, f"grader: '{OTHER}' cannot replace an activity"),
        ({}, {"model": "nonsense"}, "model.id: 'nonsense' names no model"),
        ({}, {"model": "http_request:page"}, "model: 'http_request:page' is for cases of a batch that are drafted once"),
        ({}, {"grader": "http_request:page"}, "grader: 'http_request:page' is for cases of a batch that are drafted once"),
    ],
)
async def test_what_cannot_be_replaced_is_refused_by_its_field(
    served: Served, changed: dict[str, Any], resumed: dict[str, Any], words: str
) -> None:
    thread = a_thread()
    if changed:
        await served.client.start(start(**changed), thread_id=thread)
        turn = asyncio.create_task(served.client.invoke(thread, "hello"))
        await served.until(thread, lambda state: state.status == "running")
        await served.client.interrupt(thread)
        await turn
    else:
        await interrupted(served, thread, "grader")

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await served.handle(thread).execute_update("resume", resumed)

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "InvalidRequest"
    assert refused.value.cause.message.startswith(words)


async def test_the_models_of_a_run_that_goes_on_are_not_replaced(served: Served) -> None:
    thread = a_thread()
    await interrupted(served, thread, "generator")
    served.models.hold("generator")
    resuming = asyncio.create_task(served.client.resume(thread))
    await served.models.called("generator", 2)

    with pytest.raises(InvalidRequest, match="the run goes on already; interrupt it, then resume it with another model"):
        await served.client.resume(thread, model=OTHER)
    served.models.release()

    assert (await resuming).status == "satisfied"


async def test_the_state_says_what_failed_until_the_run_goes_on(served: Served) -> None:
    thread = a_thread()
    stopped = await interrupted(served, thread, "generator")
    before = await served.client.state(thread)
    await served.client.resume(thread)
    after = await served.client.state(thread)

    assert before.error == stopped.error
    assert before.error is not None
    assert before.error.startswith("not_found: ")
    assert after.error is None
    assert "error" not in after.model_dump(mode="json")


async def test_a_default_judge_is_replaced(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.models, "default_grader", lambda: ModelSpec(id=JUDGE))
    thread = a_thread()
    await interrupted(served, thread, "grader", grader=...)

    result = await served.client.resume(thread, grader=OTHER)

    assert models_of(served, "grader") == [JUDGE, OTHER]
    assert result.evaluations[-1].grader == OTHER


async def test_a_run_goes_on_with_the_fallback_of_the_model_before(served: Served) -> None:
    thread = a_thread()
    served.models.fail_first("generator", times=2, kind="not_found", usage=Usage())
    model = {"id": WRITER, "config": {"max_tokens": 99}, "fallback": [{"id": OTHER, "config": {"max_tokens": 99}}], "fallback_after": 5}
    stopped = await served.client.invoke(thread, "hello", start=start(generator={"model": model}))

    result = await served.client.resume(thread, model=OTHER)

    assert (stopped.status, result.status) == ("interrupted", "satisfied")
    assert models_of(served, "generator") == [WRITER, OTHER, OTHER]
    checkpoint: Any = await served.client.checkpoint(thread)
    assert ModelSpec.model_validate(checkpoint["thread"]["generator"]["model"]) == ModelSpec(id=OTHER, config=ModelConfig(max_tokens=99))
