"""One thread by its id: turns that survive restarts, decisions, approvals and overrides."""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import JsonValue
from temporalio.api.common.v1 import Payloads, WorkflowType
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.client.listing import quoted
from gradeloop.contract.evaluation import Evaluation
from gradeloop.contract.thread import (
    WORKFLOW,
    ApproveRequest,
    DecideRequest,
    DenyRequest,
    GradingThread,
    InvokeRequest,
    OverrideRequest,
    ResumeRequest,
    RunResult,
    ThreadRequest,
    ThreadState,
)
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, ThreadClosed, ThreadNotFound, ThreadTooLarge

_REFUSALS: dict[str, type[InvalidRequest]] = {"InvalidRequest": InvalidRequest, "ThreadTooLarge": ThreadTooLarge}


class Again(Exception):
    """The thread went on in another run of its workflow: the update is to be sent again."""


def refused(error: WorkflowUpdateFailedError, thread_id: str) -> Exception:
    """Return what a refused or failed update means."""
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) else None
    if kind in {"ThreadRolling", "AcceptedUpdateCompletedWorkflow"}:
        return Again()
    return _REFUSALS.get(kind or "", InvalidRequest)(f"{thread_id}: {getattr(cause, 'message', cause)}")


def failure(error: RPCError, thread_id: str) -> GradeloopError:
    """Return what a failed call of the server means."""
    if error.status == RPCStatusCode.NOT_FOUND:
        return ThreadNotFound(f"there is no thread {thread_id!r} on this server")
    return ServerUnreachable(f"the Temporal server did not answer for {thread_id!r}: {error.message}")


def ended(error: WorkflowFailureError, thread_id: str) -> GradeloopError:
    """Return how a thread without a result ended."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return _REFUSALS.get(cause.type or "", ThreadClosed)(cause.message)
    how = {CancelledError: "was cancelled", TerminatedError: "was terminated"}.get(type(cause), f"ended: {cause}")
    return ThreadClosed(f"the thread {thread_id!r} {how}")


T = TypeVar("T")

RECONNECT_SECONDS = 120.0
"""How long a waiting call tries to reach a server that is gone."""

REACHED_SECONDS = 30.0
"""An attempt that took longer had the server for a while: the SDK itself gives up after some 10 seconds."""

PAUSE_SECONDS = 0.5
"""Between two attempts."""

LOST = {
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.FAILED_PRECONDITION,
}
"""Of a server that is gone, or of a workflow task that failed and is tried again: worth waiting for."""


async def ride_out(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Return what a call of the server returns, made again and again while the server is gone.

    Args:
        call: Makes the call anew.
        what: Who the call is about, for the message.

    Raises:
        ServerUnreachable: The server is gone for long, or the call failed in another way.
    """
    outage = Outage()
    while True:
        outage.ask()
        try:
            return await call()
        except RPCError as error:
            if error.status not in LOST or outage.is_too_long():
                raise ServerUnreachable(f"the Temporal server did not answer for {what}: {error.message}") from None
        await asyncio.sleep(PAUSE_SECONDS)


class Outage:
    """Counts from when the server was lost, however long the call had waited before."""

    def __init__(self) -> None:
        self._since = self._asked = self._now()

    def ask(self) -> None:
        """Note that an attempt begins."""
        self._asked = self._now()

    def is_too_long(self) -> bool:
        """Tell, when an attempt did not reach the server, whether to give up."""
        now = self._now()
        if now - self._asked > REACHED_SECONDS:
            self._since = now
        return now - self._since > RECONNECT_SECONDS

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


OUT_OF_STEP = "TMPRL1100"
"""In the words of a worker whose copy of the workflow and the history part: seen after a worker's death, and gone with the next task."""

POLL_SECONDS = 0.2

QUERY_SECONDS = 20.0
"""A query needs a live worker on the thread's queue; longer than a worker's start."""

ASKED_SECONDS = 5.0
"""After which a query is asked anew: one that meets the end of a workflow's run, or a worker's, is sometimes never answered."""

SILENT = {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}


