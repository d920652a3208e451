"""A thread's workflow without a server: it is given what a worker is given, one workflow task after the other, as a test orders it.

The workflow is the SDK's own instance of the product's class, as the worker's runner makes it. What server and SDK do besides is done here:
calls end, a cancel of a call that has not left the workflow ends it within the task, and a continue-as-new starts the next run.
"""

import asyncio
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    FireTimer,
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    ResolveActivity,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_commands import ActivityCancellationType, ScheduleActivity, WorkflowCommand
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from activities.errors import FailureDetails
from activities.tool_call import CHECKER_ERROR
from tests.races.calls import LOST, UNANSWERED, Called, RaceWorker
from tests.races.events import Answer, Cancel, Close, Decide, Elapsed, End, Event, How, Interrupt, Invoke, Override, Resume, Supply, Update
from tests.races.story import Given, Rubric, Story, request, rubric
from workflows.grading_thread import GradingThreadWorkflow
from workflows.run_ahead import RecordedTasksRunner

THREAD_ID, NAMESPACE, TASK_QUEUE = "raced", "default", "races"
CLOSING = {
    "complete_workflow_execution": "completed",
    "cancel_workflow_execution": "cancelled",
    "fail_workflow_execution": "failed",
}
"""The commands that close a workflow, and what it is then."""

EVENTS_A_TASK = 100
"""By how many events the history grows with a task, more than its commands write: a guard of the workflow looks whether it does."""

CONVERTER = pydantic_data_converter.payload_converter
FAILURES = DefaultFailureConverter()
DEFINITION = workflow._Definition.must_from_class(GradingThreadWorkflow)


@dataclass
class Flying:
    """A call in flight."""

    seq: int
    command: ScheduleActivity
    called: Called
    asked: bool = False
    """Whether the workflow asked it to stop."""

    @property
    def waits_for_its_end(self) -> bool:
        """Whether the workflow waits until a call that it asked to stop has ended."""
        return self.command.cancellation_type == ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


@dataclass
class Sent:
    """An update on its way, and its answer in the end."""

    update: Update
    id: str
    answer: dict[str, Any] | str | None = None


class TaskFailed(Exception):
    """A workflow task failed: on a server it would be tried again for ever."""


