"""A query that comes before the workflow task of newer events is refused: what readers get is what the history holds."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.worker import WorkflowInstance

from gradeloop.contract.evaluation import Event
from gradeloop.contract.queries import READ_AGAIN
from gradeloop.contract.thread import RunResult
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import Models, Served, a_thread, answering, ended, replay, serving
from workflows.run_ahead import ReplayGuard

READERS = 3
"""Queries of each thread that wait for a worker: the worker gets several before the workflow task."""

THREADS = 4


@pytest.fixture(scope="module")
async def client(temporal_server: ServerInfo) -> Client:
    """Connect as a client that knows nothing of queries to be sent again."""
    return await connect(Connection(temporal_server.address, "default", embedded=False))


class Cut:
    """Threads whose only worker for workflows went, queries that wait for another, and what then happened to the threads."""

    def __init__(self, served: Served, threads: list[str], turns: list[asyncio.Task[RunResult]]) -> None:
        self.served = served
        self.threads = threads
        self.turns = turns

    async def ask(self, name: str) -> list[asyncio.Task[Any]]:
        """Send queries of every thread, as a client does that knows nothing of refusals."""
        handles = [self.served.handle(thread) for thread in self.threads for _ in range(READERS)]
        asked = [asyncio.create_task(handle.query(name)) for handle in handles]
        await asyncio.sleep(0.3)
        return asked


async def cut(client: Client, models: Models, calls: Served) -> Cut:
    """Begin threads, and stop their worker in the grader's first call."""
    threads = [a_thread() for _ in range(THREADS)]
    async with serving(client, models=models, task_queue=calls.task_queue, only="workflows") as served:
        turns = [await served.begun(thread, "grader") for thread in threads]
    return Cut(calls, threads, turns)


async def nothing_else(_: Cut) -> None:
    """Let the call's end be all that happens."""


async def another_rubric(stage: Cut) -> None:
    """Signal every thread."""
    for thread in stage.threads:
        await stage.served.temporal.get_workflow_handle(thread).signal("supply_rubric", "- it is better")


