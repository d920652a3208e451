"""Threads on the wire: requests, updates, results, and the typed door to the workflow."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar
from urllib.parse import quote

from pydantic import AfterValidator, Field, JsonValue, model_validator
from temporalio import workflow

from gradeloop.contract.base import Items, OmitEmpty, Page, Strict
from gradeloop.contract.evaluation import (
    Evaluation,
    Event,
    ForkedFrom,
    InterruptReason,
    Row,
    RunStatus,
    VerdictResult,
    WaitingFor,
    criterion_rows,
    html_table,
)
from gradeloop.contract.messages import (
    FUNCTIONS,
    MESSAGE_BYTES,
    CallForm,
    DeclaredFunction,
    HiddenMessages,
    Message,
    Messages,
    OutputForm,
    Usage,
    refuse_odd_functions,
)
from gradeloop.contract.model_spec import HTTP_REQUEST, Budget, ModelSpec, OfferedTool, RemoteGrader, ToolLimits, refuse_duplicate_tools
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest, ThreadTooLarge, explained
from gradeloop.text import clip

TASK_QUEUE = "gradeloop"
WORKFLOW = "GradingThread"

BATCH_WORKFLOW = "GradingBatch"
"""The type of a batch's workflow, which whoever lists the batches of a server needs."""

TENANT_ATTRIBUTE = "GradeloopTenant"
"""The keyword attribute with the tenant of a workflow; empty for a thread of none."""

SEARCH_ATTRIBUTES = ("GradeloopStatus", "GradeloopRunId", "GradeloopRubric", TENANT_ATTRIBUTE, "GradeloopForkOf")
"""The keyword attributes that the worker registers; threads write all of them, forks the last one, other workflows only their tenant."""

MAX_ITERATIONS = 20
"""The most iterations of a run."""

STATE_BYTES = 3 * 512 * 1024
"""The largest state of a thread as JSON, messages, evaluations and rubric together: as a checkpoint it must fit into one 2 MiB payload."""

STORED_STATE_BYTES = 32 * 1024 * 1024
"""The largest state where the worker has external storage, which takes payloads of any size."""

OUTAGE_SECONDS = 7200.0
"""Seconds for which a provider that is away is waited for, unless request or worker say otherwise: most outages are shorter."""

OutageTimeout = Annotated[float, Field(gt=0, le=604_800)]
"""Seconds for which a provider that is away is waited for; a week at most."""

RESULT_MESSAGES_BYTES = 128 * 1024
"""The bytes above which a result omits `messages`, as it does in a thread that is nearly full; the query pages them."""

QUEUED = 8
"""The most turns that may wait; the server admits 10 updates at once."""

SystemPrompt = Annotated[str, Field(max_length=65_536)]


class Generator(ToolLimits):
    """The drafter, `Generator(model="openai:gpt-5-mini")`: a model, or an activity or workflow of another worker, in any language."""

    model: ModelSpec | None = None
    activity: OmitEmpty[str | None] = Field(default=None, min_length=1)
    """The type of an activity that takes `{messages, iteration, feedback}` and returns `{messages}` or text."""
    workflow: OmitEmpty[str | None] = Field(default=None, min_length=1)
    """The type of a workflow with the argument and result of `activity`."""
    task_queue: OmitEmpty[str | None] = Field(default=None, min_length=1)
    """The task queue on which the activity or workflow is served."""
    heartbeat_timeout: OmitEmpty[Annotated[float, Field(ge=1, le=3_600)] | None] = None
    """Seconds without a heartbeat after which the activity is tried again; an activity that sends none leaves it out."""
    system_prompt: SystemPrompt | None = None
    tools: Items[OfferedTool] = ()
    """Names of the worker's tools, and definitions of remote tools."""
    show_rubric: bool = False
    """Whether the generator's system prompt contains the rubric; otherwise the generator sees it only in feedback."""
    functions: OmitEmpty[Annotated[tuple[DeclaredFunction, ...], Field(max_length=FUNCTIONS)]] = ()
    """Functions that the draft of a case may call instead of saying something. Nobody runs them: the calls, as JSON, are the draft."""
    function_choice: OmitEmpty[str | None] = None
    """`auto`, `none`, `required`, or the name of the function that must be called; the provider's default where it is absent."""
    shown_as: OmitEmpty[CallForm | None] = None
    """The API whose reply the draft imitates when it calls functions; `chat` by default."""
    output_form: OmitEmpty[OutputForm | None] = None
    """The JSON that the draft of a case is asked to be."""

    @model_validator(mode="after")
    def _names_one(self) -> "Generator":
        if sum(named is not None for named in (self.model, self.activity, self.workflow)) != 1:
            raise ValueError("name who drafts by exactly one of model, activity and workflow")
        if self.model is None and self.task_queue is None:
            raise ValueError("task_queue is missing; name the queue on which the activity or workflow is served")
        if self.model is None and (self.system_prompt or self.tools or self.show_rubric or self.max_tool_calls or self.max_turns):
            raise ValueError("system_prompt, tools and show_rubric are for a model, their limits too; an activity or workflow has its own")
        if self.activity is None and self.heartbeat_timeout is not None:
            raise ValueError("heartbeat_timeout is for an activity, which sends heartbeats; leave it out")
        if self.model is not None and self.task_queue is not None:
            raise ValueError("task_queue is for an activity or workflow; a model is called by our own worker")
        if self.shapes_one_call and (self.model is None or self.tools):
            raise ValueError(
                "functions, output_form and http_request are for a draft that is one call, without tools; leave the others out"
            )
        refuse_odd_functions(self.functions, self.function_choice)
        refuse_duplicate_tools(self.tools)
        return self

    @property
    def shapes_one_call(self) -> bool:
        """Whether the generator has settings of a draft that is one call, and no turn of a conversation."""
        is_address = self.model is not None and self.model.provider == HTTP_REQUEST
        return bool(is_address or self.functions or self.function_choice or self.shown_as or self.output_form)


