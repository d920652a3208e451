"""Tools that need a person's word, tools that must not run twice, and ids by which a repeated call is told from a new one."""

import asyncio
from collections.abc import Callable, Sized
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from gradeloop.cli.render.run import decision_commands
from gradeloop.contract.evaluation import PendingCall, WaitingFor
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest
from tests.rig.threads import Served, Thread, draft, grade, page, replay, request, row, serving, story, until, wants
from tests.workflows.test_people import refused


def counted(name: str, **marks: object) -> tuple[Callable[..., Any], list[dict[str, Any]]]:
    """Return a tool that keeps what it was called with."""
    calls: list[dict[str, Any]] = []

    def tool(amount: int, draft: str, operation_id: str) -> str:
        """Book an amount."""
        calls.append({"amount": amount, "draft": draft, "operation_id": operation_id})
        return f"booked {amount}"

    tool.__name__ = name
    for mark, value in marks.items():
        setattr(tool, mark, value)
    return tool, calls


def looked(word: str) -> str:
    """Look a word up."""
    looked.calls += 1  # type: ignore[attr-defined]  # this function's own count
    return f"{word} is fine"


@pytest.fixture(autouse=True)
def none_looked_up() -> None:
    looked.calls = 0  # type: ignore[attr-defined]


def asking(*tools: object, rubric: object = "- x", **more: Any) -> dict[str, Any]:
    """Return a request whose grader has the tools."""
    argument = request(rubric, **more)
    argument["grader"]["tools"] = list(tools)
    return argument


async def pending(thread: Thread) -> dict[str, Any]:
    """Return the calls that wait, by tool, once the thread waits."""
    waiting = (await until(thread, "waiting"))["waiting_for"]
    assert waiting["criteria"] == []
    return {call["tool"]: call for call in waiting["calls"]}


BOOK = {"name": "book", "arguments": {"amount": 5}}
TWO_ITERATIONS = [
    *(draft(), wants("grader", BOOK), grade(0, row("c1", "no"), step=1)),
    *(draft(1), wants("grader", BOOK, iteration=1), grade(1, step=1)),
]


@pytest.mark.slow
async def test_a_call_waits_for_approval_and_nothing_that_was_done_is_done_again(client: Client) -> None:
    book, calls = counted("book", needs_approval=True)
    both = wants("grader", BOOK, {"name": "looked", "arguments": {"word": "spring"}})
    async with serving(client, draft(text="the draft"), both, grade(step=1), tools=[book, looked]) as served:
        thread = await served.start(asking("book", "looked"))
        asked = (await pending(thread))["book"]
        first = await thread.query("result", result_type=RunResult)
        before = list(calls)
        await thread.execute_update("approve", {"call": asked["call"], "by": "ann"})
        result = await thread.result()
        events = [item for item in (await page(thread, "events"))["items"] if item["type"] in {"waiting", "approved", "resumed"}]
        made = [activity.type for activity in await story(thread)]
        await replay(client, thread.id)

    assert first.waiting_for is not None
    assert (first.status, first.waiting_for.calls[0].tool, first.output) == ("waiting", "book", "the draft")
    assert first.waiting_for.draft is not None
    assert (first.waiting_for.draft.index, first.waiting_for.draft.rows) == (1, ())
    assert (asked["arguments"], asked["role"]) == ({"amount": 5}, "grader")
    assert before == []
    assert calls == [{"amount": 5, "draft": "the draft", "operation_id": asked["call"]}]
    assert asked["call"] == f"{result.grading_run_id}:0:grader.1.0.0.0.0"
    assert looked.calls == 1  # type: ignore[attr-defined]
    assert (result.status, made) == ("satisfied", ["generate", "grade", "tool.looked", "tool.book", "grade"])
    answers = {
        message.tool_call_id: message.content for message in served.models.requests_of("grader")[1].messages if message.role == "tool"
    }
    assert sorted(answers.values()) == ["booked 5", "spring is fine"]
    assert [(event["type"], event.get("call")) for event in events] == [("waiting", None), ("approved", asked["call"]), ("resumed", None)]


async def test_a_denied_call_is_not_made_and_the_grader_is_told_by_whom_and_why(client: Client) -> None:
    book, calls = counted("book", needs_approval=True)
    async with serving(client, draft(), wants("grader", BOOK), grade(step=1), tools=[book]) as served:
        thread = await served.start(asking("book"))
        asked = (await pending(thread))["book"]
        await thread.execute_update("deny", {"call": asked["call"], "by": "ann", "why": "too much"})
        result = await thread.result()

    assert (calls, result.status) == ([], "satisfied")
    assert served.models.requests_of("grader")[1].messages[-1].content == "not run: ann denied it: too much"


