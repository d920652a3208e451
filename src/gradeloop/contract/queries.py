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
"""Seconds for which a refused query is sent again: more than the 10 after which the server repeats a lost workflow task."""

LOST_SECONDS = 1.5
"""Seconds of silence after which a query is sent once more beside the first: one that meets the end of a run can be lost."""

SILENT_SECONDS = 30.0
"""Seconds until a query without an answer is given up, unless its caller gives up before."""

SILENT = {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}
"""The statuses of a query that nobody answered in time."""

Answer = TypeVar("Answer")

Query = Callable[[timedelta], Awaitable[Answer]]
"""Sends a query, and waits for so long."""


async def recorded(query: Query[Answer]) -> Answer:
    """Return a query's answer, sent again while it is refused as one to be read again, and where nobody answers.

    Args:
        query: Sends the query anew.

    Raises:
        RPCError: The server refuses it, or nobody answered for long.
        WorkflowQueryFailedError: The query failed in another way, or was refused for too long.
    """
    deadline = time.monotonic() + REFUSED_SECONDS
    while True:
        try:
            return await _first_answer(query)
        except WorkflowQueryFailedError as error:
            if time.monotonic() > deadline or not any(f"[{code}]" in str(error) for code in (READ_AGAIN, OUT_OF_STEP)):
                raise
        await asyncio.sleep(PAUSE_SECONDS)


async def _first_answer(query: Query[Answer]) -> Answer:
    """Return the first answer to a query that is sent again, each time after twice the silence, while the earlier ones wait on.

    Raises:
        RPCError: As `recorded` says.
        WorkflowQueryFailedError: The query failed.
    """
    # A query that meets the end of a worker, or of a run, is answered by nobody, and the client learns that
    # only at its timeout. A second one costs little and goes to whoever serves now. The earlier ones wait on,
    # since a slow worker is not a lost one.
    deadline, patience = time.monotonic() + SILENT_SECONDS, LOST_SECONDS
    waiting: set[asyncio.Future[Answer]] = set()
    try:
        while True:
            waiting.add(asyncio.ensure_future(query(timedelta(seconds=SILENT_SECONDS))))
            ended, _ = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            waiting -= ended
            failures = [error for answer in ended if (error := answer.exception())]
            if len(failures) < len(ended):
                return next(answer.result() for answer in ended if not answer.exception())
            for error in failures:
                if not isinstance(error, RPCError) or error.status not in SILENT or time.monotonic() > deadline:
                    raise error
            if failures:
                await asyncio.sleep(PAUSE_SECONDS)
            patience *= 2
    finally:
        for answer in waiting:
            answer.cancel()
            answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # or asyncio would say that nobody read it
