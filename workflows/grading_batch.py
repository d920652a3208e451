"""A batch: its shards opened side by side, a few at a time, until every case has ended or a limit is reached."""

import asyncio
from collections import deque
from contextlib import suppress

from temporalio import workflow
from temporalio.common import Priority, RawValue
from temporalio.exceptions import ApplicationError, ChildWorkflowError, FailureError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowHandle

from workflows.batch_shard import BatchShard, ShardEnded, ShardRequest
from workflows.calls import told
from workflows.case_calls import SHARD_LOST, call_store, priority_of
from workflows.raw import NO_VALUE, decoded
from workflows.run_ahead import RunAhead

with workflow.unsafe.imports_passed_through():
    from collections.abc import Callable
    from typing import Any, TypeVar

    from gradeloop.batches.batch_request import BatchRequest, parse_batch, parse_upload
    from gradeloop.batches.case_call import Closing, Opened
    from gradeloop.batches.case_result import BatchSummary
    from gradeloop.batches.contract import UPLOAD_WORKFLOW, WORKFLOW, BatchProgress, GradingBatch, StoreCases
    from gradeloop.errors import InvalidRequest

Parsed = TypeVar("Parsed")

SHARE = 0.8
"""Of a worker's slots that a batch holds at most."""

LANES = 25
"""Calls in flight of one shard, from which on another one is opened beside it."""

SHARDS = 4
"""Open at once at most."""

EVENTS = 4_000
"""Of a history, above which no further shard is opened before the batch goes on in a new run."""

LOST = 3
"""How often a shard that was lost is opened again."""


@workflow.defn(name=UPLOAD_WORKFLOW)
class StoreCasesWorkflow(StoreCases):
    """A stretch of cases, written into the store."""

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> int:  # type: ignore[override]  # raw, so that a malformed one is refused
        """See `gradeloop.batches.contract.StoreCases.run`."""
        upload = _parsed(lambda: parse_upload(decoded(request, "the request")))
        return await call_store("store_cases", upload, int, Priority.default, f"store {len(upload.cases)} cases")


