"""The activity `judge`: one turn of a schema judge, an output that keeps its schema or what is wrong with the answer."""

import asyncio
import hashlib
from collections.abc import Sequence
from weakref import WeakValueDictionary

from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.calls.attempts import AttemptState, PaidCall, PaidReply, UnansweredAttempt
from activities.capabilities import WorkerServices, model_notes
from activities.errors import failure
from activities.grade import seeded
from activities.providers import Providers
from activities.state_cache import ByteBoundedCache, LogRef, query_workflow
from gradeloop.contract.base import OmitEmpty, Strict
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelRequest, Step
from gradeloop.contract.transcript import AgentRun, Citation
from gradeloop.grading.prompts import sent_sha256
from gradeloop.judges.answers import InvalidAnswer, ValidAnswer, parse_answer
from gradeloop.judges.contract import SchemaJudge
from gradeloop.judges.prompt import build_judge_prompt
from gradeloop.judges.schema import for_provider
from gradeloop.settings.catalog import capability_of

LARGE_BYTES = 64 * 1024
"""The size of a subject, or of an answer, above which it is read in a thread: the worker's loop has heartbeats to send."""

RUN_CACHE_BYTES = 256 * 1024 * 1024
"""Judged runs kept in a worker process: some 170 of the largest size."""


class Subject(Strict):
    """A finished run that is judged, and the judge."""

    judge: SchemaJudge
    run: AgentRun


class SubjectRef(Strict):
    """A subject by its sha256 and size, and in full where a call carries it."""

    sha256: str
    bytes: int
    subject: OmitEmpty[Subject | None] = None


class SubjectPage(Strict):
    """A stretch of a subject's JSON."""

    text: str
    next: int | None


class JudgeCall(PaidCall):
    """The argument of one turn of a judge."""

    subject: SubjectRef
    scratch: LogRef
    """The conversation after the prompt: answers, and the requests to repair or reconsider them."""
    step: Step
    nonce: str
    model: ModelSpec
    again: OmitEmpty[bool] = False
    """True where the same prompt is sent more than once, so that a provider may cache it."""
    repeat: OmitEmpty[int] = 0
    """Number of this judgement of the run, from 0; each number has its own seeds."""


class JudgeReply(PaidReply):
    """A judge's reply, and how it reads: an output, or the problems of one that breaks its schema."""

    output: dict[str, JsonValue] | None = None
    problems: tuple[str, ...] = ()
    citations: tuple[Citation, ...] = ()
    usage: Usage
    prompt_sha256: str
    fallback: OmitEmpty[ModelSpec | None] = None
    """The model that answered, where it is a fallback of the one that was asked first."""
    notes: OmitEmpty[tuple[str, ...]] = ()
    """Notes of the evaluation on the model that was called."""


class RunLoader:
    """Judged runs with their judges, by reference."""

    def __init__(self) -> None:
        self._subjects: ByteBoundedCache[str, Subject] = ByteBoundedCache(RUN_CACHE_BYTES)
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # The many calls about one run begin together. They wait at one lock, so the first fetches the run and the
    # others find it; without the lock each would ask the workflow for megabytes. A lock lives as long as a
    # call waits at it.
    async def subject(self, reference: SubjectRef) -> Subject:
        """Return what a call refers to, from the call itself, from memory, or from the workflow."""
        if reference.subject is not None:
            return self._keep(reference, reference.subject)
        async with self._fetching.setdefault(reference.sha256, asyncio.Lock()):
            return self._subjects.get(reference.sha256) or self._keep(reference, await _fetch_subject(reference))

    def _keep(self, reference: SubjectRef, subject: Subject) -> Subject:
        self._subjects.put(reference.sha256, subject, reference.bytes)
        return subject


async def _fetch_subject(reference: SubjectRef) -> Subject:
    parts: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = SubjectPage.model_validate(await query_workflow("subject", [offset]))
        parts.append(page.text)
        offset = page.next
    text = "".join(parts)
    # The pages come by several queries, possibly from workers of different versions. Only the sum shows that
    # together they are the run that the call is about.
    if hashlib.sha256(text.encode()).hexdigest() != reference.sha256:
        raise LookupError(f"what the workflow judges does not match its reference ({reference.bytes} bytes)")
    return Subject.model_validate_json(text)


