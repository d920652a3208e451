"""The paid calls of a worker, for threads, judgements and batches alike: one attempt is one request, and whatever is paid is counted."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError

from activities.calls import retries
from activities.calls.attempts import AbandonedAttempts, AttemptState, PaidCall, PaidReply, UnansweredAttempt, heartbeats, stop_requested
from activities.calls.limiter import CHARACTERS_A_TOKEN, LIMITED, CallLimiter, MustWait, Permit
from activities.calls.quarantine import LOST, Quarantine
from activities.calls.rate_headers import kept_headers
from activities.calls.tenant_budgets import TenantBudgets
from activities.errors import FailureDetails, activity_call, conceal, failure, first_detail, model_fault, paid_by, priced_failure
from activities.providers import Providers
from activities.providers.base import sendable
from activities.providers.scripted import Recording
from gradeloop.contract.messages import MESSAGE_BYTES, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step
from gradeloop.contract.thread import OUTAGE_SECONDS
from gradeloop.telemetry import metrics
from gradeloop.telemetry.traces import model_call

CANCELLED = "cancelled"
"""The error type of a call that its workflow stopped; it is not done, and its details say what it cost."""

RETRY_IMMEDIATELY = timedelta(milliseconds=1)
"""The pause before the next model is asked; none at all would leave the pause to Temporal."""

WORKER_LOST = "worker_lost"
"""The error type of a call that is not made again, since workers were lost with it in flight."""

RECORDED_SECONDS = 3.0
"""Seconds after which a heartbeat is with the server: a worker sends one every 2 seconds at most."""

REPLY_BYTES = 2 * MESSAGE_BYTES - 32 * 1024
"""The most bytes of a reply together with how it reads, as JSON: Temporal takes a payload of 2 MiB."""

Call = TypeVar("Call", bound=PaidCall)
Paid = TypeVar("Paid", bound=PaidReply)


@dataclass(frozen=True)
class ModelCalls:
    """Makes the paid calls of a worker's activities."""

    providers: Providers
    recording: Recording | None = None
    """The recorder of every exchange with a model, if there is one."""
    outage_timeout: float = OUTAGE_SECONDS
    """Seconds for which a call waits for a provider that is away, where its thread does not say."""
    limiter: CallLimiter = field(default_factory=CallLimiter)
    """The limiters of all models."""
    budgets: TenantBudgets = field(default_factory=TenantBudgets)
    """The daily budgets of tenants."""
    search_attributes: bool = False
    """Whether the namespace has our search attributes."""
    abandoned: AbandonedAttempts = field(default_factory=AbandonedAttempts)
    quarantine: Quarantine = field(default_factory=Quarantine)

    def limits(self, outage_timeout: float | None = None, attempts: int = retries.ATTEMPTS) -> retries.CallLimits:
        """Return the limits of a call: the thread's own wait for a provider that is away, or this worker's."""
        return retries.CallLimits(attempts=attempts, outage_seconds=outage_timeout or self.outage_timeout)

    @asynccontextmanager
    async def attempt(self, attempts: int = retries.ATTEMPTS, earlier: UnansweredAttempt | None = None) -> AsyncIterator[AttemptState]:
        """Send heartbeats while an activity that pays runs; an error of our own is final at its last attempt.

        Args:
            attempts: How many attempts may end in one kind of failure, fewer where they were paid for.
            earlier: The paid attempt before this one, where that was an activity of its own.

        Raises:
            ApplicationError: Its type is the error's class, `cancelled` where the workflow stopped the call: a bare cancellation could
                not say what it cost.
        """
        async with heartbeats(earlier, self.limits(attempts=attempts), suspects_wait=not self.quarantine.is_free) as state:
            try:
                yield state
            except asyncio.CancelledError:
                if not stop_requested():
                    raise
                details = FailureDetails(usage=state.spent, search_attributes=self.search_attributes)
                raise priced_failure("it was stopped", CANCELLED, details, final=True, benign=True) from None
            except ApplicationError as error:
                # The workflow counts only what the details of a failure say. A failure from below that has none, of
                # an attempt that was paid for, is raised again with them; else the money would be spent and counted
                # nowhere.
                if error.details or not state.spent.attempts:
                    raise
                benign, delay = error.category is ApplicationErrorCategory.BENIGN, error.next_retry_delay
                final = error.non_retryable
                raise priced_failure(error.message, error.type, state.details(), final=final, delay=delay, benign=benign) from None
            except FailureError:
                raise
            except Exception as error:
                state.fail(state.failed.after_unexpected(time.time()))
                if state.failed.unexpected < (min(attempts, retries.MALFORMED_ATTEMPTS) if state.spent.calls else attempts):
                    raise
                raise failure(error, model="", spent=state.spent, final=True) from error
            finally:
                state.ended = True
                await state.until_end.aclose()

    async def answer(self, call: Call, work: Callable[[Call, AttemptState], Coroutine[Any, Any, Paid]]) -> Paid | UnansweredAttempt:
        """Do an attempt of a thread's or a judgement's call; a paid one without an answer is returned, and its workflow asks again.

        Raises:
            ApplicationError: The attempt failed for good, or has cost nothing.
        """
        # Temporal's own retries are only for attempts that cost nothing. An activity that is stopped between two
        # attempts ends without a word of the first, and no budget of the thread is asked before the second. A paid
        # attempt therefore completes its activity, and the workflow counts it before it calls again. What the next
        # attempt must know, such as its place in the queue, goes with the result instead of with heartbeats.
        state: AttemptState | None = None
        try:
            async with self.attempt(earlier=call.earlier) as state:
                if (paid := await self.abandoned.adopt(state)) is not None:
                    return paid  # type: ignore[no-any-return]  # the same call's
                return await self.abandoned.pay(state, lambda: _sendable(work(call, state), state), lambda paid: paid.message.size())
        except Exception as error:
            if state is None or not state.spent.calls:
                raise
            reported = failure(error, model="", spent=state.spent)
            details = first_detail(reported.details, FailureDetails)
            raisable = details is not None and details.raisable and not call.raised
            if isinstance(error, ApplicationError) and error.non_retryable and not raisable:
                raise
            pause = retries.next_pause(activity.info().retry_policy, sum(state.failed.counts.values())) or 0.0
            if reported.next_retry_delay is not None:
                pause = reported.next_retry_delay.total_seconds()
            activity.logger.warning("a paid attempt gave no answer (%s) and is counted; the call is made again", reported.type)
            return UnansweredAttempt(
                usage=state.spent,
                raisable=raisable,
                search_attributes=self.search_attributes,
                problem=f"{reported.type}: {reported.message}",
                pause=0.0 if raisable or reported.type == retries.FALLBACK else pause,
                failed=state.failed,
                turn=state.position,
                since=state.progress.since,
            )

    async def understand(self, model: ModelSpec, state: AttemptState, *, trial: bool = True) -> None:
        """Ask the server of a model what it is, once, before the first request to it is built; the attempt counts what that costs."""
        tenant, usage = self.budgets.limited(current_tenant()), None
        state.ask(model.id, lambda: 0)
        try:
            usage = await self.providers.understand(model, trial=trial)
        except asyncio.CancelledError as error:
            usage = paid_by(error)
            raise
        finally:
            if usage is not None:
                state.asked += usage
                state.spend(usage)
                count_reply(ModelRequest(spec=model, step=Step(role="grader"), messages=()), usage)
                if tenant is not None:
                    await self.budgets.count(tenant, usage)

    async def send(
        self, request: ModelRequest, state: AttemptState, choice: retries.ModelChoice, before: Callable[[], Awaitable[None]] | None = None
    ) -> ModelReply:
        """Call a model once, when its limiter says so, and record the exchange where the worker has a recording.

        `before`: what is done once the call may be made, before it is sent.

        Raises:
            ApplicationError: Its type is the kind of failure, `outage` where the provider was away for as long as the limits say,
                `waiting` where the call has to wait for its turn, `fallback` where the next attempt asks another model; its details are
                what all attempts have cost. `tenant_budget` where the tenant has used up its budget of the day. `ThreadTooLarge` where
                the reply has more than 1 MiB, since a larger payload would wedge the workflow. `worker_lost` where it is not made again.
        """
        await self.understand(request.spec, state, trial=False)
        request = retries.fit_for(
            request if request.thread else replace(request, thread=activity.info().workflow_id or ""), choice.chain[0]
        )
        # The place in the quarantine comes first and the limiter's permit second: a suspect may wait for minutes for
        # its place, and a permit that it held meanwhile would be a call less for everybody. The budget is asked
        # behind both, since it may be used up while the call waits.
        async with self._place(state, reserves=before is not None):
            with await self._permit(request, state, choice) as permit:
                tenant, earlier = self.budgets.limited(current_tenant()), state.spent
                if tenant is not None:
                    priced = self.providers.cost(request.spec, Usage(calls=1)) is not None
                    await self.budgets.require_left(tenant, request.spec.id, earlier, priced=priced)
                if before is not None:
                    await before()
                    earlier = state.spent  # of which what is counted already is gone
                try:
                    return await self._send(request, state, choice, permit)
                finally:
                    if tenant is not None:
                        await self.budgets.count(tenant, state.spent.minus(earlier))

    @asynccontextmanager
    async def _place(self, state: AttemptState, *, reserves: bool) -> AsyncIterator[None]:
        """Make a call in the block, apart from others where workers were lost with it, and keep its place until its answer is handed over.

        What reserves it says that it is in flight.

        Raises:
            ApplicationError: Of type `worker_lost`: the last worker was lost with only this call in flight.
        """
        if state.lost >= LOST:
            state.spent += Usage(attempts=state.lost)  # nobody knows what they cost
            text = f"{state.lost} workers were lost with this call in flight, the last one with no other call beside it; "
            text += f"look in the worker's log for what ended it, or give it more memory, then {state.cure}"
            raise priced_failure(text, WORKER_LOST, state.details(), final=True)
        # A suspect has to be known as in flight before it is sent: if its worker dies, the next attempt must
        # count that worker. A batch's call says so by its reservation in the store. Any other call sends a
        # heartbeat, and waits until the server must have it.
        waits = state.over = bool(state.lost) and not reserves
        await state.until_end.aclose()  # a call before this one
        place = AsyncExitStack()
        await place.enter_async_context(self.quarantine.place(state.lost))
        try:
            state.over = False
            if waits:
                state.beat()
                await asyncio.sleep(RECORDED_SECONDS)
            yield
        finally:
            if state.ended:  # the server gave the attempt up, and its call went on
                await place.aclose()
            else:
                state.until_end.push_async_callback(place.aclose)

    def may_start(self, spec: ModelSpec) -> bool:
        """Return whether a call of a model would not have to wait for its turn now, as far as this worker knows."""
        return self.quarantine.is_free and self.limiter.is_free(spec.provider, self.providers.address_of(spec), spec.model)

    async def _permit(self, request: ModelRequest, state: AttemptState, choice: retries.ModelChoice) -> Permit:
        """Wait for the call's turn where that is soon; else end the attempt, so that the call waits in no slot of the worker."""
        spec, endpoint = request.spec, self.providers.address_of(request.spec)
        limiter = self.limiter.limiter(spec.provider, endpoint, spec.model, self.providers.at_once(spec, state.at_once))
        characters = len(request.system) + sum(len(message.content) for message in request.messages)
        since = min(time.time(), state.failed.waiting_since or math.inf)  # the clock of an earlier attempt may have been wrong
        try:
            return await limiter.enter(activity_call(), since, characters)
        except MustWait as wait:
            now = time.time()
            count_wait(request, wait.seconds)
            state.fail(state.failed.after_wait(since))
            # A call may wait for its turn for hours while others are answered, and that is not an outage. So
            # the time counts as one only from the first attempt on, and only if the model has answered no call
            # since. Otherwise a busy model would end calls by the outage timeout.
            away_since = state.failed.away_since or (since if limiter.answered < since else now)
            away = now - away_since
            fault = ModelFault("rate_limited", "its rate limit left no room for the call", model=spec.id)
            most = state.limits.outage_seconds
            decision = choice.after_failure(
                fault, retries.FailedAttempts(away_since=away_since), retries.RetryDecision(left=most), state.limits, now
            )
            if (following := decision.model) is not None:
                raise _follow(state, decision, f"{fault}; {following.id} is asked instead") from None
            if away < most:
                details = FailureDetails(usage=state.spent, waits_for=spec.id)
                delay = timedelta(seconds=min(wait.seconds, most - away, decision.left or most))
                raise priced_failure(f"waiting for {spec.id}'s rate limit", retries.WAITING, details, delay=delay, benign=True) from None
            final = retries.RetryDecision(final=True, away=away)
            raise retries.failed_call(fault, final, state.spent, endpoint=endpoint, pause=None) from None

    async def _send(self, request: ModelRequest, state: AttemptState, choice: retries.ModelChoice, permit: Permit) -> ModelReply:
        """Call a model once, and tell its limiter how that went."""
        clock = asyncio.get_running_loop().time
        began = clock()
        with kept_headers() as kept:
            state.ask(request.spec.id, lambda: kept.characters // CHARACTERS_A_TOKEN)
            state.draft = (lambda: kept.draft) if activity.info().activity_type == "generate" else str
            try:
                reply = await _traced(request, self._complete(request, state))
            except asyncio.CancelledError as error:  # it was sent, and so may be paid for
                state.spend(paid_by(error) or Usage(attempts=1, seconds=round(clock() - began, 3)))
                raise
            except Exception as error:  # noqa: BLE001 - the one classifier decides
                if isinstance(error, ModelFault) and self.recording:
                    self.recording.fault(request, error)
                raise await self._failed(request, state, choice, permit, error) from None
            permit.usage = reply.usage
            await permit.limiter.accepted(permit, kept)
        state.spent += reply.usage  # told with the next heartbeat: one for each reply would cost the server a third more
        count_reply(request, reply.usage)
        self.providers.note_answer(request.spec)
        message = sendable(reply.message)
        reply = replace(reply, message=message.model_copy(update={"model": choice.fallback.id}) if choice.fallback else message)
        if self.recording:
            self.recording.reply(request, reply)
        if (size := reply.message.size()) > MESSAGE_BYTES:
            text = f"{request.spec.id} answered with {size} bytes, {MESSAGE_BYTES} at most"
            raise priced_failure(text, "ThreadTooLarge", state.details(), final=True)
        return replace(reply, usage=state.spent)

    async def _complete(self, request: ModelRequest, state: AttemptState) -> ModelReply:
        """Call a model, once more without the thinking that its provider refuses; raise ModelFault if there is no answer."""
        try:
            return await self.providers.complete(request)
        except ModelFault as fault:
            if request.without_thinking or not fault.refuses_thinking or not any(message.vendor for message in request.messages):
                raise
            state.spend(fault.usage or Usage(attempts=1))
        return await self.providers.complete(replace(request, without_thinking=True))

    async def _failed(
        self, request: ModelRequest, state: AttemptState, choice: retries.ModelChoice, permit: Permit, error: Exception
    ) -> ApplicationError:
        """Count a failed attempt, and return its failure for Temporal."""
        spec, providers, now = request.spec, self.providers, time.time()
        fault = model_fault(error, model=spec.id)
        if fault is None:
            state.spent += Usage(attempts=1)
            return failure(error, model=spec.id, spent=state.spent)
        if fault.usage is not None:
            state.spent += fault.usage
            permit.usage = fault.usage
        # The failure is counted before the decision, which looks at the counts. Where a limit refused the call, the
        # limiter says how long it waits, since it knows the others in the queue. The time since which it waits is its
        # place there, and goes with it to the next attempt.
        state.fail(state.failed.after(fault, now))
        alone = state.failed.judge(fault, state.limits, now, lambda moment: providers.answered_since(spec, moment))
        decision = choice.after_failure(fault, state.failed, alone, state.limits, now)
        pause, waits = retries.next_pause(activity.info().retry_policy, sum(state.failed.counts.values())), None
        if fault.kind in LIMITED:
            since = state.failed.waiting_since or now
            state.fail(state.failed.after_wait(since))
            fault.retry_after = await permit.limiter.refused(permit, fault, activity_call(), since)
            waits = spec.id
        elif state.failed.waiting_since is not None:  # Temporal counts attempts that only waited
            fault.retry_after = fault.retry_after or pause
        is_final = decision.final and decision.model is None
        count_failure(request, fault.kind, fault.usage, final=is_final, away=decision.away is not None)
        if (following := decision.model) is not None:
            return _follow(state, decision, f"{fault}; {following.id} is asked instead")
        state.follow(decision)
        if decision.final and (more := choice.blame(decision.position) + providers.cure(spec, fault.kind)):
            fault.message = fault.message.removesuffix(".") + more
        endpoint = providers.address_of(spec)
        return retries.failed_call(fault, decision, state.spent, endpoint=endpoint, pause=pause, waits_for=waits)


async def _sendable(work: Awaitable[Paid], state: AttemptState) -> Paid:
    """Refuse a reply that its workflow cannot be given: outside of the call that would fail too, and be paid again and counted nowhere.

    Raises:
        ApplicationError: Of type `ThreadTooLarge`, or `malformed_response`; its details are what all attempts have cost.
    """
    paid = await work
    try:
        size = len(to_json(paid))
    except (PydanticSerializationError, ValueError) as error:
        text = f"the reply cannot be written as JSON: {conceal(str(error))}"
        raise priced_failure(text, "malformed_response", state.details(), final=True) from None
    if size > REPLY_BYTES:
        text = f"the reply and how it reads have {size} bytes together, {REPLY_BYTES} at most; ask for less at once"
        raise priced_failure(text, "ThreadTooLarge", state.details(), final=True)
    return paid


def _follow(state: AttemptState, decision: retries.RetryDecision, why: str) -> ApplicationError:
    """Have the next attempt ask another model at once, and return what ends this one."""
    state.follow(decision)
    return priced_failure(why, retries.FALLBACK, state.details(), delay=RETRY_IMMEDIATELY)


def current_tenant() -> str | None:
    """Return the tenant for which this activity works, as its workflow's priority names it."""
    return activity.info().priority.fairness_key or None


async def _traced(request: ModelRequest, sending: Awaitable[ModelReply]) -> ModelReply:
    """Await a request to a model in a span of its own, which has the kind of a ModelFault that it raises."""
    step, config = request.step, request.spec.config
    more = {
        "gen_ai.conversation.id": request.thread or None,
        "gen_ai.request.temperature": config.temperature,
        "gen_ai.request.max_tokens": config.max_tokens,
        "gradeloop.role": step.role,
        "gradeloop.run": step.run,
        "gradeloop.iteration": step.iteration,
    }

    def asked() -> dict[str, object]:
        messages = [message.model_dump(mode="json", exclude_defaults=True) for message in request.messages]
        return {"gen_ai.system_instructions": request.system, "gen_ai.input.messages": messages}

    with model_call("embeddings" if request.embedded else "chat", request.spec.provider, request.spec.model, more, asked) as span:
        try:
            reply = await sending
        except ModelFault as fault:
            span.failed(fault.kind)
            raise
        usage = reply.usage
        counts = {
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cache_read.input_tokens": usage.cached,
            "cache_creation.input_tokens": usage.cache_written,
        }
        span.answered(
            reply.message.model or request.spec.model, counts, lambda: [reply.message.model_dump(mode="json", exclude_defaults=True)]
        )
        return reply


def _labels(request: ModelRequest) -> dict[str, str]:
    return {"provider": request.spec.provider, "model": request.spec.model}


def count_reply(request: ModelRequest, usage: Usage, outcome: str = "ok") -> None:
    """Count a request that was answered, or how else it ended."""
    model = _labels(request)
    metrics.MODEL_CALLS.record(**model, role=request.step.role, outcome=outcome)
    if usage.seconds:
        metrics.MODEL_SECONDS.record(usage.seconds, **model)
    if usage.cost_usd:
        metrics.COST.record(usage.cost_usd, **model)
    counts = {"input": usage.input, "output": usage.output, "cached": usage.cached, "cache_written": usage.cache_written}
    for name, count in counts.items():
        if count:
            metrics.TOKENS.record(count, **model, type=name)


def count_wait(request: ModelRequest, seconds: float) -> None:
    """Count a call that was handed back to wait for its turn."""
    metrics.MODEL_WAITS.record(**_labels(request))
    metrics.MODEL_WAIT_SECONDS.record(seconds, **_labels(request))


def count_failure(request: ModelRequest, kind: str, usage: Usage | None, *, final: bool, away: bool = False) -> None:
    """Count a request that failed.

    `usage`: what it cost; None where that is not known.
    `away`: whether that is so since its provider was away for too long.
    """
    model = _labels(request)
    count_reply(request, usage or Usage(), "error")
    metrics.MODEL_ERRORS.record(**model, kind=kind)
    if not final:
        metrics.MODEL_RETRIES.record(**model)
    elif request.step.role == "grader":
        metrics.GRADER_ERRORS.record(kind=retries.OUTAGE if away else kind)
