"""A pass in several calls: who is asked about what, what is asked again, and what it costs where one of them is lost."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from gradeloop.contract.thread import RunResult
from tests.rig.threads import JUDGE, Reply, Served, draft, refusal, request, row, serving, story, until, verdict

EACH = {"mode": "per_criterion", "criteria": ["three lines", "spring", "a kigo"]}


def said(group: int, *rows: dict[str, Any], iteration: int = 0, sample: int = 0, step: int = 0, run: int = 0, **more: Any) -> Reply:
    """Return a grader's verdict in one conversation of a pass."""
    place = {"role": "grader", "run": run, "iteration": iteration, "group": group, "sample": sample, "step": step}
    placed = ({f"k{at}": fields} for at, row in enumerate(rows, 1) for fields in row.values())
    return place | {"verdict": verdict(*placed, **more)}


def broken(group: int, *, sample: int = 0, run: int = 0) -> Reply:
    """Return a grader that cannot be asked."""
    return {"role": "grader", "run": run, "group": group, "sample": sample, "error": {"kind": "auth", "message": "no such key"}}


def asked(served: Served) -> list[tuple[int, int, int, int]]:
    """Return run, group, sample and step of each call of a grader."""
    return [
        (request.step.run, request.step.group, request.step.sample, request.step.step) for request in served.models.requests_of("grader")
    ]


async def test_each_criterion_has_a_call_of_its_own_and_sees_no_other(client: Client) -> None:
    replies = [said(0, row("c1")), said(1, row("c2", "it is autumn")), said(2, row("c3"))]
    async with serving(client, draft(), *replies) as served:
        thread = await served.start(request(EACH, max_iterations=1))
        result = await thread.result()

    (evaluation,) = result.evaluations
    assert [(criterion.id, criterion.passed) for criterion in evaluation.criteria] == [("c1", True), ("c2", False), ("c3", True)]
    assert evaluation.explanation == "2 of 3 criteria pass. Not passed: c2."
    assert evaluation.score == pytest.approx(2 / 3)
    assert (evaluation.result, evaluation.usage.calls) == ("needs_revision", 3)
    questions = {request.step.group: request.messages[-1].content for request in served.models.requests_of("grader")}
    assert ["spring" in questions[group] for group in range(3)] == [False, True, False]
    assert (
        len({(request.system, request.messages[:-1], json.dumps(request.schema)) for request in served.models.requests_of("grader")}) == 1
    )
    assert sorted(activity.summary for activity in await story(thread) if activity.type == "grade") == [
        "grade #1 c1",
        "grade #1 c2",
        "grade #1 c3",
    ]


async def test_criteria_of_one_judge_share_a_call_and_votes_have_one_each(client: Client) -> None:
    rubric = {"criteria": ["a", {"description": "b", "votes": 3}, "c", {"description": "d", "grader": "scripted:other"}]}
    votes = [said(1, row("c2", *gap), sample=at) for at, gap in enumerate(((), ("no",), ()))]
    async with serving(client, draft(), said(0, row("c1"), row("c3")), *votes, said(2, row("c4"))) as served:
        result = await served.run(request(rubric, max_iterations=1))

    rows = {criterion.id: criterion for criterion in result.evaluations[0].criteria}
    assert result.status == "satisfied"
    assert sorted((request.spec.model, request.step.group, request.step.sample) for request in served.models.requests_of("grader")) == [
        ("judge", 0, 0),
        ("judge", 1, 0),
        ("judge", 1, 1),
        ("judge", 1, 2),
        ("other", 2, 0),
    ]
    assert (rows["c2"].contested, [vote.passed for vote in rows["c2"].votes]) == (True, [True, False, True])
    assert (rows["c4"].grader, rows["c1"].grader) == ("scripted:other", None)


async def test_a_panel_asks_each_of_its_models_once(client: Client) -> None:
    rubric = {"criteria": [{"description": "a", "panel": ["scripted:one", "scripted:two"]}]}
    async with serving(client, draft(), said(0, row("c1")), said(0, row("c1", "no"), sample=1)) as served:
        result = await served.run(request(rubric, max_iterations=1))

    (criterion,) = result.evaluations[0].criteria
    assert [(vote.grader, vote.passed) for vote in criterion.votes] == [("scripted:one", True), ("scripted:two", False)]
    assert (criterion.passed, criterion.contested, criterion.gap, result.evaluations[0].grader) == (False, True, "no", "scripted:one")


