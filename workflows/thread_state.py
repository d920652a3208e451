"""The state of a thread: all that a checkpoint holds."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import to_json
from temporalio import workflow

from gradeloop.contract.base import BoundedDict, FirstMistakes, Items, Page, page_of, without_nulls
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import (
    CheckOutcome,
    Decision,
    Evaluation,
    Event,
    EventType,
    Evidence,
    InterruptReason,
    RunStatus,
    Verdict,
)
from gradeloop.contract.messages import Log, Message, Usage
from gradeloop.contract.model_spec import Budget, ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import STATE_BYTES, STORED_STATE_BYTES, Generator, Grader, Priority
from gradeloop.grading.verdicts import GraderConversation


class State(BaseModel):
    """A mutable part of the thread; no unknown keys, so that a checkpoint is read whole or refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:  # noqa: ANN401 - a checkpoint, perhaps through a client that turns [] into null
        return without_nulls(cls, value) if isinstance(value, dict) else value


class Approval(State):
    """A tool call that a person has to approve, and what they said."""

    tool: str
    arguments: dict[str, JsonValue]
    role: Literal["generator", "grader", "check"]
    approved: bool | None = None
    by: str = ""
    why: str = ""

    @property
    def denial(self) -> str:
        """What whoever called the tool is told where it was denied."""
        return f"not run: {self.by} denied it: {self.why}"


class ToolCallRecord(State):
    """What is known of the tool calls of one turn, or of the checks of one pass, beside their results."""

    operations: dict[str, str] = Field(default_factory=dict)
    """Their ids, by position: they stay the same where the run goes on under another name."""
    approvals: BoundedDict[Approval] = Field(default_factory=dict)
    """By id."""
    begun: tuple[str, ...] = ()
    """Ids of those that were begun and must not be begun again."""


class Exchange(State):
    """A model's turns and tool calls on the way to its answer."""

    steps: int = 0
    tool_calls: int = 0
    results: BoundedDict[Evidence] = {}
    """Of the tool calls of the last turn, by their position in it, until all are there."""
    exhausted: bool = False
    """True when tool calls or turns are used up: one last turn without tools is left."""
    raised: bool = False
    """True when a reply was cut: from then on the model gets a larger completion."""
    called: tuple[str, ...] = ()
    """The tools that were called, each once."""
    ledger: ToolCallRecord = Field(default_factory=ToolCallRecord)


class Conversation(GraderConversation, Exchange):
    """A grader's conversation over one draft, or over one finished run."""

    log: Log
    offered: tuple[str, ...] = ()
    """The tools of the last turn."""
    prompt_sha256: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The sha256 of what the grader of a finished run was given."""


class PassState(State):
    """One grading pass in flight."""

    draft: int
    checks: BoundedDict[CheckOutcome] = {}
    conversations: BoundedDict[Conversation] = {}
    """By call group and sample, `0/0` the first."""
    decisions: BoundedDict[Decision] = {}
    usage: Usage = Usage()
    ledger: ToolCallRecord = Field(default_factory=ToolCallRecord)
    """Of the checks."""

    @property
    def judged_by(self) -> str | None:
        """Who judged, the first of several; None where no grader was asked."""
        return next((conversation.judge for conversation in self.conversations.values() if conversation.judge), None)

    @property
    def prompt_sha256(self) -> str | None:
        """The sha256 of what the graders of a finished run were given, of all prompts in order; None where checks alone decided."""
        sent = [each.prompt_sha256 for _, each in sorted(self.conversations.items()) if each.prompt_sha256]
        return None if not sent else sent[0] if len(sent) == 1 else hashlib.sha256("".join(sent).encode()).hexdigest()

    @model_validator(mode="before")
    @classmethod
    def _from_one(cls, value: Any) -> Any:  # noqa: ANN401 - a checkpoint, perhaps of a version that had one conversation
        if isinstance(value, dict) and "conversation" in value:
            rest = {key: item for key, item in value.items() if key != "conversation"}
            return rest | {"conversations": {"0/0": value["conversation"]}}
        return value


class GradingRun(State):
    """One attempt at one rubric."""

    grading_run_id: str
    ordinal: int
    nonce: str
    max_iterations: int
    status: RunStatus = "running"
    iteration: int = 0
    grading: PassState | None = None
    judge: ModelSpec | None = None
    """Who judges, where the thread names nobody: found once, so that a worker with other keys changes nothing."""
    pins: dict[str, str] = Field(default_factory=dict)
    """The sha256 of each tool, as the run first saw it."""
    finished: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a finished run is judged: what comes after the draft is looked at too."""


