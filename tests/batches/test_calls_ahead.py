"""A worker that serves its queue alone is given calls ahead: no more than the batch allows are made at once, and a pause begins none."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from activities.call_places import CallPlaces
from gradeloop.batches.contract import CaseCall, GradingBatch
from tests.rig.batches import batching, breaks, case, drafted, passes

ALONE: Mapping[str, Any] = {"until_idle": 3600}


def many(count: int) -> list[dict[str, Any]]:
    """Return so many cases."""
    return [case(f"c{at}") for at in range(count)]


def call(batch_id: str = "b", places: int = 2) -> CaseCall:
    """Return a call of a batch."""
    return CaseCall(batch_id=batch_id, position=0, attempt=0, nonce="n", places=places)


@dataclass
class Counted:
    """Calls that count how many of them hold a place."""

    places: CallPlaces = field(default_factory=CallPlaces)
    now: int = 0
    most: int = 0
    done: int = 0

    async def make(self, one: CaseCall, *, leaves: bool = False) -> None:
        """Hold a place for a moment; where it leaves it, go on for another one."""
        async with self.places.place(one, one.batch_id):
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await asyncio.sleep(0.01)
            finally:
                self.now -= 1
            if leaves:
                self.places.leave()
                await asyncio.sleep(0.05)
        self.done += 1


async def test_calls_hold_no_more_places_than_there_are_and_those_that_left_theirs_hold_none() -> None:
    counted = Counted()

    await asyncio.gather(*(counted.make(call(), leaves=at % 2 == 0) for at in range(20)))

    assert (counted.most, counted.done) == (2, 20)


async def test_a_call_without_a_number_of_places_waits_for_nobody() -> None:
    counted = Counted()

    await asyncio.gather(*(counted.make(call(places=0), leaves=True) for _ in range(20)))

    assert counted.most == 20


async def test_a_call_that_is_cancelled_while_it_waits_or_holds_a_place_leaves_it_to_the_next() -> None:
    counted = Counted()
    holding = [asyncio.create_task(counted.make(call())) for _ in range(2)]
    waiting = [asyncio.create_task(counted.make(call())) for _ in range(2)]
    await asyncio.sleep(0)
    for task in (holding[0], waiting[0]):
        task.cancel()
    await asyncio.gather(*holding, *waiting, return_exceptions=True)

    await asyncio.gather(*(counted.make(call()) for _ in range(6)))

    assert counted.most == 2
    assert counted.done == 8


async def test_batches_have_places_of_their_own_and_are_held_one_by_one() -> None:
    counted = Counted()
    counted.places.hold("b", "paused by a person")

    await asyncio.gather(*(counted.make(call(name)) for name in ("b", "b", "b", "other", "other")))

    assert counted.most == 4
    assert counted.places.why_held(call("b")) == "paused by a person"
    assert counted.places.why_held(call("b", places=0)) is None
    assert counted.places.why_held(call("other")) is None
    counted.places.resume("b")
    assert counted.places.why_held(call("b")) is None


async def test_no_more_calls_are_at_the_provider_at_once_than_the_batch_allows(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(delay=0.1), **ALONE) as batches:
        summary, results = await batches.run(many(40), at_once=6)
        requests = len(batches.served.models.requests)
        most = batches.served.models.most_at_once

    assert (summary.status, summary.passed, requests) == ("finished", 40, 40)
    assert [result.status for result in results] == ["passed"] * 40
    assert most == 6


@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_a_worker_of_few_slots_is_given_no_more_than_it_takes(client: Client, tmp_path: Path, slots: int) -> None:
    async with batching(client, tmp_path, passes(), max_concurrent_activities=slots, **ALONE) as batches:
        summary, _ = await batches.run(many(12), at_once=4)
        most = batches.served.models.most_at_once

    assert (summary.status, summary.passed) == ("finished", 12)
    assert most <= slots


@pytest.mark.parametrize("alone", [True, False])
async def test_a_pause_begins_no_call_that_was_given_ahead(client: Client, tmp_path: Path, alone: bool) -> None:
    async with batching(client, tmp_path, passes(), **(ALONE if alone else {})) as batches:
        gate = batches.served.models.gate("grader")
        await batches.upload("calm", many(40))
        handle = await batches.start("calm", 40, at_once=4)
        await asyncio.wait_for(gate.reached.wait(), 10)
        await handle.signal(GradingBatch.pause)
        await asyncio.sleep(1)
        gate.opened.set()
        summary = await handle.result()
        at_the_pause = len(batches.served.models.requests)
        finished = await (await batches.start("calm", 40)).result()
        asked = len(batches.served.models.requests)

    assert (summary.status, summary.reason, summary.passed) == ("paused", "paused by a person", at_the_pause)
    assert at_the_pause <= 4
    assert (finished.status, finished.passed, asked) == ("finished", 40, 40)


async def test_an_outage_is_waited_for_by_none_but_those_that_the_worker_has(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks(kind="overloaded"), outage_timeout=1.0, **ALONE) as batches:
        summary, results = await batches.run(many(12), at_once=4)

    assert str(summary.reason).startswith("outage: scripted:judge has answered no call for ")
    assert (summary.status, summary.errors, {result.status for result in results}) == ("paused", 0, {"queued"})
    assert len({request.thread for request in batches.served.models.requests}) <= 6  # four at once, and two ahead


async def test_a_budget_lets_no_more_calls_through_than_were_in_flight_when_it_was_reached(client: Client, tmp_path: Path) -> None:
    said = passes(delay=0.05, usage={"input": 90, "output": 10})
    async with batching(client, tmp_path, said, **ALONE) as batches:
        summary, _ = await batches.run(many(40), at_once=4, budget={"max_tokens": 1000}, cache=False)

    assert summary.status == "paused"
    assert 10 <= summary.passed <= 13


async def test_drafts_and_cases_with_a_workflow_of_their_own_are_counted_too(client: Client, tmp_path: Path) -> None:
    cases = [drafted(f"d{at}", loop=at % 2 == 0) for at in range(12)]
    said = [{"role": "generator", "text": "a draft", "delay": 0.05}, passes(delay=0.05)]
    async with batching(client, tmp_path, *said, **ALONE) as batches:
        summary, _ = await batches.run(cases, at_once=4)
        most = batches.served.models.most_at_once

    assert (summary.status, summary.passed) == ("finished", 12)
    assert most <= 4


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_batch_that_is_stopped_with_calls_given_ahead_goes_on(client: Client, tmp_path: Path, how: str) -> None:
    async with batching(client, tmp_path, passes(), **ALONE) as batches:
        gate = batches.served.models.gate("grader")
        await batches.upload(f"cut-{how}", many(20))
        handle = await batches.start(f"cut-{how}", 20, at_once=4)
        await asyncio.wait_for(gate.reached.wait(), 10)
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        gate.opened.set()
        finished = await (await batches.start(f"cut-{how}", 20)).result()

    assert (finished.status, finished.passed, finished.errors) == ("finished", 20, 0)
