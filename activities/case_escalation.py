"""Cases whose graders are unsure, and the dearer model that is asked anew: one question at a time, after all others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from activities.capabilities import WorkerServices
from activities.case_comparisons import Ask
from activities.case_questions import VoteQuestion, apart
from activities.model_call import Heartbeat
from gradeloop.batches.case_checks import CheckedOutput
from gradeloop.batches.cases import CaseConversation, groups_to_ask_anew
from gradeloop.batches.contract import CaseAnswer, CaseCall
from gradeloop.batches.judged import records_of
from gradeloop.batches.store import ESCALATION_UNIT, BatchStore, StoredCase
from gradeloop.grading.scoring import CallGroup

Find = Callable[[StoredCase, str], Awaitable[CheckedOutput]]
"""Returns what is found of a case without a model."""


class CaseEscalations:
    """Questions to the models of `escalate`, on one store."""

    def __init__(self, services: WorkerServices, store: BatchStore, find: Find, ask: Ask) -> None:
        self._services = services
        self._store = store
        self._find = find
        self._ask = ask
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        """Cases that are escalated: of several calls about one, as after an outage, the first asks."""

    async def answer(self, call: CaseCall, stored: StoredCase, heartbeat: Heartbeat, own_key: Sequence[str]) -> CaseAnswer | None:
        """Ask the dearer model the next question about a case; None where there is none.

        Raises:
            ApplicationError: The call failed.
        """
        if stored.case.escalate is None:
            return None
        async with self._alone(call):
            group = await self._next(call, stored)
            if group is None:
                return None
            found = await self._find(stored, stored.output or "")
            shown = found.shown.get(group.criteria[0].id, found.output)
            model = stored.case.escalate
            records = records_of(stored.case, shown)
            question = VoteQuestion(stored.case, group, 0, model, heartbeat.choose(model), records, found.checks)
            key = apart(question.key(self._services.tools.sha256(())), own_key)
            lookup = await self._store.look_up(call.batch_id, _place(call, group), key)
            at_unit = call.model_copy(update={"unit": ESCALATION_UNIT + group.index})
            asked = await self._ask(at_unit, question, key, lookup, heartbeat)
            return CaseAnswer(held=asked.limit) if asked.limit is not None else CaseAnswer(again=True)

    async def is_due(self, stored: StoredCase, conversations: Sequence[CaseConversation]) -> bool:
        """Return whether a dearer model is to be asked about a case with these conversations."""
        if stored.case.escalate is None:
            return False
        return bool(groups_to_ask_anew(stored.case, await self._find(stored, stored.output or ""), conversations))

    async def failing(self, call: CaseCall, stored: StoredCase) -> int | None:
        """Return the number of the question whose call to the dearer model has failed for good; None where it was another's."""
        group = await self._next(call, stored) if stored.case.escalate is not None else None
        return None if group is None else ESCALATION_UNIT + group.index

    @staticmethod
    def failed(stored: StoredCase, unit: int) -> CaseConversation:
        """Return the conversation of a question that the dearer model does not answer; its error is the caller's."""
        return CaseConversation(group=unit - ESCALATION_UNIT, judge=stored.case.escalate.id if stored.case.escalate else None)

    async def _next(self, call: CaseCall, stored: StoredCase) -> CallGroup | None:
        conversations = await self._store.conversations(call.batch_id, call.position, call.attempt)
        found = await self._find(stored, stored.output or "")
        return next(iter(groups_to_ask_anew(stored.case, found, conversations)), None)

    @asynccontextmanager
    async def _alone(self, call: CaseCall) -> AsyncIterator[None]:
        place = (call.batch_id, call.position)
        lock = self._locks.setdefault(place, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(place, None)


def _place(call: CaseCall, group: CallGroup) -> tuple[int, int, int]:
    return (call.position, call.attempt, ESCALATION_UNIT + group.index)
