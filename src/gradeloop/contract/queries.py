"""Queries that are sent again while a worker's copy of a workflow is not what the history holds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.client import WorkflowQueryFailedError

READ_AGAIN = "READ_AGAIN"
"""The code of a query that was refused because the worker had applied events that no workflow task has recorded yet."""

OUT_OF_STEP = "TMPRL1100"
"""The code of a worker whose copy of the workflow differs from the history: seen after a worker's death, and gone with the next task."""

PAUSE_SECONDS = 0.2
"""The pause before a refused query is sent again."""

REFUSED_SECONDS = 20.0
"""How long a refused query is sent again: longer than the 10 seconds after which the server repeats a lost workflow task."""

Answer = TypeVar("Answer")


async def recorded(query: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return a query's answer, sent again for some seconds while it is refused as one to be read again.

    Args:
        query: Sends the query anew.

    Raises:
        WorkflowQueryFailedError: The query failed in another way, or was refused for too long.
    """
    deadline = time.monotonic() + REFUSED_SECONDS
    while True:
        try:
            return await query()
        except WorkflowQueryFailedError as error:
            if time.monotonic() > deadline or not any(f"[{code}]" in str(error) for code in (READ_AGAIN, OUT_OF_STEP)):
                raise
        await asyncio.sleep(PAUSE_SECONDS)
