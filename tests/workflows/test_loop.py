"""The loop on a real server: draft, grade, decide, append; its ends, its interruptions, and what history tells of it."""

import asyncio
import json
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from gradeloop.contract.messages import Message
from gradeloop.contract.thread import RunResult
from tests.rig.threads import JUDGE, Thread, draft, grade, outcome, page, request, row, serving, story, until, wants

HAIKU = "- three lines\n- spring"
NO_SPRING = (row("c1"), row("c2", "it is about winter"))
BOTH = (row("c1"), row("c2"))


def look() -> str:
    """Look."""
    return "seen"


def peek(at: str) -> str:
    """Peek."""
    return f"seen {at}"


async def test_without_a_rubric_there_is_one_draft_and_no_grade(client: Client) -> None:
    async with serving(client, draft(text="a haiku")) as served:
        result = await served.run(request())

    assert (result.status, result.grading_run_id, result.score, result.evaluations) == (None, None, None, ())
    assert (result.output, result.last_output, result.best_iteration, result.iterations) == ("a haiku", "a haiku", None, 0)
    assert served.models.requests_of("grader") == []


@pytest.mark.parametrize("rubric", ["", {"criteria": []}])
async def test_a_cleared_rubric_is_no_rubric(client: Client, rubric: object) -> None:
    result = await outcome(client, request(rubric), draft())

    assert (result.status, result.evaluations) == (None, ())


async def test_a_draft_that_passes_at_once_is_satisfied_after_one_iteration(client: Client) -> None:
    result = await outcome(client, request("- three lines"), draft(), grade())

    assert (result.status, result.iterations, result.output, result.score, result.error) == ("satisfied", 1, "draft 0", 1.0, None)


async def test_feedback_goes_back_as_a_message_until_the_draft_passes(client: Client) -> None:
    async with serving(client, draft(), grade(0, *NO_SPRING), draft(1), grade(1, *BOTH)) as served:
        result = await served.run(request(HAIKU))

    assert result.messages is not None
    assert [(message.role, message.source) for message in result.messages] == [
        ("user", None),
        ("assistant", None),
        ("user", "rubric_grader"),
        ("assistant", None),
    ]
    assert "- [c2] spring: it is about winter" in result.messages[2].content
    assert [message.content for message in served.models.requests_of("generator")[1].messages] == [
        message.content for message in result.messages[:3]
    ]
    assert [(evaluation.result, evaluation.status, evaluation.draft, evaluation.score) for evaluation in result.evaluations] == [
        ("needs_revision", "running", 1, 0.5),
        ("satisfied", "satisfied", 3, 1.0),
    ]
    assert (result.status, result.iterations, result.output, result.best_iteration) == ("satisfied", 2, "draft 1", 1)


async def test_the_generator_sees_system_prompt_and_messages_and_no_rubric(client: Client) -> None:
    argument = request("- SECRET CRITERION")
    argument["generator"]["system_prompt"] = "Be brief."
    async with serving(client, draft(), grade()) as served:
        await served.run(argument)

    asked = served.models.requests_of("generator")[0]
    assert (asked.system, asked.messages) == ("Be brief.", (Message(role="user", content="Write a haiku about spring."),))


async def test_show_rubric_puts_the_rubric_into_the_generators_system_prompt(client: Client) -> None:
    argument = request("- three lines")
    argument["generator"]["show_rubric"] = True
    async with serving(client, draft(), grade()) as served:
        await served.run(argument)

    assert "- [c1] three lines" in served.models.requests_of("generator")[0].system


