"""The threads of a batch's cases, with somebody who answers for them."""

from gradeloop.batches.client import BatchClient
from gradeloop.client import GradingClient
from gradeloop.connection import connect, find
from gradeloop.worker_process import OURS, ensure_worker_of


async def threads_of(batch_id: str) -> GradingClient:
    """Connect to where a batch's threads are, and start the worker that served them where it was one of ours and has ended.

    Raises:
        ServerUnreachable: Nobody answers.
        WorkerFailed: The worker does not start.
    """
    connection = await find()
    client = await connect(connection)
    there = await BatchClient(client, "").queue_of(batch_id)
    if there is not None and OURS.fullmatch(there[0]):
        await ensure_worker_of(there[0], connection)
    return GradingClient(client)
