"""The grader's part of an iteration: checks first, then every call group by its graders, people last."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from temporalio.exceptions import ActivityError, is_cancelled_exception

from activities.grade import GradeCall, GraderTurn
from activities.providers.base import Step
from activities.tool_call import ToolRequest
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import Judgement
from gradeloop.contract.messages import Log, Message, Usage, code_of, unanswered
from gradeloop.contract.model_spec import GraderSpec, ModelSpec, RemoteGrader
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.cache_key import KEPT, reuse_key
from gradeloop.grading.scoring import (
    CallGroup,
    PassFindings,
    aggregate,
    call_groups,
    could_be_satisfied,
    row_characters,
    scores_of,
    shorten_verdict,
)
from workflows.activity_calls import (
    TOOL_CALLS,
    TURNS,
    WARMED_CHARACTERS,
    ActivityCalls,
    GraderFailed,
    Interrupted,
    WaitingForPerson,
    describe_error,
)
from workflows.remote import remote_verdict
from workflows.thread_state import Conversation, GradingRun, PassState, Thread
from workflows.tool_calls import READ_TRANSCRIPT, ToolCalls, ToolFailed


class GradingPass:
    """Judges the draft of the pass in flight."""

    def __init__(self, thread: Thread, run: GradingRun, held: PassState, rubric: Rubric, calls: ActivityCalls) -> None:
        self._thread = thread
        self._run = run
        self._pass = held
        self._rubric = rubric
        self._calls = calls
        self._groups = call_groups(rubric)
        self._checks = ToolCalls(thread, calls, "check")
        self._tools = ToolCalls(thread, calls, "grader")
        self._draft = thread.log[held.draft].content

    async def judge(self) -> Judgement:
        """Return the pass's judgement, an error of the machinery included.

        Raises:
            Interrupted: The thread is stopping; checks, turns and verdicts that came are kept in the pass.
            Waiting: A person has to approve a tool call, or everything else passes and one has to decide.
        """
        if self._rubric.checked or self._named_tools():
            await self._calls.capabilities(for_tools=True)
        try:
            await self._check_all()
        except GraderFailed as error:
            return Judgement(rows=aggregate(self._rubric, self._found()).rows, explanation=str(error), error=str(error))
        await self._ask_all()
        judgement = aggregate(self._rubric, self._found())
        undecided = [person for person in self._rubric.asked_of_people if person.id not in self._pass.decisions]
        sound = judgement.error is None and not judgement.impossible
        if undecided and sound and could_be_satisfied(self._rubric, scores_of(self._rubric, judgement.rows)):
            raise WaitingForPerson
        return judgement

    async def _check_all(self) -> None:
        due = [criterion for criterion in self._rubric.checked if criterion.id not in self._pass.checks]
        await _all(self._check(criterion) for criterion in due)
        if any(criterion.id not in self._pass.checks for criterion in due):
            if self._calls.stopping:
                raise Interrupted
            raise WaitingForPerson

    async def _check(self, criterion: Criterion) -> None:
        if criterion.check is None:
            return
        tool = criterion.check.tool
        draft = code_of(self._draft) if criterion.check.extract == "code" else self._draft
        operation = self._checks.operation(f"check.{self._pass.draft}.{criterion.id}")
        given = criterion.check.arguments
        request = ToolRequest(call=criterion.id, arguments=given, draft=draft, check=True, operation_id=operation)
        try:
            found = await self._checks.permitted(tool, request, self._pass.ledger)
        except ToolFailed as failed:
            raise GraderFailed(f"the check {tool} of {criterion.id} could not decide: {failed}") from None
        if found is not None and found.outcome is not None:
            self._pass.checks[criterion.id] = found.outcome

    def _named_tools(self) -> bool:
        return self._thread.grader is not None and bool(self._thread.grader.tools)

    async def _ask_all(self) -> None:
        """Have every conversation that has not ended, all at once; over a long transcript one goes ahead, and the others find it cached."""
        await self._look_up()
        due = [(group, at) for group in self._groups for at in range(len(group.judges)) if not self._conversation(group, at).ended]
        if (ahead := self._goes_ahead(due)) is not None:
            due.remove(ahead)
            await self._ask(*ahead)
        await _all(self._ask(group, at) for group, at in due)

    def _goes_ahead(self, due: list[tuple[CallGroup, int]]) -> tuple[CallGroup, int] | None:
        """Return the first call of several that one model gets over a long transcript."""
        if sum(len(message.content) for message in self._thread.log.slice(0)) < WARMED_CHARACTERS:
            return None
        judges = [self._judge(*each) for each in due]
        ours = (at for at, judge in enumerate(judges) if not isinstance(judge, RemoteGrader) and judges.count(judge) > 1)
        first = next(ours, None)
        return None if first is None else due[first]

    def _conversation(self, group: CallGroup, sample: int) -> Conversation:
        return self._pass.conversations.setdefault(f"{group.index}/{sample}", Conversation(log=Log()))

    async def _ask(self, group: CallGroup, sample: int) -> None:
        judge, conversation = self._judge(group, sample), self._conversation(group, sample)
        try:
            if isinstance(judge, RemoteGrader):
                asked, step = self._remote_question(group, sample), f"judge.{self._pass.draft}.{group.index}.{sample}"
                conversation.verdict = await remote_verdict(judge, group, asked, step, self._calls, self._tools)
            else:
                await self._converse(group, sample, conversation)
        except GraderFailed as error:
            conversation.error = str(error)
        conversation.log = Log()
        conversation.judge = self._name(group, sample)
        if conversation.verdict is not None:
            rows = sum(len(group.ids) * len(group.judges) for group in self._groups)
            conversation.verdict = shorten_verdict(conversation.verdict, row_characters(rows))
            self._remember(group, sample, conversation)

    def _remote_question(self, group: CallGroup, sample: int) -> dict[str, Any]:
        shown = self._thread.log.slice(0, None if self._run.finished else self._pass.draft + 1)
        return {
            "messages": [message.model_dump(mode="json") for message in shown],
            "draft": self._draft,
            "criteria": [criterion.model_dump(mode="json") for criterion in group.criteria],
            "iteration": self._run.iteration,
            "sample": sample,
        }

    async def _converse(self, group: CallGroup, sample: int, conversation: Conversation) -> None:
        """Ask a model until there is a verdict or there will be none; the conversation says which.

        Raises:
            GraderFailed: A call failed for good.
            Interrupted: The thread is stopping; turns that came are kept.
            Waiting: A person has to approve a tool call.
        """
        log, key = conversation.log, f"scratch/{self._run.grading_run_id}/{self._run.iteration}/{group.index}/{sample}"
        while not conversation.ended:
            if wanted := unanswered(log.slice(max(len(log) - 1, 0))):
                step = f"grader.{self._pass.draft}.{group.index}.{sample}.{len(log) - 1}"
                for message in await self._tools.answer(conversation, wanted, conversation.offered, step, self._draft):
                    log.append(message)
            turn = await self._turn(group, sample, conversation, key)
            conversation.steps += 1
            conversation.offered = turn.tools
            conversation.prompt_sha256 = conversation.prompt_sha256 or turn.prompt_sha256
            log.append(turn.message)
            self._calls.learn(turn.offer)
            self._calls.returned(key, log)
            self._spend(turn.usage)
            reading = turn.verdict or turn.malformed
            if reading is None:  # the turn calls tools
                continue
            following = conversation.take(reading, group.ids, loose=turn.loose, spent=_spent(conversation))
            if isinstance(following, Message):
                log.append(following)

    def _spend(self, usage: Usage) -> None:
        self._pass.usage += usage
        self._thread.usage += usage

    async def _turn(self, group: CallGroup, sample: int, conversation: Conversation, key: str) -> GraderTurn:
        conversation.exhausted = conversation.exhausted or conversation.steps >= TURNS
        place = {"run": self._run.ordinal, "iteration": self._run.iteration, "group": group.index, "sample": sample}
        step = Step.model_validate({"role": "grader", "step": conversation.steps} | place)

        def call() -> GradeCall:
            return GradeCall(
                thread=self._calls.thread(),
                scratch=self._calls.log(key, conversation.log),
                step=step,
                admit=self._calls.unknown_judge,
                nonce=self._run.nonce,
                request=self._thread.request,
                draft=self._pass.draft,
                asked=group.ids,
                pending=conversation.pending,
                checks=self._pass.checks,
                last=conversation.exhausted,
                forced=conversation.forced,
                raised=conversation.raised,
                whole=self._run.finished,
            )

        try:
            return await self._calls.make_paid("grade", call, conversation, self._spend, _summary(step, group), GraderTurn)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise GraderFailed(describe_error(error)) from None

    def _judge(self, group: CallGroup, sample: int) -> GraderSpec | None:
        """Return who judges; None where that is the worker's default, which is not known yet."""
        own = self._thread.grader.remote if self._thread.grader else None
        return group.judges[sample] or own or self._thread.judge

    def _name(self, group: CallGroup, sample: int) -> str | None:
        judge = self._judge(group, sample)
        return judge.id if judge else None

    async def _look_up(self) -> None:
        """Take the verdicts that were given on the same draft to the same questions."""
        if self._thread.verdicts_of != self._pass.draft:
            self._thread.verdicts, self._thread.verdicts_of = {}, self._pass.draft
        if self._thread.verdicts and await self._calls.capabilities() is None:
            return  # the calls themselves say what the worker refuses
        for group in self._groups if self._thread.verdicts else ():
            for sample in range(len(group.judges)):
                conversation, verdict = self._conversation(group, sample), self._thread.verdicts.get(self._asked(group, sample) or "")
                if verdict is not None and not conversation.steps:
                    conversation.verdict, conversation.cached, conversation.judge = verdict, True, self._name(group, sample)

    def _remember(self, group: CallGroup, sample: int, conversation: Conversation) -> None:
        """Keep a verdict for the same question, unless it rests on a tool that may say something else by then."""
        offer, verdict, key = self._calls.offer, conversation.verdict, self._asked(group, sample)
        lasting = offer is not None and set(conversation.called) <= {READ_TRANSCRIPT, *offer.cacheable}
        if verdict is None or key is None or conversation.error or verdict.result == "failed" or not lasting:
            return
        self._thread.verdicts[key] = verdict
        for oldest in list(self._thread.verdicts)[:-KEPT]:
            del self._thread.verdicts[oldest]

    def _asked(self, group: CallGroup, sample: int) -> str | None:
        """Return the key of a question; None where it is not a model of ours, or not known yet, who answers.

        A worker of before verdicts were reused told nothing of its tools: what it graded again, a replay grades again.
        """
        judge, grader = self._judge(group, sample), self._thread.grader
        if not isinstance(judge, ModelSpec) or self._calls.offer is None or not self._calls.offer.tools:
            return None
        return reuse_key(
            self._rubric,
            group,
            sample=sample,
            judge=judge,
            instructions=grader.system_prompt if grader else None,
            tools=self._calls.offer.tools,
            records=self._thread.log.sha256(self._pass.draft + 1),
            request=self._thread.request,
            checks=self._pass.checks,
        )

    def _found(self) -> PassFindings:
        answers = {
            (group.index, at): conversation.answer()
            for group in self._groups
            for at in range(len(group.judges))
            if (conversation := self._conversation(group, at)).ended
        }
        return PassFindings(answers=answers, checks=self._pass.checks, decisions=self._pass.decisions)


def _summary(step: Step, group: CallGroup) -> str:
    number = f"{step.iteration + 1}.{step.step + 1}" if step.step else f"{step.iteration + 1}"
    about = "" if group.alone else f" {group.ids[0]}{' …' if len(group.ids) > 1 else ''}"
    return f"grade #{number}{about}{f', vote {step.sample + 1}' if len(group.judges) > 1 else ''}"


def _spent(conversation: Conversation) -> str | None:
    """Return what of a conversation is used up, where its last turn was the last one."""
    if not conversation.exhausted:
        return None
    return f"{TOOL_CALLS} tool calls" if conversation.tool_calls >= TOOL_CALLS else f"{TURNS} turns"


async def _all(work: Iterable[Coroutine[object, object, None]]) -> None:
    """Wait for all of it; what one of them raises comes after the others have ended, so that nothing they found is lost."""
    ended = [each for each in await asyncio.gather(*work, return_exceptions=True) if isinstance(each, BaseException)]
    for raised in sorted(ended, key=lambda each: isinstance(each, WaitingForPerson)):  # a stop counts more than a wait
        raise raised
