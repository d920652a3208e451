"""The client of batches: it uploads cases, and starts, resumes, follows and pauses a batch."""

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TypeVar

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.batches.contract import UPLOAD_BYTES, UPLOAD_CASES, BatchRequest, BatchSummary, Case, GradingBatch, StoreCases, Upload
from gradeloop.client.call_waits import CallWait, waits_below
from gradeloop.client.thread import ride_out
from gradeloop.contract.queries import recorded
from gradeloop.errors import BatchLost, InvalidRequest, ServerUnreachable
from gradeloop.temporal.connect import Connection, keep_worker_alive
from gradeloop.temporal.histories import quoted
from gradeloop.temporal.process import beside, done_beside

UPLOADS = 4
"""Uploads in flight at once."""

QUERY_SECONDS = 5.0
"""The longest time in seconds that a query of what is in flight may take."""


T = TypeVar("T")


class BatchClient:
    """The batches of one task queue on one server: `await BatchClient(client.temporal, "gradeloop").result("nightly")`."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self.task_queue = task_queue
        self._uploads: set[str] = set()
        """The workflows of uploads in flight."""

    async def upload(
        self, batch_id: str, cases: Iterable[Case], on_stored: Callable[[int], None] = lambda _: None, *, tenant: str | None = None
    ) -> int:
        """Store a batch's cases through its worker, and return how many they are.

        Args:
            batch_id: The batch.
            cases: The cases in their order; read as they are sent.
            tenant: The tenant of the batch.
            on_stored: Called with the number of cases stored so far.

        Raises:
            InvalidRequest: The worker refuses a case.
            ServerUnreachable: The server is gone for long.
        """
        stored, sending = 0, set[asyncio.Task[int]]()
        try:
            for chunk in split_uploads(batch_id, cases):
                sending.add(asyncio.create_task(self._send(chunk, tenant)))
                while len(sending) >= UPLOADS:
                    done, sending = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
                    stored += sum(task.result() for task in done)
                    on_stored(stored)
            for task in sending:
                stored += await task
                on_stored(stored)
        finally:
            for task in sending:
                task.cancel()
        return stored

    async def _send(self, upload: Upload, tenant: str | None) -> int:
        name = f"store/{upload.batch_id}/{upload.first}"
        self._uploads.add(name)

        async def send() -> int:
            handle = await self._client.start_workflow(
                StoreCases.run,
                upload,
                id=name,
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                priority=Priority(fairness_key=tenant),
            )
            await handle.result()
            return len(upload.cases)

        try:
            return await _workflow_result(send, f"the upload of {upload.batch_id!r}")
        finally:
            self._uploads.discard(name)

    async def start(self, request: BatchRequest) -> None:
        """Start a batch whose cases are stored, or resume a batch that has ended, whose corrected rate then no longer counts.

        Raises:
            InvalidRequest: Another tenant's batch of this id is running.
            ServerUnreachable: The server is gone for long.
        """
        # One id is one batch for ever. A command that starts a running batch joins it; one that starts an ended
        # batch begins a new run of the workflow, and the store says which cases are still due. So a command may
        # be repeated at any time. The server answers for a tenant's batch by its fairness key, which is
        # compared, since an id may be another tenant's.
        tenant = request.priority.tenant or ""

        async def start() -> str:
            handle = await self._client.start_workflow(
                GradingBatch.run,
                request.model_copy(update={"corrected": None}),
                id=request.batch_id,
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=f"{request.total} cases",
                priority=Priority(fairness_key=tenant),
            )
            return (await handle.describe()).raw_description.workflow_execution_info.priority.fairness_key

        if await ride_out(start, f"the batch {request.batch_id!r}") != tenant:
            raise InvalidRequest(f"priority.tenant: the batch {request.batch_id!r} is another tenant's; choose another batch_id")

    async def result(self, batch_id: str) -> BatchSummary:
        """Wait until a batch ends or is paused.

        Raises:
            InvalidRequest: The worker refused the batch.
            BatchLost: The batch was cancelled, terminated, or failed.
            ServerUnreachable: The server is gone for long.
        """
        handle = self._client.get_workflow_handle_for(GradingBatch.run, batch_id)
        return await _workflow_result(handle.result, f"the batch {batch_id!r}")

    async def pause(self, batch_id: str) -> None:
        """Pause a batch: it begins no further case.

        Raises:
            InvalidRequest: The batch is not running.
        """
        try:
            await self._client.get_workflow_handle(batch_id).signal(GradingBatch.pause)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise InvalidRequest(f"the batch {batch_id!r} is not running; there is nothing to pause") from None
            raise ServerUnreachable(f"the batch {batch_id!r} cannot be reached: {error.message}") from None

    async def queue_of(self, batch_id: str) -> tuple[str, bool] | None:
        """Return the task queue of a batch's workflow and whether it runs; None where the server does not know the batch."""
        try:
            description = await self._client.get_workflow_handle(batch_id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise ServerUnreachable(f"the batch {batch_id!r} cannot be reached: {error.message}") from None
        return description.task_queue, description.status == WorkflowExecutionStatus.RUNNING

    async def in_flight(self, batch_id: str) -> int | None:
        """Return how many cases are being judged now; None where the batch does not answer."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                batch = self._client.get_workflow_handle(batch_id)
                progress = await recorded(lambda patience: batch.query(GradingBatch.progress, rpc_timeout=patience))
                counts = await asyncio.gather(*map(self._cases_of, progress.shards), return_exceptions=True)
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None
        return sum(count for count in counts if isinstance(count, int))

    async def waits(self, batch_id: str) -> list[CallWait]:
        """Return what the calls of a batch, and of uploads in flight, wait for: what is most worth knowing first."""
        return await waits_below(self._client, [batch_id, *self._uploads])

    async def store_problem(self, batch_id: str) -> str | None:
        """Return why the worker of a batch, or of an upload in flight, waits for the store; None where it does not."""
        return next((wait.store for wait in await self.waits(batch_id) if wait.store), None)

    async def _cases_of(self, shard: str) -> int:
        """Return how many cases a shard has in flight."""
        handle = self._client.get_workflow_handle(shard)
        return await recorded(lambda patience: handle.query("in_flight", result_type=int, rpc_timeout=patience))

    async def waiting(self, batch_id: str) -> list[str]:
        """Return the ids of the threads of a batch's cases that wait for a person."""
        query = f"WorkflowId STARTS_WITH {quoted(f'{batch_id}/')} AND GradeloopStatus = 'waiting' AND ExecutionStatus = 'Running'"
        try:
            return [workflow.id async for workflow in self._client.list_workflows(query)]
        except RPCError:
            return []


def split_uploads(batch_id: str, cases: Iterable[Case]) -> Iterator[Upload]:
    """Yield cases in uploads of at most 1 MiB and 1,000 cases; a single case may be as large."""
    chunk: list[Case] = []
    first, size = 0, 0
    for case in cases:
        more = case.size()
        if chunk and (size + more > UPLOAD_BYTES or len(chunk) >= UPLOAD_CASES):
            yield Upload(batch_id=batch_id, first=first, cases=tuple(chunk))
            first, size, chunk = first + len(chunk), 0, []
        chunk.append(case)
        size += more
    if chunk:
        yield Upload(batch_id=batch_id, first=first, cases=tuple(chunk))


async def _workflow_result(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Return the result of a workflow of a batch, waiting while the server is gone."""
    try:
        return await ride_out(call, what)
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == InvalidRequest.__name__:
            raise InvalidRequest(cause.message) from None
        raise BatchLost(cause.message if isinstance(cause, ApplicationError) else f"{what} ended without a result: {cause}") from None


NO_WORKER_SECONDS = 10.0
"""Seconds without a stored case after which the user is told to start a worker; a running worker stores cases in a fraction of that."""


async def upload_cases(
    batches: BatchClient, request: BatchRequest, cases: Iterable[Case], connection: Connection, notify: Callable[[str], None]
) -> None:
    """Send a batch's cases to its worker; notify the user where no worker takes them, and restart a worker of ours that has died.

    Raises:
        InvalidRequest: The worker refuses a case.
        ServerUnreachable: The server is gone for long.
        WorkerFailed: A worker of ours does not start.
    """
    taken = asyncio.Event()
    async with beside(_notify_without_worker(taken, batches, request.batch_id, notify)):
        sending = batches.upload(request.batch_id, cases, lambda _: taken.set(), tenant=request.priority.tenant)
        await done_beside(sending, keep_worker_alive(batches.task_queue, connection))


async def _notify_without_worker(taken: asyncio.Event, batches: BatchClient, batch_id: str, notify: Callable[[str], None]) -> None:
    try:
        await asyncio.wait_for(taken.wait(), NO_WORKER_SECONDS)
    except TimeoutError:
        if problem := await batches.store_problem(batch_id):
            notify(f"the cases wait, the worker cannot write: {problem}")
        else:
            notify(f"no worker has taken the cases so far; start one: gradeloop worker --task-queue {batches.task_queue}")


IN_MEMORY = 8 * 1024 * 1024
"""Bytes of JSON above which cases are spooled to a file."""


class SpooledCases:
    """Cases that were all read, kept in memory or in a temporary file until they are sent."""

    def __init__(self, cases: Iterable[Case] = ()) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - it lives as long as this
        self._starts = list[int]()
        self.asks = False
        """True if a verdict is asked for in any case."""
        self.repeats = False
        self.asks_all = ""
        """The reason why all cases are asked: their results count together. Empty if each counts for itself."""
        for case in cases:
            self.add(case)

    def add(self, case: Case) -> None:
        """Keep one more case."""
        self._starts.append(self._file.tell())
        self._file.write(case.model_dump_json().encode() + b"\n")
        self.asks |= case.asks
        together = {"cases follow others": case.follows, "outputs are compared": case.compared_with, "metrics have names": case.metrics}
        self.repeats |= case.repeat > 0
        self.asks_all = self.asks_all or next((why for why, found in together.items() if found), "")

    @property
    def total(self) -> int:
        """The number of cases."""
        return len(self._starts)

    def shuffle(self, seed: int, first: Collection[str] = ()) -> int:
        """Put the cases in a random order, the same for each seed, those with the ids of `first` before all others; return their number."""
        random.Random(seed).shuffle(self._starts)  # noqa: S311 - an order that can be had again
        named = dict(zip(self._starts, (case.id in first for case in self), strict=True)) if first else {}
        self._starts.sort(key=lambda start: not named.get(start))
        return sum(named.values())

    def __iter__(self) -> Iterator[Case]:
        for start in self._starts:
            self._file.seek(start)
            yield Case.model_validate_json(self._file.readline())

    def close(self) -> None:
        """Release the memory or the file."""
        self._file.close()

    def __del__(self) -> None:
        """Release them where a mistake ended the command before the cases were sent."""
        self.close()