class Grader(ToolLimits):
    """The judge, `Grader(model="openai:gpt-5-mini")`: a model, an activity of another worker, or a function of the worker's tools."""

    model: ModelSpec | None = None
    """The grader's model; by default the first of the worker's table for which it has a key, the same for a whole grading run."""
    activity: OmitEmpty[str | None] = Field(default=None, min_length=1)
    """The type of an activity that takes `{messages, draft, criteria, iteration, sample}` and returns a verdict."""
    task_queue: OmitEmpty[str | None] = Field(default=None, min_length=1)
    """The task queue on which the activity is served."""
    function: OmitEmpty[str | None] = Field(default=None, min_length=1)
    """The name of a function in the worker's tools, with the argument and result of `activity`."""
    system_prompt: SystemPrompt | None = None
    """Grading instructions that replace gradeloop's; the trust boundary and the form of the answer stay."""
    tools: Items[OfferedTool] = ()
    """Names of the worker's tools, and definitions of remote tools."""
    prompt: OmitEmpty[Literal["full", "short"] | None] = None
    """The length of gradeloop's own text in the prompt; by default short for a model whose context has 8,192 tokens at most."""
    hide: OmitEmpty[Items[HiddenMessages]] = ()
    """Messages that are marked as `hidden` when they join the thread."""

    @model_validator(mode="after")
    def _names_one(self) -> "Grader":
        ours = self.model or self.system_prompt or self.tools or self.prompt or self.max_tool_calls or self.max_turns
        if self.remote is not None and ours:
            raise ValueError("model, system_prompt, tools, their limits and prompt are for a model; an activity or function brings its own")
        refuse_duplicate_tools(self.tools)
        return self

    @property
    def remote(self) -> RemoteGrader | None:
        """The activity or function that judges; None where a model does."""
        named = {"activity": self.activity, "task_queue": self.task_queue, "function": self.function}
        return RemoteGrader.model_validate(named) if any(named.values()) else None


Role = TypeVar("Role", Generator, Grader)


def with_model(role: Role, model: ModelSpec | None, field: str, *, remote: bool) -> Role | None:
    """Return a role with another model, if one is named; raise InvalidRequest, after `field`, where the role has no model."""
    if model is None:
        return None
    if remote:
        raise InvalidRequest(f"{field}: {model.id!r} cannot replace an activity, workflow or function, which this thread has; leave it out")
    if role.model is not None and role.model.provider == model.provider and model == ModelSpec(id=model.id):
        others = tuple(other for other in role.model.fallback if (other.id, other.config) != (model.id, role.model.config))
        kept = {"fallback": others} if others else {"fallback": (), "fallback_after": None, "on_refusal": False}
        model = role.model.model_copy(update={"id": model.id, **kept})
    if model.provider == HTTP_REQUEST:
        raise InvalidRequest(f"{field}: {model.id!r} is for cases of a batch that are drafted once; name a language model")
    return role.model_copy(update={"model": model})


