"""The rules of a thread, only on its state: when a turn is admitted, when a run starts, goes on and ends."""

import hashlib
import json
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from gradeloop.contract.evaluation import Evaluation, InterruptReason, Judgement, RunStatus, build_evidence
from gradeloop.contract.messages import FEEDBACK_SOURCE, Log, Message, Usage, unanswered
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import QUEUED, Grader, InvokeRequest, ResumeRequest, ThreadRequest, parse_update, refuse_oversize, with_model
from gradeloop.errors import InvalidRequest, explained
from gradeloop.grading.prompts import PROMPT_VERSION
from gradeloop.grading.scoring import best_evaluation, result_of, score_of, status_of
from gradeloop.grading.templates import fill
from gradeloop.text import shortened
from workflows.raw_arguments import decode, parse_rubric
from workflows.stop_rule import draft_is_due, must_end_turn
from workflows.thread_state import (
    OUTCOMES_KEPT,
    Exchange,
    GradingRun,
    Invocation,
    PassState,
    Thread,
    TurnOutcome,
    attaches,
    draw_nonce,
    join_notes,
    last_outcome_of,
    payload_of,
    unfinished_turn,
)

START_KEY = "start"
"""The key of the turn that a thread is started with."""

RESUMED = "resume/"
"""The beginning of the keys of those who had a turn resumed."""

ROLLING = "the thread goes on in a new run of its workflow; send the same update again, with the same key if it has one"

OWED_SECONDS = 600.0
"""Seconds in which a turn without a key that is sent again is recognised by its content."""

NEWEST = "begin with the newest rubric"
"""The patch since which a rubric that waits in a checkpoint is in force before that of the start, as where a turn is interrupted."""

SPARED = "spare a turn that is asked for again"
"""The patch since which a queued turn that an interrupt would drop is served where its key is sent again before the run has stopped."""

_FEEDBACK = TypeAdapter(dict[Literal["feedback"], Message | None])

NO_RUBRIC = Rubric(criteria=())


def begin_thread(request: ThreadRequest) -> Thread:
    """Return the thread that a request starts, or continues by its checkpoint: its messages are a turn, a rubric without them is supplied.

    Raises:
        InvalidRequest: The checkpoint is none, or the turn or the rubric cannot be taken.
    """
    thread = _new(request) if request.checkpoint is None else _restored(request, request.checkpoint)
    if request.checkpoint is not None and "fork" in request.checkpoint:
        _fork_off(thread, request, request.checkpoint)
        return thread
    if request.messages:
        key = START_KEY if request.checkpoint is None else f"{START_KEY}/{workflow.info().run_id}"
        turn = InvokeRequest(messages=request.messages, rubric=request.rubric, vars=request.vars)
        _refuse_new_turn(thread, turn)
        enqueue(thread, _invocation(turn, key))
        return thread
    rubric = _fill(thread, request.rubric, request.vars)
    if rubric is None:
        return thread
    if not same_rubric(rubric, thread.rubric) or (thread.supplied is not None and workflow.patched(NEWEST)):
        _have_take_over(thread, rubric)
    return thread


def _new(request: ThreadRequest) -> Thread:
    return Thread(
        thread_id=workflow.info().workflow_id,
        generator=request.generator,
        grader=request.grader,
        max_iterations=request.max_iterations,
        idle_timeout=request.idle_timeout,
        outage_timeout=request.outage_timeout,
        budget=request.budget,
        priority=request.priority,
        log=Log(),
    )


def _restored(request: ThreadRequest, checkpoint: dict[str, Any]) -> Thread:
    """Read a checkpoint; a turn that was in flight when it was taken is interrupted, unless the thread has just rolled over."""
    with explained("checkpoint: it is none of this version: "):
        thread = Thread.model_validate(checkpoint.get("thread"))
    if checkpoint.get("rolled"):
        return thread
    if thread.status == "running":
        thread.status = "interrupted"
        if thread.supplied is not None and workflow.patched(NEWEST):
            take_supplied(thread)
        record_outcome(thread)
    elif thread.status == "waiting":
        thread.record_event("waiting")
    # From here on the thread belongs to whoever starts it anew. Queued turns and a stop in progress are left out, since their callers
    # wait at the former workflow. The settings are the request's; a grader, budget, priority or outage timeout that it leaves out stays
    # as it was.
    thread.thread_id, thread.closing = workflow.info().workflow_id, False
    thread.stopping, thread.dropping = None, 0
    thread.queue.clear()
    thread.generator, thread.grader = request.generator, request.grader or thread.grader
    thread.max_iterations, thread.idle_timeout = request.max_iterations, request.idle_timeout
    thread.outage_timeout = request.outage_timeout or thread.outage_timeout
    thread.budget, thread.priority = request.budget or thread.budget, request.priority or thread.priority
    return thread


