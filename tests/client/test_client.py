"""The typed client: events watched once each and in order, callbacks that cannot hurt, calls that outlive what they talk to."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError

from gradeloop.client.client import GradingClient
from gradeloop.client.listing import ListedThread, resolved, threads
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.messages import Message
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadNotFound, WorkerFailed
from gradeloop.temporal import server
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.process import DetachedProcess
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from tests.rig.tables import over
from tests.rig.threads import (
    SECONDS,
    Served,
    a_thread,
    answering,
    failing_until,
    history_length,
    refusal,
    replay,
    request,
    serving,
    start,
)


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one


@pytest.fixture
async def own_server(environment: Any) -> AsyncIterator[ServerInfo]:
    """Run a server that the test may kill."""
    yield await ensure_server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "STOP_SECONDS", 0.0)
        patch.setenv("GRADELOOP_STATE_DIR", str(environment))
        await stop_server()


class Watched:
    """Somebody who watches a thread until it closes."""

    def __init__(self, client: GradingClient, thread: str, **options: Any) -> None:
        self.events: list[Event] = []
        self._task = asyncio.create_task(self._watch(client, thread, options))

    async def _watch(self, client: GradingClient, thread: str, options: dict[str, Any]) -> None:
        async for event in client.watch(thread, **options):
            self.events.append(event)

    async def ended(self) -> list[Event]:
        """Return all that was seen once the thread is closed."""
        await asyncio.wait_for(self._task, 3 * SECONDS)  # a query that a killed server took along is given up after 20 s
        return self.events


def once_and_in_order(events: list[Event], after: int = 0) -> bool:
    return [event.seq for event in events] == list(range(after + 1, after + 1 + len(events)))


async def test_a_watcher_sees_every_event_once_and_in_order_until_the_thread_closes(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    await served.client.start(start(messages=[{"role": "user", "content": "hello"}], idle_timeout=0), thread_id=thread)

    events = await Watched(served.client, thread).ended()

    assert events == await served.events(thread)
    assert once_and_in_order(events)
    assert [event.type for event in events] == [
        *("message", "run_started", "message", "rubric_evaluation_start", "rubric_evaluation_end", "message"),
        *("message", "rubric_evaluation_start", "rubric_evaluation_end", "run_ended"),
    ]


async def test_a_watcher_goes_on_after_the_last_event_that_it_knows(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(idle_timeout=0))

    events = await Watched(served.client, thread, after=3).ended()

    assert once_and_in_order(events, after=3)
    assert events == (await served.events(thread))[3:]


@pytest.mark.slow
async def test_watching_leaves_no_trace_in_the_history(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    handle = served.handle(thread)
    before = await history_length(handle)

    watchers = [Watched(served.client, thread) for _ in range(5)]
    await asyncio.sleep(1)
    after = await history_length(handle)
    await served.client.close_thread(thread)

    assert after == before
    for watcher in watchers:
        assert once_and_in_order(await watcher.ended())


async def test_a_watcher_of_no_thread_is_told_so(served: Served) -> None:
    with pytest.raises(ThreadNotFound):
        await Watched(served.client, a_thread()).ended()


async def test_a_watcher_misses_and_repeats_nothing_across_a_restart_of_the_worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.client.thread.QUERY_SECONDS", 0.5)
    monkeypatch.setattr("gradeloop.client.watch.LOST_SECONDS", 0.1)
    models = answering()
    models.answers["grader"] = failing_until(2)
    models.hold_second("grader")
    async with serving(client, models=models) as served:
        thread = a_thread()
        await served.client.start(start(messages=[{"role": "user", "content": "hello"}], idle_timeout=0), thread_id=thread)
        watcher = Watched(served.client, thread, patience=SECONDS)
        await models.called("grader", 2)
    await asyncio.sleep(0.7)
    async with serving(client, models=models, task_queue=served.task_queue):
        events = await watcher.ended()
        recorded = await served.events(thread)

    assert events == recorded
    assert once_and_in_order(events)
    assert events[-1].status == "satisfied"


@pytest.mark.slow
async def test_callers_and_watchers_outlive_a_killed_server(own_server: ServerInfo) -> None:
    client = await connect(Connection(own_server.address, "default", embedded=True))
    models = answering()
    models.answers["grader"] = failing_until(1)
    models.hold_second("generator")
    async with serving(client, models=models) as served:
        thread = a_thread()
        turn = asyncio.create_task(served.client.invoke(thread, "hello", key="k", start=start()))
        await models.called("generator", 2)
        watcher = Watched(served.client, thread)
        while len(watcher.events) < 6:
            await asyncio.sleep(0.02)
        os.killpg(own_server.pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        again = await ensure_server()
        models.release()
        result = await asyncio.wait_for(turn, 240)
        await served.client.close_thread(thread)
        events = await watcher.ended()

        assert again.pid != own_server.pid
        assert (result.status, result.iterations) == ("satisfied", 2)
        assert (models.count("generator"), models.count("grader")) == (2, 2)
        assert events == await served.events(thread)
        assert once_and_in_order(events)


async def test_a_watcher_gives_up_on_a_server_that_stays_away(own_server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.client.thread.QUERY_SECONDS", 0.5)
    monkeypatch.setattr("gradeloop.client.watch.LOST_SECONDS", 0.1)
    client = await connect(Connection(own_server.address, "default", embedded=True))
    async with serving(client, models=answering()) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
    watcher = Watched(served.client, thread, patience=0.2)

    with pytest.raises(ServerUnreachable, match="no worker answers for the thread"):
        await watcher.ended()


async def test_a_query_waits_for_a_slow_worker_that_a_command_started_as_long_as_it_lives(
    client: Client, environment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gradeloop.client.thread.QUERY_SECONDS", 0.5)
    queue = f"gradeloop-{uuid4().hex[:16]}"
    async with serving(client, models=answering(), task_queue=queue) as served:
        thread = a_thread()
        await served.client.invoke(thread, "hello", start=start())
    standing_in = DetachedProcess(environment / "workers", queue, WorkerFailed)
    standing_in.start(["sleep", "60"], os.environ, {})
    asking = asyncio.create_task(served.client.state(thread))
    while not caplog.messages:
        await asyncio.sleep(0.02)
    async with serving(client, models=answering(), task_queue=queue):
        state = await asyncio.wait_for(asking, SECONDS)
    await standing_in.stop(1)

    assert state.status == "idle"
    assert caplog.messages[0] == f"the worker of {queue} has not answered for 0 s, and lives; it is asked again"
    with pytest.raises(ServerUnreachable, match="no worker answers for the thread"):
        await served.client.state(thread)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_callback_is_told_once_of_each_evaluation_before_the_turn_returns(served: Served, kind: str) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(3)
    seen: list[Evaluation] = []

    async def later(evaluation: Evaluation) -> None:
        await asyncio.sleep(0)
        seen.append(evaluation)

    result = await served.client.invoke(
        thread, "hello", start=start(max_iterations=5), on_evaluation=seen.append if kind == "sync" else later
    )

    assert seen == list(result.evaluations)
    assert [item.iteration for item in seen] == [0, 1, 2, 3]


async def test_a_callback_is_told_while_the_turn_is_still_in_flight(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    served.models.hold_second("generator")
    seen: list[int] = []
    heard = asyncio.Event()

    def hear(evaluation: Evaluation) -> None:
        seen.append(evaluation.iteration)
        heard.set()

    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start(), on_evaluation=hear))
    await asyncio.wait_for(heard.wait(), SECONDS)
    in_flight = not turn.done()
    served.models.release()
    await turn

    assert seen == [0, 1]
    assert in_flight


async def test_a_callback_is_told_of_its_own_turn_alone(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    seen: list[Evaluation] = []

    second = await served.client.invoke(thread, "more", on_evaluation=seen.append)

    assert seen == list(second.evaluations)


async def test_a_callback_that_is_told_of_a_resumed_run_is_told_of_what_is_new(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    served.models.hold_second("grader")
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start()))
    await served.models.called("grader", 2)
    await served.client.interrupt(thread)
    await turn
    served.models.release()
    seen: list[Evaluation] = []

    result = await served.client.invoke(thread, on_evaluation=seen.append)

    assert [evaluation.iteration for evaluation in result.evaluations] == [0, 1]
    assert len({item.iteration for item in seen}) == len(seen)
    assert seen[-1] == result.evaluations[-1]


def raising(_: Evaluation) -> None:
    raise RuntimeError("the callback is broken")


async def raising_later(_: Evaluation) -> None:
    raise RuntimeError("the callback is broken")


def mutating(evaluation: Evaluation) -> None:
    object.__setattr__(evaluation, "result", "needs_revision")
    object.__setattr__(evaluation.criteria[0], "passed", False)


@pytest.mark.parametrize("callback", [raising, raising_later])
async def test_a_callback_that_raises_is_logged_and_has_no_effect(
    served: Served, callback: Callable[[Evaluation], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="gradeloop"):
        result = await served.client.invoke(a_thread(), "hello", start=start(), on_evaluation=callback)

    assert (result.status, result.output) == ("satisfied", "draft 1")
    assert [record.message for record in caplog.records if record.name == "gradeloop"] == [
        f"on_evaluation raised for iteration 0 of {result.thread_id}"
    ]


async def test_a_callback_that_changes_what_it_is_given_has_no_effect(served: Served) -> None:
    thread = a_thread()

    result = await served.client.invoke(thread, "hello", start=start(), on_evaluation=mutating)

    assert (result.evaluations[0].result, result.evaluations[0].criteria[0].passed) == ("satisfied", True)
    assert (await served.client.evaluations(thread)).items == result.evaluations


async def test_messages_are_a_text_or_a_list_of_them(served: Served) -> None:
    thread = a_thread()

    await served.client.invoke(thread, "hello", start=start())
    await served.client.invoke(thread, [{"role": "user", "content": "one"}, Message(role="user", content="two")])

    assert await served.contents(thread) == ["hello", "draft 1", "one", "two", "draft 2"]


@over("wrong", [{"rubric": "# heading"}, {"max_iterations": 0}, {"key": ""}, {"messages": [{"role": "user"}]}])
async def test_a_bad_turn_is_refused_before_a_server_is_asked(wrong: dict[str, Any], client: Client) -> None:
    with pytest.raises(InvalidRequest):
        await GradingClient(client).invoke("any", **({"messages": "hello"} | wrong))


async def test_a_closed_client_ends_its_watchers_and_takes_no_further_calls(client: Client, served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    async with GradingClient(client, task_queue=served.task_queue) as other:
        watcher = Watched(other, thread)
        while not watcher.events:
            await asyncio.sleep(0.02)

    assert once_and_in_order(await watcher.ended())
    with pytest.raises(InvalidRequest, match=r"^this client is closed; connect another one with GradingClient\.connect\(\)$"):
        await other.state(thread)

    await other.close()

    assert (await served.client.state(thread)).status == "idle"


async def test_a_client_that_connected_itself_ends_its_calls_in_flight(
    served: Served, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    thread = a_thread()
    served.models.hold("generator")
    async with GradingClient.connect(task_queue=served.task_queue) as connected:
        turn = asyncio.create_task(connected.invoke(thread, "hello", start=start()))
        await served.models.called("generator")

    with pytest.raises(InvalidRequest, match=r"^this client was closed while a call was in flight; its thread continues$"):
        await turn

    served.models.release()
    await served.until(thread, lambda state: state.status == "idle")


async def test_a_client_leaves_the_temporal_client_that_it_was_given_open(client: Client, served: Served) -> None:
    thread = a_thread()
    async with GradingClient(client, task_queue=served.task_queue) as other:
        await other.invoke(thread, "hello", start=start())

    assert (await served.client.state(thread)).status == "idle"


async def test_closing_a_thread_by_the_clients_own_close_is_refused_with_the_other_name(served: Served) -> None:
    sentence = r"^close\(\) closes this client; to close the thread 'haiku-1', call close_thread\('haiku-1'\)$"

    with pytest.raises(InvalidRequest, match=sentence):
        await served.client.close("haiku-1")  # type: ignore[arg-type]  # a type checker refuses it too


async def test_a_client_that_connects_itself_is_awaited_or_entered(temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)

    async with GradingClient.connect() as entered, await GradingClient.connect() as awaited:
        for grading_client in (entered, awaited):
            with pytest.raises(ThreadNotFound):
                await grading_client.task_queue_of("nobody")

    with pytest.raises(InvalidRequest, match="this client is closed"):
        _ = entered.temporal


async def test_pages_reach_from_an_index_on(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(3)
    await served.client.invoke(thread, "hello", start=start(max_iterations=5))

    messages = await served.client.messages(thread, after=2, limit=3)
    evaluations = await served.client.evaluations(thread, after=3)
    events = await served.client.events(thread, after=5, limit=1)

    assert ([message.name or message.content for message in messages.items], messages.next) == (
        ["rubric_grader", "draft 2", "rubric_grader"],
        5,
    )
    assert ([item.iteration for item in evaluations.items], evaluations.next, evaluations.total) == ([3], None, 4)
    assert ([event.seq for event in events.items], events.next) == ([6], 6)


@pytest.mark.slow
async def test_a_stopped_call_hears_of_it_within_seconds(client: Client) -> None:
    async with serving(client, models=answering(), quick=False) as served:
        thread = a_thread()
        turn = await served.begun(thread, "grader")
        asked = time.monotonic()
        await served.client.interrupt(thread)
        result: RunResult = await turn

    assert result.status == "interrupted"
    assert time.monotonic() - asked < 10


async def test_a_worker_that_lost_step_with_the_history_is_asked_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    ask, answers = WorkflowHandle.query, iter([WorkflowQueryFailedError("[TMPRL1100] Nondeterminism error: ..."), None])

    async def once_out_of_step(handle: Any, *arguments: Any, **options: Any) -> Any:
        if (failed := next(answers, None)) is not None:
            raise failed
        return await ask(handle, *arguments, **options)

    monkeypatch.setattr(WorkflowHandle, "query", once_out_of_step)

    assert (await served.client.state(thread)).status == "idle"
    assert next(answers, "asked twice") == "asked twice"


async def listed(served: Served, thread: str, status: str) -> ListedThread:
    """Return a thread once it is listed with a status; the server's list is a moment behind."""
    async with asyncio.timeout(SECONDS):
        while True:
            async for one in threads(served.client.temporal, status=status, limit=100):
                if one.thread_id == thread:
                    return one
            await asyncio.sleep(0.1)