async def another_turn(stage: Cut) -> None:
    """Send every thread an update."""
    stage.turns += [asyncio.create_task(stage.served.client.invoke(thread, "write again", key="again")) for thread in stage.threads]
    await asyncio.sleep(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("happens", [nothing_else, another_rubric, another_turn])
async def test_what_is_read_ahead_of_a_workflow_task_stays(client: Client, happens: Callable[[Cut], Awaitable[None]]) -> None:
    models = answering()
    async with serving(client, models=models, only="activities") as calls:
        stage = await cut(client, models, calls)
        plain = await stage.ask("state")
        reads = [asyncio.create_task(calls.events(thread)) for thread in stage.threads for _ in range(READERS)]
        await happens(stage)
        models.release()
        for thread in stage.threads:
            await ended(client, thread)
        async with serving(client, models=models, task_queue=calls.task_queue, only="workflows") as served:
            refused = await asyncio.gather(*plain, return_exceptions=True)
            early = await asyncio.gather(*reads)
            await asyncio.gather(*stage.turns)
            cached = [await served.events(thread) for thread in stage.threads]
        async with serving(client, models=models, task_queue=calls.task_queue, only="workflows") as served:
            kept = [await served.events(thread) for thread in stage.threads]
        for thread in stage.threads:
            await replay(client, thread)

    assert cached == kept
    for number, events in enumerate(early):
        assert_prefix(events, kept[number // READERS])
    errors = [str(error) for error in refused if isinstance(error, WorkflowQueryFailedError)]
    assert errors
    assert all(error.startswith(f"[{READ_AGAIN}] ") for error in errors)


def assert_prefix(events: list[Event], kept: list[Event]) -> None:
    assert events
    assert events == kept[: len(events)]


@pytest.mark.slow
async def test_a_query_that_is_refused_costs_no_workflow_task(client: Client) -> None:
    models = answering()
    async with serving(client, models=models, only="activities") as calls:
        stage = await cut(client, models, calls)
        plain = await stage.ask("state")
        models.release()
        for thread in stage.threads:
            await ended(client, thread)
        async with serving(client, models=models, task_queue=calls.task_queue, only="workflows"):
            await asyncio.gather(*plain, return_exceptions=True)
            await asyncio.gather(*stage.turns)
        histories = [await calls.handle(thread).fetch_history() for thread in stage.threads]

    lost = {EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT}
    assert not [event for history in histories for event in history.events if event.event_type in lost]


class Recorded(WorkflowInstance):
    """A workflow that notes its activations, and schedules an activity and starts a timer for each activity that ends."""

    def __init__(self) -> None:
        self.jobs: list[list[str | None]] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.jobs.append([job.WhichOneof("variant") for job in act.jobs])
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        completion.successful.SetInParent()
        if act.jobs[0].HasField("resolve_activity"):
            completion.successful.commands.add().schedule_activity.SetInParent()
            completion.successful.commands.add().start_timer.SetInParent()
        return completion

    def get_serialization_context(self, command_info: Any) -> None:
        return None

    def get_external_store_context(self, command_info: Any) -> Any:
        raise NotImplementedError

    def get_info(self) -> Any:
        raise NotImplementedError


def activation(job: str, *, time: int, length: int, replaying: bool = False) -> WorkflowActivation:
    work = WorkflowActivationJob()
    getattr(work, job).SetInParent()
    act = WorkflowActivation(run_id="run", timestamp=Timestamp(seconds=time), history_length=length, is_replaying=replaying, jobs=[work])
    if job == "query_workflow":
        act.jobs[0].query_workflow.query_id = "legacy_query"
        act.is_replaying = True
    return act


BEGUN = [activation("initialize_workflow", time=1, length=3), activation("resolve_activity", time=2, length=10)]
AHEAD = activation("resolve_activity", time=2, length=16)
LATER_QUERY = activation("query_workflow", time=3, length=17)
QUERIES_IN_A_SECOND = 4


@pytest.mark.parametrize(
    ("activations", "answers"),
    [
        pytest.param([*BEGUN, activation("query_workflow", time=2, length=10)], "+++", id="a cached workflow at rest"),
        pytest.param([*BEGUN, activation("resolve_activity", time=2, length=10), activation("query_workflow", time=2, length=10)], "++++",
                     id="two activations of one task"),
        pytest.param([activation("initialize_workflow", time=1, length=3, replaying=True),
                      activation("resolve_activity", time=2, length=10, replaying=True), activation("query_workflow", time=2, length=14)],
                     "+++", id="rebuilt for the query, nothing newer"),
        pytest.param([*BEGUN, activation("resolve_activity", time=3, length=17), activation("query_workflow", time=3, length=17)], "++++",
                     id="attached to a workflow task"),
        pytest.param([*BEGUN, AHEAD, activation("query_workflow", time=2, length=16)], "+++q", id="ahead"),
        pytest.param([*BEGUN, activation("signal_workflow", time=2, length=10), activation("query_workflow", time=2, length=10)], "+++q",
                     id="ahead, as long as an update's task that was rejected"),
        pytest.param([*BEGUN, AHEAD, *[LATER_QUERY] * QUERIES_IN_A_SECOND], "+++qqqf", id="the task was completed without jobs"),
        pytest.param([*BEGUN, AHEAD, LATER_QUERY, activation("resolve_activity", time=4, length=25)], "+++qf",
                     id="the task was completed without jobs, and another comes soon"),
        pytest.param([*BEGUN, *[activation("query_workflow", time=3, length=13)] * QUERIES_IN_A_SECOND], "++qqqf",
                     id="the task was lost, and its next attempt completed without jobs"),
        pytest.param([*BEGUN, activation("signal_workflow", time=3, length=14)], "++f", id="the task was lost, and a signal came"),
        pytest.param([*BEGUN, activation("query_workflow", time=3, length=15)], "+++", id="a task without events of its own"),
        pytest.param([*BEGUN, AHEAD, activation("signal_workflow", time=3, length=18)], "+++f", id="the task meets the copy that is ahead"),
        pytest.param([*BEGUN, AHEAD, activation("remove_from_cache", time=0, length=16)], "++++", id="dropped"),
    ],
)  # fmt: skip
def test_the_guard_knows_when_a_workflow_is_ahead(activations: list[WorkflowActivation], answers: str) -> None:
    """`+` is an activation that the workflow got, `q` a refused query, `f` a failure that makes the worker replay."""
    inner, seconds = Recorded(), itertools.count(step=1 / QUERIES_IN_A_SECOND)
    guard = ReplayGuard(inner, lambda: next(seconds))
    seen = ""
    for act in activations:
        before, completion = len(inner.jobs), guard.activate(act)
        refused = [command.respond_to_query.HasField("failed") for command in completion.successful.commands]
        seen += "+" if len(inner.jobs) > before else "q" if refused == [True] else str(completion.WhichOneof("status"))[0]

    assert seen == answers
