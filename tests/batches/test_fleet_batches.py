"""A batch uses the slots of all workers of its queue, and follows those that come and go; its shards share them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.common import Priority

import worker
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.contract.provider import ModelReply, ModelRequest
from gradeloop.settings.worker import WorkerSettings
from gradeloop.store import fleet as fleets
from gradeloop.store.engine import Store
from gradeloop.store.fleet import Fleet
from gradeloop.temporal.connect import Connection, connect
from tests.rig.batches import Batches, case, passes
from tests.rig.threads import Models, serving
from workflows.batches import grading_batch
from workflows.batches.grading_batch import CaseCalls


@dataclass
class HeldJudge:
    """Models whose calls are held until the test lets them answer."""

    models: Models = field(default_factory=lambda: Models([passes()]))
    in_flight: dict[int, asyncio.Event] = field(default_factory=dict)
    """The calls by the number of their case."""
    most: int = 0
    began: int = 0

    def __post_init__(self) -> None:
        self._complete, self._changed = self.models.complete, asyncio.Condition()
        self.models.complete = self.complete  # type: ignore[method-assign]

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Hold a call."""
        found = re.search(r"the output of c(\d+)\.", str(request.messages) + request.system)
        assert found is not None
        answered, number = asyncio.Event(), int(found[1])
        async with self._changed:
            self.in_flight[number], self.began = answered, self.began + 1
            self.most = max(self.most, len(self.in_flight))
            self._changed.notify_all()
        try:
            await answered.wait()
            return await self._complete(request)
        finally:
            async with self._changed:
                del self.in_flight[number]
                self._changed.notify_all()

    async def until(self, calls: int) -> None:
        """Wait until so many calls are in flight."""
        await self._until(lambda: len(self.in_flight) == calls, f"{calls} calls are in flight")

    async def until_began(self, calls: int) -> None:
        """Wait until so many calls have begun."""
        await self._until(lambda: self.began == calls, f"{calls} calls have begun")

    async def _until(self, reached: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(60), self._changed:
                await self._changed.wait_for(reached)
        except TimeoutError:
            raise AssertionError(f"never: {what}; {len(self.in_flight)} are in flight, {self.began} have begun") from None

    def answer(self, *numbers: int) -> None:
        """Let the calls of these cases answer."""
        for number in numbers:
            self.in_flight[number].set()


@dataclass
class Workers:
    """Workers of one queue and one store, which join and leave."""

    client: Client
    stack: AsyncExitStack
    url: str
    judge: HeldJudge = field(default_factory=HeldJudge)
    fleets: list[Fleet] = field(default_factory=list)
    queue: str = ""
    batches: Batches | None = None
    batch_id: str = field(default_factory=lambda: f"batch-{uuid4()}")

    async def join(self, slots: int = 20) -> Fleet:
        """Start a worker."""
        store = Store(self.url)
        self.stack.callback(store.close)
        address = self.client.service_client.config.target_host
        own = serving(
            await connect(Connection(address, "default", embedded=False)),  # a client has one worker of a queue
            models=self.judge.models,
            task_queue=self.queue,
            store=store,
            max_concurrent_activities=slots,
            limits={"scripted": {"concurrency": 1000}},
        )
        served = await self.stack.enter_async_context(own)
        self.queue, self.batches = served.task_queue, self.batches or Batches(self.client, served, store)
        return self.fleets[-1]

    async def until_slots(self, slots: int, *of: Fleet) -> None:
        """Wait until these workers, by default all, know of so many slots."""
        async with asyncio.timeout(60):
            while any(fleet.slots != slots for fleet in of or self.fleets):
                await asyncio.sleep(0.01)

    async def begin(self, cases: int, at_once: int) -> "asyncio.Task[tuple[BatchSummary, list[CaseResult]]]":
        """Start a batch."""
        assert self.batches is not None
        return asyncio.create_task(self.batches.run([case(f"c{at}") for at in range(cases)], batch_id=self.batch_id, at_once=at_once))

    async def finish(self, batch: "asyncio.Task[tuple[BatchSummary, list[CaseResult]]]", cases: int) -> None:
        """Answer whatever comes, until the batch has ended."""
        while not batch.done():
            self.judge.answer(*self.judge.in_flight)
            await asyncio.wait([batch], timeout=0.02)
        summary, _ = batch.result()
        assert (summary.status, summary.passed) == ("finished", cases)


@pytest.fixture
async def workers(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    """Return workers that register often, and count as live until they leave."""
    monkeypatch.setattr(fleets, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "LIVE_SECONDS", 600)
    async with AsyncExitStack() as stack:
        joined = Workers(client, stack, f"sqlite:///{tmp_path / 'results.db'}")
        make = worker._fleet

        def recorded(settings: WorkerSettings, store: Store | None) -> Fleet:
            joined.fleets.append(make(settings, store))
            return joined.fleets[-1]

        monkeypatch.setattr(worker, "_fleet", recorded)
        yield joined


@pytest.mark.slow
async def test_four_workers_of_20_slots_make_the_60_calls_at_once_that_a_batch_allows(workers: Workers) -> None:
    for _ in range(4):
        await workers.join()
    await workers.until_slots(80)
    batch = await workers.begin(70, at_once=60)
    await workers.judge.until(60)
    await workers.finish(batch, 70)
    assert workers.judge.most == 60


@pytest.mark.slow
async def test_a_batch_grows_with_a_worker_that_joins_and_shrinks_with_one_that_leaves(workers: Workers) -> None:
    first, judge = await workers.join(), workers.judge
    await workers.until_slots(20)
    batch = await workers.begin(120, at_once=60)
    await judge.until(16)

    second = await workers.join()
    await workers.until_slots(40)
    judge.answer(next(iter(judge.in_flight)))
    await judge.until(32)

    second.leave()
    await workers.until_slots(20, first, second)
    began = judge.began
    judge.answer(*list(judge.in_flight)[:17])
    await judge.until_began(began + 1)
    judge.most = 0
    for more in range(2, 5):
        judge.answer(next(iter(judge.in_flight)))
        await judge.until_began(began + more)
    assert judge.most == len(judge.in_flight) == 16
    await workers.finish(batch, 120)
    assert judge.most <= 16


@pytest.mark.slow
async def test_the_shards_that_are_open_share_what_a_batch_may_do_at_once(
    client: Client, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeloop.batches.store.SHARD_CASES", 12)
    monkeypatch.setattr(grading_batch, "LANES", 4)
    await workers.join()
    judge = workers.judge
    batch = await workers.begin(24, at_once=8)
    await judge.until(8)
    assert sum(number < 12 for number in judge.in_flight) == 4

    first, second = [f"shard/{workers.batch_id}/{stretch}/" for stretch in ("0-12", "12-24")]
    async with asyncio.timeout(60):
        while not await signals(client, second):
            judge.answer(*(number for number in judge.in_flight if number < 12))
            await asyncio.sleep(0.05)
    assert not await signals(client, first)
    judge.answer(next(iter(judge.in_flight)))
    await judge.until(8)
    await workers.finish(batch, 24)
    assert judge.most == 8


async def signals(client: Client, prefix: str) -> list[str]:
    """Return the signals that a shard has received."""
    histories = [
        await client.get_workflow_handle(shard.id, run_id=shard.run_id).fetch_history()
        async for shard in client.list_workflows(f"WorkflowId STARTS_WITH '{prefix}'")
    ]
    events = [event for history in histories for event in history.events]
    return [
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]


async def test_a_shard_whose_number_of_calls_changes_holds_the_next_ones_back() -> None:
    calls, held, inside = CaseCalls(2, Priority.default), asyncio.Event(), 0

    async def call() -> None:
        nonlocal inside
        async with calls:
            inside += 1
            await held.wait()
            inside -= 1

    async def settled() -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        return inside

    tasks = [asyncio.create_task(call()) for _ in range(20)]
    assert await settled() == 2
    calls.resize(6)
    assert await settled() == 6
    calls.resize(3)
    assert await settled() == 6
    held.set()
    held = asyncio.Event()
    assert await settled() == 3
    calls.resize(5)
    assert await settled() == 5
    held.set()
    await asyncio.gather(*tasks)
    calls.resize(1)
    async with calls:
        assert calls.locked()
