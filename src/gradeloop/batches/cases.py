"""A case of a batch: how it is run, what its graders are asked, and its result."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter

from gradeloop.batches.case_checks import OWN_CHECKS, CheckedOutput, context_of
from gradeloop.batches.contract import DRAFT_MARK, Case, CaseKind, CasePlan, CaseResult, CaseStatus
from gradeloop.contract.base import Tolerant
from gradeloop.contract.criterion import Score
from gradeloop.contract.evaluation import CheckOutcome, CriterionRow, Judgement, Malformed, Verdict
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import RemoteGrader
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader, Priority, RunResult, ThreadRequest
from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.grading import scoring
from gradeloop.grading.answer_form import FULL, most_criteria
from gradeloop.grading.code_checks import CODE_CHECK
from gradeloop.grading.grants import named_in
from gradeloop.grading.prompts import is_elided
from gradeloop.grading.templates import fill_late, late_names
from gradeloop.grading.verdicts import GraderConversation, first_judge
from gradeloop.judges.answers import Rollout, rollouts_due
from gradeloop.judges.contract import CriteriaJudge, JudgeResult, JudgingRequest, SchemaJudge
from gradeloop.stats.reliability import is_below
from gradeloop.text import shortened


def plan_of(case: Case) -> CasePlan:
    """Return how a case is run, and after which others."""
    return _plan_alone(case).model_copy(update={"follows": tuple(dict.fromkeys(case.follows.values()))})


def _plan_alone(case: Case) -> CasePlan:
    """Return how a case is run: a case that needs tools or a remote grader gets a workflow of its own."""
    if not case.runs:
        return CasePlan(kind="calls", drafted=False, units=0)
    if case.loop:
        return CasePlan(kind="thread", drafted=False, units=0)
    if case.generator is not None and (case.generator.model is None or case.generator.tools):
        return CasePlan(kind="thread", drafted=False, units=0)
    kind: CaseKind = "judging" if case.judging is None and _needs_tools(case) and not case.compared_with else "calls"
    units, first = count_units(case), units_due(case, (), early=True)
    return CasePlan(kind=kind, drafted=case.output is None and case.judging is None, units=units, first=first if len(first) < units else ())


def with_outputs(case: Case, known: Mapping[str, tuple[str | None, CaseResult]]) -> Case:
    """Return a case whose marks are filled with what came of the cases that it follows: the draft and the result of each.

    Raises:
        LookupError: A mark names none of them.
        ValueError: One has no output, or the case is none with it.
    """
    texts = {}
    for name in late_names(case.model_dump_json()):
        draft, result = known[case.follows[name]]
        text = draft if name.startswith(DRAFT_MARK) and draft is not None else result.output
        if text is None:
            raise ValueError(f"it needs the output of {result.id!r}, which has none: {result.error or result.status}")
        texts[name] = text
    # An output is a model's text, and the case was checked before it existed. So the filled case is validated
    # anew, and what it calls, such as models, tools and addresses, must be the same as before: otherwise a
    # model could choose by its answer what a later case runs.
    filled = Case.model_validate(fill_late(case.model_dump(mode="json"), texts))
    if list(named_in(filled)) != list(named_in(case)):
        raise ValueError("an output that it takes of another case would name what it calls")
    return filled


def count_units(case: Case) -> int:
    """Return the number of questions about a case: rollouts of a judge with a schema, or votes on groups of criteria."""
    if case.judging is not None and isinstance(case.judging.judge, SchemaJudge):
        return case.judging.judge.rollout_count
    return len(units_of(case))


def units_of(case: Case) -> list[tuple[scoring.CallGroup, int]]:
    """Return the questions about a case to graders: a call group, and the number of the vote."""
    return [(group, sample) for group in scoring.call_groups(case.rubric) for sample in range(len(group.judges))]


def units_due(case: Case, conversations: "Sequence[CaseConversation]", *, early: bool) -> tuple[int, ...]:
    """Return the numbers of the questions about a case that are still to be answered; where `early`, of votes that may change a verdict.

    All are asked where their shares are the answer, or decide.
    """
    ended = {conversation.unit: conversation for conversation in conversations if conversation.ended}
    if not early or case.abstain is not None or case.compared_with:
        return tuple(unit for unit in range(count_units(case)) if unit not in ended)
    if case.judging is not None and isinstance(judge := case.judging.judge, SchemaJudge):
        return tuple(rollouts_due(judge, {unit: one.rollout.output if one.rollout else None for unit, one in ended.items()}))
    due, first = list[int](), 0
    for group in scoring.call_groups(case.rubric):
        answers = {at: ended[first + at].answer() for at in range(len(group.judges)) if first + at in ended}
        due += [first + at for at in scoring.samples_due(case.rubric, group, answers)]
        first += len(group.judges)
    return tuple(due)


def _needs_tools(case: Case) -> bool:
    grader = case.grader or Grader()
    remote = grader.remote is not None or any(
        isinstance(judge, RemoteGrader) for group in scoring.call_groups(case.rubric) for judge in group.judges
    )
    tools = bool(grader.tools) or any(check.tool not in OWN_CHECKS for _, check in case.rubric.checks())
    answer = Message.model_construct(role="assistant", content=case.output or "")  # unchecked, since it may be blank
    return remote or tools or (case.output is not None and is_elided([*case.messages, answer]))


def build_thread_request(case: Case, priority: Priority) -> ThreadRequest:
    """Return the request that starts the thread of a case; without a loop it drafts once."""
    if case.generator is None:
        raise ValueError(f"the case {case.id!r} has no generator")
    return ThreadRequest(
        messages=case.messages,
        rubric=_with_context(case),
        generator=case.generator,
        grader=case.grader,
        max_iterations=case.max_iterations if case.loop else 1,
        priority=priority,
    )


def build_judging_request(case: Case, output: str, priority: Priority, *, early: bool) -> JudgingRequest:
    """Return the request that starts the judgement of a case; `early` as for `units_due`."""
    if not output.strip():
        raise ValueError("the output is empty, and tools have nothing to look at")
    messages = [
        RunMessage(role=one.role, content=one.content, name=one.name, tool_calls=one.tool_calls, tool_call_id=one.tool_call_id)
        for one in case.messages
    ]
    answer = RunMessage(role="assistant", content=output)
    run = AgentRun(id=case.id, transcripts=(RunTranscript(messages=(*messages, answer)),))
    judge = CriteriaJudge(rubric=_with_context(case), grader=case.grader)
    return JudgingRequest(judge=judge, run=run, priority=priority, until_decided=early and case.abstain is None)


def _with_context(case: Case) -> Rubric:
    """Return the rubric of a case with what its code is given, for a workflow that knows no case."""
    if not (coded := case.rubric.checks(CODE_CHECK)):
        return case.rubric
    context = context_of(case)
    given = {one.id: check.model_copy(update={"arguments": {**check.arguments, "context": context}}) for one, check in coded}
    criteria = tuple(one.model_copy(update={"check": given[one.id]}) if one.id in given else one for one in case.rubric.criteria)
    return case.rubric.model_copy(update={"criteria": criteria})


def lost_workers(result: CaseResult) -> int:
    """Return the number of workers that were lost with a call of a case in flight; 0 unless the case ended since they were."""
    found = re.search(r"worker_lost: (\d+)", result.error or "") if result.status == "error" else None
    return int(found[1]) if found else 0


def build_result(case: Case, status: CaseStatus, **more: Any) -> CaseResult:  # noqa: ANN401 - a result's other fields
    """Return the result of a case that ends now; its position in the batch is filled in by the store."""
    names = ("repeat", "description", "prompt", "label", "vars", "metrics", "left_out")
    known = {name: getattr(case, name) for name in names}
    finished = datetime.now(UTC).isoformat(timespec="milliseconds")
    return CaseResult(index=0, id=case.id, status=status, finished=finished, optional=case.rubric.optional, **known, **more)


class CaseConversation(GraderConversation):
    """A conversation with a grader about a case, as the store keeps it between calls."""

    model_config = ConfigDict(extra="ignore")

    scratch: list[Message] = Field(default_factory=list)
    """Answers that were not verdicts, and the messages that asked for a better one."""
    judge: str | None = ""
    """The id of the grader's model."""
    usage: Usage = Usage()
    group: int = 0
    """The call group that the question belongs to."""
    unit: int = Field(default=0, exclude=True)
    """The number of the question, under which the conversation is stored."""
    rollout: Rollout | None = Field(default=None, exclude_if=lambda value: value is None)
    """The answer of a judge with a schema."""
    prompt_sha256: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The sha256 of what was sent first, where a judgement is to say it."""
    notes: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Notes on the model, if the judgement reports them."""

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.rollout is not None or super().ended

    def votes_twice(self, others: "Iterable[CaseConversation]") -> bool:
        """Return whether the fallback that answered votes on the same criteria for another grader already."""
        return self.fallback is not None and any(
            other.fallback is not None
            and (other.fallback.id, other.group) == (self.fallback.id, self.group)
            and other.instead_of != self.instead_of
            for other in others
        )

    def ask_again(self) -> None:
        """Drop the verdict, so that the question is asked once more."""
        self.verdict, self.error, self.missing, self.cached = None, None, (), False
        self.fallback, self.judge, self.instead_of, self.steps = None, "", None, max(0, self.steps - 1)

    @property
    def reusable(self) -> str | None:
        """The verdict or the rollout as JSON, if it is new and may be cached for the same question in other cases."""
        if self.cached or self.error is not None:
            return None
        if self.rollout is not None:
            return self.rollout.model_dump_json() if self.rollout.output is not None else None
        return self.verdict.model_dump_json() if self.verdict is not None and self.verdict.result != "failed" else None

    def note(self, message: Message, reading: Verdict | Malformed, group: scoring.CallGroup, rows: int) -> None:
        """Take an answer, and keep it with the message that asks for a better one where it is not a verdict."""
        self.steps += 1
        following = self.take(reading, group.ids, most=most_criteria(group, self.form or FULL))
        self.scratch = [*self.scratch, message, following] if isinstance(following, Message) else []
        if self.verdict is not None:
            self.verdict = scoring.shorten_verdict(self.verdict, scoring.row_characters(rows))


