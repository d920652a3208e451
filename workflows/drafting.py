"""The generator's part of an iteration: turns and tool calls until there is a draft."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows.calls import Calls, kind_of, told
from workflows.foreign import ForeignFailed, foreign_draft
from workflows.options import TURNS
from workflows.run_state import Exchange
from workflows.thread_logs import MESSAGES
from workflows.thread_state import Thread
from workflows.tool_calls import ToolCalls

with workflow.unsafe.imports_passed_through():
    from activities.generate import GenerateCall, GeneratorTurn
    from activities.providers.model import Step
    from gradeloop.tool_elsewhere import names_of
    from gradeloop.transcript import Message, unanswered
    from gradeloop.usage import Usage


class DraftFailed(Exception):
    """No draft can be had: the run stops where it is, and can be resumed."""


class Drafting:
    """Draws drafts from the generator."""

    def __init__(self, thread: Thread, calls: Calls) -> None:
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
                for message in await self._tools.answer(exchange, wanted, names_of(self._thread.generator.tools), step):
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
            messages = await foreign_draft(self._thread, self._calls)
        except ForeignFailed as failed:
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
        return DraftFailed(told(error))
