"""One generator turn: a draft, or tool calls on the way to it."""

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.capabilities import WorkerCapabilities, WorkerServices
from activities.model_call import heartbeats, paid_call
from activities.providers.base import ModelRequest, Step
from activities.state_cache import GradingSettings, ThreadRef
from gradeloop.contract.base import Recorded, Strict
from gradeloop.contract.messages import MESSAGE_BYTES, Message, Usage
from gradeloop.grading.prompts import build_generator_system, last_draft_message


class GenerateCall(Strict):
    """What a generator turn needs."""

    thread: ThreadRef
    step: Step
    admit: bool = False
    """True on a thread's first call: what only the worker can know is checked before anybody is called."""
    last: bool = False
    """True where no further tool calls are possible."""
    raised: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a reply was cut before: it gets a larger completion."""


class GeneratorTurn(Recorded):
    """What came back."""

    message: Message
    usage: Usage
    offer: WorkerCapabilities


class GeneratorActivities:
    """The activity `generate`."""

    def __init__(self, desk: WorkerServices) -> None:
        self._desk = desk

    @activity.defn(name="generate")
    async def generate(self, call: GenerateCall) -> GeneratorTurn:
        """Make one model call.

        Raises:
            ApplicationError: Its type is the kind of failure; `InvalidRequest` where the worker refuses the thread.
        """
        async with heartbeats() as pulse:
            brief = await self._desk.threads.brief(call.thread.brief)
            if call.admit:
                self._desk.refuse_unservable(brief)
            messages = await self._desk.threads.messages(call.thread.messages)
            request = self._request(call, brief, messages)
            reply = await paid_call(self._desk, request, pulse)
        message = sized(reply.message, request.spec.id)
        self._desk.threads.put(call.thread.messages, message)
        return GeneratorTurn(message=message, usage=reply.usage, offer=self._desk.offer_for(brief))

    def _request(self, call: GenerateCall, brief: GradingSettings, messages: list[Message]) -> ModelRequest:
        generator = brief.generator
        if generator.model is None:
            raise LookupError("the thread's generator is no model")
        said = (*messages, last_draft_message()) if call.last else tuple(messages)
        goes_on = brief.rubric is not None or bool(generator.tools)
        return ModelRequest(
            spec=generator.model,
            step=call.step,
            messages=said,
            breakpoints=(len(messages) - 1,) if goes_on else (),
            raised=call.raised,
            system=build_generator_system(generator.system_prompt, brief.rubric if generator.show_rubric else None),
            tools=self._desk.toolbox.specs(generator.tools),
            tools_allowed=not call.last,
        )


def sized(message: Message, model: str) -> Message:
    """Return the message if it can be recorded.

    Raises:
        ApplicationError: It has more than 1 MiB: a larger payload would wedge the workflow.
    """
    if message.size() > MESSAGE_BYTES:
        text = f"{model} answered with {message.size()} bytes, {MESSAGE_BYTES} at most"
        raise ApplicationError(text, type="ThreadTooLarge", non_retryable=True)
    return message
