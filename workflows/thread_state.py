"""What a thread holds: all of it is in the checkpoint, and nothing else is needed to go on elsewhere."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue
from temporalio import workflow

from workflows.run_state import Approval, Exchange, GradingRun, State

with workflow.unsafe.imports_passed_through():
    from gradeloop.budget import Budget
    from gradeloop.criterion import Criterion
    from gradeloop.evaluation import Evaluation, InterruptReason, Status
    from gradeloop.event import Event, EventType
    from gradeloop.modelspec import ModelSpec
    from gradeloop.request import STATE_BYTES, STORED_STATE_BYTES, Generator, Grader, Priority
    from gradeloop.rubric import Rubric
    from gradeloop.strict import FirstMistakes, Items, Table
    from gradeloop.transcript import Log, Message
    from gradeloop.usage import Usage
    from gradeloop.verdict import Verdict

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
    template: Rubric | None = None
    """The rubric as it was given, where variables are put into it."""
    vars: dict[str, JsonValue] | None = None
    rubrics: Table[Rubric] = Field(default_factory=dict)
    """By sha256, the one that was in force before, for whoever wants to see what was asked."""
    verdicts: Table[Verdict] = Field(default_factory=dict)
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
    outcomes: Annotated[list[Outcome], FirstMistakes()] = Field(default_factory=list)
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
        return tuple(each for each in self.rubric.asked_of_people if each.id not in grading.decisions)

    @property
    def pending(self) -> dict[str, Approval]:
        """The tool calls that wait for a person's word, by their ids."""
        grading = self.run.grading if self.run else None
        ledgers = [self.drafting.ledger] if self.drafting else []
        if grading is not None:
            ledgers += [grading.ledger, *(each.ledger for each in grading.conversations.values())]
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
