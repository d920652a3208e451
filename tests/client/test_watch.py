"""What a service reads: events with their text as the history grows, the threads and batches of a server, and what waits for a person."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from gradeloop.client.client import GradingClient
from gradeloop.client.listing import threads
from gradeloop.client.waiting import WaitingThread, read_waiting
from gradeloop.client.watch import DetailedEvent
from gradeloop.errors import InvalidRequest
from tests.rig.leftovers import end_all
from tests.rig.threads import SECONDS, Served, a_thread, answering, failing_until, serving, start

ASKS = {"criteria": [{"id": "c1", "description": "it is friendly", "human": True}]}


@pytest.fixture
async def served(client: Client) -> AsyncIterator[Served]:
    async with serving(client, models=answering()) as one:
        yield one
    await end_all(client)


async def waiting_of(served: Served, *threads: str) -> list[WaitingThread]:
    """Return what waits of these threads once all of them are listed; the server's list is a moment behind."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = [one for one in await served.client.waiting() if one.thread_id in threads]
            if len(found) == len(threads):
                return found
            await asyncio.sleep(0.1)


async def test_events_come_with_what_they_refer_to(served: Served) -> None:
    thread = a_thread()
    served.models.answers["grader"] = failing_until(1)
    await served.client.invoke(thread, "hello", start=start(idle_timeout=0))

    events = [event async for event in served.client.watch(thread, details=True)]

    messages = (await served.client.messages(thread)).items
    evaluations = (await served.client.evaluations(thread)).items
    assert all(isinstance(event, DetailedEvent) for event in events)
    assert [event.message for event in events if event.type == "message"] == list(messages)
    assert [event.evaluation for event in events if event.type == "rubric_evaluation_end"] == list(evaluations)


@pytest.mark.slow
async def test_a_watch_until_the_turns_end_leaves_the_thread_open(served: Served) -> None:
    thread = a_thread()
    turn = asyncio.create_task(served.client.invoke(thread, "hello", start=start()))
    await served.models.called("generator")

    first = [event async for event in served.client.watch(thread, until="turn")]
    await turn
    second = asyncio.create_task(served.client.invoke(thread, "more"))
    more = [event async for event in served.client.watch(thread, after=first[-1].seq, until="turn")]
    await second

    assert first[-1].type == more[-1].type == "run_ended"
    assert more[0].seq == first[-1].seq + 1
    assert (await served.client.state(thread)).status == "idle"


async def test_a_watch_until_the_turns_end_ends_where_a_person_is_asked(served: Served) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(rubric=ASKS))

    events = [event async for event in served.client.watch(thread, until="turn")]

    assert events[-1].type == "waiting"


