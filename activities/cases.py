"""The activities of a batch: cases opened, drafted, graded and ended in the store."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.capabilities import WorkerServices
from activities.generate import sized
from activities.grade import GraderQuestion, answer_form, answer_tag, grader_request, seeded
from activities.model_call import Heartbeat, heartbeats, paid_call
from activities.providers.base import ModelReply, ModelRequest, Step
from activities.state_cache import CaseLoader, GradingSettings
from gradeloop.batches.cases import (
    CaseConversation,
    build_judging_request,
    build_thread_request,
    log_of,
    result_of_answers,
    result_of_judging,
    result_of_thread,
    run_checks,
    units_of,
)
from gradeloop.batches.contract import (
    NO_OUTPUT,
    BatchClosing,
    BatchRequest,
    BatchSummary,
    Case,
    CaseAnswer,
    CaseCall,
    CaseRange,
    CaseResult,
    ChildEnded,
    ChildRequest,
    FailedCall,
    OpenedBatch,
    ShardOpened,
    Upload,
    build_result,
)
from gradeloop.batches.store import BatchStore, CaseLookup, StoredCase
from gradeloop.contract.evaluation import CheckOutcome, Verdict
from gradeloop.contract.messages import Log, Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import Generator, Grader, RunResult
from gradeloop.contract.transcript import request_index
from gradeloop.errors import InvalidRequest
from gradeloop.grading.cache_key import reuse_key
from gradeloop.grading.prompts import JudgedDraft, build_generator_system
from gradeloop.grading.quotes import verify_quotes
from gradeloop.grading.scoring import CallGroup
from gradeloop.grading.verdicts import parse_verdict
from gradeloop.judges.contract import JudgeResult
from gradeloop.store.engine import STORE_CURE, Store


@dataclass(frozen=True)
class CaseServices:
    """A worker's desk, its store, and its copies of cases."""

    desk: WorkerServices
    ledger: BatchStore
    views: CaseLoader

    async def paid(self, call: CaseCall, standing: CaseLookup, request: ModelRequest, pulse: Heartbeat) -> ModelReply:
        """Make a model call for a case.

        Raises:
            ApplicationError: Its type is the kind of failure; `InvalidRequest` where the batch has a budget and the call no price.
        """
        budget = standing.request.budget
        if budget is not None and budget.max_cost_usd is not None and self.desk.providers.cost(request.spec, Usage(calls=1)) is None:
            cure = "add its price to the file that GRADELOOP_PRICES names, or set budget.max_tokens instead"
            words = f"budget.max_cost_usd: the price of {request.spec.id!r} is not known on this worker; {cure}"
            raise ApplicationError(words, type=InvalidRequest.__name__, non_retryable=True)
        try:
            return await paid_call(self.desk, request, pulse)
        except ApplicationError as error:
            if error.type == "rate_limited":
                await self.ledger.count_throttling(call.batch_id, request.spec.id)
            raise

    async def settle(
        self,
        call: CaseCall,
        held: StoredCase,
        result: CaseResult,
        spent: Usage,
        *,
        key: str | None = None,
        unit: CaseConversation | None = None,
    ) -> CaseAnswer:
        """Write down what a case came to.

        Args:
            call: The call that ended it.
            held: The case.
            result: What it came to, with the usage of what came after its draft.
            spent: What of it is not counted in the batch yet.
            key: Of the verdict of its only question.
            unit: That question.
        """
        whole = result.model_copy(update={"attempt": call.attempt, "usage": held.spent + result.usage})
        status = await self.ledger.end_case(call.batch_id, call.position, whole, spent, key=key, conversation=unit)
        self.views.drop(call.batch_id, call.position)
        return case_answer(status)


def case_answer(status: str) -> CaseAnswer:
    """Return that a case has ended."""
    return CaseAnswer.model_validate({"status": status})


def is_over(held: StoredCase, call: CaseCall) -> bool:
    """Tell whether a case has ended, or another attempt is under way."""
    return held.status != "queued" or held.attempt != call.attempt


