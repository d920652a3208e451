"""One grader turn: a verdict, or tool calls on the way to it."""

from pydantic import Field
from temporalio import activity

from activities.admit import Desk, Offer
from activities.generate import sized
from activities.grader_request import Asking, answer_form, answer_tag, grader_request, seeded
from activities.heartbeat import heartbeats
from activities.paid_call import paid
from activities.providers.capabilities import capability
from activities.providers.model import ModelRequest, Step, ToolSpec
from activities.thread_view import Brief, LogRef, ThreadRef
from activities.tools.toolbox import READ_TRANSCRIPT, RESERVED
from gradeloop.answer import read
from gradeloop.call_groups import CallGroup, call_groups
from gradeloop.evaluation import CheckOutcome
from gradeloop.grader_prompt import Judged
from gradeloop.modelspec import ModelSpec
from gradeloop.prompts import sent_sha256
from gradeloop.quotes import verified
from gradeloop.records import is_elided
from gradeloop.request import Grader
from gradeloop.strict import Recorded, Strict
from gradeloop.transcript import Message
from gradeloop.usage import Usage
from gradeloop.verdict import Malformed, Verdict


class GradeCall(Strict):
    """What a grader turn needs."""

    thread: ThreadRef
    scratch: LogRef
    """The grader's own conversation of this pass: its tool calls, their results, what it was asked to mend."""
    step: Step
    admit: bool = False
    """True on a thread's first call: what only the worker can know is checked before anybody is called."""
    nonce: str
    """The run's random code, which marks the fence around what is judged."""
    request: int
    """Index of the user's current message."""
    draft: int
    """Index of the message to be judged."""
    asked: tuple[str, ...]
    """Ids of the criteria to judge."""
    pending: tuple[str, ...] = ()
    """Of these, the ones that this turn must answer, where it mends a verdict that left them out; all by default."""
    checks: dict[str, CheckOutcome] = Field(default_factory=dict)
    last: bool = False
    """True where no further tool calls are possible."""
    forced: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where the answer that came without a schema was none: this one is asked for by the schema alone, without tools."""
    raised: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a reply was cut before: it gets a larger completion."""
    whole: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a finished run is judged: what comes after the draft is shown too."""

    def shown(self, messages: list[Message]) -> list[Message]:
        """Return those of the thread's messages that are judged."""
        return messages if self.whole else messages[: self.draft + 1]


class GraderTurn(Recorded):
    """What came back: tool calls in `message`, or an answer and how it reads."""

    message: Message
    verdict: Verdict | None = None
    malformed: Malformed | None = None
    usage: Usage
    tools: tuple[str, ...] = ()
    """The tools that the grader was offered."""
    loose: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where the model was given tools and no schema, since its API takes one of them at a time."""
    offer: Offer
    prompt_sha256: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of what was sent but the conversation after it, its random code masked; told of a finished run."""


class Grade:
    """The activity `grade`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @activity.defn(name="grade")
    async def grade(self, call: GradeCall) -> GraderTurn:
        """Make one model call and read its answer strictly.

        Raises:
            ApplicationError: Its type is the kind of failure.
        """
        async with heartbeats() as pulse:
            brief = await self._desk.threads.brief(call.thread.brief)
            if call.admit:
                self._desk.refuse_unservable(brief)
            request, group = await self._request(call, brief)
            reply = await paid(self._desk, request, pulse)
        message = sized(reply.message, request.spec.id)
        self._desk.threads.put(call.scratch, message)
        tools, form = tuple(tool.name for tool in request.tools), answer_form(request.spec)
        told = GraderTurn(
            message=message,
            usage=reply.usage,
            tools=tools,
            loose=form == "schema" and request.schema is None,
            offer=self._desk.offer_for(brief),
            prompt_sha256=sent_sha256(request.system, request.messages, call.nonce, request.tag) if call.whole else None,
        )
        if message.tool_calls and not call.last:
            return told
        reading = read(message.content, group, call.pending or None, tag=request.tag)
        if isinstance(reading, Verdict):
            messages = await self._desk.threads.messages(call.thread.messages)
            reading = verified(reading, call.shown(messages)) if group.quoted else reading
            return told.model_copy(update={"verdict": reading})
        return told.model_copy(update={"malformed": reading})

    async def _request(self, call: GradeCall, brief: Brief) -> tuple[ModelRequest, CallGroup]:
        rubric = brief.rubric
        if rubric is None:
            raise LookupError("the thread's brief names no rubric")
        group = call_groups(rubric)[call.step.group]
        judge, grader = group.judges[call.step.sample], brief.grader or Grader()
        model = seeded(judge if isinstance(judge, ModelSpec) else self._desk.grader_of(brief), call.step.sample)
        messages = await self._desk.threads.messages(call.thread.messages)
        scratch = await self._desk.threads.messages(call.scratch)
        judged = Judged(call.shown(messages), call.request, call.draft, call.checks, call.nonce)
        together = capability(model).schema_with_tools
        asking = Asking(
            rubric=rubric,
            group=group,
            grader=grader,
            model=model,
            judged=judged,
            scratch=scratch,
            step=call.step,
            tools=self._tools(grader, group, judged) if together or not (call.last or call.forced) else (),
            tag=_tag(call) if answer_form(model) == "tagged" else None,
            last=call.last,
            raised=call.raised,
        )
        return grader_request(asking), group

    def _tools(self, grader: Grader, group: CallGroup, judged: Judged) -> tuple[ToolSpec, ...]:
        """Return the grader's tools, and the one that shows records whole, where they are cut."""
        cut = group.prompt is None and is_elided(judged.messages) and RESERVED not in grader.tools
        return (*self._desk.toolbox.specs(grader.tools), *((READ_TRANSCRIPT,) if cut else ()))


def _tag(call: GradeCall) -> str:
    return answer_tag(call.nonce, call.scratch.key)
