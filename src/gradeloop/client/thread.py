"""One thread by its id: turns that survive restarts, decisions, approvals, overrides, and the errors of its calls."""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import JsonValue
from temporalio.api.common.v1 import Payloads, SearchAttributes, WorkflowType
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
    WorkflowUpdateStage,
)
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo, WorkflowSerializationContext
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contract.evaluation import Evaluation
from gradeloop.contract.queries import recorded
from gradeloop.contract.thread import (
    SEARCH_ATTRIBUTES,
    WORKFLOW,
    ApproveRequest,
    DecideRequest,
    DenyRequest,
    Generator,
    Grader,
    GradingThread,
    InvokeRequest,
    OverrideRequest,
    ResumeRequest,
    RunResult,
    ThreadRequest,
    ThreadState,
    parse_request,
    tenant_value,
    with_model,
)
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, ThreadClosed, ThreadNotFound, ThreadTooLarge
from gradeloop.temporal.connect import OURS, serving
from gradeloop.temporal.histories import quoted

logger = logging.getLogger(__name__)

UNDECODED = frozenset({"Failed decoding arguments", "Encoded failure"})
"""Messages of a worker that cannot read a payload."""

OTHER_KEYS = "; the worker may have other keys; give both the same GRADELOOP_ENCRYPTION_KEYS, and see the worker's log"

QUERY_SECONDS = 20.0
"""Seconds that a query waits for a worker. A worker that a command started here is asked again as long as it lives."""

FIRST_POLL_SECONDS = 2.0
"""Seconds until the server sees the first poll of a new worker; until then it refuses queries at once."""

ACCEPT_SECONDS = 10.0
"""Seconds that a worker may take to accept an update that steers, before the signal of its name is sent instead."""

POLL_SECONDS = 0.2

EARLIER_RUNS = 20
"""Earlier runs that are searched for a checkpoint: a refused start leaves none."""

OWNER = "gradeloop_owner"
"""The field of a thread's memo with its owner's name; every run of the thread has it."""

_STATUS, *_, _FORK = map(SearchAttributeKey.for_keyword, SEARCH_ATTRIBUTES)

