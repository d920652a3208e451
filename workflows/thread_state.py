"""The state of a thread: all that a checkpoint holds, and the results that callers get of it."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import to_json
from temporalio import workflow

from gradeloop.contract.base import Bounded, BoundedDict, Items, OmitEmpty, Page, page_of, without_nulls
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import (
    CheckOutcome,
    Decision,
    DraftInQuestion,
    Evaluations,
    Event,
    EventType,
    Evidence,
    ForkedFrom,
    InterruptReason,
    PendingCall,
    RunStatus,
    Verdict,
    WaitingCriterion,
    WaitingFor,
)
from gradeloop.contract.messages import FEEDBACK_SOURCE, TURN_LIMIT_SOURCE, Log, Message, Usage
from gradeloop.contract.model_spec import Budget, ModelSpec, ToolLimits
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import RESULT_MESSAGES_BYTES, STATE_BYTES, STORED_STATE_BYTES, Generator, Grader, Priority, RunResult
from gradeloop.errors import InvalidRequest
from gradeloop.grading.answer_form import AnswerForm
from gradeloop.grading.changes import changes
from gradeloop.grading.scoring import PassFindings, aggregate, call_groups
from gradeloop.grading.verdicts import GraderConversation, first_judge

StopReason = Literal["rubric", "person", "cancel"]
"""The cause of a stop of calls in flight: another rubric takes over, a person interrupts the turn, or the workflow is cancelled."""

NONCE_BITS = 128
"""The length of the code that marks the fence around what is judged, which must not be guessed by a text inside of it."""


class State(BaseModel):
    """A mutable part of the thread; no unknown keys, so that a checkpoint is read whole or refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:  # noqa: ANN401 - a checkpoint, perhaps through a client that turns [] into null
        return without_nulls(cls, value) if isinstance(value, dict) else value


class Approval(State):
    """A tool call that a person has to approve, and their answer."""

    tool: str
    arguments: dict[str, JsonValue]
    role: Literal["generator", "grader", "check"]
    approved: bool | None = None
    by: str = ""
    why: str = ""

    @property
    def denial(self) -> str:
        """The result of the call where a person denied it."""
        return f"not run: {self.by} denied it: {self.why}"


class ToolCallRecord(State):
    """The tool calls of one turn, or the checks of one pass, without their results."""

    operations: dict[str, str] = Field(default_factory=dict)
    """Ids of the calls by position: they stay the same where the run goes on under another name."""
    approvals: BoundedDict[Approval] = Field(default_factory=dict)
    """Approvals by the id of the call."""
    begun: tuple[str, ...] = ()
    """Ids of the calls that began and must not begin again."""


class Exchange(State):
    """A model's turns and tool calls on the way to its answer."""

    steps: int = 0
    tool_calls: int = 0
    results: BoundedDict[Evidence] = {}
    """Results of the last turn's tool calls, by position, until all are there."""
    exhausted: bool = False
    """True when tool calls or turns are used up: one last turn without tools is left."""
    raised: bool = False
    """True when a reply was cut: from then on the model gets a larger completion."""
    called: tuple[str, ...] = ()
    """The names of the tools that were called, without repetition."""
    ledger: ToolCallRecord = Field(default_factory=ToolCallRecord)


class Conversation(GraderConversation, Exchange):
    """A grader's conversation over one draft, or over one finished run."""

    log: Log
    offered: tuple[str, ...] = ()
    """The names of the tools that the last turn was given."""
    prompt_sha256: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The sha256 of the prompt for the grader of a finished run."""


def join_notes(*notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return all notes once, in order."""
    return tuple(dict.fromkeys(note for several in notes for note in several))


