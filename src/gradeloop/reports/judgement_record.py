"""A judgement as Temporal keeps it: the run and the judge that it was asked with, and the tools that were called on the way."""

from dataclasses import dataclass

from pydantic import JsonValue, ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.errors import InvalidRequest
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.config import CriteriaJudge, JudgeConfig, config_of
from gradeloop.judges.contract import WORKFLOW
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.outcomes import failure
from gradeloop.reports.run_story import ToolUse
from gradeloop.reports.tool_uses import tool_uses
from gradeloop.reports.workflow_histories import GONE, Unreadable, started_with


@dataclass(frozen=True)
class JudgementRecord:
    """What is known of a judgement beside its result."""

    run: AgentRun | None = None
    judge: JudgeConfig | None = None
    tools: tuple[ToolUse, ...] = ()
    notes: tuple[str, ...] = ()


async def judgement_record(temporal: Client, result: JudgeResult) -> JudgementRecord:
    """Return what the server still has of a judgement; an empty record where it has nothing.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    first = await _first_event(temporal, result.id)
    if first is None:
        return JudgementRecord()
    try:
        asked = await started_with(temporal, first)
    except Unreadable as error:
        return JudgementRecord(notes=(f"the judgement's input cannot be read: {error}",))
    run, judge = _run(asked.get("run")), _judge(asked.get("judge"))
    if run is not None and run.id != result.agent_run_id:
        return JudgementRecord(notes=(f"the judgement of that id belongs to another run, {run.id!r}, so its tool calls are not shown",))
    if not isinstance(judge, CriteriaJudge):
        return JudgementRecord(run, judge)
    tools, notes = await tool_uses(temporal, result.id)
    mine = tuple(each.model_copy(update={"grading_run_id": result.id}) for each in tools)  # its evaluation is told under that id
    return JudgementRecord(run, judge, mine, tuple(notes))


async def _first_event(temporal: Client, name: str) -> HistoryEvent | None:
    """Return how the judgement began; None where the server does not know, or where the id is that of something else."""
    try:
        async for event in temporal.get_workflow_handle(name).fetch_history_events(page_size=1):
            kind = event.workflow_execution_started_event_attributes.workflow_type.name
            return event if kind == WORKFLOW else None
    except RPCError as error:
        if error.status not in GONE:
            raise failure(error, name) from None
    return None


def _run(value: JsonValue) -> AgentRun | None:
    try:
        return AgentRun.model_validate(value)
    except ValidationError:  # of another version
        return None


def _judge(value: JsonValue) -> JudgeConfig | None:
    try:
        return config_of(value)
    except InvalidRequest:  # of another version
        return None
