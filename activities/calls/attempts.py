"""The attempts of a paid call: what each of them hands to the next, and what one that the server has given up leaves to it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.calls.retries import CallLimits, ChainPosition, FailedAttempts, ModelChoice, RetryDecision, choose_model
from activities.errors import FailureDetails, activity_call, first_detail
from activities.state_cache import ByteBoundedCache
from gradeloop.contract.base import OmitEmpty, Strict, Tolerant
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import CallProgress

HEARTBEAT_SECONDS = 1.0
"""A cancellation comes back only with a heartbeat, so this and the worker's throttle of 2 s decide how soon a call stops."""

KEPT_BYTES = 16 * 1024 * 1024
"""The bytes of all replies that are kept for a next attempt."""

KEPT_ATTEMPTS = 4_000
"""The attempts that are remembered: those of a busy worker in the longest pause before a next one."""

HANDED_OVER_AT = 3
"""The place of a reply that is handed over among the details of a heartbeat."""

UNCLAIMED_SECONDS = 90.0
"""Seconds that a call goes on which the server has given up: above the longest pause before the next attempt, which takes it."""

Reply = TypeVar("Reply")


class UnansweredAttempt(FailureDetails):
    """A paid attempt that gave no answer: its cost, and what the attempt after it has to know."""

    problem: str
    """The kind of failure, and its message."""
    pause: float
    """Seconds until the call is made again."""
    failed: FailedAttempts
    turn: ChainPosition = ChainPosition()
    since: OmitEmpty[float | None] = None
    """Time of the call's first attempt, in seconds since 1970."""


class PaidCall(Strict):
    """The fields that every paid call of a thread or a judgement has."""

    raised: OmitEmpty[bool] = False
    """True where a reply was cut before: it gets a larger completion."""
    earlier: OmitEmpty[UnansweredAttempt | None] = None
    """The paid attempt before this one, where that gave no answer."""


class PaidReply(Tolerant):
    """The result of a paid call of a thread or a judgement: the model's reply, and how it reads."""

    message: Message


class _Carried(Tolerant):
    """The position in a heartbeat's record of failed attempts, which has none where no model failed."""

    turn: ChainPosition = ChainPosition()


class _Losses(Tolerant):
    """The workers that were lost with a call in flight, as its last heartbeat knows it."""

    attempt: int = -1
    """The attempt that sent the heartbeat; -1 where none has."""
    over: bool = False
    """Whether that would lose nothing with its worker: it has ended, has not begun its request, or its worker was told to stop."""
    closed: int = 0
    """The last attempt that reserved a request in the store, and ended."""
    lost: int = 0
    """The workers that were lost before that attempt."""


