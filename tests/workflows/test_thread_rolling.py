"""A thread whose history grows long goes on in new Temporal runs, and nobody who talks to it can tell."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.contract.evaluation import Event
from gradeloop.contract.thread import ThreadState
from gradeloop.errors import InvalidRequest
from tests.rig.threads import SECONDS, Served, a_thread, answering, failing_until, replay, runs_of, scheduled_types, serving, start
from workflows import thread_rules


@pytest.fixture
async def served(impatient: Client) -> AsyncIterator[Served]:
    async with serving(impatient, models=answering()) as one:
        yield one


async def calls_of(served: Served, thread: str) -> Counter[str]:
    """Count the activities of all Temporal runs of a thread."""
    return sum(
        [await scheduled_types(served.temporal, thread, run_id) for run_id in await runs_of(served.temporal, thread)], Counter[str]()
    )


@pytest.mark.slow
async def test_one_grading_run_goes_through_several_temporal_runs_while_its_caller_waits(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(19)

    async def watch() -> list[Event]:
        return [event async for event in served.client.watch(thread)]

    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(max_iterations=20)))
    await served.models.called("generator")
    watching = asyncio.create_task(watch())
    result = await turn
    await served.client.close_thread(thread)
    watched = await asyncio.wait_for(watching, SECONDS)

    assert (result.status, result.iterations) == ("satisfied", 20)
    assert [evaluation.iteration for evaluation in result.evaluations] == list(range(20))
    assert {evaluation.grading_run_id for evaluation in result.evaluations} == {result.grading_run_id}
    assert len(await runs_of(served.temporal, thread)) >= 3
    assert await calls_of(served, thread) == {"generate": 20, "grade": 20}
    assert [event.seq for event in watched] == list(range(1, len(watched) + 1))
    assert len(await served.contents(thread)) == 40
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_a_thread_keeps_its_owner_in_all_its_temporal_runs(served: Served) -> None:
    served.models.answers["grader"] = failing_until(11)
    opening = start(idle_timeout=0, max_iterations=12, messages=[{"role": "user", "content": "hello"}])

    thread = await served.client.start(opening, thread_id=a_thread(), owner="ann")
    await served.client.result(thread)

    assert len(await runs_of(served.temporal, thread)) > 1
    assert await served.client.owner_of(thread) == "ann"


def has_queued(count: int, state: ThreadState) -> bool:
    return state.queued == count


@pytest.mark.slow
async def test_queued_turns_come_through_and_each_is_done_once(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(9)
    served.models.hold("generator")
    first = asyncio.create_task(served.client.invoke(thread, "turn 0", key="key 0", start=start(max_iterations=5)))
    await served.models.called("generator")
    others = []
    for number in range(1, 4):
        others.append(asyncio.create_task(served.client.invoke(thread, f"turn {number}", key=f"key {number}")))
        await served.until(thread, partial(has_queued, number))
    served.models.release()
    results = await asyncio.gather(first, *others)

    assert [result.status for result in results] == ["max_iterations_reached"] * 4
    assert len({result.grading_run_id for result in results}) == 4
    assert [(result.messages or ())[0].content for result in results] == [f"turn {number}" for number in range(4)]
    said = [text for text in await served.contents(thread) if text.startswith("turn")]
    assert said == [f"turn {number}" for number in range(4)]
    assert len(await runs_of(served.temporal, thread)) >= 3
    assert served.models.count("generator") == sum(result.iterations for result in results) == 20
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_keys_are_remembered_in_the_next_runs(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "turn 0", key="key 0", start=start())
    number = 0
    while len(await runs_of(served.temporal, thread)) < 3:
        number += 1
        await served.client.invoke(thread, f"turn {number}", key=f"key {number}")
    drafts = served.models.count("generator")

    again = await served.client.invoke(thread, "turn 0", key="key 0")

    assert again == first
    assert served.models.count("generator") == drafts
    with pytest.raises(InvalidRequest, match="key 'key 0' was used for another turn"):
        await served.client.invoke(thread, "something else", key="key 0")


async def sent_until_answered(thread: WorkflowHandle[Any, Any], turn: dict[str, Any], name: str) -> tuple[list[str], dict[str, Any]]:
    """Send a turn again, each time under another update id, until it is answered; return what it was told meanwhile, and the answer."""
    told: list[str] = []
    while True:
        try:
            return told, await thread.execute_update("invoke", turn, id=f"{name}-{len(told)}", result_type=dict)
        except WorkflowUpdateFailedError as error:
            if not isinstance(error.cause, ApplicationError) or error.cause.type != "ThreadRolling":
                raise
            told.append(error.cause.message)


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_turn_that_is_sent_again_while_its_thread_rolls_over_is_done_once(served: Served, keyed: bool) -> None:
    """A service in another language sends plain JSON."""
    thread = a_thread()
    served.models.answers["grader"] = failing_until(19)
    await served.client.start(start(), thread_id=thread)
    raw = served.temporal.get_workflow_handle(thread)
    turn = {"messages": [{"role": "user", "content": "hello"}], "max_iterations": 20} | ({"key": "mine"} if keyed else {})

    told, result = await asyncio.wait_for(sent_until_answered(raw, turn, "x"), SECONDS)
    drafts = served.models.count("generator")
    served.models.answers["grader"] = failing_until(0)
    _, after = await sent_until_answered(raw, turn, "later")

    assert len(told) >= 2
    assert all("with the same key" in sentence and "another update id" not in sentence for sentence in told)
    assert (result["status"], result["iterations"], drafts) == ("satisfied", 20, 20)
    assert (after == result) is keyed  # without a key, what is sent once all are answered is another turn
    assert (await served.contents(thread)).count("hello") == (1 if keyed else 2)
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_two_callers_without_keys_who_ask_the_same_each_get_a_turn_though_the_thread_rolls_over(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(7)
    await served.client.start(start(), thread_id=thread)
    raw = served.temporal.get_workflow_handle(thread)
    turn = {"messages": [{"role": "user", "content": "hello"}], "max_iterations": 8}

    answers = await asyncio.gather(*(sent_until_answered(raw, turn, name) for name in ("a", "b", "c")))

    assert sum(len(told) for told, _ in answers) >= 3
    assert len({result["grading_run_id"] for _, result in answers}) == 3
    assert (await served.contents(thread)).count("hello") == 3
    assert served.models.count("generator") == 24


async def test_a_caller_without_a_key_who_comes_back_late_asks_for_another_turn(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_rules, "OWED_SECONDS", 0.0)
    thread = a_thread()
    served.models.answers["grader"] = failing_until(7)
    await served.client.start(start(), thread_id=thread)
    raw = served.temporal.get_workflow_handle(thread)
    turn = {"messages": [{"role": "user", "content": "hello"}], "max_iterations": 8}
    with pytest.raises(WorkflowUpdateFailedError):
        await raw.execute_update("invoke", turn, id="first")

    await served.until(thread, lambda state: state.status == "idle")
    served.models.answers["grader"] = failing_until(0)
    await sent_until_answered(raw, turn, "late")

    assert (await served.contents(thread)).count("hello") == 2


@pytest.mark.slow
async def test_an_interrupted_run_goes_on_in_a_thread_that_rolled_over(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(15)
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(max_iterations=20)))
    await served.models.called("generator", 8)
    served.models.hold("generator")
    await served.models.called("generator", served.models.count("generator"))
    await served.until(thread, lambda state: state.phase == "generating")
    await served.client.interrupt(thread)
    stopped = await turn
    served.models.release()
    before = await runs_of(served.temporal, thread)

    result = await served.client.invoke(thread)

    assert stopped.status == "interrupted"
    assert (result.status, result.iterations, result.grading_run_id) == ("satisfied", 16, stopped.grading_run_id)
    assert len(before) >= 2
    assert len(await runs_of(served.temporal, thread)) > len(before)
    places = [(item.grading_run_id, item.iteration) for item in (await served.client.evaluations(thread)).items]
    assert places == [(result.grading_run_id, iteration) for iteration in range(16)]
    await replay(served.temporal, thread)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_whoever_resumed_a_run_gets_its_end_from_a_later_temporal_run(served: Served, named: bool) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(15)
    turn = await served.begun(thread, "generator", max_iterations=20)
    await served.client.interrupt(thread)
    await turn
    served.models.release()

    result = await (served.client.invoke(thread, key="go on") if named else served.client.resume(thread))

    assert (result.status, result.iterations) == ("satisfied", 16)
    assert len(await runs_of(served.temporal, thread)) >= 2
    assert served.models.count("generator") == 17


@pytest.mark.slow
async def test_rubrics_and_a_close_that_come_while_it_rolls_over_are_not_lost(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(19)
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(max_iterations=20)))
    await served.models.called("generator")
    for number in range(30):
        await served.handle(thread).signal("supply_rubric", f"- it is number {number}")
    served.models.answers["grader"] = failing_until(0)
    result = await turn
    await served.client.close_thread(thread)
    end = await served.client.result(thread)

    types = await served.types(thread)
    assert types.count("rubric_supplied") == 30
    assert result.evaluations[-1].criteria[0].name == "it is number 29"
    assert end.grading_run_id == result.grading_run_id
    assert len(await runs_of(served.temporal, thread)) >= 2
    places = [(item.grading_run_id, item.iteration) for item in (await served.client.evaluations(thread)).items]
    assert len(places) == len(set(places))
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_the_conversation_reaches_the_models_whole_after_a_roll(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(12)

    await served.client.invoke(thread, "hello", start=start(max_iterations=20))

    last = next(request for request in reversed(served.models.requests) if request.step.role == "generator")
    said = [message.name or message.content for message in last.messages]
    assert said == (await served.contents(thread))[:-1]
    assert len(said) == 25


@pytest.mark.slow
async def test_a_thread_of_ten_mebibytes_rolls_over_and_is_interrupted_and_resumed(served: Served) -> None:
    thread, text = a_thread(), "x" * 1_000_000
    await served.client.invoke(thread, f"0 {text}", start=start())
    for turn in range(1, 11):
        await served.client.invoke(thread, f"{turn} {text}")
    before = served.models.count("generator")
    served.models.hold("generator")
    stopping = asyncio.create_task(served.client.invoke(thread, "the last one"))
    await served.models.called("generator", before + 1)
    await served.client.interrupt(thread)
    stopped = await asyncio.wait_for(stopping, SECONDS)
    served.models.release()
    result = await served.client.resume(thread)

    said: list[str] = []
    after: int | None = 0
    while after is not None:
        page = await served.client.messages(thread, after=after)
        said, after = [*said, *(message.content for message in page.items)], page.next
    assert (stopped.status, result.status, stopped.grading_run_id) == ("interrupted", "satisfied", result.grading_run_id)
    assert sum(map(len, said)) > 10 * 1024 * 1024
    assert [message.split()[0] for message in said if message.endswith(text)] == [str(turn) for turn in range(11)]
    assert len(await runs_of(served.temporal, thread)) >= 3
