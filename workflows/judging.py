"""One judgement of a finished run: what a provider or a tool fails is failed, and may be run again; what is invalid is a result."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows.calls import Calls, told
from workflows.criteria_pass import NoVerdict, judge_by_criteria
from workflows.raw import NO_VALUE, decoded
from workflows.rollouts import Rollouts, Unavailable
from workflows.run_ahead import RunAhead
from workflows.run_state import GradingPass, GradingRun
from workflows.thread_logs import page_of_log
from workflows.thread_state import Thread
from workflows.turns import NONCE_BITS

with workflow.unsafe.imports_passed_through():
    from activities.run_view import SubjectPage
    from activities.thread_view import Brief
    from gradeloop.errors import InvalidRequest
    from gradeloop.judges.agent_run import RUN_BYTES, answer_of, as_log, request_of
    from gradeloop.judges.blocks import is_cut
    from gradeloop.judges.config import CriteriaJudge
    from gradeloop.judges.contract import UNAVAILABLE, WORKFLOW, Judging
    from gradeloop.judges.judge_result import JudgeResult, ResultType
    from gradeloop.judges.judging_request import JudgingRequest, parse_judging, refuse_large
    from gradeloop.judges.summary import Rollout, summary
    from gradeloop.page import Page, page_of
    from gradeloop.request import Generator
    from gradeloop.transcript import Log, Message

NOBODY_DRAFTS = Generator(activity="finished", task_queue="finished")
"""The generator of a thread that holds a finished run: it is never called."""


@workflow.defn(name=WORKFLOW)
class JudgingWorkflow(Judging):
    """One judgement."""

    @workflow.init
    def __init__(self, request: RawValue = NO_VALUE) -> None:
        self._refusal: InvalidRequest | None = None
        try:
            self._request = parse_judging(decoded(request, "the request"))
        except InvalidRequest as error:
            self._refusal = error
            return
        nonce = f"{workflow.random().getrandbits(NONCE_BITS):032x}"
        self._thread = _thread(self._request)
        self._calls = Calls(self._thread)
        judge = self._request.judge
        self._rollouts: Rollouts | None = None
        if isinstance(judge, CriteriaJudge):
            self._run = GradingRun(grading_run_id=str(workflow.uuid4()), ordinal=0, nonce=nonce, max_iterations=1, finished=True)
            self._pass = self._run.grading = GradingPass(draft=answer_of(self._thread.log.slice(0)))
            self._thread.run, self._rubric = self._run, judge.rubric
        else:
            self._rollouts = Rollouts(self._thread, self._calls, judge, self._request.run, nonce)

    @workflow.run
    async def run(self, request: RawValue = NO_VALUE) -> JudgeResult:  # type: ignore[override]  # noqa: ARG002 - taken in __init__
        """See `gradeloop.judges.contract.Judging.run`."""
        self._guard = asyncio.create_task(RunAhead().guard())
        if self._refusal is not None:
            raise ApplicationError(str(self._refusal), type=type(self._refusal).__name__, non_retryable=True)
        await self._refuse_large()
        try:
            return await (self._by_schema(self._rollouts) if self._rollouts else self._by_criteria())
        except Unavailable as error:
            spent = self._thread.usage.model_dump(mode="json")
            raise ApplicationError(str(error), {"usage": spent}, type=UNAVAILABLE, non_retryable=True) from None

    async def _refuse_large(self) -> None:
        """Refuse a run that came in one payload and fits into no other, unless the worker keeps large ones elsewhere."""
        run = self._request.run
        if len(run.json_bytes()) <= RUN_BYTES:
            return
        try:
            offer = await self._calls.ask_capabilities()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise ApplicationError(told(error), type=UNAVAILABLE, non_retryable=True) from None
        try:
            refuse_large(run, stored=offer.external_storage)
        except InvalidRequest as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    async def _by_criteria(self) -> JudgeResult:
        held = self._pass
        try:
            found = await judge_by_criteria(self._thread, self._run, held, self._rubric, self._calls)
        except NoVerdict as error:
            return self._result("FAILURE", {}, {"reason": str(error), "again": False}, held.judged_by, held.prompt_sha256)
        return self._result("DIRECT_RESULT", found.output, found.metadata, held.judged_by, held.prompt_sha256)

    async def _by_schema(self, judging: Rollouts) -> JudgeResult:
        rollouts, reflections = await judging.all()
        model = judging.model.id if judging.model else None
        sent = next((each.prompt_sha256 for each in rollouts if each.prompt_sha256), None)
        judge = self._request.judge
        if isinstance(judge, CriteriaJudge) or all(each.output is None for each in rollouts):
            return self._result("FAILURE", {}, _invalid(rollouts), model, sent)
        found = summary(judge, rollouts, reflections)
        cut = {"elided": True} if is_cut(self._request.run) else {}
        return self._result("DIRECT_RESULT", found.output, found.metadata | cut, model, sent)

    def _result(
        self, kind: ResultType, output: dict[str, Any], metadata: dict[str, Any], model: str | None, sent: str | None
    ) -> JudgeResult:
        judge, usage = self._request.judge, self._thread.usage
        return JudgeResult(
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
            prompt_sha256=sent,
        )

    @workflow.query
    def brief(self) -> Brief | None:
        """Return who judges by which criteria, for a worker that lacks it."""
        return self._calls.brief().brief

    @workflow.query
    def log(self, key: str, after: int, limit: int) -> Page[Message]:
        """Return messages of the run or of a judge's conversation, for a worker that lacks them."""
        if self._rollouts is not None:
            return Page[Message](**page_of(self._rollouts.log(key), after, limit))
        return page_of_log(self._thread, key, after, limit)

    @workflow.query
    def subject(self, offset: int) -> SubjectPage:
        """Return a stretch of what is judged and by whom, as JSON, for a worker that lacks it."""
        return self._rollouts.page(offset) if self._rollouts else SubjectPage(text="", next=None)


def _thread(request: JudgingRequest) -> Thread:
    """Return the state in which a run is judged: for criteria, a thread that holds it."""
    judge, name = request.judge, workflow.info().workflow_id
    if not isinstance(judge, CriteriaJudge):
        return Thread(thread_id=name, generator=NOBODY_DRAFTS, max_iterations=1, log=Log(), priority=request.priority)
    log = as_log(request.run)
    return Thread(
        thread_id=name,
        generator=NOBODY_DRAFTS,
        grader=judge.grader,
        rubric=judge.rubric,
        max_iterations=1,
        log=Log(log),
        request=request_of(log, answer_of(log)),
        priority=request.priority,
        status="running",
    )


def _invalid(rollouts: list[Rollout]) -> dict[str, Any]:
    """Return why there is no output, and what was answered instead."""
    first = next((each for each in rollouts if each.invalid), rollouts[0])
    told = [each.model_dump(mode="json", exclude={"citations", "output"}) for each in rollouts]
    return {"reason": first.invalid, "raw_text": first.raw_text, "again": False, "rollouts": [{**each, "raw_text": None} for each in told]}