class DraftCase:
    """The activity `draft_case`."""

    def __init__(self, desk: CaseServices) -> None:
        self._desk = desk

    @activity.defn(name="draft_case")
    async def draft_case(self, call: CaseCall) -> CaseAnswer:
        """Draft a case, and keep the draft before it is told.

        Raises:
            ApplicationError: Its type is the kind of failure.
        """
        async with heartbeats() as pulse:
            held = await self._desk.views.again(call.batch_id, call.position)
            if is_over(held, call):
                return case_answer(held.status)
            if held.output is not None:
                return CaseAnswer()
            standing = await self._desk.ledger.look_up(call.batch_id, (call.position, call.attempt, 0), None)
            if standing.pause_reason:
                return CaseAnswer(held=standing.pause_reason)
            request = _request(held.case, call)
            reply = await self._desk.paid(call, standing, request, pulse)
            draft = sized(reply.message, request.spec.id).content
            await self._desk.ledger.keep_draft(call.batch_id, call.position, call.attempt, draft, call.carried + reply.usage)
            self._desk.views.drop(call.batch_id, call.position)
            return CaseAnswer()


def _request(case: Case, call: CaseCall) -> ModelRequest:
    generator = case.generator
    if generator is None or generator.model is None:
        raise LookupError(f"the case {case.id!r} has no model that drafts it")
    shown = case.rubric if generator.show_rubric else None
    system = build_generator_system(generator.system_prompt, shown)
    return ModelRequest(spec=generator.model, step=Step(role="generator"), messages=case.messages, system=system, raised=call.raised)


@dataclass(frozen=True)
class Question:
    """One question about a case."""

    group: CallGroup
    sample: int
    model: ModelSpec
    messages: list[Message]
    checks: dict[str, CheckOutcome]
    key: str
    """Of its verdict."""


class GradeCase:
    """The activities `grade_case` and `fail_case`."""

    def __init__(self, desk: CaseServices) -> None:
        self._desk = desk

    @activity.defn(name="grade_case")
    async def grade_case(self, call: CaseCall) -> CaseAnswer:
        """Answer one question; the last of a case's ends the case.

        Raises:
            ApplicationError: Its type is the kind of failure.
        """
        async with heartbeats() as pulse:
            held = await self._desk.views.case(call.batch_id, call.position, call.attempt)
            if is_over(held, call):
                return case_answer(held.status)
            if held.output is None:  # drafted since it was read
                held = await self._desk.views.again(call.batch_id, call.position)
            if held.output is None:
                raise ApplicationError("the case has no draft", type=NO_OUTPUT, non_retryable=True)
            try:
                checks = run_checks(held.case, held.output)
            except ValueError as error:
                return await self._desk.settle(call, held, build_result(held.case, "error", output=held.output, error=str(error)), Usage())
            if not units_of(held.case):
                return await self._desk.settle(call, held, result_of_answers(held.case, held.output or "", []), Usage())
            return await self._answered(call, held, self._question(held, checks, call), pulse)

    async def _answered(self, call: CaseCall, held: StoredCase, question: Question, pulse: Heartbeat) -> CaseAnswer:
        place = (call.position, call.attempt, call.unit)
        standing = await self._desk.ledger.look_up(call.batch_id, place, question.key)
        unit, spent = standing.conversation, Usage()
        if not unit.ended and standing.verdict is not None:
            unit.verdict, unit.cached, unit.judge = Verdict.model_validate_json(standing.verdict), True, question.model.id
        elif not unit.ended:
            if standing.pause_reason:
                return CaseAnswer(held=standing.pause_reason)
            spent = await self._ask(call, held, question, standing, pulse)
        return await self._take(call, held, unit, spent, question.key)

    @activity.defn(name="fail_case")
    async def fail_case(self, failed: FailedCall) -> CaseAnswer:
        """Keep what failed for good: neither a pass nor a fail."""
        call = failed.call
        held = await self._desk.views.again(call.batch_id, call.position)
        if is_over(held, call):
            return case_answer(held.status)
        if failed.what != "unit":
            result = build_result(held.case, "error", output=held.output, error=failed.error, usage=failed.usage)
            return await self._desk.settle(call, held, result, failed.usage)
        unit = (await self._desk.ledger.look_up(call.batch_id, (call.position, call.attempt, call.unit), None)).conversation
        unit.error, unit.scratch, unit.usage = failed.error, [], unit.usage + failed.usage
        return await self._take(call, held, unit, failed.usage)

    def _question(self, held: StoredCase, checks: dict[str, CheckOutcome], call: CaseCall) -> Question:
        case, log = held.case, log_of(held.case, held.output or "")
        group, sample = units_of(case)[call.unit]
        named, grader = group.judges[sample], case.grader or Grader()
        judge = named if isinstance(named, ModelSpec) else grader.model or self._desk.desk.providers.default_grader()
        asked = reuse_key(
            case.rubric,
            group,
            sample=sample,
            judge=judge,
            instructions=grader.system_prompt,
            tools=self._desk.desk.toolbox.sha256(()),
            records=Log(log).sha256(),
            request=request_index(log, len(log) - 1),
            checks=checks,
        )
        key = hashlib.sha256("/".join([*_own(call, held), asked]).encode()).hexdigest() if _own(call, held) else asked
        return Question(group, sample, seeded(judge, sample + case.repeat), log, checks, key)

    async def _ask(self, call: CaseCall, held: StoredCase, question: Question, standing: CaseLookup, pulse: Heartbeat) -> Usage:
        """Make the call, and have the conversation take its answer; return what it cost."""
        unit, log, group = standing.conversation, question.messages, question.group
        tagged = answer_form(question.model) == "tagged"
        asking = GraderQuestion(
            rubric=held.case.rubric,
            group=group,
            grader=held.case.grader or Grader(),
            model=question.model,
            judged=JudgedDraft(log, request_index(log, len(log) - 1), len(log) - 1, question.checks, call.nonce),
            scratch=unit.scratch,
            step=Step(role="grader", group=group.index, sample=question.sample, step=unit.steps),
            tag=answer_tag(call.nonce, str(call.unit)) if tagged else None,
            raised=call.raised,
        )
        request = grader_request(asking)
        reply = await self._desk.paid(call, standing, request, pulse)
        message = sized(reply.message, request.spec.id)
        reading = parse_verdict(message.content, group, unit.pending or None, tag=request.tag)
        reading = verify_quotes(reading, log) if group.quoted and isinstance(reading, Verdict) else reading
        spent = call.carried + reply.usage
        unit.judge, unit.usage = question.model.id, unit.usage + spent
        unit.note(message, reading, group, sum(len(each.ids) for each, _ in units_of(held.case)))
        return spent

    async def _take(self, call: CaseCall, held: StoredCase, unit: CaseConversation, spent: Usage, key: str | None = None) -> CaseAnswer:
        """Keep a conversation; with the last of a case's the case ends."""
        asked, output, only = len(units_of(held.case)), held.output or "", unit
        if asked == 1 and unit.ended:
            result = result_of_answers(held.case, output, [unit]).model_copy(update={"usage": unit.usage})
            return await self._desk.settle(call, held, result, spent, key=key, unit=only)
        units = await self._desk.ledger.keep_conversation(call.batch_id, (call.position, call.attempt, call.unit), unit, spent, key)
        if not unit.ended:
            return CaseAnswer(again=True)
        if len(units) < asked or not all(unit.ended for unit in units):
            return CaseAnswer()
        result = result_of_answers(held.case, output, units).model_copy(update={"usage": sum((unit.usage for unit in units), Usage())})
        return await self._desk.settle(call, held, result, Usage())


