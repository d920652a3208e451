"""A batch that is followed: its progress is shown, its finished cases are written, its worker and store are waited for."""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from gradeloop.batches.cli.batch_view import BatchProgressView
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.reader import PAGE, BatchReader
from gradeloop.errors import BatchLost, InvalidRequest, StoreLost, StoreRefused, StoreUnavailable
from gradeloop.temporal.connect import Connection, done_before, keep_worker_alive
from gradeloop.temporal.process import beside, done_beside
from gradeloop.text import clip, duration

TIMEOUT_VARIABLE = "GRADELOOP_STORE_TIMEOUT"

GIVE_UP_SECONDS = 600.0
"""Seconds for which a command waits for a store that is away: above a restart of its server, below the limit of a job of CI."""

PAUSE_SECONDS = 1.0
"""The pause between two tries."""

T = TypeVar("T")


def store_timeout() -> float:
    """Return for how many seconds to wait for a store that is away; raise InvalidRequest where GRADELOOP_STORE_TIMEOUT is none."""
    named = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    try:
        seconds = float(named or GIVE_UP_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"{TIMEOUT_VARIABLE} is {clip(named)}, which is not a number of seconds; set it to 600, or unset it")
    return seconds


class StoreWatch:
    """Reads the store of a batch, which may be away for a while, and says so once for each time."""

    def __init__(self, batch_id: str, notify: Callable[[str], None]) -> None:
        self._batch_id = batch_id
        self._notify = notify
        self._problem: str | None = None
        self._timeout = store_timeout()

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return what a read of the store returns, tried again while the store is away; raise StoreLost where it was away for long."""
        since, noted = time.monotonic(), False
        while True:
            try:
                found = await read()
            except StoreRefused:
                raise
            except StoreUnavailable as error:
                if not noted:
                    self._notify(f"{error}; the batch {self._batch_id} goes on, waiting for the store")
                noted = True
                if time.monotonic() - since > self._timeout:
                    raise self.lost(error) from None
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                if noted:
                    self._notify("the store answers again")
                return found

    def lost(self, error: StoreUnavailable) -> StoreLost:
        """Return the error with which a command gives up."""
        waited = f"gave up after {duration(self._timeout)}"
        return StoreLost(f"{error}; {waited}, the batch goes on; follow it with: gradeloop eval --attach {self._batch_id}")

    def note_worker(self, problem: str | None) -> None:
        """Say what the batch's worker waits for, once for each problem; None where it waits for nothing."""
        if problem is not None and self._problem is None:
            self._notify(f"the batch waits, its worker cannot write: {problem}")
        if problem is None and self._problem is not None:
            self._notify("the worker can write again")
        self._problem = problem


READ_SECONDS = 0.25
"""The pause between two reads of the store."""

STILL_SECONDS = 3.0
"""Seconds without an ended case after which the batch is asked whether all its running cases wait for people."""

ASK_SECONDS = 1.0
"""The pause between two queries of the workflow."""


@dataclass
class BatchFollower:
    """Follows a batch: shows its progress, writes finished cases, and keeps its worker alive."""

    batch_id: str
    client: BatchClient
    reader: BatchReader
    outputs: Outputs
    view: BatchProgressView
    watch: StoreWatch
    on_result: Callable[[CaseResult], None] | None = None
    """Called with every result as it comes."""
    after: int = 0
    """The store's number of the last result that was reported."""
    summary: BatchSummary | None = None
    waiting: tuple[str, ...] = ()
    """Threads that wait for a person, if nothing else is left to do."""
    _running: int = 0
    _still: bool = False
    """Whether no case has ended for a while."""

    async def follow(self, task_queue: str, connection: Connection, pressed: "asyncio.Queue[None]") -> BatchSummary | None:
        """Return the batch's summary once it has ended, is paused, or waits for people; None if Ctrl-C came first."""
        ended = await done_before(self._follow(task_queue, connection), pressed.get())
        return self.summary if ended else None

    async def _follow(self, task_queue: str, connection: Connection) -> None:
        async with beside(self.client.result(self.batch_id)) as (result,):
            await done_beside(self._until_still(result), keep_worker_alive(task_queue, connection), self._count_running())

    async def _until_still(self, result: "asyncio.Task[BatchSummary]") -> None:
        """Report results until the batch has ended, or waits only for people."""
        clock = asyncio.get_running_loop().time
        since = ended = clock()
        # A batch whose cases all wait for people does not end by itself. `since` begins anew with each result and
        # with each look at that, so that the look is not repeated at every read. `ended` begins anew only with
        # results, and says whether the batch stands still.
        while not result.done():
            await asyncio.wait([result], timeout=READ_SECONDS)
            if await self._report():
                since = ended = clock()
            elif clock() - since > STILL_SECONDS and await self._waits():
                return
            else:
                since = since if clock() - since <= STILL_SECONDS else clock()
            self._still = clock() - ended > STILL_SECONDS
        await self._report()
        try:
            self.summary = result.result()
        except BatchLost as error:
            known = await self.watch.read(lambda: self.reader.summary(self.batch_id))
            why = known.reason if known.status == "stopped" and known.reason else str(error)
            self.summary = known.model_copy(update={"status": "stopped", "reason": why})

    async def _report(self) -> int:
        """Report the results that came since the last call, and the batch's progress; return how many they are."""
        reported = 0
        while True:
            results, self.after = await self.watch.read(lambda: self.reader.ended_since(self.batch_id, self.after))
            for result in results:
                self.outputs.finished(result)
                self.view.finished(result)
                if self.on_result is not None:
                    self.on_result(result)
            reported += len(results)
            if len(results) < PAGE:
                break
        self.summary = await self.watch.read(lambda: self.reader.summary(self.batch_id))
        self.view.update(self.summary, self._running)
        return reported

    async def _count_running(self) -> None:
        """Query the batch again and again for how many cases are running."""
        while True:
            running = await self.client.in_flight(self.batch_id)
            self._running = self._running if running is None else running
            waits = await self.client.waits(self.batch_id)
            self.view.note_wait(waits[0].text if waits else None)
            if self._still:
                self.watch.note_worker(next((wait.store for wait in waits if wait.store), None))
            await asyncio.sleep(ASK_SECONDS)

    async def _waits(self) -> bool:
        """Return whether all running cases wait for people, so that no other case begins; the summary then counts them as waiting."""
        summary = self.summary
        if summary is None or not summary.open or not self._running:
            return False
        found = await self.client.waiting(self.batch_id)
        if len(found) < self._running:
            return False
        self.waiting = tuple(found)
        self.summary = summary.model_copy(update={"waiting": len(found)})
        return True
