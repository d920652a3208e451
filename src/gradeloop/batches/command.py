"""`gradeloop eval`: run a suite as a batch, or follow one, and return the exit code."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from gradeloop.batches.attend import Attendance
from gradeloop.batches.batch_request import BatchRequest
from gradeloop.batches.board import Board
from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.batches.client import BatchClient
from gradeloop.batches.ending import code_of, results_line
from gradeloop.batches.json_files import json_line
from gradeloop.batches.order import Order
from gradeloop.batches.outputs import SUFFIXES, Outputs
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.sending import sent
from gradeloop.batches.spool import Spool
from gradeloop.batches.table import result_lines
from gradeloop.connection import Connection, connect, find
from gradeloop.departure import STOPPED
from gradeloop.errors import InvalidRequest, WorkerFailed
from gradeloop.printable import counted
from gradeloop.rubric_file import existing
from gradeloop.settings_file import config_file
from gradeloop.store import VARIABLE, own_store
from gradeloop.suites.suite_file import read_suite
from gradeloop.worker_process import OURS, WorkerSpec, ensure_worker, ensure_worker_of

BEGIN_TRIES, BEGIN_SECONDS = 600, 0.1
"""How long a batch may take to begin: a minute, enough to start its worker again."""


class Evaluation:
    """One run of the command."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._console = Console(stderr=order.as_json, highlight=False, markup=False, emoji=False)
        self._reader = BatchReader(own_store())
        self._waiting: frozenset[str] = frozenset()
        """Threads of cases that wait for a person."""

    async def run(self) -> int:
        """Run a suite, or follow a batch, and return the exit code.

        Raises:
            GradeloopError: With one sentence for the user.
        """
        if self._order.suite is not None:
            return await self._new(self._order.suite)
        return await self._known(self._order.batch)

    async def _new(self, path: Path) -> int:
        order = self._order
        suite = read_suite(path, order.flags)
        known = [path for path in suite.outputs if path.suffix.lower() in SUFFIXES]
        outputs = Outputs([*known, *order.outputs])
        spool = Spool(suite.cases())
        request = order.request(suite, spool.total)
        existing(suite.tools, "--tools")
        existing((suite.scripted,) if suite.scripted else (), "--scripted")
        unknown = [
            f"outputPath {path.name}: ignored, its suffix names no format; known: {', '.join(SUFFIXES)}"
            for path in suite.outputs
            if path not in known
        ]
        for note in (*suite.notes, *unknown) if not order.as_json else ():
            self._console.print(note, style="dim", soft_wrap=True)
        await self._reader.open()
        connection = await find()
        client = await connect(connection)
        task_queue = os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(
            WorkerSpec(tools=suite.tools, scripted=suite.scripted, config=config_file((), os.environ)), connection
        )
        batches = BatchClient(client, task_queue)
        await sent(batches, request.batch_id, spool, connection, self._tell)
        spool.close()
        if await self._reader.stored(request.batch_id) != request.total:
            words = f"its worker uses another store; set {VARIABLE} here to the worker's value"
            raise InvalidRequest(f"the cases of {request.batch_id!r} were sent but are not in the store: {words}")
        return await self._started(batches, request, outputs, connection, task_queue)

    async def _started(self, batches: BatchClient, request: BatchRequest, outputs: Outputs, connection: Connection, task_queue: str) -> int:
        """Start or resume a batch, and follow it."""
        await batches.start(request)
        if OURS.fullmatch(task_queue):
            await ensure_worker_of(task_queue, connection)  # once more: it may have ended itself before the batch began
        if self._order.detach:
            self._tell(f"started; follow it with: gradeloop eval --attach {request.batch_id}")
            return 0
        await self._seen(batches, request.batch_id)
        return await self._followed(batches, request.batch_id, outputs, connection, task_queue)

    async def _seen(self, batches: BatchClient, batch_id: str) -> None:
        """Wait until the batch has begun, which is when the store has it.

        Raises:
            GradeloopError: It ended before that, or does not begin.
        """
        ending = asyncio.create_task(batches.result(batch_id))
        try:
            for _ in range(BEGIN_TRIES):
                if await self._reader.has(batch_id):
                    return
                await asyncio.wait([ending], timeout=BEGIN_SECONDS)
                if ending.done():
                    ending.result()
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        raise WorkerFailed(
            f"the batch {batch_id!r} has not begun within a minute; check its worker, then run: gradeloop eval --attach {batch_id}"
        )

    async def _known(self, name: str) -> int:
        """Follow a batch that was started before, or resume it."""
        order, outputs = self._order, Outputs(self._order.outputs)
        summary = await self._reader.summary(name)
        connection = await find()
        client = await connect(connection)
        there = await BatchClient(client, "").queue_of(summary.batch_id)
        if there is None and order.goes_on:
            words = f"the server no longer has the batch {summary.batch_id!r}; run the suite again, its verdicts come from the cache"
            raise InvalidRequest(words)
        task_queue, running = there or ("", False)
        batches = BatchClient(client, task_queue)
        if running and order.goes_on:
            raise InvalidRequest(
                f"the batch {summary.batch_id!r} is running already; follow it with: gradeloop eval --attach {summary.batch_id}"
            )
        if order.goes_on:
            if OURS.fullmatch(task_queue):
                await ensure_worker_of(task_queue, connection)
            known = BatchRequest.model_validate_json(await self._reader.request(summary.batch_id))
            return await self._started(batches, order.going_on(known), outputs, connection, task_queue)
        if running:
            return await self._followed(batches, summary.batch_id, outputs, connection, task_queue)
        stopped = {"status": "stopped", "reason": "its workflow has ended; resume it with --resume"}
        return await self._ended(summary.model_copy(update=stopped) if summary.status == "running" else summary, outputs, first=True)

    async def _followed(self, batches: BatchClient, batch_id: str, outputs: Outputs, connection: Connection, task_queue: str) -> int:
        summary = await self._reader.summary(batch_id)
        board = Board(self._console, summary.total)
        lines = _print_line if self._order.as_json else None
        attendance = Attendance(batch_id, batches, self._reader, outputs, board, lines)
        self._tell(f"batch {batch_id}: {counted(summary.total, 'case')}; Ctrl-C leaves the batch running")
        try:
            ended = await attendance.attend(task_queue, connection)
        finally:
            board.close()
        if ended is None:
            self._tell(f"still running; follow it with: gradeloop eval --attach {batch_id}")
            return STOPPED
        if attendance.waiting:
            self._waiting = frozenset(attendance.waiting)
            self._tell(f"cases wait for a person: {', '.join(attendance.waiting)}; decide with: gradeloop decide")
        return await self._ended(ended, outputs)

    async def _ended(self, summary: BatchSummary, outputs: Outputs, *, first: bool = False) -> int:
        """Write the outputs, print the results, and return the exit code."""
        if first:
            await asyncio.to_thread(self._told_again, summary, outputs)
        await asyncio.to_thread(outputs.close, summary, lambda: self._results(summary))
        if outputs.pages:
            from gradeloop.reports.batch_files import write_pages

            await write_pages(outputs.pages, self._reader, summary.batch_id)
        if not self._order.as_json:
            for line in await asyncio.to_thread(lambda: list(result_lines(self._results(summary), self._console.width))):
                self._console.print(line)
        rate = self._order.limits.pass_rate
        self._console.print(results_line(summary, pass_rate=rate), soft_wrap=True)
        if summary.status in {"paused", "stopped"}:
            self._tell(f"resume it with: gradeloop eval --resume {summary.batch_id}")
        return code_of(summary, allow_errors=self._order.allow_errors, pass_rate=rate)

    def _told_again(self, summary: BatchSummary, outputs: Outputs) -> None:
        for result in self._reader.results(summary.batch_id):
            if result.status not in {"queued", "waiting"}:
                outputs.finished(result)
                if self._order.as_json:
                    _print_line(result)

    def _results(self, summary: BatchSummary) -> Iterator[CaseResult]:
        """Yield all cases, with the reason for those that have not finished."""
        for result in self._reader.results(summary.batch_id, f"not run: {summary.reason or summary.status}"):
            thread = f"{summary.batch_id}/{result.id}"
            waits = {"status": "waiting", "error": "it waits for a person", "thread_id": thread}
            yield result.model_copy(update=waits) if thread in self._waiting else result

    def _tell(self, words: str) -> None:
        print(words, file=sys.stderr)  # noqa: T201 - beside what the command prints


def _print_line(result: CaseResult) -> None:
    print(json_line(result), end="", flush=True)  # noqa: T201 - what was asked for
