"""A call that was paid for, and whose attempt the server has given up: the next attempt takes its reply."""

import asyncio
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.client import Client

from activities.calls.attempts import AttemptState
from tests.rig.batches import batching, case, passes

BEATS = 4
"""The seconds after which a second attempt has asked, if it asks at all."""


@pytest.mark.slow
async def test_a_call_in_flight_is_not_paid_for_again_where_no_heartbeat_came_in_time(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, beats = asyncio.Event(), 0

    def beat(_: AttemptState) -> None:
        nonlocal beats
        beats += activity.info().attempt > 1
        if beats > BEATS:
            second.set()

    async with batching(client, tmp_path, passes()) as batches:
        monkeypatch.setattr(AttemptState, "beat", beat)
        batches.served.models.hold("grader")
        running = asyncio.create_task(batches.run([case("a", "an output")]))
        async with asyncio.timeout(240):
            await second.wait()
            batches.served.models.release()
            summary, results = await running

    assert (summary.passed, [result.status for result in results]) == (1, ["passed"])
    assert (batches.served.models.count("grader"), summary.usage.attempts) == (1, 1)
