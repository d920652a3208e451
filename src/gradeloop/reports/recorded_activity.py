"""An activity as a workflow's history has it: what it was given, what came of it, and when."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from temporalio import exceptions
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from gradeloop.reports.workflow_histories import RunHistory

Ending = Literal["completed", "failed", "timed_out", "canceled"]

LOST = "the result is unknown: the workflow closed before the call ended"

CANCELLED = "cancelled before it ended"


@dataclass
class RecordedActivity:
    """An activity that was scheduled; what comes after is filled in as the history goes on."""

    scheduled: HistoryEvent
    closed: bool
    """Whether the run of the workflow is, so that nothing more will be heard."""
    started: HistoryEvent | None = None
    ended: HistoryEvent | None = None
    ending: Ending | None = None

    @property
    def type(self) -> str:
        """The activity's type."""
        return self.scheduled.activity_task_scheduled_event_attributes.activity_type.name

    @property
    def summary(self) -> Sequence[Payload]:
        """The summary's payload, if it has one."""
        return [self.scheduled.user_metadata.summary] if self.scheduled.user_metadata.HasField("summary") else []

    @property
    def input(self) -> Sequence[Payload]:
        """The arguments' payloads."""
        return self.scheduled.activity_task_scheduled_event_attributes.input.payloads

    @property
    def output(self) -> Sequence[Payload]:
        """The result's payloads; none where it did not complete."""
        return self.ended.activity_task_completed_event_attributes.result.payloads if self.ended and self.ending == "completed" else []

    @property
    def attempts(self) -> int:
        """How often it was tried; the history tells so once it has ended."""
        return max(self.started.activity_task_started_event_attributes.attempt, 1) if self.started else 1

    @property
    def seconds(self) -> float | None:
        """How long it took; where it was tried again, from when it was scheduled, since the first start is not kept."""
        if self.ended is None or self.started is None:
            return None
        begun = self.scheduled if self.attempts > 1 else self.started
        return max(round((self.ended.event_time.ToNanoseconds() - begun.event_time.ToNanoseconds()) / 1e9, 3), 0.0)

    async def trouble(self, temporal: Client) -> str | None:
        """Return why it has no result, in words; None where it has one, or may still."""
        if self.ended is None:
            return LOST if self.closed else None
        if self.ending == "failed":
            failed = self.ended.activity_task_failed_event_attributes.failure
            return _told(await temporal.data_converter.decode_failure(failed))
        if self.ending == "timed_out":
            late = self.ended.activity_task_timed_out_event_attributes.failure
            return _told(await temporal.data_converter.decode_failure(late))
        return CANCELLED if self.ending == "canceled" else None


def recorded_activities(run: RunHistory) -> list[RecordedActivity]:
    """Return the activities of a run, in the order in which they were scheduled."""
    found: dict[int, RecordedActivity] = {}
    for event in run.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            found[event.event_id] = RecordedActivity(event, run.closed)
        elif event.HasField("activity_task_started_event_attributes"):
            found[event.activity_task_started_event_attributes.scheduled_event_id].started = event
        elif (ending := _ending(event)) is not None:
            activity = found[ending[1]]
            activity.ended, activity.ending = event, ending[0]
    return list(found.values())


def _ending(event: HistoryEvent) -> tuple[Ending, int] | None:
    """Return how an activity ended, and which; None where the event tells of something else."""
    if event.HasField("activity_task_completed_event_attributes"):
        return "completed", event.activity_task_completed_event_attributes.scheduled_event_id
    if event.HasField("activity_task_failed_event_attributes"):
        return "failed", event.activity_task_failed_event_attributes.scheduled_event_id
    if event.HasField("activity_task_timed_out_event_attributes"):
        return "timed_out", event.activity_task_timed_out_event_attributes.scheduled_event_id
    if event.HasField("activity_task_canceled_event_attributes"):
        return "canceled", event.activity_task_canceled_event_attributes.scheduled_event_id
    return None


def _told(error: BaseException) -> str:
    """Return what went wrong in the words in which the thread was told."""
    if isinstance(error, exceptions.ApplicationError):
        return f"{error.type}: {error.message}" if error.type else error.message
    if isinstance(error, exceptions.TimeoutError) and error.type == exceptions.TimeoutType.SCHEDULE_TO_START:
        return "no_worker: no worker took the call in time; start a worker on that task queue"
    if isinstance(error, exceptions.TimeoutError):
        return f"timeout: no result in time ({error.message})"
    return f"{type(error).__name__}: {error}"
