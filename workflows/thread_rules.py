"""The rules of a thread, on its state alone: when a turn is admitted, when a run starts, goes on and ends."""

import hashlib
import json
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from gradeloop.contract.evaluation import (
    Decision,
    Evaluation,
    Override,
    PendingCall,
    RunStatus,
    WaitingCriterion,
    WaitingFor,
    build_evidence,
)
from gradeloop.contract.messages import Log, Usage, unanswered
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import (
    QUEUED,
    RESULT_MESSAGES_BYTES,
    ApproveRequest,
    DecideRequest,
    DenyRequest,
    InvokeRequest,
    OverrideRequest,
    ResumeRequest,
    RunResult,
    ThreadRequest,
    parse_update,
    refuse_oversize,
)
from gradeloop.errors import InvalidRequest, explain
from gradeloop.grading.scoring import apply_override, best_evaluation
from gradeloop.grading.templates import fill
from workflows.activity_calls import ActivityCalls
from workflows.raw_arguments import decode, parse_rubric
from workflows.thread_state import OUTCOMES_KEPT, GradingRun, Invocation, PassState, Thread, TurnOutcome

NO_RUBRIC = Rubric(criteria=())

NONCE_BITS = 128
"""Of the code that marks the fence around what is judged: not to be guessed by what stands inside it."""


def begin_turn(thread: Thread, turn: Invocation) -> None:
    """Take a turn in: go on with the interrupted run, or append its messages and open a run where a rubric is in force."""
    same = turn.rubric is None or same_rubric(turn.rubric, thread.rubric)
    thread.budget, thread.reason = turn.budget or thread.budget, None
    thread.vars = turn.vars if turn.vars is not None else thread.vars
    thread.template = (turn.template or thread.template) if thread.vars is not None else None
    if thread.status in {"interrupted", "waiting"} and (turn.resumes or (same and not turn.messages)):
        _go_on(thread, turn)
        return
    interrupted = thread.status == "interrupted" and same
    _close_tool_calls(thread)
    if not same:
        supersede(thread)
        thread.replace_rubric(turn.rubric)
    thread.turn, thread.used_before, thread.active, thread.error = len(thread.log), thread.usage, turn, None
    for message in turn.messages:
        thread.append(message)
        thread.request = len(thread.log) - 1
    thread.drafting, thread.status = None, "running"
    if interrupted and thread.run and thread.run.status == "running":
        thread.run.grading = None
        return
    open_run(thread, turn.max_iterations)
    if not turn.messages:
        _grade_again(thread)


def open_run(thread: Thread, max_iterations: int | None = None) -> None:
    """Open a grading run where a rubric is in force; without one, nothing is graded."""
    thread.run = None
    if thread.rubric_in_force is None:
        return
    nonce = f"{workflow.random().getrandbits(NONCE_BITS):032x}"
    limit = max_iterations or thread.max_iterations
    thread.run = GradingRun(grading_run_id=str(workflow.uuid4()), ordinal=thread.runs, nonce=nonce, max_iterations=limit)
    thread.runs += 1
    thread.tell("run_started")


def supersede(thread: Thread) -> None:
    """End a run that is still open: another rubric took over."""
    if thread.run and thread.run.status == "running":
        thread.run.status = "superseded"
        thread.run.grading = None
        thread.tell("run_ended", status="superseded")


def take_supplied(thread: Thread) -> None:
    """Put the supplied rubric in force: a new run, which judges the draft at hand, or the one that is being drafted."""
    supplied, thread.supplied = thread.supplied, None
    if thread.run and thread.run.status not in ("running", "superseded"):
        thread.tell("run_ended", status=thread.run.status)
    supersede(thread)
    thread.replace_rubric(supplied)
    ended, drafting = thread.run, thread.drafting is not None
    open_run(thread, ended.max_iterations if ended else None)
    if thread.run is None:
        thread.run = ended
    elif not drafting:
        _grade_again(thread)


