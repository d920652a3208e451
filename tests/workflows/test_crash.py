"""Workers and servers that are killed: a grading run goes on by itself, and nothing that was finished is paid for twice."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import Client
from temporalio.worker import Replayer

from gradeloop.client.client import GradingClient
from gradeloop.client.thread import REACHED_SECONDS, RECONNECT_SECONDS, Outage
from gradeloop.contract.evaluation import Event
from gradeloop.contract.thread import RunResult
from rig.counting_server import CountingServer
from rig.processes import SECONDS, Engine, WorkerProcess, engine_in
from tests.rig.wire import Wire
from workflows import RUNNER
from workflows.grading_thread import GradingThreadWorkflow

RESUMED_SECONDS = 120.0
"""From a worker's death to the call that is made again: the heartbeat's timeout, 10 s, and not that of a call, 10 minutes and more."""

CANCEL_SECONDS = 60.0
"""From a cancellation to the call that ends: about 2 on an idle machine, and 10 minutes where no heartbeat brings it."""

PLAIN = Counter({"generator 0": 1, "grader 0": 1, "generator 1": 1, "grader 1": 1})
"""The calls of a thread whose second draft is good."""

CUT_SECONDS = 12.0
"""Above the heartbeat timeout, so that the server gives the call up."""


@dataclass
class Thread:
    """A thread, the one caller who waits for it, and the one who watches it."""

    name: str
    invoked: asyncio.Task[RunResult]
    watched: asyncio.Task[list[Event]]


@dataclass
class Story:
    """What became of a thread."""

    result: RunResult
    events: list[Event]
    calls: Counter[str]
    same_bytes: bool
    """Whether a call that was made again sent what it had sent before."""
    attempts: int
    """Attempts that the server began of the thread's activities: on a slow host it may give one up whose worker lives."""
    resumed: float = 0.0
    """Seconds from the death to the call that was made again."""


@dataclass
class Stage:
    """A server, its models, and the threads of one queue."""

    engine: Engine
    models: CountingServer
    client: Client
    queue: str
    workers: list[WorkerProcess] = field(default_factory=list)

    async def worker(self, name: str = "one", **options: Any) -> WorkerProcess:
        """Start a worker process."""
        worker = WorkerProcess(self.engine, self.queue, self.models.url, name=name, **options)
        self.workers.append(worker)
        return await worker.start()

    async def begin(self, thread: str, first: str = "generator 0", **changed: Any) -> Thread:
        """Invoke a thread, and watch it from its first call on."""
        grading = GradingClient(self.client, task_queue=self.queue)
        request = self.models.request(thread, **changed)
        invoked = asyncio.create_task(grading.invoke(thread, "write", start=request))
        await self.models.called(thread, first)
        return Thread(thread, invoked, asyncio.create_task(_events(grading, thread)))

    async def story(self, thread: Thread, resumed: float = 0.0) -> Story:
        """Wait for the thread's end and tell of it."""
        async with asyncio.timeout(240):
            result, events = await thread.invoked, await thread.watched
        calls = self.models.of(thread.name)
        counts = self.models.counts(thread.name)
        same_bytes = len({(call.name, call.sha256) for call in calls}) == len(counts)
        return Story(result, events, counts, same_bytes, await _attempts(self.client, thread.name), resumed)


async def _events(client: GradingClient, thread: str) -> list[Event]:
    return [event async for event in client.watch(thread)]


async def _attempts(client: Client, thread: str) -> int:
    """Count the attempts at a thread's activities."""
    events = [event async for event in client.get_workflow_handle(thread).fetch_history_events()]
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    return sum(event.activity_task_started_event_attributes.attempt for event in events if event.event_type == kind)


def seen(name: str, value: float) -> None:
    """Print a measured figure; `-s` shows it."""
    print(f"{name}: {value:.1f} s")


Play = Callable[[Stage], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
async def stories(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, asyncio.Task[Any]]]:
    """Play all scenes at once, each on a queue of its own: what takes long in each is the heartbeat's timeout."""
    async with AsyncExitStack() as stack:
        scenes: dict[Play, Engine] = {}
        for play in (server_dies, both_die):
            scenes[play] = await stack.enter_async_context(engine_in(tmp_path_factory.mktemp(play.__name__)))
        scenes |= dict.fromkeys(SCENES, await stack.enter_async_context(engine_in(tmp_path_factory.mktemp("steady"))))
        stages = {play: Stage(engine, CountingServer(), await engine.client(), play.__name__) for play, engine in scenes.items()}
        for stage in stages.values():
            await stage.models.start()
            stack.push_async_callback(stage.models.close)
        tasks = {play.__name__: asyncio.create_task(play(stage)) for play, stage in stages.items()}
        try:
            yield tasks
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            for stage in stages.values():
                for worker in stage.workers:
                    worker.kill()


