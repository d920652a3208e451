"""What profiling mended, and what must hold all the same: instant calls send no heartbeat, and workflows run outside the sandbox."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

import worker
from activities.calls import attempts
from activities.calls.attempts import heartbeats
from tests.rig.threads import SECONDS, draft, grade, request, row, serving, wants
from workflows import RUNNER


@dataclass
class Call:
    """An activity that runs without a server, and its heartbeats."""

    environment: ActivityEnvironment = field(default_factory=ActivityEnvironment)
    beats: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.environment.info = replace(self.environment.info, heartbeat_timeout=timedelta(seconds=10))
        self.environment.on_heartbeat = lambda *details: self.beats.append(details)

    async def until(self, count: int) -> None:
        """Run until that many heartbeats were sent."""
        async with heartbeats():
            while len(self.beats) < count:
                await asyncio.sleep(0.01)


async def test_a_call_that_is_over_at_once_sends_no_heartbeat() -> None:
    call = Call()

    await call.environment.run(call.until, 0)

    assert call.beats == []


async def test_a_long_call_sends_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "HEARTBEAT_SECONDS", 0.01)
    call = Call()

    await asyncio.wait_for(call.environment.run(call.until, 3), 5)

    assert len(call.beats) >= 3


async def test_an_interrupt_reaches_a_long_call_within_seconds(client: Client) -> None:
    async with serving(client, draft(delay=900), grade()) as served:
        thread = await served.start(request("- it is good"))
        while not served.models.requests:
            await asyncio.sleep(0.01)
        await thread.signal("interrupt")

        async with asyncio.timeout(240):  # of the call's 900 seconds
            while (await thread.query("state"))["status"] != "interrupted":
                await asyncio.sleep(0.05)
        await thread.terminate()


def look(word: str) -> str:
    """Look a word up.

    Args:
        word: What to look up.
    """
    return f"{word} is a word"


@pytest.mark.slow
async def test_workflows_touch_nothing_that_temporals_sandbox_refuses(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker runs `workflows/` outside the sandbox, so here it runs inside, imported anew, with a tool and a revision."""
    monkeypatch.setattr(worker, "RecordedTasksRunner", lambda **_: RUNNER)
    replies = [
        draft(0),
        draft(1),
        wants("grader", {"name": "look", "arguments": {"word": "so"}}),
        grade(0, row("c1", "too plain"), step=1),
        grade(1),
    ]
    async with serving(client, *replies, tools=[look]) as served:
        running = served.run(request("- it is good", grader={"model": "scripted:judge", "tools": ["look"]}))
        result = await asyncio.wait_for(running, SECONDS)

    assert result.status == "satisfied"
    assert result.iterations == 2
