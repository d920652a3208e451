"""One paid call, with heartbeats that carry what its attempts have cost and how they failed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue
from pydantic_core import PydanticSerializationError, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError

from activities.calls.abandoned_attempts import Turn
from activities.calls.attempts import (
    ATTEMPTS,
    MALFORMED_ATTEMPTS,
    CallLimits,
    FailedAttempts,
    Ruling,
    failed_call,
    next_pause,
    waiting_call,
)
from activities.calls.call_telemetry import count_failure, count_reply, count_wait, traced
from activities.calls.fallback import FALLBACK, CarriedTurn, ModelChoice, ModelTurn, NextAttempt, choose_model, fit_for
from activities.calls.limiter import LIMITED, MustWait, Permit
from activities.calls.rate_headers import kept_headers
from activities.capabilities import WorkerServices
from activities.errors import FailureDetails, conceal, failure, first_detail, model_fault, paid_by, priced_error
from activities.providers.base import sendable
from gradeloop.contract.base import Sparse, Strict
from gradeloop.contract.messages import MESSAGE_BYTES, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest

HEARTBEAT_SECONDS = 1.0
"""A cancellation comes back with a heartbeat alone, so this and the worker's throttle of 2 s decide how soon a call stops."""

CANCELLED = "cancelled"
"""The error type of a call that its workflow stopped; it is not done, and its details say what it cost."""


AT_ONCE = timedelta(milliseconds=1)
"""The pause before the next model is asked; none at all would leave the pause to Temporal."""

TURN_BYTES = 2 * MESSAGE_BYTES - 32 * 1024
"""The most bytes of a reply together with how it reads, as JSON: Temporal takes a payload of 2 MiB."""


class UnansweredAttempt(FailureDetails):
    """A paid attempt that gave no answer: its cost, and what the attempt after it has to know."""

    problem: str
    """The kind of failure, and its message."""
    pause: float
    """Seconds until the call is made again."""
    failed: FailedAttempts
    turn: ModelTurn = ModelTurn()


class PaidCall(Strict):
    """The fields that every paid call of a thread or a judgement has."""

    raised: Sparse[bool] = False
    """True where a reply was cut before: it gets a larger completion."""
    earlier: Sparse[UnansweredAttempt | None] = None
    """The paid attempt before this one, where that gave no answer."""


Call = TypeVar("Call", bound=PaidCall)


class Heartbeat:
    """The heartbeats of one attempt; they carry what the attempts so far have cost, and how they failed, to the next one."""

    def __init__(self, earlier: UnansweredAttempt | None = None) -> None:
        beat = activity.info().heartbeat_details
        self.spent = first_detail(beat, Usage) or Usage()
        self.failed = first_detail(beat[1:], FailedAttempts) or (earlier.failed if earlier else FailedAttempts())
        self.turn = (first_detail(beat[1:], CarriedTurn) or earlier or CarriedTurn()).turn
        self.waits_for: str | None = None
        """The problem of the store that a reply waits for; whoever describes the workflow reads it."""

    def beat(self) -> None:
        """Send a heartbeat."""
        known: list[object] = [self.spent.model_dump(mode="json"), self.failed.model_dump(mode="json") | self.turn.as_beat()]
        waiting: list[object] = [self.waits_for] if self.waits_for else []
        earlier = self.spent.attempts or self.failed.counts or self.failed.waiting_since
        activity.heartbeat(*(known + waiting if waiting or earlier else []))

    def wait_for(self, problem: str) -> None:
        """Note what a reply waits for, with the next heartbeat."""
        self.waits_for = problem

    def details(self) -> dict[str, JsonValue]:
        """Return the details of a failure: what all attempts have cost."""
        return FailureDetails(usage=self.spent).model_dump(mode="json")

    def spend(self, usage: Usage) -> None:
        """Add what this attempt cost, for the next one."""
        self.spent += usage
        self.beat()

    def fail(self, failed: FailedAttempts) -> None:
        """Keep how the attempts so far failed, for the next one."""
        self.failed = failed
        self.beat()

    def choose(self, spec: ModelSpec, taken: Collection[str] = ()) -> ModelChoice:
        """Return the model that this attempt asks, of the model that is to answer and its fallbacks.

        Args:
            spec: The model that is to answer.
            taken: Ids of the models to which the call may not fall back.
        """
        choice = choose_model(spec, self.turn, self.failed, time.time(), taken)
        if choice.turn != self.turn:
            self.turn, self.failed = choice.turn, FailedAttempts()
            self.beat()
        return choice

    def turn_to(self, following: NextAttempt) -> None:
        """Keep which model is asked next; what it failed before counts no more."""
        self.turn = following.turn
        self.failed = self.failed if following.model is None else FailedAttempts()
        self.beat()


