"""A thread's story: what its page is made of, read from the thread itself and from all that Temporal keeps of it."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from gradeloop.client.client import GradingClient
from gradeloop.contract.evaluation import EVIDENCE_BYTES
from gradeloop.contract.messages import ToolCall
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadNotFound
from gradeloop.reports.model import RunReport, ToolEvidence
from gradeloop.reports.read_thread import LOST, read_thread_report, read_tool_calls
from gradeloop.reports.run_page import criterion_mark, run_page
from tests.rig.threads import (
    JUDGE,
    Models,
    Served,
    a_thread,
    answering,
    draft,
    failing_until,
    grade,
    request,
    row,
    runs_of,
    serving,
    start,
    until,
    wants,
)

CHECKED = {"criteria": [{"id": "tests", "description": "tests pass", "check": "run_tests"}, {"id": "three", "description": "three lines"}]}


def run_tests(draft: str, strict: bool = False) -> dict[str, Any]:
    """Run the tests."""
    return {"ok": "draft 1" in draft, "failed": 2}


def peek(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


def broken(at: str) -> str:
    """Look, and fail."""
    raise ValueError(f"no {at} here")


MISSING = "the history of the workflow's first runs has expired on the server, so their tool calls are not shown"


async def report_of(served: Served, thread_id: str) -> RunReport:
    """Return the story of a thread that is served there."""
    return await read_thread_report(GradingClient(served.temporal, task_queue=served.task_queue), thread_id)


def facts(use: ToolEvidence) -> tuple[str, str, int | None, str | None, dict[str, Any], str]:
    """Return what a test says of a tool call."""
    return use.tool, use.role, use.iteration, use.criterion, use.arguments, use.output


async def test_every_tool_call_is_told_with_its_arguments_output_and_place(client: Client) -> None:
    argument = request(CHECKED)
    argument["grader"]["tools"] = ["peek"]
    argument["generator"]["tools"] = ["peek"]
    looks = {"name": "peek", "arguments": {"at": "line 4"}}
    replies = [
        wants("generator", {"name": "peek", "arguments": {"at": "a book"}}),
        draft(step=1),
        wants("grader", looks),
        grade(0, row("three", "four lines"), step=1),
        draft(1),
        wants("grader", looks, looks, iteration=1),
        grade(1, row("three"), step=1),
    ]
    async with serving(client, *replies, tools=[run_tests, peek]) as served:
        thread = await served.start(argument)
        result = await thread.result()
        story = await report_of(served, thread.id)

    assert [facts(tool) for tool in story.tools] == [
        ("peek", "generator", 0, None, {"at": "a book"}, "seen a book"),
        ("run_tests", "check", 0, "tests", {}, "not passed: failed: 2"),
        ("peek", "grader", 0, "three", {"at": "line 4"}, "seen line 4"),
        ("run_tests", "check", 1, "tests", {}, "passed"),
        ("peek", "grader", 1, "three", {"at": "line 4"}, "seen line 4"),
        ("peek", "grader", 1, "three", {"at": "line 4"}, "seen line 4"),
    ]
    assert {tool.grading_run_id for tool in story.tools} == {result.grading_run_id}
    assert not any(tool.failed for tool in story.tools)
    assert all(tool.seconds is not None and tool.attempts == 1 for tool in story.tools)
    assert [event.type for event in story.events].count("tool_called") == len(story.tools)
    assert (story.verdict, story.word, story.score, story.best, story.notes) == ("passed", "satisfied", 1.0, story.evaluations[1].draft, ())
    assert story.messages[story.best or 0].content == "draft 1"
    assert (story.about["generator"], story.about["grader"]) == ("scripted:writer", JUDGE)
    assert story.about["started"] < story.about["closed"]


async def test_a_tool_of_a_grader_that_is_asked_about_several_criteria_is_for_none_of_them(client: Client) -> None:
    argument = request("- three lines\n- spring")
    argument["grader"]["tools"] = ["peek"]
    async with serving(
        client, draft(), wants("grader", {"name": "peek", "arguments": {"at": "x"}}), grade(0, row("c1"), row("c2"), step=1), tools=[peek]
    ) as served:
        thread = await served.start(argument)
        await thread.result()
        story = await report_of(served, thread.id)

    assert [(tool.role, tool.criterion, tool.iteration) for tool in story.tools] == [("grader", None, 0)]


@pytest.mark.slow
async def test_what_a_tool_raises_is_told_as_its_failure(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["broken"]
    call = {"name": "broken", "arguments": {"at": "book"}}
    async with serving(client, draft(), wants("grader", call), grade(step=1), tools=[broken]) as served:
        thread = await served.start(argument)
        await thread.result()
        story = await report_of(served, thread.id)

    (use,) = story.tools
    assert (use.failed, use.output, use.arguments) == (True, "ValueError: no book here", {"at": "book"})


@pytest.mark.slow
async def test_a_check_that_cannot_decide_is_an_error_and_no_verdict(client: Client) -> None:
    def check(draft: str) -> bool:
        """Check."""
        raise ValueError("the disk is full")

    argument = request({"criteria": [{"id": "c", "description": "it holds", "check": "check"}]})
    async with serving(client, draft(), tools=[check]) as served:
        thread = await served.start(argument)
        await thread.result()
        story = await report_of(served, thread.id)

    (use,) = story.tools
    assert (use.role, use.criterion, use.failed) == ("check", "c", True)
    assert use.output == "checker_error: ValueError: the disk is full"
    assert use.attempts > 1
    assert (story.verdict, story.word) == ("error", "grader_error")
    assert "the disk is full" in (story.error or "")


@pytest.mark.slow
async def test_large_output_is_told_by_head_and_tail_with_its_size(client: Client) -> None:
    def read() -> str:
        """Read."""
        return "x" * 1_000_000

    argument = request("- x")
    argument["grader"]["tools"] = ["read"]
    async with serving(client, draft(), wants("grader", "read"), grade(step=1), tools=[read]) as served:
        thread = await served.start(argument)
        await thread.result()
        story = await report_of(served, thread.id)

    (use,) = story.tools
    assert use.bytes == 1_000_000
    assert len(use.output.encode()) <= EVIDENCE_BYTES


async def test_reading_the_transcript_is_told_like_any_tool(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.grading.prompts.Records.exceed", lambda *_: True)
    call = {"name": "read_transcript", "arguments": {"record": 1}}
    async with serving(client, draft(), wants("grader", call), grade(step=1)) as served:
        thread = await served.start(request("- x"))
        result = await thread.result()
        story = await report_of(served, thread.id)

    (use,) = story.tools
    assert (use.tool, use.role, use.arguments) == ("read_transcript", "grader", {"record": 1})
    assert (use.grading_run_id, use.iteration) == (result.grading_run_id, 0)
    assert "draft 0" in use.output


@pytest.mark.parametrize("fails", [False, True])
async def test_a_tool_elsewhere_is_told_under_the_name_that_the_model_knows(client: Client, fails: bool) -> None:
    @activity.defn(name="look_it_up")
    async def look(asked: dict[str, Any]) -> Any:
        if fails:
            raise ApplicationError("no such book", type="LibraryError", non_retryable=True)
        return {"word": asked["arguments"]["word"]}

    queue, argument = f"owner-{uuid4()}", request("- x")
    declared = {"name": "look", "description": "Look.", "activity": "look_it_up", "task_queue": queue}
    argument["grader"]["tools"] = [declared]
    call = {"name": "look", "arguments": {"word": "spring"}}
    async with (
        Worker(client, task_queue=queue, activities=[look]),
        serving(client, draft(), wants("grader", call), grade(step=1)) as served,
    ):
        thread = await served.start(argument)
        await thread.result()
        story = await report_of(served, thread.id)

    (use,) = story.tools
    assert (use.tool, use.iteration, use.criterion, use.arguments) == ("look", 0, "c1", {"word": "spring"})
    assert (use.failed, use.output) == (fails, "LibraryError: no such book" if fails else '{"word":"spring"}')


@pytest.mark.slow
async def test_a_call_that_nobody_made_is_no_evidence(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["peek"]
    async with serving(client, draft(), wants("grader", "poke"), grade(step=1), tools=[peek]) as served:
        thread = await served.start(argument)
        await thread.result()
        story = await report_of(served, thread.id)

    assert story.tools == ()


async def test_a_run_that_used_up_its_iterations_failed_and_its_best_draft_is_named(client: Client) -> None:
    rubric = "- three lines\n- spring"
    replies = [draft(), grade(0, row("c1"), row("c2", "winter")), draft(1), grade(1, row("c1", "two"), row("c2", "winter"))]
    async with serving(client, *replies) as served:
        thread = await served.start(request(rubric, max_iterations=2, vars={"season": "spring"}))
        result = await thread.result()
        story = await report_of(served, thread.id)

    assert (story.verdict, story.word) == ("failed", "max_iterations_reached")
    assert (story.score, result.best_iteration) == (0.5, 0)
    assert story.best == story.evaluations[0].draft
    assert story.about["variables"] == '{"season": "spring"}'
    assert story.rubric is not None
    assert [criterion.id for criterion in story.rubric.criteria] == ["c1", "c2"]
    assert story.usage == result.usage


async def test_an_open_thread_is_told_as_far_as_it_has_come(client: Client) -> None:
    models = answering()
    models.answers["grader"] = failing_until(5)
    models.hold_second("generator")
    async with serving(client, models=models) as served:
        thread = await served.client.start(start(messages=[{"role": "user", "content": "hello"}]), thread_id=a_thread())
        await models.called("generator", 2)
        await served.until(thread, lambda state: state.phase == "generating" and state.iteration == 1)
        story = await read_thread_report(served.client, thread)

    assert (story.verdict, story.word) == ("running", "generating")
    assert len(story.evaluations) == 1
    assert story.best == story.evaluations[0].draft
    assert "closed" not in story.about


async def test_a_thread_that_somebody_terminated_has_no_verdict(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        served.models.hold("generator")
        await served.client.start(start(messages=[{"role": "user", "content": "hello"}]), thread_id=thread)
        await served.models.called("generator")
        await served.handle(thread).terminate("enough")
        served.models.release()
        story = await read_thread_report(served.client, thread)

    assert (story.verdict, story.word, story.best) == ("none", "terminated", None)
    assert "closed" in story.about


async def test_an_interrupted_run_has_no_verdict(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        turn = await served.begun(thread, "grader")
        await served.client.interrupt(thread)
        await turn
        story = await read_thread_report(served.client, thread)

    assert (story.verdict, story.word, story.about["interrupted by"]) == ("none", "interrupted", "person")


async def test_a_thread_that_waits_says_for_what(client: Client) -> None:
    rubric = {"criteria": ["three lines", {"id": "promise", "description": "Promises nothing", "human": True}]}
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request(rubric))
        await until(thread, "waiting")
        story = await report_of(served, thread.id)

    assert (story.verdict, story.word) == ("waiting", "waiting")
    assert story.waiting_for is not None
    assert [criterion.id for criterion in story.waiting_for.criteria] == ["promise"]
    assert story.waiting_for.draft is not None
    assert (story.waiting_for.draft.text, story.best, story.score) == ("draft 0", None, None)


async def test_a_criterion_about_which_nobody_was_asked_is_not_said_to_be_a_persons_verdict(client: Client) -> None:
    rubric = {"criteria": ["three lines", {"id": "promise", "description": "Promises nothing", "human": True}]}
    async with serving(client, draft(), grade(0, row("c1", "two lines"))) as served:
        thread = await served.start(request(rubric, max_iterations=1))
        await thread.result()
        story = await report_of(served, thread.id)

    found = story.evaluations[0].criteria[1]
    mark = criterion_mark(found)
    assert (found.by, mark.text, mark.by_person) == ("nobody", "no verdict", False)
    assert '<span class="tag person">' not in run_page(story)


@pytest.mark.slow
@pytest.mark.parametrize("passed", [True, False])
async def test_what_people_made_of_the_verdict_stands_beside_it(client: Client, passed: bool) -> None:
    grades = [grade(0, row("c1", "two lines") if passed else row("c1"))]
    async with serving(client, draft(), *grades) as served:
        thread = await served.start(request("- three lines", max_iterations=1))
        await thread.result()
        await GradingClient(client, task_queue=served.task_queue).override(thread.id, "c1", passed, why="I counted", by="ann")
        story = await report_of(served, thread.id)

    assert story.overridden is passed
    assert story.verdict == ("failed" if passed else "passed")
    assert story.evaluations[-1].criteria[0].override is not None


async def test_a_thread_without_a_rubric_is_told_without_a_verdict(client: Client) -> None:
    async with serving(client, draft()) as served:
        thread = await served.start(request())
        await thread.result()
        story = await report_of(served, thread.id)

    assert (story.verdict, story.word, story.rubric, story.score) == ("none", "ungraded", None, None)
    assert story.messages[story.best or 0].content == "draft 0"


async def test_a_rubric_that_was_cleared_is_shown_with_what_was_judged_by_it(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
        await served.client.invoke(thread, "and now?", rubric="")
        story = await read_thread_report(served.client, thread)

    assert (story.verdict, story.word, len(story.evaluations)) == ("none", "ungraded", 1)
    assert story.rubric is not None
    assert story.rubric.sha256() == story.evaluations[0].rubric_sha256
    assert story.messages[story.best or 0].content == "draft 2"


async def test_verdicts_by_another_rubric_are_told_of(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
        await served.client.invoke(thread, rubric="- it is better")
        story = await read_thread_report(served.client, thread)

    assert story.notes == ("1 of 2 evaluations used another rubric that is not shown",)


async def test_there_is_no_story_of_a_thread_that_is_none(client: Client) -> None:
    async with serving(client) as served:
        refused = await served.start({"messages": []})
        await served.refusal({"messages": []})
        with pytest.raises(ThreadNotFound):
            await report_of(served, "nobody")
        with pytest.raises(InvalidRequest):
            await report_of(served, refused.id)


LOOK = ToolCall(id="look", name="peek", arguments={"at": "x"})


def looking(models: Models, passes_from: int) -> None:
    """Have the grader look before each verdict."""
    said = failing_until(passes_from)
    models.answers["grader"] = lambda step, number: said(step, number) if step.step else (LOOK,)


LOOKING = {"grader": {"model": "scripted:judge", "tools": ["peek"]}}


@pytest.mark.slow
async def test_a_thread_that_goes_on_from_its_checkpoint_has_the_evidence_of_before(client: Client) -> None:
    models = answering()
    looking(models, 1)
    models.hold_second("generator")
    async with serving(client, models=models, tools=[peek]) as served:
        thread = a_thread()
        await served.client.start(start(messages=[{"role": "user", "content": "hello"}], **LOOKING), thread_id=thread)
        await models.called("generator", 2)
        await served.handle(thread).terminate("enough")
        models.release()
        result = await served.client.invoke(thread)
        story = await read_thread_report(served.client, thread)

    assert result.status == "satisfied"
    assert [(tool.iteration, tool.criterion, tool.output) for tool in story.tools] == [(0, "c1", "seen x"), (1, "c1", "seen x")]
    assert {tool.grading_run_id for tool in story.tools} == {result.grading_run_id}
    assert story.notes == ()


async def test_a_call_whose_run_was_ended_under_it_is_told_as_lost(client: Client) -> None:
    begun, models = asyncio.Event(), answering()
    looking(models, 0)

    async def peek(at: str) -> str:
        """Look at something."""
        begun.set()
        await asyncio.Event().wait()
        return at

    async with serving(client, models=models, tools=[peek]) as served:
        thread = a_thread()
        await served.client.start(start(messages=[{"role": "user", "content": "hello"}], **LOOKING), thread_id=thread)
        await begun.wait()
        open_uses, _ = await read_tool_calls(client, thread)
        await served.handle(thread).terminate("enough")
        closed_uses, _ = await read_tool_calls(client, thread)

    assert [(us.failed, us.output, us.seconds) for us in open_uses] == [(False, "", None)]
    assert [(us.failed, us.output, us.seconds) for us in closed_uses] == [(True, LOST, None)]


@pytest.mark.slow
async def test_a_thread_that_went_through_several_temporal_runs_has_all_its_evidence(impatient: Client) -> None:
    models = answering()
    looking(models, 7)
    async with serving(impatient, models=models, tools=[peek]) as served:
        thread = a_thread()
        result = await served.client.invoke(thread, "hello", start=start(max_iterations=10, **LOOKING))
        story = await read_thread_report(served.client, thread)
        runs = await runs_of(impatient, thread)

    assert len(runs) >= 3
    assert [(tool.iteration, tool.criterion, tool.output) for tool in story.tools] == [(at, "c1", "seen x") for at in range(8)]
    assert {tool.grading_run_id for tool in story.tools} == {result.grading_run_id}
    assert len(story.evaluations) == 8
    assert story.notes == ()


async def test_evidence_of_runs_that_the_server_has_dropped_is_missed_in_words(impatient: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    models = answering()
    looking(models, 7)
    async with serving(impatient, models=models, tools=[peek]) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start(max_iterations=10, **LOOKING))
        dropped, fetch = (await runs_of(impatient, thread))[0], WorkflowHandle.fetch_history

        async def fetched(handle: WorkflowHandle[Any, Any], **options: Any) -> WorkflowHistory:
            if handle.run_id == dropped:
                raise RPCError("workflow history not found", RPCStatusCode.NOT_FOUND, b"")
            return await fetch(handle, **options)

        monkeypatch.setattr(WorkflowHandle, "fetch_history", fetched)
        story = await read_thread_report(served.client, thread)

    assert 0 < len(story.tools) < 8
    assert len(story.evaluations) == 8
    assert story.notes == (MISSING,)


async def test_a_server_that_does_not_answer_is_no_server_without_a_history(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(handle: WorkflowHandle[Any, Any], **options: Any) -> WorkflowHistory:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

    monkeypatch.setattr(WorkflowHandle, "describe", lost)

    with pytest.raises(ServerUnreachable, match="connection refused"):
        await read_tool_calls(client, "somebody")


async def test_a_workflow_that_the_server_does_not_know_has_no_evidence_and_a_note(client: Client) -> None:
    uses, notes = await read_tool_calls(client, "nobody")

    assert uses == []
    assert notes == ["the workflow's history has expired on the server, so its tool calls are not shown"]


async def test_evidence_that_this_client_cannot_read_becomes_a_note(client: Client) -> None:
    class Locked(DataConverter):
        async def decode(self, payloads: Any, type_hints: Any = None) -> list[Any]:
            if any(b"operation_id" in payload.data for payload in payloads if isinstance(payload, Payload)):
                raise RuntimeError("no key for it")
            return await client.data_converter.decode(payloads, type_hints)

    argument = request("- x")
    argument["grader"]["tools"] = ["peek"]
    call = {"name": "peek", "arguments": {"at": "x"}}
    async with serving(client, draft(), wants("grader", call), grade(step=1), tools=[peek]) as served:
        thread = await served.start(argument)
        await thread.result()
    config = client.config()
    config["data_converter"] = Locked()
    uses, notes = await read_tool_calls(Client(**config), thread.id)

    assert uses == []
    assert notes == ["a call of peek cannot be read and is not shown: RuntimeError: no key for it"]
