"""The places of a batch's calls: a worker that serves a queue alone is given more calls than may be made at once, so that none is late."""

from asyncio import Semaphore
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.attempts import OUTAGE, TENANT_BUDGET
from gradeloop.batches.contract import CaseCall

HELD = 1_000
"""The shards of which it is remembered that they are held: those of the newest holds."""


class CallHeld(Exception):
    """A call that was given ahead may not begin: its message says why."""


class CallPlaces:
    """Lets a worker make as many calls of a shard at once as the shard may, and keeps those beyond it ready.

    What a call does beside the model, from the server's answer to the end of one call to the beginning of the next, then takes no place.
    """

    def __init__(self) -> None:
        self._free: dict[str, Semaphore] = {}
        self._shards = Counter[str]()
        self._batches = Counter[str]()
        """The calls that are made here or wait, by shard and by batch."""
        self._reasons: dict[str, str] = {}

    @asynccontextmanager
    async def place(self, call: CaseCall, limit: Callable[[CaseCall], Awaitable[str | None]]) -> AsyncIterator[None]:
        """Wait for one of the places of the call's shard, and keep it for the block.

        Args:
            call: The call; one that is not given ahead has a place.
            limit: Tells which limit of the batch is reached, asked where there was anything to wait for.

        Raises:
            CallHeld: The shard is held, or a limit is reached.
            ApplicationError: The worker is told to stop, and begins no call any more.
        """
        shard = activity.info().workflow_run_id or ""
        with _counted(self._batches, call.batch_id):
            if not call.places:
                yield
                return
            with _counted(self._shards, shard):
                free = self._free.setdefault(shard, Semaphore(call.places))
                waits = free.locked()
                try:
                    async with free:
                        if waits:
                            refuse_at_shutdown()
                        self._refuse_held(self._reasons.get(shard) or (await limit(call) if waits else None))
                        yield
                except ApplicationError as error:
                    if error.type in {OUTAGE, TENANT_BUDGET}:  # before the next one has the place
                        self.hold([shard], f"{error.type}: {error.message}")
                    raise
                finally:
                    if self._shards[shard] == 1:
                        del self._free[shard]

    @staticmethod
    def _refuse_held(why: str | None) -> None:
        if why:
            raise CallHeld(why)

    def has_others(self, batch_id: str) -> bool:
        """Return whether calls of another batch are made here, or wait."""
        return bool(self._batches.keys() - {batch_id})

    def hold(self, shards: Iterable[str], why: str) -> None:
        """Have the calls of shards, by the ids of their runs, that wait here begin no more."""
        for shard in shards:
            self._reasons.setdefault(shard, why)
        while len(self._reasons) > HELD:
            del self._reasons[next(iter(self._reasons))]


def refuse_at_shutdown() -> None:
    """Refuse to begin a call in a worker that has been told to stop.

    Raises:
        ApplicationError: For another attempt.
    """
    if activity.is_worker_shutdown():
        raise ApplicationError("the worker stops", type="worker_stops", category=ApplicationErrorCategory.BENIGN)


@contextmanager
def _counted(calls: Counter[str], key: str) -> Iterator[None]:
    """Count a call while the block runs."""
    calls[key] += 1
    try:
        yield
    finally:
        calls[key] -= 1
        if not calls[key]:
            del calls[key]