TENANT_BYTES = 64
"""The most bytes of a tenant's name: Temporal takes no longer fairness key, and a longer one would fail every task of its workflow."""


def _refuse_unspeakable(name: str) -> str:
    if len(name.encode()) > TENANT_BYTES:
        raise ValueError(f"a tenant's name has {TENANT_BYTES} bytes in UTF-8 at most; shorten it")
    if not name.isprintable() or name != name.strip():
        raise ValueError("a tenant's name has neither control characters nor white space around it; write it without")
    return name


TenantName = Annotated[str, Field(min_length=1, max_length=TENANT_BYTES), AfterValidator(_refuse_unspeakable)]


def tenant_value(tenant: str | None) -> str:
    """Return a name as its search attribute holds it: percent-encoded, since a server's filter takes no quotes; empty for none."""
    return quote(tenant or "", safe="", errors="replace")


def tenant_named(request: object) -> str | None:
    """Return the tenant that a workflow's argument names, JSON that nobody has validated yet: its own, else its checkpoint's."""
    checkpoint = request.get("checkpoint") if isinstance(request, dict) else None
    for owner in (request, checkpoint.get("thread") if isinstance(checkpoint, dict) else None):
        priority = owner.get("priority") if isinstance(owner, dict) else None
        tenant = priority.get("tenant") if isinstance(priority, dict) else None
        if isinstance(tenant, str) and 0 < len(tenant.encode(errors="replace")) <= TENANT_BYTES:
            return tenant
    return None


class Priority(Strict):
    """Priority of calls if slots or a rate are short, in Temporal's own terms: `Priority(level=1, tenant="acme")`."""

    level: Annotated[int, Field(ge=1, le=5)] = 3
    """The priority level; 1 goes before 5."""
    tenant: TenantName | None = None
    """The tenant: it shares its level's capacity with others where the server has fairness enabled, and its cached verdicts with none."""
    weight: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    """The tenant's weight beside the other tenants'."""


class ThreadRequest(Strict):
    """The one argument of the workflow `GradingThread`: `ThreadRequest(generator=Generator(model="openai:gpt-5-mini"))`."""

    messages: Messages = ()
    """The first turn, which ends with a message of the user; empty where an `invoke` follows at once."""
    rubric: Rubric | None = None
    """The rubric; absent or null keeps the sticky one, and `""` clears it."""
    generator: Generator
    grader: Grader | None = None
    """The judge; the worker's default model if it is absent."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 3
    idle_timeout: Annotated[float, Field(ge=0, le=31_536_000)] = 0
    """Seconds that the thread stays open for further turns once its work is done."""
    budget: Budget | None = None
    """The thread's budget; a run that reaches it is interrupted until it is resumed with a larger one."""
    outage_timeout: OmitEmpty[OutageTimeout | None] = None
    """Seconds for which a model call waits for a provider that is away, before the run is interrupted; the worker's own by default."""
    priority: Priority | None = None
    """The priority of the thread's model and tool calls."""
    vars: OmitEmpty[dict[str, JsonValue] | None] = None
    """The values of `{{ name }}` in rubrics; without variables their text is literal."""
    checkpoint: dict[str, JsonValue] | None = None
    """The answer of the query `checkpoint`, with which a new thread continues an old one; that of an iteration begins a fork."""

    @model_validator(mode="after")
    def _starts_with_the_user(self) -> "ThreadRequest":
        require_user_message_last(self.messages)
        if self.generator.shapes_one_call:
            raise ValueError("generator: functions, output_form and http_request are for cases of a batch drafted once; leave them out")
        return self


class InvokeRequest(Strict):
    """The argument of the update `invoke`: one turn of a thread."""

    messages: Messages = ()
    """New messages, the last one of the user; without any an interrupted run continues, or the last draft is graded again."""
    rubric: Rubric | None = None
    """The rubric; absent or null keeps the sticky one, and `""` clears it."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None
    """The most iterations of the run that this turn starts; the thread's own by default."""
    budget: OmitEmpty[Budget | None] = None
    """The thread's budget from now on; unchanged by default."""
    vars: OmitEmpty[dict[str, JsonValue] | None] = None
    """The thread's variables from now on: they fill every rubric, the sticky one too."""
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The key that makes the turn idempotent: the same key again attaches to the turn or returns its result. The update id by default."""

    @model_validator(mode="after")
    def _starts_with_the_user(self) -> "InvokeRequest":
        require_user_message_last(self.messages)
        return self


class ResumeRequest(Strict):
    """The argument of the update `resume`, which may be omitted."""

    budget: Budget | None = None
    """The thread's budget from now on; unchanged by default."""
    model: OmitEmpty[ModelSpec | None] = None
    """The model that drafts from now on; one of the same provider without settings of its own keeps those of the model before."""
    grader: OmitEmpty[ModelSpec | None] = None
    """The model that judges from now on, in the same way."""


