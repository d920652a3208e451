"""A thread is listed as it stands: its search attributes follow whatever changes its status, its run or its rubric."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.client.listing import ListedThread, threads
from gradeloop.contract.messages import ToolCall
from gradeloop.contract.provider import Step
from gradeloop.contract.thread import SEARCH_ATTRIBUTES, RunResult
from tests.rig.threads import SECONDS, WRITER, Role, Served, a_namespace, a_thread, answering, replay, serving, start

BETTER = "- it is better"
PERSON = {"criteria": ["it is good", {"id": "kind", "description": "kind", "human": True}]}


def look() -> str:
    """Look."""
    return "seen"


look.needs_approval = True  # type: ignore[attr-defined]  # how a tool is marked


class Listed:
    """A thread that has had a turn, by which it knows that the search attributes exist."""

    def __init__(self, served: Served) -> None:
        self.client, self.models, self.thread = served.client, served.models, a_thread()
        self._served = served
        self._turns: list[asyncio.Task[RunResult]] = []

    async def first_turn(self) -> None:
        await self.client.invoke(self.thread, "hello", start=start(generator={"model": WRITER, "tools": ["look"]}))
        self.models.answers["generator"] = self._draft

    def _draft(self, _: Step, number: int) -> str | tuple[ToolCall, ...]:
        """Call the tool where the user asks for it."""
        asked = self.models.requests_of("generator")[-1].messages[-1]
        return (ToolCall(id=str(number), name="look"),) if asked.content == "look" else f"draft {number}"

    async def begin(self, turn: str = "more", **given: Any) -> None:
        self._turns.append(asyncio.create_task(self.client.invoke(self.thread, turn, **given)))

    async def drafts(self, turn: str = "more", **given: Any) -> None:
        """Begin a turn, and come to its draft."""
        count = await self.hold("generator")
        await self.begin(turn, **given)
        await self.models.called("generator", count + 1)

    async def hold(self, role: Role) -> int:
        """Have the next call of a role wait, and return how many there were."""
        self.models.hold(role)
        return self.models.count(role)

    async def waits(self, turn: str = "look", **given: Any) -> None:
        """Begin a turn that waits for a person."""
        await self.begin(turn, **given)
        await self.until(lambda state: state.status == "waiting")

    async def until(self, condition: Callable[[Any], bool]) -> None:
        await self._served.until(self.thread, condition)

    async def supply(self) -> None:
        """Supply another rubric, and wait until it is in force."""
        await self.client.supply_rubric(self.thread, BETTER)
        await self.until(lambda state: state.rubric and state.rubric.criteria[0].description == "it is better")

    async def attributes(self) -> list[str | None]:
        found = (await self._served.handle(self.thread).describe()).search_attributes
        return [str(found[name][0]) if name in found else None for name in SEARCH_ATTRIBUTES]

    async def end(self) -> None:
        """Close the thread, whatever it waits for."""
        self.models.release()
        await self.client.cancel(self.thread)
        await asyncio.wait_for(asyncio.gather(*self._turns), SECONDS)


async def a_draft(one: Listed) -> None:
    await one.drafts()


async def a_draft_under_another_rubric(one: Listed) -> None:
    await one.drafts(rubric=BETTER)


async def a_draft_without_a_rubric(one: Listed) -> None:
    await one.drafts(rubric="")


async def a_call_that_waits(one: Listed) -> None:
    await one.waits()


async def another_rubric_while_a_call_waits(one: Listed) -> None:
    await one.waits()
    await one.supply()


async def a_cleared_rubric_while_a_call_waits(one: Listed) -> None:
    await one.waits()
    await one.client.supply_rubric(one.thread, "")
    await one.until(lambda state: state.rubric is None)


async def a_call_that_was_approved(one: Listed) -> None:
    await one.waits()
    count = await one.hold("generator")
    await one.client.approve(one.thread, by="ann")
    await one.models.called("generator", count + 1)


async def another_rubric_while_a_person_is_asked(one: Listed) -> None:
    await one.waits("more", rubric=PERSON)
    await one.hold("grader")
    await one.supply()


async def another_rubric_while_interrupted(one: Listed) -> None:
    await one.drafts()
    await one.client.interrupt(one.thread)
    await one.until(lambda state: state.status == "interrupted")
    await one.supply()


async def another_rubric_while_idle(one: Listed) -> None:
    await one.hold("grader")
    await one.supply()


MOMENTS: dict[Callable[[Listed], Awaitable[None]], str] = {
    a_draft: "running",
    a_draft_under_another_rubric: "running",
    a_draft_without_a_rubric: "ungraded",
    a_call_that_waits: "waiting",
    another_rubric_while_a_call_waits: "waiting",
    a_cleared_rubric_while_a_call_waits: "waiting",
    a_call_that_was_approved: "running",
    another_rubric_while_a_person_is_asked: "running",
    another_rubric_while_interrupted: "interrupted",
    another_rubric_while_idle: "running",
}


RARE = {a_draft_under_another_rubric, a_cleared_rubric_while_a_call_waits, a_call_that_was_approved, another_rubric_while_interrupted}
"""Moments at which the slow tests look."""


@pytest.mark.parametrize(
    "moment",
    [pytest.param(moment, marks=pytest.mark.slow if moment in RARE else (), id=moment.__name__) for moment in MOMENTS],
)
async def test_the_search_attributes_are_those_of_the_state(client: Client, moment: Callable[[Listed], Awaitable[None]]) -> None:
    async with serving(client, models=answering(), tools=[look]) as served:
        one = Listed(served)
        await one.first_turn()
        await moment(one)
        await asyncio.sleep(0.1)
        attributes, state = await one.attributes(), await one.client.state(one.thread)
        await one.end()
        await replay(client, one.thread)

    assert attributes == [MOMENTS[moment], state.grading_run_id, state.rubric_sha256, "", None]


@pytest.mark.slow
async def test_a_thread_and_a_fork_are_listed_before_their_first_call_has_ended(client: Client) -> None:
    async with serving(client, models=answering()) as served:
        old = a_thread()
        await served.client.invoke(old, "hello", start=start())
        served.models.hold("generator")
        served.models.hold("grader")
        plain, invoked = a_thread(), a_thread()
        await served.client.start(start() | {"messages": [{"role": "user", "content": "hello"}]}, thread_id=plain)
        turn = asyncio.create_task(served.client.invoke(invoked, "hello", start=start()))
        fork = await served.client.fork(old, rubric=BETTER)
        states = dict[str, Any]()
        for thread in (plain, invoked, fork):
            await served.until(thread, lambda state: state.rubric_sha256)
            states[thread] = await served.client.state(thread)

        async with asyncio.timeout(SECONDS):
            found = dict[str, ListedThread]()
            while not all(name in found and found[name].rubric_sha256 for name in states):
                await asyncio.sleep(0.1)
                found = {one.thread_id: one async for one in threads(client, status="running", limit=1_000)}
        origin = [one.thread_id async for one in threads(client, fork_of=old)]
        served.models.release()
        await turn
        for thread in states:
            await served.client.close_thread(thread)
            await replay(client, thread)

    assert {name: found[name].rubric_sha256 for name in states} == {name: state.rubric_sha256 for name, state in states.items()}
    assert (found[fork].fork_of, found[plain].fork_of, origin) == (old, None, [fork])


async def test_a_thread_starts_in_a_namespace_without_search_attributes_and_is_listed_as_it_closed(client: Client) -> None:
    older = await a_namespace(client)
    async with serving(older, models=answering(), attributes=False) as served:
        started, invoked = a_thread(), a_thread()
        await served.client.start(start(idle_timeout=...) | {"messages": [{"role": "user", "content": "hello"}]}, thread_id=started)
        results = [await served.client.result(started), await served.client.invoke(invoked, "hello", start=start())]
        await served.client.close_thread(invoked)
        async with asyncio.timeout(SECONDS):
            while [one.status async for one in threads(older)] != ["completed", "completed"]:
                await asyncio.sleep(0.1)

    assert [result.status for result in results] == ["satisfied", "satisfied"]


async def test_a_thread_whose_worker_writes_no_status_is_listed_as_it_closed(client: Client) -> None:
    async with serving(client, models=answering(), attributes=False) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
        await served.client.close_thread(thread)
        async with asyncio.timeout(SECONDS):
            while thread not in [one.thread_id async for one in threads(client, status="completed", limit=1_000)]:
                await asyncio.sleep(0.1)
        listed = {one.thread_id: one.status async for one in threads(client, limit=1_000)}
        running = [one.thread_id async for one in threads(client, status="running", limit=1_000)]

    assert listed[thread] == "completed"
    assert thread not in running
