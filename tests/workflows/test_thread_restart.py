"""A thread goes on under its id whatever ended it, from its checkpoint: nothing is paid for twice, nothing is lost."""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper

from gradeloop.contract.thread import RunResult
from gradeloop.errors import GradeloopError, InvalidRequest, ThreadClosed
from tests.rig.threads import SECONDS, Role, Served, a_thread, answering, failing_until, replay, scheduled_types, serving, start

RACES = int(os.environ.get("GRADELOOP_RACES", "100"))
"""Turns that race the close of an idle thread; a thousand by hand now and then."""

USER = {"role": "user", "content": "hello"}


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


async def end(served: Served, thread: str, how: str) -> WorkflowExecutionStatus | None:
    """End a thread's workflow and return its status once it is closed."""
    handle = served.handle(thread)
    if how == "cancel":
        await served.client.cancel(thread)
    elif how == "terminate":
        await handle.terminate("enough")
    elif how == "time-out":
        await TimeSkipper(served.temporal).fast_forward(handle, timedelta(hours=2))
    else:
        await served.client.close_thread(thread)
    async with asyncio.timeout(SECONDS):
        while (status := (await handle.describe()).status) == WorkflowExecutionStatus.RUNNING:
            await asyncio.sleep(0.02)
    return status


ENDS = {
    "cancel": WorkflowExecutionStatus.CANCELED,
    "terminate": WorkflowExecutionStatus.TERMINATED,
    "complete": WorkflowExecutionStatus.COMPLETED,
    "time-out": WorkflowExecutionStatus.TIMED_OUT,
}


@pytest.mark.parametrize(
    ("how", "rubric", "role", "drafts", "grades"),
    [
        ("cancel", None, "generator", 3, 2),
        ("terminate", "- it is good\n", "generator", 3, 2),
        ("cancel", "- it is good\n", "grader", 2, 3),
        ("terminate", None, "grader", 2, 3),
    ],
)
async def test_a_run_that_was_ended_from_outside_goes_on_where_it_stood(
    served: Served, how: str, rubric: str | None, role: Role, drafts: int, grades: int
) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    served.models.hold_second(role)
    await served.client.start(start(messages=[USER]), thread_id=thread)
    await served.models.called(role, 2)
    before = await served.client.state(thread)

    status = await end(served, thread, how)
    served.models.release()
    result = await served.client.invoke(thread, rubric=rubric)
    paid = served.models.count("generator"), served.models.count("grader")
    other = await served.client.invoke(thread, rubric="- it is better")

    assert status == ENDS[how]
    assert before.iteration == 1
    assert (result.grading_run_id, result.status) == (before.grading_run_id, "satisfied")
    assert [evaluation.iteration for evaluation in result.evaluations] == [0, 1]
    assert paid == (drafts, grades)
    assert other.grading_run_id != before.grading_run_id
    assert [message for message in await served.contents(thread) if message == "hello"] == ["hello"]


async def test_a_turn_that_is_terminated_under_its_caller_raises_and_is_not_begun_again_by_itself(served: Served) -> None:
    thread = a_thread()
    await served.client.start(start(messages=[USER], idle_timeout=60), thread_id=thread)
    await served.until(thread, lambda state: state.status == "idle" and state.grading_run_id)
    served.models.hold_second("generator")
    waiting = asyncio.create_task(served.client.invoke(thread, "more"))
    await served.models.called("generator", 2)

    status = await end(served, thread, "terminate")
    with pytest.raises(ThreadClosed, match="was terminated; invoke it again"):
        await asyncio.wait_for(waiting, SECONDS)
    last = await served.handle(thread).describe()
    served.models.release()

    assert status == last.status == WorkflowExecutionStatus.TERMINATED


