"""Attempts of a call that the server gave up, as it does where no heartbeat came in time: the next one takes what became of them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.calls.attempts import FailedAttempts
from activities.calls.fallback import ModelTurn
from activities.state_cache import ByteBoundedCache
from gradeloop.contract.messages import Message, Usage

KEPT_BYTES = 16 * 1024 * 1024
"""The bytes of all replies that are kept for a next attempt."""

KEPT_ATTEMPTS = 4_000
"""The attempts that are remembered: those of a busy worker in the longest pause before a next one."""

UNCLAIMED_SECONDS = 90.0
"""How long a call goes on that the server has given up: above the longest pause before its next attempt, without which nobody wants it."""


class Account(Protocol):
    """What an attempt of a call knows of all attempts so far."""

    spent: Usage
    failed: FailedAttempts
    turn: ModelTurn


class PaidTurn(Protocol):
    """What a paid call returns."""

    @property
    def message(self) -> Message:
        """The reply."""


Turn = TypeVar("Turn", bound=PaidTurn)


@dataclass(frozen=True)
class LeftAttempt:
    """The last attempt of a call on this worker."""

    attempt: int
    account: Account
    """What it knows; of one in flight, what it will know at its end."""
    working: "asyncio.Task[Any] | None" = None
    """The work of one in flight."""
    turn: Any = None
    """What it returned; None where it failed."""


class LeftAttempts:
    """The attempts of a worker's calls, in flight and of late."""

    def __init__(self) -> None:
        self._left: ByteBoundedCache[str, LeftAttempt] = ByteBoundedCache(
            KEPT_BYTES, KEPT_ATTEMPTS, in_use=lambda left: left.working is not None
        )

    async def serve(self, account: Account, work: Callable[[], Coroutine[Any, Any, Turn]]) -> Turn:
        """Do the work of an attempt, or return what that of the attempt before it came to, which the server has given up.

        Work that the server gives up goes on, since to cancel it would lose what it costs: the next attempt takes its end. Work that is
        stopped, or whose worker ends, is cancelled; so is work that no further attempt asks for.

        Args:
            account: What this attempt knows; what the one before it has paid is added.
            work: Makes the call and reads its reply.

        Raises:
            ApplicationError: The attempt failed, or the one before it for good.
        """
        info = activity.info()
        call, attempt = f"{info.workflow_run_id}/{info.activity_id}", info.attempt
        if (left := self._left.get(call)) is not None and left.attempt == attempt - 1:
            if left.working is not None:
                self._left.put(call, replace(left, attempt=attempt))
                await self._taken_over(call, left.working, account, left.account)
                left = replace(left, working=None, turn=_turn_of(left.working))
            take_over(account, left.account)
            if left.turn is not None:
                return left.turn  # type: ignore[no-any-return]  # the same call's
        working = asyncio.create_task(work())
        self._left.put(call, LeftAttempt(attempt, account, working))
        working.add_done_callback(lambda _: self._keep(call, working))
        await self._ended(call, working)
        return working.result()

    async def _taken_over(self, call: str, working: "asyncio.Task[Any]", account: Account, theirs: Account) -> None:
        """Wait for the work of the attempt before this one.

        Raises:
            ApplicationError: It failed for good, or this attempt is over too.
        """
        try:
            await self._ended(call, working)
        finally:
            take_over(account, theirs)
        latest = self._left.get(call)
        if latest is not None and latest.attempt != activity.info().attempt:
            raise left_to_next()
        error = None if working.cancelled() else working.exception()
        if isinstance(error, ApplicationError) and error.non_retryable:
            raise error

    async def _ended(self, call: str, working: "asyncio.Task[Any]") -> None:
        """Wait for the end of work; where the server gives this attempt up, too, it ends if no other asks for it."""
        try:
            await wait_for_end(working)
        except asyncio.CancelledError:
            if not working.done():
                asyncio.get_running_loop().call_later(UNCLAIMED_SECONDS, self._end_unclaimed, call, activity.info().attempt)
            raise

    def _end_unclaimed(self, call: str, attempt: int) -> None:
        left = self._left.get(call)
        if left is not None and left.working is not None and left.attempt == attempt:
            left.working.cancel()

    def _keep(self, call: str, working: "asyncio.Task[Turn]") -> None:
        """Keep how work ended, for an attempt to come."""
        turn, left = _turn_of(working), self._left.get(call)
        if left is not None and left.working is working:
            self._left.put(call, replace(left, working=None, turn=turn), 0 if turn is None else turn.message.size())


def _turn_of(working: "asyncio.Task[Turn]") -> Turn | None:
    """Return what work has returned; None where it failed."""
    return None if working.cancelled() or working.exception() is not None else working.result()


def take_over(account: Account, left: Account) -> None:
    """Have an attempt know what the one before it knew at its end."""
    account.spent, account.failed, account.turn = left.spent, left.failed, left.turn


def left_to_next() -> ApplicationError:
    """Return the failure of an attempt that the server has given up, and whose call a later one has taken over."""
    return ApplicationError("a later attempt makes this call", type="given_up", category=ApplicationErrorCategory.BENIGN)


async def wait_for_end(working: "asyncio.Task[Any]") -> None:
    """Wait until work has ended, however it did; it is cancelled with the attempt that waits, unless the server has given that up.

    Raises:
        CancelledError: The attempt that waits is over.
    """
    try:
        await asyncio.wait([working])
    except asyncio.CancelledError:
        if not given_up():
            working.cancel()
            await asyncio.wait([working])  # until it is known what it cost
        raise


def given_up() -> bool:
    """Return whether the server knows this attempt no longer, and nobody has stopped its call."""
    details = activity.cancellation_details()
    lost = details is not None and (details.not_found or details.timed_out)
    return lost and details is not None and not details.cancel_requested and not details.worker_shutdown