def _own(call: CaseCall, held: StoredCase) -> list[str]:
    """Return what a question is told apart by from the same one elsewhere: past the cache, or in another repetition."""
    past = [call.batch_id, held.case.id, str(held.fresh)] if held.fresh or not call.cache else []
    return [*past, *([f"repeat {held.case.repeat}"] if held.case.repeat else [])]


NOBODY = Generator(activity="given", task_queue="given")
"""Who drafted an output that was given."""


class BatchActivities:
    """The activities of a batch that ask no model."""

    def __init__(self, desk: CaseServices, slots: int) -> None:
        self._desk = desk
        self._slots = slots

    @activity.defn(name="store_cases")
    async def store_cases(self, upload: Upload) -> int:
        """Write cases into the store, those that this worker can serve, and return how many the batch has.

        Raises:
            ApplicationError: `InvalidRequest`.
        """
        async with heartbeats():
            seen: set[str] = set()
            for case in upload.cases:
                self._refuse_unservable(case, seen)
            try:
                return await self._desk.ledger.add(upload)
            except InvalidRequest as error:
                raise _refused(str(error)) from None

    def _refuse_unservable(self, case: Case, seen: set[str]) -> None:
        brief = _brief(case)
        if (sha256 := brief.sha256()) in seen:
            return
        seen.add(sha256)
        try:
            self._desk.desk.refuse_unservable(brief)
            run_checks(case, "")
        except ApplicationError as error:
            raise _refused(f"the case {case.id!r}: {error.message}") from None
        except ValueError as error:
            raise _refused(f"the case {case.id!r}: {error}") from None

    @activity.defn(name="open_batch")
    async def open_batch(self, request: BatchRequest) -> OpenedBatch:
        """Begin a batch, or go on with it.

        Raises:
            ApplicationError: `InvalidRequest`.
        """
        try:
            return OpenedBatch(stretches=tuple(await self._desk.ledger.open(request)), slots=self._slots)
        except InvalidRequest as error:
            raise _refused(str(error)) from None

    @activity.defn(name="open_shard")
    async def open_shard(self, stretch: CaseRange) -> ShardOpened:
        """Return the cases of a stretch that have not ended."""
        found = await self._desk.ledger.due(stretch.batch_id, stretch.first, stretch.last)
        for due, held in found:
            self._desk.views.put(stretch.batch_id, due.position, held)
        return ShardOpened(due=tuple(due for due, _ in found))

    @activity.defn(name="close_batch")
    async def close_batch(self, closing: BatchClosing) -> BatchSummary:
        """Write down how the batch ended."""
        return await self._desk.ledger.close(closing.batch_id, closing.why, stopped=closing.stopped)

    @activity.defn(name="case_workflow")
    async def case_workflow(self, call: CaseCall) -> ChildRequest:
        """Return what the workflow of a case is started with, or why it is not.

        Raises:
            ApplicationError: Of type `NO_OUTPUT`; `InvalidRequest` where the batch has a budget in money and a model no price.
        """
        held = await self._desk.views.again(call.batch_id, call.position)
        if is_over(held, call):
            return ChildRequest(known=case_answer(held.status))
        batch = await self._desk.ledger.look_up(call.batch_id, (call.position, call.attempt, 0))
        if batch.pause_reason:
            return ChildRequest(known=CaseAnswer(held=batch.pause_reason))
        if batch.request.budget is not None and batch.request.budget.max_cost_usd is not None:
            self._desk.desk.refuse_unservable(_brief(held.case, priced=True))
        try:
            if held.plan.kind == "thread":
                thread = build_thread_request(held.case, batch.request.priority)
                return ChildRequest(type="GradingThread", argument=thread.model_dump(mode="json"))
            judging = build_judging_request(held.case, held.output or "", batch.request.priority)
        except ValueError as error:
            raise ApplicationError(str(error), type=NO_OUTPUT, non_retryable=True) from None
        return ChildRequest(type="Judging", argument=judging.model_dump(mode="json"))

    @activity.defn(name="settle_case")
    async def settle_case(self, child: ChildEnded) -> CaseAnswer:
        """Write down what the workflow of a case came to."""
        call = child.call
        held = await self._desk.views.again(call.batch_id, call.position)
        if is_over(held, call):
            return case_answer(held.status)
        kind: type[Any] = RunResult if child.type == "GradingThread" else JudgeResult
        handle = activity.client().get_workflow_handle(child.workflow_id, run_id=child.run_id, result_type=kind)
        try:
            found = await handle.result()
        except WorkflowFailureError as error:
            result = build_result(held.case, "error", output=held.output, error=f"its workflow failed: {error.cause}")
        else:
            result = (
                result_of_thread(held.case, found)
                if isinstance(found, RunResult)
                else result_of_judging(held.case, held.output or "", found)
            )
        return await self._desk.settle(call, held, result, result.usage)