class ParkedCase(Tolerant):
    """A case that is judged but for what compares it with others."""

    output: str = ""
    """The judged text."""
    checks: dict[str, CheckOutcome] = Field(default_factory=dict)
    """The outcomes of its own checks."""
    error: CaseResult | None = None
    """Its result where there is nothing to compare."""
    compares: bool = False
    """Whether it was the last of all that are compared."""

    def found(self) -> CheckedOutput:
        """Return what was found of it without a model."""
        return CheckedOutput(self.output, dict(self.checks))


def result_of_answers(case: Case, found: CheckedOutput | None, conversations: Sequence[CaseConversation]) -> CaseResult:
    """Return the result of a case all of whose questions are answered, or have failed for good.

    Args:
        case: The case.
        found: What was judged, and what its checks say; None where the case does not run.
        conversations: Those about the questions of `units_of` that were asked, and those with the model of `escalate`.
    """
    if found is None or not case.rubric.criteria:
        return build_result(case, "ungraded", output=found and found.output, explanation=ASKED_NOTHING, error=not_judged(case))
    own, escalation = _own_and_escalated(case, conversations)
    judgement = judgement_of(case, found, own)
    doubts, better = unsure_criteria(case, judgement), {conversation.group: conversation.answer() for conversation in escalation}
    judgement = decide_by(case.rubric, judgement, doubts, better)
    unsure = unsure_criteria(case, judgement)
    verdicts = [conversation for conversation in conversations if conversation.verdict is not None]
    return _result(
        case,
        found.output,
        judgement,
        unsure,
        why_not_escalated(better),
        escalated_from=first_judge(own) if doubts and not unsure else None,
        cached=bool(verdicts) and all(conversation.cached for conversation in verdicts),
        grader=first_judge(escalation if doubts and not unsure else own),
    )