def _fork_off(thread: Thread, request: ThreadRequest, checkpoint: dict[str, Any]) -> None:
    """Have a thread go on by itself from the iteration of another: by the feedback that its draft got, or by judging the draft anew."""
    with explained("checkpoint.fork: "):
        feedback = _FEEDBACK.validate_python(checkpoint["fork"]).get("feedback")
        if feedback is not None and (feedback.role != "user" or feedback.source != FEEDBACK_SOURCE):
            raise InvalidRequest("feedback: it is not that of a rubric; leave the checkpoint as it is")
    if request.messages or thread.run is None or thread.forked_from is None:
        raise InvalidRequest("messages: a fork goes on from the draft of its checkpoint; leave them out, and invoke the fork with them")
    rubric, judge = _fill(thread, request.rubric, request.vars), checkpoint["thread"].get("grader")
    same = rubric is None or same_rubric(rubric, thread.rubric)
    if not same:
        thread.replace_rubric(rubric)
    if thread.rubric_in_force is None:
        raise InvalidRequest("rubric: the fork has none; give it one")
    at = thread.forked_from.iteration
    thread.active, thread.status = Invocation(keys=[f"{START_KEY}/{workflow.info().run_id}"], payload=""), "running"
    # With the same rubric and grader, the verdict on the draft still holds. So the fork goes on behind its feedback, and no second
    # judgement is paid for. Otherwise the draft is judged anew, in a run of the fork's own that begins at the same iteration.
    if feedback is not None and same and thread.grader == (judge and Grader.model_validate(judge)):
        if at + 1 >= request.max_iterations:
            raise InvalidRequest(f"max_iterations: {request.max_iterations}, and the fork goes on with draft {at + 2}; raise it")
        thread.run.nonce, thread.run.max_iterations, thread.run.iteration = draw_nonce(), request.max_iterations, at + 1
        thread.append(feedback)
        thread.drafting = Exchange()
        return
    supersede(thread)
    open_run(thread, request.max_iterations)
    if thread.run is not None:
        thread.run.iteration = at
    _grade_again(thread)


