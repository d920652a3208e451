"""Whose calls go first, and how many a second."""

import asyncio
import contextlib
import time
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from activities.tools.registry import ToolRegistry
from gradeloop.contract.provider import ModelReply, ModelRequest
from gradeloop.contract.thread import RunResult, parse_request
from gradeloop.errors import InvalidRequest
from gradeloop.settings.worker import WorkerSettings
from tests.rig.tables import over
from tests.rig.threads import Models, draft, request, serving
from worker import build


class Slow(Models):
    """One model that takes its time, remembers who asked, and holds its fifth call until it is let go."""

    def __init__(self) -> None:
        super().__init__([draft()], {})
        self.order: list[str] = []
        self.held = asyncio.Event()
        self.go = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer."""
        self.order.append(request.messages[0].content)
        if len(self.order) == 5:
            self.held.set()
            await self.go.wait()
        await asyncio.sleep(0.05)
        return await super().complete(request)


async def scheduled(thread: WorkflowHandle[object, RunResult]) -> list[tuple[int, str, float]]:
    """Return the priority of each activity in a thread's history."""
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    events = [event.activity_task_scheduled_event_attributes async for event in thread.fetch_history_events() if event.event_type == kind]
    return [(event.priority.priority_key, event.priority.fairness_key, event.priority.fairness_weight) for event in events]


async def test_a_threads_calls_carry_its_priority(client: Client) -> None:
    async with serving(client, draft()) as served:
        thread = await served.start(request(priority={"level": 5, "tenant": "acme", "weight": 0.5}))
        await thread.result()
        plain = await served.start(request())
        await plain.result()

    assert await scheduled(thread) == [(5, "acme", 0.5)]
    assert await scheduled(plain) == [(0, "", 0.0)]


async def started(client: Client, queue: str, name: str, priority: dict[str, object]) -> WorkflowHandle[object, RunResult]:
    argument = request(None, {"role": "user", "content": name}, priority=priority)
    return await client.start_workflow("GradingThread", argument, id=f"{queue}-{name}-{uuid4()}", task_queue=queue, result_type=RunResult)


@pytest.mark.slow
@pytest.mark.timeout(90)  # it takes five seconds; where the server forgets a task, nobody waits longer for it
@pytest.mark.parametrize(
    ("batch", "person"),
    [({"level": 5}, {"level": 1}), ({"tenant": "batch"}, {"tenant": "person"})],
    ids=["by level", "by tenant"],
)
async def test_a_batch_does_not_starve_the_runs_of_a_person(client: Client, batch: dict[str, object], person: dict[str, object]) -> None:
    models, queue = Slow(), f"queue-{uuid4()}"
    many = [await started(client, queue, "batch", batch) for _ in range(40)]
    settings = WorkerSettings(task_queue=queue, max_concurrent_activities=1, max_calls_per_second=1000)
    async with build(client, models, ToolRegistry(), settings):
        await models.held.wait()  # the one slot is taken, and every call of the batch waits behind it
        few = [await started(client, queue, "person", person) for _ in range(3)]
        for thread in [*many, *few]:
            while not await scheduled(thread):
                await asyncio.sleep(0.02)
        before = len(models.order)
        models.go.set()
        await asyncio.gather(*(result.result() for result in few))
        for thread in many:
            with contextlib.suppress(RPCError):  # it has ended
                await thread.terminate()

    assert models.order.count("person") == 3
    last = max(at for at, name in enumerate(models.order) if name == "person")
    assert last < before + 15, models.order  # of 40


@pytest.mark.slow
async def test_a_queue_starts_no_more_calls_a_second_than_it_may(client: Client) -> None:
    models, queue = Models([draft()], {}), f"queue-{uuid4()}"
    settings = WorkerSettings(task_queue=queue, max_calls_per_second=5)
    async with build(client, models, ToolRegistry(), settings):
        began = time.monotonic()
        threads = [await started(client, queue, "one", {}) for _ in range(15)]
        await asyncio.gather(*(thread.result() for thread in threads))
        took = time.monotonic() - began

    assert len(models.requests) == 15
    assert took > 1.5


@over(
    ("priority", "words"),
    [
        ({"level": 0}, "priority.level: Input should be greater than or equal to 1, got '0'"),
        ({"level": 6}, "priority.level: Input should be less than or equal to 5, got '6'"),
        ({"tenant": ""}, "priority.tenant: String should have at least 1 character, got ''"),
        ({"weight": 0}, "priority.weight: Input should be greater than or equal to 0.001, got '0'"),
        ({"key": "a"}, "priority: unknown key 'key'. Known: level, tenant, weight."),
    ],
)
def test_a_priority_that_means_nothing_is_refused(priority: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(request(priority=priority))

    assert str(caught.value) == words
