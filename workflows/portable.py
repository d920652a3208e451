"""A thread small enough to be carried to another run of the workflow."""

from temporalio import workflow

from workflows.run_state import Conversation
from workflows.thread_state import Thread

with workflow.unsafe.imports_passed_through():
    from collections.abc import Mapping

    from pydantic_core import to_json

    from gradeloop.rubric import Rubric
    from gradeloop.verdict import Verdict

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