def judge_anew(thread: Thread) -> bool:
    """Begin to judge the last draft by the rubric that came while the thread was idle; False where there is no draft yet."""
    rubric, thread.supplied = thread.supplied, None
    if thread.last_draft() is None:
        thread.replace_rubric(rubric)
        return False
    turn = Invocation(keys=[f"rubric/{thread.seq}"], payload="", rubric=rubric)
    if thread.status == "waiting" and thread.active is not None:
        turn.join(thread.active)
    begin_turn(thread, turn)
    return True


def settle_turn(thread: Thread) -> TurnOutcome:
    """Record how the current turn ended, under each of its keys, and return it."""
    run, turn = thread.run, thread.active
    first = next((at for at, each in enumerate(thread.evaluations) if run and each.grading_run_id == run.grading_run_id), None)
    stop = len(thread.evaluations)
    held = thread.evaluations[first:stop] if first is not None else []
    best = best_evaluation(thread.rubric_in_force, held) if thread.rubric_in_force else None
    outcome = TurnOutcome(
        key="",
        payload="",
        grading_run_id=run.grading_run_id if run else None,
        status=_status(thread),
        start=thread.turn,
        stop=len(thread.log),
        evaluations=(stop if first is None else first, stop),
        best=thread.evaluations.index(best) if best else None,
        usage=thread.usage.minus(thread.used_before),
        error=thread.error,
        reason=thread.reason,
    )
    payloads = {key: turn.payload_of(key) for key in turn.keys} if turn else {}
    thread.outcomes = [outcome for outcome in thread.outcomes if outcome.key not in payloads]
    thread.outcomes += [outcome.model_copy(update={"key": key, "payload": payload}) for key, payload in payloads.items()]
    del thread.outcomes[:-OUTCOMES_KEPT]
    return outcome


def _status(thread: Thread) -> RunStatus | None:
    if thread.status == "interrupted":
        return "interrupted"
    if thread.status == "waiting":
        return "waiting"
    return thread.run.status if thread.run else None


def same_rubric(one: Rubric | None, other: Rubric | None) -> bool:
    """True where both ask for the same, by their canonical form; no rubric and a cleared one are the same."""
    return (one or NO_RUBRIC).canonical() == (other or NO_RUBRIC).canonical()


def _go_on(thread: Thread, turn: Invocation) -> None:
    active = thread.active
    if active is None:
        thread.active = turn
    else:
        active.join(turn)
    thread.status, thread.error = "running", None
    thread.tell("resumed")


def _grade_again(thread: Thread) -> None:
    draft = thread.last_draft()
    if thread.run is not None and draft is not None:
        thread.run.grading = PassState(draft=draft)
        thread.tell("rubric_evaluation_start", index=len(thread.evaluations))


def _close_tool_calls(thread: Thread) -> None:
    """Answer the tool calls that an interruption left open: no provider takes a conversation without their results."""
    results = thread.drafting.results if thread.drafting else {}
    for at, call in enumerate(unanswered(thread.log.slice(max(len(thread.log) - 1, 0)))):
        result = results.get(str(at)) or build_evidence(call.id, "not run: the turn was interrupted", failed=True)
        thread.append(result.message(call.name))


CallAwaitingApproval = TypeVar("CallAwaitingApproval", DecideRequest, OverrideRequest, ApproveRequest, DenyRequest)
Word = TypeVar("Word", ApproveRequest, DenyRequest)


