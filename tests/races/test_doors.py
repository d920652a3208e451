"""A turn and a rubric come through several doors, and do the same through each: an update, a signal, a start from a checkpoint."""

import logging
import random
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from tests.races.events import Close, Invoke, Supply
from tests.races.places import PERSON, PLACES, PLAIN, Place
from tests.races.race import FIRST_TURN, Race
from tests.races.story import Rubric
from tests.rig.tables import over

TURNS: tuple[tuple[str, Rubric | None], ...] = (("more", None), ("more", "first"), ("more", "other"), ("more", "cleared"))
RUBRICS: tuple[Rubric, ...] = ("other", "cleared")

SAMPLE = 16
"""What every test run looks at of all that comes everywhere, by a fixed seed."""

Door = Callable[[Race, str, Rubric | None], None]


def _ungraded(race: Race) -> None:
    race.task(FIRST_TURN)
    race.rest()
    race.task(Supply("cleared"))


def _closed(race: Race) -> None:
    race.task(FIRST_TURN)
    race.rest()
    race.task(Close())


def _closed_while_waiting(race: Race) -> None:
    race.task(FIRST_TURN)
    while race.model.status != "waiting":
        race.step()
    race.task(Close())


AT_REST = (
    *(place for place in PLACES if place.name.startswith(("idle", "waiting", "interrupted", "before the first turn", "a later turn int"))),
    *(place for place in PLACES if place.name.startswith("a later turn waiting")),
    Place("idle without a rubric", PLAIN, _ungraded),
)
CLOSED = (Place("closed", PLAIN, _closed), Place("closed while it waited for a decision", PERSON, _closed_while_waiting))


def by_update(race: Race, text: str, rubric: Rubric | None) -> None:
    race.task(Invoke("a turn", "its key", text, rubric))


def by_update_of_a_reopened_thread(race: Race, text: str, rubric: Rubric | None) -> None:
    race.restart()
    race.task(Invoke("a turn", "its key", text, rubric))


def by_signal(race: Race, _: str, rubric: Rubric | None) -> None:
    race.task(Supply(rubric))


def by_signal_to_a_reopened_thread(race: Race, _: str, rubric: Rubric | None) -> None:
    race.restart()
    race.task(Supply(rubric))


def by_start(race: Race, text: str, rubric: Rubric | None) -> None:
    race.restart(text, rubric)
    race.task()


def through(door: Door, place: Place, text: str, rubric: Rubric | None) -> list[dict[str, object]]:
    """Return what the thread shows once a turn or a rubric came through a door: when it rests, and at the end; all as the model says."""
    race, shown = place.reached(), []
    try:
        door(race, text, rubric)
        race.compare()
        for go_on in (race.rest, race.finish):
            go_on()
            race.compare()
            shown.append({name: what for name, what in race.view().seen().items() if name != "the answers"})
    finally:
        race.schedule.evict()
    return shown


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Have nobody log the refusals that are meant."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


EVERYWHERE = tuple(product((*AT_REST, *CLOSED), (*TURNS, *(("", rubric) for rubric in RUBRICS))))
"""What comes, at every place: a turn with messages, or a rubric alone."""


def differs(place: Place, text: str, rubric: Rubric | None) -> str | None:
    """Send a turn or a rubric through every door there is, and return what it was where they differ."""
    if text:
        doors: tuple[Door, ...] = (by_update, by_update_of_a_reopened_thread, by_start)
    else:
        doors = (by_signal, by_signal_to_a_reopened_thread, by_start)
    shown = [through(door, place, text, rubric) for door in (doors[1:] if place in CLOSED else doors)]
    return None if shown == [shown[0]] * len(shown) else f"{place.name}: {text or 'no text'}, rubric {rubric}"


@pytest.mark.slow
def test_a_sample_of_turns_and_rubrics_does_the_same_through_every_door() -> None:
    chosen = random.Random(17).sample(EVERYWHERE, SAMPLE)

    assert [found for place, given in chosen if (found := differs(place, *given))] == []


@pytest.mark.slow
@pytest.mark.parametrize("place", [*AT_REST, *CLOSED], ids=lambda place: place.name)
def test_a_turn_or_a_rubric_does_the_same_through_every_door(place: Place) -> None:
    assert [found for here, given in EVERYWHERE if here == place and (found := differs(place, *given))] == []


@pytest.mark.slow
@over("place", [place for place in (*AT_REST, *CLOSED) if place.name in {"idle with a draft", "waiting for a decision", "closed"}])
def test_a_start_that_names_the_rubric_in_force_judges_nothing_again(place: Place) -> None:
    starts_with_the_rubric_in_force(place)


@pytest.mark.slow
@over("place", [*AT_REST, *CLOSED])
def test_a_start_that_names_the_rubric_in_force_judges_nothing_again_anywhere(place: Place) -> None:
    starts_with_the_rubric_in_force(place)


def starts_with_the_rubric_in_force(place: Place) -> None:
    """Start a thread again from its checkpoint with the rubric that it has, and see that it is as a start without one."""
    race = place.reached()
    race.schedule.evict()

    assert through(by_start, place, "", race.model.thread.rubric) == through(by_start, place, "", None)
