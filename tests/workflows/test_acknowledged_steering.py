"""The updates `interrupt` and `supply_rubric` say what they did; the signals of the same names stay."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.client import thread as handles
from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import Interruption, SuppliedRubric
from gradeloop.errors import InvalidRequest, ThreadClosed
from tests.rig.threads import Role, Served, a_thread, answering, failing_until, replay, serving, start


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


@pytest.mark.parametrize(("role", "phase"), [("generator", "generating"), ("grader", "grading")])
async def test_an_interrupt_says_which_run_it_stopped_and_where(served: Served, role: Role, phase: str) -> None:
    thread = a_thread()
    turn = await served.begun(thread, role)
    run = (await served.client.state(thread)).grading_run_id

    answer = await served.client.interrupt(thread)

    assert answer == Interruption(interrupted=True, grading_run_id=run, iteration=0, phase=phase)
    assert (await served.client.state(thread)).status == "interrupted"
    assert (await turn).status == "interrupted"
    assert (await served.types(thread)).count("interrupted") == 1
    await replay(served.temporal, thread)


async def test_an_interrupt_of_a_thread_that_does_nothing_says_so(served: Served) -> None:
    thread = a_thread()
    ended = await served.client.invoke(thread, "hello", start=start())

    answer = await served.client.interrupt(thread)

    assert answer == Interruption(interrupted=False, grading_run_id=ended.grading_run_id, iteration=0, phase=None)
    assert "interrupted" not in await served.types(thread)


async def test_an_interrupt_of_a_run_that_waits_for_a_person_stops_it(served: Served) -> None:
    thread = a_thread()
    rubric = {"criteria": ["it is good", {"id": "kind", "description": "kind", "human": True}]}
    waiting = await served.client.invoke(thread, "hello", start=start(rubric=rubric))

    answer = await served.client.interrupt(thread)

    assert answer == Interruption(interrupted=True, grading_run_id=waiting.grading_run_id, iteration=0, phase="grading")
    assert (await served.client.state(thread)).status == "interrupted"


async def test_an_interrupt_that_another_turn_follows_at_once_still_says_what_it_stopped(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    handle = served.handle(thread)

    stopping = asyncio.create_task(served.client.interrupt(thread))
    while not (await handle.query("stopped"))["seq"] and not stopping.done():
        await asyncio.sleep(0.02)
    following = asyncio.create_task(served.client.invoke(thread, "more"))
    answer = await stopping
    served.models.release()

    assert answer is not None
    assert answer.interrupted
    assert (await turn).status == "interrupted"
    assert (await following).status == "satisfied"


@pytest.mark.slow
async def test_a_rubric_that_comes_while_grading_says_which_run_it_ends(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    before = (await served.client.state(thread)).grading_run_id

    answer = await served.client.supply_rubric(thread, "- it is better")
    await served.models.called("grader", 2)
    served.models.release()

    assert answer is not None
    assert (answer.in_force, answer.grading_run_id, answer.superseded) == (False, None, before)
    assert answer.rubric is not None
    assert (answer.rubric.criteria[0].text, answer.rubric_sha256) == ("it is better", answer.rubric.sha256())
    assert (await turn).evaluations[-1].rubric_sha256 == answer.rubric_sha256
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_a_rubric_for_an_idle_thread_says_which_run_judges_by_it(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start())
    served.models.hold("grader")

    answer = await served.client.supply_rubric(thread, "- it is better")
    served.models.release()
    await served.until(thread, lambda state: state.status == "idle")

    assert answer is not None
    assert (answer.in_force, answer.superseded) == (True, None)
    evaluations = (await served.client.evaluations(thread)).items
    assert [one.grading_run_id for one in evaluations] == [first.grading_run_id, answer.grading_run_id]
    await replay(served.temporal, thread)


async def test_a_rubric_for_an_interrupted_run_is_in_force_at_once(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    await served.client.interrupt(thread)
    before = (await turn).grading_run_id

    answer = await served.client.supply_rubric(thread, {"criteria": ["about {{ x }}"]})

    state = await served.client.state(thread)
    assert answer is not None
    assert (answer.in_force, answer.superseded, answer.grading_run_id) == (True, before, state.grading_run_id)


async def test_the_rubric_in_force_changes_nothing_and_a_cleared_one_judges_nothing(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    state = await served.client.state(thread)

    same = await served.client.supply_rubric(thread, "- it is good")
    cleared = await served.client.supply_rubric(thread, {"criteria": []})
    served.models.release()
    await turn

    run = state.grading_run_id
    assert same == SuppliedRubric(
        rubric=state.rubric, rubric_sha256=state.rubric_sha256, in_force=True, grading_run_id=run, superseded=None
    )
    assert cleared == SuppliedRubric(rubric=None, rubric_sha256=None, in_force=False, grading_run_id=None, superseded=run)


@pytest.mark.parametrize("raw", [17, None, {"criteria": "x"}, {"criteria": ["about {{ x }}"]}])
async def test_a_rubric_that_cannot_be_taken_is_refused_and_nothing_is_recorded(served: Served, raw: Any) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(vars={"y": "z"}))
    events = await served.events(thread)

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await served.handle(thread).execute_update("supply_rubric", raw)

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "InvalidRequest"
    assert await served.events(thread) == events
    with pytest.raises(InvalidRequest, match="'x' is undefined"):
        await served.client.supply_rubric(thread, {"criteria": ["about {{ x }}"]})


async def test_both_updates_are_plain_json_by_their_names(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(9)
    turn = await served.begun(thread, "grader")
    run = (await served.client.state(thread)).grading_run_id

    supplied = await served.handle(thread).execute_update("supply_rubric", "- it is good")
    stopped = await served.handle(thread).execute_update("interrupt")
    await turn

    assert supplied | {"rubric": None, "rubric_sha256": None} == {
        "rubric": None, "rubric_sha256": None, "in_force": True, "grading_run_id": run, "superseded": None,
    }  # fmt: skip
    assert stopped == {"interrupted": True, "grading_run_id": run, "iteration": 0, "phase": "grading"}


async def test_a_closed_thread_takes_neither(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(idle_timeout=0))
    await served.client.result(thread)

    for call in (served.client.interrupt(thread), served.client.supply_rubric(thread, "- x")):
        with pytest.raises(ThreadClosed, match="is closed"):
            await call


async def test_without_a_worker_the_signal_is_sent_and_waits_for_one(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "ACCEPT_SECONDS", 0.5)
    thread, queue = a_thread(), f"nobody-{a_thread()}"
    request = start() | {"messages": [{"role": "user", "content": "hello"}]}
    handle = await client.start_workflow("GradingThread", request, id=thread, task_queue=queue)
    unserved = GradingClient(client, task_queue=queue)

    assert await unserved.interrupt(thread) is None
    assert await unserved.supply_rubric(thread, "- it is better") is None

    signals = [event.workflow_execution_signaled_event_attributes.signal_name async for event in handle.fetch_history_events()]
    assert [name for name in signals if name] == ["interrupt", "supply_rubric"]
    await handle.terminate()