def _result(case: Case, output: str, judgement: Judgement, unsure: tuple[str, ...], why_unsure: str | None, **more: object) -> CaseResult:
    met = scoring.result_of(case.rubric, judgement) == "satisfied"
    status = ended_as(case, "error" if judgement.error else "unsure" if unsure else "passed" if met else "failed")
    return build_result(
        case,
        status,
        output=output,
        score=None if status == "unsure" else scoring.score_of(case.rubric, judgement),
        explanation=shortened(judgement.explanation),
        **_decided(case, status, judgement.rows, impossible=judgement.impossible),
        unsure=unsure if status == "unsure" else (),
        error=not_judged(case) if status == "ungraded" else why_unsure if status == "unsure" else judgement.error,
        **more,
    )


def judgement_of(case: Case, found: CheckedOutput, conversations: Sequence[CaseConversation]) -> Judgement:
    """Return what a case's graders and checks come to, all of whose questions that count are answered, or have failed for good."""
    units = [(group.index, sample) for group, sample in units_of(case)]
    answers = {units[conversation.unit]: conversation.answer() for conversation in conversations}
    return scoring.aggregate(case.rubric, scoring.PassFindings(answers=answers, checks=found.checks))


def _own_and_escalated(case: Case, conversations: "Sequence[CaseConversation]") -> tuple[list[CaseConversation], list[CaseConversation]]:
    count = len(units_of(case))
    return [one for one in conversations if one.unit < count], [one for one in conversations if one.unit >= count]