ATTEMPTS = 50
"""Times that one call follows a thread that closes or continues in a new run."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class InvokeCall:
    """A turn, and the request that starts its thread where there is none."""

    request: InvokeRequest
    start: ThreadRequest | None
    named: bool
    """True if the caller chose the key, so that other callers may use the same one."""


class ThreadHandle:
    """A thread by its id; what is sent to it survives restarts of the server, of its worker and of the thread itself."""

    def __init__(self, client: Client, thread_id: str, task_queue: str) -> None:
        self.client = client
        self.task_queue = task_queue
        self.thread_id = thread_id

    async def start(self, request: ThreadRequest, owner: str | None = None) -> None:
        """Start the thread with its owner's name; refused where one of its id exists."""

        async def start(attributes: TypedSearchAttributes) -> None:
            await self.client.start_workflow(
                GradingThread.run,
                request,
                id=self.thread_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={OWNER: owner} if owner else None,
                search_attributes=attributes,
            )

        try:
            await _with_attributes(request, start)
        except WorkflowAlreadyStartedError:
            raise InvalidRequest(f"a thread {self.thread_id!r} exists already; choose another id, or invoke it") from None
        except RPCError as error:
            raise error_of_rpc(error, self.thread_id) from None

    async def invoke(self, turn: InvokeCall) -> RunResult:
        """Do one turn, even if the thread's workflow closes or continues as a new run meanwhile."""
        request = turn.request if turn.named else turn.request.model_copy(update={"key": str(uuid4())})
        for _ in range(ATTEMPTS):
            run_id = await self._open_run()
            try:
                update_id = await self._update_id(request, named=turn.named)
                return await self._await_update(lambda sent_id: self._send_turn(request, turn.start, sent_id), update_id)
            except (Again, ThreadClosed) as closed:
                await self._refuse_terminated(run_id)
                if isinstance(closed, ThreadClosed):
                    await self._reopen()
        raise ThreadClosed(f"the thread {self.thread_id!r} closed {ATTEMPTS} times while it was invoked")

    async def resume(self, request: ResumeRequest) -> RunResult:
        """Resume the interrupted run, even of a closed thread."""
        update_id = str(uuid4())
        for _ in range(ATTEMPTS):
            try:
                if not await self._is_open():
                    await self._reopen(to_resume=True)
                return await self._await_update(
                    lambda sent_id: self.workflow().execute_update(GradingThread.resume, request, id=sent_id), update_id
                )
            except (Again, ThreadClosed):
                continue
        raise ThreadClosed(f"the thread {self.thread_id!r} closed {ATTEMPTS} times while it was resumed")

    async def decide(self, request: DecideRequest) -> None:
        """Send a person's decision on a criterion."""
        await self._update_open(lambda sent_id: self.workflow().execute_update(GradingThread.decide, request, id=sent_id))

    async def approve(self, request: ApproveRequest) -> None:
        """Send a person's approval of a tool call."""
        await self._update_open(lambda sent_id: self.workflow().execute_update(GradingThread.approve, request, id=sent_id))

    async def deny(self, request: DenyRequest) -> None:
        """Send a person's denial of a tool call."""
        await self._update_open(lambda sent_id: self.workflow().execute_update(GradingThread.deny, request, id=sent_id))

    async def override(self, request: OverrideRequest) -> Evaluation:
        """Send a person's verdict; a closed thread is closed again."""
        was_open = await self._is_open()
        evaluation = await self._update_open(lambda sent_id: self.workflow().execute_update(GradingThread.override, request, id=sent_id))
        if not was_open:
            await self.signal("close")
        return evaluation

    async def only_call(self) -> str:
        """Return the id of the one tool call that waits for a person; raise InvalidRequest where none waits, or several do."""
        waiting = ThreadState.model_validate(await self.query("state")).waiting_for
        calls = [call.call for call in waiting.calls] if waiting else []
        if not calls:
            raise InvalidRequest(f"{self.thread_id}: no call waits for a person in this thread")
        if len(calls) > 1:
            raise InvalidRequest(f"{self.thread_id}: {len(calls)} calls wait; name one: {', '.join(calls)}")
        return calls[0]

    async def query(self, name: str, *arguments: object, run_id: str | None = None) -> dict[str, JsonValue]:
        """Query the thread; a closed one answers too, as long as its history is kept and a worker serves its queue."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await self._answer(name, arguments, run_id)
        except WorkflowQueryFailedError as error:
            raise InvalidRequest(f"{self.thread_id}: {error}{OTHER_KEYS if str(error) in UNDECODED else ''}") from None
        except TimeoutError:
            queue = (await self.describe()).task_queue
            if not (OURS.fullmatch(queue) and serving(queue)):
                raise ServerUnreachable(f"no worker answers for the thread {self.thread_id!r}; start one on its task queue") from None
            logger.warning("the worker of %s has not answered for %.0f s, and lives; it is asked again", queue, QUERY_SECONDS)
            return await self.query(name, *arguments, run_id=run_id)
        except RPCError as error:
            raise error_of_rpc(error, self.thread_id) from None

    async def steer(self, name: str, result: type[Result], *arguments: object) -> Result | None:
        """Send an update and return its answer; where no worker takes it, send the signal of that name, which waits for one.

        Raises:
            InvalidRequest: The update is refused.
            ThreadClosed: The thread is closed.
        """
        # An update is taken only while a worker serves the thread, and it says what came of it. A signal waits
        # for a worker, and says nothing. So the update goes first, and the signal only where no worker takes it
        # in time. One update id is used throughout, so that a repeated send does not act twice.
        update_id, thread, accepted = str(uuid4()), self.workflow(), WorkflowUpdateStage.ACCEPTED
        while True:
            try:
                async with asyncio.timeout(ACCEPT_SECONDS):
                    await self._await_update(
                        lambda sent_id: thread.start_update(name, args=arguments, id=sent_id, wait_for_stage=accepted), update_id
                    )
            except TimeoutError:
                await self.signal(name, *arguments)
                return None
            with contextlib.suppress(Again):
                return await self._await_update(
                    lambda sent_id: thread.execute_update(name, args=arguments, id=sent_id, result_type=result), update_id
                )

    async def signal(self, name: str, *arguments: object) -> None:
        """Signal the thread; raise ThreadClosed where it is closed."""
        try:
            await self.workflow().signal(name, args=list(arguments))
        except RPCError as error:
            raise await self._error_of_missing(error) from None

    async def cancel(self) -> None:
        """Cancel the thread's workflow."""
        try:
            await self.workflow().cancel()
        except RPCError as error:
            raise await self._error_of_missing(error) from None

    async def describe(self) -> WorkflowExecutionDescription:
        """Return the server's description of the thread's last run."""
        try:
            return await self.workflow().describe()
        except RPCError as error:
            raise error_of_rpc(error, self.thread_id) from None

    async def result(self) -> RunResult:
        """Wait for the thread to complete, through restarts of the server, and return its last turn's result."""

        async def wait() -> RunResult:
            try:
                return await self.workflow().result()
            except WorkflowFailureError as error:
                raise error_of_workflow(error, self.thread_id) from None
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    raise error_of_rpc(error, self.thread_id) from None
                raise

        return await ride_out(wait, repr(self.thread_id))

    def workflow(self, run_id: str | None = None) -> WorkflowHandle[Any, RunResult]:
        """Return Temporal's handle of the thread's last run, or of the one named."""
        return self.client.get_workflow_handle_for(GradingThread.run, self.thread_id, run_id=run_id)

    async def _answer(self, name: str, arguments: tuple[object, ...], run_id: str | None) -> dict[str, JsonValue]:
        """Return a query's answer, asking a silent worker again, and one whose copy of the thread is not what the history holds."""
        deadline = time.monotonic() + FIRST_POLL_SECONDS
        while True:
            try:
                return await recorded(
                    lambda patience: self.workflow(run_id).query(
                        name, args=list(arguments), result_type=dict[str, JsonValue], rpc_timeout=patience
                    )
                )
            except RPCError as error:
                if error.status != RPCStatusCode.FAILED_PRECONDITION or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_SECONDS)  # nobody polls the queue yet

    async def _send_turn(self, request: InvokeRequest, start: ThreadRequest | None, update_id: str) -> RunResult:
        if start is None:
            return await self.workflow().execute_update(GradingThread.invoke, request, id=update_id)

        async def send(attributes: TypedSearchAttributes) -> RunResult:
            operation: WithStartWorkflowOperation[Any, RunResult] = WithStartWorkflowOperation(
                GradingThread.run,
                start,
                id=self.thread_id,
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                search_attributes=attributes,
            )
            # asyncio would log an error of the start as never retrieved, though the update raises it too; some never reach the handle.
            started = asyncio.ensure_future(operation.workflow_handle())
            try:
                return await self.client.execute_update_with_start_workflow(
                    GradingThread.invoke, request, id=update_id, start_workflow_operation=operation
                )
            finally:
                started.cancel()

        return await _with_attributes(start, send)

    async def _update_id(self, request: InvokeRequest, *, named: bool) -> str:
        """Return the update id: equal for equal turns in one run of the workflow, so that the server joins the callers.

        It changes with each interruption and each question to a person, after which the server would return the old outcome. A closed run
        takes no turn, and yet returns the outcomes of its own: for it the id is new, as where no server or worker answers. The thread
        itself joins callers by their key.
        """
        key = request.key or ""
        if not named:
            return key
        digest = f"{key}/{hashlib.sha256(request.model_dump_json().encode()).hexdigest()[:16]}"
        try:
            description = await self.workflow().describe()
            if description.status != WorkflowExecutionStatus.RUNNING:
                return f"{digest}/{uuid4()}"
            stopped = (await self.query("stopped"))["seq"]
        except RPCError as error:
            return digest if error.status == RPCStatusCode.NOT_FOUND else f"{key}/{uuid4()}"
        except ServerUnreachable:
            return f"{key}/{uuid4()}"
        return f"{digest}/{description.run_id}/{stopped}"

    async def _update_open(self, send: Callable[[str], Awaitable[Result]]) -> Result:
        """Send an update to the thread, which is started from its checkpoint where it is closed."""
        update_id = str(uuid4())
        for _ in range(ATTEMPTS):
            try:
                await self._reopen()
                return await self._await_update(send, update_id)
            except (Again, ThreadClosed):
                continue
        raise ThreadClosed(f"the thread {self.thread_id!r} closed {ATTEMPTS} times while an update was sent")

    async def _await_update(self, send: Callable[[str], Awaitable[Result]], update_id: str) -> Result:
        """Send an update and wait for its result; after a lost connection the same id attaches to it again."""

        async def attach() -> Result:
            while True:
                try:
                    return await send(update_id)
                except WorkflowUpdateFailedError as error:
                    raise error_of_update(error, self.thread_id) from None
                except WorkflowAlreadyStartedError:
                    raise ThreadClosed(f"the thread {self.thread_id!r} is closed") from None
                except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                    if isinstance(error.__cause__, asyncio.CancelledError):  # the caller's own, which the SDK renames
                        raise asyncio.CancelledError from None
                    await asyncio.sleep(0.1)
                except RPCError as error:
                    if error.status == RPCStatusCode.NOT_FOUND:
                        raise await self._error_of_missing(error) from None
                    raise

        return await ride_out(attach, repr(self.thread_id))

    async def _error_of_missing(self, error: RPCError) -> GradeloopError:
        """Return the error of a call that found no open run: the thread is closed, or there never was one."""
        if error.status != RPCStatusCode.NOT_FOUND:
            return error_of_rpc(error, self.thread_id)
        await self.describe()
        return ThreadClosed(f"the thread {self.thread_id!r} is closed")

    async def _is_open(self) -> bool:
        return (await self.describe()).status == WorkflowExecutionStatus.RUNNING

    async def _open_run(self) -> str | None:
        """Return the run id of the workflow; None where there is no open run."""
        try:
            last = await self.describe()
        except (ThreadNotFound, ServerUnreachable):
            return None
        return last.run_id if last.status == WorkflowExecutionStatus.RUNNING else None

    async def _refuse_terminated(self, run_id: str | None) -> None:
        """Raise if the run that served the call was terminated: that was meant to stop it, and the caller decides anew."""
        last = await self.describe()
        if run_id == last.run_id and last.status == WorkflowExecutionStatus.TERMINATED:
            raise ThreadClosed(f"the thread {self.thread_id!r} was terminated; invoke it again to go on from its checkpoint")

    async def _reopen(self, *, to_resume: bool = False) -> None:
        """Start a closed thread again from its checkpoint, unless another caller does so first.

        The start's request id names the run whose checkpoint it carries, so that two callers start one run, and a late caller none.
        """
        last = await self.describe()
        if last.status == WorkflowExecutionStatus.RUNNING:
            return
        # Two callers may find the thread closed at the same time. The request id of the start is made of the
        # closed run. So the server takes the second start for the first one, and both callers go on in one run.
        # The second look keeps a slow caller from starting the thread from a checkpoint that is old by now.
        checkpoint = await self._last_checkpoint(last)
        if to_resume and checkpoint["thread"]["status"] == "idle":
            raise InvalidRequest(f"{self.thread_id}: nothing is interrupted in this thread; it has ended")
        if (await self.describe()).run_id != last.run_id:
            return
        try:
            await self.client.workflow_service.start_workflow_execution(await self._restart_request(last, checkpoint))
        except RPCError as error:
            if error.status != RPCStatusCode.ALREADY_EXISTS:
                raise error_of_rpc(error, self.thread_id) from None

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

    async def _restart_request(self, last: WorkflowExecutionDescription, checkpoint: dict[str, Any]) -> StartWorkflowExecutionRequest:
        thread = checkpoint["thread"]
        kept = {name: thread[name] for name in ("generator", "grader", "max_iterations", "idle_timeout")}
        listed = last.raw_description.workflow_execution_info.search_attributes.indexed_fields
        context = WorkflowSerializationContext(namespace=self.client.namespace, workflow_id=self.thread_id)
        target = StorageDriverWorkflowInfo(namespace=self.client.namespace, id=self.thread_id, type=WORKFLOW)
        converter = self.client.data_converter._with_contexts(context, StorageDriverStoreContext(target=target))  # noqa: SLF001 - as the SDK's own start does
        payloads = await converter.encode([kept | {"checkpoint": checkpoint}])
        return StartWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_id=self.thread_id,
            workflow_type=WorkflowType(name=WORKFLOW),
            task_queue=TaskQueue(name=last.task_queue),
            input=Payloads(payloads=payloads),
            identity=self.client.identity,
            request_id=f"after/{last.run_id}",
            memo=last.raw_description.workflow_execution_info.memo,
            search_attributes=SearchAttributes(indexed_fields={name: value for name, value in listed.items() if name in SEARCH_ATTRIBUTES}),
            workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
            workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        )


