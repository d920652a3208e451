"""One conversation with one grader about one call group, until there is a verdict."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows.calls import Calls, told
from workflows.options import TOOL_CALLS, TURNS
from workflows.paid_calls import PaidCalls
from workflows.run_state import Conversation, GradingPass, GradingRun
from workflows.thread_state import Thread
from workflows.tool_round import ToolRound

with workflow.unsafe.imports_passed_through():
    from activities.grade import GradeCall, GraderTurn
    from activities.providers.model import Step
    from gradeloop.call_groups import CallGroup
    from gradeloop.mending import NoVerdict, mend, whole
    from gradeloop.prompts import repair
    from gradeloop.transcript import Log, unanswered
    from gradeloop.usage import Usage
    from gradeloop.verdict import Malformed, Verdict


class GraderFailed(Exception):
    """There is no verdict: the grader's failure, never a grade."""


class Interview:
    """Asks a model about a call group."""

    def __init__(self, thread: Thread, run: GradingRun, held: GradingPass, group: CallGroup, sample: int, calls: Calls) -> None:
        self._thread = thread
        self._run = run
        self._pass = held
        self._group = group
        self._sample = sample
        self._calls = calls
        self._tools = ToolRound(thread, calls, "grader", draft=thread.log[held.draft].content)
        self._conversation = held.conversations.setdefault(f"{group.index}/{sample}", Conversation(log=Log()))

    async def hold(self) -> None:
        """Ask until there is a verdict or there will be none; the conversation says which.

        Raises:
            Interrupted: The thread is stopping; turns that came are kept.
            Waiting: A person has to approve a tool call.
        """
        conversation = self._conversation
        try:
            conversation.verdict = await self._converse()
        except GraderFailed as error:
            conversation.error = str(error)
        conversation.log = Log()

    async def _converse(self) -> Verdict:
        conversation = self._conversation
        while True:
            if wanted := unanswered(conversation.log.slice(max(len(conversation.log) - 1, 0))):
                step = f"grader.{self._pass.draft}.{self._group.index}.{self._sample}.{len(conversation.log) - 1}"
                for message in await self._tools.answer(conversation, wanted, conversation.offered, step):
                    conversation.log.append(message)
            turn = await self._turn()
            conversation.steps += 1
            conversation.offered = turn.tools
            conversation.prompt_sha256 = conversation.prompt_sha256 or turn.prompt_sha256
            conversation.log.append(turn.message)
            self._calls.learn(turn.offer)
            self._calls.returned(self._key, conversation.log)
            self._spend(turn.usage)
            if turn.verdict is not None:
                return whole(conversation, turn.verdict)
            if turn.malformed is None:
                continue
            if turn.loose and not conversation.forced:
                conversation.forced = True
                conversation.log.append(repair(turn.malformed.problems, self._group.ids))
            elif verdict := self._mend(turn.malformed):
                return verdict

    def _spend(self, usage: Usage) -> None:
        self._pass.usage += usage
        self._thread.usage += usage

    @property
    def _key(self) -> str:
        return f"scratch/{self._run.grading_run_id}/{self._run.iteration}/{self._group.index}/{self._sample}"

    async def _turn(self) -> GraderTurn:
        conversation = self._conversation
        conversation.exhausted = conversation.exhausted or conversation.steps >= TURNS
        place = {"run": self._run.ordinal, "iteration": self._run.iteration, "group": self._group.index, "sample": self._sample}
        step = Step.model_validate({"role": "grader", "step": conversation.steps} | place)
        paid = PaidCalls(self._thread, self._calls, conversation, self._spend)
        try:
            return await paid.make("grade", lambda: self._call(step), summary=self._summary(step), result=GraderTurn)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise GraderFailed(told(error)) from None

    def _summary(self, step: Step) -> str:
        number = f"{step.iteration + 1}.{step.step + 1}" if step.step else f"{step.iteration + 1}"
        about = "" if self._group.alone else f" {self._group.ids[0]}{' …' if len(self._group.ids) > 1 else ''}"
        return f"grade #{number}{about}{f', vote {self._sample + 1}' if len(self._group.judges) > 1 else ''}"

    def _call(self, step: Step) -> GradeCall:
        conversation = self._conversation
        return GradeCall(
            thread=self._calls.thread(),
            scratch=self._calls.log(self._key, conversation.log),
            step=step,
            admit=self._calls.unknown_judge,
            nonce=self._run.nonce,
            request=self._thread.request,
            draft=self._pass.draft,
            asked=self._group.ids,
            pending=conversation.pending,
            checks=self._pass.checks,
            last=conversation.exhausted,
            forced=conversation.forced,
            raised=conversation.raised,
            whole=self._run.finished,
        )

    def _mend(self, malformed: Malformed) -> Verdict | None:
        """Ask again, or give up."""
        conversation = self._conversation
        if conversation.exhausted:
            spent = f"{TOOL_CALLS} tool calls" if conversation.tool_calls >= TOOL_CALLS else f"{TURNS} turns"
            problems = "; ".join(malformed.problems)
            raise GraderFailed(f"malformed_verdict: no verdict after {spent} and one last turn: {problems}")
        try:
            following = mend(conversation, malformed, self._group.ids)
        except NoVerdict as error:
            raise GraderFailed(str(error)) from None
        if isinstance(following, Verdict):
            return following
        conversation.log.append(following)
        return None