class DecideRequest(Strict):
    """The argument of the update `decide`: a person's verdict on a criterion that waits for it."""

    grading_run_id: str
    iteration: int
    criterion: str
    passed: bool
    gap: Annotated[str, Field(max_length=4000)] | None = None
    """The defect; required if the criterion does not pass."""
    by: Annotated[str, Field(min_length=1, max_length=200)]

    @model_validator(mode="after")
    def _says_what_is_missing(self) -> "DecideRequest":
        if not self.passed and not (self.gap or "").strip():
            raise ValueError("gap is missing; say what the author has to mend")
        return self


class OverrideRequest(Strict):
    """The argument of the update `override`: a person's verdict that counts instead of the grader's."""

    grading_run_id: str
    iteration: int
    criterion: str
    passed: bool
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    by: Annotated[str, Field(min_length=1, max_length=200)]


class ApproveRequest(Strict):
    """The argument of the update `approve`: a person allows a tool call."""

    call: Annotated[str, Field(min_length=1, max_length=500)]
    """The id of the call, as in `waiting_for`."""
    by: Annotated[str, Field(min_length=1, max_length=200)]


class DenyRequest(Strict):
    """The argument of the update `deny`: a person forbids a tool call."""

    call: Annotated[str, Field(min_length=1, max_length=500)]
    by: Annotated[str, Field(min_length=1, max_length=200)]
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    """The reason, which the model that made the call gets."""


Request = TypeVar("Request", InvokeRequest, ResumeRequest, DecideRequest, OverrideRequest, ApproveRequest, DenyRequest)


def parse_request(raw: object) -> ThreadRequest:
    """Validate the workflow's raw argument.

    Raises:
        InvalidRequest: A field is wrong; the message names the field, the value and the cure.
        ThreadTooLarge: A message, or all of them together, are too large.
    """
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the request is {clip(str(raw))}; it must be a JSON object with 'messages' and 'generator'")
    with explained():
        request = ThreadRequest.model_validate(raw)
    refuse_oversize(request.messages)
    return request


def parse_update(model: type[Request], raw: object) -> Request:
    """Validate the raw argument of an update; None counts as an empty object.

    Raises:
        InvalidRequest: A field is wrong; the message names the field, the value and the cure.
    """
    with explained():
        return model.model_validate({} if raw is None else raw)


def require_user_message_last(messages: Sequence[Message]) -> None:
    """Raise ValueError where the last message is not the user's."""
    if messages and messages[-1].role != "user":
        raise ValueError(f"the last message is of role {messages[-1].role!r}; a turn starts with a message of role 'user'")


def refuse_oversize(messages: Sequence[Message], current_bytes: int = 0, limit: int = STATE_BYTES) -> None:
    """Raise ThreadTooLarge where a message, or all of them with `current_bytes`, would exceed what a thread may hold."""
    total = current_bytes
    for index, message in enumerate(messages):
        size = message.size()
        total += size
        if size > MESSAGE_BYTES:
            raise ThreadTooLarge(f"messages[{index}] has {size} bytes as JSON, {MESSAGE_BYTES} at most; pass a reference to it instead")
    if total > limit:
        raise ThreadTooLarge(f"the thread would hold {total} bytes, {limit} at most; start a new thread or shorten the messages")


