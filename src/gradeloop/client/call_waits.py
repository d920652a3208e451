"""What the calls of a workflow wait for, as the server's description of it says: a rate limit, a provider that is away, or an answer."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionDescription

from gradeloop.text import clip, duration, one_line

WAITING_TYPES = frozenset({"waiting", "rate_limited"})
"""The error types of attempts behind which a call waits for its model's rate limit."""

Decode = Callable[[Sequence[Payload]], Awaitable[list[Any]]]


async def rate_limit_wait(description: WorkflowExecutionDescription, decode: Decode) -> tuple[float, str] | None:
    """Return for how many seconds the next call of a workflow waits, and for which model's rate limit; None where none waits.

    Args:
        description: The server's description of the workflow.
        decode: Decodes payloads.
    """
    soonest: tuple[float, str] | None = None
    for call in description.raw_description.pending_activities:
        failed = call.last_failure.application_failure_info
        if failed.type not in WAITING_TYPES or call.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
            continue
        details = await decode(failed.details.payloads)
        model = details[0].get("waits_for") if details and isinstance(details[0], dict) else None
        seconds = max(0.0, call.next_attempt_schedule_time.ToMicroseconds() / 1e6 - time.time())
        if isinstance(model, str) and (soonest is None or seconds < soonest[0]):
            soonest = (seconds, model)
    return soonest


def describe_rate_limit_wait(wait: tuple[float, str] | None) -> str | None:
    """Return a wait in words: `waiting for openai:gpt-6-luna's rate limit, 40 s`."""
    return None if wait is None else f"waiting for {one_line(wait[1])}'s rate limit, {duration(wait[0])}"


FAILURE_CHARACTERS = 300
"""The characters of a failure that are shown."""


async def describe_call_wait(description: WorkflowExecutionDescription, decode: Decode) -> str:
    """Return what a workflow waits for, in words: a rate limit, a provider that failed with when it is asked again, an answer, a worker.

    Args:
        description: The server's description of the workflow.
        decode: Decodes payloads.
    """
    if (limited := describe_rate_limit_wait(await rate_limit_wait(description, decode))) is not None:
        return limited
    calls = list(description.raw_description.pending_activities)
    for call in calls:
        failed = call.last_failure
        if not failed.message:
            continue
        details = await decode(failed.application_failure_info.details.payloads)
        until = details[0].get("away_until") if details and isinstance(details[0], dict) else None
        parts = [
            f"attempt {call.attempt}: {clip(one_line(f'{failed.application_failure_info.type}: {failed.message}'), FAILURE_CHARACTERS)}"
        ]
        if call.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
            seconds = call.next_attempt_schedule_time.ToMicroseconds() / 1e6 - time.time()
            parts += [f"asked again in {duration(max(0.0, seconds))}"]
        if isinstance(until, int | float):
            parts += [f"waited for until {datetime.fromtimestamp(until, UTC):%H:%M:%S} UTC"]
        return f"the provider gives no answer, {'; '.join(parts)}"
    if any(call.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for call in calls):
        return "a model is asked, and has not answered yet"
    if not calls and not description.raw_description.HasField("pending_workflow_task"):
        return "a model gave no answer, and is asked again after a pause"
    return "a worker is waited for"
