"""The result of a turn, put together from what the thread holds."""

from temporalio import workflow

from workflows.thread_state import Outcome, Thread

with workflow.unsafe.imports_passed_through():
    from gradeloop.contracts import RESULT_MESSAGES_BYTES, RunResult
    from gradeloop.usage import Usage
    from gradeloop.waiting_for import Asked, PendingCall, WaitingFor


def result_of(thread: Thread, outcome: Outcome) -> RunResult:
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
    run, asked = thread.run, tuple(Asked(id=each.id, name=each.text) for each in thread.waiting_for)
    calls = tuple(PendingCall(call=key, tool=each.tool, arguments=each.arguments, role=each.role) for key, each in thread.pending.items())
    if not asked and not calls:
        return None
    place = (run.grading_run_id, run.iteration) if run else (None, None)
    return WaitingFor(grading_run_id=place[0], iteration=place[1], criteria=asked, calls=calls)


def _score_of_nothing(thread: Thread) -> float | None:
    """Return 1 where a rubric that asks for nothing scores by its gate alone, as Mastra's does; else nothing was graded."""
    empty = thread.rubric is not None and thread.rubric.cleared and thread.rubric.scoring == "binary"
    return 1.0 if empty else None


def not_begun(thread: Thread) -> RunResult:
    """Return the result of a queued turn that an interrupt dropped: nothing of it was recorded."""
    here = len(thread.log)
    dropped = Outcome(
        key="", payload="", grading_run_id=None, status="interrupted", start=here, stop=here, evaluations=(0, 0), best=None,
        usage=Usage(), error=None,
    )  # fmt: skip
    return result_of(thread, dropped)


def _is_draft(thread: Thread, at: int) -> bool:
    return thread.log[at].role == "assistant" and not thread.log[at].tool_calls
