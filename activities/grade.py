"""The activity `grade`: one question to a grader, one paid call, one answer read strictly."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.calls.attempts import AttemptState, PaidCall, PaidReply, UnansweredAttempt
from activities.capabilities import WorkerCapabilities, WorkerServices, model_notes
from activities.state_cache import GradingSettings, LogRef, ThreadRef
from activities.tools.registry import READ_TRANSCRIPT, RESERVED
from gradeloop.contract.base import OmitEmpty
from gradeloop.contract.evaluation import CheckOutcome, Malformed, Verdict
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step, ToolSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Grader
from gradeloop.errors import InvalidRequest
from gradeloop.grading.answer_form import AnswerForm, asked_first, completion_tokens, pass_score_schema, verdict_schema
from gradeloop.grading.prompts import TRANSCRIPT_BUDGET, JudgedDraft, build_grader_prompt, is_turn_limit, last_turn_message, sent_sha256
from gradeloop.grading.quotes import verify_quotes
from gradeloop.grading.scoring import CallGroup, call_groups
from gradeloop.grading.verdicts import earlier_answers, parse_verdict
from gradeloop.settings.answer_forms import form_of, may_reason
from gradeloop.settings.catalog import capability_of


class GradeCall(PaidCall):
    """The argument of one turn of a grader."""

    thread: ThreadRef
    scratch: LogRef
    """The grader's own conversation of this pass: its tool calls, their results, and the requests to repair an answer."""
    step: Step
    admit: OmitEmpty[bool] = False
    """True on a thread's first call: what only the worker can know is checked before anybody is called."""
    nonce: str
    """The run's random code, which marks the fence around what is judged."""
    request: int
    """Index of the user's current message."""
    draft: int
    """Index of the message to be judged."""
    asked: tuple[str, ...]
    """Ids of the criteria to judge."""
    pending: OmitEmpty[tuple[str, ...]] = ()
    """The criteria that this turn must answer, where it asks only for some; by default all, or as many as one schema holds."""
    form: OmitEmpty[AnswerForm | None] = None
    """The form in which the judge has answered before; None where that is to be chosen."""
    checks: OmitEmpty[dict[str, CheckOutcome]] = Field(default_factory=dict)
    last: OmitEmpty[bool] = False
    """True where no further tool calls are possible."""
    forced: OmitEmpty[bool] = False
    """True where the answer that came without a schema was none: this one is asked for only by the schema, without tools."""
    whole: OmitEmpty[bool] = False
    """True where a finished run is judged: what comes after the draft is shown too."""
    repeat: OmitEmpty[int] = 0
    """Number of the judgement of the same finished run, from 0; the votes of each have seeds of their own."""
    taken: OmitEmpty[tuple[str, ...]] = ()
    """Ids of the models that vote on the same criteria, to which this call does not fall back."""

    def shown(self, messages: list[Message]) -> list[Message]:
        """Return those of the thread's messages that are judged."""
        return messages if self.whole else messages[: self.draft + 1]


class GraderReply(PaidReply):
    """A grader's reply: tool calls in `message`, or an answer and how it reads."""

    verdict: OmitEmpty[Verdict | None] = None
    malformed: OmitEmpty[Malformed | None] = None
    usage: Usage
    fallback: OmitEmpty[ModelSpec | None] = None
    """The model that answered, where it is a fallback of the one that was asked first."""
    tools: OmitEmpty[tuple[str, ...]] = ()
    """The tools that the grader was offered."""
    form: OmitEmpty[AnswerForm | None] = None
    """The form in which the model was asked."""
    loose: OmitEmpty[bool] = False
    """True where the model was given tools and no schema, since its API takes one of them at a time."""
    offer: WorkerCapabilities
    added: OmitEmpty[tuple[Message, ...]] = ()
    """Messages that were sent behind the conversation, and stand before the answer from now on."""
    prompt_sha256: OmitEmpty[str | None] = None
    """The sha256 of what was sent before the grader's own conversation, its random code masked; None unless a finished run is judged."""
    notes: OmitEmpty[tuple[str, ...]] = ()
    """Notes of the evaluation on the model that was called."""