async def test_each_vote_has_a_seed_of_its_own(client: Client) -> None:
    judge = {"id": JUDGE, "config": {"seed": 7}}
    rubric = {"criteria": [{"description": "a", "votes": 2}]}
    async with serving(client, draft(), said(0, row("c1")), said(0, row("c1"), sample=1)) as served:
        await served.run(request(rubric, grader={"model": judge}))

    assert sorted(request.spec.config.seed or 0 for request in served.models.requests_of("grader")) == [7, 8]


async def test_a_lost_call_costs_that_call_and_the_next_run_pays_for_nothing_else(client: Client) -> None:
    first = [said(0, row("c1")), broken(1), said(2, row("c3"))]
    async with serving(client, draft(), *first, said(1, row("c2"), run=1)) as served:
        thread = await served.start(request(EACH, idle_timeout=60))
        await _result_of(thread, "grader_error")
        again = await thread.execute_update("invoke", {}, result_type=RunResult)
        lost = (await thread.query("evaluations", args=[0, 9], result_type=dict[str, Any]))["items"][0]
        await thread.signal("close")

    assert [row["id"] for row in lost["criteria"]] == ["c1", "c3"]
    assert (lost["result"], lost["score"], lost["explanation"]) == ("grader_error", None, "auth: scripted:judge: no such key")
    assert (again.status, [criterion.by for criterion in again.evaluations[0].criteria]) == ("satisfied", ["cached", "model", "cached"])
    assert again.evaluations[0].usage.calls == 1
    assert sorted(asked(served)) == [(0, 0, 0, 0), (0, 1, 0, 0), (0, 2, 0, 0), (1, 1, 0, 0)]


async def test_an_interrupt_costs_the_call_in_flight_and_what_the_others_said_is_kept(client: Client) -> None:
    replies = [said(at, row(f"c{at + 1}")) for at in range(3)]
    async with serving(client, draft(), *replies) as served:
        gate = served.models.gate("grader", group=1)
        thread = await served.start(request(EACH))
        await gate.reached.wait()
        await _returned(thread, 2)
        await thread.signal("interrupt")
        await until(thread, "interrupted")
        gate.opened.set()
        result = await thread.execute_update("resume", result_type=RunResult)

    assert (result.status, [criterion.by for criterion in result.evaluations[0].criteria]) == ("satisfied", ["model"] * 3)
    assert sorted(group for _, group, *_ in asked(served)) == [0, 1, 1, 2]


async def _returned(thread: Any, count: int) -> None:
    """Wait until so many of the pass's calls have their verdicts."""
    async with asyncio.timeout(240):
        while True:
            checkpoint = await thread.query("checkpoint", result_type=dict[str, Any])
            grading = (checkpoint["thread"]["run"] or {}).get("grading") or {"conversations": {}}
            if sum(conversation["verdict"] is not None for conversation in grading["conversations"].values()) >= count:
                return
            await asyncio.sleep(0.02)


async def test_a_budget_stops_all_the_calls_of_a_pass_and_a_larger_one_makes_them(client: Client) -> None:
    replies = [said(at, row(f"c{at + 1}")) for at in range(3)]
    async with serving(client, draft(usage={"input": 90, "output": 20}), *replies) as served:
        thread = await served.start(request(EACH, budget={"max_tokens": 100}))
        state = await until(thread, "interrupted")
        before = len(asked(served))
        result = await thread.execute_update("resume", {"budget": {"max_tokens": 1000}}, result_type=RunResult)

    assert (state["reason"], before, result.status, len(asked(served))) == ("budget", 0, "satisfied", 3)


async def _result_of(thread: Any, status: str) -> None:
    async with asyncio.timeout(240):
        while ((await thread.query("result", result_type=dict[str, Any])) or {}).get("status") != status:
            await asyncio.sleep(0.02)


async def test_an_edited_criterion_has_its_own_call_made_again_and_no_other(client: Client) -> None:
    replies = [said(at, row(f"c{at + 1}")) for at in range(3)]
    edited = EACH | {"criteria": ["three lines", "spring, or its end", "a kigo"]}
    async with serving(client, draft(), *replies, said(1, row("c2"), run=1)) as served:
        thread = await served.start(request(EACH, idle_timeout=60))
        await _result_of(thread, "satisfied")
        again = await thread.execute_update("invoke", {"rubric": edited}, result_type=RunResult)
        await thread.signal("close")

    assert [criterion.by for criterion in again.evaluations[0].criteria] == ["cached", "model", "cached"]
    assert max(asked(served)) == (1, 1, 0, 0)
    assert len(asked(served)) == 4


