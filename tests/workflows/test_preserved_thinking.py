"""Whole threads against a provider that binds thinking to the conversation it came from: none is ever stuck."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.contract.thread import RunResult
from tests.rig.bound_thinking import BindingServer, binding
from tests.rig.model_server import Reply
from tests.rig.threads import Models, Served, a_thread, serving, verdict_text

WRITER, JUDGE = "claude-opus-5-5", "claude-sonnet-5-5"
KEY, OTHER = "sk-first", "sk-second"
FAILS, PASSES = Reply(verdict_text(False)), Reply(verdict_text())
MANY = tuple(("look", {"at": f"place {at}"}) for at in range(26))
"""One tool call more than a conversation has."""


def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


def look_closely(at: str) -> str:
    """Look at something, closely this time."""
    return f"seen {at}"


look_closely.__name__ = "look"


def start(**changed: Any) -> dict[str, Any]:
    """Return what a thread is started with."""
    writer: dict[str, Any] = {"model": f"anthropic:{WRITER}", "tools": ["look"]}
    plain = {"generator": writer, "grader": {"model": f"anthropic:{JUDGE}"}, "rubric": "- it is good", "idle_timeout": 60}
    return plain | changed


@asynccontextmanager
async def claude(writer: Sequence[Reply], judge: Sequence[Reply]) -> AsyncIterator[BindingServer]:
    """Serve a writer and a judge to two accounts."""
    async with binding({WRITER: writer, JUDGE: judge}, {KEY: "one", OTHER: "another"}) as server:
        yield server


@asynccontextmanager
async def worker(client: Client, server: BindingServer, *, key: str = KEY, tool: Callable[..., Any] = look) -> AsyncIterator[Served]:
    """Run a worker that calls the server through the SDK."""
    models = Models(environment={"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": server.url})
    try:
        async with serving(client, models=models, tools=[tool]) as served:
            yield served
    finally:
        await models.aclose()


async def checkpoint_of(served: Served, thread_id: str) -> dict[str, Any]:
    """Close a thread and return its checkpoint."""
    await served.handle(thread_id).signal("close")
    await served.handle(thread_id).result()
    checkpoint: dict[str, Any] = await served.handle(thread_id).query("checkpoint", result_type=dict[str, Any])
    return checkpoint


async def go_on(served: Served, checkpoint: dict[str, Any], text: str, **changed: Any) -> RunResult:
    """Go on with a checkpoint in another thread."""
    given = start(**changed) | {"checkpoint": checkpoint}
    return await served.client.invoke(a_thread(), text, start=given)


@pytest.mark.slow
async def test_a_thread_whose_tool_calls_are_used_up_goes_on_with_revisions_and_turns(client: Client) -> None:
    writer = [Reply(calls=MANY), Reply("draft 0"), Reply("draft 1"), Reply(calls=(("look", {"at": "it"}),)), Reply("draft 2")]
    async with claude(writer, [FAILS, PASSES, PASSES]) as server, worker(client, server) as served:
        thread_id = a_thread()
        first = await served.client.invoke(thread_id, "Write.", start=start())
        second = await served.client.invoke(thread_id, "Again.")
        said = (await served.client.messages(thread_id)).items

    assert (first.status, first.output, second.status, second.output) == ("satisfied", "draft 1", "satisfied", "draft 2")
    assert server.refusals == []
    assert [message.source for message in said if message.role == "user"] == [None, "turn_limit", "rubric_grader", None]
    assert [server.thoughts(at) for at, body in enumerate(server.requests) if body["model"] == WRITER] == [0, 1, 2, 3, 4]


@pytest.mark.slow
async def test_a_grader_with_tools_may_use_them_up_and_repair_its_answer(client: Client) -> None:
    judge = [Reply(calls=MANY[:2]), Reply("no verdict"), Reply(calls=MANY[:1]), PASSES, Reply(calls=MANY), PASSES]
    grader = {"model": f"anthropic:{JUDGE}", "tools": ["look"]}
    async with claude([Reply("draft 0"), Reply("draft 1")], judge) as server, worker(client, server) as served:
        thread_id = a_thread()
        first = await served.client.invoke(thread_id, "Write.", start=start(grader=grader))
        second = await served.client.invoke(thread_id, "Again.")

    assert (first.status, second.status) == ("satisfied", "satisfied")
    assert server.refusals == []


@pytest.mark.slow
async def test_another_rubric_that_the_generator_is_shown_drops_the_thinking_before_it(client: Client) -> None:
    generator = {"model": f"anthropic:{WRITER}", "show_rubric": True}
    drafts = [Reply(f"draft {at}") for at in range(5)]
    judge = [FAILS, PASSES, Reply(verdict_text(False)), PASSES, PASSES]
    async with claude(drafts, judge) as server, worker(client, server) as served:
        thread_id = a_thread()
        await served.client.invoke(thread_id, "Write.", start=start(generator=generator))
        second = await served.client.invoke(thread_id, "Again.", rubric="- it rhymes")
        third = await served.client.invoke(thread_id, "Once more.", rubric="- it is good")

    assert (second.status, third.status) == ("satisfied", "satisfied")
    assert server.refusals == []
    assert [server.thoughts(at) for at, body in enumerate(server.requests) if body["model"] == WRITER] == [0, 1, 0, 1, 0]


@pytest.mark.slow
async def test_a_tool_that_another_worker_describes_otherwise_drops_the_thinking_before_it(client: Client) -> None:
    writer = [Reply(calls=MANY[:1]), Reply("draft 0"), Reply(calls=MANY[:1]), Reply("draft 1"), Reply("draft 2")]
    async with claude(writer, [PASSES, FAILS, PASSES]) as server:
        async with worker(client, server) as served:
            thread_id = a_thread()
            await served.client.invoke(thread_id, "Write.", start=start())
            checkpoint = await checkpoint_of(served, thread_id)
        async with worker(client, server, tool=look_closely) as served:
            result = await go_on(served, checkpoint, "Again.")

    assert (result.status, result.output) == ("satisfied", "draft 2")
    assert server.refusals == []
    assert [server.thoughts(at) for at, body in enumerate(server.requests) if body["model"] == WRITER] == [0, 1, 0, 1, 2]


@pytest.mark.slow
async def test_the_key_of_another_account_drops_the_thinking_before_it(client: Client) -> None:
    generator = {"model": f"anthropic:{JUDGE}"}
    said = [Reply("draft 0"), PASSES, Reply("draft 1"), FAILS, Reply("draft 2"), PASSES]
    async with claude([], said) as server:
        async with worker(client, server) as served:
            thread_id = a_thread()
            await served.client.invoke(thread_id, "Write.", start=start(generator=generator))
            checkpoint = await checkpoint_of(served, thread_id)
        async with worker(client, server, key=OTHER) as served:
            result = await go_on(served, checkpoint, "Again.", generator=generator)

    assert (result.status, result.output) == ("satisfied", "draft 2")
    assert server.refusals == []
    assert [server.thoughts(at) for at in range(6)] == [0, 0, 0, 0, 1, 0]


@pytest.mark.slow
async def test_thinking_that_is_refused_is_dropped_for_good_and_both_attempts_are_counted(client: Client) -> None:
    drafts = [Reply("draft 0"), Reply(calls=MANY[:1]), Reply("draft 1"), Reply("draft 2")]
    async with claude(drafts, [PASSES, FAILS, PASSES]) as server, worker(client, server) as served:
        thread_id = a_thread()
        await served.client.invoke(thread_id, "Write.", start=start())
        checkpoint = await checkpoint_of(served, thread_id)
        for message in checkpoint["thread"]["log"]:
            message.get("vendor", {}).pop("bound", None)  # as a thread of a version that did not note it
        changed = {"model": f"anthropic:{WRITER}", "tools": ["look"], "system_prompt": "Write well."}
        result = await go_on(served, checkpoint, "Again.", generator=changed)

    assert (result.status, result.output) == ("satisfied", "draft 2")
    assert len(server.refusals) == 1
    assert [server.thoughts(at) for at, body in enumerate(server.requests) if body["model"] == WRITER] == [0, 0, 1, 2]
    assert (result.usage.calls, result.usage.attempts) == (5, 6)


@pytest.mark.slow
async def test_a_thread_goes_on_from_its_checkpoint_with_all_its_thinking(client: Client) -> None:
    drafts = [Reply(calls=MANY[:1]), Reply("draft 0"), Reply("draft 1"), Reply("draft 2")]
    async with claude(drafts, [FAILS, PASSES, PASSES]) as server, worker(client, server) as served:
        thread_id = a_thread()
        await served.client.invoke(thread_id, "Write.", start=start())
        result = await go_on(served, await checkpoint_of(served, thread_id), "Again.")

    assert (result.status, result.output) == ("satisfied", "draft 2")
    assert server.refusals == []
    assert [server.thoughts(at) for at, body in enumerate(server.requests) if body["model"] == WRITER] == [0, 1, 2, 3]


async def test_votes_of_one_model_keep_conversations_of_their_own(client: Client) -> None:
    rubric = {"criteria": [{"description": "it is good", "votes": 3}]}
    malformed = Reply("no verdict")
    judge = [malformed, malformed, malformed, PASSES, PASSES, PASSES]
    async with claude([Reply("draft 0")], judge) as server, worker(client, server) as served:
        result = await served.client.invoke(a_thread(), "Write.", start=start(rubric=rubric))

    assert result.status == "satisfied"
    assert server.refusals == []
