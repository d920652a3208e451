"""How a case is run: in calls of its own, or as a thread or a judgement, a workflow of its own."""

from gradeloop.batches.case import Case
from gradeloop.batches.case_call import CasePlan, Kind
from gradeloop.call_groups import CallGroup, call_groups
from gradeloop.evaluation import CheckOutcome
from gradeloop.judge import Elsewhere
from gradeloop.judges.agent_run import AgentRun, RunMessage, RunTranscript
from gradeloop.judges.config import CriteriaJudge
from gradeloop.judges.judging_request import JudgingRequest
from gradeloop.records import is_elided
from gradeloop.request import Grader, Priority, ThreadRequest
from gradeloop.text_check import outcome
from gradeloop.transcript import Message, code_of

TEXT_CHECK = "text_check"
"""The tool whose word on a text is found without calling anybody."""


def plan_of(case: Case) -> CasePlan:
    """Return how a case is run: what needs tools, or a grader elsewhere, is a workflow of its own."""
    if case.loop:
        return CasePlan(kind="thread", drafted=False, units=0)
    if case.generator is not None and (case.generator.model is None or case.generator.tools):
        return CasePlan(kind="thread", drafted=False, units=0)
    kind: Kind = "judging" if _needs_tools(case) else "calls"
    return CasePlan(kind=kind, drafted=case.output is None, units=len(units_of(case)))


def units_of(case: Case) -> list[tuple[CallGroup, int]]:
    """Return the questions that a case puts to graders: a call group, and which of its votes."""
    return [(group, sample) for group in call_groups(case.rubric) for sample in range(len(group.judges))]


def _needs_tools(case: Case) -> bool:
    grader = case.grader or Grader()
    elsewhere = grader.elsewhere is not None or any(
        isinstance(judge, Elsewhere) for group in call_groups(case.rubric) for judge in group.judges
    )
    tools = bool(grader.tools) or any(each.check and each.check.tool != TEXT_CHECK for each in case.rubric.checked)
    return elsewhere or tools or (case.output is not None and is_elided(log_of(case, case.output)))


def log_of(case: Case, output: str) -> list[Message]:
    """Return the conversation with the output as its last message, which may be blank."""
    return [*case.messages, Message.model_construct(role="assistant", content=output)]


def checks_of(case: Case, output: str) -> dict[str, CheckOutcome]:
    """Return what the checks say of an output.

    Raises:
        ValueError: One cannot decide; the message says which.
    """
    found = {}
    for criterion in case.rubric.checked:
        if criterion.check is not None and criterion.check.tool == TEXT_CHECK:
            text = code_of(output) if criterion.check.extract == "code" else output
            try:
                found[criterion.id] = outcome(text, criterion.check.arguments)
            except ValueError as error:
                raise ValueError(f"the check {criterion.check.tool} of {criterion.id} could not decide: {error}") from None
    return found


def thread_of(case: Case, priority: Priority) -> ThreadRequest:
    """Return what the thread of a case is started with; without a loop it drafts once."""
    if case.generator is None:
        raise ValueError(f"the case {case.id!r} has nobody who drafts")
    return ThreadRequest(
        messages=case.messages,
        rubric=case.rubric,
        generator=case.generator,
        grader=case.grader,
        max_iterations=case.max_iterations if case.loop else 1,
        priority=priority,
    )


def judging_of(case: Case, output: str, priority: Priority) -> JudgingRequest:
    """Return what the judgement of a case is started with."""
    if not output.strip():
        raise ValueError("the output is empty, and tools have nothing to look at")
    said = [_run_message(each) for each in case.messages]
    answer = RunMessage(role="assistant", content=output)
    run = AgentRun(id=case.id, transcripts=(RunTranscript(messages=(*said, answer)),))
    return JudgingRequest(judge=CriteriaJudge(rubric=case.rubric, grader=case.grader), run=run, priority=priority)


def _run_message(message: Message) -> RunMessage:
    return RunMessage(
        role=message.role,
        content=message.content,
        name=message.name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
    )
