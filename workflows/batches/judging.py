"""The workflow `Judging`: one judgement, by criteria or by the rollouts of a schema."""

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityConfig

from activities.batches.judge import JudgeCall, JudgeReply, Subject, SubjectPage, SubjectRef
from activities.state_cache import GradingSettings
from gradeloop.contract.base import Page, page_of
from gradeloop.contract.evaluation import Malformed
from gradeloop.contract.messages import Log, Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import Step
from gradeloop.contract.thread import Generator
from gradeloop.contract.transcript import RUN_BYTES, draft_index, request_index, run_as_messages
from gradeloop.errors import InvalidRequest
from gradeloop.judges import contract
from gradeloop.judges.answers import (
    MALFORMED,
    Rollout,
    answered_by,
    criteria_metadata,
    criteria_output,
    failure_metadata,
    has_quorum,
    rollouts_due,
    shorten_raw,
    summarize,
    too_few,
)
from gradeloop.judges.pass_rule import with_unsure
from gradeloop.judges.prompt import is_cut, reflection_message, repair_message
from gradeloop.judges.write_back import WRITE_BACK_WORKFLOW, WriteBackCall, WriteBackReport
from workflows import activity_calls, observed
from workflows.grading_pass import GradingPass
from workflows.raw_arguments import NO_VALUE, decode
from workflows.stop_rule import raise_when_cancelled
from workflows.thread_state import Conversation, GradingRun, PassState, Thread, draw_nonce, join_notes, page_of_log

INLINE_BYTES = 8 * 1024
"""The largest subject that every call carries; a larger one is carried once, or fetched."""

PAGE_CHARACTERS = 256 * 1024
"""The length of a page of a subject's JSON: a mebibyte at most, whatever the characters."""

NOBODY = "{tools}: a person has to approve this call, and a judge asks nobody; leave the tool out, or judge in a thread"

NOBODY_DRAFTS = Generator(activity="finished", task_queue="finished")
"""The generator of a thread that holds a finished run: it is never called."""


class NoJudgeAvailable(Exception):
    """No judge could be reached: the judgement fails, and its answer is not at fault."""