async def test_whatever_the_grader_is_told_makes_another_question(client: Client) -> None:
    rubric: dict[str, Any] = {"criteria": ["three lines"]}
    changed: dict[str, Any] = {
        "instructions": {"rubric": rubric | {"instructions": "Be strict."}},
        "weight": {"rubric": {"criteria": [{"description": "three lines", "weight": 2}]}},
        "the grader's model": {"rubric": {"criteria": [{"description": "three lines", "grader": "scripted:other"}]}},
        "the request": {"messages": [{"role": "user", "content": "Another one."}]},
        "language": {"rubric": rubric | {"language": "de"}},
    }
    replies = [draft(), draft(run=1), said(0, row("c1")), said(0, row("c1"), run=1)]
    async with serving(client, *replies) as served:
        for change, more in changed.items():
            before = len(asked(served))
            thread = await served.start(request(rubric, idle_timeout=60))
            await _result_of(thread, "satisfied")
            await thread.execute_update("invoke", more, result_type=RunResult)
            await thread.signal("close")

            assert [run for run, *_ in asked(served)[before:]] == [0, 1], change


@pytest.mark.parametrize("version", [None, "1"])
async def test_a_verdict_that_rests_on_a_tool_is_given_again_unless_the_tool_is_cacheable(client: Client, version: str | None) -> None:
    looked = []

    def run_suite(draft: str) -> str:
        """Run the tests."""
        looked.append(draft)
        return f"{len(looked)} tests pass"

    if version:
        run_suite.cacheable = version  # type: ignore[attr-defined]  # how a tool declares itself

    def calls(run: int) -> Reply:
        return {"role": "grader", "run": run, "tool_calls": [{"name": "run_suite"}]}

    replies = [draft(), calls(0), said(0, row("c1"), step=1), calls(1), said(0, row("c1", "2 tests fail"), step=1, run=1)]
    async with serving(client, *replies, tools=[run_suite]) as served:
        argument = request("- the tests pass", idle_timeout=60, max_iterations=1)
        argument["grader"]["tools"] = ["run_suite"]
        thread = await served.start(argument)
        await _result_of(thread, "satisfied")
        again = await thread.execute_update("invoke", {}, result_type=RunResult)
        await thread.signal("close")

    assert (len(looked), again.status) == ((1, "satisfied") if version else (2, "max_iterations_reached"))
    assert again.evaluations[0].criteria[0].by == ("cached" if version else "model")


@pytest.mark.parametrize(("shown", "by"), [(True, "model"), (False, "cached")])
async def test_a_check_that_says_something_else_is_another_question_where_the_grader_is_told_of_it(
    client: Client, shown: bool, by: str
) -> None:
    outcomes = iter([True, {"ok": False, "why": "edited"}])

    def run_suite(draft: str) -> object:
        """Run the tests."""
        return next(outcomes)

    rubric = {"criteria": ["it is good", {"description": "the tests pass", "check": "run_suite"}], "show_checks": shown}
    async with serving(client, draft(), said(0, row("c1")), said(0, row("c1"), run=1), tools=[run_suite]) as served:
        thread = await served.start(request(rubric, idle_timeout=60, max_iterations=1))
        await _result_of(thread, "satisfied")
        again = await thread.execute_update("invoke", {}, result_type=RunResult)
        await thread.signal("close")

    assert [(criterion.passed, criterion.by) for criterion in again.evaluations[0].criteria] == [(True, by), (False, "tool")]
    assert again.status == "max_iterations_reached"


async def test_a_verdict_is_not_reused_on_a_worker_whose_tools_have_changed(client: Client) -> None:
    def look(what: str) -> str:
        """Look."""
        return what

    async with serving(client, draft(), said(0, row("c1")), tools=[look]) as served:
        argument = request("- fine", idle_timeout=60)
        argument["grader"]["tools"] = ["look"]
        thread = await served.start(argument)
        await _result_of(thread, "satisfied")
        checkpoint = await thread.query("checkpoint", result_type=dict[str, Any])
        await thread.signal("close")

    def look(what: str, closely: bool) -> str:  # type: ignore[no-redef]  # another tool of the same name
        """Look."""
        return what

    go_on = {"generator": {"model": "scripted:writer"}, "grader": argument["grader"], "checkpoint": checkpoint, "idle_timeout": 60}
    async with serving(client, said(0, row("c1"), run=1), tools=[look]) as served:
        thread = await served.start(go_on)
        again = await thread.execute_update("invoke", {}, result_type=RunResult)
        await thread.signal("close")

    assert [criterion.by for criterion in again.evaluations[0].criteria] == ["model"]