def payload_sha256(payload: dict[str, Any]) -> str:
    """Return the sha256 of a request."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True, ensure_ascii=False).encode(errors="replace")).hexdigest()


def parse_turn(thread: Thread, raw: RawValue, update_id: str) -> Invocation:
    """Return the turn that the update `invoke` asks for."""
    request = parse_update(InvokeRequest, decode(raw, "the turn"))
    turn = _invocation(request, request.key or update_id)
    owed = None if request.key else _owed_key(thread, turn.payload)
    return turn.model_copy(update={"keys": [owed]}) if owed else turn


def _invocation(request: InvokeRequest, key: str) -> Invocation:
    return Invocation(
        keys=[key],
        payload=payload_sha256(request.model_dump(mode="json", exclude={"key"})),
        messages=request.messages,
        rubric=request.rubric,
        vars=request.vars,
        max_iterations=request.max_iterations,
        budget=request.budget,
    )


# Temporal forgets update ids when a workflow continues as new. A caller without a key that sends its turn again has a new update id, so the
# turn's content has to tell that it is the same one. Otherwise each attempt during a roll-over would become a turn of its own.
def _owed_key(thread: Thread, payload: str) -> str | None:
    """Return the key of a turn whose caller was told to send it again, and did so without a key; None where there is none."""
    return next((key for key, until in thread.owed.items() if until > workflow.time() and payload_of(thread, key) == payload), None)


def parse_resumption(thread: Thread, raw: RawValue, update_id: str) -> Invocation:
    """Return the turn that goes on with the interrupted one.

    Raises:
        InvalidRequest: A field is wrong, or the thread has no model in the place of the one that is named.
    """
    request, judge = parse_update(ResumeRequest, decode(raw, "the resumption")), thread.grader or Grader()
    return Invocation(
        keys=[f"{RESUMED}{update_id}"],
        payload=payload_sha256({}),
        resumes=True,
        budget=request.budget,
        generator=with_model(thread.generator, request.model, "model", remote=thread.generator.model is None),
        grader=with_model(judge, request.grader, "grader", remote=judge.remote is not None),
    )


def refuse_turn(thread: Thread, raw: RawValue, update_id: str, *, rolling: bool) -> None:
    """Raise where a turn cannot be taken; nothing of it is recorded then."""
    try:
        request = parse_update(InvokeRequest, decode(raw, "the turn"))
        if not _is_known(thread, parse_turn(thread, raw, update_id)):
            _refuse_new_turn(thread, request, rolling=rolling)
    except InvalidRequest as error:
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None


def _is_known(thread: Thread, turn: Invocation) -> bool:
    """True where the key is known with this payload; another payload is refused."""
    key, payload = turn.keys[0], payload_of(thread, turn.keys[0])
    if payload is not None and payload != turn.payload:
        raise InvalidRequest(f"key {key!r} was used for another turn; give this one a key of its own")
    return payload is not None


# Admission decides only from the state, before the server records the update: a refusal leaves nothing in the history, so a caller in a
# loop cannot fill it. Start, checkpoint and update all pass here; otherwise one door would take a turn that another refuses.
# Invariant: what is admitted can begin. Its size and its variables are therefore checked together with those of the turns before it. Only
# variables of a turn or rubric that comes later can still spoil it, and the turn then ends interrupted. Without the bound of the queue, a
# thread that waits for a person would grow until no payload holds it.
def _refuse_new_turn(thread: Thread, request: InvokeRequest, *, rolling: bool = False) -> None:
    """Raise where a turn cannot be taken, through whichever door it comes."""
    if rolling:
        raise ApplicationError(ROLLING, type="ThreadRolling")
    if thread.closing:
        raise ApplicationError("the thread is closing and takes no further turns", type="ThreadClosing", non_retryable=True)
    if len(thread.queue) >= QUEUED:
        raise ApplicationError(f"{QUEUED} turns are queued already; wait for one to end", type="Backpressure", non_retryable=True)
    queued = sum(message.size() for turn in thread.queue for message in turn.messages)
    refuse_oversize(request.messages, thread.bytes() + queued, thread.limit)
    _refuse_used_up(thread, request.budget)
    _refuse_unfit_rubric(thread, request)
    rubric = request.rubric or (thread.rubric if thread.supplied is None else thread.supplied)
    idle = not request.messages and not thread.queue and thread.status == "idle"
    if idle and (thread.last_draft() is None or rubric is None or not rubric.criteria):
        raise InvalidRequest("messages is empty, nothing is interrupted and there is no draft to grade by a rubric; give a message")


def _refuse_unfit_rubric(thread: Thread, request: InvokeRequest) -> None:
    """Raise where the turn's rubric cannot be filled with the variables that are to count then, by the turns before it in the queue."""
    rubric, variables = thread.template or thread.rubric, thread.vars
    turns: list[Invocation | InvokeRequest] = [*thread.queue[thread.dropping :], request]
    for turn in turns:
        rubric, variables = turn.rubric or rubric, variables if turn.vars is None else turn.vars
    if request.rubric is not None or request.vars is not None:
        fill(rubric, variables)


def refuse_resumption(thread: Thread, raw: RawValue, update_id: str) -> None:
    """Raise where nothing is interrupted, unless this very update had it resumed before the thread rolled over."""
    try:
        turn = parse_resumption(thread, raw, update_id)
        if unfinished_turn(thread, turn.keys[0]) or last_outcome_of(thread, turn.keys[0]):
            return
        if not _can_resume(thread):
            raise ApplicationError("nothing is interrupted in this thread", type="NothingToResume", non_retryable=True)
        _refuse_used_up(thread, turn.budget)
        if (turn.generator or turn.grader) and thread.status == "running" and not must_end_turn(thread):
            why = "the run goes on already; interrupt it, then resume it with another model"
            raise ApplicationError(why, type="InvalidRequest", non_retryable=True)
    except InvalidRequest as error:
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None