class HumanDecisions:
    """Decisions and overrides of one thread."""

    def __init__(self, thread: Thread, calls: ActivityCalls) -> None:
        self._thread = thread
        self._calls = calls

    @staticmethod
    def ready(thread: Thread) -> bool:
        """True where a turn can begin: while a person is waited for, only the one that goes on."""
        return bool(thread.queue) and (thread.status != "waiting" or thread.queue[0].resumes)

    def refuse_decision(self, raw: RawValue) -> None:
        """Raise where nothing of that name waits; nothing of it is recorded then."""
        asked = _read(DecideRequest, raw, "the decision")
        run = self._thread.run
        place = (asked.grading_run_id, asked.iteration)
        if run is None or self._thread.status != "waiting" or place != (run.grading_run_id, run.iteration):
            raise _stale("that run does not wait for a person, or not at that iteration; ask the query `state` what waits")
        waiting = [each.id for each in self._thread.waiting_for]
        if asked.criterion not in waiting:
            raise _stale(f"the criterion {asked.criterion!r} does not wait; those that do are: {', '.join(waiting)}")

    def decide(self, raw: RawValue) -> None:
        """Take a decision; with the last one the run goes on."""
        asked, thread = _read(DecideRequest, raw, "the decision"), self._thread
        if thread.run is None or thread.run.grading is None:
            return
        gap = None if asked.passed else asked.gap
        thread.run.grading.decisions[asked.criterion] = Decision(passed=asked.passed, gap=gap, by=asked.by)
        thread.tell("decided", criterion=asked.criterion)
        if not thread.waiting_for:
            thread.queue.insert(0, Invocation(keys=[f"decided/{thread.seq}"], payload="", resumes=True))

    def refuse_word(self, model: type[Word], raw: RawValue) -> None:
        """Raise where no such tool call waits; nothing of it is recorded then."""
        asked, waiting = _read(model, raw, "the word on a call"), self._thread.pending
        if self._thread.status != "waiting" or asked.call not in waiting:
            told = f"those that do are: {', '.join(waiting)}" if self._thread.status == "waiting" and waiting else "none does"
            raise _stale(f"the call {asked.call!r} does not wait for a person; {told}")

    def approve(self, raw: RawValue) -> None:
        """Let a tool call go on."""
        asked = _read(ApproveRequest, raw, "the approval")
        self._answer(asked.call, by=asked.by)

    def deny(self, raw: RawValue) -> None:
        """Forbid a tool call."""
        asked = _read(DenyRequest, raw, "the denial")
        self._answer(asked.call, by=asked.by, why=asked.why)

    def _answer(self, call: str, *, by: str, why: str | None = None) -> None:
        """Note what a person said; with the last word the run goes on."""
        thread, asked = self._thread, self._thread.pending.get(call)
        if asked is None:
            return
        asked.approved, asked.by, asked.why = why is None, by, why or ""
        thread.tell("approved" if why is None else "denied", call=call, tool=asked.tool)
        if not thread.pending:
            thread.queue.insert(0, Invocation(keys=[f"decided/{thread.seq}"], payload="", resumes=True))

    def stop_waiting(self) -> None:
        """Interrupt a run that waits for a person."""
        thread = self._thread
        thread.status, thread.reason = "interrupted", "person"
        thread.tell("interrupted", reason="person")
        settle_turn(thread)

    def refuse_override(self, raw: RawValue) -> None:
        """Raise where there is no such row; nothing of it is recorded then."""
        asked = _read(OverrideRequest, raw, "the override")
        at = self._find(asked)
        if at is None or not any(row.id == asked.criterion for row in self._thread.evaluations[at].criteria):
            raise _stale(
                f"there is no verdict on {asked.criterion!r} at that run and iteration; the query `evaluations` shows those there are"
            )
        if self._thread.rubric_of(self._thread.evaluations[at].rubric_sha256) is None:
            raise _stale("the rubric of that evaluation is not kept any more; override one by the rubric in force, or the one before it")

    def override(self, raw: RawValue) -> Evaluation:
        """Record a person's verdict; a run that has not ended, and is met by it, ends."""
        asked, thread = _read(OverrideRequest, raw, "the override"), self._thread
        at = self._find(asked)
        judged = None if at is None else thread.evaluations[at]
        rubric = thread.rubric_of(judged.rubric_sha256) if judged else None
        if at is None or judged is None or rubric is None:
            raise _stale("the evaluation is gone")
        when = workflow.now().isoformat(timespec="milliseconds")
        told = apply_override(rubric, judged, asked.criterion, Override(passed=asked.passed, why=asked.why, by=asked.by, time=when))
        thread.evaluations[at] = told
        thread.tell("overridden", index=at, criterion=asked.criterion)
        if told.overridden_result == "satisfied":
            self._end(at)
        return told

    def _end(self, at: int) -> None:
        """End the run whose newest evaluation this is, where it has not ended: its draft stands."""
        thread, run = self._thread, self._thread.run
        newest = at == len(thread.evaluations) - 1
        if run is None or not newest or run.status != "running" or thread.evaluations[at].grading_run_id != run.grading_run_id:
            return
        run.status, run.grading, thread.drafting = "satisfied", None, None
        if thread.status == "running":
            self._calls.stop("rubric")
        elif thread.status in {"waiting", "interrupted"}:
            thread.status, thread.reason, thread.error = "idle", None, None
            thread.tell("run_ended", status="satisfied")
            settle_turn(thread)

    def _find(self, asked: OverrideRequest) -> int | None:
        place = (asked.grading_run_id, asked.iteration)
        found = [at for at, each in enumerate(self._thread.evaluations) if (each.grading_run_id, each.iteration) == place]
        return found[-1] if found else None


