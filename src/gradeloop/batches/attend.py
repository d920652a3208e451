"""A batch followed to its end: the store is read, the worker looked after, Ctrl-C leaves the batch to itself."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gradeloop.attendance import ctrl_c
from gradeloop.batches.board import Board
from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.batches.client import BatchClient
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.reader import PAGE, BatchReader
from gradeloop.connection import Connection
from gradeloop.errors import BatchLost
from gradeloop.worker_process import done_before, looked_after

READ_SECONDS = 0.25
"""Between two looks into the store."""

STILL_SECONDS = 3.0
"""Without a case that ends, after which the batch is asked whether all of it waits for people."""

ASK_SECONDS = 1.0
"""Between two questions to the workflow."""


@dataclass
class Attendance:
    """Follows one batch."""

    batch_id: str
    client: BatchClient
    reader: BatchReader
    outputs: Outputs
    board: Board
    as_lines: Callable[[CaseResult], None] | None = None
    """Is told each result as it comes."""
    after: int = 0
    """How far the results were told."""
    summary: BatchSummary | None = None
    waiting: tuple[str, ...] = ()
    """Threads that wait for a person, where nothing else is left to do."""
    _running: int = 0

    async def attend(self, task_queue: str, connection: Connection) -> BatchSummary | None:
        """Return where the batch stands once it has ended, is paused, or waits for people; None where Ctrl-C came first."""
        with ctrl_c() as pressed:
            ended = await done_before(self._followed(task_queue, connection), pressed.get())
        return self.summary if ended else None

    async def _followed(self, task_queue: str, connection: Connection) -> None:
        result = asyncio.create_task(self.client.result(self.batch_id))
        beside = [asyncio.create_task(looked_after(task_queue, connection)), asyncio.create_task(self._asked())]
        watching = asyncio.create_task(self._until_still(result))
        try:
            await asyncio.wait([watching, *beside], return_when=asyncio.FIRST_COMPLETED)
            for task in beside:
                if task.done():
                    task.result()
            await watching
        finally:
            for each in (result, watching, *beside):
                each.cancel()
            await asyncio.gather(result, watching, *beside, return_exceptions=True)

    async def _until_still(self, result: "asyncio.Task[BatchSummary]") -> None:
        """Tell what ends until the batch has, or nothing but people can bring it on."""
        clock = asyncio.get_running_loop().time
        since = clock()
        while not result.done():
            await asyncio.wait([result], timeout=READ_SECONDS)
            if await self.look():
                since = clock()
            elif clock() - since > STILL_SECONDS and await self._waits():
                return
            else:
                since = since if clock() - since <= STILL_SECONDS else clock()
        await self.look()
        try:
            self.summary = result.result()
        except BatchLost as error:
            known = self.summary or await self.reader.summary(self.batch_id)
            why = known.reason if known.status == "stopped" and known.reason else str(error)
            self.summary = known.model_copy(update={"status": "stopped", "reason": why})

    async def look(self) -> int:
        """Tell the results that came since, and where the batch stands; return how many they were."""
        told = 0
        while True:
            results, self.after = await self.reader.ended_since(self.batch_id, self.after)
            for each in results:
                self.outputs.finished(each)
                self.board.finished(each)
                if self.as_lines is not None:
                    self.as_lines(each)
            told += len(results)
            if len(results) < PAGE:
                break
        self.summary = await self.reader.summary(self.batch_id)
        self.board.update(self.summary, self._running)
        return told

    async def _asked(self) -> None:
        """Ask now and then how many cases are being judged."""
        while True:
            running = await self.client.in_flight(self.batch_id)
            self._running = self._running if running is None else running
            await asyncio.sleep(ASK_SECONDS)

    async def _waits(self) -> bool:
        """Tell whether all that has begun waits for people, so that nothing else begins; the summary then says so."""
        summary = self.summary
        if summary is None or not summary.open or not self._running:
            return False
        found = await self.client.waiting(self.batch_id)
        if len(found) < self._running:
            return False
        self.waiting = tuple(found)
        self.summary = summary.model_copy(update={"waiting": len(found)})
        return True