class PassState(State):
    """One grading pass in flight."""

    draft: int
    checks: BoundedDict[CheckOutcome] = {}
    conversations: BoundedDict[Conversation] = {}
    """Conversations with graders by call group and sample, `0/0` the first."""
    decisions: BoundedDict[Decision] = {}
    usage: Usage = Usage()
    ledger: ToolCallRecord = Field(default_factory=ToolCallRecord)
    """The calls of the checks."""
    notes: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Notes of the evaluation about the graders that were called."""

    @property
    def judged_by(self) -> str | None:
        """The grader that judged, the first of several, a fallback where no other did; None where no grader was asked."""
        return first_judge(self.conversations.values())

    @property
    def prompt_sha256(self) -> str | None:
        """The sha256 of the prompts for the graders of a finished run, in order; None where only checks decided."""
        prompts = [conversation.prompt_sha256 for _, conversation in sorted(self.conversations.items()) if conversation.prompt_sha256]
        return None if not prompts else prompts[0] if len(prompts) == 1 else hashlib.sha256("".join(prompts).encode()).hexdigest()

    def findings(self, rubric: Rubric) -> PassFindings:
        """Return what the pass has found until now."""
        answers = {
            (group.index, at): conversation.answer()
            for group in call_groups(rubric)
            for at in range(len(group.judges))
            if (conversation := self.conversations.get(f"{group.index}/{at}")) is not None and conversation.ended
        }
        return PassFindings(answers=answers, checks=self.checks, decisions=self.decisions)


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
    """The grader where the thread names none: found once, so that a worker with other keys changes nothing."""
    pins: dict[str, str] = Field(default_factory=dict)
    """The sha256 of each tool, as the run first saw it."""
    finished: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where a finished run is judged: graders see the messages after the draft too."""
    repeat: int = Field(default=0, exclude_if=lambda value: not value)
    """Number of the judgement of the same finished run, from 0."""
    until_decided: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where votes that cannot change a verdict are not asked."""
    notes: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Notes of its evaluations about the generator."""


EVENTS_KEPT = 2_000
"""The number of newest events that a thread keeps."""

OUTCOMES_KEPT = 64
"""The number of past turns whose keys a thread keeps; a caller that comes again after more turns than that starts a new turn."""


class Invocation(State):
    """A turn that a caller asked for."""

    keys: list[str]
    """Keys whose callers wait for this turn: its own first, then those of the callers that had it resumed."""
    payload: str
    """The sha256 of the request: the same key with another payload is refused."""
    messages: Items[Message] = ()
    rubric: Rubric | None = None
    """The rubric as it was given: variables are put into it when the turn begins."""
    max_iterations: int | None = None
    budget: Budget | None = None
    vars: dict[str, JsonValue] | None = None
    generator: Generator | None = Field(default=None, exclude_if=lambda value: value is None)
    """The generator from now on, where the update `resume` names another model."""
    grader: Grader | None = Field(default=None, exclude_if=lambda value: value is None)
    """The grader from now on, in the same way."""
    resumes: bool = False
    """True for the update `resume`: it goes on with the interrupted turn, whatever its rubric."""
    resumed: bool = Field(default=False, exclude_if=lambda value: not value)
    """True where it was interrupted and goes on."""
    joined: dict[str, str] = Field(default_factory=dict)
    """The payloads of the callers that had it resumed, by their keys."""

    def payload_of(self, key: str) -> str:
        """Return the sha256 of the request that came with one of the keys."""
        return self.joined.get(key, self.payload)

    def join(self, other: "Invocation") -> None:
        """Have the callers that wait for the other turn wait for this one."""
        for key in other.keys:
            if key not in self.keys:
                self.keys.append(key)
                self.joined[key] = other.payload_of(key)