async def test_several_calls_wait_together_and_the_run_goes_on_with_the_last_word(client: Client) -> None:
    book, calls = counted("book", needs_approval=True)
    twice = wants("grader", BOOK, {"name": "book", "arguments": {"amount": 7}})
    async with serving(client, draft(), twice, grade(step=1), tools=[book]) as served:
        thread = await served.start(asking("book"))
        waiting = (await until(thread, "waiting"))["waiting_for"]["calls"]
        await thread.execute_update("approve", {"call": waiting[1]["call"], "by": "ann"})
        between = await until(thread, "waiting")
        await thread.execute_update("deny", {"call": waiting[0]["call"], "by": "bob", "why": "no"})
        await thread.result()

    assert [call["call"] for call in between["waiting_for"]["calls"]] == [waiting[0]["call"]]
    assert [call["amount"] for call in calls] == [7]


async def test_a_generators_call_waits_too_without_a_rubric(client: Client) -> None:
    book, calls = counted("book", needs_approval=True)
    async with serving(client, wants("generator", BOOK), draft(step=1, text="booked"), tools=[book]) as served:
        argument = request()
        argument["generator"]["tools"] = ["book"]
        thread = await served.start(argument, id="thread-approval-" + uuid4().hex)
        waiting = (await until(thread, "waiting"))["waiting_for"]
        await thread.execute_update("approve", {"call": waiting["calls"][0]["call"], "by": "ann"})
        result = await thread.result()

    assert (waiting["grading_run_id"], waiting["calls"][0]["role"]) == (None, "generator")
    assert waiting["calls"][0]["call"] == f"{thread.id}:0:generator.1.0"
    assert (result.output, len(calls)) == ("booked", 1)


async def test_a_check_waits_and_a_denied_one_could_not_decide(client: Client) -> None:
    def checked(draft: str) -> bool:
        """Check."""
        return True

    checked.needs_approval = True  # type: ignore[attr-defined]
    rubric = {"criteria": [{"id": "c1", "description": "x", "check": "checked"}]}
    for word, status in (({}, "satisfied"), ({"why": "no"}, "grader_error")):
        async with serving(client, draft(), tools=[checked]) as served:
            thread = await served.start(request(rubric, grader=None))
            asked = (await pending(thread))["checked"]
            await thread.execute_update("deny" if word else "approve", {"call": asked["call"], "by": "ann"} | word)
            result = await thread.result()

        assert result.status == status
        if word:
            assert result.evaluations[-1].explanation == "the check checked of c1 could not decide: not run: ann denied it: no"


@pytest.mark.slow
async def test_invoke_returns_waiting_rather_than_hang_and_the_same_key_waits_for_the_end(client: Client) -> None:
    book, _ = counted("book", needs_approval=True)
    async with serving(client, draft(), wants("grader", BOOK), grade(step=1), tools=[book]) as served:
        thread_id = f"thread-{uuid4()}"
        start = asking("book") | {"messages": []}
        first = await served.client.invoke(thread_id, "hello", key="order-1", start=start)
        second = asyncio.create_task(served.client.invoke(thread_id, "hello", key="order-1"))
        await asyncio.sleep(0.2)
        assert first.waiting_for
        with pytest.raises(InvalidRequest, match="does not wait for a person; those that do are: "):
            await served.client.approve(thread_id, "another", by="ann")
        await served.client.approve(thread_id, first.waiting_for.calls[0].call, by="ann")
        result = await second

    assert (first.status, result.status, result.grading_run_id) == ("waiting", "satisfied", first.grading_run_id)


async def test_a_word_that_nothing_waits_for_is_refused(client: Client) -> None:
    book, _ = counted("book", needs_approval=True)
    async with serving(client, draft(), wants("grader", BOOK), grade(step=1), tools=[book]) as served:
        thread = await served.start(asking("book", idle_timeout=60))
        asked = (await pending(thread))["book"]["call"]
        refusals = [
            await refused(thread, "approve", {"call": "x", "by": "ann"}),
            await refused(thread, "approve", {"call": asked}),
            await refused(thread, "deny", {"call": asked, "by": "ann"}),
            await refused(thread, "decide", {"grading_run_id": "x", "iteration": 0, "criterion": "c1", "passed": True, "by": "ann"}),
        ]
        await thread.execute_update("approve", {"call": asked, "by": "ann"})
        late = await refused(thread, "deny", {"call": asked, "by": "ann", "why": "too late"})
        await thread.signal("close")

    assert [kind for kind, _ in refusals] == ["StaleDecision", "InvalidRequest", "InvalidRequest", "StaleDecision"]
    assert late[0] == "StaleDecision"


