"""One case of a shard, to its end: drafted, its questions asked side by side, or handed to a workflow of its own."""

import asyncio

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowHandle

from workflows.calls import told
from workflows.case_calls import SHARD_LOST, CaseCalls, CaseFailed

with workflow.unsafe.imports_passed_through():
    from datetime import timedelta
    from typing import Any, Literal

    from activities.case_call import NO_OUTPUT, CaseCall, CaseTold, ChildEnded, ChildRequest, Failed
    from gradeloop.batches.ledger import Due
    from gradeloop.judges.contract import usage_told
    from gradeloop.usage import Usage

TRIES = 15
"""To start a case's workflow while one of an earlier attempt is about to end."""


class CaseRun:
    """One case."""

    def __init__(self, due: Due, call: CaseCall, calls: CaseCalls, children: asyncio.Semaphore, priority: Priority) -> None:
        self._due = due
        self._call = call
        self._calls = calls
        self._children = children
        self._priority = priority

    async def end(self) -> CaseTold:
        """Return what the case came to; its status is absent where a limit of the batch holds it.

        Raises:
            ApplicationError: The batch as a whole is refused, or the store is gone.
        """
        plan, name = self._due.plan, self._due.id
        if plan.drafted:
            try:
                drafted = await self._calls.paid("draft_case", self._call, f"draft {name}")
            except CaseFailed as error:
                return await self._failed(self._call, "draft", error)
            if drafted.held or drafted.status:
                return drafted
        if plan.kind != "calls":
            return await self._as_workflow()
        told = await asyncio.gather(*(self._unit(at) for at in range(max(plan.units, 1))))
        ended = next((each for each in told if each.status), None)
        return ended or next((each for each in told if each.held), CaseTold())

    async def _unit(self, number: int) -> CaseTold:
        """Ask one question until it is answered, or nobody answers it."""
        call = self._call.model_copy(update={"unit": number})
        several = f".{number + 1}" if self._due.plan.units > 1 else ""
        while True:
            try:
                found = await self._calls.paid("grade_case", call, f"grade {self._due.id}{several}")
            except CaseFailed as error:
                return await self._failed(call, "unit", error)
            if not found.again:
                return found

    async def _failed(self, call: CaseCall, what: Literal["draft", "unit", "case"], error: CaseFailed) -> CaseTold:
        failed = Failed(call=call, what=what, error=str(error), usage=error.usage)
        return await self._calls.fail(failed, f"error {self._due.id}")

    async def _as_workflow(self) -> CaseTold:
        async with self._children:
            try:
                request = await self._calls.store("case_workflow", self._call, ChildRequest, f"start {self._due.id}")
            except ApplicationError as error:
                if error.type != NO_OUTPUT:
                    raise
                return await self._failed(self._call, "case", CaseFailed(error.message, Usage()))
            if request.known is not None or request.type is None:
                return request.known or CaseTold()
            name = f"{self._call.batch_id}/{self._due.id}"
            try:
                with self._calls.under_way():
                    handle = await self._started(name, request.type, request.argument)
                    await handle
            except ChildWorkflowError as error:
                if is_cancelled_exception(error):
                    raise
                return await self._failed(self._call, "case", CaseFailed(told(error), _spent(error)))
            ended = ChildEnded(call=self._call, type=request.type, workflow_id=name, run_id=handle.first_execution_run_id or "")
            return await self._calls.store("settle_case", ended, CaseTold, f"settle {self._due.id}")

    async def _started(self, name: str, kind: str, argument: dict[str, Any]) -> ChildWorkflowHandle[Any, Any]:
        """Start the case's workflow, once that of an attempt that was cut off has ended."""
        for _ in range(TRIES):
            try:
                return await workflow.start_child_workflow(
                    kind, argument, id=name, priority=self._priority, static_summary=f"case {self._due.id}"
                )
            except WorkflowAlreadyStartedError:
                await workflow.sleep(timedelta(seconds=2))
        raise ApplicationError(f"the workflow {name!r} runs already, and is none of this batch's", type=SHARD_LOST, non_retryable=True)


def _spent(error: ChildWorkflowError) -> Usage:
    return usage_told(error.cause.details) if isinstance(error.cause, ApplicationError) else Usage()