class TurnOutcome(State):
    """The end of a turn, by reference to what the thread holds."""

    key: str
    payload: str
    grading_run_id: str | None
    status: RunStatus | None
    start: int
    """Index of the turn's first message."""
    stop: int
    """Index after the turn's last message."""
    evaluations: tuple[int, int]
    """Indices of the run's first evaluation, and after its last."""
    best: int | None
    """Index of the best draft's evaluation."""
    usage: Usage
    error: str | None
    reason: InterruptReason | None = None
    in_question: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Index of the draft about which a person is asked, where the turn waits."""


OUR_OWN = frozenset({FEEDBACK_SOURCE, TURN_LIMIT_SOURCE})
"""The sources of messages that the loop wrote, and not the thread's user."""


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
    """The rubric that was in force before, by its sha256, so that its evaluations can still be explained."""
    verdicts: BoundedDict[Verdict] = Field(default_factory=dict)
    """Verdicts on the draft that was judged last, by the key of the question."""
    verdicts_of: int | None = None
    """Index of the draft that the verdicts are about."""
    forms: dict[str, AnswerForm] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """The form in which each judge has answered, by the key of its model: later prompts begin as the earlier ones did."""
    max_iterations: int
    idle_timeout: float = 0
    outage_timeout: OmitEmpty[float | None] = None
    """Seconds for which a call waits for a provider that is away; the worker's own by default."""
    log: Log
    turn: int = 0
    """Index of the first message of the current turn."""
    request: int = 0
    """Index of the user's current message."""
    drafting: Exchange | None = None
    run: GradingRun | None = None
    runs: int = 0
    evaluations: Evaluations = Field(default_factory=Evaluations)
    events: Annotated[list[Event], Bounded()] = Field(default_factory=list)
    seq: int = 0
    usage: Usage = Usage()
    turn_usage: Usage = Usage()
    """The usage of the current turn."""
    status: Literal["idle", "running", "waiting", "interrupted"] = "idle"
    error: str | None = None
    reason: InterruptReason | None = None
    """The cause of the thread's interruption; None for any other status."""
    budget: Budget | None = None
    priority: Priority | None = None
    active: Invocation | None = None
    """The turn in flight or interrupted."""
    queue: Annotated[list[Invocation], Bounded()] = Field(default_factory=list)
    outcomes: Annotated[list[TurnOutcome], Bounded()] = Field(default_factory=list)
    owed: dict[str, float] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Keys of turns whose callers gave none and were told to send again, with until when they are expected, in seconds since 1970."""
    supplied: Rubric | None = None
    """A rubric that came while a turn was in flight and is not in force yet."""
    stopping: StopReason | None = Field(default=None, exclude_if=lambda value: value is None)
    """The cause that asked the turn in flight to stop; None once it has stopped."""
    dropping: int = Field(default=0, exclude_if=lambda value: not value)
    """Turns that were waiting when a person interrupted the one in flight; they end with it."""
    asked_about: tuple[int, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Indices of the drafts about which a person was asked, the last two, the newest last."""
    closing: bool = False
    forked_from: ForkedFrom | None = Field(default=None, exclude_if=lambda value: value is None)
    external_storage: bool = False
    """Whether the worker stores large payloads outside of Temporal, by the first call's result."""

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
    def open_run_id(self) -> str | None:
        """The id of the run that has not ended; None where there is none."""
        return self.run.grading_run_id if self.run and self.run.status == "running" else None

    @property
    def phase(self) -> Literal["generating", "grading"]:
        """The part of the turn: a draft is to come, or one is graded."""
        return "grading" if self.run and self.run.grading else "generating"

    def limits(self, role: str) -> ToolLimits:
        """Return the limits of a conversation with tools."""
        return self.generator if role == "generator" else self.grader or ToolLimits()

    @property
    def judge(self) -> ModelSpec | None:
        """The model that judges: the thread's own, or the run's."""
        named = self.grader.model if self.grader else None
        return named or (self.run.judge if self.run else None)

    @property
    def waiting_criteria(self) -> tuple[Criterion, ...]:
        """The criteria that wait for a person."""
        grading = self.run.grading if self.run else None
        if self.status != "waiting" or grading is None or self.rubric is None or self.pending:
            return ()
        return tuple(person for person in self.rubric.asked_of_people if person.id not in grading.decisions)

    @property
    def in_question(self) -> int | None:
        """The index of the draft about which a person is asked, now that the thread waits; None where it is about the generator's call."""
        grading = self.run.grading if self.run else None
        return grading.draft if self.status == "waiting" and grading is not None else None

    def wait_for_person(self) -> None:
        """Have the turn wait for a person, and remember the draft about which they are asked."""
        self.status = "waiting"
        self.record_event("waiting")
        if self.waiting_criteria and self.in_question is not None:
            others = tuple(draft for draft in self.asked_about if draft != self.in_question)
            self.asked_about = (*others[-1:], self.in_question)

    @property
    def pending(self) -> dict[str, Approval]:
        """The tool calls that wait for a person, by their ids."""
        grading = self.run.grading if self.run else None
        ledgers = [self.drafting.ledger] if self.drafting else []
        if grading is not None:
            ledgers += [grading.ledger, *(conversation.ledger for conversation in grading.conversations.values())]
        return {key: approval for ledger in ledgers for key, approval in ledger.approvals.items() if approval.approved is None}

    @property
    def over_budget(self) -> str | None:
        """The reason why the budget allows no other call, and what to do; None if one may be made."""
        return self.budget.refusal(self.usage, "resume with a larger one") if self.budget else None

    def spend(self, usage: Usage) -> None:
        """Count the usage of a call, for the thread and for its current turn."""
        self.turn_usage += usage
        self.usage += usage

    @property
    def limit(self) -> int:
        """The bytes that the thread may hold."""
        return STORED_STATE_BYTES if self.external_storage else STATE_BYTES

    def bytes(self) -> int:
        """Return the size of the thread's messages and evaluations as JSON."""
        return self.log.bytes + self.evaluations.bytes

    def append(self, message: Message) -> int:
        """Add a message with its event, marked as hidden where the grader is not to see it, and return its index."""
        if self.grader and any(filtered.has(message) for filtered in self.grader.hide):
            message = message.model_copy(update={"hidden": True})
        self.log.append(message)
        self.record_event("message", index=len(self.log) - 1)
        return len(self.log) - 1

    def record_event(self, kind: EventType, **fields: object) -> None:
        """Number and keep an event."""
        self.seq += 1
        run = self.run
        place = {"grading_run_id": run.grading_run_id, "iteration": run.iteration} if run else {}
        when = workflow.now().isoformat(timespec="milliseconds")
        self.events.append(Event.model_validate({"seq": self.seq, "type": kind, "time": when} | place | fields))
        del self.events[:-EVENTS_KEPT]

    def request_of(self, draft: int) -> int:
        """Return the index of the user's message that a draft answers."""
        return max(at for at in range(draft) if self.log[at].role == "user" and self.log[at].source not in OUR_OWN)

    def last_draft(self, start: int = 0, stop: int | None = None) -> int | None:
        """Return the index of the newest draft from message `start` to before `stop`: an answer that calls no tool."""
        newest = range((len(self.log) if stop is None else stop) - 1, start - 1, -1)
        return next((at for at in newest if self.log[at].role == "assistant" and not self.log[at].tool_calls), None)


