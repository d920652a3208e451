"""Questions about a case to models: votes of graders on criteria, and rollouts of judges with a schema."""

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from activities.capabilities import model_notes
from activities.fallback import ModelChoice
from activities.grade import GraderQuestion, answer_form, answer_tag, grader_request, seeded
from activities.judge import LARGE_BYTES, judge_request, read_answer, refuse_unconstrained
from activities.model_call import current_tenant
from gradeloop.batches.cases import CaseConversation, units_of
from gradeloop.batches.contract import Case, CaseCall
from gradeloop.batches.judged import JudgedRecords, rollout_key, vote_key
from gradeloop.contract.evaluation import CheckOutcome, Malformed, Verdict
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelReply, ModelRequest, Step
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import AgentRun
from gradeloop.grading.cache_key import key_of_tenant
from gradeloop.grading.prompts import JudgedDraft, sent_sha256
from gradeloop.grading.quotes import verify_quotes
from gradeloop.grading.scoring import CallGroup
from gradeloop.grading.verdicts import earlier_answers, parse_verdict
from gradeloop.judges.answers import Rollout, ValidAnswer, shorten_raw
from gradeloop.judges.contract import SchemaJudge
from gradeloop.judges.prompt import repair_message


class CaseQuestion(Protocol):
    """One question about a case, and how its answer is read into the conversation about it."""

    @property
    @abstractmethod
    def judge(self) -> ModelSpec:
        """The model that is to answer, with its fallbacks."""

    @property
    @abstractmethod
    def choice(self) -> ModelChoice:
        """The model that this attempt asks."""

    @property
    @abstractmethod
    def group_index(self) -> int:
        """The call group that the question belongs to."""

    @abstractmethod
    def key(self, tools: str) -> str:
        """Return the key under which the answer of the model that is asked is kept for the same question asked again.

        Args:
            tools: The sha256 of no tools at all, as graders are offered them.
        """

    @abstractmethod
    async def request(self, call: CaseCall, conversation: CaseConversation) -> ModelRequest:
        """Return the call to the model.

        Raises:
            ApplicationError: Of type `config`: the model cannot answer as it is asked to.
        """

    async def take(self, reply: ModelReply, request: ModelRequest, call: CaseCall, conversation: CaseConversation) -> None:
        """Read an answer into the conversation."""

    def reuse(self, verdict: str, conversation: CaseConversation) -> None:
        """Take a cached answer, as JSON, into the conversation."""


@dataclass(frozen=True)
class VoteQuestion:
    """A vote of a grader on a group of criteria."""

    case: Case
    group: CallGroup
    sample: int
    judge: ModelSpec
    choice: ModelChoice
    records: JudgedRecords
    checks: dict[str, CheckOutcome]

    @property
    def group_index(self) -> int:
        """See `CaseQuestion.group_index`."""
        return self.group.index

    def key(self, tools: str) -> str:
        """See `CaseQuestion.key`."""
        return vote_key(self.case, self.group, self.sample, self.choice.model, self.records, self.checks, tools)

    async def request(self, call: CaseCall, conversation: CaseConversation) -> ModelRequest:
        """See `CaseQuestion.request`."""
        records, group = self.records, self.group
        repeat = self.case.repeat + _repeat_of(self.case)
        model = seeded(self.choice.model, self.sample + repeat * len(self.group.judges))
        return grader_request(
            GraderQuestion(
                rubric=self.case.rubric,
                group=group,
                grader=self.case.grader or Grader(),
                model=model,
                judged=JudgedDraft(records.messages, records.request, records.draft, self.checks, call.nonce),
                scratch=conversation.scratch,
                step=Step(role="grader", group=group.index, sample=self.sample, step=conversation.steps),
                tag=answer_tag(call.nonce, str(call.unit)) if answer_form(model) == "tagged" else None,
                raised=call.raised,
                transformed=self.case.judging is None,
            )
        )

    async def take(self, reply: ModelReply, request: ModelRequest, call: CaseCall, conversation: CaseConversation) -> None:
        """See `CaseQuestion.take`."""
        group, earlier = self.group, earlier_answers(conversation.scratch)
        if self.case.judging is not None:
            conversation.notes = model_notes(request.spec)
            if not conversation.scratch:
                conversation.prompt_sha256 = sent_sha256(request.system, request.messages, call.nonce, request.tag)
        reading = parse_verdict(reply.message.content, group, conversation.pending or None, earlier=earlier, tag=request.tag)
        reading = verify_quotes(reading, self.records.messages) if group.quoted else reading
        conversation.note(reply.message, reading, group, sum(len(asked.ids) for asked, _ in units_of(self.case)))

    def reuse(self, verdict: str, conversation: CaseConversation) -> None:
        """See `CaseQuestion.reuse`."""
        conversation.verdict = Verdict.model_validate_json(verdict)


