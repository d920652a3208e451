"""What a long thread leaves in the server: history grows with what is new, never with the transcript."""

from itertools import pairwise
from typing import Any

import pytest
from temporalio.api.history.v1 import History
from temporalio.client import Client

from tests.rig.threads import a_thread, answering, failing_until, serving, start

ITERATIONS = 20
DRAFT_BYTES = 8 * 1024
MOST_BYTES = 350_000
"""Of the whole history; half of it are the drafts themselves."""

EVENLY = 1.02
"""How much larger than the smallest an iteration may be: numbers get longer, nothing else."""


@pytest.mark.slow
async def test_an_iteration_adds_the_same_bytes_however_long_the_thread_is(client: Client) -> None:
    thread = a_thread()
    async with serving(client, models=answering()) as served:
        served.models.answers = {
            "generator": lambda _, number: f"{number:04}".ljust(DRAFT_BYTES, "x"),
            "grader": failing_until(ITERATIONS - 1),
        }
        result = await served.client.result(
            await served.client.start(
                start(messages=[{"role": "user", "content": "write"}], max_iterations=ITERATIONS, idle_timeout=0), thread_id=thread
            )
        )
    total = await _bytes(served.handle(thread))
    history = History(events=(await served.handle(thread).fetch_history()).events)
    iterations = _bytes_of_iterations(history)
    print(f"{ITERATIONS} iterations of {DRAFT_BYTES} bytes: {total} bytes of history, {len(history.events)} events")
    print("bytes an iteration:", *iterations)

    assert result.iterations == ITERATIONS
    assert total < MOST_BYTES
    assert max(iterations[4:-1]) < EVENLY * min(iterations[4:-1])
    assert iterations[-1] < iterations[-2]
    assert min(iterations) > DRAFT_BYTES


async def _bytes(handle: Any) -> int:
    description = await handle.describe()
    return int(description.raw_description.workflow_execution_info.history_size_bytes)


def _bytes_of_iterations(history: History) -> list[int]:
    """Return the bytes from one scheduled draft to the next; after the last one's grading, which no feedback follows, the history ends."""
    sizes = [event.ByteSize() for event in history.events]
    kinds = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    starts = [at for at, kind in enumerate(kinds) if kind == "generate"]
    last = max(at for at, event in enumerate(history.events) if event.HasField("activity_task_completed_event_attributes"))
    return [sum(sizes[at:until]) for at, until in pairwise([*starts, last + 1])]
