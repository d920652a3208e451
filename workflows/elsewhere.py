"""A grader that is not ours: an activity on somebody else's worker, or a function in our worker's tools."""

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows.calls import Calls, GraderFailed, told
from workflows.options import FOREIGN_CALL
from workflows.raw import Unreadable, answered
from workflows.tool_calls import ToolCalls

with workflow.unsafe.imports_passed_through():
    from typing import Any

    from activities.evidence import ToolRequest
    from gradeloop.call_groups import CallGroup
    from gradeloop.foreign_answer import returned
    from gradeloop.judge import Elsewhere
    from gradeloop.verdict import Verdict


async def remote_verdict(grader: Elsewhere, group: CallGroup, asked: dict[str, Any], step: str, calls: Calls, tools: ToolCalls) -> Verdict:
    """Return the verdict of somebody else's grader on a call group.

    Args:
        grader: The activity or function that judges.
        group: The criteria that it judges.
        asked: What it is given: messages, draft, criteria, iteration, sample.
        step: What the call is called in its id.
        calls: The thread's calls.
        tools: The grader's tools, of which a function is one.

    Raises:
        GraderFailed: It failed, nobody serves it, or it returned something else.
        Interrupted: The thread is stopping.
    """
    number = asked["iteration"] + 1
    try:
        if grader.activity:
            options = FOREIGN_CALL | {"task_queue": grader.task_queue}
            raw = await calls.make(grader.activity, asked, options, summary=f"grade #{number} {grader.activity}", result=RawValue)
            value = answered(raw)
        else:
            request = ToolRequest(call="", arguments=asked, draft=asked["draft"], grader=True, operation_id=tools.operation(step))
            found = await tools.ours(grader.function or "", request, summary=f"grade #{number} {grader.function}")
            value = found.value
    except Unreadable as error:
        raise GraderFailed(f"malformed_verdict: the grader {grader.id!r}: {error}") from None
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        raise GraderFailed(f"the grader {grader.id!r}: {told(error)}") from None
    verdict = returned(value, group)
    if not isinstance(verdict, Verdict):
        raise GraderFailed(f"malformed_verdict: the grader {grader.id!r}: {'; '.join(verdict.problems)}")
    return verdict