def _refuse_used_up(thread: Thread, budget: Budget | None) -> None:
    """Refuse a turn that could make no call."""
    due = budget or thread.budget
    if due and (overrun := due.overrun(thread.usage)):
        raise InvalidRequest(f"budget: {overrun}; give a larger one")
    if due and (refusal := due.refusal(thread.usage)):
        raise InvalidRequest(f"budget: {refusal}")


def _can_resume(thread: Thread) -> bool:
    """True where a run is interrupted, is about to be, or goes on since another caller had it resumed."""
    if _resuming(thread) is not None:
        return True
    taken = any(queued.messages for queued in thread.queue[thread.dropping :])  # a turn goes on with the run in its place
    return not taken and (thread.status == "interrupted" or must_end_turn(thread))


# During a stop, the first `dropping` turns of the queue end with it, so only those behind them count. If the first of these goes on with
# the run, another `resume` joins it. A second turn in the queue would find nothing to resume.
def _resuming(thread: Thread) -> Invocation | None:
    """Return the turn that goes on with the interrupted run already, whose end another `resume` waits for too."""
    waiting = thread.queue[thread.dropping :]
    if waiting and (thread.status == "interrupted" or must_end_turn(thread)):
        first = waiting[0]
        return first if first.resumes or not first.messages else None
    active = thread.active if thread.status == "running" and not must_end_turn(thread) else None
    return active if active and active.resumed else None


def resume(thread: Thread, turn: Invocation) -> None:
    """Queue a turn that goes on with the interrupted run, or attach to the one that does so already."""
    if unfinished_turn(thread, turn.keys[0]) or last_outcome_of(thread, turn.keys[0]):
        return
    if (other := _resuming(thread)) is None:
        thread.queue.append(turn)
        return
    other.join(turn)
    other.budget = turn.budget or other.budget
    other.generator, other.grader = turn.generator or other.generator, turn.grader or other.grader
    thread.budget = turn.budget or thread.budget


# A key has at most one turn. Another call with it attaches to the turn in the queue or in flight, takes the known outcome, or continues
# the interrupted turn. A turn that is still being stopped counts as interrupted: otherwise a caller that repeats its call during the stop
# would get the interruption instead of the answer that it asks for.
def enqueue(thread: Thread, turn: Invocation) -> None:
    """Queue a turn, or attach to the one of its key; an interrupted one goes on."""
    key = turn.keys[0]
    unfinished = unfinished_turn(thread, key)
    stops = unfinished is not None and unfinished is thread.active and must_end_turn(thread)
    if stops and any(queued.messages for queued in thread.queue[thread.dropping :]):
        return  # another turn goes on with the run
    if unfinished is not None and not stops:
        _spare(thread, unfinished)
        return
    if attaches(thread, key):
        return
    if not stops and last_outcome_of(thread, key) is None:
        thread.queue.append(turn)
    elif stops or (thread.status == "interrupted" and thread.active is not None and key in thread.active.keys):
        thread.queue.append(Invocation(keys=[key], payload=turn.payload, resumes=True, budget=turn.budget))


def _spare(thread: Thread, turn: Invocation) -> None:
    """Have a turn that the stop in progress would drop be served after it, since its caller asks again."""
    if turn.resumes and any(queued.messages for queued in thread.queue[thread.dropping :]):
        return  # another turn goes on with the run
    if any(dropped is turn for dropped in thread.queue[: thread.dropping]) and workflow.patched(SPARED):
        thread.queue = [*(other for other in thread.queue if other is not turn), turn]
        thread.dropping -= 1


def may_begin(thread: Thread) -> bool:
    """True where the next turn of the queue can begin: while a person is waited for, only one that goes on."""
    return bool(thread.queue) and (thread.status != "waiting" or thread.queue[0].resumes)


def is_due(thread: Thread) -> bool:
    """True where a turn can begin, or a rubric that came is not in force yet, and nothing runs."""
    return thread.status != "running" and (may_begin(thread) or thread.supplied is not None)


def proceed(thread: Thread) -> None:
    """Begin what is due: the next turn, or what a rubric asks for that came while nothing was running.

    Raises:
        InvalidRequest: The next turn's rubric cannot be filled with the variables as they are now; the turn is out of the queue.
    """
    if may_begin(thread):
        begin_turn(thread, thread.queue.pop(0))
    elif thread.status == "waiting":
        take_supplied(thread)
        if thread.drafting is None:
            _go_on(thread)
    elif thread.status == "interrupted":
        take_supplied(thread)
    else:
        judge_anew(thread)


