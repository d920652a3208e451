"""Sequences that a search has found, in which a thread once differed from its model."""

import pytest

from tests.races.places import APPROVED, KINDS
from tests.races.race import Race


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_a_persons_answer_holds_where_no_worker_says_any_more_that_the_tool_needs_one(answer: str) -> None:
    story = next(story for story in APPROVED.values() if "look" in story.approved)
    race = Race(story)

    for kind in ("invoke", "a cleared rubric", "a cleared rubric", "a cleared rubric", "result", answer, "failure"):
        race.task(*KINDS[kind](race), long=kind == "invoke")

    race.finish()
    race.schedule.evict()
