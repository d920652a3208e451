"""Cases on their way to a worker that may not be there."""

import asyncio
from collections.abc import Callable, Iterable

from gradeloop.batches.case import Case
from gradeloop.batches.client import BatchClient
from gradeloop.connection import Connection
from gradeloop.worker_process import looked_after

UNHEARD_SECONDS = 10.0
"""For a worker to take the first cases before it is said that none does; one that is there takes them in a fraction of that."""


async def sent(batches: BatchClient, batch_id: str, cases: Iterable[Case], connection: Connection, tell: Callable[[str], None]) -> None:
    """Send a batch's cases to its worker; where none takes them, tell so in words, and start one again that is ours.

    Raises:
        InvalidRequest: The worker refuses one.
        ServerUnreachable: The server is gone for long.
        WorkerFailed: A worker of ours does not start.
    """
    taken = asyncio.Event()
    sending = asyncio.create_task(batches.upload(batch_id, cases, lambda _: taken.set()))
    beside = [
        asyncio.create_task(looked_after(batches.task_queue, connection)),
        asyncio.create_task(_unheard(taken, batches.task_queue, tell)),
    ]
    try:
        await asyncio.wait([sending, beside[0]], return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            beside[0].result()
        await sending
    finally:
        for each in (sending, *beside):
            each.cancel()
        await asyncio.gather(sending, *beside, return_exceptions=True)


async def _unheard(taken: asyncio.Event, task_queue: str, tell: Callable[[str], None]) -> None:
    try:
        await asyncio.wait_for(taken.wait(), UNHEARD_SECONDS)
    except TimeoutError:
        tell(f"no worker has taken the cases so far; start one: gradeloop worker --task-queue {task_queue}")