@pytest.mark.slow
async def test_a_start_that_a_closed_thread_refuses_leaves_no_error_unread(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    await end(served, thread, "complete")

    result = await served.client.invoke(thread, "more", start=start())
    gc.collect()
    await asyncio.sleep(0)

    assert result.status == "satisfied"
    assert "never retrieved" not in caplog.text


async def test_a_raw_restart_that_is_refused_loses_nothing(served: Served) -> None:
    thread = f"it's {a_thread()}"
    first = await served.client.invoke(thread, "hello", start=start())
    await end(served, thread, "complete")
    refused = await served.temporal.start_workflow("GradingThread", {"generator": 5}, id=thread, task_queue=served.task_queue)
    with pytest.raises(WorkflowFailureError):
        await refused.result()

    second = await once_listed(served, thread)

    assert (first.status, second.status) == ("satisfied", "satisfied")
    assert [message for message in await served.contents(thread) if message in {"hello", "more"}] == ["hello", "more"]


async def once_listed(served: Served, thread: str) -> RunResult:
    """Invoke the thread, again while the server's list does not know its runs yet."""
    for _ in range(50):
        try:
            return await served.client.invoke(thread, "more")
        except InvalidRequest:
            await asyncio.sleep(0.1)
    raise AssertionError("never listed")


@pytest.mark.parametrize("how", list(ENDS))
async def test_an_idle_thread_goes_on_after_any_end(served: Served, how: str) -> None:
    thread = a_thread()
    await served.temporal.start_workflow(
        "GradingThread",
        start(messages=[USER], idle_timeout=86_400 if how == "time-out" else 60),
        id=thread,
        task_queue=served.task_queue,
        execution_timeout=timedelta(hours=1) if how == "time-out" else None,
    )
    await served.until(thread, lambda state: state.status == "idle" and state.grading_run_id)
    first = (await served.client.evaluations(thread)).items
    events = await served.events(thread)

    status = await end(served, thread, how)
    result = await served.client.invoke(thread, "more")

    assert status == ENDS[how]
    assert (result.status, result.output, result.iterations) == ("satisfied", "draft 2", 1)
    assert (await served.client.evaluations(thread)).items[:1] == first
    assert await served.contents(thread) == ["hello", "draft 1", "more", "draft 2"]
    after = await served.events(thread)
    assert after[: len(events)] == events
    assert [event.seq for event in after] == list(range(1, len(after) + 1))


async def test_a_thread_that_ran_out_of_time_in_a_call_goes_on_with_its_run(served: Served) -> None:
    thread = a_thread()
    served.models.hold("grader")
    await served.temporal.start_workflow(
        "GradingThread", start(messages=[USER]), id=thread, task_queue=served.task_queue, execution_timeout=timedelta(seconds=1)
    )
    await served.models.called("grader")
    before = await served.client.state(thread)
    with pytest.raises(WorkflowFailureError):
        await served.handle(thread).result()
    served.models.release()

    result = await served.client.invoke(thread)

    assert (result.grading_run_id, result.status, result.output) == (before.grading_run_id, "satisfied", "draft 1")
    assert served.models.count("generator") == 1


async def test_a_checkpoint_stays_readable_after_the_thread_is_cancelled(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    run_id = (await served.handle(thread).describe()).run_id
    await end(served, thread, "cancel")
    stopped = await turn

    checkpoint: Any = await served.client.checkpoint(thread)
    state = await served.client.state(thread)

    assert (checkpoint["temporal_run_id"], checkpoint["thread"]["status"]) == (run_id, "interrupted")
    assert (state.status, state.grading_run_id) == ("interrupted", stopped.grading_run_id)
    with pytest.raises(ThreadClosed, match="was cancelled"):
        await served.client.result(thread)


async def test_nothing_but_what_was_in_flight_is_asked_of_the_worker_again(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    await end(served, thread, "cancel")
    await turn
    served.models.release()

    await served.client.invoke(thread)

    assert await scheduled_types(served.temporal, thread) == {"grade": 1}
    await replay(served.temporal, thread)


async def test_a_resume_reopens_a_closed_thread(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    await end(served, thread, "cancel")
    stopped = await turn
    served.models.release()

    result = await served.client.resume(thread)

    assert (result.grading_run_id, result.status) == (stopped.grading_run_id, "satisfied")


async def test_a_thread_keeps_its_owner_when_it_is_started_again_from_its_checkpoint(served: Served) -> None:
    thread = await served.client.start(
        start(idle_timeout=0, messages=[{"role": "user", "content": "Write."}]), thread_id=a_thread(), owner="ann"
    )
    await served.client.result(thread)
    first = (await served.temporal.get_workflow_handle(thread).describe()).run_id

    await served.client.override(thread, "c1", False, why="it is not", by="ann")
    others = await served.client.start(start(idle_timeout=0, messages=[{"role": "user", "content": "Write."}]), thread_id=a_thread())

    assert (await served.temporal.get_workflow_handle(thread).describe()).run_id != first
    assert await served.client.owner_of(thread) == "ann"
    assert await served.client.owner_of(others) is None


async def test_a_caller_who_waits_gives_up_when_it_is_cancelled(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await served.client.invoke(thread, "more")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


async def test_many_who_come_to_a_closed_thread_at_once_open_it_once(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start(idle_timeout=0))
    await served.client.result(thread)

    results = await asyncio.gather(*(served.client.invoke(thread, f"turn {number}") for number in range(6)))

    said = await served.contents(thread)
    assert Counter(said)["hello"] == 1
    assert sorted(text for text in said if text.startswith("turn")) == [f"turn {number}" for number in range(6)]
    assert len({result.grading_run_id for result in (first, *results)}) == 7


async def test_a_start_under_a_taken_id_is_refused(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(idle_timeout=0))
    await served.client.result(thread)

    with pytest.raises(InvalidRequest, match="exists already; choose another id, or invoke it"):
        await served.client.start(start(messages=[USER]), thread_id=thread)

    assert await served.contents(thread) == ["hello", "draft 1"]


async def test_a_start_with_another_rubric_reads_a_checkpoint_and_judges_the_draft_by_it(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start(idle_timeout=0))
    checkpoint = await served.client.checkpoint(thread)

    result = await served.client.result(
        await served.client.start(start(idle_timeout=0, rubric="- it is better", checkpoint=checkpoint), thread_id=a_thread())
    )

    assert result.grading_run_id != first.grading_run_id
    assert (result.status, result.output, result.evaluations[-1].criteria[0].name) == ("satisfied", "draft 1", "it is better")


@pytest.mark.slow
async def test_a_thread_that_one_turn_has_filled_goes_on_from_its_checkpoint(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, [{"role": "user", "content": "x" * 700_000}] * 2, start=start(idle_timeout=0))
    await served.client.result(thread)

    result = await served.client.invoke(thread, "more")

    assert (result.status, result.output) == ("satisfied", "draft 2")


async def restarted(served: Served, thread: str, **given: Any) -> WorkflowHandle[Any, Any]:
    """Terminate the thread's workflow, and start it from its checkpoint as a service does that has more for it."""
    handle = served.handle(thread)
    await handle.terminate("enough")
    request = start(**{"rubric": ..., "checkpoint": await served.client.checkpoint(thread)} | given)
    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    return await served.temporal.start_workflow("GradingThread", request, id=thread, task_queue=served.task_queue, id_reuse_policy=reuse)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"rubric": "- it is better"}])
async def test_a_start_with_messages_keeps_what_a_person_is_asked(served: Served, given: dict[str, Any]) -> None:
    thread = a_thread()
    person = {"criteria": ["it is good", {"id": "kind", "description": "kind", "human": True}]}
    asked = await served.client.invoke(thread, "hello", start=start(rubric=person))

    again = await restarted(served, thread, messages=[{"role": "user", "content": "more"}], **given)
    await served.until(thread, lambda state: state.queued == 1)
    state = await served.client.state(thread)
    key = f"start/{again.result_run_id}"
    before = await again.query("result", key)
    await served.client.decide(thread, "kind", True, by="ann")
    await served.until(thread, lambda state: state.status == ("idle" if given else "waiting") and not state.queued)
    after = RunResult.model_validate(await again.query("result", key))
    evaluations = (await served.client.evaluations(thread)).items
    await replay(served.temporal, thread)

    assert (state.status, state.waiting_for, before) == ("waiting", asked.waiting_for, None)
    assert next((one.result, one.draft) for one in evaluations) == ("satisfied", 1)
    assert (after.status, after.output) == ("satisfied" if given else "waiting", "draft 2")
    assert await served.contents(thread) == ["hello", "draft 1", "more", "draft 2"]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "too large": ({}, {"messages": [{"role": "user", "content": "x" * 800_000}]}, "the thread would hold"),
    "without a budget": ({"budget": {"max_tokens": 15}}, {"messages": [USER]}, "give a larger one"),
    "with a variable that is not there": ({}, {"messages": [USER], "rubric": "- {{ x }}", "vars": {"y": 1}}, "x"),
}


@pytest.mark.parametrize(("first", "turn", "why"), REFUSED.values(), ids=REFUSED)
async def test_a_start_is_refused_where_the_turn_would_be(served: Served, first: dict[str, Any], turn: dict[str, Any], why: str) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "y" * 800_000, start=start(**{"rubric": ..., **first}))

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await served.handle(thread).execute_update("invoke", turn)
    with pytest.raises(WorkflowFailureError) as failed:
        await (await restarted(served, thread, **turn)).result()

    causes = refused.value.cause, failed.value.cause
    told = [(cause.type, cause.message) for cause in causes if isinstance(cause, ApplicationError)]
    assert told == [told[0]] * 2
    assert why in told[0][1]
    assert served.models.count("generator") == 1