class Schedule:
    """One thread, from its start on."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.flight: dict[str, Flying] = {}
        self.pauses: dict[str, int] = {}
        """The timers of the calls that are made again after a pause."""
        self.made: list[str] = []
        """Every call that left the workflow, in order."""
        self.sent: dict[str, Sent] = {}
        self.closed: str | None = None
        """How the last run of the workflow ended."""
        self.cancelled = False
        """Whether it was asked to end."""
        self.runs = 0
        """How many runs of the workflow were started."""
        self.asked_own_worker = 0
        """The last of them that asked its worker within a task what it can do."""
        self.worker = RaceWorker(story, self.query)
        self._long = False
        self._tasks = 0
        self._updates = 0
        self._again: list[Update] = []
        self._unanswered: list[str] = []
        self._first: list[WorkflowActivationJob] = []
        self._seen: dict[str, Any] = {"evaluations": [], "waiting": []}
        self._begin(request(story))

    # -- What happens

    def task(self, *events: Event, long: bool = False) -> list[str]:
        """Deliver the events in one workflow task, and return the calls that it made.

        Args:
            events: The events, in the order of the history.
            long: Whether the server suggests a new run of the workflow.
        """
        before = len(self.made)
        self._long = self._long or long
        again, self._again = self._again, []
        jobs = [*self._first, *(self._update(update) for update in again), *(self._job(event) for event in events)]
        self._first = []
        self._activate(jobs)
        return sorted(self.made[before:])

    @property
    def owes_a_task(self) -> bool:
        """Whether a run of the workflow has still to begin, or a client's update to be sent again."""
        return bool(self._first or self._again)

    def start_again(self, text: str = "", name: Rubric | None = None) -> None:
        """Start the thread again from its checkpoint, as a client does once its workflow has ended, in whatever way.

        Args:
            text: The message that the start brings; by default it brings none.
            name: The rubric that it brings.
        """
        self._look()
        self._lose_updates()
        checkpoint = self.query("checkpoint")
        thread = checkpoint["thread"]
        kept = {name: thread[name] for name in ("generator", "grader", "max_iterations", "idle_timeout")}
        self._begin(kept | {"checkpoint": checkpoint} | self._sent(text, name))

    def _sent(self, text: str, given: Given | None, named: Rubric | None = None) -> dict[str, object]:
        """Return messages, rubric and variables as a service writes them."""
        messages = [{"role": "user", "content": text}] if text else []
        sent: dict[str, object] = {"messages": messages}
        return sent | ({"rubric": rubric(given, self.story)} if given else {}) | ({"vars": {"name": named}} if named else {})

    def end_at_once(self) -> list[str]:
        """Return the calls that end without a server: they were asked to stop, and the workflow does not wait for them."""
        return [name for name, call in self.flight.items() if call.asked and not call.waits_for_its_end]

    def query(self, name: str, *arguments: object) -> Any:
        """Ask the workflow."""
        job = QueryWorkflow(query_id="q", query_type=name, arguments=CONVERTER.to_payloads(arguments))
        completion = self._instance.activate(self._activation([WorkflowActivationJob(query_workflow=job)]))
        (command,) = completion.successful.commands
        if command.respond_to_query.HasField("failed"):
            raise TaskFailed(f"the query {name} failed: {command.respond_to_query.failed.message}")
        return CONVERTER.from_payload(command.respond_to_query.succeeded.response)

    def evict(self) -> None:
        """Have the SDK forget the workflow."""
        self._instance.activate(self._activation([WorkflowActivationJob(remove_from_cache=RemoveFromCache())]))

    # -- Runs of the workflow

    def _begin(self, argument: object) -> None:
        """Begin a run of the workflow; its first task comes with the first events."""
        self.runs += 1
        self.closed, self.flight, self._long, self.cancelled = None, {}, False, False
        self.pauses, self._unanswered = {}, []
        start = InitializeWorkflow(
            workflow_type="GradingThread", workflow_id=THREAD_ID, randomness_seed=self.runs, arguments=CONVERTER.to_payloads([argument])
        )
        self._first = [WorkflowActivationJob(initialize_workflow=start)]
        self._instance = asyncio.run(_create_instance(f"run-{self.runs}", self.runs))

    def _activation(self, jobs: Sequence[WorkflowActivationJob]) -> WorkflowActivation:
        activation = WorkflowActivation(
            run_id=f"run-{self.runs}",
            jobs=jobs,
            history_length=EVENTS_A_TASK * self._tasks,
            continue_as_new_suggested=self._long,
        )
        activation.timestamp.FromDatetime(datetime.fromtimestamp(1_800_000_000 + self._tasks, UTC))
        return activation

    def _activate(self, jobs: Sequence[WorkflowActivationJob]) -> None:
        """Run a workflow task."""
        self._tasks += 1
        self._activate_once(jobs)

    def _activate_once(self, jobs: Sequence[WorkflowActivationJob]) -> None:
        """Give the workflow a part of its task, and the next one where calls ended that the SDK's core makes or ends by itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of handlers that a closed workflow leaves unfinished: their updates are seen to be lost
            completion = self._instance.activate(self._activation(jobs))
        if completion.HasField("failed"):
            raise TaskFailed(completion.failed.failure.message)
        born: dict[int, Flying] = {}
        dead: list[WorkflowActivationJob] = []
        for command in completion.successful.commands:
            self._obey(command, born, dead)
        for call in born.values():
            self.flight[call.called.name] = call
            self.made.append(call.called.name)
        if self.closed:
            self._lose_updates()
        if dead and not self.closed:
            self._activate_once(dead)

    def _obey(self, command: WorkflowCommand, born: dict[int, Flying], dead: list[WorkflowActivationJob]) -> None:
        """Do what one command says; a call that is cancelled in the task that made it never leaves the workflow."""
        match command.WhichOneof("variant"):
            case "schedule_activity":
                call = command.schedule_activity
                born[call.seq] = Flying(call.seq, call, self.worker.read(call.activity_type, call.arguments[0]))
            case "schedule_local_activity":
                own = command.schedule_local_activity
                self.asked_own_worker = self.runs
                dead.append(_resolution(own.seq, _completed(self.worker.read(own.activity_type, own.arguments[0]).result), own=True))
            case "request_cancel_activity":
                seq = command.request_cancel_activity.seq
                if stillborn := born.pop(seq, None):
                    dead.append(_resolution(seq, _cancelled(stillborn)))
                for flying in self.flight.values():
                    flying.asked = flying.asked or flying.seq == seq
            case "start_timer" | "cancel_timer":
                self._note_pause(command)
            case "update_response":
                self._hear(command.update_response)
            case "continue_as_new_workflow_execution":
                argument = CONVERTER.from_payload(command.continue_as_new_workflow_execution.arguments[0])
                self._lose_updates()
                self._look()
                self.evict()
                self._begin(argument)
            case str(variant) if variant in CLOSING:
                self.closed = CLOSING[variant]

    def _note_pause(self, command: WorkflowCommand) -> None:
        """Note the timer of a pause, which begins in the order of the calls that had no answer."""
        begun = command.start_timer
        if begun.start_to_fire_timeout.ToSeconds() == UNANSWERED.pause:
            self.pauses[self._unanswered.pop(0)] = begun.seq
        self.pauses = {call: seq for call, seq in self.pauses.items() if seq != command.cancel_timer.seq}

    # -- Updates

    def _hear(self, response: Any) -> None:
        """Take the answer to an update; one that the thread's next run has to be asked for is sent again."""
        sent = next(sent for sent in self.sent.values() if sent.id == response.protocol_instance_id)
        match response.WhichOneof("response"):
            case "completed":
                answer = CONVERTER.from_payload(response.completed)
                sent.answer = "done" if answer is None else answer
            case "rejected":
                sent.answer = response.rejected.application_failure_info.type or response.rejected.message
        if sent.answer == "ThreadRolling":
            sent.answer = None
            self._again.append(sent.update)

    def _lose_updates(self) -> None:
        """Note the updates that a run of the workflow left without an answer."""
        for sent in self.sent.values():
            if sent.answer is None and sent.update not in self._again:
                sent.answer = "lost"

    # -- Events as the SDK's core writes them

    def _job(self, event: Event) -> WorkflowActivationJob:
        match event:
            case Supply():
                value = {"criteria": 5} if event.rubric is None else rubric(event.rubric, self.story)
                return _signal("supply_rubric", value)
            case Interrupt():
                return _signal("interrupt")
            case Close():
                return _signal("close")
            case Cancel():
                self.cancelled = True
                return WorkflowActivationJob(cancel_workflow=CancelWorkflow(reason="enough"))
            case Elapsed() | End():
                return self._ended(event)
            case _:
                return self._update(event)

    def _update(self, update: Update) -> WorkflowActivationJob:
        self._updates += 1
        instance = f"{update.update}/{self._updates}"
        name, argument = self._written(update)
        self.sent[update.update] = Sent(update, instance)
        job = DoUpdate(
            id=update.update if isinstance(update, Resume) else instance,
            protocol_instance_id=instance,
            name=name,
            input=CONVERTER.to_payloads([argument]),
            run_validator=True,
        )
        return WorkflowActivationJob(do_update=job)

    def _written(self, update: Update) -> tuple[str, dict[str, object]]:
        """Return an update's name and argument as a service writes it."""
        match update:
            case Invoke():
                return "invoke", self._sent(update.text, update.rubric, update.named) | {"key": update.key}
            case Resume():
                return "resume", {}
            case Decide():
                said = {"criterion": "person", "passed": update.passed, "by": "ann"} | ({} if update.passed else {"gap": "dull"})
                return "decide", said | {"grading_run_id": self.worker.id_of(update.run), "iteration": update.iteration}
            case Override():
                self._look()
                judged = [*self._seen["evaluations"], {"grading_run_id": "none", "iteration": 0}]
                place = {name: judged[min(update.evaluation, len(judged) - 1)][name] for name in ("grading_run_id", "iteration")}
                return "override", place | {"criterion": "c0", "passed": True, "why": "fine", "by": "ann"}
            case Answer():
                said = {"call": self._id_of_waiting(update.call), "by": "ann"}
                return ("approve", said) if update.approved else ("deny", said | {"why": f"no {update.call}"})

    def _id_of_waiting(self, name: str) -> str:
        """Return the id of a tool call that waits for a person, by its name in the model."""
        self._look()
        return next((call for call in self._seen["waiting"] if self.worker.name_of(call) == name), "none")

    def _look(self) -> None:
        """See what can be overridden or approved, unless a new run of the workflow has yet to begin."""
        if not self._first:
            self.worker.learn_runs()
            waiting = self.query("state")["waiting_for"] or {}
            calls = [call["call"] for call in waiting.get("calls", ())]
            self._seen = {"evaluations": self.query("evaluations", 0, 1000)["items"], "waiting": calls}

    def _ended(self, end: End | Elapsed) -> WorkflowActivationJob:
        if isinstance(end, Elapsed):
            return WorkflowActivationJob(fire_timer=FireTimer(seq=self.pauses.pop(end.call)))
        call, how = self.flight.pop(end.call), end.how
        if how == "arrived":
            self.worker.note_result(call.command.activity_type, call.command.arguments[0], call.called.result)
            return _resolution(call.seq, _completed(call.called.result))
        if how == "cancelled":
            return _resolution(call.seq, _cancelled(call))
        if how == "unanswered":
            self._unanswered.append(call.called.name)
            return _resolution(call.seq, _completed(UNANSWERED))
        return _resolution(call.seq, _failed(call, how))


