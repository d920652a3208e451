"""`python -m lab.handwritten.worker ADDRESS` serves the three programs until it is told to stop."""

import asyncio
import logging
import signal
import sys
from datetime import timedelta

from openai import AsyncOpenAI
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from lab.handwritten.batch import BatchActivities, GradedBatch
from lab.handwritten.judgement import JudgeActivities, JudgedRun, JudgedRuns
from lab.handwritten.loop import GradedDraft, LoopActivities
from lab.handwritten.model_call import HEARTBEAT_SECONDS, Model

QUEUE = "handwritten"
READY = "ready"


async def connect(address: str) -> Client:
    """Return a client that sends pydantic's models."""
    return await Client.connect(address, data_converter=pydantic_data_converter)


def build(client: Client, openai: AsyncOpenAI) -> Worker:
    """Return a worker of the three programs."""
    model = Model(openai)
    loop, batch, judge = LoopActivities(model), BatchActivities(model), JudgeActivities(model)
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[GradedDraft, GradedBatch, JudgedRun, JudgedRuns],
        activities=[loop.write_draft, loop.grade_draft, batch.list_cases, batch.grade_case, batch.write_page, judge.judge_run],
        # The sandbox imports the workflows' modules anew for every run; these do nothing that it would catch.
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=200,
        max_cached_workflows=2000,
        # Most heartbeats would be held back for 8 seconds otherwise, and cancellations with them.
        max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_SECONDS),
    )


async def serve(address: str) -> None:
    """Serve until SIGTERM; key and address of the provider come from `OPENAI_API_KEY` and `OPENAI_BASE_URL`."""
    client, stopped = await connect(address), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with AsyncOpenAI(max_retries=0, timeout=120) as openai, build(client, openai):
        print(READY, flush=True)
        await stopped.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(serve(sys.argv[1]))
