"""The calls that a workflow makes: options, references, budget, and stopping all of them at once."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

from temporalio import exceptions, workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType, ActivityConfig, ActivityHandle

from activities.calls.attempts import PaidCall, UnansweredAttempt
from activities.calls.retries import TENANT_BUDGET
from activities.capabilities import WorkerCapabilities
from activities.errors import PERMANENT, FailureDetails, first_detail
from activities.state_cache import GradingSettings, GradingSettingsRef, LogRef, ThreadRef
from gradeloop.contract import thread as contract
from gradeloop.contract.evaluation import InterruptReason, describe_failure
from gradeloop.contract.messages import Log, Usage
from gradeloop.contract.model_spec import LONGEST_TIMEOUT
from gradeloop.contract.thread import Grader
from workflows.stop_rule import Arrived, CallEnd, Failed, NotDone, ask_to_stop, end_without_result
from workflows.thread_state import MESSAGES, Exchange, StopReason, Thread

NEVER_RETRIED = ["PayloadsTooLarge", "PayloadSizeError", "InvalidRequest", "ThreadTooLarge", "NotFoundError"]
"""Types of errors that no retry cures: an oversized result would repeat its paid call for ever, an unknown activity its failure.

The permanent kinds of a provider's failures are not among them, since our own activities raise those as errors that are not retried
(`activities/errors.py`), and each type stands in the history of every call.
"""

NEVER_RETRIED_REMOTELY = [*PERMANENT, *NEVER_RETRIED]
"""The same for remote activities, which may raise our kinds as errors like any others."""

MODEL_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=LONGEST_TIMEOUT, minutes=10),
    schedule_to_close_timeout=timedelta(days=8),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=60), non_retryable_error_types=NEVER_RETRIED
    ),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
"""Options of a model call: which failure is its last one, the call itself decides (`activities/calls/retries.py`).

Six hours and more are above any deadline of the client's own, which ends a call; a lost worker is missed by its heartbeats. Eight days are
above the longest wait for a provider; a resumed call never overlaps the one that it replaces.
"""

TOOL_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=500),
        maximum_interval=timedelta(seconds=10),
        maximum_attempts=4,
        non_retryable_error_types=NEVER_RETRIED,
    ),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
"""Options of a call of a worker's tool. The tool's own exception is its result; a retry is for a lost worker."""

REMOTE_SECONDS = timedelta(hours=2)
"""The time that a remote generator may take in all."""

REMOTE_CALL = ActivityConfig(
    schedule_to_start_timeout=timedelta(seconds=60),
    start_to_close_timeout=timedelta(minutes=30),
    schedule_to_close_timeout=REMOTE_SECONDS,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=3, non_retryable_error_types=NEVER_RETRIED_REMOTELY),
    cancellation_type=ActivityCancellationType.TRY_CANCEL,
)
"""Options of a remote generator's or grader's call.

A queue without a worker fails after a minute. The thread does not wait for a call that it stops, which may send no heartbeats.
"""

REMOTE_TOOL = ActivityConfig(
    schedule_to_start_timeout=timedelta(seconds=60),
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(minutes=10),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=4, non_retryable_error_types=NEVER_RETRIED_REMOTELY),
    cancellation_type=ActivityCancellationType.TRY_CANCEL,
)
"""Options of a remote tool's call, which may send no heartbeats."""


def once(options: ActivityConfig) -> ActivityConfig:
    """Return the options for a call that must not be made twice."""
    return ActivityConfig(**{**options, "retry_policy": RetryPolicy(maximum_attempts=1)})


FIND_WORKER = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(seconds=60),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5)),
)

ADMIT = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(minutes=5),
    retry_policy=RetryPolicy(maximum_attempts=5, non_retryable_error_types=NEVER_RETRIED),
)

STORE_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(days=8),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), non_retryable_error_types=NEVER_RETRIED),
)
"""Options of a call that only reads or writes the worker's store: it waits for the store as long as a model call for its provider.

Which other error is its last one, the call itself decides (`activities/batches/cases.py`).
"""

