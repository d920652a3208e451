"""However many things come, in whatever order and however many at once: a thread keeps to its model."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.races.events import Elapsed, End, How
from tests.races.places import APPROVED, KINDS, PERSON, PLAIN, TWO
from tests.races.race import FIRST_TURN, Race
from tests.races.story import RUBRICS, Rubric, Story

STORIES = (PLAIN, TWO, PERSON, *APPROVED.values())

AT_ONCE = 3
"""The most events that come in one workflow task."""


class ThreadBesideItsModel(RuleBasedStateMachine):
    """A thread to which things happen: the story goes on a step, or something comes in between."""

    @initialize(story=st.sampled_from(STORIES), begun=st.booleans())
    def begin(self, story: Story, begun: bool) -> None:
        self.race = Race(story)
        self.agree = True
        if begun:
            self.race.task(FIRST_TURN)

    @contextmanager
    def _agreeing(self) -> Iterator[Race]:
        """Note that thread and model disagree where something raises, so that nobody goes on with them."""
        self.agree = False
        yield self.race
        self.agree = True

    @rule(steps=st.integers(1, 8))
    def go_on(self, steps: int) -> None:
        with self._agreeing() as race:
            for _ in range(steps):
                race.step()

    @precondition(lambda self: not self.race.model.closed)
    @rule(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=AT_ONCE), long=st.booleans())
    def happens(self, kinds: list[str], long: bool) -> None:
        with self._agreeing() as race:
            events = [event for kind in kinds for event in KINDS[kind](race)]
            ends = [event.call for event in events if isinstance(event, End | Elapsed)]
            if len(ends) == len(set(ends)) and kinds.count("cancel") + race.schedule.cancelled < 2:  # Temporal takes one
                race.task(*events, long=long)

    @rule(how=st.sampled_from(("cancelled", "silent", "arrived", "failed")))
    def stopped_calls_end(self, how: How) -> None:
        self.race.asked_end = how

    @rule(asked_again=st.booleans(), text=st.sampled_from(("", "", "more")), rubric=st.sampled_from((None, *RUBRICS)))
    def is_lost(self, asked_again: bool, text: str, rubric: Rubric | None) -> None:
        """The workflow is terminated, or ran out of its time, and the thread goes on from its checkpoint."""
        with self._agreeing() as race:
            if asked_again:
                race.start_again()
            else:
                race.restart(text, rubric)

    def teardown(self) -> None:
        try:
            if self.agree:
                self.race.finish()
        finally:
            self.race.schedule.evict()


QUICK = settings.get_current_profile_name() == "quick"


@pytest.mark.hypothesis
@pytest.mark.parametrize("number", [1] if QUICK else [1, 2, 3, 4])
def test_a_thread_keeps_to_its_model_in_sequences_that_are_the_same_every_time(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # It also draws what it finds in the modules that are loaded, which in another run are others.
    monkeypatch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None)
    sequences = settings(
        stateful_step_count=12,
        max_examples=40 if QUICK else 250,
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(ThreadBesideItsModel), settings=sequences)


LOOK = APPROVED["look"]
ONCE_DIFFERENT: dict[str, tuple[Story, bool, list[tuple[str, dict[str, object]]]]] = {
    "a cleared rubric, a cancel and a person's word": (
        PLAIN,
        True,
        [("go_on", {"steps": 7}), ("happens", {"kinds": ["a cleared rubric", "cancel", "override"], "long": False})],
    ),
    "a cleared rubric and a stop after the grade": (
        PLAIN,
        True,
        [
            ("go_on", {"steps": 6}),
            ("stopped_calls_end", {"how": "arrived"}),
            ("happens", {"kinds": ["a cleared rubric", "interrupt"], "long": False}),
        ],
    ),
    "a rubric and a cancel while a call waits": (
        LOOK,
        False,
        [
            ("happens", {"kinds": ["invoke, the same key"], "long": False}),
            ("go_on", {"steps": 1}),
            ("happens", {"kinds": ["invoke, the same key"], "long": False}),
            ("happens", {"kinds": ["another rubric", "cancel"], "long": False}),
        ],
    ),
    "a person's word and the loss of the thread": (
        PLAIN,
        True,
        [
            ("go_on", {"steps": 7}),
            ("happens", {"kinds": ["override"], "long": False}),
            ("is_lost", {"asked_again": False, "rubric": None, "text": "more"}),
        ],
    ),
    "a person's word under a rubric that ends, and the loss of the thread": (
        PLAIN,
        True,
        [
            ("go_on", {"steps": 7}),
            ("happens", {"kinds": ["a cleared rubric", "override"], "long": False}),
            ("is_lost", {"asked_again": False, "rubric": None, "text": "more"}),
        ],
    ),
    "a rubric, a close and a key again while a call waits": (
        LOOK,
        False,
        [
            ("happens", {"kinds": ["invoke, the same key"], "long": False}),
            ("go_on", {"steps": 1}),
            ("happens", {"kinds": ["another rubric", "close", "invoke, the same key"], "long": False}),
        ],
    ),
    "a rubric, a cancel and a new run of the workflow": (
        LOOK,
        False,
        [
            ("happens", {"kinds": ["invoke, the same key"], "long": False}),
            ("go_on", {"steps": 1}),
            ("happens", {"kinds": ["invoke"], "long": False}),
            ("happens", {"kinds": ["a cleared rubric", "cancel"], "long": True}),
        ],
    ),
    "a key again, behind two empty turns": (
        PLAIN,
        True,
        [
            ("happens", {"kinds": ["a cleared rubric"], "long": False}),
            ("happens", {"kinds": ["interrupt", "invoke, no messages"], "long": False}),
            ("happens", {"kinds": ["invoke, no messages", "invoke, the same key"], "long": False}),
        ],
    ),
}
"""Sequences that thread and model once saw differently, by what comes together."""


@pytest.mark.parametrize("name", ONCE_DIFFERENT)
def test_a_sequence_that_thread_and_model_once_saw_differently_keeps_to_the_model(name: str) -> None:
    story, begun, steps = ONCE_DIFFERENT[name]
    state = ThreadBesideItsModel()
    state.begin(story=story, begun=begun)
    for rule_name, arguments in steps:
        getattr(state, rule_name)(**arguments)
    state.teardown()