async def test_an_interrupt_while_a_call_waits_stops_and_resume_asks_again(client: Client) -> None:
    book, calls = counted("book", needs_approval=True)
    async with serving(client, draft(), wants("grader", BOOK), grade(step=1), tools=[book]) as served:
        thread = await served.start(asking("book"))
        first = (await pending(thread))["book"]["call"]
        await thread.signal("interrupt")
        await until(thread, "interrupted")
        resumed = await thread.execute_update("resume", result_type=RunResult)
        again = (await pending(thread))["book"]["call"]
        await thread.execute_update("approve", {"call": again, "by": "ann"})
        result = await thread.result()

    assert (resumed.status, first, result.status, len(calls)) == ("waiting", again, "satisfied", 1)


async def test_a_new_rubric_while_a_generators_call_waits_takes_over_and_the_call_still_waits(client: Client) -> None:
    book, calls = counted("book", needs_approval=True)
    more = [draft(step=1, run=1), {"role": "grader", "run": 1, "verdict": grade()["verdict"]}]
    async with serving(client, wants("generator", BOOK), *more, tools=[book]) as served:
        argument = request("- y")
        argument["generator"]["tools"] = ["book"]
        thread = await served.start(argument)
        first = (await pending(thread))["book"]["call"]
        await thread.signal("supply_rubric", "- x")
        for _ in range(100):
            state = await thread.query("state", result_type=dict[str, Any])
            if state["rubric"]["criteria"][0]["description"] == "x":
                break
            await asyncio.sleep(0.02)
        again = (await pending(thread))["book"]["call"]
        await thread.execute_update("approve", {"call": again, "by": "ann"})
        result = await thread.result()
        await replay(client, thread.id)

    assert (first, len(calls), result.status) == (again, 1, "satisfied")
    assert result.grading_run_id != first.partition(":")[0]


async def test_arguments_that_no_person_can_read_are_refused(client: Client) -> None:
    def note(text: str) -> str:
        """Note."""
        return "noted"

    note.needs_approval = True  # type: ignore[attr-defined]
    call = {"name": "note", "arguments": {"text": "x" * 20_000}}
    async with serving(client, draft(), wants("grader", call), grade(step=1), tools=[note]) as served:
        result = await served.run(asking("note"))

    assert result.status == "satisfied"
    assert "its arguments have 20025 bytes, 16384 at most" in served.models.requests_of("grader")[1].messages[-1].content


@pytest.mark.slow
async def test_a_tool_that_must_not_run_twice_is_told_as_uncertain_when_its_worker_falls_silent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    async def pay(amount: int) -> str:
        """Pay."""
        begun.append(amount)
        await asyncio.sleep(20)
        return "paid"

    pay.repeatable = False  # type: ignore[attr-defined]
    call = {"name": "pay", "arguments": {"amount": 5}}
    async with serving(client, draft(), wants("grader", call), grade(step=1), tools=[pay]) as served:
        monkeypatch.setattr("activities.calls.attempts._beat", lambda _state, _seconds: None)
        thread = await served.start(asking("pay"))
        result = await asyncio.wait_for(thread.result(), 240)
        history = await thread.fetch_history()

    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    assert [activity.retry_policy.maximum_attempts for activity in scheduled if activity.activity_type.name == "tool.pay"] == [1]
    assert (begun, result.status) == ([5], "satisfied")
    assert served.models.requests_of("grader")[1].messages[-1].content.startswith("uncertain: pay was begun and its end is not known")


async def test_one_whose_worker_is_stopped_in_the_middle_of_it_is_uncertain_to_the_next_worker(client: Client) -> None:
    begun: list[int] = []

    async def pay(amount: int) -> str:
        """Pay."""
        begun.append(amount)
        await asyncio.sleep(20)
        return "paid"

    pay.repeatable = False  # type: ignore[attr-defined]
    replies = [draft(), wants("grader", {"name": "pay", "arguments": {"amount": 5}}), grade(step=1)]
    queue = f"queue-{uuid4()}"
    async with serving(client, *replies, tools=[pay], task_queue=queue, drain_seconds=0.2) as served:
        thread = await served.start(asking("pay"))
        while not begun:
            await asyncio.sleep(0.02)
    async with serving(client, *replies, tools=[pay], task_queue=queue) as served:
        result = await asyncio.wait_for(thread.result(), 240)

    assert (begun, result.status) == ([5], "satisfied")
    assert served.models.requests_of("grader")[0].messages[-1].content.startswith("uncertain: pay was begun and its end is not known")


