"""What somebody else's worker returns that no client can read is that worker's failure: the thread goes on, and never hangs."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.worker import Worker

from gradeloop.contract.thread import RunResult
from tests.rig.threads import draft, grade, request, serving, wants
from tests.workflows.test_tools_elsewhere import tool

UNREADABLE = {
    "nested too deeply": b"[" * 5000 + b"]" * 5000,
    "half a pair": b'{"a": "\\ud800"}',
    "text with half a pair": b'"\\ud800"',
    "cut short": b'{"a": ',
    "a number without end": b"1" * 5000,
    "not UTF-8": b'"\xff"',
    "another encoding": b"\x00\x01",
}


async def ended(client: Client, raw: bytes, role: str) -> tuple[RunResult, list[Any]]:
    """Return how a thread ends in which one role is somebody else's, and what the models were asked."""

    @activity.defn(name="theirs")
    async def theirs(_: dict[str, Any]) -> RawValue:
        return RawValue(Payload(metadata={"encoding": b"json/plain" if raw[:1] != b"\x00" else b"binary/unknown"}, data=raw))

    queue = f"owner-{uuid4()}"
    place = {"activity": "theirs", "task_queue": queue}
    argument = request("- x") | ({role: place} if role != "tool" else {})
    if role == "tool":
        argument["grader"]["tools"] = [tool(queue, activity="theirs")]
    replies = [draft(), wants("grader", "look"), grade(step=1)] if role == "tool" else [draft(), grade()]
    async with Worker(client, task_queue=queue, activities=[theirs]), serving(client, *replies) as served:
        return await asyncio.wait_for(served.run(argument), 240), served.models.requests


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
class TestUnreadable:
    async def test_a_tools_is_told_to_the_grader(self, client: Client, raw: bytes) -> None:
        result, asked = await ended(client, raw, "tool")

        assert result.status == "satisfied"
        assert asked[-1].messages[-1].content.startswith("what it returned cannot be read: ")

    async def test_a_generators_interrupts_the_run(self, client: Client, raw: bytes) -> None:
        result, _ = await ended(client, raw, "generator")

        assert result.status == "interrupted"
        assert "what it returned cannot be read: " in (result.error or "")

    async def test_a_graders_is_a_grader_error(self, client: Client, raw: bytes) -> None:
        result, _ = await ended(client, raw, "grader")

        assert result.status == "grader_error"
        assert "what it returned cannot be read: " in result.evaluations[-1].explanation
