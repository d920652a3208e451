"""Threads that are compared as batches are: each draft of the last turn is a case."""

from gradeloop.batches.contract import CaseResult, CaseStatus
from gradeloop.client.client import open_thread
from gradeloop.contract.evaluation import Evaluation, EvaluationResult, VerdictResult
from gradeloop.contract.messages import Message, Usage
from gradeloop.errors import ServerUnreachable, ThreadNotFound
from gradeloop.reports.read_thread import read_thread_record

_STATUSES: dict[EvaluationResult | VerdictResult, CaseStatus] = {"satisfied": "passed", "needs_revision": "failed"}
"""The results that are verdicts; the others are errors."""


async def read_drafts(thread_id: str) -> tuple[list[CaseResult], Usage] | None:
    """Return the graded drafts of a thread's last turn as cases, and the usage of the thread; None where there is no such thread.

    A fork has the drafts before it, too: each draft counts by its last evaluation.
    """
    try:
        client, name, _ = await open_thread(thread_id)
    except (ServerUnreachable, ThreadNotFound):
        return None
    thread = await read_thread_record(client, name)
    asked = max((at for at, message in enumerate(thread.messages) if message.role == "user" and message.source is None), default=-1)
    last = {evaluation.iteration: evaluation for evaluation in thread.evaluations if evaluation.draft > asked}
    return [_case(last[at], thread.messages) for at in sorted(last)], thread.state.usage


def _case(evaluation: Evaluation, messages: tuple[Message, ...]) -> CaseResult:
    status = _STATUSES.get(evaluation.overridden_result or evaluation.result, "error")
    return CaseResult(
        index=evaluation.iteration,
        id=f"draft {evaluation.iteration + 1}",
        status=status,
        score=evaluation.score,
        output=messages[evaluation.draft].content,
        criteria=evaluation.criteria,
        error=evaluation.explanation if status == "error" else None,
        usage=evaluation.usage,
        grader=evaluation.grader,
    )
