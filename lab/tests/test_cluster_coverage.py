"""Simulations of runs that share items: intervals over items cover the truth at their level, those over runs do not."""

import random

import pytest

from gradeloop.stats.intervals import clustered
from lab.coverage import ACCURACY, LAYOUTS, TRUTH, covered, right_of_items

RUNS = 1000


@pytest.mark.parametrize(("items", "times"), LAYOUTS)
def test_a_share_over_clusters_covers_at_its_level(items: int, times: int) -> None:
    generator = random.Random(9)
    intervals = [clustered(right_of_items(generator, items, times)) for _ in range(RUNS)]

    assert 0.93 * RUNS <= sum(interval.low <= ACCURACY <= interval.high for interval in intervals) <= 0.97 * RUNS


@pytest.mark.slow
@pytest.mark.parametrize(("items", "times"), LAYOUTS)
def test_every_figure_over_clusters_covers_at_its_level(items: int, times: int) -> None:
    found = covered(items, times, RUNS)

    assert {name: found[name] for name in TRUTH if not 0.93 * RUNS <= found[name] <= 0.98 * RUNS} == {}


@pytest.mark.slow
def test_intervals_over_runs_that_share_items_are_far_too_narrow() -> None:
    found = covered(20, 10, 100, clusters=False)

    assert max(found.values()) < 85
