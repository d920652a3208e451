"""Variables of a thread: a turn's rubric is checked when the turn is admitted, and filled when it begins."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.contract.thread import RunResult
from tests.rig.threads import SECONDS, Role, Served, a_thread, answering, ended, failing_until, replay, serving, start

ABOUT = "- about {{ x }}"
Sent = asyncio.Task[RunResult]


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


async def queue(served: Served, thread: str, text: str, **turn: Any) -> Sent:
    """Send a turn, and return it once it waits behind the others."""
    before = (await served.client.state(thread)).queued
    task = asyncio.create_task(served.client.invoke(thread, text, **turn))
    await served.until(thread, lambda state: state.queued > before or task.done())
    return task


async def names(served: Served, thread: str) -> list[str]:
    """Return the criteria by which drafts were judged, in order."""
    return [evaluation.criteria[0].name for evaluation in (await served.client.evaluations(thread)).items]


async def refused(task: Sent) -> str:
    """Return why a turn was refused."""
    with pytest.raises(Exception, match="variable") as caught:
        await asyncio.wait_for(task, SECONDS)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "phase", ["generator", "waiting", *(pytest.param(name, marks=pytest.mark.slow) for name in ("grader", "interrupted"))]
)
async def test_a_queued_turns_rubric_is_filled_with_the_variables_of_the_turns_before_it(served: Served, phase: Any) -> None:
    thread, person = a_thread(), {"id": "kind", "description": "kind", "human": True}
    first = {"criteria": ["about {{ x }}", person] if phase == "waiting" else ["about {{ x }}"]}
    role: Role = phase if phase in ("generator", "grader") else "generator"
    if phase == "waiting":
        await served.client.invoke(thread, "one", start=start(rubric=first, vars={"x": "one"}))
    else:
        turn = await served.begun(thread, role, "one", rubric=first, vars={"x": "one"})
        if phase == "interrupted":
            await served.client.interrupt(thread)
            await turn
            turn = asyncio.create_task(served.client.resume(thread))
            await served.models.called("generator", 2)
    queued = [
        await queue(served, thread, "two", rubric=ABOUT, variables={"x": "two"}),
        await queue(served, thread, "three", rubric="- all about {{ x }}"),
        await queue(served, thread, "four", variables={"x": "four"}),
        await queue(served, thread, "five", rubric="- about {{ x }} and {{ y }}", variables={"x": "five", "y": "six"}),
        await queue(served, thread, "six", variables={"x": "seven", "y": "eight"}),
        await queue(served, thread, "seven"),
    ]
    served.models.release()
    if phase == "waiting":
        await served.client.decide(thread, "kind", True, by="ann")
    results = await asyncio.gather(*queued)

    assert [result.status for result in results] == ["satisfied"] * 6
    assert await names(served, thread) == [
        "about one", "about two", "all about two", "all about four", "about five and six", "about seven and eight", "about seven and eight",
    ]  # fmt: skip
    await replay(served.temporal, thread)


@pytest.mark.slow
async def test_a_turn_is_refused_by_the_variables_that_are_to_count_when_it_begins(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator", "one", rubric=ABOUT, vars={"x": "one"})
    unknown = [
        await refused(asyncio.create_task(served.client.invoke(thread, "two", rubric="- {{ y }}"))),
        await refused(asyncio.create_task(served.client.invoke(thread, "two", variables={"y": 1}))),
    ]
    kept = await queue(served, thread, "two", rubric="- about {{ y }}", variables={"y": "two"})
    known = await queue(served, thread, "three", rubric="- all about {{ y }}")
    unknown.append(await refused(asyncio.create_task(served.client.invoke(thread, "four", rubric=ABOUT))))
    served.models.release()
    await asyncio.gather(turn, kept, known)

    assert [name in why for why, name in zip(unknown, "yxx", strict=True)] == [True] * 3
    assert await names(served, thread) == ["about one", "about two", "all about two"]


async def test_a_turn_whose_rubric_cannot_be_filled_when_it_begins_ends_interrupted_and_says_why(client: Client) -> None:
    models, three = answering(), {"messages": [{"role": "user", "content": "three"}], "rubric": ABOUT, "key": "three"}
    async with serving(client, models=models, only="activities") as calls:
        thread, queue_name = a_thread(), calls.task_queue
        async with serving(client, models=models, task_queue=queue_name, only="workflows") as served:
            first = await served.begun(thread, "grader", "one", rubric=ABOUT, vars={"x": "one"})
            second = await queue(served, thread, "two", rubric="- about {{ y }}", variables={"y": "two"})
        await calls.handle(thread).signal("interrupt")  # it would drop the second turn, but the first one's verdict comes with it
        sent = asyncio.create_task(calls.handle(thread).execute_update("invoke", three, result_type=RunResult))
        await asyncio.sleep(0.5)
        models.release()
        await ended(client, thread)
        async with serving(client, models=models, task_queue=queue_name, only="workflows") as served:
            results = await asyncio.wait_for(asyncio.gather(first, second, sent), SECONDS)
            events = await served.events(thread)
            with pytest.raises(Exception, match="'x'"):
                await served.client.invoke(thread, "three", key="three", rubric=ABOUT)
            four = await served.client.invoke(thread, "four")
            contents = await served.contents(thread)
            await replay(client, thread)

    unfit = results[2]
    assert [result.status for result in (*results, four)] == ["satisfied", "satisfied", "interrupted", "satisfied"]
    assert (unfit.reason, unfit.error, unfit.messages) == ("failure", "criteria[0].description: 'x' is undefined; the variables are: y", ())
    assert [event.why for event in events if event.type == "rubric_rejected"] == [unfit.error]
    assert contents == ["one", "draft 1", "two", "draft 2", "four", "draft 3"]


@pytest.mark.slow
async def test_variables_of_a_turn_outlive_a_new_run_of_the_workflow(impatient: Client) -> None:
    async with serving(impatient, models=answering()) as served:
        thread = a_thread()
        served.models.answers["grader"] = failing_until(9)
        await served.client.invoke(thread, "one", start=start(rubric=ABOUT, vars={"x": "one"}, max_iterations=9))
        await served.client.invoke(thread, "two", variables={"x": "two"})
        last = await served.client.invoke(thread, "three", rubric="- all about {{ x }}", max_iterations=1)
        listed = (await served.handle(thread).describe()).raw_description.workflow_execution_info

    assert listed.execution.run_id != listed.first_run_id
    assert last.evaluations[-1].criteria[0].name == "all about two"


@pytest.mark.slow
async def test_a_rubric_that_was_taken_back_is_not_filled_again(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator", "one", rubric=ABOUT, vars={"x": "one"})
    await served.client.supply_rubric(thread, "- better than {{ x }}")
    await served.client.supply_rubric(thread, ABOUT)
    await served.until(thread, lambda _: True)
    served.models.release()
    await turn
    await served.client.invoke(thread, "two", variables={"x": "two"})

    assert await names(served, thread) == ["about one", "about two"]


async def test_what_a_variable_says_is_never_a_template(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "one", start=start(rubric=ABOUT, vars={"x": "{{ secret }}", "secret": "s"}))
    await served.client.supply_rubric(thread, "- still about {{ x }}")
    await served.until(thread, lambda state: state.status == "idle" and state.rubric.criteria[0].description.startswith("still"))
    await served.client.invoke(thread, "two")

    assert await names(served, thread) == ["about {{ secret }}", "still about {{ secret }}", "still about {{ secret }}"]
