"""One paid call, with heartbeats that carry what its attempts have cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.capabilities import WorkerServices
from activities.errors import ModelFault, failure
from activities.providers.base import ModelReply, ModelRequest
from gradeloop.contract.messages import MESSAGE_BYTES, Usage

HEARTBEAT_SECONDS = 1.0
"""A cancellation comes back with a heartbeat alone, so this and the worker's throttle of 2 s decide how soon a call stops."""


class Heartbeat:
    """The heartbeats of one attempt; they carry what the attempts so far have cost to the next one."""

    def __init__(self) -> None:
        self.spent = _earlier_usage()

    def beat(self) -> None:
        """Send a heartbeat."""
        activity.heartbeat(*([self.spent.model_dump(mode="json")] if self.spent.attempts else []))

    def spend(self, usage: Usage) -> None:
        """Add what this attempt cost, for the next one."""
        self.spent += usage
        self.beat()


def _earlier_usage() -> Usage:
    """Read what earlier attempts cost; details of another version count for nothing."""
    details = activity.info().heartbeat_details
    with suppress(ValidationError):
        return Usage.model_validate(details[0]) if details else Usage()
    return Usage()


@asynccontextmanager
async def heartbeats() -> AsyncIterator[Heartbeat]:
    """Send heartbeats while the body runs, at half the activity's heartbeat timeout at the latest."""
    timeout, heartbeat = activity.info().heartbeat_timeout, Heartbeat()
    if timeout is None:
        yield heartbeat
        return
    beating = asyncio.create_task(_beat(heartbeat, min(HEARTBEAT_SECONDS, timeout.total_seconds() / 2)))
    try:
        yield heartbeat
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


async def _beat(heartbeat: Heartbeat, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        heartbeat.beat()


async def paid_call(services: WorkerServices, request: ModelRequest, heartbeat: Heartbeat) -> ModelReply:
    """Call a model once, and record the exchange where the worker has a recording.

    Raises:
        ApplicationError: Its type is the kind of failure, its details what all attempts have cost; `ThreadTooLarge` where the reply has
            more than 1 MiB, since a larger payload would wedge the workflow.
    """
    try:
        reply = await services.providers.complete(request)
    except Exception as error:  # noqa: BLE001 - the one classifier decides
        if isinstance(error, ModelFault):
            if error.usage is not None:
                heartbeat.spend(error.usage)
            if services.recording:
                services.recording.fault(request, error)
        raise failure(error, model=request.spec.id, attempt=activity.info().attempt, spent=heartbeat.spent) from None
    if services.recording:
        services.recording.reply(request, reply)
    if (size := reply.message.size()) > MESSAGE_BYTES:
        text = f"{request.spec.id} answered with {size} bytes, {MESSAGE_BYTES} at most"
        raise ApplicationError(text, type="ThreadTooLarge", non_retryable=True)
    return replace(reply, usage=heartbeat.spent + reply.usage)