async def worker_dies(stage: Stage) -> dict[str, Story]:
    """Kill a worker that is in the generator's call, in the grader's, between two pieces of evidence, and has just got a verdict."""
    models = stage.models
    wire = Wire(stage.engine.address)
    await wire.mend()
    models.wishes["tools grader 0"] = [("look", "tools/left"), ("look", "tools/right")]
    gates = [models.hold("drafting generator 1"), models.hold("grading grader 0"), models.hold("tools evidence right")]
    verdict = models.hold("verdict grader 0")
    worker = await stage.worker(address=wire.address)
    tools: dict[str, Any] = {"grader": {"model": models.model("grader", "tools"), "tools": ["look"]}}
    threads = [await stage.begin(name) for name in ("drafting", "grading", "verdict")] + [await stage.begin("tools", **tools)]
    replies = {"drafting": "generator 1", "grading": "grader 0", "tools": "evidence right"}
    for name, call in (*replies.items(), ("tools", "evidence left"), ("verdict", "grader 0")):
        await models.called(name, call)
    await _completed(stage.client, "tools", 3)
    await stage.worker("heir")
    wire.deafen()
    verdict.open.set()
    await _completed(stage.client, "verdict", 2)
    worker.kill()
    died = time.monotonic()
    for gate in gates:  # the heir makes these calls apart from others, and not all at once
        gate.open.set()
    again = {name: (await models.called(name, call, 2)).began - died for name, call in replies.items()}
    again["verdict"] = (await models.called("verdict", "generator 1")).began - died
    await wire.cut()
    return {thread.name: await stage.story(thread, again[thread.name]) for thread in threads}


async def _completed(client: Client, thread: str, count: int) -> None:
    """Wait until the server has recorded the results of so many activities."""
    handle = client.get_workflow_handle(thread)
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    async with asyncio.timeout(240):
        while sum([event.event_type == kind async for event in handle.fetch_history_events()]) < count:
            await asyncio.sleep(0.05)


async def worker_stops(stage: Stage) -> tuple[int, dict[str, Story]]:
    """End a worker politely: one call ends within its grace, the other takes longer."""
    models = stage.models
    short, long = models.hold("short grader 0"), models.hold("long grader 0")
    worker = await stage.worker(grace=2)
    threads = [await stage.begin(name) for name in ("short", "long")]
    for name in ("short", "long"):
        await models.called(name, "grader 0")
    await stage.worker("heir")
    worker.signal(signal.SIGTERM)
    died = time.monotonic()
    short.open.set()
    again = (await models.called("long", "grader 0", 2)).began - died
    long.open.set()
    return await worker.ended(), {thread.name: await stage.story(thread, again) for thread in threads}


async def one_of_two_dies(stage: Stage) -> tuple[dict[str, Story], Counter[str], int]:
    """Let two workers share a queue, and kill one while all threads are in their second draft."""
    models = stage.models
    gate = models.hold(".* generator 1")
    first = await stage.worker("first")
    threads = [await stage.begin(f"early{number}") for number in range(3)]
    for thread in threads:
        await models.called(thread.name, "generator 1")
    await stage.worker("second")
    threads += [await stage.begin(f"late{number}") for number in range(3)]
    for thread in threads[3:]:
        await models.called(thread.name, "generator 1")
    in_flight = Counter(call.thread for call in models.calls if call.name == "generator 1" and call.worker == "first")
    first.kill()
    died = time.monotonic()
    gate.open.set()  # the other worker makes the calls again once its own have ended
    again = {name: (await models.called(name, "generator 1", 2)).began - died for name in in_flight}
    stories_seen = {thread.name: await stage.story(thread, again.get(thread.name, 0.0)) for thread in threads}
    histories = [await stage.client.get_workflow_handle(thread.name).fetch_history() for thread in threads]
    return stories_seen, in_flight, sum(_carries_the_transcript(event) for history in histories for event in history.events)


def _carries_the_transcript(event: Any) -> bool:
    return event.HasField("activity_task_scheduled_event_attributes") and b"draft 0 of" in event.SerializeToString()