class AttemptState:
    """The record of all attempts of a call so far; the heartbeats of one attempt carry it to the next one."""

    def __init__(self, earlier: UnansweredAttempt | None = None, limits: CallLimits | None = None) -> None:
        beat, self.number = activity.info().heartbeat_details, activity.info().attempt
        self.spent = first_detail(beat, Usage) or Usage()
        self.failed = first_detail(beat[1:], FailedAttempts) or (earlier.failed if earlier else FailedAttempts())
        self.position = (first_detail(beat[1:], _Carried) or earlier or _Carried()).turn
        # Only heartbeats connect one attempt to the next. The last heartbeat of the attempt right before this
        # one says whether a request may have been in flight. If so, its worker counts as lost. Without such a
        # heartbeat nothing is known and nothing is counted. A batch then asks the store, whose reservations
        # know it better.
        losses = first_detail(beat[1:], _Losses) or _Losses()
        self.is_in_order = self.number == 1 or (losses.attempt == self.number - 1 and losses.over)
        """True if the attempt before this one is known to have ended; false if it may have been lost."""
        self.lost = losses.lost + (losses.attempt == self.number - 1 and not losses.over)
        """The number of workers that were lost with the call in flight, as heartbeats tell it; the store knows it better."""
        self.closed = losses.closed
        self.reserved: int | None = None
        """The attempt that has reserved the request that is made now."""
        self.over = False
        """True if the attempt loses nothing with its worker."""
        self.ended = False
        self.until_end = AsyncExitStack()
        """The place in the quarantine, kept until the attempt ends: an answer that is not handed over is lost with its worker, too."""
        self.limits = limits or CallLimits()
        self.handed_over: object = beat[HANDED_OVER_AT] if len(beat) > HANDED_OVER_AT else None
        """A reply as JSON that was paid for and not written down, which each attempt hands to the next; None where there is none."""
        known = first_detail(beat[2:], CallProgress)
        since = known.since if known else earlier.since if earlier and earlier.since else time.time()
        self.progress = CallProgress(since=since, problem=earlier.problem if earlier else None)
        self.tokens: Callable[[], int] | None = None
        """Returns about how many tokens of the reply have come."""
        self.draft: Callable[[], str] = str
        """Returns the end of the draft that has come; empty for any other reply."""
        self.asked = Usage()
        """The part of `spent` for asking servers what they are."""
        self.cure = "run it again"
        """The act that makes the call once more after it was given up with its workers."""
        self.timer: asyncio.TimerHandle | None = None
        self.at_once: int | None = None
        """The calls in flight at a local server that its batch allows; None for as many as the server has slots."""

    def beat(self) -> None:
        """Send a heartbeat."""
        position = {} if self.position == ChainPosition() else {"turn": self.position.model_dump(mode="json")}
        over = self.over or activity.is_worker_shutdown()
        losses = _Losses(attempt=self.number, over=over, closed=self.closed, lost=self.lost).model_dump(exclude_defaults=True)
        now = {"attempt": sum(self.failed.counts.values()) + 1, "tokens": (self.tokens() if self.tokens else 0) or None}
        progress = self.progress.model_copy(update=now | {"draft": self.draft() or None}).model_dump(mode="json")
        handed = () if self.handed_over is None else (self.handed_over,)
        activity.heartbeat(self.spent.model_dump(mode="json"), self.failed.model_dump(mode="json") | position | losses, progress, *handed)

    def wait_for(self, problem: str) -> None:
        """Report with the next heartbeat that a reply waits for the store."""
        self.progress = self.progress.model_copy(update={"store": problem})

    def ask(self, model: str, tokens: Callable[[], int]) -> None:
        """Report with the next heartbeats which model is asked, and about how many tokens of its reply have come."""
        self.progress, self.tokens = self.progress.model_copy(update={"model": model}), tokens

    def details(self) -> FailureDetails:
        """Return the details of a failure: what all attempts have cost."""
        return FailureDetails(usage=self.spent)

    def spend(self, usage: Usage) -> None:
        """Add what this attempt cost, for the next one."""
        self.spent += usage
        self.beat()

    def fail(self, failed: FailedAttempts) -> None:
        """Keep how the attempts so far failed, for the next one."""
        self.failed = failed
        self.beat()

    def adopt(self, left: "AttemptState") -> None:
        """Take over the record of the attempt before this one, whose worker is not lost."""
        self.spent, self.failed, self.position = left.spent, left.failed, left.position
        self.lost, self.closed, self.is_in_order, self.over = left.lost, left.reserved or left.closed, True, False

    def end(self) -> None:
        """Report with the last heartbeat that the attempt ends in an orderly way, without an answer."""
        self.over, self.closed = True, self.reserved or self.closed
        self.beat()

    def choose(self, spec: ModelSpec, taken: Collection[str] = ()) -> ModelChoice:
        """Return the model that this attempt asks, of the model that is to answer and its fallbacks.

        `taken`: ids of the models to which the call may not fall back.
        """
        # Failures belong to a model. The next one begins with none, or the outage of the first would use up its
        # attempts. The time since which no model has answered is in the position, so that it goes on.
        choice = choose_model(spec, self.position, self.failed, time.time(), taken)
        if choice.position != self.position:
            self.position, self.failed = choice.position, FailedAttempts()
            self.beat()
        return choice

    def follow(self, decision: RetryDecision) -> None:
        """Keep which model is asked next; what it failed before counts no more."""
        self.position = decision.position
        self.failed = self.failed if decision.model is None else FailedAttempts()
        self.beat()


@asynccontextmanager
async def heartbeats(
    earlier: UnansweredAttempt | None = None, limits: CallLimits | None = None, *, suspects_wait: bool = False
) -> AsyncIterator[AttemptState]:
    """Send heartbeats while the body runs, at half the activity's heartbeat timeout at the latest.

    `suspects_wait`: whether a call with which a worker was lost has to wait: it is not in flight if another suspect kills the worker.
    """
    timeout, state = activity.info().heartbeat_timeout, AttemptState(earlier, limits)
    state.over = suspects_wait and state.lost > 0
    if timeout is None:
        yield state
        return
    if state.number > 1:
        state.beat()
    _beat(state, min(HEARTBEAT_SECONDS, timeout.total_seconds() / 2))
    try:
        yield state
    except BaseException:
        state.end()
        raise
    finally:
        if state.timer is not None:
            state.timer.cancel()


def _beat(state: AttemptState, seconds: float, *, again: bool = False) -> None:
    """Send a heartbeat every so many seconds; most calls end before the first, for which a task would cost a tenth of a millisecond."""
    if again:
        state.beat()
    state.timer = asyncio.get_running_loop().call_later(seconds, partial(_beat, state, seconds, again=True))


@dataclass
class _Attempt:
    """The last attempt of a call on this worker."""

    number: int
    """Its number, or that of the attempt that has adopted it."""
    state: AttemptState
    """Its record; that of one in flight still changes."""
    working: "asyncio.Task[Any] | None"
    """The work of one in flight."""
    unwritten: bool
    """Whether a reply is kept until it is written down, whichever attempt does that."""
    reply: Any = None
    """Its reply; None where it failed."""