async def _with_attributes(request: ThreadRequest, start: Callable[[TypedSearchAttributes], Awaitable[Result]]) -> Result:
    """Start a thread with search attributes, by which it is listed before its first call; without them where the namespace has none."""
    thread: Any = (request.checkpoint or {}).get("thread")
    origin = thread.get("forked_from") if isinstance(thread, dict) else None
    pairs = [SearchAttributePair(_STATUS, "running")]
    pairs += [SearchAttributePair(_FORK, tenant_value(str(origin.get("thread_id")))[:255])] if isinstance(origin, dict) else []
    try:
        return await start(TypedSearchAttributes(pairs))
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT or "search attribute" not in error.message.lower():
            raise
    return await start(TypedSearchAttributes.empty)


def fork_request(checkpoint: dict[str, Any], models: ResumeRequest, system_prompt: str | None, settings: dict[str, Any]) -> ThreadRequest:
    """Return the request that starts a fork with the checkpoint of an iteration; settings that are None are the old thread's.

    Raises:
        InvalidRequest: A field is wrong, or the thread has no model in the place of the one that is named.
    """
    thread, given = checkpoint["thread"], {name: value for name, value in settings.items() if value is not None}
    if thread.get("rubric") is None and "rubric" not in given:
        raise InvalidRequest("rubric: that of the iteration is not kept any more; give the fork a rubric")
    generator, judge = Generator.model_validate(thread["generator"]), Grader.model_validate(thread.get("grader") or {})
    drafts = with_model(generator, models.model, "model", remote=generator.model is None) or generator
    judges = with_model(judge, models.grader, "grader", remote=judge.remote is not None)
    prompt = drafts.system_prompt if system_prompt is None else system_prompt
    named = {"generator": drafts.model_dump(mode="json") | {"system_prompt": prompt}, "grader": judges or thread.get("grader")}
    kept = {"max_iterations": (thread.get("run") or thread)["max_iterations"], "idle_timeout": thread["idle_timeout"]}
    return parse_request(kept | named | given | {"checkpoint": checkpoint})


