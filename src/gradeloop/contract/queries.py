"""Queries that are sent again: while a worker's copy of a workflow is not what the history holds, and where one was lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

READ_AGAIN = "READ_AGAIN"
"""The code of a query that was refused because the worker had applied events that no workflow task has recorded yet."""

OUT_OF_STEP = "TMPRL1100"
"""The code of a worker whose copy of the workflow differs from the history: seen after a worker's death, and gone with the next task."""

PAUSE_SECONDS = 0.2
"""The pause before a refused query is sent again."""

REFUSED_SECONDS = 20.0
"""How long a refused query is sent again: longer than the 10 seconds after which the server repeats a lost workflow task."""

FIRST_TRY_SECONDS = 1.5
"""How long the first try of a query waits, each later one twice as long: one that meets the end of a run, or of a worker, can be lost."""

SILENT_SECONDS = 30.0
"""How long a query that nobody answers is sent again, where its caller does not give up before."""

SILENT = {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}
"""The statuses of a query that nobody answered in time."""

Answer = TypeVar("Answer")


async def recorded(query: Callable[[timedelta], Awaitable[Answer]]) -> Answer:
    """Return a query's answer, sent again while it is refused as one to be read again, and where nobody answers.

    Args:
        query: Sends the query anew, and waits for so long.

    Raises:
        RPCError: The server refuses it, or nobody answered for long.
        WorkflowQueryFailedError: The query failed in another way, or was refused for too long.
    """
    began, patience = time.monotonic(), FIRST_TRY_SECONDS
    while True:
        try:
            return await query(timedelta(seconds=patience))
        except RPCError as error:
            if error.status not in SILENT or time.monotonic() - began > SILENT_SECONDS:
                raise
            patience *= 2
            continue
        except WorkflowQueryFailedError as error:
            if time.monotonic() - began > REFUSED_SECONDS or not any(f"[{code}]" in str(error) for code in (READ_AGAIN, OUT_OF_STEP)):
                raise
        await asyncio.sleep(PAUSE_SECONDS)