@dataclass(frozen=True)
class RolloutQuestion:
    """A rollout of a judge with a schema over a finished run."""

    case: Case
    schema_judge: SchemaJudge
    run: AgentRun
    sample: int
    judge: ModelSpec
    choice: ModelChoice
    group_index: int = 0

    @cached_property
    def _is_large(self) -> bool:
        return self.case.size() > LARGE_BYTES

    def key(self, tools: str) -> str:  # noqa: ARG002 - no tools are offered
        """See `CaseQuestion.key`."""
        return rollout_key(self.schema_judge, self.run, self.choice.model, self.schema_judge.sample_at(self.sample), _repeat_of(self.case))

    async def request(self, call: CaseCall, conversation: CaseConversation) -> ModelRequest:
        """See `CaseQuestion.request`."""
        for model in self.judge.chain:
            refuse_unconstrained(self.schema_judge, model)
        own, count = self.schema_judge.sample_at(self.sample), self.schema_judge.n_rollouts_per_input
        step = Step(role="grader", sample=self.sample, step=conversation.steps)
        asked = seeded(self.choice.model, own + _repeat_of(self.case) * count)
        ask = partial(judge_request, self.schema_judge, self.run, call.nonce, conversation.scratch, asked, step)
        ask = partial(ask, again=count > 1, raised=call.raised)
        return await asyncio.to_thread(ask) if self._is_large else ask()

    async def take(self, reply: ModelReply, request: ModelRequest, call: CaseCall, conversation: CaseConversation) -> None:
        """See `CaseQuestion.take`."""
        content = reply.message.content
        answer = await read_answer(content, self.schema_judge, self.run, is_large=self._is_large)
        conversation.notes = model_notes(request.spec)
        if not conversation.scratch:
            conversation.prompt_sha256 = sent_sha256(request.system, request.messages, call.nonce)
        rollout = Rollout(
            index=self.sample,
            repairs=conversation.repairs,
            model=self._named_model(),
            prompt_sha256=conversation.prompt_sha256,
        )
        conversation.steps += 1
        if isinstance(answer, ValidAnswer):
            conversation.rollout = rollout.model_copy(update={"output": answer.output, "citations": answer.citations})
            conversation.scratch = []
            return
        following = conversation.take(
            Malformed(problems=answer.problems), (), ask_again=lambda problems, _: repair_message(self.schema_judge, problems)
        )
        if isinstance(following, Message):
            conversation.scratch = [*conversation.scratch, reply.message, following]
            return
        invalid = {"invalid": "; ".join(answer.problems), "raw_text": shorten_raw(content)}
        conversation.rollout, conversation.scratch = rollout.model_copy(update=invalid), []

    def reuse(self, verdict: str, conversation: CaseConversation) -> None:
        """See `CaseQuestion.reuse`."""
        found = Rollout.model_validate_json(verdict)
        conversation.rollout = found.model_copy(update={"index": self.sample, "model": self._named_model()})
        conversation.prompt_sha256 = found.prompt_sha256

    def _named_model(self) -> str | None:
        """Return the id of a fallback, or of a panel's model; None for the judge's own model."""
        return self.choice.model.id if self.choice.fallback or self.schema_judge.panel else None


def _repeat_of(case: Case) -> int:
    """Return which judgement of the same run by the same judge a case is."""
    return case.judging.repeat if case.judging is not None else 0


def apart(key: str, own: Sequence[str]) -> str:
    """Return the key of a question that is kept apart from the same one in other cases where `own` says so, and of other tenants always."""
    apart_from_cases = hashlib.sha256("/".join([*own, key]).encode()).hexdigest() if own else key
    return key_of_tenant(apart_from_cases, current_tenant())
