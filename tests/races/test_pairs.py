"""Whatever two things come in one workflow task, wherever the thread is: its end is the model's, and nothing is lost or done twice."""

import logging
import random
from collections.abc import Iterator
from itertools import product

import pytest

from tests.races.places import CALLS, PAIRS, PLACES, PLAIN, Place, difference
from tests.races.race import FIRST_TURN, Race

SAMPLE = 80
"""The pairs that every test run looks at, spread over all places by a fixed seed."""


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Have nobody log the refusals that are meant."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, tuple[int, int]]]:
    """Collect how many pairs were right at each place, and print them at the end."""
    counts: dict[str, tuple[int, int]] = {}
    yield counts
    right, total = (sum(column) for column in zip(*counts.values(), strict=True))
    rows = [f"{place:50} {right:4} of {total}" for place, (right, total) in counts.items()]
    print("", *rows, f"{'all places':50} {right:4} of {total}", sep="\n")


def test_the_places_are_all_the_calls_of_the_story() -> None:
    race = Race(PLAIN)
    race.task(FIRST_TURN)
    race.finish()
    made = race.schedule.made
    race.schedule.evict()

    assert made[: len(CALLS)] == list(CALLS)


@pytest.mark.slow
def test_a_sample_of_pairs_ends_as_the_model_says() -> None:
    chosen = random.Random(17).sample(list(product(PLACES, PAIRS)), SAMPLE)

    differences = [difference(place, *pair) for place, pair in chosen]

    assert [found for found in differences if found] == []


def test_a_call_that_is_made_once_a_stop_is_over_is_not_cancelled_by_it() -> None:
    place = next(place for place in PLACES if place.name == "waiting for a decision")

    assert difference(place, "another rubric", "a cleared rubric", "invoke") is None


@pytest.mark.parametrize("place", PLACES, ids=[place.name for place in PLACES])
@pytest.mark.parametrize(
    "share", [pytest.param(5, marks=pytest.mark.slow, id="a fifth"), pytest.param(1, marks=pytest.mark.storm, id="all")]
)
def test_every_pair_ends_as_the_model_says(place: Place, share: int, table: dict[str, tuple[int, int]]) -> None:
    """Look at a fifth of the pairs at each place, another fifth at another place; before a release at all of them."""
    chosen = random.Random(place.name).sample(PAIRS, len(PAIRS) // share)

    differences = [found for pair in chosen if (found := difference(place, *pair))]
    table[f"{place.name}, 1 in {share}"] = len(chosen) - len(differences), len(chosen)

    assert differences == []
