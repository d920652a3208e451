"""Questions about a case to models: drafts, votes of graders, rollouts of judges, comparisons, and escalations."""

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.batches.judge import LARGE_BYTES, judge_request, read_answer, refuse_unconstrained
from activities.calls.attempts import AttemptState
from activities.calls.paid_call import current_tenant
from activities.calls.retries import ModelChoice
from activities.capabilities import WorkerServices, model_notes
from activities.errors import invalid
from activities.grade import GraderQuestion, answer_tag, grader_request, seeded
from activities.providers import Providers
from activities.providers.scripted import Script
from activities.state_cache import ByteBoundedCache, GradingSettings
from gradeloop.batches.case_checks import CheckedOutput, refuse_undecidable
from gradeloop.batches.cases import CaseConversation, ParkedCase, groups_to_ask_anew, units_of
from gradeloop.batches.comparing import Choice, Contender, choices_of, compare
from gradeloop.batches.contract import Case, CaseAnswer, CaseCall, CaseResult
from gradeloop.batches.draft_checks import CALL_CHECK
from gradeloop.batches.judged import JudgedRecords, records_of, rollout_key, vote_key
from gradeloop.batches.store import COMPARISON_UNIT, ESCALATION_UNIT, BatchStore, CaseLookup, StoredCase
from gradeloop.contract.evaluation import CheckOutcome, Malformed, Verdict
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import HTTP_REQUEST, ModelSpec
from gradeloop.contract.provider import ModelReply, ModelRequest, Step
from gradeloop.contract.thread import Generator, Grader
from gradeloop.contract.transcript import AgentRun
from gradeloop.grading.answer_form import FULL, asked_first
from gradeloop.grading.cache_key import draft_key, key_of_tenant
from gradeloop.grading.checks import needs_logprobs
from gradeloop.grading.code_checks import show_calls
from gradeloop.grading.prompts import JudgedDraft, build_generator_system, sent_sha256
from gradeloop.grading.quotes import verify_quotes
from gradeloop.grading.scoring import CallGroup
from gradeloop.grading.verdicts import earlier_answers, parse_verdict
from gradeloop.judges.answers import Rollout, ValidAnswer, shorten_raw
from gradeloop.judges.contract import SchemaJudge, refuse_unanswered
from gradeloop.judges.prompt import repair_message
from gradeloop.settings.answer_forms import form_of

NOBODY = Generator(activity="given", task_queue="given")
"""The generator of an output that was given: nobody asks it for anything."""

CASE_CACHE_BYTES = 64 * 1024 * 1024
"""Cases kept in a worker process."""

OBJECT_OVERHEAD = 4
"""Memory of a case as objects, as a multiple of its JSON, about."""


def case_settings(case: Case, *, priced: bool = False) -> GradingSettings:
    """Return the settings of a case."""
    return GradingSettings(generator=case.generator or NOBODY, grader=case.grader, rubric=case.rubric, priced=priced)


async def refuse_case(services: WorkerServices, case: Case) -> None:
    """Raise ApplicationError of type `InvalidRequest`, which names the case, for a case that a worker cannot serve."""
    settings = case_settings(case)
    try:
        if case.judging is not None:
            refuse_unanswered(case.judging.run)
            services.providers.refuse_unknown(case.judging.judge.models if isinstance(case.judging.judge, SchemaJudge) else ())
        services.refuse_unservable(settings)
        if case.escalate is not None:
            services.refuse_unservable(settings.model_copy(update={"grader": Grader(model=case.escalate)}))
        await refuse_undecidable(case, services.tools.code)
    except (ApplicationError, ValueError) as error:
        why = error.message if isinstance(error, ApplicationError) else error
        raise invalid(f"the case {case.id!r}: {why}") from None


def draft_request(case: Case, call: CaseCall, model: ModelSpec) -> ModelRequest:
    """Return the call of a case's draft."""
    generator = case.generator or NOBODY
    return ModelRequest(
        spec=model,
        step=Step(role="generator"),
        messages=case.messages,
        system=build_generator_system(generator.system_prompt, case.rubric if generator.show_rubric else None),
        functions=generator.functions,
        function_choice=generator.function_choice,
        output_form=generator.output_form,
        images=case.images,
        raised=call.raised,
        logprobs=needs_logprobs(case.rubric),
    )


