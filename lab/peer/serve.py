"""`python -m lab.peer.serve QUEUE ADDRESS`, in the peer's venv: serves the peer's workflow until it is told to stop."""

import asyncio
import logging
import signal
import sys
from datetime import timedelta

from temporalio.client import Client
from temporalio.deepagents import DeepAgentsPlugin  # type: ignore[import-not-found,unused-ignore]  # of the peer's venv
from temporalio.worker import Worker

from lab.peer.agent import GradedAgent
from lab.peer.models import model_of
from lab.replies import READY


async def serve(queue: str, address: str) -> None:
    """Serve with the limits of our own worker."""
    options = {"start_to_close_timeout": timedelta(minutes=10), "heartbeat_timeout": timedelta(seconds=10)}
    client = await Client.connect(address, plugins=[DeepAgentsPlugin(model_provider=model_of, model_activity_options=options)])
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Worker(
        client,
        task_queue=queue,
        workflows=[GradedAgent],
        max_concurrent_activities=200,
        max_cached_workflows=2000,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_heartbeat_throttle_interval=timedelta(seconds=2),
    ):
        print(READY, flush=True)
        await stopped.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
