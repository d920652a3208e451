"""A turn's key makes it idempotent: however often it is asked for, it is done and paid for once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest
from tests.rig.threads import Role, Served, a_thread, answering, failing_until, serving, start
from workflows.thread_state import OUTCOMES_KEPT


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


async def raw(served: Served, thread: str, turn: dict[str, Any], update_id: str) -> RunResult:
    """Send the update as a client in another language does."""
    result: RunResult = await served.handle(thread).execute_update("invoke", turn, id=update_id, result_type=RunResult)
    return result


def saying(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} | more


async def test_fifty_at_once_with_one_key_get_one_answer_of_one_run(served: Served) -> None:
    thread = a_thread()

    results = await asyncio.gather(*(served.client.invoke(thread, "hello", key="k", start=start()) for _ in range(50)))

    assert {result.model_dump_json() for result in results} == {results[0].model_dump_json()}
    assert results[0].status == "satisfied"
    assert (served.models.count("generator"), served.models.count("grader")) == (1, 1)
    assert await served.contents(thread) == ["hello", "draft 1"]


async def test_the_same_key_later_returns_the_result_without_a_new_run(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    first = await served.client.invoke(thread, "hello", key="k", start=start())
    await served.client.invoke(thread, "more")

    again = await served.client.invoke(thread, "hello", key="k")

    assert again == first
    assert len(await served.contents(thread)) == 8


async def test_two_updates_with_one_key_are_one_turn_whatever_their_ids(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    served.models.release()
    await turn

    one, other = await asyncio.gather(*(raw(served, thread, saying("more", key="k"), name) for name in ("a", "b")))

    assert one == other
    assert served.models.count("generator") == 2


async def test_the_update_id_is_the_key_where_none_is_given(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())

    first = await raw(served, thread, saying("more"), "an-id")
    again = await raw(served, thread, saying("more", key="an-id"), "another-id")

    assert again == first
    assert served.models.count("generator") == 2


@pytest.mark.parametrize("ended", [True, False])
async def test_the_same_key_with_another_payload_is_refused(served: Served, ended: bool) -> None:
    thread = a_thread()
    served.models.hold("generator")
    turn = asyncio.create_task(served.client.invoke(thread, "hello", key="k", start=start()))
    await served.models.called("generator")
    if ended:
        served.models.release()
        await turn

    for number, other in enumerate((saying("something else"), saying("hello", rubric="- other"), saying("hello", max_iterations=2), {})):
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await raw(served, thread, other | {"key": "k"}, f"another-id-{number}")
        assert isinstance(caught.value.cause, ApplicationError)
        assert "key 'k' was used for another turn; give this one a key of its own" in caught.value.cause.message
    served.models.release()

    assert (await turn).status == "satisfied"


@pytest.mark.parametrize("ended", [True, False])
async def test_the_client_tells_at_once_that_a_key_was_used_for_another_turn(served: Served, ended: bool) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    turn = await served.begun(thread, "generator", "more", key="k")
    if ended:
        served.models.release()
        await turn

    with pytest.raises(InvalidRequest, match="key 'k' was used for another turn"):
        await served.client.invoke(thread, "something else", key="k")
    served.models.release()
    await turn


async def test_a_key_that_had_a_run_resumed_returns_its_end_again(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader", key="k")
    await served.client.interrupt(thread)
    await turn
    served.models.release()
    result = await served.client.invoke(thread, key="go on")

    again = await served.client.invoke(thread, key="go on")
    first = await served.client.invoke(thread, "hello", key="k")

    assert (result.status, again, first) == ("satisfied", result, result)
    with pytest.raises(InvalidRequest, match="key 'go on' was used for another turn"):
        await served.client.invoke(thread, "hello", key="go on")


async def test_all_who_wait_for_a_queued_key_are_told_of_an_interrupt(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    queued = [asyncio.create_task(raw(served, thread, saying("queued", key="k"), name)) for name in "abc"]
    await served.until(thread, lambda state: state.queued == 1)
    await admitted(served, thread, 4)

    await served.client.interrupt(thread)
    results = await asyncio.gather(turn, *queued)

    assert [result.status for result in results] == ["interrupted"] * 4
    assert await served.contents(thread) == ["hello"]


async def admitted(served: Served, thread: str, count: int) -> None:
    """Wait until so many updates are recorded as accepted."""
    accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    while sum(event.event_type == accepted for event in (await served.handle(thread).fetch_history()).events) < count:
        await asyncio.sleep(0.02)


async def test_the_client_tells_that_a_key_was_used_for_another_turn(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", key="k", start=start())
    await served.client.close_thread(thread)
    await served.client.result(thread)

    with pytest.raises(InvalidRequest, match="key 'k' was used for another turn"):
        await served.client.invoke(thread, "something else", key="k")


@pytest.mark.parametrize("role", ["generator", "grader"])
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_the_same_key_after_an_interrupt_or_a_cancel_goes_on(served: Served, role: Role, how: str) -> None:
    thread = a_thread()
    served.models.hold(role)
    turn = asyncio.create_task(served.client.invoke(thread, "hello", key="k", start=start()))
    await served.models.called(role)
    await (served.client.interrupt(thread) if how == "interrupt" else served.client.cancel(thread))
    stopped = await turn
    served.models.release()

    result = await served.client.invoke(thread, "hello", key="k")
    again = await served.client.invoke(thread, "hello", key="k")

    assert stopped.status == "interrupted"
    assert (result.status, result.grading_run_id, result.iterations) == ("satisfied", stopped.grading_run_id, 1)
    assert again == result
    assert served.models.count("generator") == (2 if role == "generator" else 1)
    assert [said for said in await served.contents(thread) if said == "hello"] == ["hello"]


async def test_callers_of_an_interrupted_key_and_of_nothing_said_all_get_its_end(served: Served) -> None:
    thread = a_thread()
    served.models.hold("grader")
    turn = asyncio.create_task(served.client.invoke(thread, "hello", key="k", start=start()))
    await served.models.called("grader")
    await served.client.interrupt(thread)
    await turn

    callers = [asyncio.create_task(served.client.invoke(thread, "hello", key="k")) for _ in range(3)]
    await served.models.called("grader", 2)
    served.models.release()
    results = await asyncio.gather(*callers)

    assert {(result.status, result.grading_run_id, result.output) for result in results} == {
        ("satisfied", results[0].grading_run_id, "draft 1")
    }
    assert (served.models.count("generator"), served.models.count("grader")) == (1, 2)


@pytest.mark.slow
async def test_the_last_sixty_four_keys_are_remembered(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "turn 0", key="key 0", start=start(rubric=..., grader=...))
    for number in range(1, OUTCOMES_KEPT + 1):
        await raw(served, thread, saying(f"turn {number}", key=f"key {number}"), f"id {number}")
    drafts = served.models.count("generator")

    kept = await raw(served, thread, saying("turn 1", key="key 1"), "once more 1")
    forgotten = await raw(served, thread, saying("turn 0", key="key 0"), "once more 0")

    assert OUTCOMES_KEPT == 64
    assert (first.output, kept.output) == ("draft 1", "draft 2")
    assert (drafts, forgotten.output) == (65, "draft 66")


async def test_a_key_of_a_closed_thread_is_answered_from_its_checkpoint(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", key="k", start=start(idle_timeout=0))
    await served.client.result(thread)

    again = await served.client.invoke(thread, "hello", key="k")

    assert again == first
    assert served.models.count("generator") == 1


@pytest.mark.parametrize("role", ["generator", "grader"])
async def test_a_key_whose_turn_went_on_under_another_rubric_returns_its_end(served: Served, role: Role) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    turn = await served.begun(thread, role, "more", key="k")
    await served.client.interrupt(thread)
    stopped = await turn
    served.models.release()
    other = await served.client.invoke(thread, rubric="- it is better")

    result = await served.client.invoke(thread, "more", key="k")

    assert (stopped.status, other.status, [evaluation.draft for evaluation in other.evaluations]) == ("interrupted", "satisfied", [3])
    assert next(message.content for message in other.messages or ()) == "more"
    assert result == other


@pytest.mark.parametrize("role", ["generator", "grader"])
async def test_a_key_whose_turn_somebody_else_resumed_returns_its_end(served: Served, role: Role) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    turn = await served.begun(thread, role, "more", key="k")
    await served.client.interrupt(thread)
    stopped = await turn
    served.models.release()
    resumed = await served.client.resume(thread)

    result = await served.client.invoke(thread, "more", key="k")

    assert (stopped.status, resumed.status) == ("interrupted", "satisfied")
    assert result == resumed


@pytest.mark.slow
async def test_a_queued_key_that_an_interrupt_dropped_can_be_asked_for_again(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    turn = await served.begun(thread, "generator", "more")
    queued = asyncio.create_task(served.client.invoke(thread, "queued", key="k"))
    await served.until(thread, lambda state: state.queued == 1)
    await served.client.interrupt(thread)
    dropped = (await asyncio.gather(turn, queued))[1]
    served.models.release()
    await served.client.resume(thread)

    result = await served.client.invoke(thread, "queued", key="k")

    assert (dropped.status, dropped.grading_run_id) == ("interrupted", None)
    assert (result.status, (result.messages or ())[0].content) == ("satisfied", "queued")


async def test_a_keyed_turn_waits_for_a_worker_that_is_gone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.client.thread.QUERY_SECONDS", 0.3)
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
    turn = asyncio.create_task(served.client.invoke(thread, "more", key="k"))
    await asyncio.sleep(0.6)

    async with serving(client, models=served.models, task_queue=served.task_queue):
        result = await turn

    assert (result.status, result.output) == ("satisfied", "draft 2")