def begin_turn(thread: Thread, turn: Invocation) -> None:
    """Take a turn in, with the variables as they are now; where its rubric cannot be filled, nothing changes."""
    _begin(thread, turn, _fill(thread, turn.rubric, turn.vars))


def _fill(thread: Thread, given: Rubric | None, variables: dict[str, JsonValue] | None = None) -> Rubric | None:
    """Take variables, and return the rubric that they fill: the given one, or the one in force where only variables are given.

    Raises:
        InvalidRequest: It cannot be filled; the variables stay as they were.
    """
    template = given if given is not None or variables is None else thread.template or thread.rubric
    variables = thread.vars if variables is None else variables
    filled = fill(template, variables)
    thread.vars, thread.template = variables, None if variables is None else template or thread.template
    return filled


def _begin(thread: Thread, turn: Invocation, rubric: Rubric | None) -> None:
    """Go on with the interrupted run, or append the turn's messages and open a run where a rubric is in force."""
    same = rubric is None or same_rubric(rubric, thread.rubric)
    thread.budget, thread.reason = turn.budget or thread.budget, None
    thread.generator = turn.generator or thread.generator
    thread.grader = turn.grader or thread.grader
    if turn.grader and thread.run:
        thread.run.judge = None
    if thread.status in {"interrupted", "waiting"} and (turn.resumes or (same and not turn.messages)):
        _go_on(thread, turn)
        return
    if turn.resumes and thread.active is not None:  # what it was to resume has ended meanwhile, or did so before the last turn
        known = [last_outcome_of(thread, key) for key in turn.keys]
        if not all(outcome and outcome.status != "interrupted" for outcome in known):
            thread.active.join(turn)
            record_outcome(thread)
        return
    if thread.status == "interrupted" and not turn.messages:
        _take_over(thread, rubric, turn.max_iterations)
        _go_on(thread, turn)
        return
    interrupted = thread.status == "interrupted" and same
    _close_tool_calls(thread)
    if not same:
        supersede(thread)
        thread.replace_rubric(rubric)
    thread.turn, thread.error = len(thread.log), None
    thread.active = turn.model_copy(update={"messages": ()})  # which the log has: held twice, they would not fit into a checkpoint
    thread.turn_usage = Usage()
    for message in turn.messages:
        thread.append(message)
        thread.request = len(thread.log) - 1
    thread.drafting, thread.status = None, "running"
    # A message to an interrupted run, under the same rubric, stays in that run, and its iterations count on. Only
    # the pass in flight is dropped, since it judges a draft from before the message.
    if interrupted and thread.run and thread.run.status == "running":
        thread.run.grading = None
        return
    open_run(thread, turn.max_iterations)
    if not turn.messages:
        _grade_again(thread)


def _go_on(thread: Thread, turn: Invocation | None = None) -> None:
    """Have the turn go on that was interrupted or waited; the callers of `turn` wait for it too."""
    if thread.active is None:
        thread.active = turn
    elif turn is not None:
        thread.active.join(turn)
    if thread.active is not None:
        thread.active.resumed = thread.active.resumed or thread.status == "interrupted"
    thread.status, thread.error = "running", None
    thread.record_event("resumed")


def _close_tool_calls(thread: Thread) -> None:
    """Answer the tool calls that an interruption left open: no provider takes a conversation without their results."""
    results = thread.drafting.results if thread.drafting else {}
    for at, call in enumerate(unanswered(thread.log.slice(max(len(thread.log) - 1, 0)))):
        result = results.get(str(at)) or build_evidence(call.id, "not run: the turn was interrupted", failed=True)
        thread.append(result.message(call.name))


def open_run(thread: Thread, max_iterations: int | None = None) -> None:
    """Open a grading run where a rubric is in force; without one, nothing is graded."""
    thread.run = None
    if thread.rubric_in_force is None:
        return
    nonce = draw_nonce()
    limit = max_iterations or thread.max_iterations
    thread.run = GradingRun(grading_run_id=str(workflow.uuid4()), ordinal=thread.runs, nonce=nonce, max_iterations=limit)
    thread.runs += 1
    thread.record_event("run_started")