class Again(Exception):
    """The thread went on in another run of its workflow: the update is to be sent again."""


_REFUSALS: dict[str, type[InvalidRequest]] = {"InvalidRequest": InvalidRequest, "ThreadTooLarge": ThreadTooLarge}


def error_of_update(error: WorkflowUpdateFailedError, thread_id: str) -> Exception:
    """Return the error that a refused or failed update raises to the caller."""
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) else None
    if kind in {"ThreadRolling", "AcceptedUpdateCompletedWorkflow"}:
        return Again()
    return _REFUSALS.get(kind or "", InvalidRequest)(f"{thread_id}: {getattr(cause, 'message', cause)}")


def error_of_rpc(error: RPCError, thread_id: str) -> GradeloopError:
    """Return the error that a failed call of the server raises to the caller."""
    if error.status == RPCStatusCode.NOT_FOUND:
        return ThreadNotFound(f"there is no thread {thread_id!r} on this server")
    return ServerUnreachable(f"the Temporal server did not answer for {thread_id!r}: {error.message}")


def error_of_workflow(error: WorkflowFailureError, thread_id: str) -> GradeloopError:
    """Return the error that a thread without a result raises to those who wait for it."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return _REFUSALS.get(cause.type or "", ThreadClosed)(cause.message)
    how = {CancelledError: "was cancelled", TerminatedError: "was terminated"}.get(type(cause), f"ended: {cause}")
    return ThreadClosed(f"the thread {thread_id!r} {how}")


RECONNECT_SECONDS = 120.0
"""Seconds for which a waiting call tries to reach a lost server."""

REACHED_SECONDS = 30.0
"""An attempt that took longer had reached the server: the SDK itself gives up after some 10 seconds."""

PAUSE_SECONDS = 0.5
"""The pause between two attempts."""

LOST = {
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.FAILED_PRECONDITION,
}
"""Statuses worth waiting for: the server is gone, or a workflow task failed and is tried again."""


async def ride_out(call: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Return what a call of the server returns, made again and again while the server is gone.

    Args:
        call: Makes the call anew.
        what: The thread or batch that the call is about, for the message.

    Raises:
        ServerUnreachable: The server is gone for long, or the call failed in another way.
    """
    outage = Outage()
    while True:
        outage.begin_attempt()
        try:
            return await call()
        except RPCError as error:
            if error.status not in LOST or outage.is_too_long():
                raise ServerUnreachable(f"the Temporal server did not answer for {what}: {error.message}") from None
        await asyncio.sleep(PAUSE_SECONDS)


class Outage:
    """Measures how long the server has been gone, however long the call had waited before."""

    def __init__(self) -> None:
        self._since = self._attempt_began = self._now()

    def begin_attempt(self) -> None:
        """Note that an attempt begins."""
        self._attempt_began = self._now()

    def is_too_long(self) -> bool:
        """Return whether to give up after an attempt that did not reach the server."""
        # A call may wait for hours for its answer, and that is not an outage. An attempt that lasted longer
        # than the SDK's own tries had reached the server, so the outage counts from the end of that attempt.
        # Counted from the beginning of the call, the first lost connection after two minutes would end it.
        now = self._now()
        if now - self._attempt_began > REACHED_SECONDS:
            self._since = now
        return now - self._since > RECONNECT_SECONDS

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
