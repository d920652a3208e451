"""A worker that serves its queue alone is given calls ahead: no more than the batch allows are made at once, and a pause begins none."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from activities.call_places import HELD, CallPlaces
from activities.cases import BatchActivities
from activities.errors import ModelFault
from activities.providers.base import ModelReply, ModelRequest
from gradeloop.batches.contract import BatchSummary, CaseCall, GradingBatch, HeldBatch
from gradeloop.batches.store import BatchStore
from gradeloop.contract.messages import Usage
from tests.rig import threads
from tests.rig.batches import Batches, batching, breaks, case, drafted, passes
from tests.rig.threads import Gate, fall_silent, gone, serving
from workflows import activity_calls, grading_batch

ALONE: Mapping[str, Any] = {"until_idle": 3600}


def many(count: int) -> list[dict[str, Any]]:
    """Return so many cases."""
    return [case(f"c{at}") for at in range(count)]


async def begun(batches: Batches, batch_id: str, count: int, at_once: int, **more: Any) -> tuple[WorkflowHandle[Any, BatchSummary], Gate]:
    """Start a batch, and return it once as many of its calls as may be made at once wait at the gate."""
    gate = batches.served.models.gate("grader")
    await batches.upload(batch_id, many(count))
    handle = await batches.start(batch_id, count, at_once=at_once, **more)
    await batches.served.models.called("grader", at_once)
    return handle, gate


async def judged_once(batches: Batches) -> None:
    """Judge six cases, two at once: each is paid for once, and no third call is made beside two."""
    summary, _ = await batches.run(many(6), at_once=2, cache=False)
    models = batches.served.models

    assert (summary.status, summary.passed) == ("finished", 6)
    assert (len(models.requests), models.most_at_once) == (6, 2)


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
    limit: str | None = None

    async def make(self, one: CaseCall) -> None:
        """Hold a place for a moment, in an activity of a shard of the call's batch."""
        activities = ActivityEnvironment()
        activities.info = replace(activities.info, workflow_run_id=f"run of {one.batch_id}")

        async def limit(_: CaseCall) -> str | None:
            return self.limit

        async def hold() -> None:
            async with self.places.place(one, limit):
                self.now += 1
                self.most = max(self.most, self.now)
                try:
                    await asyncio.sleep(0.01)
                finally:
                    self.now -= 1
            self.done += 1

        await activities.run(hold)


async def test_calls_hold_no_more_places_than_there_are() -> None:
    counted = Counted()

    await asyncio.gather(*(counted.make(call()) for _ in range(20)))

    assert (counted.most, counted.done) == (2, 20)
    assert not counted.places.has_others("")


async def test_a_call_without_a_number_of_places_waits_for_nobody() -> None:
    counted = Counted()

    await asyncio.gather(*(counted.make(call(places=0)) for _ in range(20)))

    assert counted.most == 20


async def test_a_call_that_is_cancelled_while_it_waits_or_holds_a_place_leaves_it_to_the_next() -> None:
    counted = Counted()
    tasks = [asyncio.create_task(counted.make(call())) for _ in range(4)]
    await asyncio.sleep(0.005)
    for at in (0, 2):
        tasks[at].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    await asyncio.gather(*(counted.make(call()) for _ in range(6)))

    assert counted.most == 2
    assert counted.done == 8


async def test_shards_have_places_of_their_own_and_are_held_one_by_one() -> None:
    counted = Counted()
    making = asyncio.gather(*(counted.make(call(name)) for name in ("b", "b", "b", "other", "other")), return_exceptions=True)
    await asyncio.sleep(0.005)
    counted.places.hold(["run of b"], "paused by a person")
    ended = await making

    assert counted.most == 4
    assert [str(one) for one in ended if one] == ["paused by a person"]
    counted.places.hold((f"run {at}" for at in range(HELD)), "paused, too")
    await counted.make(call("b"))
    assert counted.done == 5