def key_of_draft(request: ModelRequest, call: CaseCall, stored: StoredCase, script: Script | None) -> str | None:
    """Return the key under which a draft is kept for the same request made again; None where each call is made.

    The scripted provider's depends on the row of the script that answers, too.
    """
    generator = stored.case.generator
    measured = any(check.arguments.get("kind") in {"latency", "cost"} for _, check in stored.case.rubric.checks(CALL_CHECK))
    if generator is None or measured or request.spec.provider == HTTP_REQUEST:
        return None
    row = script.row(request) if script is not None and request.spec.provider == "scripted" else None
    return _key_in_store(draft_key(request, generator.shown_as), call, stored, *([row.model_dump_json()] if row else []))


def _key_in_store(key: str, call: CaseCall, stored: StoredCase, *more: str) -> str:
    """Return the key of a call under which its answer is kept.

    Past the cache, in another repetition and where `more` says so, the call is kept apart from the same one in other cases; from
    that of other tenants always.
    """
    # A key is the question itself, so equal questions share an answer across cases and batches. Past the
    # cache the key gets its batch, case and count of repetitions instead: a retried activity then still finds
    # the answer that this very call has paid for, and no other call does.
    past_cache = [call.batch_id, stored.case.id, str(stored.fresh)] if stored.fresh or not call.cache else []
    apart = [*past_cache, *([f"repeat {stored.case.repeat}"] if stored.case.repeat else []), *more]
    return key_of_tenant(hashlib.sha256("/".join([*apart, key]).encode()).hexdigest() if apart else key, current_tenant())


def draft_text(case: Case, reply: Message) -> str:
    """Return the draft that a reply is: its text, or as JSON the functions that it calls, which nobody runs."""
    shown = case.generator.shown_as if case.generator else None
    return show_calls(reply, shown or "chat")


@dataclass(frozen=True)
class CaseQuestion(ABC):
    """One question about a case, and how its answer is read into the conversation about it."""

    case: Case
    sample: int
    judge: ModelSpec
    """The model that is to answer, with its fallbacks."""
    choice: ModelChoice
    """The model that this attempt asks."""

    @property
    def group_index(self) -> int:
        """The call group that the question belongs to."""
        return 0

    def key(self, call: CaseCall, stored: StoredCase, *more: str) -> str:
        """Return the key under which the answer of the model that is asked is kept for the same question asked again."""
        return _key_in_store(self._key(), call, stored, *more)

    @abstractmethod
    def _key(self) -> str: ...

    @abstractmethod
    async def request(self, call: CaseCall, conversation: CaseConversation) -> ModelRequest:
        """Return the call to the model; raise ApplicationError of type `config` where the model cannot answer as it is asked to."""

    @abstractmethod
    async def take(self, reply: ModelReply, request: ModelRequest, conversation: CaseConversation) -> None:
        """Read an answer into the conversation."""

    @abstractmethod
    def reuse(self, verdict: str, conversation: CaseConversation) -> None:
        """Take a cached answer, as JSON, into the conversation."""


