"""The engine's floor for a judgement: a workflow of one activity that sleeps as long as the provider does.

Started with the server's address; it serves until it is ended.
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE, WORKFLOW = "bare-judging", "BareJudging"
SECONDS = 0.2


@activity.defn(name="sleep")
async def sleep(run: str) -> str:
    """Sleep as long as the provider takes, and return the run."""
    await asyncio.sleep(SECONDS)
    return run


@workflow.defn(name=WORKFLOW)
class BareJudging:
    """One activity."""

    @workflow.run
    async def run(self, run: str) -> str:
        """Return what the activity returns."""
        return await workflow.execute_activity(
            sleep, run, start_to_close_timeout=timedelta(minutes=1), heartbeat_timeout=timedelta(seconds=10)
        )


async def main() -> None:
    client = await Client.connect(sys.argv[1], data_converter=pydantic_data_converter)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[BareJudging],
        activities=[sleep],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=200,
        max_cached_workflows=2000,
    )
    async with worker:
        print("serving", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