@workflow.defn(name=contract.JUDGING_WORKFLOW)
class JudgingWorkflow(contract.Judging):
    """A judgement of a finished run, by criteria or by a schema."""

    @workflow.init
    def __init__(self, request: RawValue = NO_VALUE) -> None:
        self._refusal: InvalidRequest | None = None
        try:
            self._request = contract.parse_judging(decode(request, "the request"))
        except InvalidRequest as error:
            self._refusal = error
            return
        nonce = draw_nonce()
        self._thread = _thread_of(self._request)
        self._calls = activity_calls.ActivityCalls(self._thread)
        judge = self._request.judge
        self._rollouts: Rollouts | None = None
        if isinstance(judge, contract.CriteriaJudge):
            own = {"grading_run_id": str(workflow.uuid4()), "nonce": nonce, "repeat": self._request.repeat}
            own |= {"until_decided": self._request.until_decided}
            self._run = GradingRun.model_validate({"ordinal": 0, "max_iterations": 1, "finished": True} | own)
            self._pass = self._run.grading = PassState(draft=draft_index(self._thread.log.slice(0)))
            self._thread.run, self._rubric = self._run, judge.rubric
        else:
            self._rollouts = Rollouts(self._thread, self._calls, judge, self._request, nonce)

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> contract.JudgeResult:  # type: ignore[override]  # noqa: ARG002 - taken in __init__
        """See `gradeloop.judges.contract.Judging.run`."""
        if self._refusal is not None:
            raise ApplicationError(str(self._refusal), type=type(self._refusal).__name__, non_retryable=True)
        return await self._calls.serve(self._judge())

    async def _judge(self) -> contract.JudgeResult:
        try:
            await self._refuse_large()
            return await (self._by_schema(self._rollouts) if self._rollouts else self._by_criteria())
        except (activity_calls.ProviderAway, activity_calls.OverBudget) as error:
            raise self._unavailable(str(error)) from None
        except activity_calls.Interrupted:  # the workflow is cancelled; nothing else stops a judgement
            raise asyncio.CancelledError from None
        except NoJudgeAvailable as error:
            raise self._unavailable(str(error)) from None

    def _unavailable(self, why: str) -> ApplicationError:
        """Return the failure of a judgement without a judge's answer: what a worker refuses is the caller's, and is refused again."""
        kind, _, problem = why.partition(": ")
        if kind == InvalidRequest.__name__:
            return ApplicationError(problem, type=kind, non_retryable=True)
        spent = self._thread.usage.model_dump(mode="json")
        return ApplicationError(why, {"usage": spent}, type=contract.UNAVAILABLE, non_retryable=True)

    async def _refuse_large(self) -> None:
        """Refuse a run that came in one payload and fits into no other, unless the worker stores large payloads outside of Temporal."""
        run = self._request.run
        if len(run.json_bytes()) <= RUN_BYTES:
            return
        try:
            capabilities = await self._calls.ask_capabilities()
        except ActivityError as error:
            raise ApplicationError(activity_calls.describe_error(error), type=contract.UNAVAILABLE, non_retryable=True) from None
        try:
            contract.refuse_large(run, stored=capabilities.external_storage)
        except InvalidRequest as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    async def _by_criteria(self) -> contract.JudgeResult:
        """Judge the thread of the finished run by one pass; raise NoJudgeAvailable where a provider, a tool or a remote grader failed."""
        grading = self._pass
        try:
            judgement = await GradingPass(self._thread, self._run, grading, self._rubric, self._calls).judge()
        except activity_calls.WaitingForPerson:
            tools = ", ".join(sorted({approval.tool for approval in self._thread.pending.values()}))
            raise NoJudgeAvailable(NOBODY.format(tools=tools)) from None
        if judgement.error is None:
            output, metadata = criteria_output(self._rubric, judgement), criteria_metadata(judgement, grading.draft) | _noted(grading.notes)
            return self._result("DIRECT_RESULT", output, metadata, grading.judged_by, grading.prompt_sha256)
        # Malformed where every conversation that failed did so by its answer; a check that could not decide has none.
        errors = [conversation.error for conversation in grading.conversations.values() if conversation.error]
        if not errors or not all(error.startswith(MALFORMED) for error in errors):
            raise NoJudgeAvailable(judgement.error)
        metadata = {"reason": judgement.error, "again": False, **_noted(grading.notes)}
        return self._result("FAILURE", {}, metadata, grading.judged_by, grading.prompt_sha256)

    async def _by_schema(self, judging: "Rollouts") -> contract.JudgeResult:
        """Judge the run by the rollouts of its schema; raise NoJudgeAvailable where no model could be reached."""
        rollouts, reflections = await judging.all()
        model = answered_by(judging.model.id if judging.model else None, [*rollouts, *reflections])
        prompt = next((rollout.prompt_sha256 for rollout in rollouts if rollout.prompt_sha256), None)
        if not has_quorum(judging.judge, rollouts):
            return self._result("FAILURE", {}, failure_metadata(judging.judge, rollouts) | _noted(judging.notes), model, prompt)
        found = summarize(judging.judge, rollouts, reflections)
        cut = {"elided": True} if is_cut(self._request.run) else {}
        return self._result("DIRECT_RESULT", found.output, found.metadata | cut | _noted(judging.notes), model, prompt)

    def _result(
        self, kind: contract.ResultType, output: dict[str, Any], metadata: dict[str, Any], model: str | None, prompt_sha256: str | None
    ) -> contract.JudgeResult:
        judge, usage = self._request.judge, self._thread.usage
        observed.judged(kind)
        result = contract.JudgeResult(
            id=workflow.info().workflow_id,
            agent_run_id=self._request.run.id,
            rubric_id=judge.rubric_id,
            rubric_version=judge.version,
            output=output,
            result_type=kind,
            result_metadata=metadata,
            usage=usage,
            model=model,
            attempts=usage.attempts,
            prompt_sha256=prompt_sha256,
        )
        return with_unsure(judge, result)

    @workflow.query
    def brief(self) -> GradingSettings | None:
        """Return the settings that every call of the judgement shares, for a worker that lacks them."""
        return self._calls.settings().brief

    @workflow.query
    def log(self, key: str, after: int, limit: int) -> Page[Message]:
        """Return messages of the run or of a judge's conversation, for a worker that lacks them."""
        if self._rollouts is not None:
            return Page[Message](**page_of(self._rollouts.log(key), after, limit))
        return page_of_log(self._thread, key, after, limit)

    @workflow.query
    def subject(self, offset: int) -> SubjectPage:
        """Return a page of the judge and the run as JSON, for a worker that lacks it."""
        return self._rollouts.page(offset) if self._rollouts else SubjectPage(text="", next=None)