async def wire_is_cut(stage: Stage) -> tuple[float, Story]:
    """Cancel a thread; then cut its worker off from the server for so long that this gives up the attempt of another one's call."""
    models, wire = stage.models, Wire(stage.engine.address)
    await wire.mend()
    gate = models.hold("cut grader 0")
    await stage.worker(address=wire.address)
    cancelled = await _cancelled(stage)
    thread = await stage.begin("cut")
    await models.called("cut", "grader 0")
    await wire.cut()
    await asyncio.sleep(CUT_SECONDS)
    await wire.mend()
    mended = time.monotonic()
    await _attempted(stage, "cut", 2)
    resumed = time.monotonic() - mended
    gate.open.set()
    story = await stage.story(thread, resumed)
    await wire.cut()
    return cancelled, story


async def _attempted(stage: Stage, thread: str, attempt: int) -> None:
    """Wait until a worker makes the attempt of that number of a thread's call."""
    handle = stage.client.get_workflow_handle(thread)
    async with asyncio.timeout(SECONDS):
        while True:
            calls = (await handle.describe()).raw_description.pending_activities
            if any(call.attempt >= attempt and call.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for call in calls):
                return
            await asyncio.sleep(0.1)


async def query_comes_first(stage: Stage) -> list[str]:
    """Kill a worker, and let a query, a signal and an update come to the other one at once; return what does not replay."""
    doomed = await stage.worker("doomed")
    threads = [f"asked{number}" for number in range(4)]
    grading = GradingClient(stage.client, task_queue=stage.queue)
    started = [grading.invoke(thread, "write", start=stage.models.request(thread, idle_timeout=600)) for thread in threads]
    await asyncio.gather(*started)
    await stage.worker("heir")
    doomed.kill()

    async def ask(thread: str) -> None:
        query = asyncio.create_task(grading.state(thread))
        await asyncio.sleep(0.3)
        await grading.supply_rubric(thread, "- it is better")
        await grading.invoke(thread, "write again")
        await query

    await asyncio.gather(*(ask(thread) for thread in threads))
    replayer = Replayer(workflows=[GradingThreadWorkflow], workflow_runner=RUNNER, data_converter=stage.client.data_converter)
    histories = [await stage.client.get_workflow_handle(thread).fetch_history() for thread in threads]
    outcomes = [await replayer.replay_workflow(history, raise_on_replay_failure=False) for history in histories]
    return [str(outcome.replay_failure) for outcome in outcomes if outcome.replay_failure]


async def _cancelled(stage: Stage) -> float:
    """Cancel a thread whose provider does not answer, and return the seconds until the call has ended."""
    models = stage.models
    models.hold("hung generator 0")
    thread = await stage.begin("hung")
    call = await models.called("hung", "generator 0")
    await asyncio.sleep(1)
    began = time.monotonic()
    await GradingClient(stage.client).cancel("hung")
    await models.hung_up(call)
    await thread.invoked
    await thread.watched
    return (call.ended or 0) - began


async def server_dies(stage: Stage) -> Story:
    """Kill the server in the middle of a call."""
    gate = stage.models.hold("server grader 0")
    await stage.worker()
    thread = await stage.begin("server")
    await stage.models.called("server", "grader 0")
    stage.engine.kill()
    gate.open.set()
    await stage.engine.start()
    return await stage.story(thread)


async def both_die(stage: Stage) -> Story:
    """Kill the server and the worker at once."""
    models = stage.models
    gate = models.hold("both grader 0")
    worker = await stage.worker()
    thread = await stage.begin("both")
    await models.called("both", "grader 0")
    await stage.worker("heir")
    worker.kill()
    stage.engine.kill()
    died = time.monotonic()
    await stage.engine.start()
    again = (await models.called("both", "grader 0", 2)).began - died
    gate.open.set()
    return await stage.story(thread, again)


SCENES: tuple[Play, ...] = (worker_dies, worker_stops, one_of_two_dies, wire_is_cut, query_comes_first)


