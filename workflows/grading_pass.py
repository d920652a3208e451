"""One grading pass over a draft: checks first, then every call group by its graders, people last."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from temporalio.exceptions import ActivityError

from activities.grade import GradeCall, GraderReply
from activities.tool_call import ToolRequest
from gradeloop.contract.criterion import Check
from gradeloop.contract.evaluation import Judgement
from gradeloop.contract.messages import Log, Message, Usage, code_of, unanswered
from gradeloop.contract.model_spec import GraderSpec, ModelSpec, RemoteGrader
from gradeloop.contract.provider import Step
from gradeloop.contract.rubric import Rubric
from gradeloop.grading import scoring
from gradeloop.grading.answer_form import AnswerForm, model_key, most_criteria
from gradeloop.grading.cache_key import KEPT, reuse_key
from workflows import observed
from workflows.activity_calls import WARMED_CHARACTERS, ActivityCalls, GraderFailed, Interrupted, WaitingForPerson, describe_error
from workflows.remote import remote_verdict
from workflows.thread_state import Conversation, GradingRun, PassState, Thread, join_notes
from workflows.tool_calls import READ_TRANSCRIPT, ToolCalls, ToolFailed


class GradingPass:
    """Judges the draft of the pass in flight."""

    def __init__(self, thread: Thread, run: GradingRun, state: PassState, rubric: Rubric, calls: ActivityCalls) -> None:
        self._thread = thread
        self._run = run
        self._state = state
        self._rubric = rubric
        self._calls = calls
        self._groups = scoring.call_groups(rubric)
        self._checks = ToolCalls(thread, calls, "check")
        self._tools = ToolCalls(thread, calls, "grader")
        self._draft = thread.log[state.draft].content

    async def judge(self) -> Judgement:
        """Return the pass's judgement, an error of the machinery included.

        Raises:
            Interrupted: The thread is stopping; checks, turns and verdicts that came are kept in the pass.
            WaitingForPerson: A person has to approve a tool call, or everything else passes and one has to decide.
        """
        # The order is by price: checks cost nothing, graders cost money, people cost time. So a person is asked
        # last, and only if the draft can still meet the rubric. Every result is kept in the pass as it arrives,
        # so that a stop or a wait never pays for it again.
        if self._rubric.checks() or (self._thread.grader and self._thread.grader.tools):
            await self._calls.find_capabilities()
        try:
            await self._check_all()
        except GraderFailed as error:
            return Judgement(rows=self._aggregate().rows, explanation=str(error), error=str(error))
        await self._ask_all()
        judgement = self._aggregate()
        undecided = [person for person in self._rubric.asked_of_people if person.id not in self._state.decisions]
        sound = judgement.error is None and not judgement.impossible
        if undecided and sound and scoring.could_be_satisfied(self._rubric, scoring.scores_of(self._rubric, judgement.rows)):
            raise WaitingForPerson
        return judgement

    def _aggregate(self) -> Judgement:
        return scoring.aggregate(self._rubric, self._state.findings(self._rubric))

    async def _check_all(self) -> None:
        due = [(criterion.id, check) for criterion, check in self._rubric.checks() if criterion.id not in self._state.checks]
        await _finish_all(self._check(name, check) for name, check in due)
        if any(name not in self._state.checks for name, _ in due):
            if self._thread.stopping is not None:
                raise Interrupted
            raise WaitingForPerson

    async def _check(self, name: str, check: Check) -> None:
        if check.transform is not None:
            raise GraderFailed(f"the check {check.tool} of {name} could not decide: its transform runs only in a batch without a loop")
        draft = code_of(self._draft) if check.extract == "code" else self._draft
        operation = self._checks.operation(f"check.{self._state.draft}.{name}")
        request = ToolRequest(call=name, arguments=check.arguments, draft=draft, check=True, operation_id=operation)
        try:
            evidence = await self._checks.permitted(check.tool, request, self._state.ledger)
        except ToolFailed as failed:
            raise GraderFailed(f"the check {check.tool} of {name} could not decide: {failed}") from None
        if evidence is not None and evidence.outcome is not None:
            self._state.checks[name] = evidence.outcome

    async def _ask_all(self) -> None:
        """Have every conversation that has not ended, concurrently; over a long transcript one goes first, to fill the cache."""
        await self._look_up()
        due = self._due()
        if (first := self._first_call(due)) is not None:
            due.remove(first)
            await self._ask(*first)
        while due:
            await _finish_all(self._ask(group, at) for group, at in due)
            due = self._due() if self._run.until_decided else []

    def _due(self) -> list[tuple[scoring.CallGroup, int]]:
        """Return the conversations that have not ended; where votes are asked until they decide, those that come next."""
        due = []
        for group in self._groups:
            samples = range(len(group.judges))
            answers = {at: one.answer() for at in samples if (one := self._conversation(group, at)).ended}
            wanted = scoring.samples_due(self._rubric, group, answers) if self._run.until_decided else sorted(set(samples) - answers.keys())
            due += [(group, at) for at in wanted]
        return due

    def _first_call(self, due: list[tuple[scoring.CallGroup, int]]) -> tuple[scoring.CallGroup, int] | None:
        """Return the first of several calls that one model gets over a long transcript."""
        # A provider's cache knows a prefix only once a call with it was answered. Sent together, all calls
        # would pay for the whole transcript; behind a first one, the others read it at the price of cached
        # tokens. Where calls are few or short, the wait costs more than it saves.
        if sum(len(message.content) for message in self._thread.log.slice(0)) < WARMED_CHARACTERS:
            return None
        judges = [self._judge(group, sample) for group, sample in due]
        shared = (at for at, judge in enumerate(judges) if not isinstance(judge, RemoteGrader) and judges.count(judge) > 1)
        return next((due[at] for at in shared), None)

    def _conversation(self, group: scoring.CallGroup, sample: int) -> Conversation:
        return self._state.conversations.setdefault(f"{group.index}/{sample}", Conversation(log=Log()))

    async def _ask(self, group: scoring.CallGroup, sample: int) -> None:
        judge, conversation = self._judge(group, sample), self._conversation(group, sample)
        try:
            if isinstance(judge, RemoteGrader):
                question, step = self._remote_question(group, sample), f"judge.{self._state.draft}.{group.index}.{sample}"
                conversation.verdict = await remote_verdict(judge, group, question, step, self._calls, self._tools)
            else:
                await self._converse(group, sample, conversation)
        except GraderFailed as error:
            conversation.error = str(error)
        # A conversation that has ended keeps its verdict and drops its messages, which would be the largest
        # part of a checkpoint and which no later call needs.
        conversation.log = Log()
        conversation.name_judge(self._name(group, sample))
        if conversation.verdict is not None:
            rows = sum(len(group.ids) * len(group.judges) for group in self._groups)
            conversation.verdict = scoring.shorten_verdict(conversation.verdict, scoring.row_characters(rows))
            self._remember(group, sample, conversation)

    def _remote_question(self, group: scoring.CallGroup, sample: int) -> dict[str, Any]:
        messages = self._thread.log.slice(0, None if self._run.finished else self._state.draft + 1)
        return {
            "messages": [message.model_dump(mode="json") for message in messages if not message.hidden],
            "draft": self._draft,
            "criteria": [criterion.model_dump(mode="json") for criterion in group.criteria],
            "iteration": self._run.iteration,
            "sample": sample,
        }

    async def _converse(self, group: scoring.CallGroup, sample: int, conversation: Conversation) -> None:
        """Ask a model until there is a verdict or there will be none; the conversation says which.

        Raises:
            GraderFailed: A call failed for good.
            Interrupted: The thread is stopping; turns that came are kept.
            WaitingForPerson: A person has to approve a tool call.
        """
        log, key = conversation.log, f"scratch/{self._run.grading_run_id}/{self._run.iteration}/{group.index}/{sample}"
        # Each turn is appended before the next call, and the conversation is part of the thread's state. So a run
        # that goes on after a stop begins with the open tool calls of the last message. No turn that was paid for is
        # asked again.
        while not conversation.ended:
            if wanted := unanswered(log.slice(max(len(log) - 1, 0))):
                step = f"grader.{self._state.draft}.{group.index}.{sample}.{len(log) - 1}"
                for message in await self._tools.answer(conversation, wanted, conversation.offered, step, self._draft):
                    log.append(message)
            reply = await self._call_grader(group, sample, conversation, key)
            if reply.fallback is not None and reply.fallback.id in self._taken(group, sample):
                self._spend(reply.usage)  # another vote has gone to the same model meanwhile: it votes once
                continue
            conversation.fallback = reply.fallback
            conversation.form = reply.form
            if reply.form is not None:
                self._thread.forms[reply.form.model] = reply.form
            conversation.steps += 1
            conversation.offered = reply.tools
            conversation.prompt_sha256 = conversation.prompt_sha256 or reply.prompt_sha256
            for message in (*reply.added, reply.message):
                log.append(message)
            self._calls.learn(reply.offer)
            self._calls.note_returned(key, log)
            self._state.notes = join_notes(self._state.notes, reply.notes)
            self._spend(reply.usage)
            reading = reply.verdict or reply.malformed
            if reading is None:  # the reply calls tools
                continue
            most = most_criteria(group, reply.form) if reply.form else None
            following = conversation.take(reading, group.ids, loose=reply.loose, spent=self._spent(conversation), most=most)
            if isinstance(following, Message):
                log.append(following)

    def _spent(self, conversation: Conversation) -> str | None:
        """Return what a conversation has used up, where its last turn was the last one."""
        limits = self._thread.limits("grader")
        if not conversation.exhausted:
            return None
        return f"{limits.tool_calls} tool calls" if conversation.tool_calls >= limits.tool_calls else f"{limits.turns} turns"

    def _spend(self, usage: Usage) -> None:
        self._state.usage += usage
        self._thread.spend(usage)

    async def _call_grader(self, group: scoring.CallGroup, sample: int, conversation: Conversation, key: str) -> GraderReply:
        conversation.exhausted = conversation.exhausted or conversation.steps >= self._thread.limits("grader").turns
        place = {"run": self._run.ordinal, "iteration": self._run.iteration, "group": group.index, "sample": sample}
        step = Step.model_validate({"role": "grader", "step": conversation.steps} | place)

        # The argument is made anew for each attempt. Between two attempts, another vote may have fallen back to a
        # model that this one must avoid from then on.
        def call() -> GradeCall:
            return GradeCall(
                thread=self._calls.thread_reference(),
                scratch=self._calls.log_reference(key, conversation.log),
                step=step,
                admit=self._calls.unknown_judge,
                nonce=self._run.nonce,
                request=self._thread.request,
                draft=self._state.draft,
                asked=group.ids,
                pending=conversation.pending,
                form=conversation.form or self._known_form(group, sample),
                checks=self._state.checks,
                last=conversation.exhausted,
                forced=conversation.forced,
                whole=self._run.finished,
                repeat=self._run.repeat,
                taken=self._taken(group, sample),
            )

        try:
            return await self._calls.make_paid("grade", call, conversation, self._spend, _summary(step, group), GraderReply)
        except ActivityError as error:
            raise GraderFailed(describe_error(error)) from None

    def _known_form(self, group: scoring.CallGroup, sample: int, fallback: ModelSpec | None = None) -> AnswerForm | None:
        """Return the form in which the judge has answered in this thread; None where it has not."""
        judge = fallback or self._judge(group, sample)
        return self._thread.forms.get(model_key(judge)) if isinstance(judge, ModelSpec) else None

    def _taken(self, group: scoring.CallGroup, sample: int) -> tuple[str, ...]:
        """Return the ids of the models that other graders of the same criteria vote with, to which this one must not fall back."""
        # Votes are worth something only if different models cast them. A fallback must therefore not be a model
        # that votes already, by itself or as another one's fallback. Calls run at once, so the reply is checked
        # against this again when it comes (`_converse`).
        own, others = self._judge(group, sample), range(len(group.judges))
        if not isinstance(own, ModelSpec) or not own.fallback:
            return ()
        rivals = [at for at in others if (judge := self._judge(group, at)) is not None and judge != own]
        models = (self._conversation(group, at).fallback for at in rivals)
        return tuple(sorted({*(self._name(group, at) or "" for at in rivals), *(model.id for model in models if model)}))

    def _judge(self, group: scoring.CallGroup, sample: int) -> GraderSpec | None:
        """Return the grader; None where that is the worker's default, which is not known yet."""
        own = self._thread.grader.remote if self._thread.grader else None
        return group.judges[sample] or own or self._thread.judge

    def _name(self, group: scoring.CallGroup, sample: int) -> str | None:
        judge = self._judge(group, sample)
        return judge.id if judge else None

    async def _look_up(self) -> None:
        """Take the verdicts on the same draft and the same questions that the thread has already."""
        if self._thread.verdicts_of != self._state.draft:
            self._thread.verdicts, self._thread.verdicts_of = {}, self._state.draft
        if self._thread.verdicts and await self._calls.find_capabilities() is None:
            return  # the calls themselves say what the worker refuses
        for group in self._groups if self._thread.verdicts else ():
            for sample in range(len(group.judges)):
                conversation, key = self._conversation(group, sample), self._question_key(group, sample)
                verdict = self._thread.verdicts.get(key or "")
                if verdict is not None and not conversation.steps:
                    conversation.verdict, conversation.cached, conversation.judge = verdict, True, self._name(group, sample)
                    observed.reused()

    def _remember(self, group: scoring.CallGroup, sample: int, conversation: Conversation) -> None:
        """Keep a verdict for the same question, unless it rests on a tool whose result may change."""
        capabilities, verdict = self._calls.capabilities, conversation.verdict
        key = self._question_key(group, sample, conversation.fallback)
        lasting = capabilities is not None and set(conversation.called) <= {READ_TRANSCRIPT, *capabilities.cacheable}
        if verdict is None or key is None or conversation.error or verdict.result == "failed" or not lasting:
            return
        self._thread.verdicts[key] = verdict
        for oldest in list(self._thread.verdicts)[:-KEPT]:
            del self._thread.verdicts[oldest]

    def _question_key(self, group: scoring.CallGroup, sample: int, fallback: ModelSpec | None = None) -> str | None:
        """Return the key of a question; None where no model answers it, or where the worker has not yet said what it can do."""
        # The key has everything that the grader is asked, down to the form of its answer and the sha256 of its
        # tools. So a verdict is reused only where the same call would be made again. What is unknown yet, such
        # as the form before a judge's first answer, makes no key rather than one that lacks it.
        judge, grader, capabilities = fallback or self._judge(group, sample), self._thread.grader, self._calls.capabilities
        form = self._known_form(group, sample, fallback)
        if not isinstance(judge, ModelSpec) or capabilities is None or form is None:
            return None
        return reuse_key(
            self._rubric,
            group,
            sample=sample,
            judge=judge,
            instructions=grader.system_prompt if grader else None,
            tools=capabilities.tools,
            records=self._thread.log.sha256(self._state.draft + 1),
            request=self._thread.request,
            checks=self._state.checks,
            form=form,
        )


def _summary(step: Step, group: scoring.CallGroup) -> str:
    number = f"{step.iteration + 1}.{step.step + 1}" if step.step else f"{step.iteration + 1}"
    about = "" if group.alone else f" {group.ids[0]}{' …' if len(group.ids) > 1 else ''}"
    return f"grade #{number}{about}{f', vote {step.sample + 1}' if len(group.judges) > 1 else ''}"


async def _finish_all(work: Iterable[Coroutine[object, object, None]]) -> None:
    """Wait until all have ended, so that no result is lost, and raise the first error; a stop counts more than a wait."""
    errors = [error for error in await asyncio.gather(*work, return_exceptions=True) if isinstance(error, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, WaitingForPerson)):
        raise error