def _grade_again(thread: Thread) -> None:
    draft = thread.last_draft()
    if thread.run is not None and draft is not None:
        thread.run.grading = PassState(draft=draft)
        thread.record_event("rubric_evaluation_start", index=len(thread.evaluations))


def supersede(thread: Thread) -> None:
    """End a run that is still open: another rubric took over."""
    if thread.run and thread.run.status == "running":
        thread.run.status = "superseded"
        thread.run.grading = None
        thread.record_event("run_ended", status="superseded")


def refuse_rubric(thread: Thread, raw: RawValue, *, rolling: bool) -> None:
    """Raise where a rubric cannot be taken; nothing of it is recorded then."""
    if rolling:
        raise ApplicationError(ROLLING, type="ThreadRolling")
    try:
        fill(parse_rubric(raw), thread.vars)
    except InvalidRequest as error:
        raise ApplicationError(str(error), type="InvalidRequest", non_retryable=True) from None


def supply_rubric(thread: Thread, raw: RawValue) -> bool:
    """Take the rubric of a signal or an update; True where the grading in flight is to be stopped for it."""
    try:
        supplied = _fill(thread, parse_rubric(raw))
    except InvalidRequest as error:
        thread.record_event("rubric_rejected", why=str(error)[:1000])
        return False
    # A rubric that differs takes over as soon as it can; for an idle thread, the same one asks for another judgement. In a turn, the one
    # in force given again withdraws another that waits. It waits itself only after a person's override has ended the run by an older
    # draft, since the turn still owes its message a run.
    thread.record_event("rubric_supplied")
    if thread.status == "idle" or not same_rubric(supplied, thread.rubric):
        return _have_take_over(thread, supplied)
    thread.supplied = thread.rubric if _owes_run(thread) else None
    return False


def _have_take_over(thread: Thread, rubric: Rubric | None) -> bool:
    """Have a rubric take over as soon as it can; True where the grading in flight is to be stopped for it."""
    thread.supplied = rubric
    if thread.status == "interrupted":
        take_supplied(thread)
    return thread.status == "running" and thread.run is not None and thread.run.grading is not None


def _owes_run(thread: Thread) -> bool:
    """True where a person ended the run by an older draft than the current message asks for: the turn goes on in a run of its own."""
    ended = thread.run is not None and thread.run.status == "satisfied" and thread.rubric_in_force is not None
    return ended and thread.evaluations[-1].draft < thread.request


def take_supplied(thread: Thread) -> None:
    """Put the supplied rubric in force: a new run, which judges the draft at hand, or the one that is being drafted."""
    supplied, thread.supplied = thread.supplied, None
    _take_over(thread, supplied)


# A finished draft is judged by the new rubric rather than written again, since it is paid for. One that is due, or still being written,
# becomes the new run's first draft. The new run keeps the limit of iterations of the one before, which the turn may have set.
def _take_over(thread: Thread, rubric: Rubric | None, max_iterations: int | None = None) -> None:
    """Put a rubric in force in the middle of a turn: by the draft rule, a draft that is due is the new run's first."""
    if thread.run and thread.run.status not in ("running", "superseded"):
        thread.record_event("run_ended", status=thread.run.status)
    supersede(thread)
    thread.replace_rubric(rubric)
    ended, due = thread.run, draft_is_due(thread)
    open_run(thread, max_iterations or (ended.max_iterations if ended else None))
    if thread.run is None:
        thread.run = ended
    elif not due:
        _grade_again(thread)


def judge_anew(thread: Thread) -> None:
    """Begin to judge the last draft by the rubric that came while the thread was idle; without a draft it waits for the first one."""
    rubric, thread.supplied = thread.supplied, None
    if thread.last_draft() is None:
        thread.replace_rubric(rubric)
    else:
        _begin(thread, Invocation(keys=[f"rubric/{thread.seq}"], payload=""), rubric)


def same_rubric(one: Rubric | None, other: Rubric | None) -> bool:
    """True where both ask for the same, by their canonical form; no rubric and a cleared one are the same."""
    return (one or NO_RUBRIC).canonical() == (other or NO_RUBRIC).canonical()


