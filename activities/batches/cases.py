"""The activities of a batch: cases are stored, opened, drafted, graded and ended, and all that was paid for is written down."""

import asyncio
import hashlib
import json
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.batches import case_questions
from activities.calls.attempts import AttemptState, given_up, heartbeats
from activities.calls.paid_call import CANCELLED
from activities.calls.retries import OUTAGE, TENANT_BUDGET, ModelChoice
from activities.capabilities import WorkerServices
from activities.errors import activity_call, invalid, store_attempt, store_away
from activities.generate import drafting_model
from gradeloop.batches import contract
from gradeloop.batches.after_each import call_after_each
from gradeloop.batches.case_checks import CheckedOutput, find, has_checks
from gradeloop.batches.cases import (
    CaseConversation,
    ParkedCase,
    build_judging_request,
    build_result,
    build_thread_request,
    count_units,
    result_of_answers,
    result_of_judging,
    result_of_thread,
    units_due,
    units_of,
    with_outputs,
)
from gradeloop.batches.charges import CallCost, WaitNote
from gradeloop.batches.early import EarlyGates
from gradeloop.batches.judged import records_of, result_of_judged
from gradeloop.batches.store import BatchStore, CaseLookup, StoredCase, write_draft
from gradeloop.contract.messages import MESSAGE_BYTES, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelReply, ModelRequest
from gradeloop.contract.thread import RunResult
from gradeloop.errors import InvalidRequest, StoreUnavailable, ValueRefused, explain
from gradeloop.grading.checks import CheckedDraft
from gradeloop.judges.contract import JudgeResult, SchemaJudge
from gradeloop.store.fleet import Fleet
from gradeloop.text import shortened

KEPT_FINDINGS = 500
"""The findings of cases in flight that are kept: several questions about a case need the same, and code takes a start of the sandbox."""


@dataclass(frozen=True)
class UnwrittenReply:
    """A reply that was paid for, kept until what it says is in the store: the next attempt of its call pays nothing."""

    reply: ModelReply
    cost: CallCost
    choice: ModelChoice
    """The model that gave it."""


