"""One turn of a schema judge: an output that keeps its schema, or what is wrong with the answer."""

import asyncio

from pydantic import Field, JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.capabilities import WorkerServices
from activities.errors import failure
from activities.generate import sized
from activities.grade import answer_form, seeded
from activities.model_call import heartbeats, paid_call
from activities.providers.base import ModelRequest, Step
from activities.state_cache import LogRef, RunLoader, Subject, SubjectRef
from gradeloop.contract.base import Recorded, Strict
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.grading.prompts import sent_sha256
from gradeloop.judges.answers import Citation, ValidAnswer, parse_answer
from gradeloop.judges.prompt import build_judge_prompt
from gradeloop.judges.schema import for_provider

LARGE_BYTES = 64 * 1024
"""Of a subject, from which on its prompt is put together in a thread: the worker's loop has heartbeats to send."""


class JudgeCall(Strict):
    """What a judge's turn needs."""

    subject: SubjectRef
    scratch: LogRef
    """What was said in this conversation after the prompt: answers, and what was asked to be mended or weighed."""
    step: Step
    nonce: str
    model: ModelSpec
    again: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where the same prompt is sent more than once, so that a provider may cache it."""
    raised: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a reply was cut before: it gets a larger completion."""


class JudgeTurn(Recorded):
    """What came back."""

    message: Message
    output: dict[str, JsonValue] | None = None
    problems: tuple[str, ...] = ()
    citations: tuple[Citation, ...] = ()
    usage: Usage
    prompt_sha256: str


class JudgeActivities:
    """The activities `judge` and `default_judge`."""

    def __init__(self, desk: WorkerServices, runs: RunLoader) -> None:
        self._desk = desk
        self._runs = runs

    @activity.defn(name="judge")
    async def judge(self, call: JudgeCall) -> JudgeTurn:
        """Make one model call and read its answer strictly.

        Raises:
            ApplicationError: Its type is the kind of failure.
        """
        async with heartbeats() as pulse:
            subject = await self._runs.subject(call.subject)
            scratch = await self._desk.threads.messages(call.scratch)
            large = call.subject.bytes > LARGE_BYTES
            request, sha256 = await asyncio.to_thread(_request, call, subject, scratch) if large else _request(call, subject, scratch)
            reply = await paid_call(self._desk, request, pulse)
        message = sized(reply.message, request.spec.id)
        self._desk.threads.put(call.scratch, message)
        answer = await asyncio.to_thread(parse_answer, message.content, subject.judge, subject.run)
        told = JudgeTurn(message=message, usage=reply.usage, prompt_sha256=sha256)
        if isinstance(answer, ValidAnswer):
            return told.model_copy(update={"output": answer.output, "citations": answer.citations})
        return told.model_copy(update={"problems": answer.problems})

    @activity.defn(name="default_judge")
    async def default_judge(self, _rubric_id: str) -> ModelSpec:
        """Return the model that judges where a judge names none."""
        try:
            return self._desk.providers.default_grader()
        except Exception as error:  # noqa: BLE001 - the one classifier decides
            raise failure(error, model="") from None


def _request(call: JudgeCall, subject: Subject, scratch: list[Message]) -> tuple[ModelRequest, str]:
    judge, model = subject.judge, seeded(call.model, call.step.sample)
    if judge.constrained and answer_form(model) != "schema":
        words = (
            f"{model.id!r} keeps no JSON Schema, as output_parsing_mode CONSTRAINED_DECODING needs; use XML_KEY, or another model "
            "(config.structured_output: true says that its server does)"
        )
        raise ApplicationError(words, type="config", non_retryable=True)
    given = build_judge_prompt(judge, subject.run, call.nonce)
    request = ModelRequest(
        spec=model,
        step=call.step,
        messages=(*given.messages, *scratch),
        system=given.system,
        schema=for_provider(judge.output_schema) if judge.constrained else None,
        schema_name="judgement",
        breakpoints=(len(given.messages) - 1,) if call.again else (),
        raised=call.raised,
    )
    return request, sent_sha256(given.system, given.messages, call.nonce)