def groups_to_ask_anew(case: Case, found: CheckedOutput, conversations: Sequence[CaseConversation]) -> list[scoring.CallGroup]:
    """Return the call groups that the model of `escalate` is still to be asked about; none before all other questions are answered."""
    own, escalation = _own_and_escalated(case, conversations)
    if case.escalate is None or len(own) < len(units_of(case)) or not all(conversation.ended for conversation in own):
        return []
    asked = {conversation.group for conversation in escalation if conversation.ended}
    unsure = set(unsure_criteria(case, judgement_of(case, found, own)))
    return [group for group in scoring.call_groups(case.rubric) if unsure & set(group.ids) and group.index not in asked]


def ended_as(case: Case, status: CaseStatus) -> CaseStatus:
    """Return the status of a case of which something may have been left out: it never passes, nor fails where a mean of all decides."""
    undecided = status in {"passed", "unsure"} or (status == "failed" and case.rubric.gate == "none")
    return "ungraded" if case.left_out and undecided else status


ASKED_NOTHING = "nothing is asked of it"
"""The explanation of a case without assertions."""


def not_judged(case: Case) -> str | None:
    """Return what of a case is not judged, in words; None where it asks for nothing more."""
    return shortened(f"not judged: {'; '.join(case.left_out)}") if case.left_out else None


NO_SECOND_JUDGE = "not escalated: the case has a workflow of its own, since it is judged with tools or shown in part"
"""The reason why a case stays unsure although its suite names an escalation model."""


def _decided(case: Case, status: CaseStatus, rows: tuple[CriterionRow, ...], *, impossible: bool) -> dict[str, Any]:
    """Return the rows of a result, and which of them decided: none where it passed, or where a grader says that it cannot be judged."""
    shortfall = scoring.Shortfall() if impossible or status != "failed" else scoring.shortfall_of(case.rubric, rows)
    return {
        "criteria": rows,
        "decided_by": shortfall.criteria,
        "missed_threshold": shortfall.threshold,
        "worst_criterion": scoring.worst_of(case.rubric, rows),
    }


def result_of_thread(case: Case, result: RunResult) -> CaseResult:
    """Return the result of a case from the result of its thread."""
    last = result.evaluations[-1] if result.evaluations else None
    best = next((evaluation for evaluation in result.evaluations if evaluation.iteration == result.best_iteration), last)
    waited = result.waiting_for.draft if result.waiting_for else None
    rows = waited.rows if waited else best.criteria if best else ()
    ends: dict[str | None, CaseStatus] = {"satisfied": "passed", "max_iterations_reached": "failed", "failed": "failed"}
    status = ended_as(case, ends.get(result.status, "error"))
    problem = result.error or (last.explanation if last else f"the thread ended as {result.status}")
    return build_result(
        case,
        status,
        output=result.output,
        score=result.score,
        explanation=best.explanation if best and not waited else "",
        **_decided(case, status, rows, impossible=result.status == "failed"),
        error=problem if status == "error" else not_judged(case) if status == "ungraded" else None,
        usage=result.usage,
        grader=best.grader if best else None,
        iterations=result.iterations,
        thread_id=result.thread_id,
    )


_ROWS = TypeAdapter(tuple[CriterionRow, ...])


