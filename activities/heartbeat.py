"""A pulse for long calls: it tells the server that the worker lives, and brings a cancellation to the call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

PULSE_SECONDS = 1.0
"""A cancellation comes back with a heartbeat alone, so this and the worker's throttle of 2 s decide how soon a call stops."""


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Send heartbeats while the body runs, at half the activity's heartbeat timeout at the latest."""
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return
    pulse = asyncio.create_task(_beat(min(PULSE_SECONDS, timeout.total_seconds() / 2)))
    try:
        yield
    finally:
        pulse.cancel()
        with suppress(asyncio.CancelledError):
            await pulse


async def _beat(seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        activity.heartbeat()
