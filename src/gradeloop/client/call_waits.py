"""What the calls of a workflow in flight wait for, as the server's description of it says: a provider that is away, or an answer."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionDescription

from gradeloop.client.rate_limits import describe_rate_limit_wait, rate_limit_wait
from gradeloop.text import clip, duration, one_line

FAILURE_CHARACTERS = 300
"""The characters of a failure that are shown."""

Decode = Callable[[Sequence[Payload]], Awaitable[list[Any]]]


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