@workflow.defn(name=WORKFLOW)
class GradingBatchWorkflow(GradingBatch):
    """One batch."""

    @workflow.init
    def __init__(self, request: RawValue = NO_VALUE) -> None:  # noqa: ARG002 - the run's
        self._held: str | None = None
        self._open: dict[asyncio.Task[None], ChildWorkflowHandle[Any, ShardEnded] | None] = {}
        self._ended: list[ShardEnded] = []
        self._due: deque[tuple[int, int]] = deque()
        self._lost: dict[tuple[int, int], int] = {}
        self._opened = 0

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> BatchSummary:  # type: ignore[override]  # as above
        """See `gradeloop.batches.contract.GradingBatch.run`."""
        batch = _parsed(lambda: parse_batch(decoded(request, "the request")))
        self._guard = asyncio.create_task(RunAhead().guard())
        self._priority = priority_of(batch.priority)
        opened = await call_store("open_batch", batch, Opened, self._priority, "open batch")
        self._due.extend(opened.stretches)
        most = max(1, min(batch.at_once, int(SHARE * opened.slots)))
        shards = max(1, min(SHARDS, most // LANES, len(self._due)))
        try:
            await self._all(batch, shards, max(1, most // shards))
        except asyncio.CancelledError:
            await self._close(batch, "it was cancelled", stopped=True)
            raise
        except ApplicationError as error:
            await self._close(batch, error.message, stopped=True)
            raise
        if self._due and self._held is None:
            workflow.continue_as_new(batch.model_copy(update={"again": None}))
        return await self._close(batch, self._held)

    async def _all(self, batch: BatchRequest, shards: int, lanes: int) -> None:
        """Open shards until nothing is due, a limit is reached, or the history is long; return when none is open."""
        try:
            while self._open or (self._due and self._may_open()):
                while self._due and len(self._open) < shards and self._may_open():
                    stretch = self._due.popleft()
                    task = asyncio.create_task(self._shard(batch, stretch, lanes))
                    self._open[task] = None
                done, _ = await workflow.wait(list(self._open), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._open[task]
                    task.result()
        finally:
            for task in self._open:
                task.cancel()

    def _may_open(self) -> bool:
        info = workflow.info()
        return self._held is None and info.get_current_history_length() < EVENTS and not info.is_continue_as_new_suggested()

    async def _shard(self, batch: BatchRequest, stretch: tuple[int, int], lanes: int) -> None:
        """Run a shard to its end; what it leaves undone is due again."""
        self._opened += 1
        task, request = asyncio.current_task(), ShardRequest.of(batch, stretch, lanes)
        name = f"shard/{batch.batch_id}/{stretch[0]}-{stretch[1]}/{workflow.info().run_id[:8]}-{self._opened}"
        try:
            handle = await workflow.start_child_workflow(BatchShard.run, request, id=name, priority=self._priority)
            if task in self._open:
                self._open[task] = handle
            if self._held:
                await _hold(handle, self._held)
            ended = await handle
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            self._note_lost(stretch, error)
            return
        self._ended.append(ended)
        self._held = self._held or ended.held
        if ended.left and not (self._held or ended.passed or ended.failed or ended.errors):
            self._note_vain(stretch)
        elif ended.left:
            self._due.append(stretch)

    def _note_vain(self, stretch: tuple[int, int]) -> None:
        """Have a shard in which nothing came to an end opened again.

        Raises:
            ApplicationError: That has happened again and again.
        """
        self._lost[stretch] = self._lost.get(stretch, 0) + 1
        if self._lost[stretch] > LOST:
            words = f"of the cases {stretch[0]} to {stretch[1] - 1} none comes to an end"
            raise ApplicationError(words, type=SHARD_LOST, non_retryable=True)
        self._due.append(stretch)

    def _note_lost(self, stretch: tuple[int, int], error: ChildWorkflowError) -> None:
        """Have a shard that was lost opened again.

        Raises:
            ApplicationError: It was refused, or is lost again and again.
        """
        refused = isinstance(error.cause, ApplicationError) and error.cause.type == InvalidRequest.__name__
        self._lost[stretch] = self._lost.get(stretch, 0) + 1
        if refused or self._lost[stretch] > LOST:
            kind = InvalidRequest.__name__ if refused else SHARD_LOST
            words = told(error).removeprefix(f"{InvalidRequest.__name__}: ")
            raise ApplicationError(words, type=kind, non_retryable=True) from None
        self._due.append(stretch)

    async def _close(self, batch: BatchRequest, why: str | None, *, stopped: bool = False) -> BatchSummary:
        closing = Closing(batch_id=batch.batch_id, why=why, stopped=stopped)
        return await call_store("close_batch", closing, BatchSummary, self._priority, "close batch")

    @workflow.signal
    async def pause(self) -> None:
        """See `gradeloop.batches.contract.GradingBatch.pause`."""
        self._held = self._held or "paused by a person"
        for handle in list(self._open.values()):
            if handle is not None:
                await _hold(handle, self._held)

    @workflow.query
    def progress(self) -> BatchProgress:
        """See `gradeloop.batches.contract.GradingBatch.progress`."""
        return BatchProgress(
            held=self._held,
            shards=tuple(handle.id for handle in self._open.values() if handle is not None),
            passed=sum(each.passed for each in self._ended),
            failed=sum(each.failed for each in self._ended),
            errors=sum(each.errors for each in self._ended),
        )


async def _hold(shard: ChildWorkflowHandle[Any, ShardEnded], why: str) -> None:
    with suppress(FailureError):  # it has ended meanwhile
        await shard.signal(BatchShard.hold, why)


def _parsed(read: Callable[[], Parsed]) -> Parsed:
    """Read a raw argument; a malformed one fails the workflow for good."""
    try:
        return read()
    except InvalidRequest as error:
        raise ApplicationError(str(error), type=InvalidRequest.__name__, non_retryable=True) from None