async def test_a_limit_that_is_reached_while_a_call_waits_keeps_it_from_beginning() -> None:
    counted = Counted(limit="the budget is used up")

    ended = await asyncio.gather(*(counted.make(call()) for _ in range(4)), return_exceptions=True)

    assert [str(one) for one in ended if one] == ["the budget is used up"] * 2
    assert counted.done == 2


async def test_no_more_calls_are_at_the_provider_at_once_than_the_batch_allows(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(delay=0.1), **ALONE) as batches:
        summary, results = await batches.run(many(40), at_once=6)
        requests = len(batches.served.models.requests)
        most = batches.served.models.most_at_once

    assert (summary.status, summary.passed, requests) == ("finished", 40, 40)
    assert [result.status for result in results] == ["passed"] * 40
    assert 1 < most <= 6


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
        handle, gate = await begun(batches, "calm", 40, 4)
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
        handle, gate = await begun(batches, f"cut-{how}", 20, 4)
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        gate.opened.set()
        finished = await (await batches.start(f"cut-{how}", 20)).result()

    assert (finished.status, finished.passed, finished.errors) == ("finished", 20, 0)


async def test_a_call_that_the_server_gives_up_while_it_waits_is_paid_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fall_silent(monkeypatch)
    async with batching(client, tmp_path, passes(delay=3.0), **ALONE) as batches:
        await judged_once(batches)


async def test_a_call_in_flight_that_the_server_gives_up_keeps_its_place(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading_batch, "MODEL_CALL", gone(activity_calls.MODEL_CALL))

    async def late(heartbeat: Any, _seconds: float) -> None:
        if activity.info().attempt == 1 and activity.info().activity_type == "grade_case":
            await asyncio.sleep(2.0)
        while True:
            heartbeat.beat()
            await asyncio.sleep(0.3)

    async with batching(client, tmp_path, passes(delay=5.0), **ALONE) as batches:
        monkeypatch.setattr("activities.model_call._beat", late)
        await judged_once(batches)


