"""What a service starts a thread with."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError, model_validator

from gradeloop.budget import Budget
from gradeloop.errors import InvalidRequest, ThreadTooLarge, explain
from gradeloop.judge import Elsewhere
from gradeloop.modelspec import ModelSpec
from gradeloop.printable import clip
from gradeloop.rubric import Rubric
from gradeloop.strict import Items, Sparse, Strict
from gradeloop.tool_elsewhere import OfferedTool, refuse_twins
from gradeloop.transcript import MESSAGE_BYTES, Message, Messages

MAX_ITERATIONS = 20
STATE_BYTES = 3 * 512 * 1024
"""A thread's messages, evaluations and rubric as JSON, 1.5 MiB: it must fit into one 2 MiB payload as a checkpoint."""
STORED_STATE_BYTES = 32 * 1024 * 1024
"""The same where the worker has external storage, which takes payloads of any size."""
QUEUED = 8
"""Turns that may wait; the server admits 10 updates at once."""

Prompt = Annotated[str, Field(max_length=65_536)]


class Generator(Strict):
    """Who drafts: a model that our worker calls, or an activity or workflow of somebody else's worker, in any language."""

    model: ModelSpec | None = None
    activity: Sparse[str | None] = Field(default=None, min_length=1)
    """The type of an activity that is given `{messages, iteration, feedback}` and returns `{messages}` or text."""
    workflow: Sparse[str | None] = Field(default=None, min_length=1)
    """The type of a workflow with the same argument and result."""
    task_queue: Sparse[str | None] = Field(default=None, min_length=1)
    """Where the activity or workflow is served."""
    system_prompt: Prompt | None = None
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
        refuse_twins(self.tools)
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
    system_prompt: Prompt | None = None
    """Grading instructions of one's own; the trust boundary and the answer's form stay."""
    tools: Items[OfferedTool] = ()
    """Names of tools that the worker has, and tools elsewhere."""

    @model_validator(mode="after")
    def _is_somebody(self) -> "Grader":
        if self.elsewhere is not None and (self.model or self.system_prompt or self.tools):
            raise ValueError("model, system_prompt and tools are for a model of ours; an activity or function brings its own")
        refuse_twins(self.tools)
        return self

    @property
    def elsewhere(self) -> Elsewhere | None:
        """The activity or function that judges, if one does."""
        named = {"activity": self.activity, "task_queue": self.task_queue, "function": self.function}
        return Elsewhere.model_validate(named) if any(named.values()) else None


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
        refuse_foreign_end(self.messages)
        return self


def refuse_foreign_end(messages: Sequence[Message]) -> None:
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


def refuse_oversize(messages: Sequence[Message], held: int = 0, limit: int = STATE_BYTES) -> None:
    """Raise ThreadTooLarge where a message, or all with the `held` bytes, are more than a thread may hold."""
    total = held
    for index, message in enumerate(messages):
        size = message.size()
        total += size
        if size > MESSAGE_BYTES:
            raise ThreadTooLarge(f"messages[{index}] has {size} bytes as JSON, {MESSAGE_BYTES} at most; pass a reference to it instead")
    if total > limit:
        raise ThreadTooLarge(f"the thread would hold {total} bytes, {limit} at most; start a new thread or shorten the messages")