async def test_the_cap_ends_the_run_and_the_last_result_stays_the_graders(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(client, draft(), grade(0, *NO_SPRING), draft(1), grade(1, *NO_SPRING)) as served:
        thread = await served.start(request(HAIKU, max_iterations=2))
        result = await thread.result()
        messages = await page(thread, "messages")

    assert (result.status, result.iterations) == ("max_iterations_reached", 2)
    assert [(evaluation.result, evaluation.status) for evaluation in result.evaluations] == [
        ("needs_revision", "running"),
        ("needs_revision", "max_iterations_reached"),
    ]
    assert [message["content"] for message in messages["items"] if message["role"] == "assistant"] == ["draft 0", "draft 1"]
    assert messages["total"] == 4
    assert "the draft still fails its rubric after 2 iterations" in caplog.text


async def test_the_best_draft_is_returned_and_the_last_beside_it(client: Client) -> None:
    worse = (row("c1", "four lines"), row("c2", "winter"))
    result = await outcome(client, request(HAIKU, max_iterations=2), draft(), grade(0, *NO_SPRING), draft(1), grade(1, *worse))

    assert (result.output, result.best_iteration, result.score) == ("draft 0", 0, 0.5)
    assert (result.last_output, result.evaluations[1].score) == ("draft 1", 0.0)


async def test_a_rubric_that_cannot_be_judged_ends_the_run_as_failed(client: Client) -> None:
    impossible = grade(unjudgeable="three lines and four lines at once")
    result = await outcome(client, request(HAIKU), draft(), impossible)

    evaluation = result.evaluations[0]
    assert (result.status, evaluation.result, evaluation.score, evaluation.criteria) == ("failed", "failed", None, ())
    assert evaluation.explanation == "three lines and four lines at once"
    assert result.output == "draft 0"


async def test_an_optional_criterion_does_not_hold_the_run_back(client: Client) -> None:
    rubric = {"criteria": ["three lines", {"description": "a joke", "required": False}]}
    result = await outcome(client, request(rubric), draft(), grade(0, row("c1"), row("c2", "no joke")))

    assert (result.status, result.score) == ("satisfied", 0.5)


async def test_a_grader_that_breaks_is_an_error_with_its_words_and_no_grade(client: Client) -> None:
    broken = {"role": "grader", "error": {"kind": "quota_exhausted", "message": "out of credit", "status": 402}}
    async with serving(client, draft(), broken) as served:
        result = await served.run(request(HAIKU))

    evaluation = result.evaluations[0]
    assert (result.status, evaluation.result, evaluation.status) == ("grader_error", "grader_error", "grader_error")
    assert (evaluation.criteria, evaluation.score, result.score) == ((), None, None)
    assert evaluation.explanation == f"quota_exhausted: HTTP 402, {JUDGE}: out of credit"
    assert (result.output, len(served.models.requests_of("grader"))) == ("draft 0", 1)


async def test_an_earlier_grade_stands_where_a_later_pass_breaks(client: Client) -> None:
    broken = {"role": "grader", "iteration": 1, "error": {"kind": "refused", "message": "I cannot judge this"}}
    result = await outcome(client, request(HAIKU), draft(), grade(0, *NO_SPRING), draft(1), broken)

    assert (result.status, result.output, result.score, result.last_output) == ("grader_error", "draft 0", 0.5, "draft 1")


async def test_a_transient_failure_is_retried_and_leaves_no_trace_in_the_result(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        real, failures = served.models.complete, iter([ConnectionError("dropped")])

        async def flaky(asked: object) -> object:
            for error in failures:
                raise error
            return await real(asked)  # type: ignore[arg-type]  # as it came

        served.models.complete = flaky  # type: ignore[method-assign, assignment]  # the call fails once
        result = await served.run(request("- three lines"))

    assert (result.status, result.usage.calls) == ("satisfied", 2)


async def test_a_generator_that_fails_for_good_leaves_the_run_interrupted_with_the_error(client: Client) -> None:
    broken = {"role": "generator", "iteration": 1, "error": {"kind": "auth", "message": "no such key", "status": 401}}
    async with serving(client, draft(), grade(0, *NO_SPRING), broken) as served:
        thread = await served.start(request(HAIKU))
        result = await thread.result()
        state = await thread.query("state", result_type=dict[str, object])

    assert (result.status, result.error) == ("interrupted", "auth: HTTP 401, scripted:writer: no such key")
    assert (result.iterations, result.output, result.score) == (1, "draft 0", 0.5)
    assert (state["status"], state["phase"], state["iteration"]) == ("interrupted", None, 1)


async def test_an_empty_draft_is_no_draft(client: Client) -> None:
    result = await outcome(client, request("- three lines"), {"role": "generator", "text": "  "})

    assert (result.status, result.output) == ("interrupted", None)
    assert result.error == "malformed_response: scripted:writer: the reply is empty"


async def test_the_generators_tool_calls_run_in_parallel_and_go_back_to_it(client: Client) -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        """Wait for the other call."""
        await asyncio.wait_for(both.wait(), 240)
        return f"met {name}"

    argument = request("- three lines")
    argument["generator"]["tools"] = ["meet"]
    calls = [{"name": "meet", "arguments": {"name": name}} for name in ("ann", "bob")]
    async with serving(client, wants("generator", *calls), draft(step=1), grade(), tools=[meet]) as served:
        result = await served.run(argument)

    assert result.messages is not None
    assert [(message.role, message.name, message.content) for message in result.messages] == [
        ("user", None, "Write a haiku about spring."),
        ("assistant", None, ""),
        ("tool", "meet", "met ann"),
        ("tool", "meet", "met bob"),
        ("assistant", None, "draft 0"),
    ]
    assert (result.output, result.evaluations[0].draft) == ("draft 0", 4)
    assert [tool.name for tool in served.models.requests_of("generator")[0].tools] == ["meet"]


async def test_a_generator_that_only_calls_tools_gets_one_last_turn_and_then_no_draft(client: Client) -> None:
    argument = request()
    argument["generator"]["tools"] = ["look"]
    turns = [wants("generator", "look", step=step) for step in range(27)]
    async with serving(client, *turns, tools=[look]) as served:
        result = await served.run(argument)

    assert result.error == "the generator still calls tools after its last turn; raise the task's clarity or give it fewer tools"
    assert [request.tools_allowed for request in served.models.requests_of("generator")] == [*[True] * 26, False]
    assert served.models.requests_of("generator")[-1].messages[-1].content.startswith("No further tool calls are possible.")


async def test_interrupt_stops_the_call_in_flight_and_resume_goes_on_at_the_same_iteration(client: Client) -> None:
    async with serving(client, draft(), grade(0, *NO_SPRING), draft(1), grade(1, *BOTH)) as served:
        gate = served.models.gate("generator", 1)
        thread = await served.start(request(HAIKU))
        await gate.reached.wait()
        before = await thread.query("state", result_type=dict[str, object])
        await thread.signal("interrupt")
        stopped = await until(thread, "interrupted")
        gate.opened.set()
        result = await thread.execute_update("resume", result_type=RunResult)
        ended = await thread.result()
        events = await page(thread, "events")

    assert (before["status"], before["phase"], before["iteration"]) == ("running", "generating", 1)
    assert (stopped["phase"], stopped["iteration"], stopped["grading_run_id"]) == (None, 1, before["grading_run_id"])
    assert result == ended
    assert (result.status, result.grading_run_id, result.iterations) == ("satisfied", before["grading_run_id"], 2)
    assert [(request.step.role, request.step.iteration) for request in served.models.requests] == [
        ("generator", 0),
        ("grader", 0),
        ("generator", 1),
        ("generator", 1),
        ("grader", 1),
    ]
    assert [event["type"] for event in events["items"]].count("run_started") == 1
    assert [event["type"] for event in events["items"] if "rupt" in event["type"] or "resu" in event["type"]] == ["interrupted", "resumed"]


async def test_a_grading_that_was_interrupted_keeps_the_tool_calls_that_had_finished(client: Client) -> None:
    looked: list[str] = []
    hold = asyncio.Event()

    async def slow() -> str:
        """Take long."""
        looked.append("slow")
        await hold.wait()
        return "at last"

    def fast() -> str:
        """Take no time."""
        looked.append("fast")
        return "at once"

    argument = request("- three lines")
    argument["grader"]["tools"] = ["slow", "fast"]
    async with serving(client, draft(), wants("grader", "slow", "fast"), grade(step=1), tools=[slow, fast]) as served:
        thread = await served.start(argument)
        while sorted(looked) != ["fast", "slow"] or not await _returned(thread, "tool.fast"):
            await asyncio.sleep(0.02)
        await thread.signal("interrupt")
        await until(thread, "interrupted")
        state = await thread.query("checkpoint", result_type=dict[str, Any])
        hold.set()
        result = await thread.execute_update("resume", result_type=RunResult)

    assert sorted(looked) == ["fast", "slow", "slow"]
    assert (result.status, len(served.models.requests_of("generator")), len(served.models.requests_of("grader"))) == ("satisfied", 1, 2)
    assert [message.content for message in served.models.requests_of("grader")[1].messages[-2:]] == ["at last", "at once"]
    conversation = state["thread"]["run"]["grading"]["conversations"]["0/0"]
    assert (conversation["tool_calls"], list(conversation["results"])) == (1, ["1"])


async def test_an_interrupt_that_comes_with_the_start_is_not_lost(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request("- three lines"), start_signal="interrupt")
        state = await until(thread, "interrupted")
        result = await thread.execute_update("resume", result_type=RunResult)

    assert state["iteration"] == 0
    assert (result.status, len(served.models.requests)) == ("satisfied", 2)


async def test_a_cancelled_thread_stops_its_call_and_keeps_its_checkpoint(client: Client) -> None:
    async with serving(client, draft(), grade(0, *NO_SPRING), draft(1)) as served:
        gate = served.models.gate("generator", 1)
        thread = await served.start(request(HAIKU))
        await gate.reached.wait()
        await thread.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await thread.result()
        checkpoint = await thread.query("checkpoint", result_type=dict[str, Any])

    assert isinstance(caught.value.cause, CancelledError)
    assert len(checkpoint["thread"]["evaluations"]) == 1
    assert checkpoint["temporal_run_id"] == thread.first_execution_run_id


async def test_history_reads_like_the_story_of_the_run(client: Client) -> None:
    argument = request({"criteria": [{"description": "tests pass", "check": "run_test_suite"}, "three lines"]})
    argument["grader"]["tools"] = ["peek"]
    asks = wants("grader", {"name": "peek", "arguments": {"at": "x"}})
    readable = grade(0, row("k1", "four lines"), step=1)
    async with serving(client, draft(), asks, readable, draft(1), grade(1, row("k1")), tools=[peek, run_test_suite]) as served:
        thread = await served.start(argument)
        await thread.result()
        activities = await story(thread)
        details = await thread.query("__temporal_workflow_metadata")

    assert [(activity.type, activity.summary) for activity in activities] == [
        ("generate", "generate #1"),
        ("tool.run_test_suite", "evidence run_test_suite"),
        ("grade", "grade #1"),
        ("tool.peek", "evidence peek"),
        ("grade", "grade #1.2"),
        ("generate", "generate #2"),
        ("tool.run_test_suite", "evidence run_test_suite"),
        ("grade", "grade #2"),
    ]
    assert details.current_details == (
        "Status: **satisfied**\n\n- iteration 1: **needs_revision**. so it is\n  - ✗ c2: four lines\n- iteration 2: **satisfied**. so it is"
    )


def run_test_suite(draft: str) -> bool:
    """Pass."""
    return bool(draft)


async def test_the_transcript_is_never_repeated_in_what_calls_carry(client: Client) -> None:
    drafts = [draft(number, str(number) * 8000) for number in range(6)]
    async with serving(client, *drafts, *(grade(number, *(BOTH if number == 5 else NO_SPRING)) for number in range(6))) as served:
        thread = await served.start(request(HAIKU, max_iterations=6))
        result = await thread.result()
        activities = await story(thread)

    assert result.status == "satisfied"
    assert len(activities) == 12
    assert all("0" * 100 not in json.dumps(activity.payload) for activity in activities)
    assert max(activity.size for activity in activities[1:]) < 1500
    assert sum(len(message.content) for message in served.models.requests_of("grader")[-1].messages) > 6 * 8000


async def test_usage_is_summed_over_the_calls_of_the_turn(client: Client) -> None:
    cost = {"input": 10, "cached": 4, "output": 3, "reasoning": 1}
    result = await outcome(client, request("- x"), draft(usage=cost), {**grade(), "usage": cost})

    both = {name: 2 * tokens for name, tokens in cost.items()}
    counted = {"cache_written": 0, "cost_usd": 0.0}
    assert result.usage.model_dump(exclude={"seconds"}) == both | counted | {"calls": 2, "attempts": 2}
    assert result.evaluations[0].usage.model_dump(exclude={"seconds"}) == cost | counted | {"calls": 1, "attempts": 1}


def prose(characters: int) -> str:
    """Return a text of that length in which nothing is said twice."""
    return "".join(f"{at}, " for at in range(characters // 3))[:characters]


@pytest.mark.slow
async def test_a_verbose_grader_never_wedges_the_thread(client: Client) -> None:
    verbose = [grade(number, row("c1", "no"), summary=prose(700_000)) for number in range(3)]
    result = await outcome(client, request("- x"), *(draft(number) for number in range(3)), *verbose)

    assert result.status == "max_iterations_reached"
    assert result.evaluations[0].explanation == prose(4000) + "… (700000 characters)"


async def test_a_full_thread_keeps_every_decision_of_its_last_verdict_and_lets_the_reasons_go(client: Client) -> None:
    rubric = "\n".join(f"- criterion {number}" for number in range(1, 26))
    rows = [row(f"c{number}", reason=prose(4000)) for number in range(1, 26)]
    messages = [{"role": "user", "content": "x" * size} for size in (1_000_000, 500_000)]
    result = await outcome(client, request(rubric, *messages), draft(), grade(0, *rows))

    evaluation = result.evaluations[0]
    assert (result.status, result.score, evaluation.explanation) == ("satisfied", 1.0, "so it is")
    assert [(criterion.id, criterion.passed, criterion.reason) for criterion in evaluation.criteria] == [
        (name, True, "") for row in rows for name in row
    ]


@pytest.mark.slow
async def test_a_thread_filled_by_its_verdicts_still_completes_within_one_payload(client: Client) -> None:
    rubric = "\n".join(f"- criterion {number}" for number in range(1, 101))
    rows = [row(f"c{number}", prose(4000), reason=prose(4000)) for number in range(1, 101)]
    replies = [row for number in range(8) for row in (draft(number), grade(number, *rows))]
    result = await asyncio.wait_for(outcome(client, request(rubric, max_iterations=8), *replies), 240)

    assert result.status == "interrupted"
    assert (result.error or "").startswith("ThreadTooLarge: the thread would hold ")
    assert len(result.model_dump_json()) < 2 * 1024 * 1024
    assert result.iterations == len(result.evaluations) > 3


async def _returned(thread: Thread, activity: str) -> bool:
    """Tell whether a call of this type has come back."""
    events = (await thread.fetch_history()).events
    scheduled = {event.event_id for event in events if event.activity_task_scheduled_event_attributes.activity_type.name == activity}
    return any(event.activity_task_completed_event_attributes.scheduled_event_id in scheduled for event in events)
