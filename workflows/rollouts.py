"""A schema judge's rollouts: conversations side by side, each until its answer is valid or nobody can be had."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows.calls import Calls, told
from workflows.options import ADMIT, TAIL_BYTES, WARMED_CHARACTERS
from workflows.run_state import Conversation
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    import hashlib

    from activities.judge import JudgeCall, JudgeTurn
    from activities.providers.model import Step
    from activities.run_view import Subject, SubjectPage, SubjectRef
    from gradeloop.judges.agent_run import AgentRun
    from gradeloop.judges.judge_prompt import reflection, repair
    from gradeloop.judges.schema_judge import SchemaJudge
    from gradeloop.judges.summary import Rollout, shortened_raw
    from gradeloop.modelspec import ModelSpec
    from gradeloop.transcript import Log, Message
    from gradeloop.usage import Usage
    from gradeloop.verdict import Malformed

INLINE_BYTES = 8 * 1024
"""Of a subject that every call carries; a larger one is carried once, or fetched."""

PAGE_CHARACTERS = 256 * 1024
"""Of a subject's JSON that a query answers with: a mebibyte at most, whatever the characters."""


class Unavailable(Exception):
    """No judge could be had: neither a result nor the answer's fault."""


class Rollouts:
    """All conversations of one judgement."""

    def __init__(self, thread: Thread, calls: Calls, judge: SchemaJudge, run: AgentRun, nonce: str) -> None:
        self._thread = thread
        self._calls = calls
        self._judge = judge
        self._nonce = nonce
        self._subject = Subject(judge=judge, run=run)
        self._text = self._subject.model_dump_json()
        self._bytes = len(self._text.encode())
        self._sha256 = hashlib.sha256(self._text.encode()).hexdigest()
        self._carried = False
        self._logs: dict[str, Log] = {}
        self.model = judge.judge_model
        """Who judges; found once where the judge names nobody."""

    async def all(self) -> tuple[list[Rollout], list[Rollout]]:
        """Return the rollouts, and where the judge reflects on them the reflections, in order.

        Raises:
            Unavailable: There is no model to judge, or every rollout went without an answer and some could have been repeated.
        """
        if self.model is None:
            self.model = await self._default()
        count = self._judge.n_rollouts_per_input
        rollouts = await self._round(0, [Log() for _ in range(count)])
        answers = [each.output for each in rollouts if each.output is not None]
        if not answers and (lost := next((each.unavailable for each in rollouts if each.unavailable), None)):
            raise Unavailable(lost)
        if self._judge.judge_variant == "majority" or len(answers) < 2:  # noqa: PLR2004 - one answer is nothing to weigh
            return rollouts, []
        asked = reflection(self._judge, answers, self._nonce)
        return rollouts, await self._round(1, [Log([asked]) for _ in range(count)])

    async def _default(self) -> ModelSpec:
        try:
            return await self._calls.make("default_judge", self._judge.rubric_id, ADMIT, summary="who judges", result=ModelSpec)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise Unavailable(told(error)) from None

    async def _round(self, number: int, logs: list[Log]) -> list[Rollout]:
        """Converse over every log, all at once; over a long run one goes ahead, and the others find it in the provider's cache."""
        goes_ahead = number == 0 and len(logs) > 1 and len(self._text) >= WARMED_CHARACTERS
        first = [await self._converse(number, 0, logs[0])] if goes_ahead else []
        rest = list(enumerate(logs))[len(first) :]
        return [*first, *await asyncio.gather(*(self._converse(number, at, log) for at, log in rest))]

    async def _converse(self, number: int, at: int, log: Log) -> Rollout:
        """Ask until an answer is valid, its repairs are used up, or nobody answers."""
        key, conversation = f"scratch/{number}/{at}", Conversation(log=log)
        self._logs[key] = log
        while True:
            repairs = conversation.repairs
            try:
                turn = await self._turn(number, at, key, conversation)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                return Rollout(index=at, unavailable=told(error), repairs=repairs)
            conversation.steps += 1
            log.append(turn.message)
            self._calls.returned(key, log)
            self._spend(turn.usage)
            found = Rollout(index=at, output=turn.output, citations=turn.citations, repairs=repairs, prompt_sha256=turn.prompt_sha256)
            if turn.output is not None:
                return found
            following = conversation.take(
                Malformed(problems=turn.problems), (), ask_again=lambda problems, _: repair(self._judge, problems)
            )
            if not isinstance(following, Message):
                wrong = {"invalid": "; ".join(turn.problems), "raw_text": shortened_raw(turn.message.content)}
                return found.model_copy(update=wrong)
            log.append(following)

    async def _turn(self, number: int, at: int, key: str, conversation: Conversation) -> JudgeTurn:
        step = Step(role="grader", iteration=number, sample=at, step=conversation.steps)
        what = "reflect" if number else "judge"
        summary = f"{what} #{at + 1}" + (f".{conversation.steps + 1}" if conversation.steps else "")

        def call() -> JudgeCall:
            if self.model is None:
                raise Unavailable("nobody judges")
            return JudgeCall(
                subject=self._reference(),
                scratch=self._calls.log(key, conversation.log),
                step=step,
                nonce=self._nonce,
                model=self.model,
                again=self._judge.n_rollouts_per_input > 1,
                raised=conversation.raised,
            )

        return await self._calls.make_paid("judge", call, conversation, self._spend, summary, JudgeTurn)

    def _reference(self) -> SubjectRef:
        """Return the subject by its sha256: in full where it is small, and once where it is not too large."""
        whole = self._bytes <= INLINE_BYTES or (not self._carried and self._bytes <= TAIL_BYTES)
        self._carried = True
        return SubjectRef(sha256=self._sha256, bytes=self._bytes, subject=self._subject if whole else None)

    def _spend(self, usage: Usage) -> None:
        self._thread.usage += usage

    def page(self, offset: int) -> SubjectPage:
        """Return the subject's JSON from an offset on, for a worker that lacks it."""
        stop = offset + PAGE_CHARACTERS
        return SubjectPage(text=self._text[offset:stop], next=stop if stop < len(self._text) else None)

    def log(self, key: str) -> list[Message]:
        """Return what was said in a conversation, for a worker that lacks it."""
        return self._logs[key].slice(0) if key in self._logs else []
