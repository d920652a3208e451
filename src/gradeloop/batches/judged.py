"""Judgements of finished runs as cases of a batch: which can be, the keys of their questions, and what they come to."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradeloop.batches.case_checks import CheckedOutput
from gradeloop.batches.cases import CaseConversation, build_result, judgement_of, result_of_answers
from gradeloop.batches.contract import CASE_BYTES, Case, CaseResult
from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import Log, Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import AgentRun, draft_index, request_index, run_as_messages
from gradeloop.grading.answer_form import AnswerForm
from gradeloop.grading.cache_key import reuse_key
from gradeloop.grading.grants import named_in
from gradeloop.grading.prompts import is_elided
from gradeloop.grading.scoring import CallGroup
from gradeloop.grading.verdicts import first_judge
from gradeloop.judges import answers, contract
from gradeloop.judges.prompt import is_cut


@dataclass(frozen=True)
class JudgedRecords:
    """The messages that a grader is shown, and which of them is judged."""

    messages: list[Message]
    request: int
    """Index of the user's message that the draft answers."""
    draft: int


def records_of(case: Case, output: str) -> JudgedRecords:
    """Return the conversation of a case with its output as the draft, or the finished run that it judges."""
    if case.judging is not None:
        messages = run_as_messages(case.judging.run)
        draft = draft_index(messages)
    else:
        messages = [*case.messages, Message.model_construct(role="assistant", content=output)]
        draft = len(messages) - 1
    return JudgedRecords(messages, request_index(messages, draft), draft)


def judging_case(request: contract.JudgingRequest) -> Case | None:
    """Return a judgement as a case of a batch; None where it needs a workflow of its own.

    One does that is too large, reflects on its rollouts, or has tools, checks or remote graders.
    """
    judge = request.judge
    bare = request.model_copy(update={"judge": _without_name(judge), "priority": None})
    name = contract.judging_id(judge, request.run.sha256(), request.repeat, priority=request.priority)
    if isinstance(judge, contract.CriteriaJudge):
        if needs_workflow(judge) or is_elided(run_as_messages(request.run)):
            return None
        case = Case(id=name, judging=bare, rubric=judge.rubric, grader=judge.grader)
    elif needs_workflow(judge):
        return None
    else:
        case = Case(id=name, judging=bare, rubric=Rubric(criteria=()), asks_nothing=True)
    return case if case.size() <= CASE_BYTES else None


def _without_name(judge: contract.JudgeConfig) -> contract.JudgeConfig:
    """Return a judge without what decides nothing: two names of one judge make the same cases."""
    same: dict[str, Any] = {"id": "", "version": 1, "abstain": None, "escalate": None}
    return judge.model_copy(update=same | ({"name": None, "pass_if": None} if isinstance(judge, contract.SchemaJudge) else {}))


def needs_workflow(judge: contract.JudgeConfig) -> bool:
    """Return whether each judgement of a judge needs a workflow of its own: it reflects, or has tools, checks or remote graders."""
    if isinstance(judge, contract.SchemaJudge):
        return judge.judge_variant != "majority"
    return any(named.kind in {"queue", "tool"} for named in named_in(judge))


NO_TOOLS = hashlib.sha256(b"[]").hexdigest()[:16]
"""The sum that stands in a key for no tools at all, as the worker's registry of tools says it."""


def vote_key(
    case: Case,
    group: CallGroup,
    sample: int,
    model: ModelSpec,
    records: JudgedRecords,
    checks: Mapping[str, CheckOutcome],
    form: AnswerForm,
) -> str:
    """Return the key under which the vote of a model on a group of criteria is reused, for outputs and finished runs alike."""
    shown = Log(records.messages).sha256()
    if records.draft < len(records.messages) - 1:
        shown = f"{shown}/{records.draft}"
    if case.judging is not None and case.judging.repeat:
        shown = f"{shown}/repeat {case.judging.repeat}"
    return reuse_key(
        case.rubric,
        group,
        sample=sample,
        judge=model,
        instructions=(case.grader or Grader()).system_prompt,
        tools=NO_TOOLS,
        records=shown,
        request=records.request,
        checks=checks,
        form=form,
    )


_DECIDE_AFTER = {"n_rollouts_per_input", "quorum", "judge_variant", "rollout_type", "judge_model", "panel"}
"""Fields of a judge that a single rollout is not asked by; its model is a part of the key of its own."""