async def test_the_turn_of_a_start_is_known_by_its_key(served: Served) -> None:
    thread = a_thread()
    served.models.hold("generator")
    await served.client.start(start(messages=[USER]), thread_id=thread)
    await served.models.called("generator")
    joined = asyncio.create_task(served.client.invoke(thread, "hello", rubric="- it is good", key="start"))
    await asyncio.sleep(0.2)
    served.models.release()
    result = await joined

    assert (result.status, result.output) == ("satisfied", "draft 1")
    assert await served.contents(thread) == ["hello", "draft 1"]


@pytest.mark.slow
async def test_no_turn_is_lost_or_doubled_in_a_race_with_the_thread_closing(served: Served) -> None:
    threads = [a_thread() for _ in range(10)]

    async def race(thread: str) -> None:
        for number in range(RACES // len(threads)):
            result, _ = await asyncio.gather(insisting(served, thread, f"turn {number}"), closed(served, thread))
            assert (result.messages or ())[0].content == f"turn {number}"

    await asyncio.gather(*(race(thread) for thread in threads))

    for thread in threads:
        said = await served.contents(thread)
        assert said[::2] == [f"turn {number}" for number in range(RACES // len(threads))]
        assert all(text.startswith("draft") for text in said[1::2])
        seqs = [event.seq for event in await served.events(thread)]
        assert seqs == list(range(1, len(seqs) + 1))
    assert served.models.count("generator") == RACES // len(threads) * len(threads)


async def insisting(served: Served, thread: str, text: str) -> RunResult:
    """Invoke a thread that completes when it has nothing to do, again where it was just closing."""
    while True:
        try:
            return await served.client.invoke(thread, text, start=start(idle_timeout=0, rubric=..., grader=...))
        except InvalidRequest as refused:
            if "the thread is closing" not in str(refused):
                raise


async def closed(served: Served, thread: str) -> None:
    """Close a thread if it is open."""
    try:
        await served.client.close_thread(thread)
    except GradeloopError:
        return


async def test_a_service_in_any_language_goes_on_with_two_calls(served: Served) -> None:
    thread, queue = a_thread(), served.task_queue
    client: Client = served.temporal
    first = await client.execute_workflow("GradingThread", start(idle_timeout=0, messages=[USER]), id=thread, task_queue=queue)
    plain: dict[str, Any] = start(idle_timeout=0)

    def operation(request: dict[str, Any], reuse: WorkflowIDReusePolicy) -> WithStartWorkflowOperation[Any, Any]:
        return WithStartWorkflowOperation(
            "GradingThread",
            request,
            id=thread,
            task_queue=queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=reuse,
        )

    turn = {"messages": [{"role": "user", "content": "more"}], "rubric": None, "key": None}
    with pytest.raises(WorkflowAlreadyStartedError):
        await client.execute_update_with_start_workflow(
            "invoke", turn, start_workflow_operation=operation(plain, WorkflowIDReusePolicy.REJECT_DUPLICATE), id=str(uuid4())
        )
    checkpoint = await client.get_workflow_handle(thread).query("checkpoint")
    second = await client.execute_update_with_start_workflow(
        "invoke",
        turn,
        start_workflow_operation=operation(plain | {"checkpoint": checkpoint}, WorkflowIDReusePolicy.ALLOW_DUPLICATE),
        id=str(uuid4()),
    )

    assert isinstance(first, dict)
    assert (second["status"], second["output"], second["thread_id"]) == ("satisfied", "draft 2", thread)
    assert await served.contents(thread) == ["hello", "draft 1", "more", "draft 2"]


@pytest.mark.parametrize("checkpoint", [{}, {"thread": {}}, {"thread": {"log": 7}}, {"temporal_run_id": "x", "thread": None}])
async def test_a_checkpoint_that_is_none_is_refused(served: Served, checkpoint: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="checkpoint"):
        await served.client.result(await served.client.start(start(messages=[USER], checkpoint=checkpoint)))

    assert served.models.requests == []


async def test_a_thread_stays_open_for_its_idle_timeout_and_then_completes(served: Served) -> None:
    thread = a_thread()
    handle = served.handle(thread)
    first = await served.client.invoke(thread, "hello", start=start(idle_timeout=3600))

    await TimeSkipper(served.temporal).fast_forward(handle, timedelta(minutes=50))
    second = await served.client.invoke(thread, "more")
    await TimeSkipper(served.temporal).fast_forward(handle, timedelta(minutes=50))
    status = (await handle.describe()).status
    await TimeSkipper(served.temporal).fast_forward(handle, timedelta(minutes=20))

    assert status == WorkflowExecutionStatus.RUNNING
    assert await served.client.result(thread) == second
    assert second.output != first.output


async def test_a_thread_that_is_given_nothing_to_do_is_refused_after_a_while(served: Served) -> None:
    thread = a_thread()
    handle = await served.temporal.start_workflow("GradingThread", start(idle_timeout=0), id=thread, task_queue=served.task_queue)
    await served.until(thread, lambda state: state.status == "idle")

    await TimeSkipper(served.temporal).fast_forward(handle, timedelta(seconds=9))
    before = (await handle.describe()).status
    await TimeSkipper(served.temporal).fast_forward(handle, timedelta(seconds=2))
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()

    assert before == WorkflowExecutionStatus.RUNNING
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "InvalidRequest"
    assert caught.value.cause.message.startswith("messages is empty and no turn came")
    assert served.models.requests == []


async def test_the_client_refuses_to_start_a_thread_with_nothing_to_do(served: Served) -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        await served.client.start(start(idle_timeout=0))


@pytest.mark.parametrize("role", ["generator", "grader"])
async def test_a_run_that_was_left_for_a_day_without_a_worker_goes_on(client: Client, role: Role) -> None:
    models = answering()
    async with serving(client, models=models) as served:
        thread, queue = a_thread(), served.task_queue
        turn = await served.begun(thread, role, idle_timeout=0)
        await served.client.interrupt(thread)
        stopped = await turn
    await TimeSkipper(client).fast_forward(client.get_workflow_handle(thread), timedelta(days=1))
    async with serving(client, models=models, task_queue=queue) as served:
        result = await served.client.invoke(thread)
        await replay(client, thread)

    assert (result.grading_run_id, result.status, result.iterations) == (stopped.grading_run_id, "satisfied", 1)
    assert models.count("generator") == (2 if role == "generator" else 1)


async def test_a_bad_start_with_a_turn_is_refused_before_anything_is_paid_for(served: Served) -> None:
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        "GradingThread",
        {"generator": {}},
        id=a_thread(),
        task_queue=served.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )

    with pytest.raises((WorkflowUpdateFailedError, RPCError)):
        await served.temporal.execute_update_with_start_workflow(
            "invoke", {"messages": [USER]}, start_workflow_operation=operation, id=str(uuid4())
        )
    with pytest.raises(WorkflowFailureError) as caught:
        await (await operation.workflow_handle()).result()

    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "InvalidRequest"
    assert served.models.requests == []
