"""Every call that a workflow makes: options, references, budget, and stopping all of them at once."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from temporalio import exceptions, workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType, ActivityConfig, ActivityHandle

from activities.capabilities import WorkerCapabilities
from activities.errors import PERMANENT, FailureDetails
from activities.state_cache import GradingSettings, GradingSettingsRef, LogRef, ThreadRef
from gradeloop.contract.messages import Log, Usage
from gradeloop.contract.thread import Grader
from workflows.thread_state import MESSAGES, Exchange, Thread

NEVER_RETRIED = [*PERMANENT, "PayloadsTooLarge", "PayloadSizeError", "InvalidRequest", "ThreadTooLarge", "NotFoundError"]
"""An oversized result would otherwise repeat its paid call for ever, an activity that no worker knows its failure."""

MODEL_CALL = ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),
    schedule_to_close_timeout=timedelta(hours=2),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=8,
        non_retryable_error_types=NEVER_RETRIED,
    ),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
"""An hour is above the client's own deadline; a resumed call never overlaps the one it replaces."""


def model_call(retries: int) -> ActivityConfig:
    """Return the options of a model call that is retried so often."""
    policy = RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=retries + 1,
        non_retryable_error_types=NEVER_RETRIED,
    )
    return ActivityConfig(**{**MODEL_CALL, "retry_policy": policy})


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
"""A tool's own exception is evidence, or a checker's error; what is retried beside it is a lost worker."""

REMOTE_SECONDS = timedelta(hours=2)
"""What somebody else's generator may take in all."""

REMOTE_CALL = ActivityConfig(
    schedule_to_start_timeout=timedelta(seconds=60),
    start_to_close_timeout=timedelta(minutes=30),
    schedule_to_close_timeout=REMOTE_SECONDS,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=3, non_retryable_error_types=NEVER_RETRIED),
    cancellation_type=ActivityCancellationType.TRY_CANCEL,
)
"""A queue that nobody serves is told after a minute; we do not wait for a stopped call, which may send no heartbeats."""

REMOTE_TOOL = ActivityConfig(
    schedule_to_start_timeout=timedelta(seconds=60),
    start_to_close_timeout=timedelta(minutes=2),
    schedule_to_close_timeout=timedelta(minutes=10),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=4, non_retryable_error_types=NEVER_RETRIED),
    cancellation_type=ActivityCancellationType.TRY_CANCEL,
)
"""A tool on its owner's worker, which may send no heartbeats."""


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
    schedule_to_close_timeout=timedelta(minutes=15),
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=20, non_retryable_error_types=NEVER_RETRIED),
)
"""A call that reads or writes the worker's store alone."""

TOOL_CALLS = 25
"""Of one conversation, the grader's or the generator's; then one last turn without tools."""

TURNS = 30
"""Of one conversation; then one last turn without tools."""

TAIL_BYTES = 64 * 1024
"""What a call carries of the thread at most; a longer tail is fetched by query, which leaves no history."""

WARMED_CHARACTERS = 16_000
"""Of the transcript, from which on one of many grading calls goes ahead: some 4,000 tokens, the most that a provider's cache begins at."""


def spent_of(error: ActivityError) -> FailureDetails:
    """Return what a failed call cost, as it says itself, or its last heartbeat."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and not is_cancelled_exception(error):
        return _first_detail(cause.details, FailureDetails) or FailureDetails(usage=Usage())
    beats = cause.last_heartbeat_details if isinstance(cause, exceptions.TimeoutError) else ()
    return FailureDetails(usage=_first_detail(beats, Usage) or Usage())


Model = TypeVar("Model", FailureDetails, Usage)


def _first_detail(details: Sequence[object], model: type[Model]) -> Model | None:
    try:
        return model.model_validate(details[0]) if details else None
    except ValidationError:
        return None


Result = TypeVar("Result")


class Interrupted(Exception):
    """Somebody asked to stop; whatever had finished is recorded."""


class OverBudget(Interrupted):
    """The thread's budget is used up; the message says what of it."""


class WaitingForPerson(Exception):
    """A person has to decide; whatever else there was to find out is kept."""


class GraderFailed(Exception):
    """There is no verdict: the grader's failure, never a grade."""


