"""The schedules of monitors: made, paused, resumed, triggered and removed on the Temporal server."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowFailureError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contract.base import Strict
from gradeloop.contract.thread import Priority
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.monitors.contract import BackfillCall, BackfillReport, MonitorBackfill, Monitoring, MonitorTick
from gradeloop.temporal.connect import is_polled

CATCH_UP = timedelta(hours=1)
"""The time within which the server makes up for a tick that it missed: a tick reads all that is new, so that one is enough."""

NO_WORKER = "no worker is there for its ticks: run `gradeloop dev`, and create the monitor again; `monitor run-now` starts one for a tick"
"""Note on a monitor whose schedule nobody serves."""

T = TypeVar("T")


class MonitorSchedule(Strict):
    """A monitor's schedule as the server has it."""

    paused: bool
    note: str | None = None
    next_tick: str | None = None
    running: tuple[str, ...] = ()
    """The workflows of ticks that run now."""
    is_served: bool = True
    """Whether a worker is there for its ticks."""


class MonitorSchedules:
    """The schedules of monitors on one server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, name: str, every: int, task_queue: str, *, priority: Priority | None = None) -> None:
        """Make a monitor's schedule: a tick at each interval, never two at once; an existing one only takes the queue."""
        schedule = Schedule(
            action=ScheduleActionStartWorkflow(
                Monitoring.run,
                MonitorTick(monitor=name, priority=priority),
                id=_id(name),
                task_queue=task_queue,
                static_summary=f"monitor {name}",
            ),
            spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=every))]),
            policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=max(CATCH_UP, timedelta(seconds=every))),
        )
        try:
            await _reached(lambda: self._client.create_schedule(_id(name), schedule))
        except ScheduleAlreadyRunningError:
            await _reached(lambda: self._handle(name).update(lambda found: _moved(found, task_queue)))

    async def find(self, name: str) -> MonitorSchedule | None:
        """Return a monitor's schedule, and whether a worker is there for its ticks; None where the server has none."""
        try:
            found = await _reached(self._handle(name).describe)
        except InvalidRequest:
            return None
        state, info, action = found.schedule.state, found.info, found.schedule.action
        queue = action.task_queue if isinstance(action, ScheduleActionStartWorkflow) else ""
        return MonitorSchedule(
            paused=state.paused,
            note=state.note,
            next_tick=info.next_action_times[0].isoformat(timespec="seconds") if info.next_action_times else None,
            running=tuple(one.workflow_id for one in info.running_actions),  # type: ignore[attr-defined]  # only of workflows
            is_served=await is_polled(self._client, queue),
        )

    async def unserved(self, names: Sequence[str]) -> frozenset[str]:
        """Return those of some monitors for whose ticks no worker is there; raise ServerUnreachable where the server does not answer."""
        found = await asyncio.gather(*(self.find(name) for name in names))
        return frozenset(name for name, schedule in zip(names, found, strict=True) if schedule is not None and not schedule.is_served)

    async def queue_of(self, name: str) -> str:
        """Return the task queue of a monitor's ticks; raise InvalidRequest where the server has no schedule of it."""
        action = (await _reached(self._handle(name).describe)).schedule.action
        return action.task_queue if isinstance(action, ScheduleActionStartWorkflow) else ""

    async def backfill(self, call: BackfillCall, task_queue: str) -> BackfillReport:
        """Read a monitor's source since a time on its worker, and return what was found.

        Raises:
            InvalidRequest: The source cannot be read so, or a backfill of the monitor reads it just now.
        """
        name = f"{_id(call.monitor)}/backfill"
        try:
            return await self._client.execute_workflow(MonitorBackfill.run, call, id=name, task_queue=task_queue)
        except WorkflowAlreadyStartedError:
            raise InvalidRequest(f"a backfill of the monitor {call.monitor!r} reads its source just now; try again once it has") from None
        except WorkflowFailureError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise InvalidRequest(str(cause).removeprefix("InvalidRequest: ")) from None

    async def pause(self, name: str) -> None:
        """Begin no further tick; one that runs goes on."""
        await _reached(lambda: self._handle(name).pause(note="paused by a person"))

    async def resume(self, name: str) -> None:
        """Begin ticks again; the next one reads all that came meanwhile."""
        await _reached(lambda: self._handle(name).unpause(note="resumed by a person"))

    async def run_now(self, name: str) -> None:
        """Begin a tick now, or, where one runs, as soon as it has ended."""
        await _reached(lambda: self._handle(name).trigger(overlap=ScheduleOverlapPolicy.BUFFER_ONE))

    async def delete(self, name: str) -> None:
        """Remove the schedule; one that is not there is gone already."""
        try:
            await _reached(self._handle(name).delete)
        except InvalidRequest:
            return

    def _handle(self, name: str) -> ScheduleHandle:
        return self._client.get_schedule_handle(_id(name))


def _moved(found: ScheduleUpdateInput, task_queue: str) -> ScheduleUpdate | None:
    """Return the change that has a schedule's ticks on a queue; None where they are."""
    schedule = found.description.schedule
    if not isinstance(schedule.action, ScheduleActionStartWorkflow) or schedule.action.task_queue == task_queue:
        return None
    schedule.action.task_queue = task_queue
    return ScheduleUpdate(schedule=schedule)


def _id(name: str) -> str:
    return f"monitor/{name}"


async def _reached(call: Callable[[], Awaitable[T]]) -> T:
    """Do a call to the server.

    Raises:
        InvalidRequest: The server has no such schedule.
        ServerUnreachable: The server does not answer.
    """
    try:
        return await call()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise InvalidRequest("the server has no schedule of this monitor; create the monitor again, or name its server") from None
        raise ServerUnreachable(f"the schedules of monitors cannot be reached: {error.message}") from None
