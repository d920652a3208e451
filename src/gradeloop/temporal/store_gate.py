"""The gate of a worker, which polls for nothing while its store cannot be used."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

from gradeloop.store.engine import Store
from gradeloop.telemetry.health import CHECK_SECONDS

logger = logging.getLogger("gradeloop.worker")

LOOK_SECONDS = 2.0
"""Seconds between two looks at the store: what comes meanwhile fails, and is tried again."""

WORKFLOW_SLOTS = 100
"""Workflow tasks at once, as the SDK has it where nothing else is said."""


class StoreGate(SimplePlugin):
    """Keeps a worker from polling while its store cannot be written, or is of a version that the worker may not use.

    Temporal gives a task to whoever polls. A worker that cannot write would fail each task as fast as it polls, and take it from workers
    that could do it. So slots are given out only while the gate is open, and without a slot the SDK does not poll. A poll that is under
    way when the gate closes may still bring a task.

    Args:
        store: The worker's store; one that other workers share is asked before the first poll.
    """

    def __init__(self, store: Store) -> None:
        super().__init__("gradeloop.StoreGate", run_context=self._looking)
        self.problem: str | None = "the store was not asked yet" if store.shared else None
        """The reason for which the gate is closed; None while it is open."""
        self._store, self._open = store, asyncio.Event()

    async def opened(self) -> None:
        """Wait until the gate is open."""
        while self.problem is not None:
            await self._open.wait()

    def tuner(self, activities: int) -> WorkerTuner:
        """Return what gives a worker so many slots for activities, and those for workflows, while the gate is open."""
        if not self._store.shared:  # no other worker could take the work, and the SDK asks for a gated slot in Python, three times a task
            return WorkerTuner.create_fixed(workflow_slots=WORKFLOW_SLOTS, activity_slots=activities)
        other = FixedSizeSlotSupplier(WORKFLOW_SLOTS)
        workflows, calls = _GatedSlots(self, WORKFLOW_SLOTS), _GatedSlots(self, activities)
        return WorkerTuner.create_composite(
            workflow_supplier=workflows, activity_supplier=calls, local_activity_supplier=other, nexus_supplier=other
        )

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look_on())
        try:
            yield
        finally:
            looking.cancel()

    async def _look_on(self) -> None:
        pause = LOOK_SECONDS if self.problem is None else 0.0
        while True:
            await asyncio.sleep(pause)
            pause, before, self.problem = LOOK_SECONDS, self.problem, await self._look()
            if self.problem is not None:
                self._open.clear()
                if self.problem != before:
                    logger.warning("this worker takes no work: %s", self.problem)
            elif before is not None:
                self._open.set()
                logger.info("this worker takes work: the store %r can be used", self._store.name)

    async def _look(self) -> str | None:
        """Return why the store cannot be used, if so."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._store.ping()
        except TimeoutError:
            return f"the store {self._store.name!r} does not answer within {CHECK_SECONDS:.0f} s"
        except Exception as error:  # noqa: BLE001 - whatever it is, the store cannot be used
            return str(error) or type(error).__name__
        return None


class _GatedSlots(CustomSlotSupplier):
    """So many slots behind a gate; the SDK reserves them in the event loop, and gives them back in threads of its own."""

    def __init__(self, gate: StoreGate, slots: int) -> None:
        self._gate, self._free = gate, slots
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:  # noqa: ARG002 - the SDK's
        """Wait until the gate is open and a slot is free, and take it."""
        while True:
            # The gate may close, and the slot may go, while this waits. So both are asked again under the lock,
            # and the future is added to the list under the same lock. If it were added outside, a slot given
            # back in between would wake nobody.
            await self._gate.opened()
            freed = asyncio.get_running_loop().create_future()
            with self._lock:
                if (permit := self._take()) is not None:
                    return permit
                self._waiting.append(freed)
            await freed

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:  # noqa: ARG002
        """Take a slot for a task that comes without a poll, if there is one."""
        with self._lock:
            return self._take()

    def _take(self) -> SlotPermit | None:
        if self._gate.problem is not None or not self._free:
            return None
        self._free -= 1
        return SlotPermit()

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Do nothing: a slot is taken when it is reserved."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:  # noqa: ARG002
        """Give a slot back, and wake all who wait: one of them may be gone."""
        with self._lock:
            self._free += 1
            waiting, self._waiting = self._waiting, []
        for freed in waiting:
            if not (loop := freed.get_loop()).is_closed():
                loop.call_soon_threadsafe(lambda freed=freed: freed.done() or freed.set_result(None))  # type: ignore[misc]