@dataclass(frozen=True)
class VoteQuestion(CaseQuestion):
    """A vote of a grader on a group of criteria."""

    group: CallGroup
    records: JudgedRecords
    checks: dict[str, CheckOutcome]

    @property
    def group_index(self) -> int:
        """See `CaseQuestion.group_index`."""
        return self.group.index

    def _key(self) -> str:
        form = form_of(self.choice.model, self._grader)
        return vote_key(self.case, self.group, self.sample, self.choice.model, self.records, self.checks, form)

    @property
    def _grader(self) -> Grader:
        return self.case.grader or Grader()

    def _question(self, call: CaseCall, conversation: CaseConversation) -> GraderQuestion:
        records, group, model = self.records, self.group, self.choice.model
        repeat = self.case.repeat + _repeat_of(self.case)
        form = form_of(model, self._grader, conversation.form)
        return GraderQuestion(
            rubric=self.case.rubric,
            group=group,
            grader=self._grader,
            model=seeded(model, self.sample + repeat * len(group.judges)),
            judged=JudgedDraft(records.messages, records.request, records.draft, self.checks, call.nonce),
            scratch=conversation.scratch,
            step=Step(role="grader", group=group.index, sample=self.sample, step=conversation.steps),
            form=form,
            pending=conversation.pending,
            tag=answer_tag(call.nonce, str(call.unit)) if form.by == "tags" else None,
            raised=call.raised,
            transformed=self.case.judging is None,
        )

    async def request(self, call: CaseCall, conversation: CaseConversation) -> ModelRequest:
        """See `CaseQuestion.request`."""
        question = self._question(call, conversation)
        request, conversation.form = grader_request(question), question.form
        if self.case.judging is not None and not conversation.scratch:
            conversation.prompt_sha256 = sent_sha256(request.system, request.messages, call.nonce, request.tag)
        return request

    async def take(self, reply: ModelReply, request: ModelRequest, conversation: CaseConversation) -> None:
        """See `CaseQuestion.take`."""
        group, earlier = self.group, earlier_answers(conversation.scratch)
        if self.case.judging is not None:
            conversation.notes = model_notes(request.spec)
        form = conversation.form or FULL
        due = conversation.pending or asked_first(group, form)
        reading = parse_verdict(reply.message.content, group, due, earlier=earlier, tag=request.tag)
        reading = verify_quotes(reading, self.records.messages) if group.quoted else reading
        conversation.note(reply.message, reading, group, sum(len(asked.ids) for asked, _ in units_of(self.case)))

    def reuse(self, verdict: str, conversation: CaseConversation) -> None:
        """See `CaseQuestion.reuse`."""
        conversation.verdict = Verdict.model_validate_json(verdict)


@dataclass(frozen=True)
class RolloutQuestion(CaseQuestion):
    """A rollout of a judge with a schema over a finished run."""

    schema_judge: SchemaJudge
    run: AgentRun
    providers: Providers

    @cached_property
    def _is_large(self) -> bool:
        return self.case.size() > LARGE_BYTES

    def _key(self) -> str:
        return rollout_key(self.schema_judge, self.run, self.choice.model, self.schema_judge.sample_at(self.sample), _repeat_of(self.case))

    async def request(self, call: CaseCall, conversation: CaseConversation) -> ModelRequest:
        """See `CaseQuestion.request`."""
        refuse_unconstrained(self.schema_judge, self.judge, self.providers)
        step = Step(role="grader", sample=self.sample, step=conversation.steps)
        asked = (self.schema_judge, self.run, call.nonce, conversation.scratch, self.choice.model, step)
        again, repeat = self.schema_judge.n_rollouts_per_input > 1, _repeat_of(self.case)
        request, sha256 = await judge_request(*asked, repeat=repeat, again=again, raised=call.raised, is_large=self._is_large)
        if not conversation.scratch:
            conversation.prompt_sha256 = sha256
        return request

    async def take(self, reply: ModelReply, request: ModelRequest, conversation: CaseConversation) -> None:
        """See `CaseQuestion.take`."""
        content = reply.message.content
        answer = await read_answer(content, self.schema_judge, self.run, is_large=self._is_large)
        conversation.notes = model_notes(request.spec)
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


def place_of(call: CaseCall) -> tuple[int, int, int]:
    """Return under what the conversation of a call is stored: position and attempt of its case, and the number of the question."""
    return (call.position, call.attempt, call.unit)


NOTHING_TO_COMPARE = "there is nothing to compare it with: the other outputs are errors"
"""The error of the only output that is none."""

Ask = Callable[[CaseCall, CaseQuestion, str, CaseLookup, AttemptState], Awaitable[CaseAnswer]]
"""Answers a question by the cache or a paid call, and stores the conversation; returns that the case goes on, or which limit holds it."""