class JudgeActivities:
    """The activities `judge` and `default_judge`."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services
        self._runs = RunLoader()

    @activity.defn(name="judge")
    async def judge(self, call: JudgeCall) -> JudgeReply | UnansweredAttempt:
        """Make one model call and read its answer strictly. An ApplicationError's type is the kind of failure."""
        return await self._services.calls.answer(call, self._reply)

    async def _reply(self, call: JudgeCall, state: AttemptState) -> JudgeReply:
        subject = await self._runs.subject(call.subject)
        scratch = await self._services.threads.messages(call.scratch)
        choice = state.choose(call.model)
        await self._services.calls.understand(choice.model, state)
        if choice.fallback is None:
            self._refuse_unservable(call.model, subject)
        refuse_unconstrained(subject.judge, call.model, self._services.providers)
        is_large = call.subject.bytes > LARGE_BYTES
        asked = (subject.judge, subject.run, call.nonce, scratch, choice.model, call.step)
        request, sha256 = await judge_request(*asked, repeat=call.repeat, again=call.again, raised=call.raised, is_large=is_large)
        reply = await self._services.calls.send(request, state, choice)
        self._services.threads.append(call.scratch, reply.message)
        answer = await read_answer(reply.message.content, subject.judge, subject.run, is_large=is_large)
        paid = JudgeReply(
            message=reply.message,
            usage=reply.usage,
            prompt_sha256=sha256,
            fallback=choice.fallback,
            notes=model_notes(request.spec),
        )
        if isinstance(answer, ValidAnswer):
            return paid.model_copy(update={"output": answer.output, "citations": answer.citations})
        return paid.model_copy(update={"problems": answer.problems})

    def _refuse_unservable(self, model: ModelSpec, subject: Subject) -> None:
        """Refuse a judge of a provider that is not known, or with a fallback that cannot be called, or cannot answer as this judge does.

        Raises:
            ApplicationError: Of type `InvalidRequest` or `config`.
        """
        self._services.providers.refuse_unknown(subject.judge.models)
        try:
            if model.fallback:
                self._services.refuse_uncallable(model)
        except ModelFault as fault:
            raise ApplicationError(str(fault), type=fault.kind, non_retryable=True) from None

    @activity.defn(name="default_judge")
    async def default_judge(self, _rubric_id: str) -> ModelSpec:
        """Return the model that judges by default; raise ApplicationError of type `config` where this worker has no key for any."""
        try:
            return self._services.providers.default_grader()
        except Exception as error:  # noqa: BLE001 - the one classifier decides
            raise failure(error, model="") from None


async def read_answer(content: str, judge: SchemaJudge, run: AgentRun, *, is_large: bool) -> ValidAnswer | InvalidAnswer:
    """Parse an answer as `parse_answer` does, in a thread where the run or the answer is large."""
    if is_large or len(content) > LARGE_BYTES:
        return await asyncio.to_thread(parse_answer, content, judge, run)
    return parse_answer(content, judge, run)


def refuse_unconstrained(judge: SchemaJudge, model: ModelSpec, providers: Providers) -> None:
    """Refuse a model that keeps no schema, or has such a fallback, for a judge that needs it.

    A server that is asked what it keeps, and has not said it yet, is called: it may be away, or be a fallback that is never called.

    Raises:
        ApplicationError: Of type `config`.
    """
    kept = {asked.id: capability_of(asked).answer or ("schema" if providers.asks(asked) else "tagged") for asked in model.chain}
    if judge.constrained and (refused := next((name for name, answer in kept.items() if answer != "schema"), None)):
        text = (
            f"{refused!r} keeps no JSON Schema, as output_parsing_mode CONSTRAINED_DECODING needs; use XML_KEY, or another model "
            "(config.structured_output: true says that its server does)"
        )
        raise ApplicationError(text, type="config", non_retryable=True)


async def judge_request(  # noqa: PLR0913 - what is asked, of whom, and which turn it is
    judge: SchemaJudge,
    run: AgentRun,
    nonce: str,
    scratch: Sequence[Message],
    model: ModelSpec,
    step: Step,
    *,
    repeat: int,
    again: bool,
    raised: bool,
    is_large: bool,
) -> tuple[ModelRequest, str]:
    """Return the call of a schema judge, and the sha256 of its prompt.

    `model`: the model that is asked; it gets the seed of the step's sample.
    `again`: whether the same prompt is sent more than once, so that a provider may cache it.
    `is_large`: whether the run is large, so that the prompt is built in a thread.
    """

    def build() -> tuple[ModelRequest, str]:
        prompt = build_judge_prompt(judge, run, nonce)
        request = ModelRequest(
            spec=seeded(model, judge.sample_at(step.sample) + repeat * judge.n_rollouts_per_input),
            step=step,
            messages=(*prompt.messages, *scratch),
            system=prompt.system,
            schema=for_provider(judge.output_schema) if judge.constrained else None,
            schema_name="judgement",
            breakpoints=(len(prompt.messages) - 1,) if again else (),
            raised=raised,
        )
        return request, sent_sha256(request.system, request.messages[: len(prompt.messages)], nonce)

    return await asyncio.to_thread(build) if is_large else build()
