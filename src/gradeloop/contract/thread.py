"""Threads on the wire: requests, updates, results, and the typed door to the workflow."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError, model_validator
from temporalio import workflow

from gradeloop.contract.base import Items, Page, Sparse, Strict
from gradeloop.contract.evaluation import Evaluation, Event, InterruptReason, RunStatus, VerdictResult, WaitingFor
from gradeloop.contract.messages import MESSAGE_BYTES, Message, Messages, Usage
from gradeloop.contract.model_spec import Budget, ModelSpec, OfferedTool, RemoteGrader, refuse_duplicate_tools
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest, ThreadTooLarge, explain
from gradeloop.text import clip

MAX_ITERATIONS = 20
STATE_BYTES = 3 * 512 * 1024
"""A thread's messages, evaluations and rubric as JSON, 1.5 MiB: it must fit into one 2 MiB payload as a checkpoint."""
STORED_STATE_BYTES = 32 * 1024 * 1024
"""The same where the worker has external storage, which takes payloads of any size."""
QUEUED = 8
"""Turns that may wait; the server admits 10 updates at once."""

SystemPrompt = Annotated[str, Field(max_length=65_536)]


class Generator(Strict):
    """Who drafts: a model that our worker calls, or an activity or workflow of somebody else's worker, in any language."""

    model: ModelSpec | None = None
    activity: Sparse[str | None] = Field(default=None, min_length=1)
    """The type of an activity that is given `{messages, iteration, feedback}` and returns `{messages}` or text."""
    workflow: Sparse[str | None] = Field(default=None, min_length=1)
    """The type of a workflow with the same argument and result."""
    task_queue: Sparse[str | None] = Field(default=None, min_length=1)
    """Where the activity or workflow is served."""
    system_prompt: SystemPrompt | None = None
    tools: Items[OfferedTool] = ()
    """Names of tools that the worker has, and tools elsewhere."""
    show_rubric: bool = False
    """True puts the rubric into the generator's system prompt; otherwise it reaches it through feedback alone."""

    @model_validator(mode="after")
    def _is_somebody(self) -> "Generator":
        if sum(named is not None for named in (self.model, self.activity, self.workflow)) != 1:
            raise ValueError("name who drafts by exactly one of model, activity and workflow")
        if self.model is None and self.task_queue is None:
            raise ValueError("task_queue is missing; name the queue on which the activity or workflow is served")
        if self.model is None and (self.system_prompt or self.tools or self.show_rubric):
            raise ValueError("system_prompt, tools and show_rubric are for a model; an activity or workflow brings its own")
        if self.model is not None and self.task_queue is not None:
            raise ValueError("task_queue is for an activity or workflow; a model is called by our own worker")
        refuse_duplicate_tools(self.tools)
        return self


class Grader(Strict):
    """Who judges: a model that our worker calls, or an activity or function of somebody else's."""

    model: ModelSpec | None = None
    """By default the first of a table for which the worker has a key, the same for a whole grading run."""
    activity: Sparse[str | None] = Field(default=None, min_length=1)
    """The type of an activity that is given `{messages, draft, criteria, iteration, sample}` and returns a verdict."""
    task_queue: Sparse[str | None] = Field(default=None, min_length=1)
    """Where the activity is served."""
    function: Sparse[str | None] = Field(default=None, min_length=1)
    """The name of a function in the worker's tools that is given the same and returns the same."""
    system_prompt: SystemPrompt | None = None
    """Grading instructions of one's own; the trust boundary and the answer's form stay."""
    tools: Items[OfferedTool] = ()
    """Names of tools that the worker has, and tools elsewhere."""

    @model_validator(mode="after")
    def _is_somebody(self) -> "Grader":
        if self.remote is not None and (self.model or self.system_prompt or self.tools):
            raise ValueError("model, system_prompt and tools are for a model of ours; an activity or function brings its own")
        refuse_duplicate_tools(self.tools)
        return self

    @property
    def remote(self) -> RemoteGrader | None:
        """The activity or function that judges, if one does."""
        named = {"activity": self.activity, "task_queue": self.task_queue, "function": self.function}
        return RemoteGrader.model_validate(named) if any(named.values()) else None


class Priority(Strict):
    """Whose calls go first where the worker's slots or its rate are short; Temporal's own terms."""

    level: Annotated[int, Field(ge=1, le=5)] = 3
    """1 goes before 5."""
    tenant: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Tenants of one level share what there is, where the server has fairness switched on."""
    weight: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    """The tenant's share beside the others'."""


class ThreadRequest(Strict):
    """The one argument of the workflow `GradingThread`."""

    messages: Messages = ()
    rubric: Rubric | None = None
    """Absent or null: the sticky rubric stays. `""`: cleared."""
    generator: Generator
    grader: Grader | None = None
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 3
    idle_timeout: Annotated[float, Field(ge=0, le=31_536_000)] = 0
    """Seconds that the thread stays open for more once its work is done."""
    budget: Budget | None = None
    """Of the thread; reached, the run is interrupted until it is resumed with a larger one."""
    priority: Priority | None = None
    """Of the thread's model and tool calls."""
    vars: Sparse[dict[str, JsonValue] | None] = None
    """What `{{ name }}` stands for in rubrics; without them their text is literal."""
    checkpoint: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _is_workable(self) -> "ThreadRequest":
        require_user_message_last(self.messages)
        return self


