"""The net holds: a guard that is taken out of the workflow is missed by some pair of events."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from temporalio import workflow

from tests.races.places import CALLS, PAIRS, PLACES, Place, difference
from workflows import stop_rule
from workflows.activity_calls import ActivityCalls
from workflows.thread_state import Invocation, StopReason, Thread

PLACE = {place.name: place for place in PLACES}


def replace_everywhere(patch: pytest.MonkeyPatch, function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Have every module of the workflows call another function in place of one."""
    for name, module in list(sys.modules.items()):
        if name.startswith("workflows.") and getattr(module, function.__name__, None) is function:
            patch.setattr(module, function.__name__, other)


def every_error_is_a_failure(patch: pytest.MonkeyPatch) -> None:
    """Take errors of calls that were asked to stop for failures."""
    replace_everywhere(patch, stop_rule.end_without_result, lambda _, error: stop_rule.Failed(error))


def the_last_reason_counts(patch: pytest.MonkeyPatch) -> None:
    """Have a rubric take the stop of a person over."""

    def ask(thread: Thread, reason: StopReason) -> None:
        as_it_is(thread, reason)
        thread.stopping = reason

    as_it_is = stop_rule.ask_to_stop
    replace_everywhere(patch, as_it_is, ask)


def the_last_draft_will_do(patch: pytest.MonkeyPatch) -> None:
    """Have a rubric judge whatever draft there is."""
    replace_everywhere(patch, stop_rule.draft_is_due, lambda _: False)


def all_turns_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """Have a stop end those turns, too, that came after it."""

    def drop(thread: Thread) -> list[Invocation]:
        queued, thread.queue = thread.queue, []
        return queued

    replace_everywhere(patch, stop_rule.turns_dropped_by_stop, drop)


def a_stop_is_remembered(patch: pytest.MonkeyPatch) -> None:
    """Have a stop outlive the turn that it ended."""
    replace_everywhere(patch, stop_rule.forget_stop, lambda _: None)


def nothing_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    """Let the calls in flight go on as if nobody had asked them to stop."""
    patch.setattr(ActivityCalls, "_cancel_calls", lambda *_: asyncio.sleep(0))


def nobody_counts_what_was_no_answer(patch: pytest.MonkeyPatch) -> None:
    """Have only answers counted."""
    patch.setattr(ActivityCalls, "_count", lambda *_: None)


def a_pause_is_slept_through(patch: pytest.MonkeyPatch) -> None:
    """Have nobody end the pause before a call is made again."""
    patch.setattr(ActivityCalls, "_pause", lambda _, seconds, __: workflow.sleep(seconds))


Mutant = Callable[[pytest.MonkeyPatch], None]

MUTANTS: dict[Mutant, str] = {
    every_error_is_a_failure: CALLS[0],
    the_last_reason_counts: CALLS[4],
    the_last_draft_will_do: "before the first task of the next run",
    all_turns_are_dropped: CALLS[1],
    a_stop_is_remembered: CALLS[3],
    nothing_is_cancelled: CALLS[0],
    nobody_counts_what_was_no_answer: CALLS[2],
    a_pause_is_slept_through: f"in the pause behind {CALLS[0]}",
}
"""Guards that are taken out, and a place at which that shows."""


def is_missed(mutant: Mutant, place: Place, pair: tuple[str, str]) -> bool:
    """Return whether a pair of events ends as the model says with a guard, and otherwise without it."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        without = difference(place, *pair)
    return without is not None and difference(place, *pair) is None


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_guard_that_is_missing_is_missed(mutant: Mutant) -> None:
    assert any(is_missed(mutant, PLACE[MUTANTS[mutant]], pair) for pair in PAIRS)