@pytest.mark.slow
async def test_a_watcher_asks_no_worker_while_nothing_happens(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start())
    asked, ask = list[str](), WorkflowHandle.query

    async def counted(handle: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(str(query))
        return await ask(handle, query, *arguments, **options)

    monkeypatch.setattr(WorkflowHandle, "query", counted)
    seen = asyncio.Event()

    async def watch() -> None:
        async for event in served.client.watch(thread):
            if event.type == "run_ended":
                seen.set()

    watcher = asyncio.create_task(watch())
    await seen.wait()
    await asyncio.sleep(0.5)
    at_rest = len(asked)
    await asyncio.sleep(3)

    assert len(asked) == at_rest
    assert at_rest <= 3
    await served.client.close_thread(thread)
    await asyncio.wait_for(watcher, SECONDS)


@pytest.mark.slow
async def test_a_watcher_hears_of_an_event_at_once(served: Served) -> None:
    thread = a_thread()
    turn = await served.begun(thread, "generator")
    watched = asyncio.Queue[float]()

    async def watch() -> None:
        async for event in served.client.watch(thread, until="turn"):
            if event.type == "run_ended":
                watched.put_nowait(time.monotonic())

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(1)
    served.models.release()
    await turn
    ended = time.monotonic()

    assert await watched.get() - ended < 15  # not when the poll of the history ends by itself
    await watcher


async def test_a_callers_time_out_ends_the_wait_and_the_turn_goes_on(served: Served) -> None:
    thread = a_thread()
    served.models.hold("generator")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await served.client.invoke(thread, "hello", key="order-17", start=start())
    served.models.release()
    result = await served.client.invoke(thread, "hello", key="order-17", start=start())

    assert (result.status, served.models.count("generator")) == ("satisfied", 1)


async def test_what_waits_for_a_person_is_listed_with_what_is_asked_the_longest_wait_first(served: Served) -> None:
    first, second = a_thread(), a_thread()
    await served.client.invoke(first, "write a letter\nto the king", start=start(rubric=ASKS))
    await served.client.invoke(second, "hello", start=start(rubric=ASKS))

    found = await waiting_of(served, first, second)

    assert [one.thread_id for one in found] == [first, second]
    assert (found[0].task, found[0].problem) == ("write a letter to the king", None)
    assert found[0].waiting_for == (await served.client.state(first)).waiting_for
    assert found[0].started <= found[0].since <= found[1].since <= datetime.now(UTC)


async def test_a_thread_that_was_decided_waits_no_more_even_where_the_servers_list_is_behind(served: Served, client: Client) -> None:
    thread = a_thread()
    await served.client.invoke(thread, "hello", start=start(rubric=ASKS))
    await waiting_of(served, thread)
    (listed,) = [one async for one in threads(client, status="waiting") if one.thread_id == thread]
    await served.client.decide(thread, "c1", passed=True, by="ann")

    assert await read_waiting(client, listed) is None
    assert thread not in [one.thread_id for one in await served.client.waiting()]


async def test_a_waiting_thread_whose_worker_is_gone_is_listed_with_its_problem(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.client.waiting.ANSWER_SECONDS", 1.0)
    thread = a_thread()
    async with serving(client, models=answering()) as served:
        await served.client.invoke(thread, "hello", start=start(rubric=ASKS))
        await waiting_of(served, thread)
    async with asyncio.timeout(SECONDS):
        found = next(one for one in await served.client.waiting() if one.thread_id == thread)

    assert found.problem == "no worker answers for this thread; start one on its task queue"
    assert (found.waiting_for, found.since) == (None, found.started)


@pytest.mark.slow
async def test_threads_are_listed_by_status_and_start(served: Served) -> None:
    before, thread = datetime.now(UTC) - timedelta(seconds=1), a_thread()
    await served.client.invoke(thread, "hello", start=start(rubric=ASKS))
    await waiting_of(served, thread)

    async def listed(**options: Any) -> list[str]:
        return [one.thread_id async for one in served.client.threads(**options)]

    assert thread in await listed(status="waiting", since=before)
    assert thread in await listed(since=timedelta(minutes=5))
    assert thread not in await listed(status="satisfied", since=before)
    assert await listed(since=datetime.now(UTC) + timedelta(hours=1)) == []


async def test_a_status_that_no_thread_has_is_refused(served: Served) -> None:
    with pytest.raises(InvalidRequest, match=r"status 'wating' is not a status of a thread\. Did you mean 'waiting'"):
        await anext(served.client.threads(status="wating"))


async def test_batches_are_listed_by_their_start(client: Client) -> None:
    name = f"batch-{time.time_ns()}"
    await client.start_workflow("GradingBatch", {}, id=name, task_queue="nobody")
    async with asyncio.timeout(SECONDS):
        while name not in [batch.batch_id async for batch in GradingClient(client).batches(since=timedelta(minutes=1))]:
            await asyncio.sleep(0.1)
    found = {batch.batch_id: batch async for batch in GradingClient(client).batches()}[name]
    await client.get_workflow_handle(name).terminate()

    assert (found.status, found.open, found.task_queue) == ("running", True, "nobody")
