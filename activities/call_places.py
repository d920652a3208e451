"""The places of a batch's calls: a worker that serves a queue alone is given more calls than may be made at once, so that none is late."""

from asyncio import Semaphore
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from gradeloop.batches.contract import CaseCall


class CallPlaces:
    """Lets a worker make as many calls of a shard at once as the shard may, and keeps those beyond it ready.

    What a call does beside the model, from the server's answer to the end of one call to the beginning of the next, then takes no place.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[str, int], Semaphore] = {}
        self._users = Counter[tuple[str, int]]()
        self._reasons: dict[str, str] = {}
        self._mine: ContextVar[Semaphore | None] = ContextVar("place", default=None)

    @asynccontextmanager
    async def place(self, call: CaseCall, shard: str) -> AsyncIterator[None]:
        """Wait for one of the places of the call's shard, and keep it for the block or until `leave`; a call without a limit has one."""
        if not call.places:
            yield
            return
        key = (shard, call.places)
        free = self._free.setdefault(key, Semaphore(call.places))
        self._users[key] += 1
        try:
            await free.acquire()
            taken = self._mine.set(free)
            try:
                yield
            finally:
                self.leave()
                self._mine.reset(taken)
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._free[key]

    def leave(self) -> None:
        """Give the place of the present call to the next one: its model has answered."""
        if (free := self._mine.get()) is not None:
            free.release()
            self._mine.set(None)

    def hold(self, batch_id: str, why: str) -> None:
        """Have the calls of a batch that wait here begin no more."""
        self._reasons.setdefault(batch_id, why)

    def resume(self, batch_id: str) -> None:
        """Have calls of a batch begin again."""
        self._reasons.pop(batch_id, None)

    def why_held(self, call: CaseCall) -> str | None:
        """Return why a call that was given ahead may not begin; None where it may."""
        return self._reasons.get(call.batch_id) if call.places else None
