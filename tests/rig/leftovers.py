"""Ends what tests leave open on a server."""

from contextlib import suppress

from temporalio.client import Client
from temporalio.service import RPCError


async def end_all(client: Client) -> None:
    """End every schedule and workflow: whoever lists what waits asks each thread, and one without a worker lets them wait."""
    async for schedule in await client.list_schedules():
        with suppress(RPCError):
            await client.get_schedule_handle(schedule.id).delete()
    async for left in client.list_workflows("ExecutionStatus = 'Running'"):
        with suppress(RPCError):
            await client.get_workflow_handle(left.id, run_id=left.run_id).terminate("its test has ended")
