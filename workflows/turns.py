"""When a grading run starts, goes on and ends: the rules, applied to the thread's state alone."""

from temporalio import workflow

from workflows.run_state import GradingPass, GradingRun
from workflows.thread_state import OUTCOMES_KEPT, Invocation, Outcome, Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.evaluation import Status
    from gradeloop.evidence import evidence_of
    from gradeloop.rubric import Rubric
    from gradeloop.scoring import best_of
    from gradeloop.transcript import unanswered

NO_RUBRIC = Rubric(criteria=())

NONCE_BITS = 128
"""Of the code that marks the fence around what is judged: not to be guessed by what stands inside it."""


def begin(thread: Thread, turn: Invocation) -> None:
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
    begin(thread, turn)
    return True


def settle(thread: Thread) -> Outcome:
    """Record how the current turn ended, under each of its keys, and return it."""
    run, turn = thread.run, thread.active
    first = next((at for at, each in enumerate(thread.evaluations) if run and each.grading_run_id == run.grading_run_id), None)
    stop = len(thread.evaluations)
    held = thread.evaluations[first:stop] if first is not None else []
    best = best_of(thread.rubric_in_force, held) if thread.rubric_in_force else None
    outcome = Outcome(
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
    thread.outcomes = [each for each in thread.outcomes if each.key not in payloads]
    thread.outcomes += [outcome.model_copy(update={"key": key, "payload": payload}) for key, payload in payloads.items()]
    del thread.outcomes[:-OUTCOMES_KEPT]
    return outcome


def _status(thread: Thread) -> Status | None:
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
        thread.run.grading = GradingPass(draft=draft)
        thread.tell("rubric_evaluation_start", index=len(thread.evaluations))


def _close_tool_calls(thread: Thread) -> None:
    """Answer the tool calls that an interruption left open: no provider takes a conversation without their results."""
    results = thread.drafting.results if thread.drafting else {}
    for at, call in enumerate(unanswered(thread.log.slice(max(len(thread.log) - 1, 0)))):
        result = results.get(str(at)) or evidence_of(call.id, "not run: the turn was interrupted", failed=True)
        thread.append(result.message(call.name))