class ThreadHandle:
    """A thread by its id."""

    def __init__(self, client: Client, thread_id: str, task_queue: str) -> None:
        self.client = client
        self.task_queue = task_queue
        self.thread_id = thread_id

    def handle(self, run_id: str | None = None) -> WorkflowHandle[Any, RunResult]:
        """Return Temporal's handle of the thread's last run, or of the one named."""
        return self.client.get_workflow_handle_for(GradingThread.run, self.thread_id, run_id=run_id)

    async def start(self, request: ThreadRequest) -> None:
        """Start the thread; refused where one of its id exists."""
        try:
            await self.client.start_workflow(
                GradingThread.run,
                request,
                id=self.thread_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            raise InvalidRequest(f"a thread {self.thread_id!r} exists already; choose another id, or invoke it") from None
        except RPCError as error:
            raise failure(error, self.thread_id) from None

    async def query(self, name: str, *arguments: object, run_id: str | None = None) -> dict[str, JsonValue]:
        """Ask the thread; a closed one answers too, as long as its history is kept and a worker serves its queue."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await self._answer(name, arguments, run_id)
        except WorkflowQueryFailedError as error:
            raise InvalidRequest(f"{self.thread_id}: {error}") from None
        except TimeoutError:
            raise ServerUnreachable(f"no worker answers for the thread {self.thread_id!r}; start one on its task queue") from None
        except RPCError as error:
            raise failure(error, self.thread_id) from None

    async def _answer(self, name: str, arguments: tuple[object, ...], run_id: str | None) -> dict[str, JsonValue]:
        """Return the answer; a worker that has lost step with the history begins at its start, and is asked again, as a silent one is."""
        while True:
            try:
                answer: dict[str, JsonValue] = await self.handle(run_id).query(
                    name, args=list(arguments), result_type=dict[str, JsonValue], rpc_timeout=timedelta(seconds=ASKED_SECONDS)
                )
            except RPCError as error:
                if error.status not in SILENT:
                    raise
            except WorkflowQueryFailedError as error:
                if OUT_OF_STEP not in str(error):
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                return answer

    async def signal(self, name: str, *arguments: object) -> None:
        """Signal the thread.

        Raises:
            ThreadClosed: It is closed.
        """
        try:
            await self.handle().signal(name, args=list(arguments))
        except RPCError as error:
            raise await self.gone(error) from None

    async def cancel(self) -> None:
        """Cancel the thread's workflow."""
        try:
            await self.handle().cancel()
        except RPCError as error:
            raise await self.gone(error) from None

    async def describe(self) -> WorkflowExecutionDescription:
        """Return the server's description of the thread's last run."""
        try:
            return await self.handle().describe()
        except RPCError as error:
            raise failure(error, self.thread_id) from None

    async def result(self) -> RunResult:
        """Wait for the thread to complete, through restarts of the server, and return its last turn's result."""

        async def wait() -> RunResult:
            try:
                return await self.handle().result()
            except WorkflowFailureError as error:
                raise ended(error, self.thread_id) from None
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    raise failure(error, self.thread_id) from None
                raise

        return await ride_out(wait, repr(self.thread_id))

    async def closed(self) -> None:
        """Return when the thread closes, however it does."""
        try:
            await self.result()
        except (InvalidRequest, ThreadClosed):
            return

    async def gone(self, error: RPCError) -> GradeloopError:
        """Tell a closed thread from one that never was."""
        if error.status != RPCStatusCode.NOT_FOUND:
            return failure(error, self.thread_id)
        await self.describe()
        return ThreadClosed(f"the thread {self.thread_id!r} is closed")


EARLIER_RUNS = 20
"""How far back a checkpoint is looked for behind starts that were refused."""

ATTEMPTS = 50
"""How often one call follows a thread that closes, or goes on in a new run, under it."""


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Turn:
    """A turn, and what its thread is started with where there is none."""

    request: InvokeRequest
    start: ThreadRequest | None
    named: bool
    """True where the caller chose the key, so that others may come with the same one."""


class ThreadTurns(ThreadHandle):
    """A thread, by its id, that takes turns."""

    async def invoke(self, turn: Turn) -> RunResult:
        """Do one turn, whatever becomes of the thread's workflow meanwhile."""
        request = turn.request if turn.named else turn.request.model_copy(update={"key": str(uuid4())})
        for _ in range(ATTEMPTS):
            serving = await self._open_run()
            try:
                update_id = await self._update_id(request, named=turn.named)
                return await self.attended(lambda sent: self._send(request, turn.start, sent), update_id)
            except (Again, ThreadClosed) as closed:
                await self._refuse_terminated(serving)
                if isinstance(closed, ThreadClosed):
                    await self.reopen()
        raise ThreadClosed(f"the thread {self.thread_id!r} closed {ATTEMPTS} times while it was invoked")

    async def resume(self, request: ResumeRequest) -> RunResult:
        """Go on with the interrupted run, of a closed thread too."""
        update_id = str(uuid4())
        for _ in range(ATTEMPTS):
            try:
                if not await self.is_open():
                    await self.reopen(to_resume=True)
                return await self.attended(lambda sent: self.handle().execute_update(GradingThread.resume, request, id=sent), update_id)
            except (Again, ThreadClosed):
                continue
        raise ThreadClosed(f"the thread {self.thread_id!r} closed {ATTEMPTS} times while it was resumed")

    async def reopen(self, *, to_resume: bool = False) -> None:
        """Start a closed thread again from its checkpoint, unless somebody else does so first.

        Refused where it is to be resumed and nothing in it is interrupted.

        The start's request id names the run whose checkpoint it carries, so that two callers start one run, and a caller who
        comes late starts none.
        """
        last = await self.describe()
        if last.status == WorkflowExecutionStatus.RUNNING:
            return
        checkpoint = await self._last_checkpoint(last)
        if to_resume and checkpoint["thread"]["status"] == "idle":
            raise InvalidRequest(f"{self.thread_id}: nothing is interrupted in this thread; it has ended")
        if (await self.describe()).run_id != last.run_id:
            return
        try:
            await self.client.workflow_service.start_workflow_execution(await self._restart(last, checkpoint))
        except RPCError as error:
            if error.status != RPCStatusCode.ALREADY_EXISTS:
                raise failure(error, self.thread_id) from None

    async def _send(self, request: InvokeRequest, start: ThreadRequest | None, update_id: str) -> RunResult:
        if start is None:
            return await self.handle().execute_update(GradingThread.invoke, request, id=update_id)
        operation: WithStartWorkflowOperation[Any, RunResult] = WithStartWorkflowOperation(
            GradingThread.run,
            start,
            id=self.thread_id,
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )
        # asyncio would log an error of the start as never retrieved, though the update raises it too.
        operation._workflow_handle.add_done_callback(lambda done: done.cancelled() or done.exception())  # noqa: SLF001
        return await self.client.execute_update_with_start_workflow(
            GradingThread.invoke, request, id=update_id, start_workflow_operation=operation
        )

    async def attended(self, send: Callable[[str], Awaitable[Answer]], update_id: str) -> Answer:
        """Send an update and wait for its result; a lost connection attaches again by the same id."""

        async def attend() -> Answer:
            while True:
                try:
                    return await send(update_id)
                except WorkflowUpdateFailedError as error:
                    raise refused(error, self.thread_id) from None
                except WorkflowAlreadyStartedError:
                    raise ThreadClosed(f"the thread {self.thread_id!r} is closed") from None
                except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                    if isinstance(error.__cause__, asyncio.CancelledError):  # the caller's own, which the SDK renames
                        raise asyncio.CancelledError from None
                    await asyncio.sleep(0.1)
                except RPCError as error:
                    if error.status == RPCStatusCode.NOT_FOUND:
                        raise await self.gone(error) from None
                    raise

        return await ride_out(attend, repr(self.thread_id))

    async def _update_id(self, request: InvokeRequest, *, named: bool) -> str:
        """Return the update id: equal for equal turns in one run of the workflow, so that the server joins the callers.

        Another one after each interruption: the server would return the old outcome, and the turn shall go on, or has done so. An id
        of its own where nobody can tell, for want of a server or worker; the thread itself joins callers by their key.
        """
        key = request.key or ""
        if not named:
            return key
        asked = f"{key}/{hashlib.sha256(request.model_dump_json().encode()).hexdigest()[:16]}"
        try:
            description = await self.handle().describe()
            stopped = (await self.query("stopped"))["seq"]
        except RPCError as error:
            return asked if error.status == RPCStatusCode.NOT_FOUND else f"{key}/{uuid4()}"
        except ServerUnreachable:
            return f"{key}/{uuid4()}"
        return f"{asked}/{description.run_id}/{stopped}"

    async def is_open(self) -> bool:
        """True where the thread's last run is."""
        return (await self.describe()).status == WorkflowExecutionStatus.RUNNING

    async def _last_checkpoint(self, last: WorkflowExecutionDescription) -> dict[str, Any]:
        """Return the checkpoint of the last run, or of the newest one before it that has one: a start that was refused leaves none."""
        try:
            return await self.query("checkpoint", run_id=last.run_id)
        except InvalidRequest:
            async for earlier in self.client.list_workflows(f"WorkflowId = {quoted(self.thread_id)}", limit=EARLIER_RUNS):
                if earlier.run_id != last.run_id:
                    with contextlib.suppress(InvalidRequest):
                        return await self.query("checkpoint", run_id=earlier.run_id)
            raise

    async def _open_run(self) -> str | None:
        """Return the run id of the workflow, where there is one and it is open."""
        try:
            last = await self.describe()
        except (ThreadNotFound, ServerUnreachable):
            return None
        return last.run_id if last.status == WorkflowExecutionStatus.RUNNING else None

    async def _refuse_terminated(self, serving: str | None) -> None:
        """Raise where somebody terminated the run that we waited for: that was meant to stop it, and a caller shall decide anew."""
        last = await self.describe()
        if serving == last.run_id and last.status == WorkflowExecutionStatus.TERMINATED:
            raise ThreadClosed(f"the thread {self.thread_id!r} was terminated; invoke it again to go on from its checkpoint")

    async def _restart(self, last: WorkflowExecutionDescription, checkpoint: dict[str, Any]) -> StartWorkflowExecutionRequest:
        thread = checkpoint["thread"]
        kept = {name: thread[name] for name in ("generator", "grader", "max_iterations", "idle_timeout")}
        payloads = await self.client.data_converter.encode([kept | {"checkpoint": checkpoint}])
        return StartWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_id=self.thread_id,
            workflow_type=WorkflowType(name=WORKFLOW),
            task_queue=TaskQueue(name=last.task_queue),
            input=Payloads(payloads=payloads),
            identity=self.client.identity,
            request_id=f"after/{last.run_id}",
            workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
            workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        )


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
        calls = [call.call for call in waiting.calls] if waiting else []
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