def _thread_of(request: contract.JudgingRequest) -> Thread:
    """Return the state of a judgement: for criteria, a thread that holds the finished run."""
    judge, name = request.judge, workflow.info().workflow_id
    if not isinstance(judge, contract.CriteriaJudge):
        return Thread(thread_id=name, generator=NOBODY_DRAFTS, max_iterations=1, log=Log(), priority=request.priority)
    log = run_as_messages(request.run)
    return Thread(
        thread_id=name,
        generator=NOBODY_DRAFTS,
        grader=judge.grader,
        rubric=judge.rubric,
        max_iterations=1,
        log=Log(log),
        request=request_index(log, draft_index(log)),
        priority=request.priority,
        status="running",
    )


def _noted(notes: tuple[str, ...]) -> dict[str, Any]:
    return {"notes": list(notes)} if notes else {}


class Rollouts:
    """The conversations of a judgement by a schema."""

    def __init__(
        self, thread: Thread, calls: activity_calls.ActivityCalls, judge: contract.SchemaJudge, request: contract.JudgingRequest, nonce: str
    ) -> None:
        self._thread = thread
        self._repeat = request.repeat
        self._until_decided = request.until_decided
        self._calls = calls
        self.judge = judge
        self.notes: tuple[str, ...] = ()
        """Facts in the result about the model that was called."""
        self._nonce = nonce
        self._subject = Subject(judge=judge, run=request.run)
        self._text = self._subject.model_dump_json()
        self._bytes = len(self._text.encode())
        self._sha256 = hashlib.sha256(self._text.encode()).hexdigest()
        self._carried = False
        self._logs: dict[str, Log] = {}
        self.model = judge.model_at(0)
        """The model that judges; found once where the judge names none."""

    async def all(self) -> tuple[list[Rollout], list[Rollout]]:
        """Return the rollouts, and where the judge reflects on them the reflections, in order.

        Raises:
            NoJudgeAvailable: There is no model to judge, or no rollout has an output and for some no model could be reached.
        """
        if self.model is None:
            self.model = await self._default_judge()
        count, rollouts = self.judge.rollout_count, list[Rollout]()
        while due := self._due(rollouts):
            rollouts += await self._round(0, [Log() for _ in due], len(rollouts))
        answers = [rollout.output for rollout in rollouts if rollout.output is not None]
        # Too few answers mean two different things. Where a model could not be reached, the judgement has not
        # failed by its answer, so it ends without a result and may be made again. Where all answered and too
        # few answers are valid, another attempt would cost as much for nothing, so that is the result.
        answered = has_quorum(self.judge, rollouts)
        if not answered and (lost := next((rollout.unavailable for rollout in rollouts if rollout.unavailable), None)):
            raise NoJudgeAvailable(too_few(self.judge, rollouts, lost))
        if not answered or self.judge.judge_variant == "majority" or len(answers) < 2:  # noqa: PLR2004 - one answer is nothing to weigh
            return rollouts, []
        request = reflection_message(self.judge, answers, self._nonce)
        return rollouts, await self._round(1, [Log([request]) for _ in range(count)])

    def _due(self, asked: list[Rollout]) -> list[int]:
        """Return the numbers of the rollouts to ask after the first ones: all of them, or the fewest that may fix the output."""
        if self._until_decided:
            return rollouts_due(self.judge, {rollout.index: rollout.output for rollout in asked})
        return list(range(len(asked), self.judge.rollout_count))

    async def _default_judge(self) -> ModelSpec:
        try:
            return await self._calls.make(
                "default_judge", self.judge.rubric_id, activity_calls.ADMIT, summary="who judges", result=ModelSpec
            )
        except ActivityError as error:
            raise NoJudgeAvailable(activity_calls.describe_error(error)) from None

    async def _round(self, number: int, logs: list[Log], start: int = 0) -> list[Rollout]:
        """Have the conversations of all logs concurrently; over a long run one goes first, to fill the provider's cache."""
        # As in `GradingPass._first_call`: the first answer puts the run into the provider's cache. Reflections
        # need no such start, since the rollouts before them had the same run.
        one_first = number == start == 0 and len(logs) > 1 and len(self._text) >= activity_calls.WARMED_CHARACTERS
        first = [await self._converse(number, 0, logs[0])] if one_first else []
        rest = list(enumerate(logs, start))[len(first) :]
        return [*first, *await asyncio.gather(*(self._converse(number, at, log) for at, log in rest))]

    async def _converse(self, number: int, at: int, log: Log) -> Rollout:
        """Ask until an answer is valid, its repairs are used up, or no model can be reached."""
        key, conversation = f"scratch/{number}/{at}", Conversation(log=log)
        self._logs[key] = log
        while True:
            repairs = conversation.repairs
            try:
                reply = await self._call_judge(number, at, key, conversation)
            except (activity_calls.ProviderAway, activity_calls.OverBudget) as error:
                return Rollout(index=at, unavailable=str(error), repairs=repairs)
            except ActivityError as error:
                return Rollout(index=at, unavailable=activity_calls.describe_error(error), repairs=repairs)
            conversation.steps += 1
            log.append(reply.message)
            self._calls.note_returned(key, log)
            self._thread.spend(reply.usage)
            self.notes = join_notes(self.notes, reply.notes)
            model = reply.fallback or (self.judge.model_at(at) if self.judge.panel else None)  # None if one model judges
            rollout = Rollout(
                index=at,
                output=reply.output,
                citations=reply.citations,
                repairs=repairs,
                model=model.id if model else None,
                prompt_sha256=reply.prompt_sha256,
            )
            if reply.output is not None:
                return rollout
            following = conversation.take(
                Malformed(problems=reply.problems), (), ask_again=lambda problems, _: repair_message(self.judge, problems)
            )
            if not isinstance(following, Message):
                invalid = {"invalid": "; ".join(reply.problems), "raw_text": shorten_raw(reply.message.content)}
                return rollout.model_copy(update=invalid)
            log.append(following)

    async def _call_judge(self, number: int, at: int, key: str, conversation: Conversation) -> JudgeReply:
        step = Step(role="grader", iteration=number, sample=at, step=conversation.steps)
        what = "reflect" if number else "judge"
        summary = f"{what} #{at + 1}" + (f".{conversation.steps + 1}" if conversation.steps else "")

        def call() -> JudgeCall:
            model = self.judge.model_at(at) or self.model
            if model is None:
                raise NoJudgeAvailable("nobody judges")
            return JudgeCall(
                subject=self._reference(),
                scratch=self._calls.log_reference(key, conversation.log),
                step=step,
                nonce=self._nonce,
                model=model,
                again=self.judge.n_rollouts_per_input > 1,
                repeat=self._repeat,
            )

        return await self._calls.make_paid("judge", call, conversation, self._thread.spend, summary, JudgeReply)

    def _reference(self) -> SubjectRef:
        """Return the subject by its sha256: in full where it is small, and once where it is not too large."""
        whole = self._bytes <= INLINE_BYTES or (not self._carried and self._bytes <= activity_calls.TAIL_BYTES)
        self._carried = True
        return SubjectRef(sha256=self._sha256, bytes=self._bytes, subject=self._subject if whole else None)

    def page(self, offset: int) -> SubjectPage:
        """Return the subject's JSON from an offset on, for a worker that lacks it."""
        stop = offset + PAGE_CHARACTERS
        return SubjectPage(text=self._text[offset:stop], next=stop if stop < len(self._text) else None)

    def log(self, key: str) -> list[Message]:
        """Return the messages of a conversation, for a worker that lacks them."""
        return self._logs[key].slice(0) if key in self._logs else []


@workflow.defn(name=WRITE_BACK_WORKFLOW)
class WriteBackWorkflow:
    """Scores written back, tried for as long as the call says; that it fails is said in the report, and fails nothing else."""

    @workflow.run
    async def run(self, call: WriteBackCall) -> WriteBackReport:
        """Have a worker write the scores."""
        activity, within = "write_back" if call.monitor is None else "write_back_tick", timedelta(seconds=call.seconds)
        try:
            return await workflow.execute_activity(  # type: ignore[no-any-return, call-overload]  # no overload takes a config
                activity, call, result_type=WriteBackReport, schedule_to_close_timeout=within, **WRITE_BACK_OPTIONS
            )
        except ActivityError as error:
            raise_when_cancelled(error)
            return WriteBackReport(problems=(activity_calls.describe_error(error).removeprefix(f"{InvalidRequest.__name__}: "),))


WRITE_BACK_OPTIONS = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=timedelta(seconds=10),
    retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=10)),
)
