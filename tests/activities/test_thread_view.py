"""What a call knows of its thread: kept in the process, completed by the tail, fetched by query where it lacks or differs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import state_cache
from activities.state_cache import GradingSettings, GradingSettingsRef, LogRef, ThreadLoader
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Log, Message
from gradeloop.contract.thread import Generator, RunResult
from gradeloop.settings.worker import WorkerSettings
from tests.rig.threads import Models, Served, draft, grade, request, row, serving, story, until
from worker import build

MESSAGES = [Message(role="user", content=f"message {number}") for number in range(6)]
BRIEF = GradingSettings(generator=Generator.model_validate({"model": "scripted:x"}), grader=None, rubric=None)


def reference(count: int, tail: int | None = 0, *, key: str = "messages", messages: list[Message] | None = None) -> LogRef:
    """Return a reference to the first `count` messages that carries the newest `tail`."""
    kept = (messages or MESSAGES)[:count]
    carried = None if tail is None else tuple(kept[count - tail :])
    return LogRef(key=key, count=count, sha256=Log(kept).sha256(), tail=carried)


class Queries:
    """The workflow's side: answers pages of what it holds and keeps what it was asked."""

    def __init__(self, messages: list[Message], page: int = 1000) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._messages = messages
        self._page = page

    async def __call__(self, name: str, arguments: list[Any]) -> object:
        """Answer a query."""
        self.asked.append((name, *arguments))
        await asyncio.sleep(0)
        if name == "brief":
            return BRIEF.model_dump(mode="json")
        _, after, limit = arguments
        items = self._messages[after : after + min(limit, self._page)]
        return {"items": [item.model_dump(mode="json") for item in items], "next": None, "total": len(self._messages), "first": 0}


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Queries:
    """Answer queries from MESSAGES."""
    answering = Queries(MESSAGES)
    monkeypatch.setattr(state_cache, "query_workflow", answering)
    return answering


async def read(views: ThreadLoader, asked: LogRef) -> list[str]:
    """Read as an activity of one thread does."""
    return [message.content for message in await ActivityEnvironment().run(views.messages, asked)]


def texts(count: int) -> list[str]:
    """Return the first texts."""
    return [message.content for message in MESSAGES[:count]]


async def test_what_the_tail_completes_is_never_fetched(queries: Queries) -> None:
    views = ThreadLoader()

    assert await read(views, reference(2, 2)) == texts(2)
    assert await read(views, reference(5, 3)) == texts(5)
    assert await read(views, reference(5)) == texts(5)
    assert await read(views, reference(3)) == texts(3)
    assert queries.asked == []


async def test_what_a_call_returned_is_known_to_the_next(queries: Queries) -> None:
    views = ThreadLoader()
    await read(views, reference(1, 1))

    ActivityEnvironment().run(views.append, reference(1), MESSAGES[1])

    assert await read(views, reference(2)) == texts(2)
    assert queries.asked == []


async def test_what_a_lost_attempt_returned_is_replaced(queries: Queries) -> None:
    views = ThreadLoader()
    await read(views, reference(1, 1))
    ActivityEnvironment().run(views.append, reference(1), Message(role="assistant", content="an attempt that nobody recorded"))

    ActivityEnvironment().run(views.append, reference(1), MESSAGES[1])

    assert await read(views, reference(2)) == texts(2)


async def test_a_process_that_knows_nothing_fetches_all_by_query(queries: Queries) -> None:
    assert await read(ThreadLoader(), reference(4)) == texts(4)
    assert queries.asked == [("log", "messages", 0, 4)]


async def test_a_tail_that_was_too_large_to_carry_is_fetched_alone(queries: Queries) -> None:
    views = ThreadLoader()
    await read(views, reference(2, 2))

    assert await read(views, reference(6, None)) == texts(6)
    assert queries.asked == [("log", "messages", 2, 4)]


async def test_a_long_thread_is_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    paging = Queries(MESSAGES, page=2)
    monkeypatch.setattr(state_cache, "query_workflow", paging)

    assert await read(ThreadLoader(), reference(5)) == texts(5)
    assert [asked[2:] for asked in paging.asked] == [(0, 5), (2, 3), (4, 1)]


async def test_a_copy_whose_sha256_differs_is_dropped_and_fetched_anew(queries: Queries) -> None:
    views, other = ThreadLoader(), [Message(role="user", content="another world")]
    await read(views, reference(1, 1, messages=other))

    assert await read(views, reference(3)) == texts(3)
    assert queries.asked == [("log", "messages", 1, 2), ("log", "messages", 0, 3)]


async def test_a_tail_behind_another_prefix_is_not_believed(queries: Queries) -> None:
    views, other = ThreadLoader(), [Message(role="user", content="another world")]
    await read(views, reference(1, 1, messages=other))

    assert await read(views, reference(3, 2)) == texts(3)
    assert queries.asked[-1] == ("log", "messages", 0, 3)