async def _create_instance(run_id: str, seed: int) -> WorkflowInstance:
    now = datetime.fromtimestamp(1_800_000_000, UTC)
    info = Info(
        attempt=1,
        continued_run_id=None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id="run-1",
        headers={},
        namespace=NAMESPACE,
        original_execution_run_id=run_id,
        parent=None,
        root=None,
        raw_memo={},
        retry_policy=None,
        run_id=run_id,
        run_timeout=None,
        search_attributes={},
        start_time=now,
        workflow_start_time=now,
        task_queue=TASK_QUEUE,
        task_timeout=now - now,
        typed_search_attributes=_no_attributes(),
        workflow_id=THREAD_ID,
        workflow_type="GradingThread",
        priority=Priority.default,
    )
    details = WorkflowInstanceDetails(
        payload_converter_factory=lambda: CONVERTER,
        failure_converter_class=DefaultFailureConverter,
        interceptor_classes=[],
        defn=DEFINITION,
        info=info,
        randomness_seed=seed,
        extern_functions={"__temporal_assert_local_activity_valid": lambda _: None},
        disable_eager_activity_execution=False,
        worker_level_failure_exception_types=[],
        patch_activation_callback=None,
        last_completion_result=Payloads(),
        last_failure=None,
    )
    return RecordedTasksRunner().create_instance(details)