TAIL_BYTES = 64 * 1024
"""The most messages, in bytes, that a call carries; more are fetched by query, which leaves no history."""

WARMED_CHARACTERS = 16_000
"""The length of a transcript from which one of many grading calls goes first: 4,000 tokens, the highest minimum of a provider's cache."""

Result = TypeVar("Result")


class Interrupted(Exception):
    """A stop was requested; finished calls are recorded."""

    reason: InterruptReason = "person"


class OverBudget(Interrupted):
    """The thread's budget, or its tenant's, is used up, or cannot be checked; the message says why, and what to do."""

    reason = "budget"


class ProviderAway(Interrupted):
    """A provider, or every worker, was away for longer than the thread waits; the message says who."""

    reason = "outage"


class WaitingForPerson(Exception):
    """A person has to decide; everything else is done and kept."""


class GraderFailed(Exception):
    """There is no verdict: the grader's failure, never a grade."""


class ActivityCalls:
    """The calls of one thread, in one run of its workflow."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._in_flight: dict[asyncio.Future[Any], None] = {}  # a set has another order in a replay
        self._cancelling: asyncio.Task[None] | None = None
        self._carried: dict[str, int] = {}
        self._settings: GradingSettingsRef | None = None
        self._settings_sent: str | None = None  # the sha256 of the settings that a call carried last
        self.capabilities: WorkerCapabilities | None = None
        """The worker's capabilities, known from the first call's result."""
        self.search_attributes: bool | None = None
        """Whether the namespace has our search attributes; None where no call has said so."""

    async def make(
        self,
        activity: str,
        argument: object,
        options: ActivityConfig,
        *,
        summary: str,
        result: type[Result],
        spend: Callable[[Usage], None] | None = None,
    ) -> Result:
        """Call an activity and return its result.

        `spend`: counts what a call cost that was not done because the thread is stopping.

        Raises:
            Interrupted: The thread is stopping, and the call is not done.
            ActivityError: The call failed for good.
        """
        if self._thread.stopping is not None:
            raise Interrupted
        handle: ActivityHandle[Result] = workflow.start_activity(  # type: ignore[call-overload]  # no overload takes a config
            activity, argument, result_type=result, summary=summary, priority=temporal_priority(self._thread.priority), **options
        )
        match await self.classify_end(handle):
            case Arrived(returned):
                return returned
            case NotDone(error):
                if spend is not None and isinstance(error, ActivityError):
                    self._count(failure_details(error), spend)
                raise Interrupted
            case Failed(failure):
                raise failure

    def _count(self, details: FailureDetails, spend: Callable[[Usage], None]) -> None:
        """Count what an attempt without an answer cost."""
        spend(details.usage)
        self.search_attributes = details.search_attributes if self.search_attributes is None else self.search_attributes

    async def _pause(self, seconds: float, summary: str) -> None:
        """Wait before a call is made again, for as long as it may be made."""
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._thread.stopping is not None or self._thread.over_budget is not None,
                timeout=seconds,
                timeout_summary=f"before {summary} again",
            )

    async def classify_end(self, handle: asyncio.Future[Result]) -> CallEnd[Result]:
        """Wait for a call or a child workflow in flight, which `stop` cancels, and say how it ended: only this place decides that."""
        self._in_flight[handle] = None
        if self._thread.stopping is not None:  # asked for while a child workflow was starting
            handle.cancel()
        try:
            return Arrived(await handle)
        except (ActivityError, ChildWorkflowError) as error:
            return end_without_result(self._thread, error)
        except asyncio.CancelledError:
            if self._thread.stopping is None:  # the worker forgets the workflow
                raise
            return NotDone(None)  # stopped before it was sent
        finally:
            self._in_flight.pop(handle, None)

    async def make_paid(
        self,
        activity: str,
        call: Callable[[], PaidCall],
        exchange: Exchange,
        spend: Callable[[Usage], None],
        summary: str,
        result: type[Result],
    ) -> Result:
        """Make a model call within the budget; a paid attempt without an answer is counted before the call is made again.

        Which attempt is the last one, the call itself decides. After a reply that was cut, it is made with a larger completion.

        Raises:
            Interrupted: The thread is stopping, and the call is not done.
            OverBudget: The thread's budget, or its tenant's of the day, is used up, or cannot be checked.
            ProviderAway: The provider was away for longer than the thread waits.
            ActivityError: The call failed for good.
        """
        # A paid attempt without an answer completes its activity, so that the history has its cost before anything else happens.
        # If Temporal retried it, a stop during the back-off would end the call with no record of what was paid, and no budget would see it.
        earlier: UnansweredAttempt | None = None
        either = cast("type[Result | UnansweredAttempt]", result | UnansweredAttempt)
        while True:
            if self._thread.stopping is None and (refusal := self._thread.over_budget):
                raise OverBudget(refusal)
            argument = call().model_copy(update={"raised": exchange.raised, "earlier": earlier})
            try:
                returned = await self.make(activity, argument, MODEL_CALL, summary=summary, result=either, spend=spend)
            except ActivityError as error:
                spend(failure_details(error).usage)
                if is_outage(error):
                    raise ProviderAway(describe_error(error)) from None
                if kind_of(error) == TENANT_BUDGET:
                    raise OverBudget(describe_error(error)) from None
                raise
            if not isinstance(returned, UnansweredAttempt):
                return returned
            self._count(returned, spend)
            exchange.raised, earlier = exchange.raised or returned.raisable, returned
            await self._pause(returned.pause, summary)

    def stop(self, reason: StopReason) -> None:
        """Refuse further calls, and cancel those in flight whose results have not come in the same task."""
        ask_to_stop(self._thread, reason)
        self._cancelling = asyncio.create_task(self._cancel_calls(tuple(self._in_flight)))

    async def _cancel_calls(self, calls: tuple[asyncio.Future[Any], ...]) -> None:
        await workflow.wait_condition(lambda: True)  # checked once what the task brought has been taken in: the stop may be over by then
        for handle in calls:
            handle.cancel()

    # Temporal's cancellation must not reach the work itself, or a result could be dropped between its arrival
    # and its record. So the work is shielded, and the cancellation becomes a stop, which every call in flight
    # answers as the stop rule says. Only an eviction, which is not a cancellation of the workflow, ends the
    # work at once.
    async def serve(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work of a workflow; where the workflow is cancelled, its calls stop, and what they still bring is kept.

        Raises:
            CancelledError: The worker forgets the workflow.
        """
        serving = asyncio.create_task(work)
        while True:
            try:
                return await asyncio.shield(serving)
            except asyncio.CancelledError:
                if workflow.cancellation_reason() is None or serving.done():
                    serving.cancel()
                    raise
            self.stop("cancel")

    @property
    def unknown_judge(self) -> bool:
        """True before the first call, whose result says what the worker can do, and while the judge of this run is still to be found."""
        thread, rubric = self._thread, self._thread.rubric_in_force
        named = thread.judge is not None or (thread.grader is not None and thread.grader.remote is not None)
        judged = rubric is not None and any(None in criterion.judges for criterion in rubric.judged)
        return self.capabilities is None or (judged and not named)

    def learn(self, capabilities: WorkerCapabilities) -> None:
        """Note what the worker can do, and who judges this run where the thread leaves that open."""
        self.capabilities, run = capabilities, self._thread.run
        self.search_attributes = capabilities.search_attributes
        self._thread.external_storage = capabilities.external_storage
        if run is not None:
            run.judge = run.judge or capabilities.grader
            # What the run saw first stays. A worker with another version of a tool compares the pin and refuses the call.
            # Otherwise the evidence would change in the middle of a run.
            run.pins = {**{name: facts.sha256 for name, facts in capabilities.facts.items()}, **run.pins}

    async def ask_capabilities(self) -> WorkerCapabilities:
        """Ask a worker what it can do; raise ActivityError where it cannot serve the thread, or no worker answers."""
        return await self.make("admit", self.settings(), ADMIT, summary="admit", result=WorkerCapabilities)

    async def find_capabilities(self) -> WorkerCapabilities | None:
        """Return what the worker can do, asking it where no call has said so; None where it refuses: the calls say why."""
        if self.capabilities is None:
            try:
                self.learn(await self.ask_capabilities())
            except ActivityError:
                return None
        return self.capabilities

    def settings(self) -> GradingSettingsRef:
        """Return what every call of the thread shares, by its sha256 and in full."""
        thread, known = self._thread, self._settings and self._settings.brief
        judge, budget = thread.run.judge if thread.run else None, thread.budget
        grader = (thread.grader or Grader()).model_copy(update={"model": judge}) if judge else thread.grader
        priced = budget is not None and budget.max_cost_usd is not None
        settings = GradingSettings(
            generator=thread.generator,
            grader=grader,
            rubric=thread.rubric_in_force,
            priced=priced,
            outage_timeout=thread.outage_timeout,
        )
        if self._settings is None or known != settings:
            self._settings = GradingSettingsRef(sha256=settings.sha256(), brief=settings)
        return self._settings

    def thread_reference(self) -> ThreadRef:
        """Return the reference to the thread as it is now, with what no call has carried yet."""
        settings = self.settings()
        known, self._settings_sent = self._settings_sent == settings.sha256, settings.sha256
        sent = GradingSettingsRef(sha256=settings.sha256) if known else settings
        return ThreadRef(brief=sent, messages=self.log_reference(MESSAGES, self._thread.log))

    def log_reference(self, key: str, log: Log) -> LogRef:
        """Return the reference to a log, with the messages that no call has carried yet unless they are too large."""
        # Every argument stays in the history. If each call carried the whole conversation, the history would
        # grow with its square. So a call carries only what none has carried before, and its worker has the rest
        # or asks for it by a query, which leaves no history. What an activity has returned is in the history as
        # its result, and in its worker's copy (`note_returned`).
        tail = log.slice(self._carried.get(key, 0))
        small = sum(message.size() for message in tail) <= TAIL_BYTES
        self._carried[key] = len(log)
        return LogRef(key=key, count=len(log), sha256=log.sha256(), tail=tuple(tail) if small else None)

    def note_returned(self, key: str, log: Log) -> None:
        """Note that the newest message came from an activity, whose worker keeps it already."""
        self._carried[key] = len(log)