EVENTS_KEPT = 2_000
OUTCOMES_KEPT = 64
"""Keys of past turns that are remembered; a caller that comes again after so many others starts a new turn."""


class Invocation(State):
    """A turn that somebody asked for."""

    keys: list[str]
    """Whoever comes with one of them waits for this turn: its own key first, then those who had it resumed."""
    payload: str
    """The sha256 of what was asked: the same key with another payload is refused."""
    messages: Items[Message] = ()
    rubric: Rubric | None = None
    max_iterations: int | None = None
    budget: Budget | None = None
    template: Rubric | None = None
    """The rubric as it was given, where variables are put into it."""
    vars: dict[str, JsonValue] | None = None
    resumes: bool = False
    """True for the update `resume`: it goes on with the interrupted turn, whatever its rubric."""
    joined: dict[str, str] = Field(default_factory=dict)
    """What those who had it resumed asked for, by their keys."""

    def payload_of(self, key: str) -> str:
        """Return the sha256 of what was asked for with one of the keys."""
        return self.joined.get(key, self.payload)

    def join(self, other: "Invocation") -> None:
        """Have those who wait for the other turn wait for this one."""
        for key in other.keys:
            if key not in self.keys:
                self.keys.append(key)
                self.joined[key] = other.payload_of(key)


class TurnOutcome(State):
    """How a turn ended, by reference to what the thread holds."""

    key: str
    payload: str
    grading_run_id: str | None
    status: RunStatus | None
    start: int
    stop: int
    evaluations: tuple[int, int]
    best: int | None
    """Index of the evaluation whose draft stands."""
    usage: Usage
    error: str | None
    reason: InterruptReason | None = None