def attaches(thread: Thread, key: str) -> bool:
    """True for the key of a turn that waits for a person: another caller with that key waits for its end."""
    return thread.status == "waiting" and thread.active is not None and key in thread.active.keys


def outcome_of(thread: Thread, key: str) -> TurnOutcome | None:
    """Return how a key's turn ended; None while it is queued or runs."""
    return None if unfinished_turn(thread, key) else last_outcome_of(thread, key)


def unfinished_turn(thread: Thread, key: str) -> Invocation | None:
    """Return a key's turn that waits or runs; None where there is none."""
    running = [thread.active] if thread.active and thread.status == "running" else []
    return next((turn for turn in (*thread.queue, *running) if key in turn.keys), None)


def last_outcome_of(thread: Thread, key: str) -> TurnOutcome | None:
    """Return how a key's turn ended last, also where it goes on."""
    return next((outcome for outcome in thread.outcomes if outcome.key == key), None)


def payload_of(thread: Thread, key: str) -> str | None:
    """Return the sha256 of the request that came with a key; None for an unknown key."""
    unfinished, outcome = unfinished_turn(thread, key), last_outcome_of(thread, key)
    return unfinished.payload_of(key) if unfinished else outcome.payload if outcome else None


def result_of(thread: Thread, outcome: TurnOutcome) -> RunResult:
    """Return the result of a turn; it stays within one payload."""
    first, stop = outcome.evaluations
    best = thread.evaluations[outcome.best] if outcome.best is not None else None
    last = thread.last_draft(outcome.start, outcome.stop)
    last = best.draft if last is None and best else last
    if outcome.status == "waiting":  # whose draft is not judged yet: no other one is its result
        best, output = None, outcome.in_question
    else:
        output = best.draft if best else last
    # A result has to fit into one payload. So large messages are left out, which the query `messages` pages, and
    # a large last draft that is the output as well is given once.
    messages = thread.log.slice(outcome.start, outcome.stop)
    truncated = sum(message.size() for message in messages) > min(RESULT_MESSAGES_BYTES, thread.limit - thread.bytes())
    repeated = last is not None and last == output and thread.log[last].size() > RESULT_MESSAGES_BYTES
    without_criteria = 1.0 if thread.rubric and thread.rubric.cleared and thread.rubric.scoring == "binary" else None  # as Mastra scores
    return RunResult(
        thread_id=thread.thread_id,
        grading_run_id=outcome.grading_run_id,
        status=outcome.status,
        iterations=stop - first,
        output=None if output is None else thread.log[output].content,
        best_iteration=best.iteration if best else None,
        last_output=None if last is None or repeated else thread.log[last].content,
        score=best.score if best else without_criteria,
        evaluations=tuple(thread.evaluations[first:stop]),
        messages=None if truncated else tuple(messages),
        messages_truncated=truncated,
        usage=outcome.usage,
        error=outcome.error,
        reason=outcome.reason,
        waiting_for=waiting_for(thread) if outcome.status == "waiting" else None,
        overridden_result=thread.evaluations[stop - 1].overridden_result if stop > first else None,
    )