class CaseComparisons:
    """Comparisons of cases, on one store."""

    def __init__(self, services: WorkerServices, store: BatchStore, ask: Ask) -> None:
        self._services = services
        self._store = store
        self._ask = ask

    async def known(self, call: CaseCall, stored: StoredCase) -> CaseAnswer | None:
        """Return that a case waits for others, or has them compared; None where it is not judged yet, or compared with none."""
        ids = stored.case.compared_with
        if not ids:
            return None
        others = await self._store.parked(call.batch_id, ids)
        mine = next((parked for position, _, parked in others if position == call.position), None)
        return None if mine is None else waiting(mine)

    async def answer(self, call: CaseCall, stored: StoredCase, state: AttemptState) -> CaseAnswer | list[Contender]:
        """Answer the next question about a case beside others; return the cases once none is left. ApplicationError: the call failed."""
        # One question is asked a call: the first, in the order of the choices, that has no answer in the store. So
        # each paid call is an activity of its own, and one that is tried again goes on where the last one stood.
        contenders = await self.contenders(call, stored)
        able = [contender for contender in contenders if not contender.is_error]
        outputs = [contender.parked.output for contender in able]
        for choice in choices_of(stored.case) if len(able) > 1 else ():
            if not (await self._look_up(call, choice)).conversation.ended:
                return await self._asked(call, stored, choice, outputs, state)
        return contenders

    async def contenders(self, call: CaseCall, stored: StoredCase) -> list[Contender]:
        """Return the cases that are compared, with what each comes to by itself."""
        found = []
        for position, other, parked in await self._store.parked(call.batch_id, stored.case.compared_with):
            conversations = await self._store.conversations(call.batch_id, position, other.attempt)
            found.append(Contender.of(position, other, parked or ParkedCase(), conversations))
        return found

    async def results(
        self, call: CaseCall, contenders: Sequence[Contender], failed: str | None = None, lost: Usage | None = None
    ) -> dict[int, CaseResult]:
        """Return what all cases come to, by their positions; what the questions cost is that of the one that compares."""
        able = [contender for contender in contenders if not contender.is_error]
        mine = next(contender for contender in contenders if contender.position == call.position)
        choices = choices_of(mine.stored.case) if len(able) > 1 else []
        answers = {choice.unit: (await self._look_up(call, choice)).conversation for choice in choices}
        spent = sum((conversation.usage for conversation in answers.values()), lost or Usage())
        why, outcomes = failed, dict[int, dict[str, object]]()
        if len(able) < len(contenders[:2]):
            why = why or NOTHING_TO_COMPARE
        if why is None:
            try:
                outcomes = dict(zip((one.position for one in able), compare(able, answers), strict=True))  # type: ignore[arg-type]  # outcomes
            except ValueError as error:
                why = str(error)
        results = {}
        for one in contenders:
            usage = spent if one.position == call.position else Usage()
            found = outcomes.get(one.position)
            result = one.result(found, usage) if found is not None else one.failed(why or "", usage)  # type: ignore[arg-type]  # as above
            results[one.position] = one.stored.result_of_attempt(result)
        return results

    async def _asked(self, call: CaseCall, stored: StoredCase, choice: Choice, outputs: Sequence[str], state: AttemptState) -> CaseAnswer:
        case = stored.case
        model = choice.model() or (case.grader.model if case.grader else None) or self._services.providers.default_grader()
        sample = int(choice.reverse)
        question = RolloutQuestion(
            case, sample, model, state.choose(model), choice.judge(len(outputs)), choice.run(outputs), self._services.providers
        )
        await self._services.calls.understand(question.choice.model, state)
        anew = [f"attempt {call.attempt}"] if call.attempt else []  # what could not be told is asked again, and not looked up
        key = question.key(call, stored, *anew)
        at_unit = call.model_copy(update={"unit": COMPARISON_UNIT + choice.unit})
        lookup = await self._store.look_up(call.batch_id, place_of(at_unit), key)
        return await self._ask(at_unit, question, key, lookup, state)

    async def _look_up(self, call: CaseCall, choice: Choice) -> CaseLookup:
        return await self._store.look_up(call.batch_id, (call.position, call.attempt, COMPARISON_UNIT + choice.unit))


def waiting(parked: ParkedCase) -> CaseAnswer:
    """Return that a case waits for those that it is compared with, or has them compared."""
    return CaseAnswer(compares=True) if parked.compares else CaseAnswer(parked=True)


