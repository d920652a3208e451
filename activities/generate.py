"""The activity `generate`: one turn of a generator, a draft or tool calls on the way to it."""

from temporalio import activity

from activities.calls.attempts import AttemptState, PaidCall, PaidReply, UnansweredAttempt
from activities.capabilities import WorkerCapabilities, WorkerServices, model_notes
from activities.state_cache import GradingSettings, ThreadRef
from gradeloop.contract.base import OmitEmpty
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step
from gradeloop.contract.thread import Generator
from gradeloop.grading.prompts import build_generator_system, is_turn_limit, last_draft_message


class GenerateCall(PaidCall):
    """The argument of one turn of a generator."""

    thread: ThreadRef
    step: Step
    admit: OmitEmpty[bool] = False
    """True on a thread's first call: what only the worker can know is checked before anybody is called."""
    last: OmitEmpty[bool] = False
    """True where no further tool calls are possible."""


class GeneratorReply(PaidReply):
    """A generator's reply, what it cost, and what the worker offers."""

    usage: Usage
    offer: WorkerCapabilities
    added: OmitEmpty[tuple[Message, ...]] = ()
    """Messages that were sent behind the thread's own, and stand before the reply from now on."""
    notes: OmitEmpty[tuple[str, ...]] = ()
    """Notes of the evaluation on the model that was called."""


class GeneratorActivities:
    """The activity `generate`."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services

    @activity.defn(name="generate")
    async def generate(self, call: GenerateCall) -> GeneratorReply | UnansweredAttempt:
        """Make one model call.

        Raises:
            ApplicationError: Its type is the kind of failure; `InvalidRequest` where the worker refuses the thread.
        """
        return await self._services.calls.answer(call, self._reply)

    async def _reply(self, call: GenerateCall, state: AttemptState) -> GeneratorReply:
        settings = await self._services.threads.settings(call.thread.brief)
        if call.admit:
            self._services.refuse_unservable(settings)
        messages = await self._services.threads.messages(call.thread.messages)
        state.limits = self._services.calls.limits(settings.outage_timeout)
        added = (last_draft_message(),) if call.last and not is_turn_limit(messages) else ()
        choice = state.choose(drafting_model(settings.generator))
        request = self._request(call, settings, [*messages, *added], choice.model)
        reply = await self._services.calls.send(request, state, choice)
        offer, notes = self._services.capabilities_for(settings), model_notes(choice.model)
        self._services.threads.append(call.thread.messages, *added, reply.message)
        return GeneratorReply(message=reply.message, usage=reply.usage, offer=offer, added=added, notes=notes)

    def _request(self, call: GenerateCall, settings: GradingSettings, messages: list[Message], model: ModelSpec) -> ModelRequest:
        generator = settings.generator
        is_continued = settings.rubric is not None or bool(generator.tools)
        return ModelRequest(
            spec=model,
            step=call.step,
            messages=tuple(messages),
            breakpoints=(len(messages) - 1,) if is_continued else (),
            raised=call.raised,
            system=build_generator_system(generator.system_prompt, settings.rubric if generator.show_rubric else None),
            tools=self._services.tools.specs(generator.tools),
            tools_allowed=not call.last,
        )


def drafting_model(generator: Generator) -> ModelSpec:
    """Return the model that drafts.

    Raises:
        LookupError: An activity or a workflow does.
    """
    if generator.model is None:
        raise LookupError("the generator is not a model")
    return generator.model
