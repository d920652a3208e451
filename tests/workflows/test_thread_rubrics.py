"""When a grading run starts, goes on and ends: the rubric of each turn, and one that is supplied in the middle of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.contract.provider import Step
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest
from tests.rig.threads import (
    Role,
    Served,
    a_thread,
    answering,
    draft,
    failing_until,
    grade,
    replay,
    row,
    serving,
    start,
    verdict_text,
)


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


async def interrupted(served: Served, thread: str, role: Role, **options: Any) -> RunResult:
    """Interrupt a turn in a call of `role` and return what it came to."""
    turn = await served.begun(thread, role, **options)
    await served.client.interrupt(thread)
    result = await turn
    served.models.release()
    assert result.status == "interrupted"
    return result


async def supplied(served: Served, thread: str, rubric: Any) -> None:
    """Supply a rubric and wait until the thread knows of it."""
    count = (await served.types(thread)).count("rubric_supplied")
    await served.client.supply_rubric(thread, rubric)
    while (await served.types(thread)).count("rubric_supplied") == count:
        await asyncio.sleep(0.02)


async def statuses(served: Served, thread: str) -> list[tuple[str | None, str | None]]:
    """Return run and status of every run that ended."""
    return [(event.grading_run_id, event.status) for event in await served.events(thread) if event.type == "run_ended"]


@pytest.mark.parametrize("given", [{}, {"rubric": None}, {"rubric": "- it is good"}, {"rubric": "\n - it is good \n\n"}])
async def test_the_rubric_sticks_and_each_further_turn_is_a_new_run(served: Served, given: dict[str, Any]) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start())

    second = await served.handle(thread).execute_update(
        "invoke", {"messages": [{"role": "user", "content": "more"}]} | given, result_type=RunResult
    )

    assert (second.status, second.iterations, second.evaluations[0].iteration) == ("satisfied", 1, 0)
    assert second.grading_run_id != first.grading_run_id
    evaluations = (await served.client.evaluations(thread)).items
    assert [evaluation.grading_run_id for evaluation in evaluations] == [first.grading_run_id, second.grading_run_id]
    assert evaluations[0] == first.evaluations[0]


@pytest.mark.parametrize("cleared", ["", {"criteria": []}])
async def test_a_cleared_rubric_leaves_later_turns_ungraded_until_it_is_set_again(served: Served, cleared: Any) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())

    ungraded = await served.client.invoke(thread, "more", rubric=cleared)
    still = await served.client.invoke(thread, "and more")
    graded = await served.client.invoke(thread, "enough", rubric="- it is good")

    assert [(item.status, item.grading_run_id) for item in (ungraded, still)] == [(None, None)] * 2
    assert (graded.status, graded.iterations) == ("satisfied", 1)
    assert served.models.count("grader") == 2
    assert (await served.client.state(thread)).rubric_sha256 is not None


async def test_another_rubric_is_a_new_run(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start())

    second = await served.client.invoke(thread, "more", rubric="- it is better")

    assert second.grading_run_id != first.grading_run_id
    assert second.evaluations[0].criteria[0].name == "it is better"
    assert (await served.client.state(thread)).grading_run_id == second.grading_run_id


async def test_a_turn_may_have_a_budget_of_its_own(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(9)

    first = await served.client.invoke(thread, "hello", start=start(max_iterations=3), max_iterations=1)
    second = await served.client.invoke(thread, "more")

    assert (first.iterations, second.iterations) == (1, 3)
    assert first.status == second.status == "max_iterations_reached"


async def test_nothing_said_to_an_idle_thread_grades_the_last_draft_again(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start())

    again = await served.client.invoke(thread)

    assert (again.status, again.iterations, again.output) == ("satisfied", 1, "draft 1")
    assert again.grading_run_id != first.grading_run_id
    assert (served.models.count("generator"), served.models.count("grader")) == (1, 1)
    assert [criterion.by for criterion in again.evaluations[0].criteria] == ["cached"]
    assert await served.contents(thread) == ["hello", "draft 1"]


@pytest.mark.parametrize(("shown", "paid"), [(False, 1), (True, 2)])
async def test_an_edited_check_asks_a_grader_again_only_where_it_is_told_of_checks(client: Client, shown: bool, paid: int) -> None:
    def rubric(least: int) -> dict[str, Any]:
        check = {"tool": "word_count", "arguments": {"minimum": least}}
        return {"criteria": [{"description": f"{least} words", "check": check, "required": False}, "readable"], "show_checks": shown}

    replies = (draft(), grade(0, row("k1")), grade(0, row("k1")) | {"run": 1})
    async with serving(client, *replies) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start(rubric=rubric(1)))
        again = await served.client.invoke(thread, rubric=rubric(50))

    checked, judged = again.evaluations[0].criteria
    assert (checked.passed, judged.passed, judged.by) == (False, True, "model" if shown else "cached")
    assert served.models.count("grader") == paid


async def test_nothing_said_and_another_rubric_grades_the_last_draft_by_it(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    served.models.answers["grader"] = failing_until(1)

    again = await served.client.invoke(thread, rubric="- it is better")

    assert [evaluation.result for evaluation in again.evaluations] == ["needs_revision", "satisfied"]
    assert await served.contents(thread) == ["hello", "draft 1", "rubric_grader", "draft 2"]


async def test_nothing_said_and_no_rubric_is_refused(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(rubric=""))

    with pytest.raises(InvalidRequest, match="there is no draft to grade by a rubric"):
        await served.client.invoke(thread)


async def test_a_cleared_rubric_supersedes_an_interrupted_run(served: Served) -> None:
    thread = a_thread()
    stopped = await interrupted(served, thread, "grader")

    result = await served.client.invoke(thread, "just answer", rubric="")

    assert (result.status, result.grading_run_id, result.output) == (None, None, "draft 2")
    assert (await statuses(served, thread))[0] == (stopped.grading_run_id, "superseded")


async def test_a_rubric_supplied_while_the_generator_works_judges_its_draft(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    before = (await served.client.state(thread)).grading_run_id

    await supplied(served, thread, "- it is better")
    served.models.release()
    result = await turn

    assert result.grading_run_id != before
    assert (result.status, [evaluation.iteration for evaluation in result.evaluations]) == ("satisfied", [0])
    assert result.evaluations[0].criteria[0].name == "it is better"
    assert await statuses(served, thread) == [(before, "superseded"), (result.grading_run_id, "satisfied")]
    assert (served.models.count("generator"), served.models.count("grader")) == (1, 1)
    await replay(served.temporal, thread)


async def test_a_rubric_supplied_while_grading_cancels_the_grading(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    before = (await served.client.state(thread)).grading_run_id

    await served.client.supply_rubric(thread, "- it is better")
    await served.models.called("grader", 2)
    served.models.release()
    result = await turn

    assert result.grading_run_id != before
    assert (result.status, result.iterations, result.output) == ("satisfied", 1, "draft 1")
    assert [item.grading_run_id for item in (await served.client.evaluations(thread)).items] == [result.grading_run_id]
    assert await statuses(served, thread) == [(before, "superseded"), (result.grading_run_id, "satisfied")]
    assert served.models.steps("grader") == [(0, 0), (1, 0)]
    await replay(served.temporal, thread)


def failing_the_first(_: Step, number: int) -> str:
    """Fail the first draft that is ever graded."""
    return verdict_text(number > 1)


@pytest.mark.parametrize(
    ("role", "raw"),
    [("generator", 17), ("generator", "\n# nothing\n"), ("generator", None), ("grader", {"criteria": "x"}), ("grader", {"criterion": []})],
)
async def test_a_malformed_rubric_is_recorded_and_changes_nothing_else(served: Served, role: Role, raw: Any) -> None:
    thread = a_thread()
    turn = await served.begun(thread, role)

    await served.handle(thread).signal("supply_rubric", raw)
    while "rubric_rejected" not in await served.types(thread):
        await asyncio.sleep(0.02)
    served.models.release()
    result = await turn

    rejection = next(event for event in await served.events(thread) if event.type == "rubric_rejected")
    assert rejection.why
    assert (result.status, result.iterations, result.evaluations[0].criteria[0].name) == ("satisfied", 1, "it is good")
    assert (served.models.count("generator"), served.models.count("grader")) == (1, 1)


async def test_a_rubric_that_nobody_can_judge_is_a_graders_error_and_no_grade(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(rubric=..., grader=...))

    await served.client.supply_rubric(thread, "- it is good")
    while not (found := await served.client.evaluations(thread)).items:
        await asyncio.sleep(0.02)

    assert (found.items[0].result, found.items[0].score) == ("grader_error", None)
    assert "no grader is named and no provider key is set" in found.items[0].explanation
    assert served.models.count("grader") == 0


async def test_the_client_refuses_a_malformed_rubric_before_it_is_sent(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    events = await served.events(thread)

    with pytest.raises(InvalidRequest, match="the rubric has no criterion"):
        await served.client.supply_rubric(thread, "# nothing")

    assert await served.events(thread) == events


@pytest.mark.slow
async def test_a_thousand_rubrics_in_a_row_are_all_told_and_the_last_one_judges(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    handle = served.handle(thread)

    await asyncio.gather(*(handle.signal("supply_rubric", f"- it is number {number}") for number in range(999)))
    await supplied(served, thread, "- it is the last")
    served.models.release()
    result = await turn

    assert (await served.types(thread)).count("rubric_supplied") == 1000
    assert [row.name for evaluation in result.evaluations for row in evaluation.criteria] == ["it is the last"]
    assert served.models.count("grader") == 1
    await replay(served.temporal, thread)


async def test_a_thousand_rubrics_while_grading_leave_a_thread_that_answers(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "grader")
    served.models.release()
    handle = served.handle(thread)

    await asyncio.gather(*(handle.signal("supply_rubric", f"- it is number {number}") for number in range(300)))
    await served.client.supply_rubric(thread, "- it is the last")
    await turn
    await served.until(thread, lambda state: state.status == "idle" and state.rubric.criteria[0].description == "it is the last")

    evaluations = (await served.client.evaluations(thread)).items
    assert evaluations[-1].criteria[0].name == "it is the last"
    assert evaluations[-1].status == "satisfied"
    places = [(evaluation.grading_run_id, evaluation.iteration) for evaluation in evaluations]
    assert len(places) == len(set(places))
    assert served.models.count("generator") == 1
    await replay(served.temporal, thread)


@pytest.mark.parametrize("door", ["supply_rubric", "invoke"])
async def test_a_rubric_judges_the_draft_with_which_an_override_ended_the_run(served: Served, door: str) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_the_first
    served.models.hold_second("generator")
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start()))
    await served.models.called("generator", 2)
    await served.client.override(thread, "c1", True, why="fine", by="ann")
    ended = await turn
    served.models.release()
    served.models.hold("grader")
    judged = asyncio.create_task(getattr(served.client, door)(thread, rubric="- it is better"))
    await served.models.called("grader", 2)
    await served.client.supply_rubric(thread, "- it is best")
    await served.models.called("grader", 3)
    served.models.release()
    await served.until(thread, lambda state: state.status == "idle")
    await judged
    evaluations = (await served.client.evaluations(thread)).items

    assert (ended.status, ended.output) == ("satisfied", "draft 1")
    assert await served.contents(thread) == ["hello", "draft 1", "rubric_grader"]
    assert [(one.draft, one.criteria[0].name) for one in evaluations] == [(1, "it is good"), (1, "it is best")]
    assert served.models.count("generator") == 2
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_a_rubric_supplied_before_any_is_set_opens_the_first_run(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator", rubric=...)

    await supplied(served, thread, "- it is good")
    served.models.release()
    result = await turn

    assert (result.status, result.iterations) == ("satisfied", 1)