class AbandonedAttempts:
    """The newest attempts of a worker's calls: a reply that was paid for and not handed over is not paid for again."""

    # The server gives an attempt up where a busy machine sends no heartbeat in time, and starts the next one while the request of the
    # first is still in flight. To cancel that request would lose what it costs, to repeat it would pay twice. So its work goes on in a
    # task of its own, and the next attempt adopts it: it waits for its end, and knows then what the first one knew.
    # Invariant: of a call at most one request is in flight on this worker, and what an attempt has spent is in the state of exactly one
    # attempt that will report it. Only the attempt right behind takes a state, since one in between, on another worker, has paid more;
    # an unwritten reply of a batch is taken by any later attempt, since its charge in the store says under which number it is counted.
    # Work that is stopped by a person or by the end of its worker is cancelled, and so is work that no attempt asks for.

    def __init__(self) -> None:
        self._attempts: ByteBoundedCache[str, _Attempt] = ByteBoundedCache(
            KEPT_BYTES, KEPT_ATTEMPTS, in_use=lambda left: left.working is not None or (left.unwritten and left.reply is not None)
        )

    def unwritten(self) -> Any | None:  # noqa: ANN401 - what its caller has kept
        """Return the reply of the calling activity that is paid for and not written down; None where there is none."""
        left = self._attempts.get(activity_call())
        return left.reply if left is not None and left.unwritten else None

    def keep(self, state: AttemptState, reply: object) -> None:
        """Keep a reply of the calling activity that another worker was paid for, until `forget`."""
        self._attempts.put(activity_call(), _Attempt(activity.info().attempt, state, None, unwritten=True, reply=reply))

    def knows_call(self) -> bool:
        """Return whether an earlier attempt of the calling activity was made on this worker."""
        return self._attempts.get(activity_call()) is not None

    def forget(self) -> None:
        """Forget the attempts of the calling activity: what they were paid for is written down."""
        self._attempts.drop(activity_call())

    async def adopt(self, state: AttemptState) -> Any | None:  # noqa: ANN401 - what its caller has kept
        """Return the reply of the attempt before this one, once it has ended; None where this one has to make the call.

        Args:
            state: What this attempt knows; what the one before it has paid is added.

        Raises:
            ApplicationError: The attempt before failed for good, or this one is over too.
        """
        number, left = activity.info().attempt, self._attempts.get(activity_call())
        if left is None or (left.number != number - 1 and not left.unwritten):
            return None
        # The number is taken before the wait. A still later attempt then finds it one below its own, and adopts
        # in turn. After its wait this attempt sees that the number has moved on, and gives way. So at most one
        # attempt reports the reply.
        if (working := left.working) is not None:
            left.number, state.lost = number, left.state.lost
            try:
                await self._end_of(working, left)
            finally:
                state.adopt(left.state)
            if left.number != number:
                raise given_up()
            error = None if working.cancelled() else working.exception()
            if isinstance(error, ApplicationError) and error.non_retryable:
                raise error
        elif left.number == number - 1:
            state.adopt(left.state)
        return left.reply

    async def pay(
        self, state: AttemptState, work: Callable[[], Coroutine[Any, Any, Reply]], size: Callable[[Reply], int] | None = None
    ) -> Reply:
        """Do the work that pays for a call, and keep its reply for a next attempt.

        `size`: returns the bytes of a reply, which is kept while there is room for it; without this, it is kept until `forget`.
        """
        call, working = activity_call(), asyncio.create_task(work())
        mine = _Attempt(activity.info().attempt, state, working, unwritten=size is None)
        self._attempts.put(call, mine)

        # The attempt is in the cache before its request is sent, with no size, and cannot be dropped while it works.
        # Its size is known with its reply. What `forget` or a later attempt has replaced meanwhile is not put back.
        def keep(_: object) -> None:
            mine.working = None
            if not working.cancelled() and working.exception() is None:
                mine.reply = working.result()
                if self._attempts.get(call) is mine:
                    self._attempts.put(call, mine, size(working.result()) if size else 0)

        working.add_done_callback(keep)
        await self._end_of(working, mine)
        return working.result()

    @staticmethod
    async def _end_of(working: "asyncio.Task[Any]", attempt: _Attempt) -> None:
        """Wait until work has ended, however it did; it is cancelled with the attempt that waits, unless the server has given that up.

        Raises:
            CancelledError: The attempt that waits is over.
        """
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            number = activity.info().attempt
            # The one who cancels decides about the request. A stop by a person, or the end of the worker,
            # cancels it. An attempt that the server has given up leaves it running, since the next attempt
            # adopts it. If none comes in time it is cancelled, unless a batch keeps its reply until it is
            # written down.
            if not _given_up():
                working.cancel()
                await asyncio.wait([working])  # until it is known what it cost
            elif not attempt.unwritten:
                asyncio.get_running_loop().call_later(UNCLAIMED_SECONDS, lambda: attempt.number == number and working.cancel())
            raise


def given_up() -> ApplicationError:
    """Return what ends an attempt whose call a later one makes."""
    return ApplicationError("a later attempt makes this call", type="given_up", category=ApplicationErrorCategory.BENIGN)


def stop_requested() -> bool:
    """Return whether the workflow has stopped the call, and not the worker that ends."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested and not details.worker_shutdown


def _given_up() -> bool:
    """Return whether the server knows this attempt no longer, and nobody has stopped its call."""
    details = activity.cancellation_details()
    lost = details is not None and (details.not_found or details.timed_out)
    return lost and details is not None and not details.cancel_requested and not details.worker_shutdown
