"""The thread: handlers admit, the main coroutine works; its whole state is readable at any time, and enough to go on elsewhere."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, FailureError

from workflows.admission import Admission, begun
from workflows.callers import Callers
from workflows.calls import Calls, Interrupted, OverBudget, Waiting, refuse_when_cancelled
from workflows.drafting import DraftFailed
from workflows.grading_loop import GradingLoop, Rolling
from workflows.people import People
from workflows.raw import NO_VALUE, decoded
from workflows.report import Report
from workflows.run_ahead import RunAhead
from workflows.run_result import result_of
from workflows.thread_decisions import ThreadDecisions
from workflows.thread_state import Thread
from workflows.turns import begin, judge_anew, settle, take_supplied

with workflow.unsafe.imports_passed_through():
    from gradeloop import contracts
    from gradeloop.contracts import RunResult
    from gradeloop.errors import InvalidRequest
    from gradeloop.request import parse_request

FIRST_TURN_SECONDS = 10.0
"""How long a thread that was started with nothing to do waits for its first turn."""

NOTHING_TO_DO = "messages is empty and no turn came; give the task as one message of role 'user'"


@workflow.defn(name=contracts.WORKFLOW)
class GradingThreadWorkflow(ThreadDecisions):
    """One conversation, graded."""

    @workflow.init
    def __init__(self, request: RawValue = NO_VALUE) -> None:
        self._refusal: InvalidRequest | None = None
        self._served = False
        try:
            self._request = parse_request(decoded(request, "the request"))
            self._thread = begun(self._request)
            self._served = bool((self._request.checkpoint or {}).get("rolled"))
        except InvalidRequest as error:
            self._refusal = error
            return
        self._admission = Admission(self._thread)
        self._callers = Callers(self._thread, self._admission)
        self._calls = Calls(self._thread)
        self._people = People(self._thread, self._calls)
        self._report = Report(self._thread, self._calls)
        self._loop = GradingLoop(self._thread, self._calls, self._report.tell)

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> RunResult:  # type: ignore[override]  # noqa: ARG002 - taken in __init__
        """See `gradeloop.contracts.GradingThread.run`."""
        self._guard = asyncio.create_task(RunAhead().guard())
        thread = self._held()
        if thread.status == "running":
            await self._drive(thread)
        while True:
            await self._next(thread)
            await workflow.wait_condition(workflow.all_handlers_finished)
            if self._callers.rolling:
                workflow.continue_as_new(self._rolled())
            if not thread.queue and thread.supplied is None:
                break
        if not thread.outcomes:
            raise ApplicationError(NOTHING_TO_DO, type="InvalidRequest", non_retryable=True)
        return result_of(thread, thread.outcomes[-1])

    async def _next(self, thread: Thread) -> None:
        """Serve turns until there is nothing left to do and nothing left to wait for."""
        while not self._callers.rolling:
            refuse_when_cancelled()
            if self._people.ready(thread):
                begin(thread, thread.queue.pop(0))
                await self._drive(thread)
            elif thread.supplied is not None:
                if thread.status == "waiting" and thread.drafting is not None:
                    take_supplied(thread)
                elif judge_anew(thread):
                    await self._drive(thread)
            elif workflow.info().is_continue_as_new_suggested():
                self._callers.rolling = True
            elif not await self._something_comes(thread):
                return

    async def _something_comes(self, thread: Thread) -> bool:
        """Wait for a turn or a rubric; False where the thread may end."""
        if thread.closing:
            if thread.status == "waiting":  # behind which nothing is served
                self._callers.drop_queue()
            return False
        stays = thread.status == "waiting" or (thread.status == "interrupted" and (thread.reason != "failure" or thread.idle_timeout > 0))
        patience = thread.idle_timeout if self._served else max(thread.idle_timeout, FIRST_TURN_SECONDS)
        if not stays and not patience:
            return False
        try:
            await workflow.wait_condition(
                lambda: bool(self._people.ready(thread) or thread.closing or (thread.supplied and thread.status in {"idle", "waiting"})),
                timeout=None if stays else patience,
            )
        except TimeoutError:
            return False
        return True

    async def _drive(self, thread: Thread) -> None:
        """Drive the turn in flight until it ends, is stopped, or rolls over."""
        self._served = True
        try:
            await self._loop.turn()
        except Interrupted as stopped:
            over = isinstance(stopped, OverBudget)
            thread.status, thread.reason, thread.error = "interrupted", "budget" if over else "person", str(stopped) or None
            thread.tell("interrupted", reason=thread.reason)
            if thread.supplied is not None:
                take_supplied(thread)
            self._callers.drop_queue()
        except DraftFailed as failed:
            thread.status, thread.reason, thread.error = "interrupted", "failure", str(failed)
            thread.tell("run_ended", status="interrupted", reason=thread.reason)
        except Waiting:
            thread.status = "waiting"
            thread.tell("waiting")
        except Rolling:
            self._callers.rolling = True
            return
        except (asyncio.CancelledError, FailureError) as error:
            await self._dismiss(thread, error)
            raise
        else:
            thread.status = "idle"
            if thread.run is None or thread.run.status != "superseded":
                thread.tell("run_ended", status=thread.run.status if thread.run else None)
        self._calls.stopping = None
        settle(thread)
        self._report.tell()

    async def _dismiss(self, thread: Thread, error: BaseException) -> None:
        """End a thread that was cancelled, or that the worker refused: its checkpoint says that the turn can be resumed.

        Neither is the case where the worker merely forgets the workflow, which looks like a cancellation from within.
        """
        if workflow.cancellation_reason() is None and not isinstance(error, ApplicationError):
            return
        self._callers.failure = error if isinstance(error, ApplicationError) else None
        thread.status = "interrupted"
        settle(thread)
        self._callers.drop_queue()
        await workflow.wait_condition(workflow.all_handlers_finished)
        refuse_when_cancelled()

    def _rolled(self) -> dict[str, Any]:
        """Return the request that goes on with this thread in a new run of the workflow."""
        request = self._request.model_dump(mode="json", exclude={"messages", "rubric", "checkpoint"}, exclude_none=True)
        return request | {"checkpoint": self.checkpoint() | {"rolled": True}}

    def _held(self) -> Thread:
        if self._refusal is not None:
            raise ApplicationError(str(self._refusal), type=type(self._refusal).__name__, non_retryable=True)
        return self._thread

    @workflow.update
    async def invoke(self, request: RawValue = NO_VALUE) -> RunResult:  # type: ignore[override]  # raw, read by the admission
        """See `gradeloop.contracts.GradingThread.invoke`."""
        turn = self._admission.turn(request, self._update_id())
        attached = self._admission.attaches(turn.keys[0])
        self._admission.enqueue(turn)
        return await self._callers.settled(turn.keys[0], attached=attached)

    @invoke.validator
    def _may_invoke(self, request: RawValue = NO_VALUE) -> None:
        self._held()
        self._admission.refuse(request, self._update_id(), rolling=self._callers.rolling)

    @workflow.update
    async def resume(self, request: RawValue = NO_VALUE) -> RunResult:  # type: ignore[override]  # raw, read by the admission
        """See `gradeloop.contracts.GradingThread.resume`."""
        turn = self._admission.resumption(request, self._update_id())
        self._admission.enqueue(turn)
        return await self._callers.settled(turn.keys[0])

    @resume.validator
    def _may_resume(self, request: RawValue = NO_VALUE) -> None:
        self._held()
        self._admission.refuse_resumption(request, self._update_id())

    @staticmethod
    def _update_id() -> str:
        info = workflow.current_update_info()
        return info.id if info else ""

    @workflow.signal
    async def interrupt(self) -> None:
        """See `gradeloop.contracts.GradingThread.interrupt`."""
        if self._refusal is None and self._thread.status == "running":
            self._calls.stop("person")
        elif self._refusal is None and self._thread.status == "waiting":
            self._people.stop_waiting()
            self._callers.drop_queue()

    @workflow.signal
    async def close(self) -> None:
        """See `gradeloop.contracts.GradingThread.close`."""
        if self._refusal is None:
            self._thread.closing = True

    @workflow.signal
    async def supply_rubric(self, rubric: RawValue = NO_VALUE) -> None:  # type: ignore[override]  # raw, so that a malformed one is recorded
        """See `gradeloop.contracts.GradingThread.supply_rubric`."""
        if self._refusal is None and self._admission.supply(rubric):
            self._calls.stop("rubric")