async def test_a_thread_that_is_interrupted_in_its_first_draft_is_listed_as_that(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    await served.client.interrupt(thread)
    await turn
    served.models.release()
    interrupted = await listed(served, thread, "interrupted")
    result = await served.client.resume(thread)
    satisfied = await listed(served, thread, "satisfied")

    assert interrupted.grading_run_id == satisfied.grading_run_id == result.grading_run_id
    assert interrupted.rubric_sha256 == satisfied.rubric_sha256
    assert interrupted.rubric_sha256 is not None
    await replay(served.temporal, thread)


async def test_a_thread_whose_request_was_refused_is_listed_as_its_state_says(served: Served) -> None:
    thread = a_thread()
    await refusal(await served.start(request(generator={"model": "scripted:writer", "tools": ["nope"]}), id=thread))

    assert (await served.client.state(thread)).status == (await listed(served, thread, "interrupted")).status == "interrupted"


async def test_a_status_that_no_thread_has_is_refused_with_those_that_there_are(served: Served) -> None:
    with pytest.raises(
        InvalidRequest, match=r"status 'interupted' is not a status of a thread. Did you mean 'interrupted'\? Known: running, "
    ):
        await listed(served, "any", "interupted")


@pytest.mark.slow
async def test_a_closed_thread_is_listed_with_its_run_and_rubric_after_an_override(served: Served) -> None:
    thread = a_thread()
    result = await served.client.invoke(thread, "hello", start=start(idle_timeout=0))
    await served.client.result(thread)
    before = await listed(served, thread, "satisfied")
    await served.client.override(thread, "c1", False, why="it is not", by="ann")
    await served.client.result(thread)
    async with asyncio.timeout(SECONDS):
        while (after := await listed(served, thread, "satisfied")).started == before.started:
            await asyncio.sleep(0.1)

    assert (after.grading_run_id, after.rubric_sha256) == (result.grading_run_id, before.rubric_sha256)
    await replay(served.temporal, thread)


async def test_threads_are_listed_by_their_start_whether_they_are_open_or_not(served: Served) -> None:
    names = [a_thread() for _ in range(4)]
    for at, name in enumerate(names):
        idle = 60 if at % 2 == 0 else 0
        await served.client.start(start(messages=[{"role": "user", "content": "Write."}], rubric=None, idle_timeout=idle), thread_id=name)
        if not idle:
            await served.client.result(name)

    async with asyncio.timeout(SECONDS):
        while (seen := [thread.thread_id async for thread in threads(served.client.temporal, limit=4)]) != names[::-1]:
            await asyncio.sleep(0.1)  # the server's list is a moment behind
    assert [thread.thread_id async for thread in threads(served.client.temporal, limit=1)] == [names[3]]
    assert await resolved(served.client.temporal, "latest") == names[3] == seen[0]
    for name in (names[0], names[2]):
        await served.client.close_thread(name)