def record_evaluation(thread: Thread, rubric: Rubric, run: GradingRun, grading: PassState, judgement: Judgement) -> Evaluation:
    """End the grading pass: decide its result and the run's status, and keep the evaluation."""
    result = result_of(rubric, judgement)
    run.status = status_of(result, last=run.iteration + 1 >= run.max_iterations)
    evaluation = Evaluation(
        grading_run_id=run.grading_run_id,
        iteration=run.iteration,
        result=result,
        status=run.status,
        explanation=shortened(judgement.explanation),
        criteria=judgement.rows,
        score=score_of(rubric, judgement),
        unverified=any(row.unverified for row in judgement.rows),
        usage=grading.usage,
        draft=grading.draft,
        grader=grading.judged_by,
        rubric_sha256=rubric.sha256(),
        prompt_version=PROMPT_VERSION if rubric.judged else None,
        notes=join_notes(run.notes, grading.notes),
    )
    if thread.bytes() + evaluation.size() > thread.limit:
        evaluation = evaluation.curtailed()
    thread.evaluations.append(evaluation)
    run.grading = None
    thread.record_event("rubric_evaluation_end", index=len(thread.evaluations) - 1, result=result, status=run.status)
    return evaluation


def record_outcome(thread: Thread) -> None:
    """Record how the current turn ended, under each of its keys."""
    run, turn = thread.run, thread.active
    first = next((at for at, evaluation in enumerate(thread.evaluations) if run and evaluation.grading_run_id == run.grading_run_id), None)
    stop = len(thread.evaluations)
    rubric, evaluations = thread.rubric_in_force, thread.evaluations[first:stop] if first is not None else []
    own = [evaluation for evaluation in evaluations if evaluation.draft >= thread.request]  # the run may have begun with an earlier turn
    best = best_evaluation(rubric, own) if rubric else None
    status: RunStatus | None = run.status if run else None
    if thread.status in ("interrupted", "waiting"):
        status = thread.status
    outcome = TurnOutcome(
        key="",
        payload="",
        grading_run_id=run.grading_run_id if run else None,
        status=status,
        start=thread.turn,
        stop=len(thread.log),
        evaluations=(stop if first is None else first, stop),
        best=(first or 0) + evaluations.index(best) if best else None,
        usage=thread.turn_usage,
        error=thread.error,
        reason=thread.reason,
        in_question=thread.in_question,
    )
    # A turn has its own key and those of callers that had it resumed. Each gets the outcome, so whoever comes again with one of them has
    # the same answer. An outcome holds indices and no copies of messages, since it is part of every checkpoint.
    payloads = {key: turn.payload_of(key) for key in turn.keys} if turn else {}
    thread.outcomes = [outcome for outcome in thread.outcomes if outcome.key not in payloads]
    thread.outcomes += [outcome.model_copy(update={"key": key, "payload": payload}) for key, payload in payloads.items()]
    del thread.outcomes[:-OUTCOMES_KEPT]


def end_overridden_run(thread: Thread, index: int) -> bool:
    """End the run whose newest evaluation a person has made a pass; True where calls in flight are to be stopped for it.

    A later turn, whose message that evaluation is not about, goes on as under a rubric that was supplied: to a draft and a run of its own.
    """
    run, evaluation = thread.run, thread.evaluations[index]
    newest = index == len(thread.evaluations) - 1 and run is not None and evaluation.grading_run_id == run.grading_run_id
    if evaluation.overridden_result != "satisfied" or run is None or not newest or run.status != "running":
        return False
    run.status = "satisfied"
    if _owes_run(thread):
        return _have_take_over(thread, thread.supplied or thread.rubric)
    run.grading = thread.drafting = None
    if thread.status in {"waiting", "interrupted"}:
        thread.status, thread.reason, thread.error = "idle", None, None
        thread.record_event("run_ended", status="satisfied")
        record_outcome(thread)
        return False
    return thread.status == "running"


def interrupt_turn(thread: Thread, reason: InterruptReason, error: str | None = None) -> None:
    """Interrupt the turn in flight, or the one that waits for a person; a rubric that came before is in force when it goes on."""
    thread.status, thread.reason, thread.error = "interrupted", reason, error
    if reason == "failure":
        thread.record_event("run_ended", status="interrupted", reason=reason)
    else:
        thread.record_event("interrupted", reason=reason)
    if thread.supplied is not None:
        take_supplied(thread)
    record_outcome(thread)