def _brief(case: Case, *, priced: bool = False) -> GradingSettings:
    return GradingSettings(generator=case.generator or NOBODY, grader=case.grader, rubric=case.rubric, priced=priced)


class NoStore:
    """Stands where a worker has no store: every batch is refused with the cure."""

    def __init__(self, why: str) -> None:
        self._why = why

    def activities(self) -> list[Callable[..., Any]]:
        """Return the two activities with which a batch begins."""

        @activity.defn(name="store_cases")
        async def store_cases(_upload: Upload) -> int:
            raise _refused(self._why)

        @activity.defn(name="open_batch")
        async def open_batch(_request: BatchRequest) -> OpenedBatch:
            raise _refused(self._why)

        return [store_cases, open_batch]


def batch_activities(desk: WorkerServices, store: Store | None, slots: int) -> list[Callable[..., Any]]:
    """Return the activities of batches, on the worker's store."""
    if store is None:
        return NoStore(f"this worker has no store, in which a batch's cases are kept; {STORE_CURE}, for the worker too").activities()
    ledger = BatchStore(store)
    cases = CaseServices(desk, ledger, CaseLoader(ledger))
    batch, grading = BatchActivities(cases, slots), GradeCase(cases)
    whole: list[Callable[..., Any]] = [
        batch.store_cases,
        batch.open_batch,
        batch.open_shard,
        batch.close_batch,
        batch.case_workflow,
        batch.settle_case,
    ]
    return [*whole, DraftCase(cases).draft_case, grading.grade_case, grading.fail_case]


def _refused(why: str) -> ApplicationError:
    return ApplicationError(why, type=InvalidRequest.__name__, non_retryable=True)
