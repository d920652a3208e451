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

    from gradeloop.batches.case_call import NO_OUTPUT, CaseCall, CaseTold, ChildEnded, ChildRequest, Due, Failed
    from gradeloop.judges.contract import usage_told
    from gradeloop.usage import Usage

TRIES = 15
"""To start a case's workflow while one of an earlier attempt is about to end."""


async def run_case(due: Due, call: CaseCall, calls: CaseCalls) -> CaseTold:
    """Run a case to its end; the status is absent where a limit of the batch holds it.

    Raises:
        ApplicationError: The batch as a whole is refused, or the store is gone.
    """
    plan, name = due.plan, due.id
    if plan.drafted:
        try:
            drafted = await calls.paid("draft_case", call, f"draft {name}")
        except CaseFailed as error:
            return await _record_failure(call, "draft", error, name, calls)
        if drafted.held or drafted.status:
            return drafted
    if plan.kind != "calls":
        return await _run_workflow(name, call, calls)
    answers = await asyncio.gather(*(_ask_question(due, call.model_copy(update={"unit": at}), calls) for at in range(max(plan.units, 1))))
    ended = next((each for each in answers if each.status), None)
    return ended or next((each for each in answers if each.held), CaseTold())


async def _ask_question(due: Due, call: CaseCall, calls: CaseCalls) -> CaseTold:
    """Ask one question until it is answered, or nobody answers it."""
    several = f".{call.unit + 1}" if due.plan.units > 1 else ""
    while True:
        try:
            found = await calls.paid("grade_case", call, f"grade {due.id}{several}")
        except CaseFailed as error:
            return await _record_failure(call, "unit", error, due.id, calls)
        if not found.again:
            return found


async def _record_failure(
    call: CaseCall, what: Literal["draft", "unit", "case"], error: CaseFailed, name: str, calls: CaseCalls
) -> CaseTold:
    return await calls.fail(Failed(call=call, what=what, error=str(error), usage=error.usage), f"error {name}")


async def _run_workflow(name: str, call: CaseCall, calls: CaseCalls) -> CaseTold:
    """Hand a case to a workflow of its own, and wait for its end."""
    async with calls.children:
        try:
            request = await calls.store("case_workflow", call, ChildRequest, f"start {name}")
        except ApplicationError as error:
            if error.type != NO_OUTPUT:
                raise
            return await _record_failure(call, "case", CaseFailed(error.message, Usage()), name, calls)
        if request.known is not None or request.type is None:
            return request.known or CaseTold()
        workflow_id = f"{call.batch_id}/{name}"
        try:
            with calls.under_way():
                handle = await _start_when_free(workflow_id, request.type, request.argument, f"case {name}", calls.priority)
                await handle
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            return await _record_failure(call, "case", CaseFailed(told(error), _usage_of_child(error)), name, calls)
        ended = ChildEnded(call=call, type=request.type, workflow_id=workflow_id, run_id=handle.first_execution_run_id or "")
        return await calls.store("settle_case", ended, CaseTold, f"settle {name}")


async def _start_when_free(
    workflow_id: str, kind: str, argument: dict[str, Any], summary: str, priority: Priority
) -> ChildWorkflowHandle[Any, Any]:
    """Start the case's workflow, once that of an attempt that was cut off has ended."""
    for _ in range(TRIES):
        try:
            return await workflow.start_child_workflow(kind, argument, id=workflow_id, priority=priority, static_summary=summary)
        except WorkflowAlreadyStartedError:
            await workflow.sleep(timedelta(seconds=2))
    message = f"the workflow {workflow_id!r} runs already, and is none of this batch's"
    raise ApplicationError(message, type=SHARD_LOST, non_retryable=True)


def _usage_of_child(error: ChildWorkflowError) -> Usage:
    return usage_told(error.cause.details) if isinstance(error.cause, ApplicationError) else Usage()
