"""The waits of calls, as the server describes their workflows: for a rate limit, a provider that is away, or an answer."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError

from gradeloop.contract.provider import CallProgress
from gradeloop.errors import StoreUnavailable
from gradeloop.text import duration, one_line, shortened

WAITING_TYPES = frozenset({"waiting", "rate_limited"})
"""The error types of attempts behind which a call waits for its model's rate limit."""

FAILURE_CHARACTERS = 300
"""The characters of a failure that are shown."""

PROGRESS_AT = 2
"""The place of a call's progress among the details of its heartbeats."""

LOOK_SECONDS = 1.0
"""The pause between two looks at what is waited for."""

DESCRIBE_SECONDS = 2.0
"""Seconds that one look may take."""

MOST_DESCRIBED = 8
"""The most workflows of one kind that are described in one look, and of the workflows below each."""

UNREMARKABLE_SECONDS = 5.0
"""Seconds before a call that goes well is reported."""


@dataclass(frozen=True, order=True)
class CallWait:
    """The wait of one call; of two, the lesser one is told first."""

    rank: tuple[int, float]
    """A rate limit first, the soonest of them; then what failed, then what has no answer yet, each by how long that has lasted."""
    text: str
    """The wait in words: `ollama:qwen3 has not answered for 40 s; attempt 2`."""
    store: str | None = None
    """The problem of the store that a reply waits for."""
    draft: str = ""
    """The end of the draft that the call has brought so far; empty where its provider does not stream."""


async def call_waits(client: Client, description: WorkflowExecutionDescription) -> list[CallWait]:
    """Return what each call of a workflow waits for that has failed, or is asked of a model."""
    found = [await _wait_of(client, call) for call in description.raw_description.pending_activities]
    return sorted(wait for wait in found if wait is not None)


async def waits_below(client: Client, names: Iterable[str]) -> list[CallWait]:
    """Return what the calls of workflows, and of the workflows below them, wait for: what is most worth knowing first."""
    waits, level = list[CallWait](), list(islice(names, MOST_DESCRIBED))
    try:
        async with asyncio.timeout(DESCRIBE_SECONDS):
            while level:
                described = await asyncio.gather(*(client.get_workflow_handle(name).describe() for name in level), return_exceptions=True)
                below = list[str]()
                for description in described:
                    if isinstance(description, WorkflowExecutionDescription):
                        waits += await call_waits(client, description)
                        below += [child.workflow_id for child in description.raw_description.pending_children[:MOST_DESCRIBED]]
                level = below[:MOST_DESCRIBED]
    except (TimeoutError, RPCError):
        pass
    return sorted(waits)


async def watch_calls(client: Client, names: Callable[[], Iterable[str]], show: Callable[[CallWait | None], object]) -> None:
    """Show again and again the first wait of the calls of workflows, and None where nothing is worth saying; never returns."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        waits = await waits_below(client, names())
        show(waits[0] if waits else None)


async def describe_call_wait(client: Client, description: WorkflowExecutionDescription) -> str:
    """Return what a workflow that runs waits for, in words: what `call_waits` says first, or else an answer, a pause or a worker."""
    if waits := await call_waits(client, description):
        return waits[0].text
    calls = description.raw_description.pending_activities
    if any(call.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for call in calls):
        return "a model is asked, and has not answered yet"
    if not calls and not description.raw_description.HasField("pending_workflow_task"):
        return "a model gave no answer, and is asked again after a pause"
    return "a worker is waited for"


async def _wait_of(client: Client, call: PendingActivityInfo) -> CallWait | None:
    """Return what a call waits for; None where there is nothing to say: its first attempt has just begun, or asks no model."""
    # The server knows of an activity its state, its last failure and its last heartbeat. A paid attempt without
    # an answer completes its activity, so its failure is in none of them. The attempt after it brings that along,
    # as the problem in its heartbeats.
    failed, now = call.last_failure, time.time()
    details = await _detail(client, failed.application_failure_info.details, 0)
    beat = await _detail(client, call.heartbeat_details, PROGRESS_AT)
    progress = None
    with suppress(ValidationError):  # a remote worker's heartbeats hold anything
        progress = CallProgress.model_validate(beat)
    idle = call.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    pause = max(0.0, _seconds(call.next_attempt_schedule_time) - now)
    model, until = details.get("waits_for"), details.get("away_until")
    if idle and failed.application_failure_info.type in WAITING_TYPES and isinstance(model, str):
        return CallWait((0, pause), f"waiting for {one_line(model)}'s rate limit, {duration(pause)}")
    lasted = max(0.0, now - (progress.since if progress else _seconds(call.last_started_time) or now))
    reason = f"{failed.application_failure_info.type}: {failed.message}" if failed.message else (progress and progress.problem) or ""
    reason, attempt = shortened(one_line(reason), FAILURE_CHARACTERS), progress.attempt if progress else call.attempt
    store = failed.message if idle and failed.application_failure_info.type == StoreUnavailable.__name__ else progress and progress.store
    if store:
        return CallWait((1, -lasted), f"a reply waits for the store: {shortened(one_line(store), FAILURE_CHARACTERS)}", store)
    if failed.message and idle:
        parts = [f"the provider gives no answer, attempt {max(call.attempt, attempt - 1)}: {reason}", f"asked again in {duration(pause)}"]
        parts += [f"waited for until {datetime.fromtimestamp(until, UTC):%H:%M:%S} UTC"] if isinstance(until, int | float) else []
        return CallWait((1, -lasted), "; ".join(parts))
    if progress is None or not (progress.model or progress.draft) or (lasted < UNREMARKABLE_SECONDS and not reason and not progress.draft):
        return None
    did = f"has written about {progress.tokens:,} tokens in" if progress.tokens else "has not answered for"
    did = "has been writing for" if progress.draft and not progress.tokens else did
    who = one_line(progress.model or f"the function {call.activity_type.name}")
    parts = [f"{who} {did} {duration(lasted)}", *([f"attempt {attempt}"] if attempt > 1 else [])]
    parts += [f"before: {reason}"] if reason else []
    return CallWait((1 if reason else 2, -lasted), "; ".join(parts), draft=progress.draft or "")


async def _detail(client: Client, payloads: Payloads, at: int) -> dict[str, Any]:
    """Return one of the details of a failure or a heartbeat; empty where there is none, or it is not an object."""
    found: Sequence[Any] = await client.data_converter.decode(payloads.payloads)
    return found[at] if len(found) > at and isinstance(found[at], dict) else {}


def _seconds(moment: Timestamp) -> float:
    return float(moment.ToMicroseconds()) / 1e6
