"""The floor: a workflow of six activities that do nothing, one after the other."""

from datetime import timedelta

from temporalio import activity, workflow

ACTIVITIES = 6


@activity.defn
async def nothing() -> None:
    """Do nothing."""


@workflow.defn
class Bare:
    """Six hops through the server and back."""

    @workflow.run
    async def run(self) -> None:
        """Call the activity six times."""
        for _ in range(ACTIVITIES):
            await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(minutes=1))