def result_of_judging(case: Case, output: str, result: JudgeResult) -> CaseResult:
    """Return the result of a case from the result of its judgement."""
    said: dict[str, Any] = result.output
    rows, impossible = _ROWS.validate_python(said.get("criteria") or ()), said.get("result") == "failed"
    reason = str(result.result_metadata.get("reason") or "the judge gave no verdict") if result.failed else None
    judgement = Judgement(rows=rows, explanation=str(said.get("explanation") or ""), impossible=impossible, error=reason)
    why_unsure, about = NO_SECOND_JUDGE if case.escalate else None, {"usage": result.usage, "grader": result.model, "thread_id": result.id}
    return _result(case, output, judgement, unsure_criteria(case, judgement), why_unsure, **about)


CANNOT_JUDGE = "it says that this cannot be judged"
"""The reason why an escalation model's answer decides nothing."""


def unsure_criteria(case: Case, judgement: Judgement) -> tuple[str, ...]:
    """Return the ids of the criteria whose votes agree less than `abstain` wants, where it hangs on them whether the case passes."""
    if case.abstain is None or judgement.error is not None or judgement.impossible:
        return ()
    doubtful = [row.id for row in judgement.rows if _is_doubtful(case, row)]
    return tuple(doubtful) if doubtful and _hangs_on(case.rubric, judgement.rows, doubtful) else ()


def _is_doubtful(case: Case, row: CriterionRow) -> bool:
    wanted = case.abstain.get(row.id) if isinstance(case.abstain, Mapping) else case.abstain
    votes = [vote.passed for vote in row.votes if vote.passed is not None]
    if wanted is None or not votes or row.unverified:
        return False
    return is_below(sum(vote == row.passed for vote in votes) / len(votes), wanted)


def _hangs_on(rubric: Rubric, rows: Sequence[CriterionRow], doubtful: Sequence[str]) -> bool:
    """Return whether the rubric is met if all doubtful criteria pass, and is not if none does."""
    # A verdict is unsure only where it matters. The doubtful criteria are once all passed and once all
    # failed: if the rubric ends the same in both cases, it does so for every mixture between them, as a
    # rubric's result only rises with each criterion that passes.
    scores = scoring.scores_of(rubric, rows)
    ends = [scoring.score_pass(rubric, {**scores, **dict.fromkeys(doubtful, Score(passed, float(passed)))}) for passed in (True, False)]
    return ends[0].satisfied != ends[1].satisfied


def decide_by(rubric: Rubric, judgement: Judgement, unsure: Sequence[str], answers: Mapping[int, scoring.GraderAnswer]) -> Judgement:
    """Return a judgement with the rows of an escalation model where its graders are unsure: such a row is decided, and has no votes.

    `unsure`: the ids of the criteria that they do not decide.
    """
    group_of = {name: group.index for group in scoring.call_groups(rubric) for name in group.ids}
    decided: dict[str, CriterionRow] = {}
    for row in judgement.rows:
        answer = answers.get(group_of.get(row.id, -1)) if row.id in unsure else None
        own = scoring.row_of_answer(rubric, rubric.criterion(row.id), answer) if answer and not _why_not(answer) else None
        if answer and own is not None and not own.unverified:
            decided[row.id] = own.model_copy(update={"contested": row.contested, "grader": answer.judge})
    if not decided:
        return judgement
    texts = [answer.verdict.explanation for answer in answers.values() if answer.verdict and not _why_not(answer)]
    rows = tuple(decided.get(row.id, row) for row in judgement.rows)
    return judgement.model_copy(update={"rows": rows, "explanation": " ".join(filter(None, texts)) or judgement.explanation})


def why_not_escalated(answers: Mapping[int, scoring.GraderAnswer]) -> str | None:
    """Return why an escalation model did not decide; None where nothing kept it from it."""
    reasons = [why for answer in answers.values() if (why := _why_not(answer))]
    return f"not escalated: {'; '.join(dict.fromkeys(reasons))}" if reasons else None


def _why_not(answer: scoring.GraderAnswer) -> str | None:
    if answer.verdict is None:
        return answer.error or f"{answer.judge}: it gave no verdict"
    return f"{answer.judge}: {CANNOT_JUDGE}" if answer.verdict.result == "failed" else None