async def stopped_and_resumed(served: Served, begun: Sized) -> RunResult:
    """Interrupt a thread in the middle of its first call of `pay`, and go on with it."""
    thread = await served.start(asking("pay"))
    while not len(begun):
        await asyncio.sleep(0.02)
    await thread.signal("interrupt")
    await until(thread, "interrupted")
    result: RunResult = await thread.execute_update("resume", result_type=RunResult)
    return result


async def test_an_interrupted_call_that_must_not_run_twice_is_uncertain_after_the_resume(client: Client) -> None:
    begun, gate = [], asyncio.Event()

    async def pay(amount: int) -> str:
        """Pay."""
        begun.append(amount)
        await gate.wait()
        return "paid"

    pay.repeatable = False  # type: ignore[attr-defined]
    call = {"name": "pay", "arguments": {"amount": 5}}
    async with serving(client, draft(), wants("grader", call), grade(step=1), tools=[pay]) as served:
        result = await stopped_and_resumed(served, begun)

    answer = served.models.requests_of("grader")[1].messages[-1].content
    assert (begun, result.status) == ([5], "satisfied")
    assert answer.startswith("uncertain: pay was begun and its end is not known; it may have had its effect, and is not run again (")


@pytest.mark.slow
async def test_a_repeatable_one_is_run_again_with_the_same_id(client: Client) -> None:
    seen: list[str] = []

    async def pay(operation_id: str) -> str:
        """Pay."""
        seen.append(operation_id)
        if len(seen) == 1:
            await asyncio.sleep(30)
        return "paid"

    async with serving(client, draft(), wants("grader", "pay"), grade(step=1), tools=[pay]) as served:
        result = await stopped_and_resumed(served, seen)

    assert (len(seen), len(set(seen)), result.status) == (2, 1, "satisfied")


@pytest.mark.slow
async def test_two_iterations_have_ids_of_their_own(client: Client) -> None:
    book, calls = counted("book")
    async with serving(client, *TWO_ITERATIONS, tools=[book]) as served:
        result = await served.run(asking("book"))

    run = result.grading_run_id
    assert [call["operation_id"] for call in calls] == [f"{run}:0:grader.1.0.0.0.0", f"{run}:1:grader.3.0.0.0.0"]


async def test_a_tool_that_changed_since_the_run_began_is_not_called(client: Client) -> None:
    book, calls = counted("book")
    async with serving(client, *TWO_ITERATIONS, tools=[book]) as served:
        gate = served.models.gate("generator", iteration=1)
        thread = await served.start(asking("book"))
        await asyncio.wait_for(gate.reached.wait(), 240)
        tool = next(tool for tool in served.tools if tool.spec.name == "book")
        tool.spec = tool.spec.model_copy(update={"description": "Book twice."})
        gate.opened.set()
        result = await thread.result()

    answer = served.models.requests_of("grader")[3].messages[-1].content
    assert (len(calls), result.status) == (1, "satisfied")
    assert answer == "book has changed its description or parameters since this run began; it was not called"


async def test_a_tool_that_needs_approval_is_not_called_by_a_request_that_goes_round_it(client: Client) -> None:
    """A request may name any activity as a tool elsewhere; the worker itself refuses what nobody approved."""
    book, calls = counted("book", needs_approval=True)
    async with serving(
        client, draft(), wants("grader", {"name": "mine", "arguments": {"amount": 1}}), grade(step=1), tools=[book]
    ) as served:
        mine = {"name": "mine", "description": "x", "activity": "tool.book", "task_queue": served.task_queue}
        result = await served.run(asking(mine))

    assert (calls, result.status) == ([], "satisfied")
    assert "book needs a person's approval, which this call has not" in served.models.requests_of("grader")[1].messages[-1].content


def test_marks_are_truth_values() -> None:
    from activities.tools.base import tool_of

    tool, _ = counted("book", repeatable="no")
    with pytest.raises(InvalidRequest, match="the tool 'book': repeatable is 'no'; give True or False"):
        tool_of(tool)


def test_what_a_tool_is_wanted_for_is_shown_without_control_characters() -> None:
    arguments = {"text": "\x1b[2Jgone \u202eback", "many": "a\nb"}
    call = PendingCall(call="run:0:grader.1.0.0.0.0", tool="book", arguments=arguments, role="grader")
    shown = [line.plain for line in decision_commands("t", WaitingFor(grading_run_id=None, iteration=None, criteria=(), calls=(call,)))]

    assert not any(ord(value) < 32 or value == "\u202e" for line in shown for value in line)
    assert shown[0] == 'the grader asks to call book {"text": "\\u001b[2Jgone back", "many": "a\\nb"}'
