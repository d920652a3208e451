"""Sequences that a search has found, in which a thread once differed from its model."""

import pytest

from tests.races.places import APPROVED, KINDS, PLAIN
from tests.races.race import FIRST_TURN, Race


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_a_persons_answer_holds_where_no_worker_says_any_more_that_the_tool_needs_one(answer: str) -> None:
    story = next(story for story in APPROVED.values() if "look" in story.approved)
    race = Race(story)

    for kind in ("invoke", "a cleared rubric", "a cleared rubric", "a cleared rubric", "result", answer, "failure"):
        race.task(*KINDS[kind](race), long=kind == "invoke")

    race.finish()
    race.schedule.evict()


@pytest.mark.parametrize("before", [(), ("a cleared rubric",) * 7 + ("invoke, the same key",)])
def test_nothing_is_left_to_resume_where_another_turn_goes_on_with_the_run_that_is_being_stopped(before: tuple[str, ...]) -> None:
    race = Race(PLAIN)

    for kind in ("invoke", *before):
        race.task(*KINDS[kind](race))
    race.task(*(event for kind in ("interrupt", "invoke", "resume") for event in KINDS[kind](race)))

    assert "NothingToResume" in race.model.answers.values()
    race.finish()
    race.schedule.evict()


@pytest.mark.parametrize(
    "stop", [("interrupt",), ("cancel",), ("interrupt", "close"), ("close", "cancel"), ("cancel", "a cleared rubric", "close")]
)
def test_a_queued_turn_that_is_asked_for_again_while_the_run_is_being_stopped_is_served_unless_the_workflow_ends(
    stop: tuple[str, ...],
) -> None:
    race = Race(PLAIN)

    for kinds in (("invoke",), ("invoke, the same key",), stop, ("invoke, the same key",)):
        race.task(*(event for kind in kinds for event in KINDS[kind](race)))

    race.finish()
    race.schedule.evict()


@pytest.mark.parametrize("more", [(), ("invoke, the same key",), ("resume",)])
def test_who_asks_again_never_gets_the_answer_to_another_message(more: tuple[str, ...]) -> None:
    race = Race(PLAIN)
    race.task(FIRST_TURN)

    for kind in ("interrupt", "invoke, the same key", "interrupt", "invoke", "invoke, the same key", *more):
        race.task(*KINDS[kind](race))

    race.finish()
    race.schedule.evict()


def test_the_rubric_of_a_start_counts_also_where_it_is_in_force_and_was_to_be_cleared() -> None:
    race = Race(PLAIN)
    race.task(FIRST_TURN)
    race.restart()
    for _ in range(5):
        race.step()

    race.task(*KINDS["a cleared rubric"](race))
    race.restart(rubric="first")

    race.finish()
    race.schedule.evict()
