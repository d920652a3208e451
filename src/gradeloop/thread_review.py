"""People's words to a thread, closed or open."""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

from gradeloop.contracts import GradingThread, ThreadState
from gradeloop.errors import InvalidRequest, ThreadClosed
from gradeloop.evaluation import Evaluation
from gradeloop.outcomes import Again
from gradeloop.steering import ApproveRequest, DecideRequest, DenyRequest, OverrideRequest
from gradeloop.thread_turns import ATTEMPTS, ThreadTurns

Told = TypeVar("Told")


class ThreadReview(ThreadTurns):
    """A thread, by its id, that people decide, approve and override in."""

    async def decide(self, request: DecideRequest) -> None:
        """Take a person's word to the thread."""
        await self._opened_for(lambda sent: self.handle().execute_update(GradingThread.decide, request, id=sent))

    async def only_call(self) -> str:
        """Return the id of the one tool call that waits for a person.

        Raises:
            InvalidRequest: None waits, or several do.
        """
        waiting = ThreadState.model_validate(await self.query("state")).waiting_for
        calls = [each.call for each in waiting.calls] if waiting else []
        if not calls:
            raise InvalidRequest(f"{self.thread_id}: no call waits for a person in this thread")
        if len(calls) > 1:
            raise InvalidRequest(f"{self.thread_id}: {len(calls)} calls wait; name one: {', '.join(calls)}")
        return calls[0]

    async def approve(self, request: ApproveRequest) -> None:
        """Take a person's approval to the thread."""
        await self._opened_for(lambda sent: self.handle().execute_update(GradingThread.approve, request, id=sent))

    async def deny(self, request: DenyRequest) -> None:
        """Take a person's denial to the thread."""
        await self._opened_for(lambda sent: self.handle().execute_update(GradingThread.deny, request, id=sent))

    async def override(self, request: OverrideRequest) -> Evaluation:
        """Take a person's verdict to the thread; a closed one is closed again."""
        was_open = await self.is_open()
        told = await self._opened_for(lambda sent: self.handle().execute_update(GradingThread.override, request, id=sent))
        if not was_open:
            await self.signal("close")
        return told

    async def _opened_for(self, send: Callable[[str], Awaitable[Told]]) -> Told:
        """Send an update to the thread, which is started from its checkpoint where it is closed."""
        update_id = str(uuid4())
        for _ in range(ATTEMPTS):
            try:
                await self.reopen()
                return await self.attended(send, update_id)
            except (Again, ThreadClosed):
                continue
        raise ThreadClosed(f"the thread {self.thread_id!r} closed {ATTEMPTS} times while it was spoken to")
