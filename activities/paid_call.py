"""One paid call: its reply with what all attempts have cost, or its failure as Temporal is told of it."""

from dataclasses import replace

from temporalio import activity

from activities.admit import Desk
from activities.failures import ModelFault, failure
from activities.heartbeat import Pulse
from activities.providers.model import ModelReply, ModelRequest


async def paid(desk: Desk, request: ModelRequest, pulse: Pulse) -> ModelReply:
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


def _note(desk: Desk, request: ModelRequest, fault: ModelFault, pulse: Pulse) -> None:
    if fault.usage is not None:
        pulse.spend(fault.usage)
    if desk.recording:
        desk.recording.fault(request, fault)
