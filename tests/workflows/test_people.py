"""People: asked last, waited for as long as it takes, and heard beside the machine."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from gradeloop.batches.cases import result_of_thread
from gradeloop.batches.contract import Case
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest
from tests.rig.threads import (
    JUDGE,
    Thread,
    a_thread,
    answering,
    draft,
    grade,
    page,
    replay,
    request,
    row,
    serving,
    start,
    until,
)

RUBRIC = {"criteria": ["three lines", {"id": "promise", "description": "Promises nothing", "human": True}]}


async def waiting(thread: Thread) -> dict[str, Any]:
    """Return what a decision has to name, once the thread waits."""
    asked: dict[str, Any] = (await until(thread, "waiting"))["waiting_for"]
    return {"grading_run_id": asked["grading_run_id"], "iteration": asked["iteration"], "criterion": "promise", "by": "ann"}


async def refused(thread: Thread, update: str, argument: object) -> tuple[str | None, str]:
    """Return the type and the words of a refusal."""
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await thread.execute_update(update, argument)
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause.type, caught.value.cause.message


@pytest.mark.slow
async def test_a_person_is_asked_last_and_the_run_goes_on_with_the_answer(client: Client) -> None:
    async with serving(client, draft(), grade(), draft(1), grade(1)) as served:
        thread = await served.start(request(RUBRIC))
        asked = await waiting(thread)
        first = await thread.query("result", result_type=RunResult)
        await thread.execute_update("decide", asked | {"passed": False, "gap": "it promises a refund"})
        again = await waiting(thread)
        await thread.execute_update("decide", again | {"passed": True})
        result = await thread.result()
        events = [item["type"] for item in (await page(thread, "events"))["items"]]
        await replay(client, thread.id)

    assert (first.status, first.waiting_for.criteria[0].name if first.waiting_for else None) == ("waiting", "Promises nothing")
    assert (result.status, result.iterations, result.waiting_for) == ("satisfied", 2, None)
    criteria = [evaluation.criteria[1] for evaluation in result.evaluations]
    assert [(item.passed, item.by, item.reason, item.gap) for item in criteria] == [
        (False, "human", "decided by ann", "it promises a refund"),
        (True, "human", "decided by ann", None),
    ]
    assert "- [promise] Promises nothing: it promises a refund" in served.models.requests_of("generator")[1].messages[-1].content
    assert len(served.models.requests_of("grader")) == 2
    assert [event for event in events if event in {"waiting", "decided", "resumed"}] == ["waiting", "decided", "resumed"] * 2


async def test_the_draft_that_is_asked_about_is_the_result_and_in_the_question(client: Client) -> None:
    replies = [draft(text="one\ntwo"), grade(0, row("c1", "two lines")), draft(1, text="one\ntwo\nthree"), grade(1)]
    async with serving(client, *replies) as served:
        thread = await served.start(request(RUBRIC))
        asked = (await until(thread, "waiting"))["waiting_for"]["draft"]
        result = await thread.query("result", result_type=RunResult)
        await thread.signal("close")
        ended = await thread.result()

    assert (result.status, result.output, result.best_iteration, result.score) == ("waiting", "one\ntwo\nthree", None, None)
    assert (asked["index"], asked["text"]) == (3, "one\ntwo\nthree")
    assert [(item["id"], item["passed"], item["by"]) for item in asked["rows"]] == [("c1", True, "model")]
    assert "previous" not in asked
    assert "changes" not in asked
    assert result.waiting_for is not None
    assert result.waiting_for.draft is not None
    assert result.waiting_for.draft.model_dump(mode="json") == asked
    assert ended.output == "one\ntwo\nthree"
    case = {"id": "a", "rubric": RUBRIC, "generator": {"model": "scripted:writer"}, "messages": [{"role": "user", "content": "x"}]}
    assert result_of_thread(Case.model_validate(case | {"loop": True}), ended).criteria == result.waiting_for.draft.rows


@pytest.mark.slow
async def test_the_question_says_what_changed_since_the_person_was_last_asked(client: Client) -> None:
    replies = [
        draft(text="a cat sat"),
        grade(),
        draft(1, text="a dog sat"),
        grade(1, row("c1", "no")),
        draft(2, text="the dog sat"),
        grade(2),
    ]
    async with serving(client, *replies) as served:
        thread = await served.start(request(RUBRIC))
        asked = await waiting(thread)
        await thread.execute_update("decide", asked | {"passed": False, "gap": "no cats"})
        now = (await until(thread, "waiting"))["waiting_for"]
        await thread.execute_update("decide", await waiting(thread) | {"passed": True})
        result = await thread.result()
        await replay(client, thread.id)

    assert (now["iteration"], now["draft"]["index"], now["draft"]["previous"]) == (2, 5, 1)
    assert now["draft"]["changes"] == [
        {"kind": "removed", "text": "a cat"},
        {"kind": "added", "text": "the dog"},
        {"kind": "same", "text": " sat"},
    ]
    assert (result.status, result.output) == ("satisfied", "the dog sat")


async def test_a_long_draft_is_asked_about_without_its_text(client: Client) -> None:
    text = "word " * 40_000
    async with serving(client, draft(text=text), grade()) as served:
        thread = await served.start(request(RUBRIC))
        asked = (await until(thread, "waiting"))["waiting_for"]["draft"]
        result = await thread.query("result", result_type=RunResult)
        await thread.signal("close")

    assert (asked["index"], asked["text"], result.output) == (1, None, text)


async def test_nobody_is_asked_while_something_else_fails(client: Client) -> None:
    async with serving(client, draft(), grade(0, row("c1", "two lines")), draft(1), grade(1)) as served:
        thread = await served.start(request(RUBRIC))
        asked = await waiting(thread)
        first = (await page(thread, "evaluations"))["items"][0]
        feedback = served.models.requests_of("generator")[1].messages[-1].content
        await thread.execute_update("decide", asked | {"passed": True})
        result = await thread.result()

    assert (asked["iteration"], first["result"]) == (1, "needs_revision")
    assert first["criteria"][1] == {
        "id": "promise",
        "name": "Promises nothing",
        "passed": False,
        "reason": "nobody was asked, since other criteria fail",
        "unverified": True,
        "by": "nobody",
    }
    assert "Promises" not in feedback
    assert result.status == "satisfied"


async def test_a_caller_gets_waiting_and_the_same_key_waits_for_the_end(client: Client) -> None:
    more = [draft(run=1), {"role": "grader", "run": 1, "verdict": grade()["verdict"]}]
    async with serving(client, draft(), grade(), *more) as served:
        thread_id = f"thread-{uuid4()}"
        start = request(RUBRIC)
        start["messages"] = []
        first = await served.client.invoke(thread_id, "hello", key="order-1", start=start)
        second = asyncio.create_task(served.client.invoke(thread_id, "hello", key="order-1"))
        queued = asyncio.create_task(served.client.invoke(thread_id, "another", key="order-2"))
        await asyncio.sleep(0.3)
        ended_early = second.done()
        await served.client.decide(thread_id, "promise", True, by="ann")
        result = await second
        state = await until(client.get_workflow_handle(thread_id), "waiting")
        queued.cancel()

    assert (first.status, ended_early, result.status, result.grading_run_id) == ("waiting", False, "satisfied", first.grading_run_id)
    assert state["grading_run_id"] != first.grading_run_id


async def test_a_decision_that_nothing_waits_for_is_refused(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request(RUBRIC, idle_timeout=60))
        asked = await waiting(thread)
        refusals = [
            await refused(thread, "decide", asked | {"criterion": "c1", "passed": True}),
            await refused(thread, "decide", asked | {"iteration": 7, "passed": True}),
            await refused(thread, "decide", asked | {"passed": False}),
            await refused(thread, "decide", asked),
        ]
        await thread.execute_update("decide", asked | {"passed": True})
        late = await refused(thread, "decide", asked | {"passed": True})
        await thread.signal("close")

    assert [kind for kind, _ in refusals] == ["StaleDecision", "StaleDecision", "InvalidRequest", "InvalidRequest"]
    assert refusals[0][1] == "the criterion 'c1' does not wait; those that do are: promise"
    assert refusals[2][1] == "gap is missing; say what the author has to mend"
    assert late[0] == "StaleDecision"


async def test_who_waits_with_a_key_gets_the_new_rubrics_result(client: Client) -> None:
    more = {"role": "grader", "run": 1, "verdict": grade()["verdict"]}
    async with serving(client, draft(), grade(), more) as served:
        thread_id = f"thread-{uuid4()}"
        start = request(RUBRIC, idle_timeout=60) | {"messages": []}
        await served.client.invoke(thread_id, "hello", key="order-1", start=start)
        await served.client.supply_rubric(thread_id, "- three lines, and a joke")
        await until(client.get_workflow_handle(thread_id), "idle")
        again = await served.client.invoke(thread_id, "hello", key="order-1")
        await served.client.close_thread(thread_id)

    assert (again.status, again.evaluations[0].criteria[0].name) == ("satisfied", "three lines, and a joke")


@pytest.mark.parametrize("how", ["close", "interrupt"])
async def test_a_turn_that_queued_behind_a_person_is_not_left_hanging(client: Client, how: str) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request(RUBRIC))
        await waiting(thread)
        queued = asyncio.create_task(served.client.invoke(thread.id, "another"))
        while not (await thread.query("state", result_type=dict[str, Any]))["queued"]:
            await asyncio.sleep(0.02)
        await thread.signal(how)
        dropped = await asyncio.wait_for(queued, 240)
        if how == "interrupt":
            await thread.signal("close")
        result = await asyncio.wait_for(thread.result(), 240)

    assert (dropped.status, dropped.messages) == ("interrupted", ())
    assert result.status == {"close": "waiting", "interrupt": "interrupted"}[how]


@pytest.mark.slow
async def test_a_thread_that_waits_goes_on_from_its_checkpoint(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request(RUBRIC))
        await waiting(thread)
        await thread.cancel()
        while (await thread.describe()).status == 1:
            await asyncio.sleep(0.02)
        await served.client.decide(thread.id, "promise", True, by="ann")
        result = await served.client.result(thread.id)

    assert (result.status, len(served.models.requests_of("grader"))) == ("satisfied", 1)


async def test_an_override_stands_beside_the_verdict_of_a_run_that_has_ended(client: Client) -> None:
    async with serving(client, draft(), grade(0, row("c1", "two lines"))) as served:
        thread = await served.start(request("- three lines", max_iterations=1))
        before = await thread.result()
        evaluation = await served.client.override(thread.id, "c1", True, why="it has three", by="ann")
        after = await served.client.result(thread.id)

    row_after = after.evaluations[0].criteria[0]
    assert (before.status, before.overridden_result) == ("max_iterations_reached", None)
    assert (after.status, after.overridden_result, evaluation.overridden_result) == ("max_iterations_reached", "satisfied", "satisfied")
    assert (row_after.passed, row_after.gap) == (False, "two lines")
    assert row_after.override is not None
    assert (row_after.override.passed, row_after.override.why, row_after.override.by) == (True, "it has three", "ann")


async def test_an_override_that_meets_the_rubric_ends_a_run_in_flight(client: Client) -> None:
    async with serving(client, draft(), grade(0, row("c1", "two lines")), draft(1), grade(1)) as served:
        gate = served.models.gate("generator", 1)
        thread = await served.start(request("- three lines"))
        await gate.reached.wait()
        await served.client.override(thread.id, "c1", True, why="it has three", by="ann")
        gate.opened.set()
        result = await thread.result()
        await replay(client, thread.id)

    assert (result.status, result.output, result.iterations, result.overridden_result) == ("satisfied", "draft 0", 1, "satisfied")
    assert served.models.requests_of("grader")[1:] == []


async def test_an_override_of_what_is_not_there_is_refused(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request("- three lines", idle_timeout=60))
        await until(thread, "idle")
        with pytest.raises(InvalidRequest) as caught:
            await served.client.override(thread.id, "c9", False, why="x", by="ann")
        await thread.signal("close")

    assert "there is no verdict on 'c9' at that run and iteration" in str(caught.value)


@pytest.mark.parametrize("prompt", ["full", "short"])
async def test_what_a_grader_was_given_can_be_seen_later_without_the_code_of_its_fence(client: Client, prompt: str) -> None:
    async with serving(client, draft(), grade(0, row("c1", "two lines")), draft(1), grade(1)) as served:
        thread = await served.start(request("- three lines", grader={"model": JUDGE, "prompt": prompt}))
        result = await thread.result()
        shown = [await served.client.prompt(thread.id, at) for at in range(3)]

    first, second, none = shown
    assert first is not None
    assert second is not None
    assert none is None
    sent = served.models.requests_of("grader")
    assert ("unjudgeable" in sent[0].system) == (prompt == "full")
    code = sent[0].messages[0].content.split()[2]
    for given, real in zip((first, second), sent, strict=True):
        assert given.system == real.system
        assert [message.content for message in given.messages] == [
            message.content.replace(code, "(the run's random code)") for message in real.messages
        ]
    assert code not in first.model_dump_json()
    assert {evaluation.rubric_sha256 for evaluation in result.evaluations} == {first.rubric_sha256}
    assert {(evaluation.grader, evaluation.prompt_version) for evaluation in result.evaluations} == {
        ("scripted:judge", first.prompt_version)
    }


@pytest.mark.slow
async def test_the_same_key_waits_for_the_end_however_often_a_person_is_asked(client: Client) -> None:
    models = answering()
    async with serving(client, models=models) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", key="one", start=start(rubric="- it is good"))
        first = await served.client.invoke(thread, "more", key="two", rubric=RUBRIC)
        attached = [asyncio.create_task(served.client.invoke(thread, "more", key="two", rubric=RUBRIC))]
        await asyncio.sleep(0.3)
        await served.client.decide(thread, "promise", False, gap="it promises", by="ann")
        await served.until(thread, lambda state: state.status == "waiting" and state.iteration == 1)
        attached.append(asyncio.create_task(served.client.invoke(thread, "more", key="two", rubric=RUBRIC)))
        await asyncio.sleep(0.3)
        early = [task.done() for task in attached]
        await served.client.decide(thread, "promise", True, by="ann")
        results = await asyncio.gather(*attached)

    assert (first.status, early) == ("waiting", [False, False])
    assert [(result.status, result.iterations) for result in results] == [("satisfied", 2)] * 2
