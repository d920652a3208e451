"""One paid call, with heartbeats that carry what its attempts have cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from pydantic import ValidationError
from temporalio import activity

from activities.capabilities import WorkerServices
from activities.errors import ModelFault, failure
from activities.providers.base import ModelReply, ModelRequest
from gradeloop.contract.messages import Usage

HEARTBEAT_SECONDS = 1.0
"""A cancellation comes back with a heartbeat alone, so this and the worker's throttle of 2 s decide how soon a call stops."""


class Heartbeat:
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
async def heartbeats() -> AsyncIterator[Heartbeat]:
    """Send heartbeats while the body runs, at half the activity's heartbeat timeout at the latest."""
    timeout, pulse = activity.info().heartbeat_timeout, Heartbeat()
    if timeout is None:
        yield pulse
        return
    beating = asyncio.create_task(_beat(pulse, min(HEARTBEAT_SECONDS, timeout.total_seconds() / 2)))
    try:
        yield pulse
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


async def _beat(pulse: Heartbeat, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        pulse.beat()


def _spent() -> Usage:
    """Read what earlier attempts cost; another version's words count for nothing."""
    told = activity.info().heartbeat_details
    with suppress(ValidationError):
        return Usage.model_validate(told[0]) if told else Usage()
    return Usage()


async def paid_call(desk: WorkerServices, request: ModelRequest, pulse: Heartbeat) -> ModelReply:
    """Make the call.

    Raises:
        ApplicationError: Its type is the kind of failure, its details what all attempts have cost.
    """
    try:
        reply = await desk.providers.complete(request)
    except Exception as error:  # noqa: BLE001 - the one classifier decides
        if isinstance(error, ModelFault):
            _note(desk, request, error, pulse)
        raise failure(error, model=request.spec.id, attempt=activity.info().attempt, spent=pulse.spent) from None
    if desk.recording:
        desk.recording.reply(request, reply)
    return replace(reply, usage=pulse.spent + reply.usage)


def _note(desk: WorkerServices, request: ModelRequest, fault: ModelFault, pulse: Heartbeat) -> None:
    if fault.usage is not None:
        pulse.spend(fault.usage)
    if desk.recording:
        desk.recording.fault(request, fault)