def waiting_for(thread: Thread) -> WaitingFor | None:
    """Return the criteria and tool calls that wait for a person; None where nothing does."""
    if thread.status != "waiting":
        return None
    criteria = tuple(WaitingCriterion(id=criterion.id, name=criterion.text) for criterion in thread.waiting_criteria)
    calls = tuple(
        PendingCall(call=key, tool=approval.tool, arguments=approval.arguments, role=approval.role)
        for key, approval in thread.pending.items()
    )
    if not criteria and not calls:
        return None
    run = thread.run
    return WaitingFor(
        grading_run_id=run.grading_run_id if run else None,
        iteration=run.iteration if run else None,
        criteria=criteria,
        calls=calls,
        draft=_draft_in_question(thread),
    )


def _draft_in_question(thread: Thread) -> DraftInQuestion | None:
    """Return the draft about which a person is asked, in at most 256 KiB."""
    index, grading, rubric = thread.in_question, thread.run.grading if thread.run else None, thread.rubric
    if index is None or grading is None or rubric is None:
        return None
    text = thread.log[index].content
    rows = tuple(row for row in aggregate(rubric, grading.findings(rubric)).rows if not row.unverified)
    rows = rows if _bytes(rows) <= DETAIL_BYTES else tuple(row.curtailed() for row in rows)
    previous = next((draft for draft in reversed(thread.asked_about) if draft != index), None)
    found = None if previous is None else changes(thread.log[previous].content, text, most=COMPARED_CHARACTERS)
    return DraftInQuestion(
        index=index,
        text=text if thread.log[index].size() <= RESULT_MESSAGES_BYTES else None,
        rows=rows,
        previous=previous,
        changes=found.pieces if found is not None and _bytes(found.pieces) <= DETAIL_BYTES else None,
    )


def _bytes(values: Iterable[BaseModel]) -> int:
    return sum(len(to_json(value)) for value in values)


def dropped_result(thread: Thread, reason: InterruptReason, error: str | None = None) -> RunResult:
    """Return the result of a queued turn that ended before it began: nothing of it was recorded."""
    here = len(thread.log)
    dropped = TurnOutcome(
        key="", payload="", grading_run_id=None, status="interrupted", start=here, stop=here, evaluations=(0, 0), best=None,
        usage=Usage(), error=error, reason=reason,
    )  # fmt: skip
    return result_of(thread, dropped)


DETAIL_BYTES = 64 * 1024
"""The most bytes as JSON of a draft's rows, and of its changes, beside the question to a person: a result stays within one payload."""

COMPARED_CHARACTERS = 256 * 1024
"""The most characters of two drafts together that a workflow compares: a task that takes two seconds counts as a deadlock."""

FEW_EVENTS = 500
"""The number of newest events that a full thread keeps."""

FULL = 0.9
"""The share of its limit from which on a thread counts as full."""


# A checkpoint is the argument of the next run, so it has to fit into one payload. Whatever is left out can be
# had again for money or is only shown: verdicts for reuse, the former rubric, old events, a grader's
# conversation. Messages, evaluations and usage never go, since nothing could bring them back.
def portable(thread: Thread) -> Thread:
    """Return the thread, where it is too large without what can be had again.

    First go reusable verdicts, the former rubric and older events, then the grader's conversations in flight, then the pass's others.
    """
    grading = thread.run.grading if thread.run else None
    conversations = grading.conversations if grading else {}
    room = thread.limit - thread.bytes()
    if _size(thread.verdicts) + _size(thread.rubrics) + _size(conversations) <= room and thread.bytes() < FULL * thread.limit:
        return thread
    thread = thread.model_copy(update={"verdicts": {}, "verdicts_of": None, "rubrics": {}, "events": thread.events[-FEW_EVENTS:]})
    if thread.run is None or grading is None or _size(conversations) <= room:
        return thread
    ended = {key: conversation for key, conversation in conversations.items() if conversation.ended}
    kept = grading.model_copy(update={"conversations": ended if _size(ended) <= room else {}})
    return thread.model_copy(update={"run": thread.run.model_copy(update={"grading": kept})})


