"""What the calls of a workflow wait for: their model's rate limit, as the server's description of them says."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowExecutionDescription

from gradeloop.text import duration, one_line

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