@asynccontextmanager
async def heartbeats(earlier: UnansweredAttempt | None = None) -> AsyncIterator[Heartbeat]:
    """Send heartbeats while the body runs, at half the activity's heartbeat timeout at the latest."""
    timeout, heartbeat = activity.info().heartbeat_timeout, Heartbeat(earlier)
    if timeout is None:
        yield heartbeat
        return
    beating = asyncio.create_task(_beat(heartbeat, min(HEARTBEAT_SECONDS, timeout.total_seconds() / 2)))
    try:
        yield heartbeat
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


async def _beat(heartbeat: Heartbeat, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        heartbeat.beat()


@asynccontextmanager
async def paid_attempt(
    services: WorkerServices, attempts: int = ATTEMPTS, earlier: UnansweredAttempt | None = None
) -> AsyncIterator[Heartbeat]:
    """Send heartbeats while an activity that pays runs; an error of our own is final at its last attempt.

    Args:
        services: What the worker has.
        attempts: How many attempts may end in an error that is none of the provider's, fewer where they were paid for.
        earlier: The paid attempt before this one, where that was an activity of its own.

    Raises:
        ApplicationError: Its type is the error's class, `cancelled` where the workflow stopped the call: a cancellation alone could not say
            what it cost.
    """
    async with heartbeats(earlier) as heartbeat:
        try:
            yield heartbeat
        except asyncio.CancelledError:
            if not stop_requested():
                raise
            details = FailureDetails(usage=heartbeat.spent, search_attributes=services.capabilities.search_attributes)
            raise ApplicationError(
                "it was stopped",
                details.model_dump(mode="json"),
                type=CANCELLED,
                non_retryable=True,
                category=ApplicationErrorCategory.BENIGN,
            ) from None
        except ApplicationError as error:
            if error.details or not heartbeat.spent.attempts:
                raise
            raise priced_error(error, heartbeat.spent) from None
        except FailureError:
            raise
        except Exception as error:
            heartbeat.fail(heartbeat.failed.after_unexpected(time.time()))
            if heartbeat.failed.unexpected < (min(attempts, MALFORMED_ATTEMPTS) if heartbeat.spent.calls else attempts):
                raise
            raise failure(error, model="", spent=heartbeat.spent, final=True) from error


async def paid_turn(
    services: WorkerServices, call: Call, work: Callable[[Call, Heartbeat], Coroutine[Any, Any, Turn]]
) -> Turn | UnansweredAttempt:
    """Do an attempt of a thread's or a judgement's call; a paid one without an answer is returned, and its workflow asks again.

    Temporal's own retries are for attempts that cost nothing: an activity that is stopped between two of them ends without a word of the
    first, and no budget is asked before the second.

    Args:
        services: What the worker has.
        call: The call.
        work: Makes the call and reads its reply.

    Raises:
        ApplicationError: The attempt failed for good, or has cost nothing.
    """
    heartbeat: Heartbeat | None = None
    try:
        async with paid_attempt(services, earlier=call.earlier) as heartbeat:
            return await services.left.serve(heartbeat, partial(work, call, heartbeat))
    except Exception as error:
        if heartbeat is None or not heartbeat.spent.calls:
            raise
        reported = failure(error, model="", spent=heartbeat.spent)
        details = first_detail(reported.details, FailureDetails)
        raisable = details is not None and details.raisable and not call.raised
        if isinstance(error, ApplicationError) and error.non_retryable and not raisable:
            raise
        pause = next_pause(activity.info().retry_policy, sum(heartbeat.failed.counts.values())) or 0.0
        if reported.next_retry_delay is not None:
            pause = reported.next_retry_delay.total_seconds()
        activity.logger.warning("a paid attempt gave no answer (%s) and is counted; the call is made again", reported.type)
        return UnansweredAttempt(
            usage=heartbeat.spent,
            raisable=raisable,
            search_attributes=services.capabilities.search_attributes,
            problem=f"{reported.type}: {reported.message}",
            pause=0.0 if raisable or reported.type == FALLBACK else pause,
            failed=heartbeat.failed,
            turn=heartbeat.turn,
        )


def current_tenant() -> str | None:
    """Return the tenant for which this activity works, as its workflow's priority names it."""
    return activity.info().priority.fairness_key or None


def stop_requested() -> bool:
    """Return whether the workflow has stopped the call, and not the worker that ends."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested and not details.worker_shutdown


async def paid_call(
    services: WorkerServices,
    request: ModelRequest,
    heartbeat: Heartbeat,
    limits: CallLimits,
    choice: ModelChoice | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
) -> ModelReply:
    """Call a model once, when its limiter says so, and record the exchange where the worker has a recording.

    Args:
        services: What the worker has.
        request: The request, of the model that this attempt asks.
        heartbeat: The heartbeats of the attempt.
        limits: How often and how long the attempts may fail.
        choice: The model that is asked among its fallbacks; the request's own without any by default.
        before: What is done once the call may be made, before it is sent.

    Raises:
        ApplicationError: Its type is the kind of failure, `outage` where the provider was away for as long as the limits say, `waiting`
            where the call has to wait for its turn, `fallback` where the next attempt asks another model; its details are what all
            attempts have cost.
            `tenant_budget` where the tenant has used up its budget of the day. `ThreadTooLarge` where the reply has more than 1 MiB, since
            a larger payload would wedge the workflow.
    """
    choice = choice or heartbeat.choose(request.spec)
    request = fit_for(request if request.thread else replace(request, thread=activity.info().workflow_id or ""), choice.chain[0])
    with await _permit(services, choice, request, heartbeat, limits) as permit:
        tenant, earlier = services.budgets.limited(current_tenant()), heartbeat.spent
        if tenant is not None:
            priced = services.providers.cost(request.spec, Usage(calls=1)) is not None
            await services.budgets.require_left(tenant, request.spec.id, earlier, priced=priced)
        if before is not None:
            await before()
            earlier = heartbeat.spent  # of which what is counted already is gone
        try:
            return await _send(services, choice, request, heartbeat, limits, permit)
        finally:
            if tenant is not None:
                await services.budgets.count(tenant, heartbeat.spent.minus(earlier))


async def _permit(services: WorkerServices, choice: ModelChoice, request: ModelRequest, heartbeat: Heartbeat, limits: CallLimits) -> Permit:
    """Wait for the call's turn where that is soon; else end the attempt, so that the call waits in no slot of the worker."""
    spec, info = request.spec, activity.info()
    endpoint = services.providers.address_of(spec)
    limiter = services.limiter.limiter(spec.provider, endpoint, spec.model)
    characters = len(request.system) + sum(len(message.content) for message in request.messages)
    since = heartbeat.failed.waiting_since or time.time()
    try:
        return await limiter.enter(f"{info.workflow_run_id}/{info.activity_id}", since, characters)
    except MustWait as wait:
        now = time.time()
        count_wait(request, wait.seconds)
        heartbeat.fail(heartbeat.failed.after_wait(since))
        away_since = heartbeat.failed.away_since or (since if limiter.answered < since else now)
        away = now - away_since
        fault = ModelFault("rate_limited", "its rate limit left no room for the call", model=spec.id)
        following = choice.after_wait(away_since, limits, now)
        if following.model is not None:
            heartbeat.turn_to(following)
            raise fallback_call(fault, following.model, heartbeat) from None
        if away < limits.outage_seconds:
            longest = min(limits.outage_seconds - away, following.ruling.left or limits.outage_seconds)
            raise waiting_call(spec.id, heartbeat.spent, min(wait.seconds, longest)) from None
        raise failed_call(fault, Ruling(final=True, away=away), heartbeat.spent, endpoint=endpoint, pause=None) from None


async def _send(
    services: WorkerServices, choice: ModelChoice, request: ModelRequest, heartbeat: Heartbeat, limits: CallLimits, permit: Permit
) -> ModelReply:
    """Call a model once, and tell its limiter how that went."""
    clock = asyncio.get_running_loop().time
    began = clock()
    with kept_headers() as kept:
        try:
            reply = await traced(request, _complete(services, request, heartbeat))
        except asyncio.CancelledError as error:  # it was sent, and so may be paid for
            heartbeat.spend(paid_by(error) or Usage(attempts=1, seconds=round(clock() - began, 3)))
            raise
        except Exception as error:  # noqa: BLE001 - the one classifier decides
            if isinstance(error, ModelFault) and services.recording:
                services.recording.fault(request, error)
            raise await _failed(services, choice, request, error, heartbeat, limits, permit) from None
        permit.usage = reply.usage
        await permit.limiter.accepted(permit, kept)
    heartbeat.spent += reply.usage  # told with the next heartbeat: one for each reply would cost the server a third more
    count_reply(request, reply.usage)
    services.providers.note_answer(request.spec)
    message = sendable(reply.message)
    reply = replace(reply, message=message.model_copy(update={"model": choice.fallback.id}) if choice.fallback else message)
    if services.recording:
        services.recording.reply(request, reply)
    if (size := reply.message.size()) > MESSAGE_BYTES:
        text = f"{request.spec.id} answered with {size} bytes, {MESSAGE_BYTES} at most"
        raise ApplicationError(text, heartbeat.details(), type="ThreadTooLarge", non_retryable=True)
    return replace(reply, usage=heartbeat.spent)


async def _complete(services: WorkerServices, request: ModelRequest, heartbeat: Heartbeat) -> ModelReply:
    """Call a model; where its provider refuses the thinking that it gave before, once more without it.

    Raises:
        ModelFault: The call failed or gave no answer.
    """
    try:
        return await services.providers.complete(request)
    except ModelFault as fault:
        if request.without_thinking or not fault.refuses_thinking or not any(message.vendor for message in request.messages):
            raise
        heartbeat.spend(fault.usage or Usage(attempts=1))
    return await services.providers.complete(replace(request, without_thinking=True))


def refuse_unsendable(turn: BaseModel, heartbeat: Heartbeat) -> None:
    """Refuse a turn that its workflow cannot be given: outside of the call that would fail too, and be paid again and counted nowhere.

    Raises:
        ApplicationError: Of type `ThreadTooLarge`, or `malformed_response`; its details are what all attempts have cost.
    """
    try:
        size = len(to_json(turn))
    except (PydanticSerializationError, ValueError) as error:
        text = f"the reply cannot be written as JSON: {conceal(str(error))}"
        raise ApplicationError(text, heartbeat.details(), type="malformed_response", non_retryable=True) from None
    if size > TURN_BYTES:
        text = f"the reply and how it reads have {size} bytes together, {TURN_BYTES} at most; ask for less at once"
        raise ApplicationError(text, heartbeat.details(), type="ThreadTooLarge", non_retryable=True)


async def _failed(
    services: WorkerServices,
    choice: ModelChoice,
    request: ModelRequest,
    error: Exception,
    heartbeat: Heartbeat,
    limits: CallLimits,
    permit: Permit,
) -> ApplicationError:
    """Count a failed attempt, and return its failure for Temporal."""
    fault = model_fault(error, model=request.spec.id)
    if fault is None:
        heartbeat.spent += Usage(attempts=1)
        return failure(error, model=request.spec.id, spent=heartbeat.spent)
    providers, info, now = services.providers, activity.info(), time.time()
    if fault.usage is not None:
        heartbeat.spent += fault.usage
        permit.usage = fault.usage
    heartbeat.fail(heartbeat.failed.after(fault, now))
    ruling = heartbeat.failed.judge(fault, limits, now, lambda moment: providers.answered_since(request.spec, moment))
    following = choice.after_failure(fault, heartbeat.failed, ruling, limits, now)
    endpoint, waits = providers.address_of(request.spec), None
    pause = next_pause(info.retry_policy, sum(heartbeat.failed.counts.values()))
    if fault.kind in LIMITED:
        since = heartbeat.failed.waiting_since or now
        heartbeat.fail(heartbeat.failed.after_wait(since))
        fault.retry_after = await permit.limiter.refused(permit, fault, f"{info.workflow_run_id}/{info.activity_id}", since)
        waits = request.spec.id
    elif heartbeat.failed.waiting_since is not None:  # Temporal counts attempts that only waited
        fault.retry_after = fault.retry_after or pause
    heartbeat.turn_to(following)
    is_final = following.ruling.final and following.model is None
    count_failure(request, fault.kind, fault.usage, final=is_final, away=following.ruling.away is not None)
    if following.model is not None:
        return fallback_call(fault, following.model, heartbeat)
    if following.ruling.final and (more := choice.blame(following.turn) + providers.cure(request.spec, fault.kind)):
        fault.message = fault.message.removesuffix(".") + more
    return failed_call(fault, following.ruling, heartbeat.spent, endpoint=endpoint, pause=pause, waits_for=waits)


def fallback_call(fault: ModelFault, model: ModelSpec, heartbeat: Heartbeat) -> ApplicationError:
    """Return what ends an attempt after which another model is asked, at once."""
    return ApplicationError(f"{fault}; {model.id} is asked instead", heartbeat.details(), type=FALLBACK, next_retry_delay=AT_ONCE)
