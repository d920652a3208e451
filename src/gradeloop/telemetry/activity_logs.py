"""The ids of the activity that runs, in every record that it logs."""

from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gradeloop.telemetry.logs import Ids, set_ids, workflow_ids


def call_ids(info: activity.Info, argument: object) -> Ids:
    """Return the ids of an activity, by what Temporal knows of it and by its argument."""
    ids: dict[str, str | int] = {}
    if info.workflow_id and info.workflow_run_id:
        ids |= workflow_ids(info.workflow_type or "", info.workflow_id, info.workflow_run_id)
    step, places = getattr(argument, "step", None), {"batch": "batch_id", "case": "position"}
    known = {name: getattr(argument, field, None) for name, field in places.items()}
    known |= {name: getattr(step, name, None) for name in ("run", "iteration")}
    ids |= {name: value for name, value in known.items() if isinstance(value, str | int)}
    return {**ids, "call": info.activity_id, "activity": info.activity_type, "attempt": info.attempt}


@dataclass(frozen=True)
class LogsIds(Interceptor):
    """Gives the records of every activity its ids."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Return the next interceptor with ids around it."""
        return _ActivityWithIds(next)


class _ActivityWithIds(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        """Run an activity, in a task of its own, whose ids stay: the SDK logs afterwards how it ended."""
        set_ids(call_ids(activity.info(), input.args[0] if input.args else None))
        return await super().execute_activity(input)
