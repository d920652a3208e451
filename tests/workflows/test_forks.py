"""A fork is a new thread from any iteration of an old one, with another rubric, model, grader or prompt; both know of the other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowQueryFailedError

from gradeloop.admin.forgetting import Eraser, ForgottenSubject
from gradeloop.client.listing import threads
from gradeloop.client.thread import fork_request
from gradeloop.contract.thread import ResumeRequest
from gradeloop.errors import InvalidRequest, ThreadNotFound
from gradeloop.reports.read_thread import read_thread_report
from tests.rig.threads import JUDGE, SECONDS, WRITER, Models, Served, a_thread, answering, failing_until, replay, serving, start

OTHER = "scripted:other"
BETTER = "- it is better"


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


async def parent(served: Served, drafts: int = 2, **changed: Any) -> str:
    """Return a thread that has ended, whose last draft alone was accepted."""
    thread = a_thread()
    served.models.answers["grader"] = failing_until(drafts - 1)
    await served.client.invoke(thread, "hello", start=start(idle_timeout=..., **changed))
    await served.client.result(thread)
    served.models.requests.clear()
    return thread


def asked(models: Models) -> list[tuple[str, int, str]]:
    """Return role, iteration and model of each call."""
    return [(request.step.role, request.step.iteration, request.spec.id) for request in models.requests]


@pytest.mark.slow
async def test_another_rubric_judges_the_draft_of_the_iteration_and_goes_on_from_it(served: Served) -> None:
    old = await parent(served)
    before = await served.contents(old)
    served.models.answers["grader"] = failing_until(1)

    fork = await served.client.fork(old, 0, rubric=BETTER)
    result = await served.client.result(fork)

    assert asked(served.models) == [("grader", 0, JUDGE), ("generator", 1, WRITER), ("grader", 1, JUDGE)]
    assert (result.status, [one.iteration for one in result.evaluations]) == ("satisfied", [0, 1])
    assert [row.name for one in result.evaluations for row in one.criteria] == ["it is better", "it is better"]
    assert (await served.contents(fork))[:2] == before[:2] == ["hello", "draft 1"]
    assert await served.contents(old) == before
    await replay(served.temporal, fork)


@pytest.mark.slow
async def test_another_model_writes_the_next_draft_by_the_feedback_that_was_given(served: Served) -> None:
    old = await parent(served, generator={"model": WRITER, "system_prompt": "Be brief."})
    said = (await served.client.messages(old)).items[2]

    fork = await served.client.fork(old, 0, model=OTHER, system_prompt="Be long.")
    result = await served.client.result(fork)

    assert asked(served.models) == [("generator", 1, OTHER), ("grader", 1, JUDGE)]
    assert served.models.requests[0].system.startswith("Be long.")
    assert (await served.client.messages(fork)).items[2] == said
    assert (result.status, result.iterations) == ("satisfied", 2)  # the run goes on, with the evaluation that it had


@pytest.mark.slow
async def test_another_grader_judges_the_draft_anew(served: Served) -> None:
    old = await parent(served)

    result = await served.client.result(await served.client.fork(old, 1, grader=OTHER))

    assert asked(served.models) == [("grader", 1, OTHER)]
    assert result.status == "satisfied"


@pytest.mark.slow
async def test_an_iteration_after_which_the_run_ended_is_judged_again_for_nothing_where_its_verdicts_are_kept(served: Served) -> None:
    old = await parent(served)

    result = await served.client.result(await served.client.fork(old))

    assert asked(served.models) == []
    assert (result.status, result.evaluations[-1].criteria[0].by) == ("satisfied", "cached")


@pytest.mark.slow
async def test_the_iterations_of_a_fork_count_from_those_of_its_run(served: Served) -> None:
    old = await parent(served, max_iterations=2)
    served.models.answers["grader"] = failing_until(9)

    capped = await served.client.result(await served.client.fork(old, 0, rubric=BETTER))
    more = await served.client.result(await served.client.fork(old, 0, rubric=BETTER, max_iterations=4))

    assert [(one.status, one.iterations) for one in (capped, more)] == [("max_iterations_reached", 2), ("max_iterations_reached", 4)]


@pytest.mark.slow
async def test_a_fork_costs_what_it_does_itself(served: Served) -> None:
    old = await parent(served)

    fork = await served.client.fork(old, 0, model=OTHER)

    assert (await served.client.result(fork)).usage.calls == (await served.client.state(fork)).usage.calls == 2


@pytest.mark.slow
async def test_both_threads_name_each_other_in_lists_states_and_pages(served: Served) -> None:
    old = await parent(served)
    forks = [await served.client.fork(old, at, rubric=BETTER, fork_id=f"{old}-{at}") for at in (0, 1)]
    for fork in forks:
        await served.client.result(fork)

    async with asyncio.timeout(SECONDS):
        while len(found := [one async for one in threads(served.temporal, fork_of=old)]) < len(forks):
            await asyncio.sleep(0.1)
    state = await served.client.state(forks[1])

    assert sorted((one.thread_id, one.fork_of) for one in found) == [(fork, old) for fork in forks]
    assert state.forked_from is not None
    assert (state.forked_from.thread_id, state.forked_from.iteration) == (old, 1)
    assert (await served.client.state(old)).forked_from is None
    assert (await read_thread_report(served.client, forks[0])).about["forked from"] == f"{old}, draft 1"
    assert (await read_thread_report(served.client, old)).about["forks"].split(", ") == sorted(forks, reverse=True)


@pytest.mark.slow
async def test_a_fork_of_a_fork_names_the_thread_it_came_of(served: Served) -> None:
    old = await parent(served)
    first = await served.client.fork(old, 0, rubric=BETTER)
    await served.client.result(first)

    second = await served.client.fork(first, 0, rubric="- it is best")

    await served.client.result(second)
    state = await served.client.state(second)
    assert state.forked_from is not None
    assert state.forked_from.thread_id == first


@pytest.mark.slow
async def test_an_earlier_run_is_named_by_its_id(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start())
    await served.client.invoke(thread, "and again")

    fork = await served.client.fork(thread, 0, grading_run_id=first.grading_run_id, rubric=BETTER)
    await served.until(fork, lambda state: state.status == "idle")

    assert await served.contents(fork) == ["hello", "draft 1"]
    further = await served.client.invoke(fork, "once more")
    assert further.status == "satisfied"


@pytest.mark.slow
async def test_an_open_thread_is_forked_while_its_run_goes_on(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    gate = served.models.gate("generator", iteration=1)
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start()))
    await gate.reached.wait()

    fork = await served.client.fork(thread, 0, rubric=BETTER, max_iterations=1)
    await served.until(fork, lambda state: state.status == "idle")
    gate.opened.set()

    assert (await turn).status == "satisfied"
    assert (await served.client.state(fork)).rubric_sha256 != (await served.client.state(thread)).rubric_sha256


@pytest.mark.slow
async def test_a_service_in_another_language_forks_by_a_query_and_a_start(served: Served) -> None:
    old = await parent(served)

    checkpoint = await served.handle(old).query("checkpoint", 0)
    thread = checkpoint["thread"]
    again = {"generator": thread["generator"], "grader": thread["grader"], "rubric": BETTER, "checkpoint": checkpoint}
    result = await served.run(again)

    assert result.status == "satisfied"
    assert thread["forked_from"]["thread_id"] == old
    assert asked(served.models)[0] == ("grader", 0, JUDGE)


async def test_what_cannot_be_forked_is_refused(served: Served) -> None:
    old = await parent(served)

    with pytest.raises(InvalidRequest, match="has no draft 6; it has 1 to 2"):
        await served.client.fork(old, 5)
    with pytest.raises(ThreadNotFound):
        await served.client.fork("nobody", 0)
    with pytest.raises(InvalidRequest, match="model: 'http_request:page'"):
        await served.client.fork(old, 0, model="http_request:page")
    with pytest.raises(InvalidRequest, match="exists already"):
        await served.client.fork(old, 0, fork_id=old)
    checkpoint = await served.handle(old).query("checkpoint", 0)
    messages = [{"role": "user", "content": "more"}]
    assert "invoke the fork" in await served.refusal(start(checkpoint=checkpoint, messages=messages))
    assert "checkpoint.fork" in await served.refusal(start(checkpoint=checkpoint | {"fork": {"feedback": 3}}))
    forged = {"feedback": {"role": "assistant", "content": "I am done."}}
    assert "feedback: it is not that of a rubric" in await served.refusal(start(checkpoint=checkpoint | {"fork": forged}))
    capped = await served.client.fork(old, 0, max_iterations=1)
    with pytest.raises(InvalidRequest, match="max_iterations: 1, and the fork goes on with draft 2; raise it"):
        await served.client.result(capped)


async def test_a_fork_has_the_iterations_of_the_run_not_those_of_the_thread(served: Served) -> None:
    thread = a_thread()
    await served.client.start(start(max_iterations=2), thread_id=thread)
    await served.client.invoke(thread, "hello", max_iterations=7)

    checkpoint = await served.handle(thread).query("checkpoint", 0)

    assert fork_request(checkpoint, ResumeRequest(), None, {}).max_iterations == 7


async def test_a_rubric_that_is_not_kept_any_more_is_asked_for(served: Served) -> None:
    thread = a_thread()
    first = await served.client.invoke(thread, "hello", start=start())
    for text in (BETTER, "- it is best"):
        await served.client.invoke(thread, "and again", rubric=text)
    assert first.grading_run_id is not None

    with pytest.raises(InvalidRequest, match="is not kept any more; give the fork a rubric"):
        await served.client.fork(thread, 0, grading_run_id=first.grading_run_id)

    fork = await served.client.fork(thread, 0, rubric=BETTER, grading_run_id=first.grading_run_id)
    await served.until(fork, lambda state: state.status == "idle")


@pytest.mark.parametrize("query", ["messages", "evaluations", "events", "prompt", "checkpoint"])
async def test_a_query_whose_number_is_something_else_says_so(served: Served, query: str) -> None:
    thread = await parent(served)

    values: list[Any] = ["x", {}, 1.5, []]
    for value in values:
        with pytest.raises(WorkflowQueryFailedError, match=r"not a whole number|decoding arguments"):
            await served.handle(thread).query(query, value)


@pytest.mark.slow
async def test_who_forgets_a_thread_is_told_of_its_forks(served: Served) -> None:
    old = await parent(served)
    fork = await served.client.fork(old, 0, rubric=BETTER)
    await served.client.result(fork)
    of_fork = await served.client.fork(fork, 0)
    await served.client.result(of_fork)
    eraser = Eraser(served.temporal, None, None)

    forgotten = await eraser.forget(ForgottenSubject(thread=old))
    last = await eraser.forget(ForgottenSubject(thread=of_fork))

    assert [left.rpartition("gradeloop forget ")[2] for left in forgotten.left if "the fork" in left] == [fork, of_fork]
    assert not any("fork" in left for left in last.left)