def require_user_message_last(messages: Sequence[Message]) -> None:
    """Raise where the last message is not the user's."""
    if messages and messages[-1].role != "user":
        raise ValueError(f"the last message is of role {messages[-1].role!r}; a turn starts with a message of role 'user'")


def parse_request(raw: object) -> ThreadRequest:
    """Validate the workflow's raw argument.

    Raises:
        InvalidRequest: With field, value and cure.
        ThreadTooLarge: The messages are too large, one or all.
    """
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the request is {clip(str(raw))}; it must be a JSON object with 'messages' and 'generator'")
    try:
        request = ThreadRequest.model_validate(raw)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    refuse_oversize(request.messages)
    return request


def refuse_oversize(messages: Sequence[Message], current_bytes: int = 0, limit: int = STATE_BYTES) -> None:
    """Raise ThreadTooLarge where a message, or all with the `current_bytes`, are more than a thread may hold."""
    total = current_bytes
    for index, message in enumerate(messages):
        size = message.size()
        total += size
        if size > MESSAGE_BYTES:
            raise ThreadTooLarge(f"messages[{index}] has {size} bytes as JSON, {MESSAGE_BYTES} at most; pass a reference to it instead")
    if total > limit:
        raise ThreadTooLarge(f"the thread would hold {total} bytes, {limit} at most; start a new thread or shorten the messages")


class InvokeRequest(Strict):
    """The argument of the update `invoke`: one turn of a thread."""

    messages: Messages = ()
    rubric: Rubric | None = None
    """Absent or null: the sticky rubric stays. `""`: cleared."""
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None
    """Of the run that this turn opens; the thread's own by default."""
    budget: Sparse[Budget | None] = None
    """The thread's from now on; its own by default."""
    vars: Sparse[dict[str, JsonValue] | None] = None
    """The thread's from now on: the rubric, the sticky one too, is filled from them."""
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Makes the turn idempotent: the same key again attaches to it, or returns its result. The update id by default."""

    @model_validator(mode="after")
    def _is_a_turn(self) -> "InvokeRequest":
        require_user_message_last(self.messages)
        return self


class ResumeRequest(Strict):
    """The argument of the update `resume`; it may be left out."""

    budget: Budget | None = None
    """The thread's from now on; its own by default."""


class DecideRequest(Strict):
    """The argument of the update `decide`: a person's word on a criterion that waits for it."""

    grading_run_id: str
    iteration: int
    criterion: str
    passed: bool
    gap: Annotated[str, Field(max_length=4000)] | None = None
    """What is missing; needed where it does not pass."""
    by: Annotated[str, Field(min_length=1, max_length=200)]

    @model_validator(mode="after")
    def _says_what_is_missing(self) -> "DecideRequest":
        if not self.passed and not (self.gap or "").strip():
            raise ValueError("gap is missing; say what the author has to mend")
        return self


class OverrideRequest(Strict):
    """The argument of the update `override`: a person's verdict beside the machine's."""

    grading_run_id: str
    iteration: int
    criterion: str
    passed: bool
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    by: Annotated[str, Field(min_length=1, max_length=200)]


class ApproveRequest(Strict):
    """The argument of the update `approve`: a person lets a tool call go on."""

    call: Annotated[str, Field(min_length=1, max_length=500)]
    """Its id, as `waiting_for` tells it."""
    by: Annotated[str, Field(min_length=1, max_length=200)]


class DenyRequest(Strict):
    """The argument of the update `deny`: a person forbids a tool call."""

    call: Annotated[str, Field(min_length=1, max_length=500)]
    by: Annotated[str, Field(min_length=1, max_length=200)]
    why: Annotated[str, Field(min_length=1, max_length=4000)]
    """Told to whoever wanted the call."""


Request = TypeVar("Request", InvokeRequest, ResumeRequest, DecideRequest, OverrideRequest, ApproveRequest, DenyRequest)


def parse_update(model: type[Request], raw: object) -> Request:
    """Validate the raw argument of an update; nothing counts as an empty object.

    Raises:
        InvalidRequest: With field, value and cure.
    """
    try:
        return model.model_validate({} if raw is None else raw)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None


