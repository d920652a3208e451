"""The loop: generate, grade, decide, feed back."""

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from activities.generate import GenerateCall, GeneratorTurn
from activities.providers.base import Step
from gradeloop.contract.evaluation import Evaluation, Judgement
from gradeloop.contract.messages import Message, Usage, unanswered
from gradeloop.contract.model_spec import tool_names
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.prompts import PROMPT_VERSION, feedback_message
from gradeloop.grading.scoring import result_of, score_of, status_of
from gradeloop.text import shortened
from workflows.activity_calls import TURNS, ActivityCalls, Interrupted, OverBudget, describe_error, kind_of
from workflows.grading_pass import GradingPass
from workflows.remote import RemoteGeneratorFailed, remote_draft
from workflows.thread_rules import take_supplied
from workflows.thread_state import MESSAGES, Exchange, GradingRun, PassState, Thread
from workflows.tool_calls import ToolCalls


class DraftFailed(Exception):
    """No draft can be had: the run stops where it is, and can be resumed."""


class Drafting:
    """Draws drafts from the generator."""

    def __init__(self, thread: Thread, calls: ActivityCalls) -> None:
        self._thread = thread
        self._calls = calls
        self._tools = ToolCalls(thread, calls, "generator")

    async def draft(self) -> int:
        """Return the index of the next draft.

        Raises:
            DraftFailed: The generator failed for good, or the thread is full.
            Interrupted: The thread is stopping.
            Waiting: A person has to approve a tool call.
        """
        exchange = self._thread.drafting = self._thread.drafting or Exchange()
        if self._thread.generator.model is None:
            return await self._foreign()
        while True:
            if wanted := unanswered(self._thread.log.slice(len(self._thread.log) - 1)):
                await self._calls.capabilities(for_tools=True)
                step = f"generator.{len(self._thread.log) - 1}"
                for message in await self._tools.answer(exchange, wanted, tool_names(self._thread.generator.tools), step):
                    self.append(message)
            turn = await self._turn(exchange)
            exchange.steps += 1
            self._spend(turn.usage)
            self._calls.learn(turn.offer)
            index = self.append(turn.message)
            self._calls.returned(MESSAGES, self._thread.log)
            if not turn.message.tool_calls:
                self._thread.drafting = None
                return index
            if exchange.exhausted:
                raise DraftFailed("the generator still calls tools after its last turn; raise the task's clarity or give it fewer tools")

    async def _foreign(self) -> int:
        """Return the index of the draft of a generator that is not ours."""
        try:
            if self._calls.unknown_judge:
                self._calls.learn(await self._calls.ask_capabilities())
            messages = await remote_draft(self._thread, self._calls)
        except RemoteGeneratorFailed as failed:
            raise DraftFailed(str(failed)) from None
        except ActivityError as error:
            raise self._refused(error) from None
        index = [self.append(message) for message in messages][-1]
        self._thread.drafting = None
        return index

    def _spend(self, usage: Usage) -> None:
        self._thread.usage += usage

    def append(self, message: Message) -> int:
        """Add a message if the thread can hold it."""
        held = self._thread.bytes() + message.size()
        if held > self._thread.limit:
            raise DraftFailed(f"ThreadTooLarge: the thread would hold {held} bytes, {self._thread.limit} at most; start a new thread")
        return self._thread.append(message)

    async def _turn(self, exchange: Exchange) -> GeneratorTurn:
        exchange.exhausted = exchange.exhausted or exchange.steps >= TURNS
        run = self._thread.run
        step = Step(role="generator", run=run.ordinal if run else 0, iteration=run.iteration if run else 0, step=exchange.steps)

        def call() -> GenerateCall:
            admit = self._calls.unknown_judge
            return GenerateCall(thread=self._calls.thread(), step=step, admit=admit, last=exchange.exhausted, raised=exchange.raised)

        number = f"{step.iteration + 1}.{step.step + 1}" if step.step else f"{step.iteration + 1}"
        try:
            return await self._calls.make_paid("generate", call, exchange, self._spend, f"generate #{number}", GeneratorTurn)
        except ActivityError as error:
            raise self._refused(error) from None

    def _refused(self, error: ActivityError) -> Exception:
        """Return what a failed call means: a cancellation stays one, a refused first one fails the thread, all else stops the run."""
        if is_cancelled_exception(error):
            return error
        if kind_of(error) == "InvalidRequest" and self._calls.offer is None:
            return ApplicationError(getattr(error.cause, "message", ""), type="InvalidRequest", non_retryable=True)
        return DraftFailed(describe_error(error))


