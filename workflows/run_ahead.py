"""The worker's runner of workflows: a query is answered only from recorded workflow tasks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic  # noqa: TID251 - the guard belongs to the worker, not to the workflow
from typing import TYPE_CHECKING

from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import VersioningBehavior
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from gradeloop.contract.queries import READ_AGAIN
from workflows import load_late_modules

if TYPE_CHECKING:
    from temporalio.worker._command_aware_visitor import CommandInfo

REFUSAL = Failure(
    message=f"[{READ_AGAIN}] the worker has applied events that no workflow task has recorded yet; send the query again",
    application_failure_info=ApplicationFailureInfo(type=READ_AGAIN),
)
"""The failure of a query, and of a workflow task that meets a copy which has run ahead; its next attempt replays the history."""

FROM_EVENTS = {"signal_workflow", "fire_timer", "cancel_workflow"}
"""Jobs that only new events of the history bring: within one workflow task they come in its first activation."""

WRITES = {"schedule_activity", "start_timer", "start_child_workflow_execution", "upsert_workflow_search_attributes"}
TAKES_BACK = {"request_cancel_activity", "cancel_timer", "cancel_child_workflow_execution"}
"""Commands that write an event into the history each, and those that can make one write none in the same workflow task."""

AROUND = 3
"""Events between the start of one workflow task and of the next, besides what the commands wrote: its end, and the next one's two."""

REST_SECONDS = 1.0
"""Seconds that a copy that has run ahead is kept while only queries come: a task that comes while the worker drops its copy can be lost."""


class Activations:
    """Begin of each workflow's present step; one whose thread hangs never leaves it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began: dict[object, float] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Note that a workflow is at a step while the block runs; its removal from the cache is another, which the SDK tries meanwhile."""
        step = object()
        self._began[step] = self._clock()
        try:
            yield
        finally:
            del self._began[step]

    @property
    def longest(self) -> float:
        """Seconds for which the oldest step that has not ended has lasted; 0 where none runs."""
        began = list(self._began.values())
        return self._clock() - min(began) if began else 0.0


class RecordedTasksRunner(UnsandboxedWorkflowRunner):
    """Runs workflows outside of Temporal's sandbox, and refuses what goes beyond the recorded workflow tasks.

    Whatever workflows import late is imported when it is made.

    `versioned`: whether the worker has a version. Only then workflows with `UPGRADED` may say that every build goes on with them: a server
    refuses all that a worker without a version says of versions.
    """

    def __init__(self, *, versioned: bool = False, activations: Activations | None = None) -> None:
        super().__init__()
        load_late_modules()
        self._versioned = versioned
        self._activations = activations or Activations()

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a guarded instance of the workflow."""
        if self._versioned and getattr(det.defn.cls, "UPGRADED", False):
            det = replace(det, defn=replace(det.defn, versioning_behavior=VersioningBehavior.AUTO_UPGRADE))
        return ReplayGuard(super().create_instance(det), activations=self._activations)


class ReplayGuard(WorkflowInstance):
    """Notices that a workflow has run ahead of its workflow tasks: queries are refused until the worker has replayed the history.

    Temporal's worker applies all events of the history before it answers a query that was sent outside of a workflow task. Those that came
    after the last task keep that task's time, which a replay does not repeat. So do those of a task that the worker has seen in such a
    history, and that the server had to give up. Neither activation can be failed: the worker would hang.

    `clock`: says seconds, for `REST_SECONDS`.
    """

    def __init__(self, instance: WorkflowInstance, clock: Callable[[], float] = monotonic, activations: Activations | None = None) -> None:
        self._instance = instance
        self._clock = clock
        self._activations = activations or Activations()
        self._time = 0
        self._length = 0
        self._written = 0
        """Events that the commands of the last task write at the least, once it is recorded; 0 in a replay."""
        self._ahead = False
        self._drop_at: float | None = None

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Return what the workflow does in an activation, or a refusal where it has run ahead."""
        with self._activations.step():
            return self._activate(act)

    # All activations of one workflow task have one time, which a replay repeats. A copy has run ahead when it applied events at the time
    # of a task that does not have them in the history. Two signs show it:
    # - An activation at the same time has a longer history, or jobs that only new events bring: the worker applied them for a query.
    # - A task at a later time has a history without the events that the last task wrote (`_written`): that task was lost.
    # From then on every query is refused, and the next task fails, so that the worker drops the copy and replays. Without the guard, the
    # copy would write commands at other times than a replay sees, and its history could never be replayed again.
    def _activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        jobs = {job.WhichOneof("variant") for job in act.jobs}
        time = act.timestamp.ToNanoseconds()
        if jobs == {"remove_from_cache"}:
            return self._instance.activate(act)
        if time != self._time and self._written and act.history_length < self._length + AROUND + self._written:
            self._ahead = True  # what the last task did is not in the history: it was lost, and this is its next attempt
        if self._ahead and time != self._time and not (jobs == {"query_workflow"} and self._is_kept()):  # with or without jobs for it
            return _fail(act)
        if jobs == {"query_workflow"}:
            return _refuse(act) if self._ahead else self._instance.activate(act)
        if time == self._time and not act.is_replaying and (act.history_length != self._length or jobs & FROM_EVENTS):
            self._ahead = True
        done = self._instance.activate(act)
        written = 0 if act.is_replaying else _events(done)
        self._written = written if time != self._time else max(0, self._written + written)
        self._time, self._length = time, act.history_length
        return done

    def _is_kept(self) -> bool:
        """Tell whether the copy stays although a task has been recorded: for a moment, in which the next one may come."""
        if self._drop_at is None:
            self._drop_at = self._clock() + REST_SECONDS
        return self._clock() < self._drop_at

    def get_serialization_context(self, command_info: "CommandInfo | None") -> SerializationContext | None:
        """See `WorkflowInstance.get_serialization_context`."""
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: "CommandInfo | None") -> StorageDriverStoreContext:
        """See `WorkflowInstance.get_external_store_context`."""
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        """See `WorkflowInstance.get_info`."""
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        """See `WorkflowInstance.get_thread_id`."""
        return self._instance.get_thread_id()


def _events(completion: WorkflowActivationCompletion) -> int:
    """Return how many events the commands of an activation write at the least; below 0 where it takes earlier ones back."""
    # A lower bound, since it is compared with a history that may have more: with too low a number a lost task
    # may go unnoticed this once, with too high a number sound copies would be dropped. A command that takes
    # one back may cancel it within the same task, and then neither writes an event.
    kinds = [command.WhichOneof("variant") for command in completion.successful.commands]
    return sum((kind in WRITES) - (kind in TAKES_BACK) for kind in kinds)


def _refuse(act: WorkflowActivation) -> WorkflowActivationCompletion:
    """Return an activation's completion in which every query failed: a workflow task that waits behind them is served next."""
    completion = WorkflowActivationCompletion(run_id=act.run_id)
    completion.successful.SetInParent()
    for job in act.jobs:
        answer = completion.successful.commands.add().respond_to_query
        answer.query_id = job.query_workflow.query_id
        answer.failed.CopyFrom(REFUSAL)
    return completion


def _fail(act: WorkflowActivation) -> WorkflowActivationCompletion:
    """Return a failed completion, for which the worker drops its copy of the workflow and replays the history."""
    completion = WorkflowActivationCompletion(run_id=act.run_id)
    completion.failed.failure.CopyFrom(REFUSAL)
    return completion
