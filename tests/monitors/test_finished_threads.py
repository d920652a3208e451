"""Finished threads of the namespace are runs of a monitor, in the order in which they closed, each once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError
from temporalio.client import Client

from gradeloop.client.thread import ThreadHandle
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.monitors import sources
from gradeloop.monitors.contract import MonitorDefinition, ThreadsSource
from gradeloop.monitors.files import SourceItem
from gradeloop.monitors.overview import MonitorReader
from gradeloop.store.engine import Store
from tests.monitors.test_monitoring import JUDGE, Watched
from tests.monitors.test_sources import ids, last_cursor
from tests.rig.batches import batching, passes
from tests.rig.sources import place_since
from tests.rig.threads import Served, draft, grade, request, row, serving


async def read(client: Client, queue: str, cursor: str | None = None, until: str | None = None, **where: str) -> list[SourceItem]:
    source = ThreadsSource.model_validate({"where": {"queue": queue} | where}).model_copy(update={"quiet": 0})
    return [item async for items in sources.read_threads(source, cursor, client, until) for item in items]


async def finish(served: Served, *names: str, rubric: str | None = "- it is good") -> None:
    """Run threads one after the other, and return once the server lists them as closed."""
    for name in names:
        await (await served.start(request(rubric, {"role": "user", "content": f"Say {name}."}), id=name)).result()
    query = f"TaskQueue = '{served.task_queue}' AND ExecutionStatus = 'Completed' AND WorkflowId = '{names[-1]}'"
    async with asyncio.timeout(240):
        while not (await served.temporal.count_workflows(query)).count:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def finished(client: Client, *names: str) -> AsyncIterator[Served]:
    """Serve a queue on which some threads have finished."""
    async with serving(client, draft(0), grade(0, row("c1", "more")), draft(1), grade(1)) as served:
        await finish(served, *names)
        yield served


def names_of(count: int) -> list[str]:
    return [f"finished-{number}-{uuid4()}" for number in range(count)]


@pytest.mark.slow
async def test_finished_threads_are_read_on_behind_their_cursor(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of(5)
    async with finished(client, *names[:3]) as served:
        first = await read(client, served.task_queue)
        await finish(served, *names[3:])
        monkeypatch.setattr(sources, "LISTED", 1)  # so that the time is cut in halves
        second = await read(client, served.task_queue, last_cursor(first))
        whole = await read(client, served.task_queue)
        part = await read(client, served.task_queue, until=last_cursor(first))

    assert (ids(first), ids(second), ids(whole), ids(part)) == (names[:3], names[3:], names, names[:3])
    run = first[0].run
    assert run is not None
    assert [message.role for message in run.transcripts[0].messages] == ["user", "assistant", "user", "assistant"]
    assert (run.transcripts[0].messages[0].content, run.metadata["status"]) == (f"Say {names[0]}.", "satisfied")


@pytest.mark.slow
async def test_threads_are_chosen_by_status_and_rubric(client: Client) -> None:
    graded, plain = names_of(2)
    async with finished(client, graded) as served:
        await finish(served, plain, rubric=None)
        rubric = (await client.get_workflow_handle(graded).describe()).typed_search_attributes
        sha256 = next(pair.value for pair in rubric if pair.key.name == "GradeloopRubric")

        assert ids(await read(client, served.task_queue, status="satisfied")) == [graded]
        assert ids(await read(client, served.task_queue, rubric=str(sha256))) == [graded]
        assert ids(await read(client, served.task_queue, status="max_iterations_reached")) == []
        assert ids(await read(client, served.task_queue)) == [graded, plain]


async def test_a_date_is_a_place(client: Client) -> None:
    (name,) = names_of(1)
    async with finished(client, name) as served:
        today, tomorrow = datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)
        since = place_since(ThreadsSource(), f"{today:%Y-%m-%d}", "")

        assert ids(await read(client, served.task_queue, since)) == [name]
        assert ids(await read(client, served.task_queue, place_since(ThreadsSource(), f"{tomorrow:%Y-%m-%d}", ""))) == []


async def test_a_thread_without_its_worker_is_waited_for_and_later_passed_over(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of(2)
    async with finished(client, *names) as served:
        queue = served.task_queue
    asked = list[str]()

    async def silent(thread: ThreadHandle, *_: object, **__: object) -> dict[str, object]:
        asked.append(thread.thread_id)
        raise ServerUnreachable("no worker answers")

    monkeypatch.setattr(ThreadHandle, "query", silent)
    monkeypatch.setattr(sources, "READ_AT_ONCE", 1)
    with pytest.raises(InvalidRequest, match=f"no worker answers for the thread '{names[0]}'; start one on the task queue '{queue}'"):
        await read(client, queue)
    monkeypatch.setattr(sources, "WAITED", timedelta(0))
    found = await read(client, queue)

    assert [item.unreadable is not None for item in found] == [True, True]
    assert asked == [names[0], names[0]]  # nobody asks a queue again that has not answered


async def test_a_monitor_judges_finished_threads_once_each(client: Client, tmp_path: Path) -> None:
    names = names_of(2)
    async with finished(client, *names) as served, batching(client, tmp_path, passes()) as batches:
        name = f"m-{uuid4().hex[:8]}"
        source: dict[str, Any] = {"kind": "threads", "where": {"queue": served.task_queue}, "quiet": 1}
        definition = MonitorDefinition.model_validate({"name": name, "source": source, "judge": JUDGE})
        await MonitorReader(batches.store).create(definition)
        monitor = Watched(batches, tmp_path, name)
        await asyncio.sleep(source["quiet"])
        first, second = await monitor.tick(), await monitor.tick()

        assert (first.rate.passed, first.rate.judged, first.ticks[0].problem) == (2, 2, None)
        assert (second.rate.judged, second.ticks[0].read, monitor.calls) == (2, 0, 2)


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValidationError, match="status=running is not a status of a finished thread; known: satisfied"):
        ThreadsSource.model_validate({"where": {"status": "running"}})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "threads", "quiet": 0}, "0s is too short: the server lists a thread a little after its end"),
        ({"kind": "threads", "quiet": 0.5}, "0.5s is too short: .* write 1s or more, or leave it out"),
        ({"kind": "bucket", "bucket": "runs", "quiet": 1}, "1s is too short: S3 tells times to the second, .* write 2s or more"),
    ],
)
async def test_a_source_that_tells_changes_late_has_some_time_to_settle(tmp_path: Path, source: dict[str, Any], said: str) -> None:
    definition = MonitorDefinition.model_validate({"name": "m", "source": source, "judge": JUDGE})
    store = Store(f"sqlite:///{tmp_path}/store.db")

    with pytest.raises(InvalidRequest, match=said):
        await MonitorReader(store).create(definition)