class RunResult(Strict):
    """The result of a thread's turn: `(await client.invoke("haiku-1", "Another one.")).output`."""

    thread_id: str
    grading_run_id: str | None
    status: RunStatus | None
    """The status of the grading run; None where no rubric was set, so that nothing was graded."""
    iterations: int
    """The number of evaluations of the run."""
    output: str | None
    """The best draft: gate passed, then score, then required criteria passed, then the latest; while a person is asked, theirs or None."""
    best_iteration: int | None
    """The iteration of the best draft; None while the run waits for a person, as is `score`."""
    last_output: str | None
    """The last draft; None where it is the best one and larger than 128 KiB."""
    score: float | None
    """The score of the best draft, as in its evaluation."""
    evaluations: tuple[Evaluation, ...]
    messages: tuple[Message, ...] | None
    """This turn's messages; None above 128 KiB (page them with the query `messages`)."""
    messages_truncated: bool
    """Whether `messages` was omitted because of its size."""
    usage: Usage
    error: str | None
    """The failure that interrupted the run, and what to change."""
    reason: InterruptReason | None = None
    """The cause of an interruption; None for any other status, and if the workflow itself was cancelled or lost."""
    waiting_for: WaitingFor | None = None
    """The questions to a person; None for any status but `waiting`."""
    overridden_result: VerdictResult | None = None
    """The last evaluation's result with people's overrides; None where there are none."""

    def rows(self) -> list[Row]:
        """Return a row for every criterion of every evaluation, as `pandas.DataFrame` takes them."""
        return [
            row
            for evaluation in self.evaluations
            for row in criterion_rows(
                evaluation.criteria,
                {
                    "thread_id": self.thread_id,
                    "grading_run_id": evaluation.grading_run_id,
                    "iteration": evaluation.iteration,
                    "result": evaluation.result,
                    "score": evaluation.score,
                },
            )
        ]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the last evaluation's criteria."""
        criteria = self.evaluations[-1].criteria if self.evaluations else ()
        score = "" if self.score is None else f", score {self.score:.2f}"
        return html_table(
            f"{self.thread_id}: {self.status or 'ungraded'} after {self.iterations} iterations{score}", criterion_rows(criteria, {})
        )


class GivenPrompt(Strict):
    """The prompt that a grader got, without its random codes."""

    prompt_version: str
    rubric_sha256: str
    criteria: tuple[str, ...]
    """Ids of the criteria in the call group."""
    groups: int
    """The number of call groups that the rubric has."""
    system: str
    messages: tuple[Message, ...]


class ThreadState(Strict):
    """The answer of the query `state`: `(await client.state("haiku-1")).status`."""

    status: Literal["idle", "running", "waiting", "interrupted"]
    """The status of the thread; `idle` between turns."""
    grading_run_id: str | None
    phase: Literal["generating", "grading"] | None
    iteration: int | None
    rubric: Rubric | None
    rubric_sha256: str | None
    usage: Usage
    """The usage of the whole thread."""
    budget: Budget | None = None
    reason: InterruptReason | None = None
    """The cause of an interruption; None for any other status."""
    error: OmitEmpty[str | None] = None
    """The failure, and the change that it needs before the run is resumed; None where nothing failed."""
    queued: int
    """The number of turns that wait behind the current one."""
    waiting_for: WaitingFor | None
    forked_from: OmitEmpty[ForkedFrom | None] = None
    call_wait: OmitEmpty[str | None] = None
    """The wait of the model call, as the typed client reads it from the server: `MODEL has not answered for 40 s; attempt 2`."""
    draft: OmitEmpty[str | None] = None
    """The end of the draft that is being written, as the typed client reads it from the server, where the provider streams."""


class SuppliedRubric(Strict):
    """The answer of the update `supply_rubric`."""

    rubric: Rubric | None
    """The rubric that judges from now on, with its variables filled in; None where nothing is graded any more."""
    rubric_sha256: str | None
    in_force: bool
    """False while it waits for the draft that is being written, or for the grading in flight to stop."""
    grading_run_id: str | None
    """The run that is judged by it; None where that run is still to be opened."""
    superseded: str | None
    """The run that it ends; None where no run was open, or that run goes on."""


class Interruption(Strict):
    """The answer of the update `interrupt`, once the calls in flight have stopped."""

    interrupted: bool
    """False where nothing was running, or a result that came together with the interrupt ended the turn."""
    grading_run_id: str | None
    """The thread's run; None where nothing is graded."""
    iteration: int | None
    phase: Literal["generating", "grading"] | None
    """The phase in which the run was stopped; None where it was not."""