def _read(model: type[CallAwaitingApproval], raw: RawValue, what: str) -> CallAwaitingApproval:
    try:
        return parse_update(model, decode(raw, what))
    except InvalidRequest as error:
        raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None


def _stale(why: str) -> ApplicationError:
    return ApplicationError(why, type="StaleDecision", non_retryable=True)


def result_of(thread: Thread, outcome: TurnOutcome) -> RunResult:
    """Return what a turn came to; it stays within one payload."""
    first, stop = outcome.evaluations
    best = thread.evaluations[outcome.best] if outcome.best is not None else None
    drafts = [at for at in range(outcome.start, outcome.stop) if _is_draft(thread, at)]
    last = drafts[-1] if drafts else best.draft if best else None
    standing = best.draft if best else last
    messages = thread.log.slice(outcome.start, outcome.stop)
    truncated = sum(message.size() for message in messages) > min(RESULT_MESSAGES_BYTES, thread.limit - thread.bytes())
    repeated = last is not None and last == standing and thread.log[last].size() > RESULT_MESSAGES_BYTES
    return RunResult(
        thread_id=thread.thread_id,
        grading_run_id=outcome.grading_run_id,
        status=outcome.status,
        iterations=stop - first,
        output=None if standing is None else thread.log[standing].content,
        best_iteration=best.iteration if best else None,
        last_output=None if last is None or repeated else thread.log[last].content,
        score=best.score if best else _score_of_nothing(thread),
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
    """Return what a person is asked, where the thread waits for one."""
    if thread.status != "waiting":
        return None
    run, asked = thread.run, tuple(WaitingCriterion(id=each.id, name=each.text) for each in thread.waiting_for)
    calls = tuple(PendingCall(call=key, tool=each.tool, arguments=each.arguments, role=each.role) for key, each in thread.pending.items())
    if not asked and not calls:
        return None
    place = (run.grading_run_id, run.iteration) if run else (None, None)
    return WaitingFor(grading_run_id=place[0], iteration=place[1], criteria=asked, calls=calls)


def _score_of_nothing(thread: Thread) -> float | None:
    """Return 1 where a rubric that asks for nothing scores by its gate alone, as Mastra's does; else nothing was graded."""
    empty = thread.rubric is not None and thread.rubric.cleared and thread.rubric.scoring == "binary"
    return 1.0 if empty else None


def dropped_result(thread: Thread) -> RunResult:
    """Return the result of a queued turn that an interrupt dropped: nothing of it was recorded."""
    here = len(thread.log)
    dropped = TurnOutcome(
        key="", payload="", grading_run_id=None, status="interrupted", start=here, stop=here, evaluations=(0, 0), best=None,
        usage=Usage(), error=None,
    )  # fmt: skip
    return result_of(thread, dropped)


def _is_draft(thread: Thread, at: int) -> bool:
    return thread.log[at].role == "assistant" and not thread.log[at].tool_calls


ROLLING = "the thread goes on in a new run of its workflow; send the update again with another update id"

START_KEY = "start"
"""The key of the turn that a thread is started with."""


def begin_thread(request: ThreadRequest) -> Thread:
    """Return the thread that a request starts, or goes on with from its checkpoint.

    Raises:
        InvalidRequest: The checkpoint is none.
    """
    thread = _restored(request) if request.checkpoint is not None else _new(request)
    filled = fill(request.rubric, thread.vars)
    if request.messages:
        rubric = filled if request.checkpoint is not None else None
        payload = payload_sha256(request.model_dump(mode="json", include={"messages", "rubric"}))
        begin_turn(thread, Invocation(keys=[START_KEY], payload=payload, messages=request.messages, rubric=rubric))
    elif request.checkpoint is not None and filled is not None and not same_rubric(filled, thread.rubric):
        thread.supplied = filled
    return thread


def _new(request: ThreadRequest) -> Thread:
    return Thread(
        thread_id=workflow.info().workflow_id,
        generator=request.generator,
        grader=request.grader,
        rubric=fill(request.rubric, request.vars),
        template=request.rubric if request.vars is not None else None,
        vars=request.vars,
        max_iterations=request.max_iterations,
        idle_timeout=request.idle_timeout,
        budget=request.budget,
        priority=request.priority,
        log=Log(),
    )


def _restored(request: ThreadRequest) -> Thread:
    """Read a checkpoint; a turn that was in flight when it was taken is interrupted, unless the thread has just rolled over."""
    checkpoint = request.checkpoint or {}
    try:
        thread = Thread.model_validate(checkpoint.get("thread"))
    except ValidationError as error:
        raise InvalidRequest(f"checkpoint: it is none of this version: {explain(error)}") from None
    if checkpoint.get("rolled"):
        return thread
    if thread.status == "running":
        thread.status = "interrupted"
        settle_turn(thread)
    thread.thread_id, thread.closing = workflow.info().workflow_id, False
    thread.queue.clear()
    thread.generator, thread.grader = request.generator, request.grader or thread.grader
    thread.max_iterations, thread.idle_timeout = request.max_iterations, request.idle_timeout
    thread.budget, thread.priority = request.budget or thread.budget, request.priority or thread.priority
    thread.vars, thread.template = request.vars or thread.vars, request.rubric or thread.template
    return thread


def payload_sha256(payload: dict[str, Any]) -> str:
    """Return the sha256 of what was asked."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True, ensure_ascii=False).encode(errors="replace")).hexdigest()


class TurnValidation:
    """Turns and rubrics of one thread."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def refuse(self, raw: RawValue, update_id: str, *, rolling: bool) -> None:
        """Raise where a turn cannot be taken; nothing of it is recorded then."""
        try:
            request = parse_update(InvokeRequest, decode(raw, "the turn"))
            turn = self.turn(raw, update_id)
            if not self._known(turn):
                self._refuse_new(request, rolling=rolling)
        except InvalidRequest as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    def refuse_resumption(self, raw: RawValue, update_id: str) -> None:
        """Raise where nothing is interrupted, unless this very update had it resumed before the thread rolled over."""
        try:
            turn = self.resumption(raw, update_id)
            if self._waiting(turn.keys[0]) or self._ended(turn.keys[0]):
                return
            if self._thread.status != "interrupted" or self._thread.queue:
                raise ApplicationError("nothing is interrupted in this thread", type="NothingToResume", non_retryable=True)
            self._refuse_used_up(turn.budget)
        except InvalidRequest as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    def resumption(self, raw: RawValue, update_id: str) -> Invocation:
        """Return the turn that goes on with the interrupted one."""
        budget = parse_update(ResumeRequest, decode(raw, "the resumption")).budget
        return Invocation(keys=[f"resume/{update_id}"], payload=payload_sha256({}), resumes=True, budget=budget)

    def _refuse_used_up(self, budget: Budget | None) -> None:
        """Refuse a turn that could make no call."""
        due = budget or self._thread.budget
        if due and (told := due.overrun(self._thread.usage)):
            raise InvalidRequest(f"budget: {told}; give a larger one")

    def turn(self, raw: RawValue, update_id: str) -> Invocation:
        """Return the turn that is asked for."""
        request, thread = parse_update(InvokeRequest, decode(raw, "the turn")), self._thread
        template = request.rubric if request.rubric is not None or request.vars is None else thread.template or thread.rubric
        return Invocation(
            keys=[request.key or update_id],
            payload=payload_sha256(request.model_dump(mode="json", exclude={"key"})),
            messages=request.messages,
            rubric=fill(template, thread.vars if request.vars is None else request.vars),
            template=template,
            vars=request.vars,
            max_iterations=request.max_iterations,
            budget=request.budget,
        )

    def enqueue(self, turn: Invocation) -> None:
        """Queue a turn, or attach to the one of its key; an interrupted one goes on."""
        key = turn.keys[0]
        if self._waiting(key) or self.attaches(key):
            return
        if self._ended(key) is None:
            self._thread.queue.append(turn)
        elif self._is_interrupted(key):
            self._thread.queue.append(Invocation(keys=[key], payload=turn.payload, resumes=True, budget=turn.budget))

    def attaches(self, key: str) -> bool:
        """True for a turn that waits for a person: whoever comes with its key waits for its end."""
        return self._thread.status == "waiting" and self._thread.active is not None and key in self._thread.active.keys

    def ended(self, key: str) -> TurnOutcome | None:
        """Return how a key's turn ended, unless it is still waited for."""
        return None if self._waiting(key) else self._ended(key)

    def supply(self, raw: RawValue) -> bool:
        """Take a supplied rubric in; True where the grading in flight is to be stopped for it."""
        thread = self._thread
        try:
            template = parse_rubric(raw)
            supplied = fill(template, thread.vars) or template
        except InvalidRequest as error:
            thread.tell("rubric_rejected", why=str(error)[:1000])
            return False
        thread.tell("rubric_supplied")
        if thread.status != "idle" and same_rubric(supplied, thread.rubric):
            thread.supplied = None
            return False
        thread.supplied, thread.template = supplied, template if thread.vars is not None else None
        if thread.status == "interrupted":
            take_supplied(thread)
        return thread.status == "running" and thread.run is not None and thread.run.grading is not None

    def _known(self, turn: Invocation) -> bool:
        """True where the key is known with this payload; another payload is refused."""
        key = turn.keys[0]
        waiting, ended = self._waiting(key), self._ended(key)
        payload = waiting.payload_of(key) if waiting else ended.payload if ended else None
        if payload is not None and payload != turn.payload:
            raise InvalidRequest(f"key {key!r} was used for another turn; give this one a key of its own")
        return payload is not None

    def _refuse_new(self, request: InvokeRequest, *, rolling: bool) -> None:
        thread = self._thread
        if rolling:
            raise ApplicationError(ROLLING, type="ThreadRolling")
        if thread.closing:
            raise ApplicationError("the thread is closing and takes no further turns", type="ThreadClosing", non_retryable=True)
        if len(thread.queue) >= QUEUED:
            raise ApplicationError(f"{QUEUED} turns are queued already; wait for one to end", type="Backpressure", non_retryable=True)
        queued = sum(message.size() for turn in thread.queue for message in turn.messages)
        refuse_oversize(request.messages, thread.bytes() + queued, thread.limit)
        self._refuse_used_up(request.budget)
        idle = not request.messages and not thread.queue and thread.status == "idle"
        if idle and (thread.last_draft() is None or not (request.rubric.criteria if request.rubric else thread.rubric_in_force)):
            raise InvalidRequest("messages is empty, nothing is interrupted and there is no draft to grade by a rubric; give a message")

    def _waiting(self, key: str) -> Invocation | None:
        running = self._thread.active if self._thread.status == "running" else None
        return next((turn for turn in (*self._thread.queue, *((running,) if running else ())) if key in turn.keys), None)

    def _ended(self, key: str) -> TurnOutcome | None:
        return next((outcome for outcome in self._thread.outcomes if outcome.key == key), None)

    def _is_interrupted(self, key: str) -> bool:
        active = self._thread.active
        return self._thread.status == "interrupted" and active is not None and key in active.keys