async def test_a_worker_that_is_told_to_stop_begins_no_call_that_it_was_given_ahead(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Worker] = []
    quick = threads._quick

    def noted(*arguments: Any, **options: Any) -> Worker:
        made.append(quick(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(threads, "_quick", noted)
    async with batching(client, tmp_path, passes(), **ALONE) as batches:
        handle, gate = await begun(batches, "stopping", 20, 4)
        await asyncio.sleep(1)
        stopping = asyncio.create_task(made[0].shutdown())
        await asyncio.sleep(1)
        gate.opened.set()
        await asyncio.wait_for(stopping, 40)
        requests = len(batches.served.models.requests)
    async with batching(client, tmp_path, passes(), task_queue=batches.served.task_queue, **ALONE) as batches:
        summary = await handle.result()
        asked = len(batches.served.models.requests)

    assert requests == 4
    assert (summary.status, summary.passed, asked) == ("finished", 20, 16)


async def test_a_worker_that_does_not_hear_of_a_pause_does_not_keep_the_batch_from_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @activity.defn(name="hold_calls")
    async def slow(_self: BatchActivities, _batch: HeldBatch) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(BatchActivities, "hold_calls", slow)
    async with batching(client, tmp_path, passes(), **ALONE) as batches:
        handle, gate = await begun(batches, "deaf", 12, 4, cache=False)
        await handle.signal(GradingBatch.pause)
        await asyncio.sleep(1)
        gate.opened.set()
        summary = await asyncio.wait_for(handle.result(), 10)
        requests = len(batches.served.models.requests)

    assert (summary.status, summary.passed) == ("paused", requests)
    assert requests <= 6


async def test_two_batches_whose_calls_wait_leave_slots_to_others(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(), max_concurrent_activities=10, **ALONE) as batches:
        gate = batches.served.models.gate("grader")
        names = [f"two-{at}-{uuid4()}" for at in range(2)]
        for name in names:
            await batches.upload(name, many(20))
        handles = [await batches.start(name, 20, at_once=4, cache=False) for name in names]
        await asyncio.wait_for(gate.reached.wait(), 10)
        await asyncio.sleep(1)
        await asyncio.wait_for(batches.upload(f"third-{uuid4()}", many(1)), 10)
        gate.opened.set()
        ended = [(await handle.result()).passed for handle in handles]

    assert ended == [20, 20]


async def test_workers_that_share_a_queue_are_given_nothing_ahead(client: Client, tmp_path: Path) -> None:
    host = client.service_client.config.target_host
    other = await Client.connect(host, identity="another", data_converter=client.data_converter)
    async with batching(client, tmp_path, passes(delay=0.1), **ALONE) as batches:
        queue, models = batches.served.task_queue, batches.served.models
        async with serving(other, models=models, task_queue=queue, store=batches.store, **ALONE):
            summary, _ = await batches.run(many(30), at_once=6, cache=False)
            most = models.most_at_once

    assert (summary.status, summary.passed) == ("finished", 30)
    assert most <= 6


@pytest.mark.parametrize("upload", [{"batch_id": "b", "first": 0, "cases": [{"id": "a", "typo": 1}]}, {"cases": 3}])
async def test_a_worker_without_a_store_refuses_a_malformed_upload_too(client: Client, upload: dict[str, Any]) -> None:
    async with serving(client) as served:
        handle = await client.start_workflow("StoreCases", upload, id=f"store/{uuid4()}", task_queue=served.task_queue)
        with pytest.raises(WorkflowFailureError) as refused:
            await asyncio.wait_for(handle.result(), 10)

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "InvalidRequest"
    assert "this worker has no store" in refused.value.cause.message


async def test_a_pause_that_comes_while_the_batch_is_closed_does_not_hold_its_next_run(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = BatchStore.close

    async def slow(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(1.5)
        return await close(*arguments, **options)

    monkeypatch.setattr(BatchStore, "close", slow)
    async with batching(client, tmp_path, passes(), **ALONE) as batches:
        handle, gate = await begun(batches, "late", 20, 4)
        await handle.signal(GradingBatch.pause)
        await asyncio.sleep(0.5)
        gate.opened.set()
        await asyncio.sleep(0.7)
        await handle.signal(GradingBatch.pause)
        first = await handle.result()
        second = await (await batches.start("late", 20, at_once=4)).result()

    assert (first.status, second.status, second.passed) == ("paused", "finished", 20)


async def test_calls_given_ahead_to_a_batch_that_was_terminated_are_not_begun(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(), **ALONE) as batches:
        handle, gate = await begun(batches, "ended", 20, 8, cache=False)
        await asyncio.sleep(1)
        before = len(batches.served.models.requests)
        await handle.terminate()
        await asyncio.sleep(6)  # in which the calls hear of it by their heartbeats
        gate.opened.set()
        await asyncio.sleep(1)
        after = len(batches.served.models.requests)

    assert (before, after) == (8, 8)


@pytest.mark.parametrize("alone", [True, False])
async def test_what_a_call_cost_before_a_pause_held_it_is_counted(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """A reply that was cut is paid for; the call that asks for a longer one waits, and is held."""
    said = passes(usage={"input": 90, "output": 10}, delay=3.0)
    async with batching(client, tmp_path, said, **(ALONE if alone else {})) as batches:
        models = batches.served.models
        complete, cut = models.complete, Usage(attempts=1, calls=1, input=9000, output=1000)

        async def cutting(request: ModelRequest) -> ModelReply:
            if "output of c0." in str(request.messages) + request.system and not request.raised:
                raise ModelFault("truncated", "cut", model=request.spec.id, usage=cut, raisable=True)
            return await complete(request)

        monkeypatch.setattr(models, "complete", cutting)
        await batches.upload("cut", many(12))
        handle = await batches.start("cut", 12, at_once=2, cache=False)
        await models.called("grader", 2)
        await asyncio.sleep(0.5)
        await handle.signal(GradingBatch.pause)
        usage = (await handle.result()).usage
        sold = len(models.requests)

    assert (usage.input, usage.output, usage.calls) == (9000 + 90 * sold, 1000 + 10 * sold, 1 + sold)
