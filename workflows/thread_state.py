"""What a thread holds: all of it is in the checkpoint, and nothing else is needed to go on elsewhere."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator
from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from gradeloop.budget import Budget
    from gradeloop.evaluation import CheckOutcome, Evaluation, InterruptReason, Status
    from gradeloop.event import Event, EventType
    from gradeloop.evidence import Evidence
    from gradeloop.modelspec import ModelSpec
    from gradeloop.request import STATE_BYTES, STORED_STATE_BYTES, Generator, Grader, Priority
    from gradeloop.rubric import Rubric
    from gradeloop.strict import without_nulls
    from gradeloop.transcript import Log, Message
    from gradeloop.usage import Usage
    from gradeloop.verdict import VerdictRow

EVENTS_KEPT = 2_000
OUTCOMES_KEPT = 64
"""Keys of past turns that are remembered; a caller that comes again after so many others starts a new turn."""


class State(BaseModel):
    """A mutable part of the thread; no unknown keys, so that a checkpoint is read whole or refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:  # noqa: ANN401 - a checkpoint, perhaps through a client that turns [] into null
        return without_nulls(cls, value) if isinstance(value, dict) else value


class Exchange(State):
    """A model's turns and tool calls on the way to its answer."""

    steps: int = 0
    tool_calls: int = 0
    results: dict[str, Evidence] = {}
    """Of the tool calls of the last turn, by their position in it, until all are there."""
    exhausted: bool = False
    """True when tool calls or turns are used up: one last turn without tools is left."""
    raised: bool = False
    """True when a reply was cut: from then on the model gets a larger completion."""


class Conversation(Exchange):
    """A grader's conversation over one draft."""

    log: Log
    offered: tuple[str, ...] = ()
    """The tools of the last turn."""
    repairs: int = 0
    pending: tuple[str, ...] = ()
    """The criteria that were left out, once they are asked for alone."""
    rows: tuple[VerdictRow, ...] = ()
    explanation: str = ""
    forced: bool = False
    """True when the model's first answer, which no schema could bind, was none: it is asked again by the schema alone."""


class GradingPass(State):
    """One grading pass in flight."""

    draft: int
    checks: dict[str, CheckOutcome] = {}
    conversation: Conversation
    usage: Usage = Usage()


class GradingRun(State):
    """One attempt at one rubric."""

    grading_run_id: str
    ordinal: int
    nonce: str
    max_iterations: int
    status: Status = "running"
    iteration: int = 0
    grading: GradingPass | None = None
    judge: ModelSpec | None = None
    """Who judges, where the thread names nobody: found once, so that a worker with other keys changes nothing."""


class Invocation(State):
    """A turn that somebody asked for."""

    keys: list[str]
    """Whoever comes with one of them waits for this turn: its own key first, then those who had it resumed."""
    payload: str
    """The sha256 of what was asked: the same key with another payload is refused."""
    messages: tuple[Message, ...] = ()
    rubric: Rubric | None = None
    max_iterations: int | None = None
    budget: Budget | None = None
    resumes: bool = False
    """True for the update `resume`: it goes on with the interrupted turn, whatever its rubric."""
    joined: dict[str, str] = {}
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


class Outcome(State):
    """How a turn ended, by reference to what the thread holds."""

    key: str
    payload: str
    grading_run_id: str | None
    status: Status | None
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
    evaluations: list[Evaluation] = []
    events: list[Event] = []
    seq: int = 0
    usage: Usage = Usage()
    used_before: Usage = Usage()
    """What the thread had used when the current turn began."""
    status: Literal["idle", "running", "interrupted"] = "idle"
    error: str | None = None
    reason: InterruptReason | None = None
    """Why it is interrupted."""
    budget: Budget | None = None
    priority: Priority | None = None
    active: Invocation | None = None
    """The turn in flight or interrupted."""
    queue: list[Invocation] = []
    outcomes: list[Outcome] = []
    supplied: Rubric | None = None
    """A rubric that came while a turn was in flight and is not in force yet."""
    closing: bool = False
    external_storage: bool = False
    """Whether the worker stores large payloads elsewhere, as the first call told."""

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
