"""However many things come, in whatever order and however many at once: a thread keeps to its model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.races.events import End, How
from tests.races.places import APPROVED, KINDS, PERSON, PLAIN, TWO
from tests.races.race import Race
from tests.races.story import Story

STORIES = (PLAIN, TWO, PERSON, *APPROVED.values())

AT_ONCE = 3
"""The most events that come in one workflow task."""


class ThreadBesideItsModel(RuleBasedStateMachine):
    """A thread to which things happen: the story goes on a step, or something comes in between."""

    race: Race

    @initialize(story=st.sampled_from(STORIES))
    def begin(self, story: Story) -> None:
        self.race = Race(story)

    @rule(steps=st.integers(1, 8))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.race.step()

    @precondition(lambda self: not self.race.model.closed)
    @rule(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=AT_ONCE), long=st.booleans())
    def happens(self, kinds: list[str], long: bool) -> None:
        events = [event for kind in kinds for event in KINDS[kind](self.race)]
        ends = [event.call for event in events if isinstance(event, End)]
        if len(ends) == len(set(ends)):
            self.race.task(*events, long=long)

    @rule(how=st.sampled_from(("cancelled", "silent", "arrived", "failed")))
    def stopped_calls_end(self, how: How) -> None:
        self.race.asked_end = how

    @precondition(lambda self: self.race.model.closed)
    @rule()
    def start_again(self) -> None:
        self.race.start_again()

    def teardown(self) -> None:
        try:
            self.race.finish()
        finally:
            self.race.schedule.evict()


TestThreadBesideItsModel = ThreadBesideItsModel.TestCase
TestThreadBesideItsModel.settings = settings(stateful_step_count=12, max_examples=settings().max_examples // 3, derandomize=True)
