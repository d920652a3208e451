"""The loop: generate, grade, decide, feed back."""

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.generate import GenerateCall, GeneratorReply
from gradeloop.contract.messages import Message, Usage, unanswered
from gradeloop.contract.model_spec import tool_names
from gradeloop.contract.provider import Step
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.prompts import feedback_message
from workflows import observed, thread_rules
from workflows.activity_calls import ActivityCalls, Interrupted, OverBudget, ProviderAway, describe_error, kind_of
from workflows.grading_pass import GradingPass
from workflows.remote import RemoteGeneratorFailed, remote_draft
from workflows.stop_rule import draft_is_due, forget_rubric_stop, must_end_turn
from workflows.thread_state import MESSAGES, Exchange, GradingRun, PassState, Thread, join_notes
from workflows.tool_calls import ToolCalls

ANSWERED = "end a turn whose last draft needs no grading"
"""The patch since which a turn ends, also while it is stopped, where its draft came and its rubric had been cleared."""


class DraftFailed(Exception):
    """No draft can be had: the run stops where it is, and can be resumed."""


class Rolling(Exception):
    """The history has grown: the run goes on, as it is, in a new run of the workflow."""


class GradingLoop:
    """Drives one turn of a thread to its end; called again on the same state, it goes on where it stopped."""

    def __init__(self, thread: Thread, calls: ActivityCalls, publish: Callable[[], None]) -> None:
        self._thread = thread
        self._calls = calls
        self._publish = publish
        self._tools = ToolCalls(thread, calls, "generator")

    async def turn(self) -> None:
        """Answer the thread's request, until its grading run ends or, without a rubric, there is a draft.

        Raises:
            Interrupted: The thread is stopping.
            WaitingForPerson: A person has to decide.
            DraftFailed: There is no draft to be had.
            Rolling: An iteration is done and the history is long.
        """
        thread = self._thread
        while True:
            try:
                await self._under_one_rubric()
            except (OverBudget, ProviderAway):
                raise
            except Interrupted:
                if must_end_turn(thread) and not self._run_has_ended():
                    raise
            if thread.supplied is not None:
                # A rubric that comes while a turn runs takes over here, where no call is in flight: what was
                # stopped for it has ended, and its cost is counted. A person's stop weighs more, so the turn ends
                # interrupted and the rubric waits, unless nothing was left to do: the draft is there and the new
                # rubric asks for nothing.
                answered = not thread.supplied.criteria and not draft_is_due(thread)  # nobody has to grade the draft
                if must_end_turn(thread) and not (answered and workflow.patched(ANSWERED)):
                    raise Interrupted
                thread_rules.take_supplied(thread)
                forget_rubric_stop(thread)
                self._publish()
            elif thread.stopping == "rubric" and not self._run_has_ended():
                forget_rubric_stop(thread)  # the rubric that was to take over was withdrawn
            else:
                return

    def _run_has_ended(self) -> bool:
        run = self._thread.run
        return run is not None and run.status != "running" and not draft_is_due(self._thread)

    async def _under_one_rubric(self) -> None:
        """Answer until the run ends, or another rubric takes over."""
        thread, run, rubric = self._thread, self._thread.run, self._thread.rubric_in_force
        if rubric is None or run is None:
            if draft_is_due(thread):
                await self._draft()
            return
        while run.status == "running" and thread.supplied is None:
            await self._iterate(rubric, run)
        if run.status == "max_iterations_reached":
            workflow.logger.warning("the draft still fails its rubric after %d iterations", run.max_iterations)

    async def _iterate(self, rubric: Rubric, run: GradingRun) -> None:
        thread = self._thread
        # The state says which step of the iteration is due: a draft while there is no pass, its judgement once there
        # is one. So a run that was stopped goes on in the middle of its iteration and keeps the draft that it has.
        if run.grading is None:
            draft = await self._draft()
            if thread.supplied is not None or run.status != "running":
                self._publish()
                return
            run.grading = PassState(draft=draft)
            thread.record_event("rubric_evaluation_start", index=len(thread.evaluations))
            self._publish()
        grading = run.grading
        judgement = await GradingPass(thread, run, grading, rubric, self._calls).judge()
        if run.status != "running":  # a person's override has ended it meanwhile
            return
        evaluation = thread_rules.record_evaluation(thread, rubric, run, grading, judgement)
        observed.evaluated(thread, evaluation)
        if evaluation.status == "running" and thread.supplied is None:
            self._append(feedback_message(rubric, evaluation, judgement.remarks))
            run.iteration += 1
            thread.drafting = Exchange()  # due from here on, whoever ends the run or takes it over
            self._publish()
            # Only here nothing is in flight and nothing half done: the feedback is appended and the next draft is
            # due. Anywhere else a call's result would come to a run that has ended.
            if workflow.info().is_continue_as_new_suggested() and not must_end_turn(thread):
                raise Rolling

    async def _draft(self) -> int:
        """Return the index of the next draft.

        Raises:
            DraftFailed: The generator failed for good, or the thread is full.
            Interrupted: The thread is stopping.
            WaitingForPerson: A person has to approve a tool call.
        """
        thread = self._thread
        exchange = thread.drafting = thread.drafting or Exchange()
        if thread.generator.model is None:
            return await self._draft_remotely()
        while True:
            if wanted := unanswered(thread.log.slice(len(thread.log) - 1)):
                await self._calls.find_capabilities()
                step = f"generator.{len(thread.log) - 1}"
                for message in await self._tools.answer(exchange, wanted, tool_names(thread.generator.tools), step):
                    self._append(message)
            reply = await self._call_generator(exchange)
            exchange.steps += 1
            self._spend(reply.usage)
            self._calls.learn(reply.offer)
            if thread.run:
                thread.run.notes = join_notes(thread.run.notes, reply.notes)
            index = [self._append(message) for message in (*reply.added, reply.message)][-1]
            self._calls.note_returned(MESSAGES, thread.log)
            if not reply.message.tool_calls:
                thread.drafting = None
                return index
            if exchange.exhausted:
                raise DraftFailed("the generator still calls tools after its last turn; raise the task's clarity or give it fewer tools")

    async def _draft_remotely(self) -> int:
        try:
            if self._calls.unknown_judge:
                self._calls.learn(await self._calls.ask_capabilities())
            messages = await remote_draft(self._thread, self._calls)
        except RemoteGeneratorFailed as failed:
            raise DraftFailed(str(failed)) from None
        except ActivityError as error:
            raise self._meaning_of(error) from None
        index = [self._append(message) for message in messages][-1]
        self._thread.drafting = None
        return index

    async def _call_generator(self, exchange: Exchange) -> GeneratorReply:
        exchange.exhausted = exchange.exhausted or exchange.steps >= self._thread.generator.turns
        run = self._thread.run
        step = Step(role="generator", run=run.ordinal if run else 0, iteration=run.iteration if run else 0, step=exchange.steps)

        def call() -> GenerateCall:
            thread, admit = self._calls.thread_reference(), self._calls.unknown_judge
            return GenerateCall(thread=thread, step=step, admit=admit, last=exchange.exhausted)

        number = f"{step.iteration + 1}.{step.step + 1}" if step.step else f"{step.iteration + 1}"
        try:
            return await self._calls.make_paid("generate", call, exchange, self._spend, f"generate #{number}", GeneratorReply)
        except ActivityError as error:
            raise self._meaning_of(error) from None

    def _meaning_of(self, error: ActivityError) -> Exception:
        """Return what a failed call means: a refused first call fails the thread, all else stops the run."""
        if kind_of(error) == "InvalidRequest" and self._calls.capabilities is None:
            return ApplicationError(getattr(error.cause, "message", ""), type="InvalidRequest", non_retryable=True)
        return DraftFailed(describe_error(error))

    def _append(self, message: Message) -> int:
        """Add a message if the thread can hold it."""
        size, limit = self._thread.bytes() + message.size(), self._thread.limit
        if size > limit:
            raise DraftFailed(f"ThreadTooLarge: the thread would hold {size} bytes, {limit} at most; start a new thread")
        return self._thread.append(message)

    def _spend(self, usage: Usage) -> None:
        self._thread.spend(usage)