class Thread(State):
    """Messages, the sticky rubric, the run in flight, and what has been recorded."""

    thread_id: str
    generator: Generator
    grader: Grader | None = None
    rubric: Rubric | None = None
    template: Rubric | None = None
    """The rubric as it was given, where variables are put into it."""
    vars: dict[str, JsonValue] | None = None
    rubrics: BoundedDict[Rubric] = Field(default_factory=dict)
    """By sha256, the one that was in force before, for whoever wants to see what was asked."""
    verdicts: BoundedDict[Verdict] = Field(default_factory=dict)
    """By what was asked, those about the draft that was judged last."""
    verdicts_of: int | None = None
    """Index of that draft."""
    max_iterations: int
    idle_timeout: float = 0
    log: Log
    turn: int = 0
    """Index of the first message of the current turn."""
    request: int = 0
    """Index of the user's current message."""
    drafting: Exchange | None = None
    run: GradingRun | None = None
    runs: int = 0
    evaluations: Annotated[list[Evaluation], FirstMistakes()] = Field(default_factory=list)
    events: Annotated[list[Event], FirstMistakes()] = Field(default_factory=list)
    seq: int = 0
    usage: Usage = Usage()
    used_before: Usage = Usage()
    """What the thread had used when the current turn began."""
    status: Literal["idle", "running", "waiting", "interrupted"] = "idle"
    error: str | None = None
    reason: InterruptReason | None = None
    """Why it is interrupted."""
    budget: Budget | None = None
    priority: Priority | None = None
    active: Invocation | None = None
    """The turn in flight or interrupted."""
    queue: Annotated[list[Invocation], FirstMistakes()] = Field(default_factory=list)
    outcomes: Annotated[list[TurnOutcome], FirstMistakes()] = Field(default_factory=list)
    supplied: Rubric | None = None
    """A rubric that came while a turn was in flight and is not in force yet."""
    closing: bool = False
    external_storage: bool = False
    """Whether the worker stores large payloads elsewhere, as the first call told."""

    def replace_rubric(self, rubric: Rubric | None) -> None:
        """Put another rubric in force, and keep the one before."""
        self.rubrics = {self.rubric.sha256(): self.rubric} if self.rubric else {}
        self.rubric = rubric

    def rubric_of(self, sha256: str | None) -> Rubric | None:
        """Return the rubric of a sha256, while it is kept."""
        current = self.rubric
        return current if current is not None and current.sha256() == sha256 else self.rubrics.get(sha256 or "")

    @property
    def rubric_in_force(self) -> Rubric | None:
        """The rubric, unless it is cleared."""
        return self.rubric if self.rubric and not self.rubric.cleared else None

    @property
    def judge(self) -> ModelSpec | None:
        """The model that judges: the thread's own, or the one found for the run."""
        named = self.grader.model if self.grader else None
        return named or (self.run.judge if self.run else None)

    @property
    def waiting_for(self) -> tuple[Criterion, ...]:
        """The criteria that wait for a person."""
        grading = self.run.grading if self.run else None
        if self.status != "waiting" or grading is None or self.rubric is None or self.pending:
            return ()
        return tuple(person for person in self.rubric.asked_of_people if person.id not in grading.decisions)

    @property
    def pending(self) -> dict[str, Approval]:
        """The tool calls that wait for a person's word, by their ids."""
        grading = self.run.grading if self.run else None
        ledgers = [self.drafting.ledger] if self.drafting else []
        if grading is not None:
            ledgers += [grading.ledger, *(conversation.ledger for conversation in grading.conversations.values())]
        return {key: each for ledger in ledgers for key, each in ledger.approvals.items() if each.approved is None}

    @property
    def overrun(self) -> str | None:
        """What of the budget is used up; None where another call may be made."""
        return self.budget.overrun(self.usage) if self.budget else None

    @property
    def limit(self) -> int:
        """The bytes that the thread may hold."""
        return STORED_STATE_BYTES if self.external_storage else STATE_BYTES

    def bytes(self) -> int:
        """Return what the thread's messages and evaluations take, as JSON."""
        return self.log.bytes + sum(evaluation.size() for evaluation in self.evaluations)

    def append(self, message: Message) -> int:
        """Add a message, tell of it, and return its index."""
        self.log.append(message)
        self.tell("message", index=len(self.log) - 1)
        return len(self.log) - 1

    def tell(self, kind: EventType, **facts: object) -> None:
        """Number and keep an event."""
        self.seq += 1
        run = self.run
        told = {"grading_run_id": run.grading_run_id, "iteration": run.iteration} if run else {}
        when = workflow.now().isoformat(timespec="milliseconds")
        self.events.append(Event.model_validate({"seq": self.seq, "type": kind, "time": when} | told | facts))
        del self.events[:-EVENTS_KEPT]

    def last_draft(self, start: int = 0) -> int | None:
        """Return the index of the newest answer from message `start` on, tool calls aside."""
        drafts = (at for at in range(len(self.log) - 1, start - 1, -1) if self.log[at].role == "assistant" and not self.log[at].tool_calls)
        return next(drafts, None)


FEW_EVENTS = 500
"""Kept of a thread that is full."""

FULL = 0.9
"""Of what a thread may hold, from which on it counts as full."""


def portable(thread: Thread) -> Thread:
    """Return the thread without what can be had again, where all does not fit.

    First go the verdicts that may be reused, the former rubric and older events, then the grader's conversations in flight, then
    those of the pass that have ended.
    """
    grading = thread.run.grading if thread.run else None
    held = grading.conversations if grading else {}
    room = thread.limit - thread.bytes()
    if _size(thread.verdicts) + _size(thread.rubrics) + _size(held) <= room and thread.bytes() < FULL * thread.limit:
        return thread
    thread = thread.model_copy(update={"verdicts": {}, "verdicts_of": None, "rubrics": {}, "events": thread.events[-FEW_EVENTS:]})
    if thread.run is None or grading is None or _size(held) <= room:
        return thread
    ended = {key: each for key, each in held.items() if each.ended}
    kept = grading.model_copy(update={"conversations": ended if _size(ended) <= room else {}})
    return thread.model_copy(update={"run": thread.run.model_copy(update={"grading": kept})})


def _size(values: Mapping[str, Conversation] | Mapping[str, Verdict] | Mapping[str, Rubric]) -> int:
    return sum(len(to_json(value)) for value in values.values())


MESSAGES = "messages"
"""The key of a thread's own messages, beside those of its conversations with graders."""


def page_of_log(thread: Thread, key: str, after: int, limit: int) -> Page[Message]:
    """Return messages of the thread, or of the conversation with a grader whose key it is."""
    grading = thread.run.grading if thread.run else None
    held = grading.conversations.get("/".join(key.split("/")[-2:])) if grading else None
    log = thread.log if key == MESSAGES else held.log if held else Log()
    return Page[Message](**page_of(log.slice(0), after, limit))
