"""A question to a grader about a case: answered from the cache or by one model call, and kept before it is told."""

import hashlib
from dataclasses import dataclass

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.case_desk import CaseDesk, is_over, told
from activities.generate import sized
from activities.grader_request import Asking, answer_form, answer_tag, grader_request, seeded
from activities.heartbeat import Pulse, heartbeats
from activities.providers.model import Step
from gradeloop.answer import read
from gradeloop.batches.case_call import NO_OUTPUT, CaseCall, CaseTold, Failed
from gradeloop.batches.case_plan import checks_of, log_of, units_of
from gradeloop.batches.case_result import ended
from gradeloop.batches.ledger import HeldCase
from gradeloop.batches.ledger_work import Standing
from gradeloop.batches.outcome import judged
from gradeloop.batches.unit import Unit
from gradeloop.call_groups import CallGroup
from gradeloop.evaluation import CheckOutcome
from gradeloop.grader_prompt import Judged
from gradeloop.judges.agent_run import request_of
from gradeloop.modelspec import ModelSpec
from gradeloop.quotes import verified
from gradeloop.request import Grader
from gradeloop.reuse import reuse_key
from gradeloop.transcript import Log, Message
from gradeloop.usage import Usage
from gradeloop.verdict import Verdict


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

    def __init__(self, desk: CaseDesk) -> None:
        self._desk = desk

    @activity.defn(name="grade_case")
    async def grade_case(self, call: CaseCall) -> CaseTold:
        """Answer one question; the last of a case's ends the case.

        Raises:
            ApplicationError: Its type is the kind of failure.
        """
        async with heartbeats() as pulse:
            held = await self._desk.views.case(call.batch_id, call.position, call.attempt)
            if is_over(held, call):
                return told(held.status)
            if held.output is None:  # drafted since it was read
                held = await self._desk.views.again(call.batch_id, call.position)
            if held.output is None:
                raise ApplicationError("the case has no draft", type=NO_OUTPUT, non_retryable=True)
            try:
                checks = checks_of(held.case, held.output)
            except ValueError as error:
                return await self._desk.settle(call, held, ended(held.case, "error", output=held.output, error=str(error)), Usage())
            if not units_of(held.case):
                return await self._desk.settle(call, held, judged(held.case, held.output or "", []), Usage())
            return await self._answered(call, held, self._question(held, checks, call), pulse)

    async def _answered(self, call: CaseCall, held: HeldCase, question: Question, pulse: Pulse) -> CaseTold:
        place = (call.position, call.attempt, call.unit)
        standing = await self._desk.ledger.standing(call.batch_id, place, question.key)
        unit, spent = standing.unit, Usage()
        if not unit.ended and standing.verdict is not None:
            unit.verdict, unit.cached, unit.judge = Verdict.model_validate_json(standing.verdict), True, question.model.id
        elif not unit.ended:
            if standing.held:
                return CaseTold(held=standing.held)
            spent = await self._ask(call, held, question, standing, pulse)
        return await self._take(call, held, unit, spent, question.key)

    @activity.defn(name="fail_case")
    async def fail_case(self, failed: Failed) -> CaseTold:
        """Keep what failed for good: neither a pass nor a fail."""
        call = failed.call
        held = await self._desk.views.again(call.batch_id, call.position)
        if is_over(held, call):
            return told(held.status)
        if failed.what != "unit":
            result = ended(held.case, "error", output=held.output, error=failed.error, usage=failed.usage)
            return await self._desk.settle(call, held, result, failed.usage)
        unit = (await self._desk.ledger.standing(call.batch_id, (call.position, call.attempt, call.unit), None)).unit
        unit.error, unit.scratch, unit.usage = failed.error, [], unit.usage + failed.usage
        return await self._take(call, held, unit, failed.usage)

    def _question(self, held: HeldCase, checks: dict[str, CheckOutcome], call: CaseCall) -> Question:
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
            request=request_of(log, len(log) - 1),
            checks=checks,
        )
        key = hashlib.sha256("/".join([*_own(call, held), asked]).encode()).hexdigest() if _own(call, held) else asked
        return Question(group, sample, seeded(judge, sample + case.repeat), log, checks, key)

    async def _ask(self, call: CaseCall, held: HeldCase, question: Question, standing: Standing, pulse: Pulse) -> Usage:
        """Make the call, and have the conversation take its answer; return what it cost."""
        unit, log, group = standing.unit, question.messages, question.group
        tagged = answer_form(question.model) == "tagged"
        asking = Asking(
            rubric=held.case.rubric,
            group=group,
            grader=held.case.grader or Grader(),
            model=question.model,
            judged=Judged(log, request_of(log, len(log) - 1), len(log) - 1, question.checks, call.nonce),
            scratch=unit.scratch,
            step=Step(role="grader", group=group.index, sample=question.sample, step=unit.steps),
            tag=answer_tag(call.nonce, str(call.unit)) if tagged else None,
            raised=call.raised,
        )
        request = grader_request(asking)
        reply = await self._desk.paid(call, standing, request, pulse)
        message = sized(reply.message, request.spec.id)
        reading = read(message.content, group, unit.pending or None, tag=request.tag)
        reading = verified(reading, log) if group.quoted and isinstance(reading, Verdict) else reading
        spent = call.carried + reply.usage
        unit.judge, unit.usage = question.model.id, unit.usage + spent
        unit.note(message, reading, group, sum(len(each.ids) for each, _ in units_of(held.case)))
        return spent

    async def _take(self, call: CaseCall, held: HeldCase, unit: Unit, spent: Usage, key: str | None = None) -> CaseTold:
        """Keep a conversation; with the last of a case's the case ends."""
        asked, output, only = len(units_of(held.case)), held.output or "", unit
        if asked == 1 and unit.ended:
            result = judged(held.case, output, [unit]).model_copy(update={"usage": unit.usage})
            return await self._desk.settle(call, held, result, spent, key=key, unit=only)
        units = await self._desk.ledger.keep(call.batch_id, (call.position, call.attempt, call.unit), unit, spent, key)
        if not unit.ended:
            return CaseTold(again=True)
        if len(units) < asked or not all(each.ended for each in units):
            return CaseTold()
        result = judged(held.case, output, units).model_copy(update={"usage": sum((each.usage for each in units), Usage())})
        return await self._desk.settle(call, held, result, Usage())


def _own(call: CaseCall, held: HeldCase) -> list[str]:
    """Return what a question is told apart by from the same one elsewhere: past the cache, or in another repetition."""
    past = [call.batch_id, held.case.id, str(held.fresh)] if held.fresh or not call.cache else []
    return [*past, *([f"repeat {held.case.repeat}"] if held.case.repeat else [])]