def _no_attributes() -> TypedSearchAttributes:
    return TypedSearchAttributes([])


def _signal(name: str, *arguments: object) -> WorkflowActivationJob:
    signal = SignalWorkflow(signal_name=name, input=CONVERTER.to_payloads(arguments), originating_event_id=1)
    return WorkflowActivationJob(signal_workflow=signal)


def _resolution(seq: int, result: ActivityResolution, *, own: bool = False) -> WorkflowActivationJob:
    return WorkflowActivationJob(resolve_activity=ResolveActivity(seq=seq, result=result, is_local=own))


def _completed(result: BaseModel) -> ActivityResolution:
    resolution = ActivityResolution()
    resolution.completed.result.CopyFrom(CONVERTER.to_payload(result))
    return resolution


def _failure(call: Flying, retry_state: RetryState.ValueType) -> Failure:
    failure = Failure(message="activity error")
    failure.activity_failure_info.activity_type.name = call.command.activity_type
    failure.activity_failure_info.activity_id = call.command.activity_id
    failure.activity_failure_info.retry_state = retry_state
    return failure


def _cancelled(call: Flying) -> ActivityResolution:
    failure = _failure(call, RetryState.RETRY_STATE_CANCEL_REQUESTED)
    failure.cause.message = "Activity cancelled"
    failure.cause.canceled_failure_info.SetInParent()
    resolution = ActivityResolution()
    resolution.cancelled.failure.CopyFrom(failure)
    return resolution


def _failed(call: Flying, how: How) -> ActivityResolution:
    """Return the end of a call that failed for good, or whose worker fell silent after it was asked to stop."""
    paid = call.command.activity_type in {"generate", "grade"}
    if how == "failed":
        failure = _failure(call, RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE)
        details = [FailureDetails(usage=LOST).model_dump(mode="json")] if paid else []
        kind = CHECKER_ERROR if call.command.activity_type == "tool.count" else "Broken"
        FAILURES.to_failure(ApplicationError("it broke", *details, type=kind, non_retryable=True), CONVERTER, failure.cause)
    else:
        failure = _failure(call, RetryState.RETRY_STATE_CANCEL_REQUESTED)
        failure.cause.message = "activity Heartbeat timeout"
        failure.cause.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
        if paid:
            failure.cause.timeout_failure_info.last_heartbeat_details.payloads.extend(CONVERTER.to_payloads([LOST.model_dump(mode="json")]))
    resolution = ActivityResolution()
    resolution.failed.failure.CopyFrom(failure)
    return resolution
