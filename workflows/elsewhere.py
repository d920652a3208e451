"""A grader that is not ours: an activity on somebody else's worker, or a function in our worker's tools."""

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows.calls import Calls, told
from workflows.interview import GraderFailed
from workflows.options import FOREIGN_CALL
from workflows.raw import Unreadable, answered
from workflows.run_state import GradingPass, GradingRun
from workflows.thread_state import Thread
from workflows.tool_calls import ToolCalls

with workflow.unsafe.imports_passed_through():
    from typing import Any

    from activities.evidence import ToolRequest
    from gradeloop.call_groups import CallGroup
    from gradeloop.foreign_answer import returned
    from gradeloop.judge import Elsewhere
    from gradeloop.verdict import Verdict


class Errand:
    """Has somebody else judge a call group."""

    def __init__(self, thread: Thread, run: GradingRun, held: GradingPass, calls: Calls) -> None:
        self._thread = thread
        self._run = run
        self._pass = held
        self._calls = calls

    async def verdict(self, grader: Elsewhere, group: CallGroup, sample: int) -> Verdict:
        """Return what the grader says.

        Raises:
            GraderFailed: It failed, nobody serves it, or it returned something else.
            Interrupted: The thread is stopping.
        """
        asked = self._asked(group, sample)
        step = f"{group.index}.{sample}"
        try:
            value = await self._activity(grader, asked) if grader.activity else await self._function(grader, asked, step)
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

    def _asked(self, group: CallGroup, sample: int) -> dict[str, Any]:
        return {
            "messages": [
                message.model_dump(mode="json")
                for message in self._thread.log.slice(0, None if self._run.finished else self._pass.draft + 1)
            ],
            "draft": self._thread.log[self._pass.draft].content,
            "criteria": [criterion.model_dump(mode="json") for criterion in group.criteria],
            "iteration": self._run.iteration,
            "sample": sample,
        }

    async def _activity(self, grader: Elsewhere, asked: dict[str, Any]) -> object:
        options = FOREIGN_CALL | {"task_queue": grader.task_queue}
        summary = f"grade #{self._run.iteration + 1} {grader.activity}"
        return answered(await self._calls.make(grader.activity or "", asked, options, summary=summary, result=RawValue))

    async def _function(self, grader: Elsewhere, asked: dict[str, Any], step: str) -> object:
        tools = ToolCalls(self._thread, self._calls, "grader")
        operation = tools.operation(f"judge.{self._pass.draft}.{step}")
        request = ToolRequest(call="", arguments=asked, draft=asked["draft"], grader=True, operation_id=operation)
        found = await tools.ours(grader.function or "", request, summary=f"grade #{self._run.iteration + 1} {grader.function}")
        return found.value