class ActivityCalls:
    """The calls of one thread, in one run of its workflow."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._carried: dict[str, int] = {}
        self._told: str | None = None
        self._brief: GradingSettingsRef | None = None
        self.stopping: Literal["person", "rubric"] | None = None
        """Who wants the calls in flight to stop: a person, or a new rubric that takes over."""
        self.offer: WorkerCapabilities | None = None
        """What the worker offers; known from the first call's result."""

    async def make(self, activity: str, argument: object, options: ActivityConfig, *, summary: str, result: type[Result]) -> Result:
        """Call an activity and return its result.

        Raises:
            Interrupted: The thread is stopping.
            ActivityError: The call failed for good, or the workflow was cancelled.
        """
        refuse_when_cancelled()
        if self.stopping:
            raise Interrupted
        handle: ActivityHandle[Result] = workflow.start_activity(  # type: ignore[call-overload]  # no overload takes a config
            activity, argument, result_type=result, summary=summary, priority=self._priority(), **options
        )
        self._in_flight.add(handle)
        try:
            return await handle
        except ActivityError as error:
            if self.stopping and is_cancelled_exception(error):
                raise Interrupted from None
            raise
        finally:
            self._in_flight.discard(handle)

    async def make_paid(
        self,
        activity: str,
        call: Callable[[], object],
        exchange: Exchange,
        spend: Callable[[Usage], None],
        summary: str,
        result: type[Result],
    ) -> Result:
        """Make a model call within the budget; one whose reply was cut is made once more, with a larger completion.

        Args:
            activity: Its type.
            call: Builds the argument, anew for each attempt.
            exchange: The conversation that the call belongs to.
            spend: Counts what a failed attempt cost.
            summary: What Temporal shows.
            result: The type that is returned.

        Raises:
            OverBudget: The thread's budget is used up.
            ActivityError: The call failed for good.
        """
        while True:
            if overrun := self._thread.overrun:
                raise OverBudget(f"the budget is used up: {overrun}; resume with a larger one")
            try:
                return await self.make(activity, call(), MODEL_CALL, summary=summary, result=result)
            except ActivityError as error:
                spent = spent_of(error)
                spend(spent.usage)
                if exchange.raised or not spent.raisable:
                    raise
                exchange.raised = True

    async def attend(self, handle: asyncio.Future[Any]) -> Any:  # noqa: ANN401 - somebody else's result
        """Wait for a child workflow, which `stop` cancels like the calls in flight."""
        self._in_flight.add(handle)
        try:
            return await handle
        except (ChildWorkflowError, asyncio.CancelledError) as error:
            if self.stopping and is_cancelled_exception(error):
                raise Interrupted from None
            raise
        finally:
            self._in_flight.discard(handle)

    def stop(self, who: Literal["person", "rubric"]) -> None:
        """Cancel the calls in flight and refuse further ones; a person's word counts more than a rubric's."""
        self.stopping = who if self.stopping is None else "person" if who == "person" else self.stopping
        for handle in self._in_flight:
            handle.cancel()

    @property
    def unknown_judge(self) -> bool:
        """True before the first call, which tells what the worker offers, and where who judges this run is still to be found."""
        thread, rubric = self._thread, self._thread.rubric_in_force
        named = thread.judge is not None or (thread.grader is not None and thread.grader.remote is not None)
        judged = rubric is not None and any(None in each.judges for each in rubric.judged)
        return self.offer is None or (judged and not named)

    def learn(self, offer: WorkerCapabilities) -> None:
        """Note what the worker offers, and who judges this run where the thread leaves that open."""
        self.offer, run = offer, self._thread.run
        self._thread.external_storage = offer.external_storage
        if run is not None and run.judge is None:
            run.judge = offer.grader
        if run is not None:
            run.pins = {**{name: facts.sha256 for name, facts in offer.facts.items()}, **run.pins}

    async def ask_capabilities(self) -> WorkerCapabilities:
        """Ask a worker what it offers.

        Raises:
            ActivityError: It cannot serve the thread, or no worker answers.
        """
        return await self.make("admit", self.brief(), ADMIT, summary="admit", result=WorkerCapabilities)

    async def capabilities(self, *, for_tools: bool = False) -> WorkerCapabilities | None:
        """Return what the worker offers, asked where no call has said so yet; None where it refuses, since the calls themselves say why.

        Args:
            for_tools: Whether it is asked for because a tool is about to be called; histories of earlier versions do not ask then.
        """
        if self.offer is None and (not for_tools or workflow.patched("tools-known-first")):
            try:
                self.learn(await self.ask_capabilities())
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
        return self.offer

    def _priority(self) -> Priority:
        asked = self._thread.priority
        if asked is None:
            return Priority.default
        return Priority(priority_key=asked.level, fairness_key=asked.tenant, fairness_weight=asked.weight if asked.tenant else None)

    def brief(self) -> GradingSettingsRef:
        """Return what every call of the thread shares, by its sha256 and in full."""
        thread, known = self._thread, self._brief and self._brief.brief
        judge, budget = thread.run.judge if thread.run else None, thread.budget
        grader = (thread.grader or Grader()).model_copy(update={"model": judge}) if judge else thread.grader
        priced = budget is not None and budget.max_cost_usd is not None
        now = GradingSettings(generator=thread.generator, grader=grader, rubric=thread.rubric_in_force, priced=priced)
        if self._brief is None or known != now:
            self._brief = GradingSettingsRef(sha256=now.sha256(), brief=now)
        return self._brief

    def thread(self) -> ThreadRef:
        """Return the reference to the thread as it stands, with what was not carried yet."""
        brief = self.brief()
        known = self._told == brief.sha256
        self._told = brief.sha256
        told = GradingSettingsRef(sha256=brief.sha256) if known else brief
        return ThreadRef(brief=told, messages=self.log(MESSAGES, self._thread.log))

    def log(self, key: str, log: Log) -> LogRef:
        """Return the reference to a log, with the messages that no call has carried yet unless they are too large."""
        tail = log.slice(self._carried.get(key, 0))
        small = sum(message.size() for message in tail) <= TAIL_BYTES
        self._carried[key] = len(log)
        return LogRef(key=key, count=len(log), sha256=log.sha256(), tail=tuple(tail) if small else None)

    def returned(self, key: str, log: Log) -> None:
        """Note that the newest message came from an activity, which keeps it already."""
        self._carried[key] = len(log)


def refuse_when_cancelled() -> None:
    """Raise where the workflow is being cancelled: a call that ended in spite of it swallows the cancellation.

    Raises:
        CancelledError: It is.
    """
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


def describe_error(error: ActivityError | ChildWorkflowError) -> str:
    """Return what went wrong in words: the kind, then the message of whoever failed first."""
    cause = error.cause
    while isinstance(cause, ActivityError | ChildWorkflowError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.type}: {cause.message}" if cause.type else cause.message
    if isinstance(cause, exceptions.TimeoutError) and cause.type == exceptions.TimeoutType.SCHEDULE_TO_START:
        return "no_worker: no worker took the call in time; start one on that task queue"
    if isinstance(cause, exceptions.TimeoutError):
        return f"timeout: no answer in time ({cause.message})"
    return f"{type(cause or error).__name__}: {cause or error}"


def kind_of(error: ActivityError) -> str | None:
    """Return the type of the activity's error."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None
