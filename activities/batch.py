"""The calls about a batch as a whole: its cases stored, its shards opened, its end written down, cases that are workflows."""

from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.admit import Desk
from activities.batch_views import CaseViews
from activities.case_desk import CaseDesk, is_over, told
from activities.draft_case import DraftCase
from activities.grade_case import GradeCase
from activities.heartbeat import heartbeats
from activities.thread_view import Brief
from gradeloop.batches.batch_request import BatchRequest, Upload
from gradeloop.batches.case import Case
from gradeloop.batches.case_call import NO_OUTPUT, CaseCall, CaseTold, ChildEnded, ChildRequest, Closing, Opened, ShardOpened, Stretch
from gradeloop.batches.case_plan import checks_of, judging_of, thread_of
from gradeloop.batches.case_result import BatchSummary, ended
from gradeloop.batches.ledger import Ledger
from gradeloop.batches.outcome import of_judging, of_thread
from gradeloop.contracts import RunResult
from gradeloop.errors import InvalidRequest
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.request import Generator
from gradeloop.store import CURE, Store

NOBODY = Generator(activity="given", task_queue="given")
"""Who drafted an output that was given."""


class Batch:
    """The activities of a batch that ask no model."""

    def __init__(self, desk: CaseDesk, slots: int) -> None:
        self._desk = desk
        self._slots = slots

    @activity.defn(name="store_cases")
    async def store_cases(self, upload: Upload) -> int:
        """Write cases into the store, those that this worker can serve, and return how many the batch has.

        Raises:
            ApplicationError: `InvalidRequest`.
        """
        async with heartbeats():
            seen: set[str] = set()
            for case in upload.cases:
                self._refuse_unservable(case, seen)
            try:
                return await self._desk.ledger.add(upload)
            except InvalidRequest as error:
                raise _refused(str(error)) from None

    def _refuse_unservable(self, case: Case, seen: set[str]) -> None:
        brief = _brief(case)
        if (sha256 := brief.sha256()) in seen:
            return
        seen.add(sha256)
        try:
            self._desk.desk.refuse_unservable(brief)
            checks_of(case, "")
        except ApplicationError as error:
            raise _refused(f"the case {case.id!r}: {error.message}") from None
        except ValueError as error:
            raise _refused(f"the case {case.id!r}: {error}") from None

    @activity.defn(name="open_batch")
    async def open_batch(self, request: BatchRequest) -> Opened:
        """Begin a batch, or go on with it.

        Raises:
            ApplicationError: `InvalidRequest`.
        """
        try:
            return Opened(stretches=tuple(await self._desk.ledger.open(request)), slots=self._slots)
        except InvalidRequest as error:
            raise _refused(str(error)) from None

    @activity.defn(name="open_shard")
    async def open_shard(self, stretch: Stretch) -> ShardOpened:
        """Return the cases of a stretch that have not ended."""
        found = await self._desk.ledger.due(stretch.batch_id, stretch.first, stretch.last)
        for due, held in found:
            self._desk.views.put(stretch.batch_id, due.position, held)
        return ShardOpened(due=tuple(due for due, _ in found))

    @activity.defn(name="close_batch")
    async def close_batch(self, closing: Closing) -> BatchSummary:
        """Write down how the batch ended."""
        return await self._desk.ledger.close(closing.batch_id, closing.why, stopped=closing.stopped)

    @activity.defn(name="case_workflow")
    async def case_workflow(self, call: CaseCall) -> ChildRequest:
        """Return what the workflow of a case is started with, or why it is not.

        Raises:
            ApplicationError: Of type `NO_OUTPUT`; `InvalidRequest` where the batch has a budget in money and a model no price.
        """
        held = await self._desk.views.again(call.batch_id, call.position)
        if is_over(held, call):
            return ChildRequest(known=told(held.status))
        batch = await self._desk.ledger.standing(call.batch_id, (call.position, call.attempt, 0))
        if batch.held:
            return ChildRequest(known=CaseTold(held=batch.held))
        if batch.request.budget is not None and batch.request.budget.max_cost_usd is not None:
            self._desk.desk.refuse_unservable(_brief(held.case, priced=True))
        try:
            if held.plan.kind == "thread":
                thread = thread_of(held.case, batch.request.priority)
                return ChildRequest(type="GradingThread", argument=thread.model_dump(mode="json"))
            judging = judging_of(held.case, held.output or "", batch.request.priority)
        except ValueError as error:
            raise ApplicationError(str(error), type=NO_OUTPUT, non_retryable=True) from None
        return ChildRequest(type="Judging", argument=judging.model_dump(mode="json"))

    @activity.defn(name="settle_case")
    async def settle_case(self, child: ChildEnded) -> CaseTold:
        """Write down what the workflow of a case came to."""
        call = child.call
        held = await self._desk.views.again(call.batch_id, call.position)
        if is_over(held, call):
            return told(held.status)
        kind: type[Any] = RunResult if child.type == "GradingThread" else JudgeResult
        handle = activity.client().get_workflow_handle(child.workflow_id, run_id=child.run_id, result_type=kind)
        try:
            found = await handle.result()
        except WorkflowFailureError as error:
            result = ended(held.case, "error", output=held.output, error=f"its workflow failed: {error.cause}")
        else:
            result = of_thread(held.case, found) if isinstance(found, RunResult) else of_judging(held.case, held.output or "", found)
        return await self._desk.settle(call, held, result, result.usage)


def _brief(case: Case, *, priced: bool = False) -> Brief:
    return Brief(generator=case.generator or NOBODY, grader=case.grader, rubric=case.rubric, priced=priced)


class NoStore:
    """Stands where a worker has no store: every batch is refused with the cure."""

    def __init__(self, why: str) -> None:
        self._why = why

    def activities(self) -> list[Callable[..., Any]]:
        """Return the two activities with which a batch begins."""

        @activity.defn(name="store_cases")
        async def store_cases(_upload: Upload) -> int:
            raise _refused(self._why)

        @activity.defn(name="open_batch")
        async def open_batch(_request: BatchRequest) -> Opened:
            raise _refused(self._why)

        return [store_cases, open_batch]


def batch_calls(desk: Desk, store: Store | None, slots: int) -> list[Callable[..., Any]]:
    """Return the activities of batches, on the worker's store."""
    if store is None:
        return NoStore(f"this worker has no store, in which a batch's cases are kept; {CURE}, for the worker too").activities()
    ledger = Ledger(store)
    cases = CaseDesk(desk, ledger, CaseViews(ledger))
    batch, grading = Batch(cases, slots), GradeCase(cases)
    whole: list[Callable[..., Any]] = [
        batch.store_cases,
        batch.open_batch,
        batch.open_shard,
        batch.close_batch,
        batch.case_workflow,
        batch.settle_case,
    ]
    return [*whole, DraftCase(cases).draft_case, grading.grade_case, grading.fail_case]


def _refused(why: str) -> ApplicationError:
    return ApplicationError(why, type=InvalidRequest.__name__, non_retryable=True)