class GraderActivities:
    """The activity `grade`."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services

    @activity.defn(name="grade")
    async def grade(self, call: GradeCall) -> GraderReply | UnansweredAttempt:
        """Make one model call and read its answer strictly. An ApplicationError's type is the kind of failure."""
        return await self._services.calls.answer(call, self._reply)

    async def _reply(self, call: GradeCall, state: AttemptState) -> GraderReply:
        settings = await self._services.threads.settings(call.thread.brief)
        if call.admit:
            self._services.refuse_unservable(settings)
        state.limits = self._services.calls.limits(settings.outage_timeout)
        messages = call.shown(await self._services.threads.messages(call.thread.messages))
        scratch = await self._services.threads.messages(call.scratch)
        # The model is chosen before the prompt is built. A fallback may need its answer in another form, and may not
        # take tools beside a schema.
        choice = state.choose(self._judge(call, settings), call.taken)
        await self._services.calls.understand(choice.model, state)
        added = (last_turn_message(),) if call.last and not is_turn_limit(scratch) else ()
        question = self._question(call, settings, messages, [*scratch, *added], choice.model)
        request, group, form = grader_request(question), question.group, question.form
        reply = await self._services.calls.send(request, state, choice)
        message = reply.message
        self._services.threads.append(call.scratch, *added, message)
        paid = GraderReply(
            message=message,
            usage=reply.usage,
            fallback=choice.fallback,
            tools=tuple(tool.name for tool in request.tools),
            form=form,
            loose=form.by == "schema" and request.schema is None,
            offer=self._services.capabilities_for(settings),
            added=added,
            notes=model_notes(request.spec),
            prompt_sha256=sent_sha256(request.system, request.messages, call.nonce, request.tag) if call.whole else None,
        )
        # At the last turn a reply is read as an answer even if it calls tools. Nobody runs these any more, and the
        # conversation has to end.
        if message.tool_calls and not call.last:
            return paid
        reading = parse_verdict(message.content, group, question.due, earlier=earlier_answers(scratch), tag=request.tag)
        reading = verify_quotes(reading, messages) if group.quoted else reading
        return paid.model_copy(update={"verdict" if isinstance(reading, Verdict) else "malformed": reading})

    def _judge(self, call: GradeCall, settings: GradingSettings) -> ModelSpec:
        """Return the model that is to answer, with its fallbacks."""
        judge = call_groups(_rubric(settings))[call.step.group].judges[call.step.sample]
        return judge if isinstance(judge, ModelSpec) else self._services.grader_of(settings)

    def _question(
        self, call: GradeCall, settings: GradingSettings, messages: list[Message], scratch: list[Message], asked: ModelSpec
    ) -> "GraderQuestion":
        rubric = _rubric(settings)
        group, grader = call_groups(rubric)[call.step.group], settings.grader or Grader()
        judged = JudgedDraft(messages, call.request, call.draft, call.checks, call.nonce)
        form = form_of(asked, grader, call.form)
        # Some APIs take tools or a schema, and not both. Such a model first has its tools, and its answer is
        # read without a schema's help (`loose`). At its last turn, or after an answer that was out of form, it
        # is asked with the schema and without tools.
        takes_both = capability_of(asked).schema_with_tools
        return GraderQuestion(
            rubric=rubric,
            group=group,
            grader=grader,
            model=seeded(asked, call.step.sample + call.repeat * len(group.judges)),
            judged=judged,
            scratch=scratch,
            step=call.step,
            form=form,
            pending=call.pending,
            tools=self._tools(grader, group, judged, form) if takes_both or not (call.last or call.forced) else (),
            tag=answer_tag(call.nonce, call.scratch.key) if form.by == "tags" else None,
            last=call.last,
            raised=call.raised,
        )

    def _tools(self, grader: Grader, group: CallGroup, judged: JudgedDraft, form: AnswerForm) -> tuple[ToolSpec, ...]:
        """Return the grader's tools, and the one that shows records whole, where they are cut."""
        is_cut = group.prompt is None and judged.shown.exceed(form.budget or TRANSCRIPT_BUDGET) and RESERVED not in grader.tools
        return (*self._services.tools.specs(grader.tools), *((READ_TRANSCRIPT,) if is_cut else ()))


