"""The one model call that drafts a case."""

from temporalio import activity

from activities.case_desk import CaseDesk, is_over, told
from activities.generate import sized
from activities.heartbeat import heartbeats
from activities.providers.model import ModelRequest, Step
from gradeloop.batches.case import Case
from gradeloop.batches.case_call import CaseCall, CaseTold
from gradeloop.prompts import generator_system


class DraftCase:
    """The activity `draft_case`."""

    def __init__(self, desk: CaseDesk) -> None:
        self._desk = desk

    @activity.defn(name="draft_case")
    async def draft_case(self, call: CaseCall) -> CaseTold:
        """Draft a case, and keep the draft before it is told.

        Raises:
            ApplicationError: Its type is the kind of failure.
        """
        async with heartbeats() as pulse:
            held = await self._desk.views.again(call.batch_id, call.position)
            if is_over(held, call):
                return told(held.status)
            if held.output is not None:
                return CaseTold()
            standing = await self._desk.ledger.standing(call.batch_id, (call.position, call.attempt, 0), None)
            if standing.held:
                return CaseTold(held=standing.held)
            request = _request(held.case, call)
            reply = await self._desk.paid(call, standing, request, pulse)
            draft = sized(reply.message, request.spec.id).content
            await self._desk.ledger.drafted(call.batch_id, call.position, call.attempt, draft, call.carried + reply.usage)
            self._desk.views.drop(call.batch_id, call.position)
            return CaseTold()


def _request(case: Case, call: CaseCall) -> ModelRequest:
    generator = case.generator
    if generator is None or generator.model is None:
        raise LookupError(f"the case {case.id!r} has no model that drafts it")
    shown = case.rubric if generator.show_rubric else None
    system = generator_system(generator.system_prompt, shown)
    return ModelRequest(spec=generator.model, step=Step(role="generator"), messages=case.messages, system=system, raised=call.raised)
