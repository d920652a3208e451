"""Replies of calls of a batch that were paid for and are not in the store yet: the next attempt of their call pays nothing."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.calls.abandoned_attempts import Account, left_to_next, take_over, wait_for_end
from activities.calls.fallback import ModelChoice
from gradeloop.batches.cases import Charge
from gradeloop.batches.store import WaitNote
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import ModelReply


@dataclass(frozen=True)
class Bill:
    """What a call has to have counted with what it writes."""

    spent: Usage = Usage()  # noqa: RUF009 - frozen
    """What it cost, with all that is not counted yet of the attempts and calls before it."""
    charge: Charge | None = None
    """The charge under which that is counted once; None where nothing was paid."""
    on_wait: WaitNote | None = None
    """Called while the store is waited for; None for a call that is made again where that takes long."""


@dataclass(frozen=True)
class PaidReply:
    """A reply, kept until what it says is in the store."""

    reply: ModelReply
    bill: Bill
    choice: ModelChoice
    """The model that gave it."""


class KeptReplies:
    """The replies that a worker has paid for and not yet written down, by their calls."""

    def __init__(self) -> None:
        self._replies: dict[str, PaidReply] = {}
        self._in_flight: dict[str, tuple[asyncio.Task[PaidReply], Account]] = {}
        self._waiting: dict[str, int] = {}
        """The number of the attempt that waits for one in flight."""

    def __contains__(self, call: str) -> bool:
        """Return whether the reply of a call is kept."""
        return call in self._replies

    def get(self, call: str) -> PaidReply | None:
        """Return the reply of a call; None where none is kept."""
        return self._replies.get(call)

    def pop(self, call: str) -> PaidReply | None:
        """Keep the reply of a call no longer, and return it; None where none is kept."""
        return self._replies.pop(call, None)

    async def earlier(self, call: str, account: Account) -> None:
        """Wait for what an earlier attempt of a call has in flight; its reply is kept then, and what it cost is this one's.

        Raises:
            ApplicationError: It failed for good, or this attempt is over too.
        """
        if call not in self._in_flight:
            return
        paying, theirs = self._in_flight[call]
        mine = self._waiting[call] = activity.info().attempt
        try:
            await wait_for_end(paying)
        finally:
            take_over(account, theirs)
            latest = self._waiting.get(call)
            if latest == mine:
                del self._waiting[call]
        if latest != mine:
            raise left_to_next()
        error = None if paying.cancelled() else paying.exception()
        if isinstance(error, ApplicationError) and error.non_retryable:
            raise error

    async def pay(self, call: str, account: Account, work: Coroutine[Any, Any, PaidReply]) -> PaidReply:
        """Do the work that pays for a call, and keep its reply.

        An attempt that the server gives up, as it does where a busy machine sends no heartbeat in time, leaves the call in flight to the
        next attempt: to cancel it would lose what it costs. One that is stopped, or whose worker ends, cancels it.
        """
        paying = asyncio.create_task(work)
        self._in_flight[call] = (paying, account)
        paying.add_done_callback(partial(self._keep, call))
        await wait_for_end(paying)
        return paying.result()

    def _keep(self, call: str, paying: "asyncio.Task[PaidReply]") -> None:
        if call in self._in_flight and self._in_flight[call][0] is paying:
            del self._in_flight[call]
        if not paying.cancelled() and paying.exception() is None:
            self._replies.setdefault(call, paying.result())