def _rubric(settings: GradingSettings) -> Rubric:
    if settings.rubric is None:
        raise LookupError("the thread's settings name no rubric")
    return settings.rubric


@dataclass(frozen=True)
class GraderQuestion:
    """A question to a grader."""

    rubric: Rubric
    group: CallGroup
    grader: Grader
    """The grader whose instructions count."""
    model: ModelSpec
    judged: JudgedDraft
    scratch: Sequence[Message]
    """The conversation after the prompt: tool calls, their results, and the requests to repair an answer."""
    step: Step
    form: AnswerForm
    pending: tuple[str, ...] = ()
    """The only criteria that are asked for; by default all, or as many as one schema holds."""
    tools: tuple[ToolSpec, ...] = ()
    tag: str | None = None
    """The name of the tags around the answer, for a model whose API keeps no schema."""
    last: bool = False
    raised: bool = False
    transformed: bool = False
    """Whether the draft is what the criterion's own transform made of it."""

    @property
    def due(self) -> tuple[str, ...]:
        """The ids of the criteria that the next answer is about."""
        return self.pending or asked_first(self.group, self.form)


def grader_request(question: GraderQuestion) -> ModelRequest:
    """Return the call that asks a question; raise ApplicationError of type `config` where the author's prompt names an unknown value."""
    model, group, tools = question.model, question.group, question.tools
    if group.criteria[0].transform is not None and not question.transformed:
        text = f"the transform of {group.criteria[0].id} runs only in a batch without a loop and tools; leave it out"
        raise ApplicationError(text, type="config", non_retryable=True)
    if group.references:
        draft = question.judged.messages[question.judged.draft].content
        return ModelRequest(spec=model, step=question.step, messages=(), embedded=(draft, *group.references))
    try:
        prompt = build_grader_prompt(
            question.rubric, group, question.judged, instructions=question.grader.system_prompt, form=question.form, tag=question.tag
        )
    except InvalidRequest as error:
        raise ApplicationError(str(error), type="config", non_retryable=True) from None
    messages = (*prompt.messages, *question.scratch)
    shared = () if prompt.shared is None else (prompt.shared,)
    by_schema = question.tag is None and (capability_of(model).schema_with_tools or not tools)
    return ModelRequest(
        spec=model,
        step=question.step,
        messages=messages,
        system=prompt.system,
        images=tuple(one for message in question.judged.messages if not message.hidden for one in message.attached),
        tools=tools,
        schema=_schema(question) if by_schema else None,
        tools_allowed=not question.last,
        breakpoints=(*shared, *((len(messages) - 1,) if tools else ())),
        tag=question.tag,
        cap=None if may_reason(model) else completion_tokens(question.form, len(question.due)),
        raised=question.raised,
    )


def _schema(question: GraderQuestion) -> dict[str, Any]:
    """Return the schema of the answer; a repair has that of the answer which it repairs, unless only rows are asked for."""
    if question.group.pass_score:
        return pass_score_schema(question.group.criteria[0].categories)
    return verdict_schema(question.group, question.due, question.form)


def seeded(model: ModelSpec, sample: int) -> ModelSpec:
    """Return the model for one of several votes: with a seed of its own where a seed is set, or all votes would be one."""
    seed = model.config.seed
    if seed is None or not sample:
        return model
    return model.model_copy(update={"config": model.config.model_copy(update={"seed": (seed + sample) % 2**31})})


def answer_tag(nonce: str, conversation: str) -> str:
    """Return the name of the tags: the same in one conversation, known to nobody who wrote what is judged."""
    return f"verdict-{hashlib.sha256(f'{nonce}/{conversation}'.encode()).hexdigest()[:16]}"
