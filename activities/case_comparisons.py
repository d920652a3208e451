"""The outputs of cases compared with one another: each waits for the others, and the last to come has them all decided."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from activities.capabilities import WorkerServices
from activities.case_questions import CaseQuestion, RolloutQuestion, apart
from activities.model_call import Heartbeat
from gradeloop.batches.cases import CaseConversation, ParkedCase
from gradeloop.batches.comparing import Choice, Contender, choices_of, compare
from gradeloop.batches.contract import CaseAnswer, CaseCall, CaseResult
from gradeloop.batches.store import COMPARISON_UNIT, BatchStore, CaseLookup, StoredCase
from gradeloop.contract.messages import Usage

NOTHING_TO_COMPARE = "there is nothing to compare it with: the other outputs are errors"
"""The error of the only output that is none."""


@dataclass(frozen=True)
class Asked:
    """A question beyond those about a case alone, and how its call ended."""

    conversation: CaseConversation
    limit: str | None = None
    """The limit for which no model was asked."""
    new: bool = False
    """Whether a model, or the cache, has just answered."""


Ask = Callable[[CaseCall, CaseQuestion, str, CaseLookup, Heartbeat], Awaitable[Asked]]
"""Answers a question by the cache or a paid call, and stores the conversation."""


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

    async def answer(
        self, call: CaseCall, stored: StoredCase, heartbeat: Heartbeat, own_key: Sequence[str]
    ) -> CaseAnswer | list[Contender]:
        """Answer the next question that compares a case with others; return the cases where none is left.

        Raises:
            ApplicationError: The call failed.
        """
        contenders = await self.contenders(call, stored)
        able = [contender for contender in contenders if not contender.is_error]
        outputs = [contender.parked.output for contender in able]
        for choice in choices_of(stored.case) if len(able) > 1 else ():
            asked = await self._asked(call, stored, choice, outputs, heartbeat, own_key)
            if asked.limit is not None:
                return CaseAnswer(held=asked.limit)
            if asked.new or not asked.conversation.ended:
                return CaseAnswer(again=True)
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
        """Return what all cases come to, by their positions; what the questions cost is that of the one that compares.

        Args:
            call: The call that compares.
            contenders: The cases.
            failed: Why they could not be compared.
            lost: What the call cost that failed.
        """
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
            whole = {"attempt": one.stored.attempt, "usage": one.stored.spent + result.usage}
            results[one.position] = result.model_copy(update=whole)
        return results

    async def _asked(
        self, call: CaseCall, stored: StoredCase, choice: Choice, outputs: Sequence[str], heartbeat: Heartbeat, own_key: Sequence[str]
    ) -> Asked:
        first = await self._look_up(call, choice)
        if first.conversation.ended:
            return Asked(first.conversation)
        case = stored.case
        model = choice.model() or (case.grader.model if case.grader else None) or self._services.providers.default_grader()
        sample = int(choice.reverse)
        question = RolloutQuestion(case, choice.judge(len(outputs)), choice.run(outputs), sample, model, heartbeat.choose(model))
        anew = [f"attempt {call.attempt}"] if call.attempt else []  # what could not be told is asked again, and not looked up
        key = apart(question.key(""), [*own_key, *anew])
        lookup = await self._store.look_up(call.batch_id, _place(call, choice), key)
        at_unit = call.model_copy(update={"unit": COMPARISON_UNIT + choice.unit})
        return await self._ask(at_unit, question, key, lookup, heartbeat)

    async def _look_up(self, call: CaseCall, choice: Choice) -> CaseLookup:
        return await self._store.look_up(call.batch_id, _place(call, choice))


def waiting(parked: ParkedCase) -> CaseAnswer:
    """Return that a case waits for those that it is compared with, or has them compared."""
    return CaseAnswer(compares=True) if parked.compares else CaseAnswer(parked=True)


def _place(call: CaseCall, choice: Choice) -> tuple[int, int, int]:
    return (call.position, call.attempt, COMPARISON_UNIT + choice.unit)