class Rolling(Exception):
    """The history has grown: the run goes on, as it stands, in a new run of the workflow."""


class GradingLoop:
    """Drives one turn of a thread to its end; called again on the same state, it goes on where it stopped."""

    def __init__(self, thread: Thread, calls: ActivityCalls, report: Callable[[], None]) -> None:
        self._thread = thread
        self._calls = calls
        self._report = report
        self.drafting = Drafting(thread, calls)

    async def turn(self) -> None:
        """Answer the thread's request, until its grading run ends or the draft is there that nobody grades.

        Raises:
            Interrupted: The thread is stopping.
            Waiting: A person has to decide.
            DraftFailed: There is no draft to be had.
            Rolling: An iteration is done and the history is long.
        """
        while True:
            try:
                await self._under_one_rubric()
            except OverBudget:
                raise
            except Interrupted:
                if self._calls.stopping == "person":
                    raise
            if self._thread.supplied is None:
                return
            take_supplied(self._thread)
            self._calls.stopping = None if self._calls.stopping == "rubric" else self._calls.stopping
            self._report()

    async def _under_one_rubric(self) -> None:
        thread = self._thread
        rubric, run = thread.rubric_in_force, thread.run
        if rubric is None or run is None:
            if thread.drafting is not None or (thread.turn < len(thread.log) and thread.last_draft(thread.turn) is None):
                await self.drafting.draft()
            return
        while run.status == "running" and thread.supplied is None:
            await self._iterate(rubric, run)
        if run.status == "max_iterations_reached":
            workflow.logger.warning("the draft still fails its rubric after %d iterations", run.max_iterations)

    async def _iterate(self, rubric: Rubric, run: GradingRun) -> None:
        if run.grading is None:
            draft = await self.drafting.draft()
            run.grading = PassState(draft=draft)
            self._thread.tell("rubric_evaluation_start", index=len(self._thread.evaluations))
            self._report()
        held = run.grading
        if self._thread.supplied is not None or run.status != "running":
            return
        judgement = await GradingPass(self._thread, run, held, rubric, self._calls).judge()
        if run.status != "running":  # a person's word has ended it meanwhile
            return
        evaluation = self._decide(rubric, run, held, judgement)
        if evaluation.status == "running" and self._thread.supplied is None:
            self.drafting.append(feedback_message(rubric, evaluation))
            run.iteration += 1
            self._report()
            if workflow.info().is_continue_as_new_suggested():
                raise Rolling

    def _decide(self, rubric: Rubric, run: GradingRun, held: PassState, judgement: Judgement) -> Evaluation:
        result = result_of(rubric, judgement)
        run.status = status_of(result, last=run.iteration + 1 >= run.max_iterations)
        evaluation = Evaluation(
            grading_run_id=run.grading_run_id,
            iteration=run.iteration,
            result=result,
            status=run.status,
            explanation=shortened(judgement.explanation),
            criteria=judgement.rows,
            score=score_of(rubric, judgement),
            unverified=any(row.unverified for row in judgement.rows),
            usage=held.usage,
            draft=held.draft,
            grader=held.judged_by,
            rubric_sha256=rubric.sha256(),
            prompt_version=PROMPT_VERSION if rubric.judged else None,
        )
        if self._thread.bytes() + evaluation.size() > self._thread.limit:
            evaluation = evaluation.curtailed()
        self._thread.evaluations.append(evaluation)
        run.grading = None
        self._thread.tell("rubric_evaluation_end", index=len(self._thread.evaluations) - 1, result=result, status=run.status)
        return evaluation
