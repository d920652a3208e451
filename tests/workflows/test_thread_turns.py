"""Turns of one thread: invoked one after the other, queued, refused, interrupted and gone on with."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.contract.thread import GradingThread
from gradeloop.errors import InvalidRequest, ThreadNotFound, ThreadTooLarge
from tests.rig.threads import (
    Role,
    Served,
    a_thread,
    answering,
    failing_until,
    history_length,
    replay,
    serving,
    start,
)


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


async def refusal(served: Served, thread: str, update: str, *arguments: Any) -> ApplicationError:
    """Send a raw update that is refused, and prove that the history did not learn of it."""
    handle = served.handle(thread)
    before = await history_length(handle)
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await handle.execute_update(update, *arguments)

    assert await history_length(handle) == before
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


async def test_a_turn_starts_the_thread_and_further_ones_go_on_with_it(served: Served) -> None:
    thread = a_thread()

    first = await served.client.invoke(thread, "hello", start=start())
    second = await served.client.invoke(thread, "and more")

    assert (first.status, first.output, second.status, second.output) == ("satisfied", "draft 1", "satisfied", "draft 2")
    assert first.grading_run_id != second.grading_run_id
    assert [message.content for message in second.messages or ()] == ["and more", "draft 2"]
    assert await served.contents(thread) == ["hello", "draft 1", "and more", "draft 2"]


async def test_a_start_is_not_used_where_the_thread_exists(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())

    await served.client.invoke(thread, "again", start=start(rubric="- another one"))

    rubric = (await served.client.state(thread)).rubric
    assert rubric is not None
    assert rubric.criteria[0].description == "it is good"


async def test_a_turn_of_no_thread_is_refused_without_a_start(served: Served) -> None:
    with pytest.raises(ThreadNotFound, match="there is no thread"):
        await served.client.invoke(a_thread(), "hello")


async def test_two_turns_at_once_are_done_one_after_the_other(served: Served) -> None:
    thread = a_thread()

    one, other = await asyncio.gather(*(served.client.invoke(thread, f"turn {name}", start=start()) for name in "ab"))

    assert one.grading_run_id != other.grading_run_id
    said = await served.contents(thread)
    assert sorted(said[::2]) == ["turn a", "turn b"]
    assert said[1::2] == ["draft 1", "draft 2"]
    assert {(one.messages or ())[0].content, (other.messages or ())[0].content} == {"turn a", "turn b"}


async def test_eight_turns_queue_behind_the_one_in_flight_and_the_ninth_is_refused(served: Served) -> None:
    thread = a_thread()
    first = await served.begun(thread, "generator")
    queued = [asyncio.create_task(served.client.invoke(thread, f"queued {number}")) for number in range(8)]
    await served.until(thread, lambda state: state.queued == 8)

    refused = await refusal(served, thread, "invoke", {"messages": [{"role": "user", "content": "too many"}]})
    with pytest.raises(InvalidRequest, match="8 turns are queued already"):
        await served.client.invoke(thread, "too many")
    served.models.release()
    results = await asyncio.gather(first, *queued)

    assert refused.type == "Backpressure"
    assert "8 turns are queued already" in refused.message
    assert [result.status for result in results] == ["satisfied"] * 9
    said = await served.contents(thread)
    assert len(said) == 18
    assert sorted(said[2::2]) == sorted(f"queued {number}" for number in range(8))


@pytest.mark.parametrize(
    ("request_", "kind", "why"),
    [
        ("hello", "InvalidRequest", "Input should be"),
        ({"messages": "hello"}, "InvalidRequest", "messages: "),
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "InvalidRequest", "a turn starts with a message of role 'user'"),
        ({"messages": [{"role": "user", "content": " "}]}, "InvalidRequest", "messages[0]: the content of a message"),
        ({"message": []}, "InvalidRequest", "unknown key 'message'. Did you mean 'messages'?"),
        ({"rubric": " \n# only a heading"}, "InvalidRequest", "rubric: the rubric has no criterion"),
        ({"max_iterations": 21}, "InvalidRequest", "max_iterations: "),
        ({"key": ""}, "InvalidRequest", "key: "),
        ({"messages": [{"role": "user", "content": "x" * 2**20}]}, "ThreadTooLarge", "messages[0] has 1048604 bytes"),
    ],
)
async def test_a_bad_turn_is_refused_without_a_trace(served: Served, request_: Any, kind: str, why: str) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())

    refused = await refusal(served, thread, "invoke", request_)

    assert refused.type == kind
    assert why in refused.message


@pytest.mark.slow
async def test_a_turn_that_the_thread_cannot_hold_is_refused_while_others_are_queued(served: Served) -> None:
    thread = a_thread()
    first = await served.begun(thread, "generator")
    large = "x" * (900 * 1024)
    queued = asyncio.create_task(served.client.invoke(thread, large))
    await served.until(thread, lambda state: state.queued == 1)

    with pytest.raises(ThreadTooLarge, match=r"the thread would hold \d+ bytes, 1572864 at most"):
        await served.client.invoke(thread, large)
    served.models.release()
    await asyncio.gather(first, queued)


async def test_nothing_said_and_no_draft_is_refused(served: Served) -> None:
    with pytest.raises(InvalidRequest, match="there is no draft to grade"):
        await served.client.invoke(a_thread(), start=start())


async def test_a_turn_that_nobody_can_judge_is_interrupted_before_it_is_paid_for(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(rubric=..., grader=...))

    result = await served.client.invoke(thread, "and more", rubric="- it is good")

    assert (result.status, result.reason) == ("interrupted", "failure")
    assert "no grader is named and no provider key is set" in str(result.error)
    assert served.models.count("generator") == 1


async def test_nothing_to_resume_is_refused_without_a_trace(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())

    refused = await refusal(served, thread, "resume")

    assert refused.type == "NothingToResume"
    with pytest.raises(InvalidRequest, match="nothing is interrupted"):
        await served.client.resume(thread)


@pytest.mark.parametrize(("role", "drafts", "grades"), [("generator", 2, 1), ("grader", 1, 2)])
async def test_an_interrupted_run_goes_on_with_the_same_id_and_iteration(served: Served, role: Role, drafts: int, grades: int) -> None:
    thread = a_thread()
    turn = await served.begun(thread, role)

    await served.client.interrupt(thread)
    stopped = await turn
    state = await served.client.state(thread)
    served.models.release()
    resumed = await served.client.resume(thread)

    assert (stopped.status, stopped.evaluations, stopped.error) == ("interrupted", (), None)
    assert (state.status, state.phase, state.iteration) == ("interrupted", None, 0)
    assert (resumed.status, resumed.iterations, resumed.grading_run_id) == ("satisfied", 1, stopped.grading_run_id)
    assert (served.models.count("generator"), served.models.count("grader")) == (drafts, grades)
    assert await served.contents(thread) == ["hello", f"draft {drafts}"]
    assert "interrupted" in await served.types(thread)
    assert "resumed" in await served.types(thread)


async def test_an_interrupt_consumes_no_iteration(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(9)
    served.models.hold("grader")
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(max_iterations=2)))
    for number in range(3):
        await served.models.called("grader", number + 1)
        await served.client.interrupt(thread)
        assert (await turn).status == "interrupted"
        turn = asyncio.create_task(served.client.invoke(thread))
    await served.models.called("grader", 4)
    served.models.release()
    result = await turn

    assert (result.status, result.iterations) == ("max_iterations_reached", 2)
    assert served.models.count("generator") == 2


async def test_queued_turns_return_interrupted_and_leave_nothing_behind(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    queued = [asyncio.create_task(served.client.invoke(thread, f"queued {number}", key=f"key {number}")) for number in range(3)]
    await served.until(thread, lambda state: state.queued == 3)

    await served.client.interrupt(thread)
    first, *others = await asyncio.gather(turn, *queued)
    served.models.release()

    assert first.status == "interrupted"
    assert first.grading_run_id is not None
    assert [(other.status, other.grading_run_id, other.messages) for other in others] == [("interrupted", None, ())] * 3
    assert await served.contents(thread) == ["hello"]
    again = await served.client.invoke(thread, "queued 1", key="key 1")
    assert (again.status, again.grading_run_id) == ("satisfied", first.grading_run_id)
    assert await served.contents(thread) == ["hello", "queued 1", "draft 2"]


ENDS = {"interrupt": "person", "cancel": "person", "budget": "budget", "interrupt_waiting": "person", "close_waiting": "person"}
"""How queued turns are dropped, and the reason that their callers get."""


@pytest.mark.parametrize(("how", "reason"), ENDS.items())
async def test_a_queued_turn_that_is_dropped_says_why(served: Served, how: str, reason: str) -> None:
    thread, turn = a_thread(), None
    if "waiting" in how:
        rubric = {"criteria": ["it is good", {"id": "kind", "description": "kind", "human": True}]}
        await served.client.invoke(thread, "hello", start=start(rubric=rubric))
    else:
        turn = await served.begun(thread, "generator", budget={"max_tokens": 15})
    queued = asyncio.create_task(served.client.invoke(thread, "more"))
    await served.until(thread, lambda state: state.queued == 1)

    if how == "budget":
        served.models.release()
    elif how == "cancel":
        await served.client.cancel(thread)
    else:
        await (served.client.close_thread(thread) if how == "close_waiting" else served.client.interrupt(thread))
    dropped = await queued
    if turn is not None:
        assert (await turn).reason == reason

    assert (dropped.status, dropped.reason, dropped.messages, dropped.usage.calls) == ("interrupted", reason, (), 0)


async def test_an_interrupted_run_takes_new_messages_in_at_the_same_iteration(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(9)
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(max_iterations=3)))
    served.models.hold("grader")
    await served.models.called("grader")
    served.models.release()
    served.models.hold("generator")
    await served.models.called("generator", 2)
    await served.client.interrupt(thread)
    stopped = await turn
    served.models.release()

    result = await served.client.invoke(thread, "mind this too")

    assert result.grading_run_id == stopped.grading_run_id
    assert (result.status, [evaluation.iteration for evaluation in result.evaluations]) == ("max_iterations_reached", [0, 1, 2])
    assert served.models.steps("generator") == [(0, 0), (0, 1), (0, 1), (0, 2)]
    said = await served.contents(thread)
    assert said == ["hello", "draft 1", "rubric_grader", "mind this too", "draft 3", "rubric_grader", "draft 4"]


async def test_a_generator_that_fails_for_good_interrupts_the_run_and_it_goes_on(served: Served) -> None:
    thread = a_thread()
    answers = served.models.answers["generator"]
    served.models.answers["generator"] = broken
    failed = await served.client.invoke(thread, "hello", start=start())
    served.models.answers["generator"] = answers

    result = await served.client.invoke(thread)

    assert failed.status == "interrupted"
    assert failed.error is not None
    assert "the model is gone" in failed.error
    assert (result.status, result.error, result.grading_run_id) == ("satisfied", None, failed.grading_run_id)
    assert await served.contents(thread) == ["hello", "draft 2"]


def broken(*_: object) -> str:
    from gradeloop.contract.provider import ModelFault

    raise ModelFault("not_found", "the model is gone", model="scripted:writer")


async def test_a_generator_that_fails_for_good_completes_a_thread_that_does_not_idle(served: Served) -> None:
    served.models.answers["generator"] = broken

    result = await served.client.result(await served.client.start(start(idle_timeout=0, messages=[{"role": "user", "content": "hello"}])))

    assert result.status == "interrupted"
    assert "the model is gone" in (result.error or "")


async def test_an_interrupted_thread_stays_open_though_it_does_not_idle(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator", idle_timeout=0)
    await served.client.interrupt(thread)
    await turn
    served.models.release()

    resumed = await served.client.resume(thread)
    result = await served.client.result(thread)

    assert resumed.status == "satisfied"
    assert result == resumed


async def test_a_closing_thread_serves_its_queue_and_refuses_more(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    queued = [asyncio.create_task(served.client.invoke(thread, f"queued {number}")) for number in range(2)]
    await served.until(thread, lambda state: state.queued == 2)

    await served.client.close_thread(thread)
    refused = await refusal(served, thread, "invoke", {"messages": [{"role": "user", "content": "late"}]})
    served.models.release()
    results = await asyncio.gather(turn, *queued)

    assert refused.type == "ThreadClosing"
    assert [result.status for result in results] == ["satisfied"] * 3
    assert (await served.client.result(thread)).output == "draft 3"
    assert "late" not in await served.contents(thread)
    await replay(served.temporal, thread)


async def test_the_typed_interface_serves_another_service(served: Served) -> None:
    thread = a_thread()
    await served.client.start(start(messages=[{"role": "user", "content": "hello"}]), thread_id=thread)
    handle = served.temporal.get_workflow_handle_for(GradingThread.run, thread)
    await served.until(thread, lambda state: state.status == "idle" and state.grading_run_id)

    state = await handle.query(GradingThread.state)
    await handle.signal(GradingThread.close)
    result = await handle.result()

    assert (state.status, result.status, result.grading_run_id) == ("idle", "satisfied", state.grading_run_id)
