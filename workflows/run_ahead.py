"""The worker's runner of workflows: a query is answered from recorded workflow tasks alone."""

from collections.abc import Set as AbstractSet
from dataclasses import replace

from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.common import VersioningBehavior
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._command_aware_visitor import CommandInfo
from temporalio.workflow import Info

from gradeloop.contract.queries import READ_AGAIN

REFUSAL = Failure(
    message=f"[{READ_AGAIN}] the worker has applied events that no workflow task has recorded yet; send the query again",
    application_failure_info=ApplicationFailureInfo(type=READ_AGAIN),
)
"""What a query fails with, and a workflow task that meets a copy which has run ahead; its next attempt replays the history."""

FROM_EVENTS = {"signal_workflow", "fire_timer", "cancel_workflow"}
"""Jobs that only new events of the history bring: within one workflow task they come in its first activation."""


class RecordedTasksRunner(UnsandboxedWorkflowRunner):
    """Runs workflows outside of Temporal's sandbox, and refuses what goes beyond the recorded workflow tasks.

    Args:
        upgraded: Names of the workflows that every build goes on with. The definitions cannot say so themselves: a server refuses all
            that a worker without a version says of versions.
    """

    def __init__(self, upgraded: AbstractSet[str] = frozenset()) -> None:
        super().__init__()
        self._upgraded = upgraded

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a guarded instance of the workflow."""
        if det.defn.name in self._upgraded:
            det = replace(det, defn=replace(det.defn, versioning_behavior=VersioningBehavior.AUTO_UPGRADE))
        return RunAheadGuard(super().create_instance(det))


class RunAheadGuard(WorkflowInstance):
    """Notices that a workflow has run ahead of its workflow tasks: queries are refused until the worker has replayed the history.

    Temporal's worker applies all events of the history before it answers a query that was sent outside of a workflow task. Those that came
    after the last task keep that task's time, which a replay does not repeat. That activation cannot be failed: the worker would hang.
    """

    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._time = 0
        self._length = 0
        self._ahead = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Return what the workflow does in an activation, or a refusal where it has run ahead."""
        jobs = {job.WhichOneof("variant") for job in act.jobs}
        time = act.timestamp.ToNanoseconds()
        if jobs == {"remove_from_cache"}:
            return self._instance.activate(act)
        if self._ahead and time != self._time:  # a task has come, with or without jobs for the workflow
            return _fail(act)
        if jobs == {"query_workflow"}:
            return _refuse(act) if self._ahead else self._instance.activate(act)
        if time == self._time and not act.is_replaying and (act.history_length != self._length or jobs & FROM_EVENTS):
            self._ahead = True
        self._time, self._length = time, act.history_length
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: CommandInfo | None) -> SerializationContext | None:
        """See `WorkflowInstance.get_serialization_context`."""
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: CommandInfo | None) -> StorageDriverStoreContext:
        """See `WorkflowInstance.get_external_store_context`."""
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        """See `WorkflowInstance.get_info`."""
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        """See `WorkflowInstance.get_thread_id`."""
        return self._instance.get_thread_id()


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