TASK_QUEUE = "gradeloop"
WORKFLOW = "GradingThread"
RESULT_MESSAGES_BYTES = 128 * 1024
"""Above this, and in a thread that is nearly full, a result leaves `messages` out; the query pages them."""

SEARCH_ATTRIBUTES = ("GradeloopStatus", "GradeloopRunId", "GradeloopRubric")
"""Keyword attributes that the worker registers and the thread writes."""


class RunResult(Strict):
    """What a turn of a thread came to."""

    thread_id: str
    grading_run_id: str | None
    status: RunStatus | None
    """None where no rubric was set: nothing was graded."""
    iterations: int
    output: str | None
    """The best draft: gate held, then score, then required criteria passed, then the latest."""
    best_iteration: int | None
    last_output: str | None
    """The last draft; None where it is the best one and over 128 KiB."""
    score: float | None
    evaluations: tuple[Evaluation, ...]
    messages: tuple[Message, ...] | None
    """This turn's messages; None above 128 KiB (page them with the query `messages`)."""
    messages_truncated: bool
    usage: Usage
    error: str | None
    reason: InterruptReason | None = None
    """Of the status `interrupted`; None also where the workflow itself was cancelled or lost."""
    waiting_for: WaitingFor | None = None
    """Of the status `waiting`."""
    overridden_result: VerdictResult | None = None
    """What the last evaluation comes to with what people overrode; None where nobody did."""


class GivenPrompt(Strict):
    """What a grader was given, as it can be shown."""

    prompt_version: str
    rubric_sha256: str
    criteria: tuple[str, ...]
    """Ids of the call group."""
    groups: int
    """How many call groups the rubric has."""
    system: str
    messages: tuple[Message, ...]


class ThreadState(Strict):
    """The answer of the query `state`."""

    status: Literal["idle", "running", "waiting", "interrupted"]
    grading_run_id: str | None
    phase: Literal["generating", "grading"] | None
    iteration: int | None
    rubric: Rubric | None
    rubric_sha256: str | None
    usage: Usage
    budget: Budget | None = None
    reason: InterruptReason | None = None
    """Of the status `interrupted`."""
    queued: int
    waiting_for: WaitingFor | None


@workflow.defn(name=WORKFLOW)
class GradingThread:
    """The typed door to a thread: start it, read it, steer it. The worker's own class answers."""

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
                `Backpressure`, before anything is recorded; `ThreadRolling` where the thread goes on in a new Temporal run: send it
                again with another update id.
        """
        raise NotImplementedError

    @workflow.signal
    async def supply_rubric(self, rubric: Rubric) -> None:
        """Take a new rubric: what is drafted or was drafted last is judged by it in a new grading run."""
        raise NotImplementedError

    @workflow.signal
    async def close(self) -> None:
        """Refuse new turns, serve the queued ones, and complete."""
        raise NotImplementedError

    @workflow.signal
    async def interrupt(self) -> None:
        """Stop the calls in flight; the run can be resumed, and no iteration is consumed."""
        raise NotImplementedError

    @workflow.update
    async def resume(self, request: ResumeRequest | None = None) -> RunResult:
        """Go on with the interrupted run and return its result; `NothingToResume` where there is none.

        A run that its budget stopped needs a larger one: `InvalidRequest` without.
        """
        raise NotImplementedError

    @workflow.update
    async def decide(self, request: DecideRequest) -> None:
        """Take a person's word on a criterion that waits for it; with the last of them the run goes on.

        Raises:
            ApplicationError: `StaleDecision` where nothing of that name waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def approve(self, request: ApproveRequest) -> None:
        """Let a tool call go on that waits for it; with the last of them the run goes on.

        Raises:
            ApplicationError: `StaleDecision` where no such call waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def deny(self, request: DenyRequest) -> None:
        """Have a tool call that waits not be made; whoever wanted it is told by whom and why.

        Raises:
            ApplicationError: `StaleDecision` where no such call waits; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.update
    async def override(self, request: OverrideRequest) -> Evaluation:
        """Record a person's verdict beside the machine's and return the evaluation with it.

        A run that has not ended is decided anew; one that has keeps its status.

        Raises:
            ApplicationError: `StaleDecision` where there is no such row; `InvalidRequest`.
        """
        raise NotImplementedError

    @workflow.query
    def state(self) -> ThreadState:
        """Return where the thread stands."""
        raise NotImplementedError

    @workflow.query
    def result(self, key: str | None = None) -> RunResult | None:
        """Return what the turn of a key came to, the last turn by default; None where it has not ended or is not remembered."""
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
        """Return what the grader of an evaluation, by its index, was given; None where its rubric is not kept any more.

        The random code of the fence, and the tags of an answer, are masked.
        """
        raise NotImplementedError

    @workflow.query
    def checkpoint(self) -> dict[str, JsonValue]:
        """Return all that a new start needs; answers on a closed thread too."""
        raise NotImplementedError
