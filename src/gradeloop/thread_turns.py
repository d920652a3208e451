"""Turns of a thread, whatever becomes of its workflow meanwhile: a closed one is started again from its checkpoint."""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from temporalio.api.common.v1 import Payloads, WorkflowType
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contracts import WORKFLOW, GradingThread, RunResult
from gradeloop.errors import InvalidRequest, ServerUnreachable, ThreadClosed, ThreadNotFound
from gradeloop.listing import quoted
from gradeloop.outage import ride_out
from gradeloop.outcomes import Again, failure, refused
from gradeloop.request import ThreadRequest
from gradeloop.steering import InvokeRequest, ResumeRequest
from gradeloop.thread_handle import ThreadHandle

EARLIER_RUNS = 20
"""How far back a checkpoint is looked for behind starts that were refused."""

ATTEMPTS = 50
"""How often one call follows a thread that closes, or goes on in a new run, under it."""


Told = TypeVar("Told")


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

    async def attended(self, send: Callable[[str], Awaitable[Told]], update_id: str) -> Told:
        """Send an update and wait for its result; a lost connection attaches again by the same id."""

        async def attend() -> Told:
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
