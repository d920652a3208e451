"""A person's decisions, approvals and overrides of a thread: which ones its state allows, and what changes then."""

from typing import TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from gradeloop.contract.evaluation import Decision, Override
from gradeloop.contract.thread import ApproveRequest, DecideRequest, DenyRequest, OverrideRequest, parse_update
from gradeloop.errors import InvalidRequest
from gradeloop.grading.scoring import apply_override
from workflows.raw_arguments import decode
from workflows.thread_state import Invocation, Thread

PersonRequest = TypeVar("PersonRequest", DecideRequest, OverrideRequest, ApproveRequest, DenyRequest)
CallRequest = TypeVar("CallRequest", ApproveRequest, DenyRequest)


def refuse_decision(thread: Thread, raw: RawValue) -> None:
    """Raise where no such criterion waits; nothing of the decision is recorded then."""
    request, run = _parse_person(DecideRequest, raw, "the decision"), thread.run
    place = (request.grading_run_id, request.iteration)
    if run is None or not _waits(thread) or place != (run.grading_run_id, run.iteration):
        raise _stale("that run does not wait for a person, or not at that iteration; ask the query `state` what waits")
    waiting = [criterion.id for criterion in thread.waiting_criteria]
    if request.criterion not in waiting:
        raise _stale(f"the criterion {request.criterion!r} does not wait; those that do are: {', '.join(waiting)}")


def _waits(thread: Thread, call: str | None = None) -> bool:
    """True where a person is waited for: not for what a rubric asked that is about to be replaced, unless it is a call of the generator."""
    asked = thread.pending.get(call or "")
    return thread.status == "waiting" and (thread.supplied is None or (asked is not None and asked.role == "generator"))


def decide(thread: Thread, raw: RawValue) -> None:
    """Take a person's decision on a criterion; with the last one the run goes on."""
    request = _parse_person(DecideRequest, raw, "the decision")
    if thread.run is None or thread.run.grading is None:
        return
    gap = None if request.passed else request.gap
    thread.run.grading.decisions[request.criterion] = Decision(passed=request.passed, gap=gap, by=request.by)
    thread.record_event("decided", criterion=request.criterion)
    if not thread.waiting_criteria:
        _resume_decided(thread)


def refuse_approval(thread: Thread, model: type[CallRequest], raw: RawValue) -> None:
    """Raise where no such tool call waits; nothing of the approval or denial is recorded then."""
    request, waiting = _parse_person(model, raw, "the word on a call"), thread.pending
    if not _waits(thread, request.call) or request.call not in waiting:
        others = f"those that do are: {', '.join(waiting)}" if _waits(thread) and waiting else "none does"
        raise _stale(f"the call {request.call!r} does not wait for a person; {others}")


def approve(thread: Thread, raw: RawValue) -> None:
    """Let a tool call go on."""
    request = _parse_person(ApproveRequest, raw, "the approval")
    _answer_call(thread, request.call, by=request.by)


def deny(thread: Thread, raw: RawValue) -> None:
    """Forbid a tool call."""
    request = _parse_person(DenyRequest, raw, "the denial")
    _answer_call(thread, request.call, by=request.by, why=request.why)


def _answer_call(thread: Thread, call: str, *, by: str, why: str | None = None) -> None:
    """Note whether a person lets a call go on; with the last answer the run goes on."""
    approval = thread.pending.get(call)
    if approval is None:
        return
    approval.approved, approval.by, approval.why = why is None, by, why or ""
    thread.record_event("approved" if why is None else "denied", call=call, tool=approval.tool)
    if not thread.pending:
        _resume_decided(thread)


# The continuation goes to the head of the queue: while a person is waited for, only a turn that goes on may
# begin, and only the first of the queue is looked at (`thread_rules.may_begin`). Behind a turn with
# messages it would wait for ever.
def _resume_decided(thread: Thread) -> None:
    thread.queue.insert(0, Invocation(keys=[f"decided/{thread.seq}"], payload="", resumes=True))


def refuse_override(thread: Thread, raw: RawValue) -> None:
    """Raise where there is no such verdict; nothing of the override is recorded then."""
    request = _parse_person(OverrideRequest, raw, "the override")
    index = _find_evaluation(thread, request)
    if index is None or not any(row.id == request.criterion for row in thread.evaluations[index].criteria):
        raise _stale(
            f"there is no verdict on {request.criterion!r} at that run and iteration; the query `evaluations` shows those there are"
        )


def override(thread: Thread, raw: RawValue) -> int:
    """Put a person's verdict in place of the grader's, and return the index of the evaluation."""
    request = _parse_person(OverrideRequest, raw, "the override")
    index = _find_evaluation(thread, request)
    evaluation = None if index is None else thread.evaluations[index]
    rubric = thread.rubric_of(evaluation.rubric_sha256) if evaluation else None
    if index is None or evaluation is None or rubric is None:
        raise _stale("the evaluation is gone")
    when = workflow.now().isoformat(timespec="milliseconds")
    verdict = Override(passed=request.passed, why=request.why, by=request.by, time=when)
    thread.evaluations.replace(index, apply_override(rubric, evaluation, request.criterion, verdict))
    thread.record_event("overridden", index=index, criterion=request.criterion)
    return index


def _find_evaluation(thread: Thread, request: OverrideRequest) -> int | None:
    places = [(evaluation.grading_run_id, evaluation.iteration) for evaluation in thread.evaluations]
    found = [index for index, place in enumerate(places) if place == (request.grading_run_id, request.iteration)]
    return found[-1] if found else None


def _parse_person(model: type[PersonRequest], raw: RawValue, what: str) -> PersonRequest:
    try:
        return parse_update(model, decode(raw, what))
    except InvalidRequest as error:
        raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None


def _stale(why: str) -> ApplicationError:
    return ApplicationError(why, type="StaleDecision", non_retryable=True)
