"""One grader turn: a verdict, or tool calls on the way to it."""

from pydantic import Field
from temporalio import activity

from activities.admit import Desk, Offer
from activities.failures import failure
from activities.generate import sized
from activities.heartbeat import heartbeats
from activities.providers.model import ModelRequest, Step, ToolSpec
from activities.thread_view import Brief, LogRef, ThreadRef
from gradeloop.evaluation import CheckOutcome
from gradeloop.prompts import grader_question, grader_system, is_elided, last_turn
from gradeloop.request import Grader
from gradeloop.rubric import Rubric
from gradeloop.strict import Recorded, Strict
from gradeloop.transcript import Message
from gradeloop.usage import Usage
from gradeloop.verdict import Malformed, Verdict, read, verdict_schema

READ_TRANSCRIPT = ToolSpec(
    name="read_transcript",
    description="Show a record of the judged conversation whole, from an offset on, in stretches.",
    parameters={
        "type": "object",
        "properties": {
            "record": {"type": "integer", "description": "The record's number."},
            "offset": {"type": "integer", "description": "The character to start at; 0, or next_offset of the stretch before."},
        },
        "required": ["record", "offset"],
        "additionalProperties": False,
    },
)


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


class GraderTurn(Recorded):
    """What came back: tool calls in `message`, or an answer and how it reads."""

    message: Message
    verdict: Verdict | None = None
    malformed: Malformed | None = None
    usage: Usage
    tools: tuple[str, ...] = ()
    """The tools that the grader was offered."""
    offer: Offer


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
        async with heartbeats():
            request, rubric = await self._request(call)
            try:
                reply = await self._desk.providers.complete(request)
            except Exception as error:  # noqa: BLE001 - the one classifier decides
                raise failure(error, model=request.spec.id, attempt=activity.info().attempt) from None
        message = sized(reply.message, request.spec.id)
        self._desk.threads.put(call.scratch, message)
        told = GraderTurn(message=message, usage=reply.usage, tools=tuple(tool.name for tool in request.tools), offer=self._desk.offer)
        if message.tool_calls and not call.last:
            return told
        reading = read(message.content, rubric, call.pending or call.asked)
        if isinstance(reading, Verdict):
            return told.model_copy(update={"verdict": reading})
        return told.model_copy(update={"malformed": reading})

    async def _request(self, call: GradeCall) -> tuple[ModelRequest, Rubric]:
        brief = await self._desk.threads.brief(call.thread.brief)
        if call.admit:
            self._desk.refuse_unservable(brief)
        grader, rubric = _judge_of(brief)
        messages = await self._desk.threads.messages(call.thread.messages)
        scratch = await self._desk.threads.messages(call.scratch)
        shown = messages[: call.draft + 1]
        question = grader_question(shown, request=call.request, draft=call.draft, asked=call.asked, checks=call.checks, nonce=call.nonce)
        request = ModelRequest(
            spec=grader.model,
            step=call.step,
            messages=(*question, *scratch, *((last_turn(),) if call.last else ())),
            system=grader_system(rubric, grader.system_prompt),
            tools=(*self._desk.toolbox.specs(grader.tools), *((READ_TRANSCRIPT,) if is_elided(shown) else ())),
            schema=verdict_schema(),
            tools_allowed=not call.last,
        )
        return request, rubric


def _judge_of(brief: Brief) -> tuple[Grader, Rubric]:
    if brief.grader is None or brief.rubric is None:
        raise LookupError("the thread's brief names no grader or no rubric")
    return brief.grader, brief.rubric
