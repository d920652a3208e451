"""One grading pass: what a grader may get wrong, how often it is asked again, and what its failure comes to."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from activities.capabilities import WorkerCapabilities
from activities.grade import GradeCall, GraderReply
from gradeloop.contract.evaluation import Evaluation, Malformed, Verdict
from gradeloop.contract.messages import Log, Message, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator, Grader
from gradeloop.grading.scoring import call_groups, result_of
from gradeloop.grading.verdicts import parse_verdict
from tests.rig.threads import JUDGE, Reply, Role, draft, grade, outcome, page, request, row, says, serving, story, verdict, wants
from workflows.activity_calls import ActivityCalls
from workflows.grading_pass import GradingPass
from workflows.thread_state import GradingRun, PassState, Thread

HAIKU = "- three lines\n- spring"
FAIL, PASS = row("c1", "it has two"), row("c2")


def look() -> str:
    """Look."""
    return "seen"


async def judged(client: Client, *replies: Reply, rubric: object = HAIKU) -> Evaluation:
    """Return the evaluation of one pass."""
    result = await outcome(client, request(rubric, max_iterations=1), draft(), *replies)
    assert len(result.evaluations) == 1
    return result.evaluations[0]


async def test_two_repairs_name_what_is_wrong(client: Client) -> None:
    replies = [says("Looks good to me!"), grade(0, row("c1", "", passed=False, reason=""), PASS, step=1), grade(0, FAIL, PASS, step=2)]
    async with serving(client, draft(), *replies) as served:
        result = await served.run(request(HAIKU, max_iterations=1))

    answer = [request.messages[-1].content for request in served.models.requests_of("grader")[1:]]
    again = "Answer again for k1, k2, with the one JSON object that was asked for and in the form that was asked for."
    assert answer == [
        f"Your answer is no valid verdict: the answer is not one JSON object: it starts with 'Looks good to me!'. {again}",
        f"Your answer is no valid verdict: k1 fails without a gap or a reason; say what is missing. {again}",
    ]
    assert [message.role for message in served.models.requests_of("grader")[2].messages] == [
        "user",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert (result.evaluations[0].result, result.evaluations[0].usage.calls) == ("needs_revision", 3)


async def test_the_third_malformed_verdict_is_the_graders_failure(client: Client) -> None:
    evaluation = await judged(client, *(says("{}", step=step) for step in range(4)))

    assert (evaluation.result, evaluation.status, evaluation.criteria, evaluation.score) == ("grader_error", "grader_error", (), None)
    assert evaluation.explanation.startswith("malformed_verdict: after 2 repairs: no row for k1, k2")
    assert evaluation.usage.calls == 3


async def test_missing_rows_are_asked_for_alone_after_two_repairs(client: Client) -> None:
    part = [grade(0, FAIL, step=step) for step in range(3)]
    async with serving(client, draft(), *part, grade(0, PASS, step=3)) as served:
        result = await served.run(request(HAIKU, max_iterations=1))

    evaluation = result.evaluations[0]
    assert served.models.requests_of("grader")[3].messages[-1].content.startswith("Your verdict has no row for k2. Answer for these alone")
    assert [(criterion.id, criterion.passed, criterion.unverified) for criterion in evaluation.criteria] == [
        ("c1", False, False),
        ("c2", True, False),
    ]
    assert (evaluation.result, evaluation.unverified, evaluation.score) == ("needs_revision", False, 0.5)


async def test_what_stays_missing_beside_a_confirmed_fail_is_unverified_and_fed_back_as_such(client: Client) -> None:
    part = [grade(0, FAIL, step=step) for step in range(3)]
    nothing = says('{"unjudgeable": ""}', step=3)
    result = await outcome(client, request(HAIKU), draft(), *part, nothing, draft(1), grade(1, row("c1"), PASS))

    first = result.evaluations[0]
    assert [(criterion.id, criterion.passed, criterion.unverified) for criterion in first.criteria] == [
        ("c1", False, False),
        ("c2", False, True),
    ]
    assert (first.result, first.unverified, result.status) == ("needs_revision", True, "satisfied")
    assert result.messages is not None
    assert "could not be verified; that is no sign of a defect" in result.messages[2].content
    assert result.messages[2].content.count("[c2]") == 1


async def test_what_stays_missing_without_a_confirmed_fail_is_the_graders_failure(client: Client) -> None:
    part = [grade(0, row("c1"), step=step) for step in range(3)]
    evaluation = await judged(client, *part, says('{"unjudgeable": ""}', step=3))

    assert evaluation.result == "grader_error"
    assert evaluation.explanation == "malformed_verdict: asked only for the missing criteria: no row for k2"


async def test_any_other_fault_of_the_answer_about_missing_rows_is_the_graders_failure(client: Client) -> None:
    part = [grade(0, FAIL, step=step) for step in range(3)]
    evaluation = await judged(client, *part, says("c2 passes", step=3))

    assert evaluation.result == "grader_error"


async def test_the_rows_of_an_unfinished_verdict_count_only_when_it_is_completed(client: Client) -> None:
    part = [grade(0, row("c1"), step=step) for step in range(3)]
    evaluation = await judged(client, *part, grade(0, PASS, step=3))

    assert (evaluation.result, evaluation.explanation) == ("satisfied", "so it is")


WHOLE = grade(0, row("c1", "it has four"), PASS, summary="The form is wrong.")


@pytest.mark.parametrize("subsets", [1, 2, 3])
async def test_a_whole_verdict_after_any_number_of_subsets_counts_as_it_stands(client: Client, subsets: int) -> None:
    part = [grade(0, FAIL, step=step) for step in range(subsets)]
    evaluation = await judged(client, *part, WHOLE | {"step": subsets})

    assert evaluation.result == "needs_revision"
    assert [(criterion.id, criterion.gap) for criterion in evaluation.criteria] == [("c1", "it has four"), ("c2", None)]
    assert (evaluation.explanation, evaluation.usage.calls) == ("The form is wrong.", subsets + 1)


async def test_a_verdict_that_comes_in_parts_is_done_with_its_last_row(client: Client) -> None:
    evaluation = await judged(client, grade(0, FAIL), grade(0, PASS, step=1))

    assert [(criterion.id, criterion.passed) for criterion in evaluation.criteria] == [("c1", False), ("c2", True)]
    assert (evaluation.result, evaluation.usage.calls) == ("needs_revision", 2)


async def test_rows_that_nobody_asked_for_are_a_note_and_no_error(client: Client) -> None:
    evaluation = await judged(client, grade(0, row("c1"), PASS, row("c3", "not a rhyme"), summary="Good."))

    assert (evaluation.result, [criterion.id for criterion in evaluation.criteria]) == ("satisfied", ["c1", "c2"])
    assert evaluation.explanation == "Good. (Rows that nobody asked for were dropped: 'k3'.)"


async def test_the_graders_own_words_reach_the_generator_where_no_row_says_them(client: Client) -> None:
    answers = [
        grade(0, FAIL, PASS, summary="It has two. Read the second line aloud."),
        grade(1, FAIL, PASS, summary="looked at c1: it has two."),
        grade(2, row("c1"), PASS),
    ]
    async with serving(client, *(draft(at) for at in range(3)), *answers) as served:
        await served.run(request(HAIKU))

    first, second = (request.messages[-1].content for request in served.models.requests_of("generator")[1:])
    assert "- [c1] three lines: it has two\n\nThe grader also says:\n- It has two. Read the second line aloud.\n\n" in first
    assert "The grader also says" not in second


@pytest.mark.slow
async def test_the_26th_tool_call_is_not_run_and_the_next_turn_is_the_last(client: Client) -> None:
    ran: list[int] = []

    def count() -> str:
        """Count."""
        ran.append(1)
        return "counted"

    argument = request("- x")
    argument["grader"]["tools"] = ["count"]
    turns = [wants("grader", *["count"] * 13, step=0), wants("grader", *["count"] * 13, step=1), grade(step=2)]
    async with serving(client, draft(), *turns, tools=[count]) as served:
        result = await served.run(argument)

    last = served.models.requests_of("grader")[-1]
    assert (len(ran), result.status) == (25, "satisfied")
    assert [request.tools_allowed for request in served.models.requests_of("grader")] == [True, True, False]
    assert last.messages[-2].content == "not run: all 25 tool calls are used up"
    assert last.messages[-1].content.startswith("No further tool calls are possible.")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["generator", "grader"])
async def test_the_limit_of_tool_calls_is_a_setting_of_either_model(client: Client, role: Role) -> None:
    argument = request("- x")
    argument[role] |= {"tools": ["look"], "max_tool_calls": 40, "max_turns": 50}
    turns = [wants(role, "look", step=step) for step in range(41)]
    ended = [draft(step=41), grade()] if role == "generator" else [grade(step=41)]
    async with serving(client, *([] if role == "generator" else [draft()]), *turns, *ended, tools=[look]) as served:
        result = await served.run(argument)

    asked = served.models.requests_of(role)
    assert result.status == "satisfied"
    assert [request.tools_allowed for request in asked] == [*[True] * 41, False]
    assert [message.content for message in asked[-1].messages if message.role == "tool"][39:] == [
        "seen",
        "not run: all 40 tool calls are used up",
    ]


async def test_the_limit_of_turns_is_a_setting(client: Client) -> None:
    argument = request("- x")
    argument["grader"] |= {"tools": ["look"], "max_turns": 2}
    turns = [wants("grader", "nothing", step=step) for step in range(3)]
    async with serving(client, draft(), *turns, tools=[look]) as served:
        result = await served.run(argument)

    assert [request.tools_allowed for request in served.models.requests_of("grader")] == [True, True, False]
    assert result.evaluations[0].explanation.startswith("malformed_verdict: no verdict after 2 turns and one last turn: ")


async def test_one_turn_makes_no_more_calls_than_one_payload_holds(client: Client) -> None:
    argument = request("- x")
    argument["grader"] |= {"tools": ["look"], "max_tool_calls": 200}
    calls = wants("grader", *["look"] * 27)
    async with serving(client, draft(), calls, grade(step=1), tools=[look]) as served:
        result = await served.run(argument)

    told = [message.content for message in served.models.requests_of("grader")[-1].messages if message.role == "tool"]
    assert (result.status, told[24:]) == ("satisfied", ["seen", *["not run: 25 calls in one turn at most; call it anew"] * 2])


@pytest.mark.parametrize("field", ["max_tool_calls", "max_turns"])
def test_limits_have_bounds_and_belong_to_a_model(field: str) -> None:
    for wrong in (0, 201):
        with pytest.raises(ValueError, match=r"less than or equal to 200|greater than or equal to 1"):
            Grader.model_validate({field: wrong})
    with pytest.raises(ValueError, match="their limits"):
        Grader.model_validate({"function": "judge", field: 5})
    with pytest.raises(ValueError, match="their limits"):
        Generator.model_validate({"activity": "a", "task_queue": "q", field: 5})


@pytest.mark.slow
@pytest.mark.parametrize("last", [wants("grader", "look", step=26), says("I would say it passes", step=26)])
async def test_a_last_turn_without_a_verdict_is_the_graders_failure(client: Client, last: Reply) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["look"]
    async with serving(client, draft(), *(wants("grader", "look", step=step) for step in range(26)), last, tools=[look]) as served:
        result = await served.run(argument)

    assert result.evaluations[0].result == "grader_error"
    assert result.evaluations[0].explanation.startswith("malformed_verdict: no verdict after 25 tool calls and one last turn: ")
    assert len(served.models.requests_of("grader")) == 27


@pytest.mark.slow
async def test_the_31st_turn_is_the_last(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["look"]
    turns = [wants("grader", "nothing", step=step) for step in range(31)]
    async with serving(client, draft(), *turns, tools=[look]) as served:
        result = await served.run(argument)

    assert [request.tools_allowed for request in served.models.requests_of("grader")] == [*[True] * 30, False]
    assert result.evaluations[0].explanation.startswith("malformed_verdict: no verdict after 30 turns and one last turn: ")


async def test_a_tool_that_is_not_there_is_told_and_nothing_breaks(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["look"]
    async with serving(client, draft(), wants("grader", "loook", "read_transcript"), grade(step=1), tools=[look]) as served:
        result = await served.run(argument)

    assert result.status == "satisfied"
    assert [message.content for message in served.models.requests_of("grader")[1].messages[-2:]] == [
        "there is no tool 'loook'; the tools are: look",
        "there is no tool 'read_transcript'; the tools are: look",
    ]


async def test_arguments_that_are_no_json_object_are_told_and_nothing_is_run(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["tools"] = ["look"]
    async with serving(client, draft(), wants("grader", "look"), grade(step=1), tools=[look]) as served:
        real = served.models.complete

        async def garbled(asked: Any) -> Any:
            reply = await real(asked)
            calls = tuple(call.model_copy(update={"invalid": "[1,"}) for call in reply.message.tool_calls)
            return type(reply)(reply.message.model_copy(update={"tool_calls": calls}), reply.usage)

        served.models.complete = garbled  # type: ignore[method-assign, assignment]  # a model that writes no JSON
        thread = await served.start(argument)
        result = await thread.result()
        activities = await story(thread)

    assert result.status == "satisfied"
    assert served.models.requests_of("grader")[1].messages[-1].content == "the arguments are not a JSON object; nothing was run"
    assert [activity.type for activity in activities] == ["generate", "grade", "grade"]


async def test_the_second_request_of_a_thread_is_the_one_that_is_graded(client: Client) -> None:
    earlier = [
        {"role": "user", "content": "Write about autumn."},
        {"role": "assistant", "content": "Leaves fall."},
        {"role": "user", "content": "Now about spring."},
    ]
    async with serving(client, draft(), grade(0, FAIL, PASS), draft(1), grade(1, row("c1"), PASS)) as served:
        result = await served.run(request(HAIKU, *earlier))

    first, second = (request.messages for request in served.models.requests_of("grader"))
    assert "The current request is record 2. The draft to be judged is record 3." in first[-1].content
    assert "The current request is record 2. The draft to be judged is record 5." in second[-1].content
    assert (result.evaluations[0].draft, result.evaluations[1].draft) == (3, 5)
    assert second[0].content.startswith(first[0].content)


async def test_a_custom_system_prompt_keeps_the_trust_boundary(client: Client) -> None:
    argument = request("- x")
    argument["grader"]["system_prompt"] = "Judge like a poet."
    async with serving(client, draft(), grade()) as served:
        await served.run(argument)

    system = served.models.requests_of("grader")[0].system
    assert system.startswith("Judge like a poet.\n\nWhat is trusted: this text")
    assert "You are a grader." not in system


async def test_every_grading_call_of_a_run_has_the_same_system_prompt_and_schema(client: Client) -> None:
    async with serving(client, draft(), grade(0, FAIL, PASS), draft(1), says("oops", 1), grade(1, row("c1"), PASS, step=1)) as served:
        await served.run(request(HAIKU))

    assert len({request.system for request in served.models.requests_of("grader")}) == 1
    assert [list((request.schema or {})["properties"]) for request in served.models.requests_of("grader")] == [
        ["k1", "k2", "unjudgeable", "summary"]
    ] * 3


@pytest.mark.slow
async def test_the_nonce_shows_in_the_prompt_the_call_and_the_checkpoint_and_nowhere_else(client: Client) -> None:
    seen: list[str] = []

    def note(draft: str, text: str) -> str:
        """Note what a tool is given."""
        seen.append(draft + text)
        return text

    argument = request("- x")
    argument["grader"]["tools"] = ["note"]
    async with serving(
        client, draft(), wants("grader", {"name": "note", "arguments": {"text": "t"}}), grade(step=1), tools=[note]
    ) as served:
        thread = await served.start(argument)
        result = await thread.result()
        activities = await story(thread)
        checkpoint = json.dumps(await thread.query("checkpoint"))
        answers = [await page(thread, name) for name in ("messages", "evaluations", "events")]
        state = await thread.query("state")

    found = re.search(r"=== records ([0-9a-f]{32}) ===", served.models.requests_of("grader")[0].messages[0].content)
    assert found is not None
    nonce = found[1]
    assert all(f"=== records {nonce} ===" in request.messages[0].content for request in served.models.requests_of("grader"))
    assert [activity.type for activity in activities if nonce in json.dumps(activity.payload)] == ["grade", "grade"]
    assert nonce in checkpoint
    assert seen == ["draft 0t"]
    assert nonce not in result.model_dump_json() + json.dumps([answers, state])


async def test_two_runs_draw_two_nonces(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        await asyncio.gather(served.run(request("- x")), served.run(request("- x")))

    assert len({request.messages[0].content.splitlines()[0] for request in served.models.requests_of("grader")}) == 2


@pytest.mark.slow
async def test_a_grader_reads_a_record_whole_that_its_prompt_had_to_cut(client: Client) -> None:
    long = "".join(f"line {number}\n" for number in range(60_000))
    reads = [wants("grader", {"name": "read_transcript", "arguments": {"record": 1, "offset": at * 16384}}, step=at) for at in range(25)]
    wrong = [
        {"name": "read_transcript", "arguments": {"record": 7, "offset": 0}},
        {"name": "read_transcript", "arguments": {"record": "one"}},
    ]
    async with serving(client, draft(text=long), *reads[:22], wants("grader", *wrong, step=22), grade(step=23)) as served:
        thread = await served.start(request("- x"))
        result = await thread.result()
        activities = await story(thread)

    calls = served.models.requests_of("grader")
    assert result.status == "satisfied"
    assert [tool.name for tool in calls[0].tools] == ["read_transcript"]
    assert "characters left out …]" in calls[0].messages[0].content
    pages = [json.loads(message.content) for message in calls[-1].messages if message.role == "tool" and message.content.startswith("{")]
    assert "".join(page["text"] for page in pages) == long[: 22 * 16384]
    assert (pages[0]["characters"], pages[0]["next_offset"]) == (len(long), 16384)
    assert [message.content for message in calls[-1].messages[-2:]] == [
        "there is no record 7; they run from 0 to 1",
        "record and offset are whole numbers",
    ]
    assert [activity.summary for activity in activities if activity.type == "read_transcript"][-1] == "evidence record 7"


class Script:
    """The calls of a thread, answered from a list by the code that the activity itself uses."""

    def __init__(self, replies: list[str], rubric: Rubric) -> None:
        self._replies = iter(replies)
        self._rubric = rubric
        self._earlier: list[str] = []
        self.capabilities = WorkerCapabilities(search_attributes=False, external_storage=False)

    async def make_paid(self, _activity: str, call: Callable[[], GradeCall], *_more: object) -> GraderReply:
        """Read the next reply as `grade` does."""
        text, asked = next(self._replies, "nothing more"), call()
        reading = parse_verdict(text, call_groups(self._rubric)[asked.step.group], asked.pending or None, earlier=self._earlier)
        self._earlier.append(text)
        verdict = reading if isinstance(reading, Verdict) else None
        malformed = None if isinstance(reading, Verdict) else reading
        said = Message(role="assistant", content=text)
        return GraderReply(message=said, verdict=verdict, malformed=malformed, usage=Usage(calls=1), offer=self.capabilities)

    def thread_reference(self) -> dict[str, object]:
        """Return a reference that nobody follows."""
        return {"brief": {"sha256": ""}, "messages": self.log_reference("messages", Log())}

    def log_reference(self, key: str, log: Log) -> dict[str, object]:
        """Return a reference that nobody follows."""
        return {"key": key, "count": len(log), "sha256": log.sha256()}

    def note_returned(self, key: str, log: Log) -> None:
        """Take no note."""

    unknown_judge = False

    def learn(self, capabilities: WorkerCapabilities) -> None:
        """Take no note."""


def said(*ids: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return verdicts about some of these ids, mostly of the right form."""
    rows = st.lists(st.builds(row, st.sampled_from(ids), st.sampled_from([None, None, "a gap", ""])), max_size=3)
    return st.builds(lambda given, why: verdict(*given, unjudgeable=why), rows, st.sampled_from(["", "", "", "it contradicts itself"]))


