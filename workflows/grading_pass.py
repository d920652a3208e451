"""The grader's part of an iteration: checks first, then one conversation until there is a verdict."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows.calls import Calls, told
from workflows.options import REPAIRS, TOOL_CALL, TOOL_CALLS, TURNS
from workflows.paid_calls import PaidCalls
from workflows.thread_state import GradingPass, GradingRun, Thread
from workflows.tool_round import ToolRound

with workflow.unsafe.imports_passed_through():
    from activities.evidence import ToolRequest, tool_name
    from activities.grade import GradeCall, GraderTurn
    from activities.providers.model import Step
    from gradeloop.evaluation import Judgement, confirmed_failure, rows_of
    from gradeloop.evidence import Evidence
    from gradeloop.prompts import missing, repair
    from gradeloop.rubric import Criterion, Rubric
    from gradeloop.transcript import code_of, unanswered
    from gradeloop.usage import Usage
    from gradeloop.verdict import Malformed, Verdict, VerdictRow


class GraderFailed(Exception):
    """The pass has no verdict: the grader's failure, never a grade."""


class Grading:
    """Judges the draft of the pass in flight."""

    def __init__(self, thread: Thread, run: GradingRun, held: GradingPass, rubric: Rubric, calls: Calls) -> None:
        self._thread = thread
        self._run = run
        self._pass = held
        self._rubric = rubric
        self._calls = calls
        self._asked = tuple(criterion.id for criterion in rubric.judged)
        self._draft = thread.log[held.draft].content
        self._tools = ToolRound(thread, calls, "grader", draft=self._draft)

    async def judge(self) -> Judgement:
        """Return the pass's judgement, an error of the machinery included.

        Raises:
            Interrupted: The thread is stopping; checks and turns that came are kept in the pass.
        """
        try:
            await self._check_all()
            if not self._asked:
                passed = sum(outcome.passed for outcome in self._pass.checks.values())
                return self._judgement((), f"{passed} of {len(self._pass.checks)} checks pass.")
            return await self._converse()
        except GraderFailed as error:
            return Judgement(explanation=str(error), error=str(error))

    async def _check_all(self) -> None:
        due = [criterion for criterion in self._rubric.checked if criterion.id not in self._pass.checks]
        for ended in await asyncio.gather(*(self._check(criterion) for criterion in due), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def _check(self, criterion: Criterion) -> None:
        if criterion.check is None:
            return
        tool = criterion.check.tool
        draft = code_of(self._draft) if criterion.check.extract == "code" else self._draft
        request = ToolRequest(call=criterion.id, draft=draft, check=True)
        self._thread.tell("tool_called", tool=tool, role="check")
        try:
            found = await self._calls.make(tool_name(tool), request, TOOL_CALL, summary=f"evidence {tool}", result=Evidence)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise GraderFailed(f"the check {tool} of {criterion.id} could not decide: {told(error)}") from None
        if found.outcome is not None:
            self._pass.checks[criterion.id] = found.outcome

    async def _converse(self) -> Judgement:
        conversation = self._pass.conversation
        while True:
            if wanted := unanswered(conversation.log.slice(max(len(conversation.log) - 1, 0))):
                for message in await self._tools.answer(conversation, wanted, conversation.offered):
                    conversation.log.append(message)
            turn = await self._turn()
            conversation.steps += 1
            conversation.offered = turn.tools
            conversation.log.append(turn.message)
            self._calls.learn(turn.offer)
            self._calls.returned(self._key, conversation.log)
            self._spend(turn.usage)
            if turn.verdict is not None:
                return self._settled(turn.verdict)
            if turn.malformed is None:
                continue
            if turn.loose and not conversation.forced:
                conversation.forced = True
                conversation.log.append(repair(turn.malformed.problems, self._asked))
            elif judgement := self._mend(turn.malformed):
                return judgement

    def _spend(self, usage: Usage) -> None:
        self._pass.usage += usage
        self._thread.usage += usage

    @property
    def _key(self) -> str:
        return f"scratch/{self._run.grading_run_id}/{self._run.iteration}/0/0"

    async def _turn(self) -> GraderTurn:
        conversation = self._pass.conversation
        conversation.exhausted = conversation.exhausted or conversation.steps >= TURNS
        step = Step(role="grader", run=self._run.ordinal, iteration=self._run.iteration, step=conversation.steps)
        paid = PaidCalls(self._thread, self._calls, conversation, self._spend)
        number = f"{step.iteration + 1}.{step.step + 1}" if step.step else f"{step.iteration + 1}"
        try:
            return await paid.make("grade", lambda: self._call(step), summary=f"grade #{number}", result=GraderTurn)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise GraderFailed(told(error)) from None

    def _call(self, step: Step) -> GradeCall:
        conversation = self._pass.conversation
        return GradeCall(
            thread=self._calls.thread(),
            scratch=self._calls.log(self._key, conversation.log),
            step=step,
            admit=self._calls.unknown_judge,
            nonce=self._run.nonce,
            request=self._thread.request,
            draft=self._pass.draft,
            asked=self._asked,
            pending=conversation.pending,
            checks=self._pass.checks,
            last=conversation.exhausted,
            forced=conversation.forced,
            raised=conversation.raised,
        )

    def _settled(self, verdict: Verdict) -> Judgement:
        explanation = self._pass.conversation.explanation or verdict.explanation
        judgement = self._judgement(verdict.criteria, verdict.explanation if verdict.result == "failed" else explanation)
        return judgement.model_copy(update={"impossible": verdict.result == "failed"})

    def _mend(self, malformed: Malformed) -> Judgement | None:
        """Ask again, or give up; two repairs, then the missing rows alone, then what is left stays unverified."""
        conversation, problems = self._pass.conversation, "; ".join(malformed.problems)
        if conversation.exhausted:
            spent = f"{TOOL_CALLS} tool calls" if conversation.tool_calls >= TOOL_CALLS else f"{TURNS} turns"
            raise GraderFailed(f"malformed_verdict: no verdict after {spent} and one last turn: {problems}")
        if conversation.pending:
            return self._unverified(malformed)
        if conversation.repairs < REPAIRS:
            conversation.repairs += 1
            conversation.log.append(repair(malformed.problems, self._asked))
        elif malformed.missing:
            conversation.pending, conversation.rows = malformed.missing, malformed.rows
            conversation.explanation = malformed.explanation
            conversation.log.append(missing(malformed.missing))
        else:
            raise GraderFailed(f"malformed_verdict: after {REPAIRS} repairs: {problems}")
        return None

    def _unverified(self, malformed: Malformed) -> Judgement:
        judgement = self._judgement(malformed.rows, self._pass.conversation.explanation, unverified=malformed.missing)
        if not malformed.missing or not confirmed_failure(self._rubric, judgement.rows):
            raise GraderFailed(f"malformed_verdict: asked for the missing criteria alone: {'; '.join(malformed.problems)}")
        return judgement

    def _judgement(self, rows: tuple[VerdictRow, ...], explanation: str, *, unverified: tuple[str, ...] = ()) -> Judgement:
        verdicts = (*self._pass.conversation.rows, *rows)
        told_rows = rows_of(self._rubric, verdicts, self._pass.checks, unverified=unverified)
        return Judgement(rows=told_rows, explanation=explanation)