async def test_a_thread_that_does_not_match_its_reference_is_an_error_and_no_guess(queries: Queries) -> None:
    wrong = LogRef(key="messages", count=2, sha256="0" * 64, tail=None)

    with pytest.raises(LookupError, match="the thread's messages do not match their reference"):
        await read(ThreadLoader(), wrong)


async def test_one_query_is_in_flight_for_a_thread_however_many_calls_ask(queries: Queries) -> None:
    views = ThreadLoader()

    answers = await asyncio.gather(*(read(views, reference(4)) for _ in range(5)))

    assert answers == [texts(4)] * 5
    assert len(queries.asked) == 1


async def test_conversations_of_one_thread_are_kept_apart(queries: Queries) -> None:
    views, other = ThreadLoader(), [Message(role="user", content="scratch")]
    await read(views, reference(2, 2))

    assert await read(views, reference(1, 1, key="scratch/r/0/0/0", messages=other)) == ["scratch"]
    assert await read(views, reference(2)) == texts(2)
    assert queries.asked == []


async def test_another_run_of_the_workflow_shares_nothing(queries: Queries) -> None:
    views = ThreadLoader()
    await read(views, reference(2, 2))
    other = ActivityEnvironment()
    other.info = ActivityEnvironment.default_info().__class__(**{**vars(other.info), "workflow_run_id": "another"})

    await other.run(views.messages, reference(2))

    assert len(queries.asked) == 1


@pytest.mark.parametrize(("limit", "value"), [("THREAD_CACHE_BYTES", 100), ("CACHED_LOGS", 2)])
async def test_the_least_used_go_first_where_the_copies_grow_large(
    queries: Queries, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(state_cache, limit, value)
    views = ThreadLoader()
    for key in ("a", "b", "c"):
        await read(views, reference(1, 1, key=key))

    await read(views, reference(1, key="c"))
    assert queries.asked == []
    await read(views, reference(1, key="a"))
    assert [asked[1] for asked in queries.asked] == ["a"]


async def test_a_brief_is_carried_once_and_asked_for_where_it_is_unknown(queries: Queries) -> None:
    views, env = ThreadLoader(), ActivityEnvironment()

    assert await env.run(views.settings, GradingSettingsRef(sha256=BRIEF.sha256(), brief=BRIEF)) == BRIEF
    assert await env.run(views.settings, GradingSettingsRef(sha256=BRIEF.sha256())) == BRIEF
    assert queries.asked == []
    assert await env.run(ThreadLoader().settings, GradingSettingsRef(sha256=BRIEF.sha256())) == BRIEF
    assert queries.asked == [("brief",)]


async def test_a_call_on_the_same_worker_asks_the_workflow_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _watched(monkeypatch)
    async with serving(client, draft(), grade(0, row("c1", "no")), draft(1), grade(1)) as served:
        result = await served.run(request("- x"))

    assert (result.status, asked) == ("satisfied", [])


@pytest.mark.slow
async def test_a_worker_that_comes_later_fetches_what_it_lacks_and_sends_the_same_messages(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _watched(monkeypatch)
    replies = [draft(), grade(0, row("c1", "no")), draft(1), grade(1)]
    async with serving(client, *replies) as whole:
        await whole.run(request("- x"))
    async with _first_half(client, *replies) as (first, thread):
        pass
    models = Models(replies, {})
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=first.task_queue)):
        result = await thread.execute_update("resume", result_type=RunResult)
        activities = await story(thread)

    assert result.status == "satisfied"
    assert [request[0] for request in asked][:2] == ["brief", "log"]
    assert [message.content for message in models.requests_of("generator")[-1].messages] == [
        message.content for message in whole.models.requests_of("generator")[-1].messages
    ]
    assert [activity.type for activity in activities] == ["generate", "grade", "generate", "generate", "grade"]
    assert [(request.step.role, request.step.iteration) for request in models.requests] == [("generator", 1), ("grader", 1)]


@asynccontextmanager
async def _first_half(client: Client, *replies: dict[str, Any]) -> AsyncIterator[tuple[Served, Any]]:
    """Run a thread, interrupted at its second draft, on a worker that then ends."""
    async with serving(client, *replies) as served:
        gate = served.models.gate("generator", 1)
        thread = await served.start(request("- x"), id=f"handed-over-{uuid4()}")
        await gate.reached.wait()
        await thread.signal("interrupt")
        await until(thread, "interrupted")
        yield served, thread


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Keep what the workflow is asked."""
    asked: list[tuple[Any, ...]] = []
    real: Callable[..., Any] = state_cache.query_workflow

    async def watching(name: str, arguments: list[Any]) -> object:
        asked.append((name, *arguments))
        return await real(name, arguments)

    monkeypatch.setattr(state_cache, "query_workflow", watching)
    return asked