REPLIES = st.lists(st.one_of(said("c1"), said("c2"), said("c1", "c2"), st.sampled_from(["{}", "prose"])), max_size=5)


@given(REPLIES)
async def test_no_sequence_of_replies_is_satisfied_unless_each_criterion_passed_in_a_well_formed_verdict(replies: list[Any]) -> None:
    rubric = Rubric.model_validate(HAIKU)
    texts = [reply if isinstance(reply, str) else json.dumps(reply) for reply in replies]
    log = Log([Message(role="user", content="q"), Message(role="assistant", content="draft")])
    thread = Thread(thread_id="t", max_iterations=1, generator=Generator.model_validate({"model": JUDGE}), rubric=rubric, log=log)
    run = GradingRun(grading_run_id="r", ordinal=0, nonce="0" * 32, max_iterations=1)
    state = PassState(draft=1)

    judgement = await GradingPass(thread, run, state, rubric, cast(ActivityCalls, Script(texts, rubric))).judge()

    asked = state.usage.calls
    newest: dict[str, bool] = {}
    for reply in replies[:asked]:
        if isinstance(reply, dict) and not isinstance(parse_verdict(json.dumps(reply), call_groups(rubric)[0], ()), Malformed):
            newest |= {f"c{key[1:]}": reply[key]["passed"] for key in ("k1", "k2") if key in reply and not reply["unjudgeable"]}
    assert asked <= 4
    if result_of(rubric, judgement) == "satisfied":
        assert newest == {"c1": True, "c2": True}
        assert all(row.passed for row in judgement.rows)
    assert judgement.error is None or not any(row.unverified for row in judgement.rows)