@workflow.defn(name=WORKFLOW)
class GradingThread:
    """The typed interface of a thread's workflow: `temporal.get_workflow_handle_for(GradingThread.run, "haiku-1")`."""

    @workflow.run
    async def run(self, request: ThreadRequest) -> RunResult:
        """Answer the request's messages, graded by its rubric.

        Raises:
            ApplicationError: Of type `InvalidRequest` or `ThreadTooLarge`, before any paid call.
        """
        raise NotImplementedError

    @workflow.update
    async def invoke(self, request: InvokeRequest) -> RunResult:
        """Answer one turn's messages and return its result; queued while another turn is in flight, 8 at most.

        Raises:
            ApplicationError: `InvalidRequest` (also for a key that was used for another turn), `ThreadTooLarge`, `ThreadClosing`,
                `Backpressure`, before anything is recorded; `ThreadRolling` where the thread continues in a new Temporal run: send the
                same update again, with the same key.
        """
        raise NotImplementedError

    @workflow.signal
    async def supply_rubric(self, rubric: Rubric) -> None:
        """Replace the rubric: the current or last draft is judged by it in a new grading run."""
        raise NotImplementedError

    @workflow.update(name="supply_rubric")
    async def replace_rubric(self, rubric: Rubric) -> SuppliedRubric:
        """Do what the signal `supply_rubric` does, and return which rubric stands and which run it is about.

        Raises:
            ApplicationError: `InvalidRequest`, before anything is recorded; `ThreadRolling` as `invoke` does.
        """
        raise NotImplementedError

    @workflow.signal
    async def close(self) -> None:
        """Refuse new turns, serve the queued ones, and complete."""
        raise NotImplementedError

    @workflow.signal
    async def interrupt(self) -> None:
        """Stop the calls in flight; the run can be resumed, and no iteration is consumed."""
        raise NotImplementedError

    @workflow.update(name="interrupt")
    async def stop_turn(self) -> Interruption:
        """Do what the signal `interrupt` does, and return what was stopped once it has.

        Raises:
            ApplicationError: `ThreadRolling` as `invoke` does.
        """
        raise NotImplementedError

    @workflow.update
    async def resume(self, request: ResumeRequest | None = None) -> RunResult:
        """Resume the interrupted run and return its result.

        Raises:
            ApplicationError: `NothingToResume` where no run is interrupted; `InvalidRequest` where a run that its budget
                stopped gets no larger one.
        """
        raise NotImplementedError

    @workflow.update
    async def decide(self, request: DecideRequest) -> None:
        """Record a person's verdict on a criterion that waits for it; after the last one the run continues.

        Raises:
            ApplicationError: `StaleDecision` where no such criterion waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def approve(self, request: ApproveRequest) -> None:
        """Approve a tool call that waits for a person; after the last one the run continues.

        Raises:
            ApplicationError: `StaleDecision` where no such call waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def deny(self, request: DenyRequest) -> None:
        """Deny a tool call that waits for a person; the model that made it gets the name and the reason.

        Raises:
            ApplicationError: `StaleDecision` where no such call waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def override(self, request: OverrideRequest) -> Evaluation:
        """Record a person's verdict instead of the grader's, and return the evaluation with it.

        A run that has not ended is decided again; one that has ended keeps its status.

        Raises:
            ApplicationError: `StaleDecision` where there is no such row; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.query
    def state(self) -> ThreadState:
        """Return the thread's current state."""
        raise NotImplementedError

    @workflow.query
    def result(self, key: str | None = None) -> RunResult | None:
        """Return the result of the turn with this key, the last turn by default; None where it has not ended or is not kept any more."""
        raise NotImplementedError

    @workflow.query
    def messages(self, after: int = 0, limit: int = 1000) -> Page[Message]:
        """Return the thread's messages from index `after`."""
        raise NotImplementedError

    @workflow.query
    def evaluations(self, after: int = 0, limit: int = 1000) -> Page[Evaluation]:
        """Return the thread's evaluations from index `after`."""
        raise NotImplementedError

    @workflow.query
    def events(self, after: int = 0, limit: int = 1000) -> Page[Event]:
        """Return the events with a `seq` above `after`."""
        raise NotImplementedError

    @workflow.query
    def prompt(self, evaluation: int, group: int = 0) -> GivenPrompt | None:
        """Return the prompt of an evaluation's grader, by the evaluation's index; None where its rubric is not kept any more.

        The random code of the fence and the tags of the answer are masked.
        """
        raise NotImplementedError

    @workflow.query
    def checkpoint(self, evaluation: int | None = None) -> dict[str, JsonValue]:
        """Return the state from which a new thread continues: now, or after the evaluation of an index, from where it begins a fork."""
        raise NotImplementedError
