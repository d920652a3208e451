"""A pulse for long calls: it tells the server that the worker lives, and brings a cancellation to the call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pydantic import ValidationError
from temporalio import activity

from gradeloop.usage import Usage

PULSE_SECONDS = 1.0
"""A cancellation comes back with a heartbeat alone, so this and the worker's throttle of 2 s decide how soon a call stops."""


class Pulse:
    """The heartbeats of one attempt; they carry what the attempts so far have cost to the next one."""

    def __init__(self) -> None:
        self.spent = _spent()

    def beat(self) -> None:
        """Send a heartbeat."""
        activity.heartbeat(*([self.spent.model_dump(mode="json")] if self.spent.attempts else []))

    def spend(self, usage: Usage) -> None:
        """Note what this attempt cost, for the next one."""
        self.spent += usage
        self.beat()


@asynccontextmanager
async def heartbeats() -> AsyncIterator[Pulse]:
    """Send heartbeats while the body runs, at half the activity's heartbeat timeout at the latest."""
    timeout, pulse = activity.info().heartbeat_timeout, Pulse()
    if timeout is None:
        yield pulse
        return
    beating = asyncio.create_task(_beat(pulse, min(PULSE_SECONDS, timeout.total_seconds() / 2)))
    try:
        yield pulse
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


async def _beat(pulse: Pulse, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        pulse.beat()


def _spent() -> Usage:
    """Read what earlier attempts cost; another version's words count for nothing."""
    told = activity.info().heartbeat_details
    with suppress(ValidationError):
        return Usage.model_validate(told[0]) if told else Usage()
    return Usage()
