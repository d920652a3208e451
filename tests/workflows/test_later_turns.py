"""A turn that brings messages ends with a draft of its own, also where a person ends the run that it goes on with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, get_args

import pytest
from temporalio.client import Client

from gradeloop.contract.provider import Step
from gradeloop.contract.thread import RunResult
from tests.rig.threads import SECONDS, Served, a_thread, answering, replay, serving, start, verdict_text

Phase = Literal["drafting", "waiting for a person"]
PERSON = {"criteria": ["it is good", {"id": "kind", "description": "kind", "human": True}]}


class Later:
    """A thread whose first turn was interrupted in its second draft, and whose second turn goes on with the run."""

    def __init__(self, served: Served, phase: Phase) -> None:
        self.served, self.phase, self.thread = served, phase, a_thread()

    async def begin(self) -> asyncio.Task[RunResult]:
        """Come to the phase of the second turn, and return that turn."""
        served, models = self.served, self.served.models
        models.answers["grader"] = lambda _, number: verdict_text(number > 1)
        models.hold_second("generator")
        rubric = PERSON if self.phase == "waiting for a person" else "- it is good"
        first = asyncio.create_task(served.client.invoke(self.thread, "hello", start=start(rubric=rubric)))
        await models.called("generator", 2)
        await served.client.interrupt(self.thread)
        await first
        models.release()
        if self.phase == "drafting":
            models.hold("generator")
        turn = asyncio.create_task(served.client.invoke(self.thread, "more", key="two"))
        if self.phase == "drafting":
            await models.called("generator", 3)
        else:
            await served.until(self.thread, lambda state: state.status == "waiting")
        return turn

    async def override(self) -> None:
        """Pass the only draft that was judged, which is the first turn's."""
        names = ["c1", "kind"] if self.phase == "waiting for a person" else ["c1"]
        for name in names:
            await self.served.client.override(self.thread, name, True, why="fine", by="ann")

    async def finish(self) -> RunResult:
        """Do what the turn waits for, and return how it ended."""
        client, models = self.served.client, self.served.models
        models.release()
        if self.phase == "waiting for a person":
            await self.served.until(self.thread, lambda state: state.status == "waiting" and state.iteration == 0)
            await client.decide(self.thread, "kind", True, by="ann")
        return await asyncio.wait_for(client.invoke(self.thread, "more", key="two"), SECONDS)


@asynccontextmanager
async def later(client: Client, phase: Phase) -> AsyncIterator[Later]:
    async with serving(client, models=answering()) as served:
        yield Later(served, phase)


@pytest.mark.slow
@pytest.mark.parametrize("phase", get_args(Phase))
async def test_a_later_turn_whose_run_an_override_ends_has_a_draft_and_a_run_of_its_own(client: Client, phase: Phase) -> None:
    async with later(client, phase) as story:
        await story.begin()
        before = await story.served.client.state(story.thread)
        drafts = story.served.models.count("generator")
        await story.override()
        between = await story.served.client.state(story.thread)
        result = await story.finish()
        contents = await story.served.contents(story.thread)
        ends = {event.grading_run_id: event.status for event in await story.served.events(story.thread) if event.type == "run_ended"}
        await replay(client, story.thread)

    assert between.status == ("running" if phase == "drafting" else before.status)
    assert (result.status, result.output) == ("satisfied", contents[-1])
    assert next(message.content for message in result.messages or ()) == "more"
    assert [evaluation.draft for evaluation in result.evaluations] == [len(contents) - 1]
    assert result.grading_run_id != before.grading_run_id
    assert ends == {before.grading_run_id: "satisfied", result.grading_run_id: "satisfied"}
    assert story.served.models.count("generator") == drafts


async def test_an_override_of_a_turns_own_draft_ends_it_with_that_draft(client: Client) -> None:
    async with later(client, "drafting") as story:
        served, models = story.served, story.served.models
        turn = await story.begin()

        def fail_and_hold(_step: Step, _number: int) -> str:
            models.hold("generator")
            return verdict_text(False)

        models.answers["grader"] = fail_and_hold
        models.release()
        await models.called("generator", 4)
        await story.override()
        result = await turn
        models.release()
        contents = await served.contents(story.thread)

    assert (result.status, result.output, result.iterations) == ("satisfied", "draft 3", 2)
    assert contents[-1] == "rubric_grader"


@pytest.mark.slow
async def test_the_rubric_in_force_supplied_behind_such_an_override_changes_nothing(client: Client) -> None:
    async with later(client, "drafting") as story:
        turn = await story.begin()
        await story.override()
        await story.served.client.supply_rubric(story.thread, "- it is better")
        await story.served.client.supply_rubric(story.thread, "- it is good")
        await story.served.until(story.thread, lambda _: True)
        story.served.models.release()
        result = await turn

    assert (result.status, result.output) == ("satisfied", "draft 3")
    assert [row.name for evaluation in result.evaluations for row in evaluation.criteria] == ["it is good"]