@pytest.mark.slow
async def test_a_thread_that_goes_on_elsewhere_brings_its_verdicts(client: Client) -> None:
    async with serving(client, draft(), *[said(at, row(f"c{at + 1}")) for at in range(3)]) as served:
        thread = await served.start(request(EACH, idle_timeout=60))
        await _result_of(thread, "satisfied")
        checkpoint = await thread.query("checkpoint", result_type=dict[str, Any])
        await thread.signal("close")

    go_on = {"generator": {"model": "scripted:writer"}, "grader": {"model": JUDGE}, "checkpoint": checkpoint, "idle_timeout": 60}
    async with serving(client) as served:
        thread = await served.start(go_on)
        again = await thread.execute_update("invoke", {}, result_type=RunResult)
        await thread.signal("close")

    assert (again.status, {criterion.by for criterion in again.evaluations[0].criteria}, asked(served)) == ("satisfied", {"cached"}, [])


ELSEWHERE = {"criteria": ["three lines", {"description": "spring", "score": {"min": 0, "max": 10}}]}


async def test_an_activity_on_another_worker_judges(client: Client) -> None:
    seen: list[dict[str, Any]] = []

    @activity.defn(name="judge_it")
    async def judge_it(question: dict[str, Any]) -> dict[str, Any]:
        seen.append(question)
        return {
            "criteria": [
                {"id": "c1", "passed": True, "metadata": {"lines": 3}},
                {"id": "c2", "passed": False, "score": 2, "reason": "autumn"},
            ]
        }

    queue = f"judges-{uuid4()}"
    async with serving(client, draft()) as served, Worker(client, task_queue=queue, activities=[judge_it]):
        result = await served.run(request(ELSEWHERE, grader={"activity": "judge_it", "task_queue": queue}, max_iterations=1))

    (evaluation,) = result.evaluations
    assert evaluation.score == pytest.approx(0.6)
    assert (evaluation.grader, evaluation.result) == ("activity:judge_it", "needs_revision")
    assert [(criterion.passed, criterion.gap, criterion.metadata) for criterion in evaluation.criteria] == [
        (True, None, {"lines": 3}),
        (False, "autumn", None),
    ]
    assert (seen[0]["draft"], seen[0]["iteration"], [criterion["id"] for criterion in seen[0]["criteria"]]) == ("draft 0", 0, ["c1", "c2"])
    assert [message["role"] for message in seen[0]["messages"]] == ["user", "assistant"]


async def test_a_function_of_the_workers_tools_judges_one_criterion(client: Client) -> None:
    def by_length(question: dict[str, Any], draft: str) -> dict[str, Any]:
        """Judge by length."""
        return {"passed": len(draft) < 100, "reason": f"{len(draft)} characters", "metadata": {"of": question["criteria"][0]["id"]}}

    rubric = {"criteria": ["three lines", {"id": "short", "description": "short", "grader": {"function": "by_length"}}]}
    async with serving(client, draft(), said(0, row("c1")), tools=[by_length]) as served:
        result = await served.run(request(rubric))

    rows = {criterion.id: criterion for criterion in result.evaluations[0].criteria}
    assert (result.status, rows["short"].reason, rows["short"].metadata) == ("satisfied", "7 characters", {"of": "short"})
    assert rows["short"].grader == "function:by_length"


async def test_a_function_may_answer_for_more_than_it_is_asked(client: Client) -> None:
    def judge(question: dict[str, Any]) -> dict[str, Any]:
        """Judge by a checklist of its own."""
        return {"criteria": [{"id": "c1", "passed": True}, {"id": "house style", "passed": False, "metadata": {"x": "y" * 20_000}}]}

    async with serving(client, draft(), tools=[judge]) as served:
        result = await served.run(request("- x", grader={"function": "judge"}))

    (evaluation,) = result.evaluations
    assert (result.status, [criterion.id for criterion in evaluation.criteria]) == ("satisfied", ["c1"])
    assert evaluation.explanation == "1 of 1 criteria pass. (Rows that nobody asked for were dropped: 'house style'.)"