# A call that timed out has no details of its own. Its last heartbeat is then the only record of what it had
# cost, and without it the money would be counted nowhere.
def failure_details(error: ActivityError) -> FailureDetails:
    """Return what a failed call cost, by its own details or its last heartbeat, and whether a larger completion may help."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and not is_cancelled_exception(error):
        return first_detail(cause.details, FailureDetails) or FailureDetails(usage=Usage())
    beats = cause.last_heartbeat_details if isinstance(cause, exceptions.TimeoutError) else ()
    return FailureDetails(usage=first_detail(beats, Usage) or Usage())


def temporal_priority(priority: contract.Priority | None) -> Priority:
    """Return a thread's or a batch's priority as Temporal's own."""
    if priority is None:
        return Priority.default
    tenant = priority.tenant
    return Priority(priority_key=priority.level, fairness_key=tenant, fairness_weight=priority.weight if tenant else None)


def describe_error(error: ActivityError | ChildWorkflowError) -> str:
    """Return the kind and the message of the failure that came first."""
    cause = error.cause
    while isinstance(cause, ActivityError | ChildWorkflowError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, exceptions.TimeoutError) and isinstance(cause.cause, ApplicationError):  # the last attempt's, of several
        cause = cause.cause
    return describe_failure(cause or error)


# Single attempts that time out are retried without a limit. So a time-out that ends a model call is that of
# the eight days, in which no worker has brought it to an end.
def is_outage(error: ActivityError) -> bool:
    """Return whether a paid call failed since its provider, or every worker, was away for as long as a call waits."""
    return kind_of(error) == "outage" or isinstance(error.cause, exceptions.TimeoutError)


def kind_of(error: ActivityError) -> str | None:
    """Return the type of the activity's error."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None