def _size(values: Mapping[str, Conversation] | Mapping[str, Verdict] | Mapping[str, Rubric]) -> int:
    return sum(len(to_json(value)) for value in values.values())


_STICKY = ("generator", "grader", "vars", "forms", "runs", "priority", "external_storage", "max_iterations", "idle_timeout", "budget")


def fork_at(thread: Thread, index: int) -> tuple[Thread, Message | None]:
    """Return a thread as it was after an evaluation, by its index, and the feedback that followed, if any; the thread has cost nothing.

    Raises:
        InvalidRequest: There is no such evaluation.
    """
    # A fork is the state cut at the evaluation: messages up to its draft, evaluations and events up to
    # itself. Then it goes on as an interrupted thread does, by the same rules. Queue, keys, outcomes and
    # usage stay behind: they belong to the callers of the other thread, where the cost is counted already.
    if not 0 <= index < len(thread.evaluations):
        raise InvalidRequest(f"evaluation: there is none of index {index}; the thread has {len(thread.evaluations)}, from 0")
    judged = thread.evaluations[index]
    run_id, draft, request = judged.grading_run_id, judged.draft, thread.request_of(judged.draft)
    seq = max((event.seq for event in thread.events if (event.type, event.index) == ("rubric_evaluation_end", index)), default=0)
    ordinal = len({evaluation.grading_run_id for evaluation in thread.evaluations[:index]} - {run_id})
    own = thread.run if thread.run and thread.run.grading_run_id == run_id else None
    run = own or GradingRun(grading_run_id=run_id, ordinal=ordinal, nonce="", max_iterations=thread.max_iterations)
    rubric, said = thread.rubric_of(judged.rubric_sha256), next(iter(thread.log.slice(draft + 1)), None)
    begun = [outcome.start for outcome in thread.outcomes if outcome.start <= draft < outcome.stop] or [min(thread.turn, request)]
    forked = Thread.model_construct(
        thread_id=thread.thread_id,
        log=thread.log.first(draft + 1),
        rubric=rubric,
        template=thread.template if rubric is thread.rubric else None,
        verdicts=thread.verdicts if thread.verdicts_of == draft else {},
        verdicts_of=draft,
        turn=max(begun),
        request=request,
        run=run.model_copy(update={"status": "running", "iteration": judged.iteration, "grading": None}),
        evaluations=Evaluations(thread.evaluations[: index + 1]),
        events=[event for event in thread.events if event.seq <= seq],
        seq=seq,
        status="interrupted",
        forked_from=ForkedFrom(thread_id=thread.thread_id, grading_run_id=run_id, iteration=judged.iteration),
        outage_timeout=thread.outage_timeout,
        **{name: getattr(thread, name) for name in _STICKY},
    )
    return forked, said if said is not None and said.source == FEEDBACK_SOURCE else None


MESSAGES = "messages"
"""The key of a thread's own messages, beside those of its conversations with graders."""


def page_of_log(thread: Thread, key: str, after: int, limit: int) -> Page[Message]:
    """Return messages of the thread, or of the conversation with a grader whose key it is."""
    grading = thread.run.grading if thread.run else None
    conversation = grading.conversations.get("/".join(key.split("/")[-2:])) if grading else None
    log = thread.log if key == MESSAGES else conversation.log if conversation else Log()
    return Page[Message](**page_of(log.slice(0), after, limit))


# The code comes from the workflow's own random numbers: a replay must draw the same one, or its prompts
# would differ from those that were sent. Their seed is the server's, so that no text that is judged can
# know it.
def draw_nonce() -> str:
    """Return a new secret code for the fence of a prompt, as 32 hexadecimal digits."""
    return f"{workflow.random().getrandbits(NONCE_BITS):032x}"
