"""Notices of threads and batches: one for each time a person is wanted, and no webhook holds up the work."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.rig.batches import batching, case, drafted, passes
from tests.rig.threads import Thread, draft, grade, page, replay, request, row, serving, until
from tests.rig.webhooks import hooked

RUBRIC = {"criteria": ["three lines", {"id": "promise", "description": "Promises nothing", "human": True}]}


async def decide(thread: Thread, *, passed: bool) -> None:
    """Decide what the thread asks."""
    asked = (await until(thread, "waiting"))["waiting_for"]
    decision = {"grading_run_id": asked["grading_run_id"], "iteration": asked["iteration"], "criterion": "promise", "by": "ann"}
    await thread.execute_update("decide", decision | {"passed": passed} | ({} if passed else {"gap": "it promises"}))


async def activity_types(thread: Thread) -> list[str]:
    """Return the types of the calls in a thread's history."""
    scheduled = [event.activity_task_scheduled_event_attributes async for event in thread.fetch_history_events()]
    return [one.activity_type.name for one in scheduled if one.activity_type.name]


@pytest.mark.slow
async def test_each_time_a_thread_waits_it_says_so_once(client: Client) -> None:
    async with hooked(503) as hook, serving(client, draft(), grade(), draft(1), grade(1), notify=hook.settings(content=True)) as served:
        thread = await served.start(request(RUBRIC))
        await hook.posted(2)
        await decide(thread, passed=False)
        posts = await hook.posted(3)
        await decide(thread, passed=True)
        result = await thread.result()
        await replay(client, thread.id)

    assert result.status == "satisfied"
    assert [post["id"] for post in posts] == [posts[0]["id"], posts[0]["id"], posts[2]["id"]]
    assert posts[0]["id"] != posts[2]["id"]
    assert posts[0] | {"id": "", "time": ""} == {
        "id": "",
        "type": "thread.waiting",
        "time": "",
        "title": "Write a haiku about spring.",
        "answer": "WAITING for a person: 1 question",
        "thread_id": thread.id,
        "grading_run_id": result.grading_run_id,
        "questions": [{"kind": "criterion", "id": "promise"}],
        "content": {"questions": ["Promises nothing"], "draft": "draft 0"},
    }


async def test_a_webhook_that_is_away_holds_up_nobody(client: Client) -> None:
    async with hooked(*[500] * 50) as hook, serving(client, draft(), grade(), notify=hook.settings()) as served:
        thread = await served.start(request(RUBRIC))
        await hook.posted()
        await decide(thread, passed=True)
        result = await thread.result()
        await replay(client, thread.id)

    assert result.status == "satisfied"


async def test_a_thread_whose_worker_has_no_webhook_asks_for_none(client: Client) -> None:
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request(RUBRIC))
        await decide(thread, passed=True)
        await thread.result()
        types = await activity_types(thread)

    assert types == ["generate", "grade"]


async def test_a_thread_over_its_budget_says_so(client: Client) -> None:
    spent = {"usage": {"input": 90, "output": 10}}
    async with hooked() as hook:
        replies = (draft() | spent, grade(0, row("c1", "more")) | spent)
        async with serving(client, *replies, notify=hook.settings(on=["thread.over_budget"])) as served:
            thread = await served.start(request("- good", budget={"max_tokens": 150}))
            posts = await hook.posted()
            await until(thread, "interrupted")
            kept = [item["type"] for item in (await page(thread, "events"))["items"]]
            await replay(client, thread.id)
            await thread.terminate()

    assert "interrupted" in kept
    assert posts[0]["type"] == "thread.over_budget"
    assert posts[0]["answer"].startswith("INTERRUPTED the budget is used up: 200 of 150 tokens")


@pytest.mark.slow
async def test_a_batch_says_that_it_has_ended_and_does_not_wait_for_the_webhook(client: Client, tmp_path: Path) -> None:
    async with hooked(500) as hook, batching(client, tmp_path, passes(), notify=hook.settings()) as batches:
        summary, _ = await batches.run([case("a"), case("b")], name="greetings", batch_id="announced")
        posts = await hook.posted(2)

    assert summary.passed == 2
    assert posts[0]["id"] == posts[1]["id"]
    assert posts[1] | {"id": "", "time": ""} == {
        "id": "",
        "type": "batch.ended",
        "time": "",
        "title": "greetings",
        "answer": "PASSED",
        "batch_id": "announced",
        "counts": {"total": 2, "passed": 2, "failed": 0, "unsure": 0, "errors": 0, "ungraded": 0, "waiting": 0, "open": 0},
    }


async def test_a_batch_that_its_budget_pauses_says_so(client: Client, tmp_path: Path) -> None:
    spent: dict[str, Any] = {"usage": {"input": 90, "output": 10}}
    async with hooked() as hook, batching(client, tmp_path, passes(**spent), notify=hook.settings()) as batches:
        summary, _ = await batches.run([case("a"), case("b"), drafted("c")], at_once=1, budget={"max_tokens": 50})
        posts = await hook.posted()

    assert (summary.status, posts[0]["type"]) == ("paused", "batch.over_budget")
    assert posts[0]["answer"].startswith("PAUSED: the budget is used up: 100 of 50 tokens")