Find = Callable[[StoredCase, str], Awaitable[CheckedOutput]]
"""Returns what is found of a case without a model."""


class CaseEscalations:
    """Questions to the models of `escalate`, on one store."""

    def __init__(self, services: WorkerServices, store: BatchStore, find: Find, ask: Ask) -> None:
        self._services = services
        self._store = store
        self._find = find
        self._ask = ask
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()
        """Locks of the cases that are escalated, kept by who waits: of several calls about one, as after an outage, the first asks."""

    async def answer(self, call: CaseCall, stored: StoredCase, state: AttemptState) -> CaseAnswer | None:
        """Ask the escalation model the next question about a case; None where there is none. ApplicationError: the call failed."""
        if stored.case.escalate is None:
            return None
        async with self._locks.setdefault((call.batch_id, call.position), asyncio.Lock()):
            group = await self._next(call, stored)
            if group is None:
                return None
            found = await self._find(stored, stored.output or "")
            shown = found.shown.get(group.criteria[0].id, found.output)
            model = stored.case.escalate
            records = records_of(stored.case, shown)
            question = VoteQuestion(stored.case, 0, model, state.choose(model), group, records, found.checks)
            await self._services.calls.understand(question.choice.model, state)
            key = question.key(call, stored)
            at_unit = call.model_copy(update={"unit": ESCALATION_UNIT + group.index})
            return await self._ask(at_unit, question, key, await self._store.look_up(call.batch_id, place_of(at_unit), key), state)

    async def is_due(self, stored: StoredCase, conversations: Sequence[CaseConversation]) -> bool:
        """Return whether the escalation model is to be asked about a case with these conversations."""
        if stored.case.escalate is None:
            return False
        return bool(groups_to_ask_anew(stored.case, await self._find(stored, stored.output or ""), conversations))

    async def failing(self, call: CaseCall, stored: StoredCase) -> int | None:
        """Return the number of the question whose call to the escalation model has failed for good; None where it was another's."""
        group = await self._next(call, stored) if stored.case.escalate is not None else None
        return None if group is None else ESCALATION_UNIT + group.index

    @staticmethod
    def failed(stored: StoredCase, unit: int) -> CaseConversation:
        """Return the conversation of a question that the escalation model does not answer; its error is the caller's."""
        return CaseConversation(group=unit - ESCALATION_UNIT, judge=stored.case.escalate.id if stored.case.escalate else None)

    async def _next(self, call: CaseCall, stored: StoredCase) -> CallGroup | None:
        conversations = await self._store.conversations(call.batch_id, call.position, call.attempt)
        found = await self._find(stored, stored.output or "")
        return next(iter(groups_to_ask_anew(stored.case, found, conversations)), None)


class CaseLoader:
    """Cases of batches, by batch and position."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store
        self._cases: ByteBoundedCache[tuple[str, int], StoredCase] = ByteBoundedCache(CASE_CACHE_BYTES)

    async def load(self, batch_id: str, position: int, attempt: int) -> StoredCase:
        """Return a case as its attempt began; one of another attempt is read anew, and any that another worker may have ended."""
        # The copy is good for the first attempt of a call. A later attempt means that a worker was lost or
        # slow, and another one may have ended the case meanwhile.
        stored = self._cases.get((batch_id, position))
        if stored is not None and stored.attempt == attempt and activity.info().attempt == 1:
            return stored
        found = await self._store.cases_from(batch_id, position)
        for at, case in found.items():
            self.put(batch_id, at, case)
        return found[position]

    async def reload(self, batch_id: str, position: int) -> StoredCase:
        """Return a case as it is in the store now."""
        stored = await self._store.case(batch_id, position)
        self.put(batch_id, position, stored)
        return stored

    def put(self, batch_id: str, position: int, stored: StoredCase) -> None:
        """Keep a copy of a case."""
        self._cases.put((batch_id, position), stored, OBJECT_OVERHEAD * (stored.case.size() + len(stored.draft or "")))

    def drop(self, batch_id: str, position: int) -> None:
        """Forget a case, which has changed or ended."""
        self._cases.drop((batch_id, position))