def expect_one_run(story: Story, again: Counter[str], plain: Counter[str] = PLAIN, *, taken_over: int = 0) -> None:
    """One grading run, one evaluation an iteration, every event once and in order, and no call repeated but the ones in flight.

    On a slow host the server may give up more attempts than those that the story ends: each of them may have made one call.
    `taken_over`: attempts that the story has made which take over the call of the attempt before.
    """
    assert story.result.status == "satisfied"
    assert [evaluation.iteration for evaluation in story.result.evaluations] == [0, 1]
    runs = {evaluation.grading_run_id for evaluation in story.result.evaluations} | {event.grading_run_id for event in story.events}
    assert runs - {None} == {story.result.grading_run_id}
    assert [event.seq for event in story.events] == list(range(1, len(story.events) + 1))
    assert Counter(event.type for event in story.events)["rubric_evaluation_end"] == 2
    assert story.events[-1].type == "run_ended"
    given_up = max(0, story.attempts - (plain + again).total() - taken_over)
    print(f"attempts given up besides: {given_up}")
    assert plain + again <= story.calls
    assert story.calls.total() <= (plain + again).total() + given_up
    assert story.same_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thread", "again"),
    [
        ("drafting", "generator 1"),
        ("grading", "grader 0"),
        ("tools", "evidence right"),
        ("verdict", None),
    ],
)
async def test_a_killed_worker_costs_the_call_in_flight_and_no_more(
    stories: dict[str, asyncio.Task[dict[str, Story]]], thread: str, again: str | None
) -> None:
    story = (await stories["worker_dies"])[thread]
    seen(f"resumed after the worker's death, {thread}", story.resumed)
    evidence = Counter({"evidence left": 1, "evidence right": 1, "grader 0.1": 1}) if thread == "tools" else Counter[str]()

    expect_one_run(story, Counter([again] if again else []), PLAIN + evidence)
    assert story.resumed < RESUMED_SECONDS


@pytest.mark.slow
async def test_a_call_that_ends_within_the_grace_of_a_stop_is_not_repeated(
    stories: dict[str, asyncio.Task[tuple[int, dict[str, Story]]]],
) -> None:
    code, answer = await stories["worker_stops"]

    expect_one_run(answer["short"], Counter())
    assert code == 0


@pytest.mark.slow
async def test_a_call_that_outlasts_the_grace_of_a_stop_is_handed_over(
    stories: dict[str, asyncio.Task[tuple[int, dict[str, Story]]]],
) -> None:
    _, answer = await stories["worker_stops"]
    seen("handed over after the stop, grace 2 s", answer["long"].resumed)

    expect_one_run(answer["long"], Counter(["grader 0"]))
    assert answer["long"].resumed < RESUMED_SECONDS


@pytest.mark.slow
async def test_a_killed_worker_costs_the_other_one_only_a_look_at_the_threads(
    stories: dict[str, asyncio.Task[tuple[dict[str, Story], Counter[str], int]]],
) -> None:
    answer, in_flight, transcripts = await stories["one_of_two_dies"]

    for name, story in answer.items():
        expect_one_run(story, Counter(["generator 1"] if in_flight[name] else []))
        assert story.resumed < RESUMED_SECONDS
    assert len(in_flight) >= 3
    assert transcripts == 0


@pytest.mark.slow
async def test_a_worker_that_was_cut_off_goes_on_when_the_server_is_back(stories: dict[str, asyncio.Task[tuple[float, Story]]]) -> None:
    _, story = await stories["wire_is_cut"]
    seen("gone on after the wire was mended", story.resumed)

    expect_one_run(story, Counter(), taken_over=1)  # the call in flight went on: the next attempt took what came of it
    assert story.resumed < RESUMED_SECONDS


@pytest.mark.slow
async def test_a_cancellation_ends_a_hung_call_in_seconds(stories: dict[str, asyncio.Task[tuple[float, Story]]]) -> None:
    seconds, _ = await stories["wire_is_cut"]
    seen("a cancellation reached the call", seconds)

    assert seconds < CANCEL_SECONDS


@pytest.mark.slow
async def test_a_killed_server_costs_no_call(stories: dict[str, asyncio.Task[Story]]) -> None:
    expect_one_run(await stories["server_dies"], Counter())


@pytest.mark.slow
async def test_server_and_worker_killed_at_once_cost_the_call_in_flight(stories: dict[str, asyncio.Task[Story]]) -> None:
    story = await stories["both_die"]
    seen("resumed after the death of both", story.resumed)

    expect_one_run(story, Counter(["grader 0"]))
    assert story.resumed < RESUMED_SECONDS


@pytest.mark.slow
async def test_a_query_ahead_of_a_workflow_task_leaves_a_history_that_replays(stories: dict[str, asyncio.Task[list[str]]]) -> None:
    assert await stories["query_comes_first"] == []


async def test_a_call_that_waited_long_before_the_server_went_still_waits_for_its_return(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(Outage, "_now", staticmethod(lambda: clock[0]))
    outage = Outage()
    outage.begin_attempt()
    clock[0] = 10 * RECONNECT_SECONDS
    lost = outage.is_too_long()
    for _ in range(int(RECONNECT_SECONDS)):
        outage.begin_attempt()
        clock[0] += 1
    within = outage.is_too_long()
    outage.begin_attempt()
    clock[0] += REACHED_SECONDS - 1

    assert (lost, within, outage.is_too_long()) == (False, False, True)