def rollout_key(judge: contract.SchemaJudge, run: AgentRun, model: ModelSpec, sample: int, repeat: int) -> str:
    """Return the key under which a rollout is reused: the sha256 of all that is asked, the fence's random code aside.

    The ids of judge and run play no part: the same question about the same content has the same key.
    """
    hidden = {"id"} if judge.show_metadata else {"id", "metadata"}
    question = {
        "judge": _without_name(judge).model_dump(mode="json", exclude=_DECIDE_AFTER, exclude_none=True),
        "version": contract.JUDGE_PROMPT_VERSION,
        "model": model.chain[0].model_dump(mode="json", exclude={"config": {"timeout"}}),
        "run": run.model_dump(mode="json", exclude=hidden),
        "sample": sample,
        "repeat": repeat,
    }
    return hashlib.sha256(json.dumps(["rollout", question], sort_keys=True).encode()).hexdigest()


def result_of_judged(case: Case, conversations: Sequence[CaseConversation]) -> CaseResult:
    """Return the result of a judgement all of whose questions are answered, or have failed for good.

    By a schema nothing passes or fails: the case is `ungraded`, as it is after answers that stayed invalid, which are not asked for again.
    """
    if case.judging is None:
        raise ValueError(f"the case {case.id!r} judges no finished run")
    request, usage = case.judging, sum((conversation.usage for conversation in conversations), Usage())
    judge = request.judge
    cached = bool(conversations) and all(conversation.cached for conversation in conversations)
    prompts = {conversation.prompt_sha256 for conversation in conversations}
    facts: dict[str, Any] = {
        "id": case.id,
        "agent_run_id": request.run.id,
        "rubric_id": judge.rubric_id,
        "rubric_version": judge.version,
        "usage": usage,
        "attempts": usage.attempts,
        "prompt_sha256": prompts.pop() if len(prompts) == 1 else None,
    }
    if isinstance(judge, contract.SchemaJudge):
        found = contract.JudgeResult.model_validate(facts | _by_schema(judge, request.run, conversations))
        base = build_result(case, "ungraded", cached=cached, grader=found.model)
    else:
        found = contract.JudgeResult.model_validate(facts | _by_criteria(case, request.run, conversations))
        base = result_of_answers(case, CheckedOutput(""), conversations)
    notes = tuple(dict.fromkeys(note for conversation in conversations for note in conversation.notes))
    if notes:
        found = found.model_copy(update={"result_metadata": found.result_metadata | {"notes": list(notes)}})
    update: dict[str, Any] = {"judgement": found}
    if found.failed:
        status = "error" if found.result_metadata["again"] else "ungraded"
        update |= {"status": status, "error": str(found.result_metadata["reason"])}
    return base.model_copy(update=update)


def _by_schema(judge: contract.SchemaJudge, run: AgentRun, conversations: Sequence[CaseConversation]) -> dict[str, Any]:
    rollouts = [
        conversation.rollout.model_copy(update={"index": at})
        if conversation.rollout is not None
        else answers.Rollout(index=at, unavailable=conversation.error, repairs=conversation.repairs)
        for at, conversation in enumerate(conversations)
    ]
    asked = next((conversation.instead_of or conversation.judge for conversation in conversations if conversation.judge), None)
    model = answers.answered_by(asked, rollouts)
    if answers.has_quorum(judge, rollouts):
        found = answers.summarize(judge, rollouts)
        cut = {"elided": True} if is_cut(run) else {}
        prompt = next((rollout.prompt_sha256 for rollout in rollouts if rollout.prompt_sha256), None)
        return _said("DIRECT_RESULT", found.output, found.metadata | cut, model) | {"prompt_sha256": prompt}
    if lost := next((rollout.unavailable for rollout in rollouts if rollout.unavailable), None):
        return _said("FAILURE", {}, {"reason": answers.too_few(judge, rollouts, lost), "again": True}, None)
    return _said("FAILURE", {}, answers.failure_metadata(judge, rollouts), model)


def _by_criteria(case: Case, run: AgentRun, conversations: Sequence[CaseConversation]) -> dict[str, Any]:
    judgement = judgement_of(case, CheckedOutput(""), conversations)
    model = first_judge(conversations)
    if judgement.error is None:
        metadata = answers.criteria_metadata(judgement, draft_index(run_as_messages(run)))
        return _said("DIRECT_RESULT", answers.criteria_output(case.rubric, judgement), metadata, model)
    errors = [conversation.error for conversation in conversations if conversation.error]
    answered = bool(errors) and all(error.startswith(answers.MALFORMED) for error in errors)
    return _said("FAILURE", {}, {"reason": judgement.error, "again": not answered}, model if answered else None)


def _said(result_type: contract.ResultType, output: dict[str, Any], metadata: dict[str, Any], model: str | None) -> dict[str, Any]:
    return {"output": output, "result_type": result_type, "result_metadata": metadata, "model": model}