class BatchActivities:
    """The activities of batches, on one store."""

    def __init__(self, services: WorkerServices, store: BatchStore, gates: EarlyGates, fleet: Fleet) -> None:
        self._services = services
        self._abandoned = services.calls.abandoned
        self._store = store
        self._cases = case_questions.CaseLoader(store)
        self._gates = gates
        self._fleet = fleet
        self._findings: dict[str, CheckedOutput] = {}
        """Findings without a model about the cases in flight."""
        self._comparisons = case_questions.CaseComparisons(services, store, self._ask_more)
        self._escalations = case_questions.CaseEscalations(services, store, self._found, self._ask_more)

    @activity.defn(name="store_cases")
    async def store_cases(self, raw: dict[str, Any]) -> int:
        """Write the cases of an `Upload` into the store, those that this worker can serve, and return how many the batch has.

        Raises:
            ApplicationError: `InvalidRequest`.
        """
        try:
            upload = contract.parse_upload(raw)
        except InvalidRequest as error:
            raise invalid(str(error)) from None
        async with heartbeats():
            checked: set[str] = set()
            for case in upload.cases:
                models = f"{case_questions.case_settings(case).sha256()} {case.escalate and case.escalate.model_dump_json()}"
                if models not in checked or case.judging is not None:  # whose run is its own
                    checked.add(models)
                    await case_questions.refuse_case(self._services, case)
            async with store_attempt():
                return await self._store.add(upload)

    @activity.defn(name="open_batch")
    async def open_batch(self, request: contract.BatchRequest) -> contract.OpenedBatch:
        """Begin a batch, or resume it; raise ApplicationError of type `InvalidRequest` where that is refused."""
        async with store_attempt():
            stretches, in_turn = await self._store.open(request)
        webhooks = self._services.capabilities.webhooks
        return contract.OpenedBatch(stretches=tuple(stretches), slots=self._fleet.slots, webhooks=webhooks, in_turn=in_turn)

    @activity.defn(name="open_shard")
    async def open_shard(self, stretch: contract.CaseRange) -> contract.ShardOpened:
        """Return the cases of a stretch that have not ended."""
        async with store_attempt():
            cases = await self._store.due(stretch.batch_id, stretch.first, stretch.last)
        for due, stored in cases:
            self._cases.put(stretch.batch_id, due.position, stored)
        return contract.ShardOpened(due=tuple(due for due, _ in cases), slots=self._fleet.slots)

    @activity.defn(name="fill_case")
    async def fill_case(self, call: contract.CaseCall) -> contract.CaseAnswer:
        """Fill the outputs of the cases that a case follows into its texts; without one of them it ends as an error."""
        async with store_attempt():
            stored = await self._reload(call)
            if is_over(stored, call):
                return self._ended(stored.status)
            try:
                filled = with_outputs(stored.case, await self._store.followed(call.batch_id, stored.case))
            except (LookupError, ValueError) as error:
                why = explain(error) if isinstance(error, ValidationError) else str(error)
                return await self.end_case(call, stored, build_result(stored.case, "error", error=shortened(why)), CallCost())
            await self._store.fill(call.batch_id, call.position, filled)
            self._cases.drop(call.batch_id, call.position)
            return contract.CaseAnswer()

    @activity.defn(name="draft_case")
    async def draft_case(self, call: contract.CaseCall) -> contract.CaseAnswer:
        """Draft a case, and store the draft before the workflow learns of it. An ApplicationError's type is the kind of failure."""
        async with self._paying(call) as state:
            stored = await self._reload(call)
            if is_over(stored, call):
                return self._ended(stored.status)
            if stored.output is not None:
                return contract.CaseAnswer()
            if (known := await self._comparisons.known(call, stored)) is not None:  # an error that the others wait for
                return known
            choice = state.choose(drafting_model(stored.case.generator or case_questions.NOBODY))
            request = case_questions.draft_request(stored.case, call, choice.model)
            key = case_questions.key_of_draft(request, call, stored, self._services.providers.script)
            async with self._looked_up(call, state, choice, key) as lookup:
                if lookup.verdict is not None and self._abandoned.unwritten() is None:
                    draft, cost, key = lookup.verdict, self._cost_before(state), None
                elif (limit := await self._limit(call, lookup, state)) is not None:
                    return contract.CaseAnswer(held=limit)
                else:
                    paid = await self._paid_call(call, lookup, request, state, choice)
                    draft, cost = write_draft(case_questions.draft_text(stored.case, paid.reply.message), paid.reply.logprobs), paid.cost
            await self._store.keep_draft(call.batch_id, (call.position, call.attempt), draft, cost, key)
            self._abandoned.forget()
            self._cases.drop(call.batch_id, call.position)
            return contract.CaseAnswer()

    @activity.defn(name="grade_case")
    async def grade_case(self, call: contract.CaseCall) -> contract.CaseAnswer:
        """Answer one question about a case; the last one ends the case. An ApplicationError's type is the kind of failure."""
        async with self._paying(call) as state:
            stored = await self._cases.load(call.batch_id, call.position, call.attempt)
            if (known := await self._known(call, stored)) is not None:
                return known
            if stored.output is None:  # drafted since it was read
                stored = await self._reload(call)
            if stored.output is None:
                raise ApplicationError("the case has no draft", type=contract.NO_OUTPUT, non_retryable=True)
            try:
                found = await self._found(stored, stored.output)
            except ValueError as error:
                result = build_result(stored.case, "error", output=stored.output, error=str(error))
                return await self.end_case(call, stored, result, CallCost())
            if not count_units(stored.case):
                return await self.end_case(call, stored, await self._result(stored, []), CallCost())
            if (escalated := await self._escalations.answer(call, stored, state)) is not None:
                return escalated
            question = await self._question(stored, found, call, state)
            await self._services.calls.understand(question.choice.model, state)
            key = question.key(call, stored)
            async with self._looked_up(call, state, question.choice, key) as lookup:
                cost: CallCost | contract.CaseAnswer = CallCost()
                if not lookup.conversation.ended:
                    cost = await self._ask(call, question, lookup, state)
            return cost if isinstance(cost, contract.CaseAnswer) else await self._keep(call, stored, lookup.conversation, cost, key)

    @activity.defn(name="compare_cases")
    async def compare_cases(self, call: contract.CaseCall) -> contract.CaseAnswer:
        """Answer one question that compares cases; the last one ends them all. An ApplicationError's type is the kind of failure."""
        async with self._paying(call) as state:
            stored = await self._reload(call)
            if is_over(stored, call):
                return self._ended(stored.status)
            answered = await self._comparisons.answer(call, stored, state)
            if isinstance(answered, contract.CaseAnswer):
                return answered
            return await self._end_together(call, await self._comparisons.results(call, answered), CallCost())

    @activity.defn(name="fail_case")
    async def fail_case(self, failed: contract.FailedCall) -> contract.CaseAnswer:
        """Store what failed for good, neither a pass nor a fail; after an outage the case is left for later."""
        call, cost = failed.call, CallCost(failed.usage, activity_call())
        async with store_attempt():
            stored = await self._reload(call)
            if is_over(stored, call):
                return self._ended(stored.status)
            if failed.what == "outage":
                await self._store.count_failed(call.batch_id, cost)
                return contract.CaseAnswer(held=failed.error)
            if failed.what == "comparison":
                contenders = await self._comparisons.contenders(call, stored)
                return await self._end_together(call, await self._comparisons.results(call, contenders, failed.error, failed.usage), cost)
            if failed.what != "unit":
                result = build_result(stored.case, "error", output=stored.output, error=failed.error, usage=failed.usage)
                return await self.end_case(call, stored, result, cost)
            conversation = (await self._store.look_up(call.batch_id, case_questions.place_of(call))).conversation
            if conversation.ended and (unit := await self._escalations.failing(call, stored)) is not None:
                call = call.model_copy(update={"unit": unit})
                asked = (await self._store.look_up(call.batch_id, case_questions.place_of(call))).conversation
                conversation = self._escalations.failed(stored, unit).model_copy(update={"usage": asked.usage})
            if not conversation.ended:  # by an earlier attempt of this
                conversation.error, conversation.scratch, conversation.usage = failed.error, [], conversation.usage + failed.usage
            return await self._keep(call, stored, conversation, cost)

    @activity.defn(name="case_workflow")
    async def case_workflow(self, call: contract.CaseCall) -> contract.ChildRequest:
        """Return what the workflow of a case is started with, or why it is not.

        Raises:
            ApplicationError: Of type `NO_OUTPUT`; `InvalidRequest` where the batch has a budget in money and a model no price.
        """
        async with store_attempt():
            stored = await self._reload(call)
            if is_over(stored, call):
                return contract.ChildRequest(known=self._ended(stored.status))
            lookup = await self._store.look_up(call.batch_id, case_questions.place_of(call))
            if lookup.pause_reason:
                return contract.ChildRequest(known=contract.CaseAnswer(held=lookup.pause_reason))
            await self._store.require_writable(call.batch_id, CallCost(call=activity_call()))
        await asyncio.sleep(lookup.request.delay / 1000)
        if _limits_cost(lookup.request):
            self._services.refuse_unservable(case_questions.case_settings(stored.case, priced=True))
        priority = lookup.request.priority
        try:
            if stored.plan.kind == "thread":
                thread = build_thread_request(stored.case, priority)
                return contract.ChildRequest(type="GradingThread", argument=thread.model_dump(mode="json"))
            judging = build_judging_request(stored.case, await self._transformed(stored), priority, early=call.decides)
        except ValueError as error:
            raise ApplicationError(str(error), type=contract.NO_OUTPUT, non_retryable=True) from None
        return contract.ChildRequest(type="Judging", argument=judging.model_dump(mode="json"))

    @activity.defn(name="settle_case")
    async def finish_case(self, child: contract.ChildEnded) -> contract.CaseAnswer:
        """Store the result of a case that had a workflow of its own; one whose provider was away is left for later."""
        call = child.call
        async with store_attempt():
            stored = await self._reload(call)
        if is_over(stored, call):
            return self._ended(stored.status)
        result_type: type[Any] = RunResult if child.type == "GradingThread" else JudgeResult
        handle = activity.client().get_workflow_handle(child.workflow_id, run_id=child.run_id, result_type=result_type)
        try:
            returned = await handle.result()
        except WorkflowFailureError as error:
            result = build_result(stored.case, "error", output=stored.output, error=f"its workflow failed: {error.cause}")
        else:
            if not isinstance(returned, RunResult):
                result = result_of_judging(stored.case, await self._transformed(stored), returned)
            elif returned.reason in {"outage", "budget"}:
                async with store_attempt():
                    await self._store.count_failed(call.batch_id, CallCost(returned.usage, activity_call()))
                return contract.CaseAnswer(held=returned.error)
            else:
                result = result_of_thread(stored.case, returned)
        async with store_attempt():
            return await self.end_case(call, stored, result, CallCost(result.usage, activity_call()))

    @activity.defn(name="close_batch")
    async def close_batch(self, closing: contract.BatchClosing) -> contract.BatchSummary:
        """Store how the batch ended."""
        async with store_attempt():
            return await self._store.close(closing.batch_id, closing.why, stopped=closing.stopped)

    @asynccontextmanager
    async def _paying(self, call: contract.CaseCall) -> AsyncIterator[AttemptState]:
        """Do an attempt of a call that pays; it waits for the store, and what it has cost is counted if it is not made again."""
        # Every way out of an attempt has to count what it cost exactly once. An answer is counted by the write
        # that stores it. An error that is made again hands its cost to the next attempt, by heartbeat. An error
        # that is final is counted here, while heartbeats still say that the store is waited for; what the
        # failure itself says is not counted twice, as the workflow records that. A reply that was paid for and
        # that nobody needs any more is counted at the end.
        state, counted = None, False
        try:
            async with self._services.calls.attempt(call.attempts) as state:
                try:
                    await self._adopt(state)
                    yield state
                except ValueRefused:
                    raise
                except StoreUnavailable as error:
                    raise store_away(error) from None
                except ApplicationError as error:
                    if error.non_retryable:
                        await self._count_unwritten(call, state, state.wait_for, stopped=error.type in _UNSAID)
                        counted = True
                    raise
                finally:
                    if (kept := self._abandoned.unwritten()) is not None:
                        state.handed_over = _hand_over(kept)
        except ApplicationError as error:
            if error.non_retryable and state is not None and not counted:
                with suppress(StoreUnavailable):  # no heartbeats are sent any more; closing the batch counts the requests then
                    await self._count_unwritten(call, state, stopped=error.type in {CANCELLED, *_UNSAID})
            raise
        if self._abandoned.unwritten() is not None:  # nobody needed it any more
            with suppress(StoreUnavailable):
                await self._count_unwritten(call, state, stopped=True)

    # A store that was upgraded refuses an old worker for ever, and a worker may end while its store is away. The next attempt then runs
    # on another worker, which would pay again, so the last heartbeat carries the reply. An attempt may also have written it and been lost
    # right behind that. Only the store knows, and without the question a conversation would take the same reply twice.
    async def _adopt(self, state: AttemptState) -> None:
        """Take over the attempt before this one: what this worker knows of it, or the reply that another one has handed over."""
        await self._abandoned.adopt(state)
        if state.handed_over is None:
            return
        if await self._store.is_counted(activity_call()):
            self._abandoned.forget()
            state.handed_over = None
        elif self._abandoned.unwritten() is None:
            with suppress(ValidationError):  # of another version: the call is made again, and that reply is counted as lost
                self._abandoned.keep(state, _HANDED_OVER.validate_python(state.handed_over))
                activity.logger.info("this attempt writes a reply that another worker was paid for")

    async def _count_unwritten(
        self, call: contract.CaseCall, state: AttemptState, on_wait: WaitNote | None = None, *, stopped: bool = False
    ) -> None:
        """Count a call that is not made again and wrote nothing: all its cost where it was stopped, else what its failure does not say.

        Raises:
            StoreUnavailable: The store cannot be written, and nobody waits for it.
        """
        kept: UnwrittenReply | None = self._abandoned.unwritten()
        self._abandoned.forget()
        cost = CallCost(call.carried + state.spent, activity_call(), activity.info().attempt, state.spent.attempts)
        if kept is not None:  # an attempt that was given up may have written it down meanwhile
            cost = kept.cost
        await self._store.count_failed(call.batch_id, replace(cost, usage=cost.usage if stopped else Usage(), on_wait=on_wait))

    async def _known(self, call: contract.CaseCall, stored: StoredCase) -> contract.CaseAnswer | None:
        """Return the answer about a case that has ended, waits for others, or is only reported; None of any other."""
        if is_over(stored, call):
            return self._ended(stored.status)
        if not stored.case.runs:
            return await self.end_case(call, stored, result_of_answers(stored.case, None, []), CallCost())
        return await self._comparisons.known(call, stored)

    async def _limit(self, call: contract.CaseCall, lookup: CaseLookup, state: AttemptState) -> str | None:
        """Return which limit of its batch keeps a call from beginning, and count what it has cost before; None where it may begin."""
        if not lookup.pause_reason or self._abandoned.unwritten() is not None:
            return None
        if (call.carried + state.spent).attempts:
            await self._count_unwritten(call, state, state.wait_for, stopped=True)
        return lookup.pause_reason

    def _ended(self, status: str) -> contract.CaseAnswer:
        """Return that a case has ended, and how many slots there are now."""
        return contract.CaseAnswer.model_validate({"status": status, "slots": self._fleet.slots})

    async def _reload(self, call: contract.CaseCall) -> StoredCase:
        return await self._cases.reload(call.batch_id, call.position)

    async def _question(
        self, stored: StoredCase, found: CheckedOutput, call: contract.CaseCall, state: AttemptState
    ) -> case_questions.CaseQuestion:
        case, kept = stored.case, self._abandoned.unwritten()
        if case.judging is not None and isinstance(judge := case.judging.judge, SchemaJudge):
            model = judge.model_at(call.unit) or self._services.providers.default_grader()
            choice = kept.choice if kept else state.choose(model)
            return case_questions.RolloutQuestion(case, call.unit, model, choice, judge, case.judging.run, self._services.providers)
        group, sample = units_of(case)[call.unit]
        own = case.grader.model if case.grader else None
        judges = [judge if isinstance(judge, ModelSpec) else own or self._services.providers.default_grader() for judge in group.judges]
        asked = judges[sample]
        rivals = [other for other in judges if other != asked] if asked.fallback else []
        taken = {rival.id for rival in rivals}
        for other in await self._store.conversations(call.batch_id, call.position, call.attempt) if rivals else ():
            if other.fallback is not None and other.group == group.index and other.instead_of != asked.id:
                taken.add(other.fallback.id)
        choice = kept.choice if kept else state.choose(asked, taken)
        shown = found.shown.get(group.criteria[0].id, found.output)
        return case_questions.VoteQuestion(case, sample, asked, choice, group, records_of(case, shown), found.checks)

    async def _ask(
        self, call: contract.CaseCall, question: case_questions.CaseQuestion, lookup: CaseLookup, state: AttemptState
    ) -> CallCost | contract.CaseAnswer:
        """Add the answer of the cache or of a paid call to the conversation, and return its cost; else which limit holds the call."""
        conversation = lookup.conversation
        conversation.fallback, conversation.group = question.choice.fallback, question.group_index
        conversation.name_judge(question.judge.id)
        if lookup.verdict is not None and self._abandoned.unwritten() is None:
            question.reuse(lookup.verdict, conversation)
            conversation.cached, cost = True, self._cost_before(state)
            conversation.usage += cost.usage
        else:
            if (limit := await self._limit(call, lookup, state)) is not None:
                return contract.CaseAnswer(held=limit)
            request = await question.request(call, conversation)
            paid = await self._paid_call(call, lookup, request, state, question.choice)
            conversation.usage += paid.cost.usage
            await question.take(paid.reply, request, conversation)
            cost = paid.cost
        return cost

    @staticmethod
    def _cost_before(state: AttemptState) -> CallCost:
        """Return what was spent before an answer came from the cache: on asking servers what they are."""
        return CallCost(state.asked, activity_call(), activity.info().attempt, state.asked.attempts) if state.asked.attempts else CallCost()

    @asynccontextmanager
    async def _looked_up(
        self, call: contract.CaseCall, state: AttemptState, choice: ModelChoice, key: str | None = None
    ) -> AsyncIterator[CaseLookup]:
        """Yield what is known before a question is asked; where its call may be sent at once, it is reserved, and released if it is not."""
        cost = CallCost(call.carried, activity_call(), activity.info().attempt)
        # In the ordinary case one round trip looks up and reserves. From then on the block owes either a
        # request or the return of the reservation. A forgotten one would count as a lost request of unknown
        # cost. `released` is for work that goes on behind an attempt that the server has given up: it may not
        # send any more.
        ordinary = state.is_in_order and not state.lost and self._abandoned.unwritten() is None
        at_once = ordinary and self._services.calls.may_start(choice.model)
        lookup = await self._store.look_up(call.batch_id, case_questions.place_of(call), key, cost if at_once else None)
        try:
            yield lookup
        finally:
            if lookup.reserved:
                lookup.reserved, lookup.released = False, True
                with suppress(StoreUnavailable):
                    await self._store.release(cost)

    async def _count_lost(self, call: contract.CaseCall, state: AttemptState) -> None:
        """Have the store say how many workers were lost with the call, where an attempt before this one may have been."""
        if state.lost or not state.is_in_order:
            state.lost = await self._store.count_lost(activity_call(), state.closed)
            name = (await self._cases.load(call.batch_id, call.position, call.attempt)).case.id
            state.cure = f"run: gradeloop eval --attach {call.batch_id} --retry errors --case {shlex.quote(name)}"

    async def _paid_call(
        self, call: contract.CaseCall, lookup: CaseLookup, request: ModelRequest, state: AttemptState, choice: ModelChoice
    ) -> UnwrittenReply:
        """Reserve and make a model call for a case, or return the reply that an earlier attempt could not write down.

        Raises:
            ApplicationError: It failed; `InvalidRequest` where the batch has a budget in money and the model no price.
            StoreUnavailable: The store cannot be written, so that nothing was paid for.
        """
        kept: UnwrittenReply | None = self._abandoned.unwritten()
        if kept is not None:
            return replace(kept, cost=replace(kept.cost, on_wait=state.wait_for))
        cost = CallCost(call.carried, activity_call(), activity.info().attempt, on_wait=state.wait_for)
        request = replace(request, thread=f"{call.batch_id}/{call.position}")

        await self._count_lost(call, state)

        # Reserved, then sent: between the two nothing may fail, or the reservation would count as a request of
        # unknown cost. `counted` says that an earlier attempt of this call has counted its usage and then lost
        # its worker; what that attempt had spent must not be added again.
        async def reserve() -> None:
            nonlocal cost
            state.reserved = cost.attempt
            if lookup.released:  # by an attempt that the server gave up, which has left this work behind
                raise given_up()
            counted = lookup.counted if lookup.reserved else await self._store.reserve(call.batch_id, replace(cost, lost=state.lost))
            lookup.reserved = False  # from now on it is paid for
            if counted:  # an attempt whose worker was lost right after it had counted all this
                state.spent, cost = Usage(), replace(cost, usage=Usage())

        async def pay() -> UnwrittenReply:
            await asyncio.sleep(lookup.request.delay / 1000)
            state.at_once = None if lookup.request.at_once == contract.CONCURRENCY else lookup.request.at_once
            for model in choice.chain if _limits_cost(lookup.request) else ():
                self._services.refuse_without_price(model)
            reply = await self._services.calls.send(request, state, choice, reserve)
            return UnwrittenReply(reply, replace(cost, usage=cost.usage + reply.usage, requests=reply.usage.attempts), choice)

        try:
            return await self._abandoned.pay(state, pay)
        except InvalidRequest as error:
            raise invalid(str(error)) from None
        except ApplicationError as error:
            if error.type == "rate_limited":
                with suppress(StoreUnavailable):  # the call is what is waited for
                    await self._store.count_throttling(call.batch_id, request.spec.id)
            raise

    async def _keep(
        self, call: contract.CaseCall, stored: StoredCase, conversation: CaseConversation, cost: CallCost, key: str | None = None
    ) -> contract.CaseAnswer:
        """Store a conversation; where it is the last of the case's to end, the case ends."""
        count = count_units(stored.case)
        if count == 1 and conversation.ended and not stored.case.compared_with and not stored.case.after_each:  # a hook may take long
            result = await self._result(stored, [conversation])
            return await self.end_case(call, stored, result, cost, key=key, conversation=conversation)
        conversations = await self._store.keep_conversation(call.batch_id, case_questions.place_of(call), conversation, cost, key)
        self._abandoned.forget()
        if not conversation.ended:
            return contract.CaseAnswer(again=True)
        if due := units_due(stored.case, conversations, early=call.decides):
            return contract.CaseAnswer(due=due if call.decides else ())
        if await self._escalations.is_due(stored, conversations):
            return contract.CaseAnswer(again=True)
        result = await self._result(stored, conversations)
        return await self.end_case(call, stored, result, CallCost(on_wait=cost.on_wait))

    async def _result(self, stored: StoredCase, conversations: Sequence[CaseConversation]) -> contract.CaseResult:
        """Return the result of a case with what its questions cost; what cannot be decided is an error that was paid for all the same."""
        if stored.case.judging is not None:
            return result_of_judged(stored.case, conversations)
        if stored.case.compared_with:  # decided with the others
            return build_result(stored.case, "queued", output=stored.output)
        output, usage = stored.output or "", sum((conversation.usage for conversation in conversations), Usage())
        try:
            result = result_of_answers(stored.case, await self._found(stored, output), conversations)
        except ValueError as error:
            result = build_result(stored.case, "error", output=output, error=str(error))
        return result.model_copy(update={"usage": usage})

    async def _transformed(self, stored: StoredCase) -> str:
        """Return what is judged of a case; raise ValueError where a transform or a check cannot decide."""
        output = stored.output or ""
        return (await self._found(stored, output)).output if stored.case.transforms else output

    async def _found(self, stored: StoredCase, output: str) -> CheckedOutput:
        """Return what is found of a case without a model, once for several questions; raise ValueError where a check cannot decide."""
        if not has_checks(stored.case):
            return CheckedOutput(output)
        drafted = CheckedDraft(output, stored.spent if stored.case.output is None else None, logprobs=stored.logprobs)
        whole = f"{stored.case.model_dump_json()}/{drafted}"  # the same case of an earlier batch had another call
        key = hashlib.sha256(whole.encode(errors="replace")).hexdigest()
        if key not in self._findings:
            while len(self._findings) >= KEPT_FINDINGS:
                self._findings.pop(next(iter(self._findings)))
            self._findings[key] = await find(stored.case, drafted, self._services.tools.code)
        return self._findings[key]

    async def end_case(
        self,
        call: contract.CaseCall,
        stored: StoredCase,
        result: contract.CaseResult,
        cost: CallCost,
        *,
        key: str | None = None,
        conversation: CaseConversation | None = None,
    ) -> contract.CaseAnswer:
        """Store the result of a case.

        `result`: what it came to, with the usage of what came after its draft.
        `cost`: what of it is not counted in the batch yet.
        """
        if stored.case.compared_with:
            return await self._park(call, stored, result, cost)
        whole = await call_after_each(stored.case, stored.result_of_attempt(result), self._services.tools.code, time.monotonic())
        status = await self._store.end_case(call.batch_id, call.position, whole, cost, key=key, conversation=conversation)
        self._abandoned.forget()
        self._cases.drop(call.batch_id, call.position)
        why = await self._gates.decide(call.batch_id, activity.info().workflow_run_id or "") if call.decides else None
        return self._ended(status).model_copy(update={"held": why})

    async def _park(self, call: contract.CaseCall, stored: StoredCase, result: contract.CaseResult, cost: CallCost) -> contract.CaseAnswer:
        """Store what is known of a case until it is compared with others."""
        parked = ParkedCase(output=result.output or "", error=result if result.status == "error" else None)
        if result.status != "error":
            try:
                found = await self._found(stored, stored.output or "")
                parked = ParkedCase(output=found.output, checks=found.checks)
            except ValueError as error:
                failed = build_result(stored.case, "error", output=stored.output, error=str(error), usage=result.usage)
                parked = ParkedCase(output=stored.output or "", error=failed)
        kept = await self._store.park(call.batch_id, (call.position, call.attempt), stored.case.compared_with, parked, cost)
        self._abandoned.forget()
        return case_questions.waiting(kept)

    async def _end_together(
        self, call: contract.CaseCall, results: Mapping[int, contract.CaseResult], cost: CallCost
    ) -> contract.CaseAnswer:
        """Store the results of cases that were compared."""
        began, hooked = time.monotonic(), dict[int, contract.CaseResult]()
        for position, result in results.items():
            case = (await self._cases.load(call.batch_id, position, call.attempt)).case
            hooked[position] = await call_after_each(case, result, self._services.tools.code, began)
        await self._store.end_together(call.batch_id, hooked, cost)
        for position in results:
            self._cases.drop(call.batch_id, position)
        return self._ended(results[call.position].status)

    async def _ask_more(
        self, call: contract.CaseCall, question: case_questions.CaseQuestion, key: str, lookup: CaseLookup, state: AttemptState
    ) -> contract.CaseAnswer:
        """Answer a further question about a case from the cache or by a paid call, and store the conversation."""
        cost = await self._ask(call, question, lookup, state)
        if isinstance(cost, contract.CaseAnswer):
            return cost
        await self._store.keep_conversation(call.batch_id, case_questions.place_of(call), lookup.conversation, cost, key)
        self._abandoned.forget()
        return contract.CaseAnswer(again=True)


_UNSAID = frozenset({OUTAGE, TENANT_BUDGET, InvalidRequest.__name__})
"""Types of errors behind which no error is stored of the case, so that nothing else says what its call cost."""


_HANDED_OVER = TypeAdapter(UnwrittenReply)


def _hand_over(kept: UnwrittenReply) -> object:
    """Return a reply as a heartbeat carries it to the next attempt; None where it is too large for that."""
    text = _HANDED_OVER.dump_json(replace(kept, cost=replace(kept.cost, on_wait=None)))
    return json.loads(text) if len(text) <= MESSAGE_BYTES else None


def is_over(stored: StoredCase, call: contract.CaseCall) -> bool:
    """Return whether a case has ended, or another attempt is under way."""
    return stored.status != "queued" or stored.attempt != call.attempt


def _limits_cost(request: contract.BatchRequest) -> bool:
    return request.budget is not None and request.budget.max_cost_usd is not None