async def test_what_a_function_returns_amiss_is_no_verdict(client: Client) -> None:
    amiss: list[tuple[object, str]] = [
        ({"passed": "true"}, "criteria[0].passed: Input should be a valid boolean"),
        ({"passed": False}, "c1 fails without a gap or a reason; say what is missing"),
        ({}, "criteria[0].passed: Field required"),
        (None, "Input should be a valid dictionary"),
        ({"criteria": []}, "no row for c1"),
        ({"criteria": [{"id": "c9", "passed": True}]}, "no row for c1; nobody asked for 'c9', but for c1"),
        ({"passed": True, "metadata": {"x": "y" * 20_000}}, "the metadata of c1 has 20008 bytes as JSON, 16384 at most"),
        ({"passed": True, "quote": "x"}, "unknown key 'quote'"),
    ]
    returned: list[object] = []

    def judge(question: dict[str, Any]) -> Any:
        """Judge."""
        return returned[-1]

    async with serving(client, draft(), tools=[judge]) as served:
        for answer, why in amiss:
            returned.append(answer)
            result = await served.run(request("- x", grader={"function": "judge"}))

            (evaluation,) = result.evaluations
            assert (result.status, evaluation.criteria) == ("grader_error", ())
            assert evaluation.explanation.startswith("malformed_verdict: the grader 'function:judge': ")
            assert why in evaluation.explanation


async def test_a_function_that_raises_is_tried_again_and_then_the_graders_error(client: Client) -> None:
    tried = []

    def judge(question: dict[str, Any]) -> Any:
        """Judge."""
        tried.append(1)
        raise RuntimeError("out of ink")

    async with serving(client, draft(), tools=[judge]) as served:
        result = await served.run(request("- x", grader={"function": "judge"}))

    assert (result.status, len(tried)) == ("grader_error", 4)
    assert "checker_error: RuntimeError: out of ink" in result.evaluations[0].explanation


@pytest.mark.parametrize(
    ("grader", "why"),
    [
        ({"function": "nobody"}, "grader: unknown tool 'nobody'"),
        ({"function": "no_question"}, "grader: the function 'no_question' takes no question"),
    ],
)
async def test_a_function_that_cannot_judge_is_refused_at_the_start(client: Client, grader: dict[str, str], why: str) -> None:
    def no_question() -> str:
        """Say nothing."""
        return ""

    async with serving(client, draft(), tools=[no_question]) as served:
        thread = await served.start(request("- x", grader=grader))
        assert why in await refusal(thread)
        assert served.models.requests == []


@pytest.mark.parametrize(("panel", "together"), [(["scripted:one", "scripted:two"], 2), (["scripted:one", "scripted:one"], 1)])
async def test_over_a_long_transcript_one_call_of_a_model_goes_ahead(client: Client, panel: list[str], together: int) -> None:
    rubric = {"criteria": [{"description": "a", "panel": panel}]}
    async with serving(client, draft(), said(0, row("c1")), said(0, row("c1"), sample=1)) as served:
        gate = served.models.gate("grader")
        thread = await served.start(request(rubric, {"role": "user", "content": "x" * 20_000}))
        async with asyncio.timeout(240):
            while len(asked(served)) < together:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        begun = len(asked(served))
        gate.opened.set()
        result = await thread.result()

    assert (begun, result.status, len(asked(served))) == (together, "satisfied", 2)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "length"), [(100, 25_000), (4, 1_000_000)])
async def test_many_criteria_are_judged_side_by_side_also_after_a_long_message(client: Client, count: int, length: int) -> None:
    rubric = {"mode": "per_criterion", "criteria": [f"criterion {number + 1}" for number in range(count)]}
    replies = [said(at, row(f"c{at + 1}")) for at in range(count)]
    async with serving(client, draft(), *replies) as served:
        thread = await served.start(request(rubric, {"role": "user", "content": "x" * length}))
        result = await asyncio.wait_for(thread.result(), 240)
        history = await thread.fetch_history()

    shared = {request.messages[: request.breakpoints[0] + 1] for request in served.models.requests_of("grader")}
    assert (result.status, len(result.evaluations[0].criteria), len(shared)) == ("satisfied", count, 1)
    assert sum(event.ByteSize() for event in history.events) - length < 1_000_000
    assert sum(len(message.content) for message in shared.pop()) > min(length, 500_000)
