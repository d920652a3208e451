"""Drift tests at their level: false alarms in simulated series, the delay to an alarm, and what a fixed threshold does on the same."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from gradeloop.stats.drift import Cusum, CusumState, DriftState, DriftTest, lowest_likely_rate

WINDOWS = 1_000
RUNS = 50


def first_alarm(test: DriftTest, passed: Iterable[int], runs: int = RUNS) -> int | None:
    """Return the window of the first alarm, from 1."""
    state = DriftState()
    for window, count in enumerate(passed, 1):
        state = test.after(state, int(count), runs)
        if test.alarms(state):
            return window
    return None


def first_cusum_alarm(test: Cusum, passed: Iterable[int], runs: int = RUNS) -> int | None:
    state = CusumState()
    for window, count in enumerate(passed, 1):
        state = test.after(state, int(count), runs)
        if test.alarms(state):
            return window
    return None


def quiet(series: int, rate: float, seed: int, runs: int = RUNS) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.binomial(runs, rate, WINDOWS).tolist() for _ in range(series)]


def share_of_alarms(series: list[list[int]], find: Callable[[list[int]], int | None]) -> float:
    return sum(find(one) is not None for one in series) / len(series)


def test_a_quiet_series_raises_no_alarm() -> None:
    assert share_of_alarms(quiet(15, 0.95, seed=1), lambda one: first_alarm(DriftTest(0.95), one)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "runs"), [(0.95, 50), (0.5, 7), (0.99, 200)])
def test_quiet_series_raise_an_alarm_in_at_most_5_percent_of_1000_windows(rate: float, runs: int) -> None:
    series = quiet(100, rate, seed=1, runs=runs)

    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(rate), one, runs)) <= 0.05
    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(rate, "up"), one, runs)) <= 0.05


@pytest.mark.slow
def test_false_alarms_of_1000_series_beside_a_fixed_threshold() -> None:
    series = quiet(1_000, 0.95, seed=2)
    fixed = share_of_alarms(series, lambda one: next((at for at, count in enumerate(one, 1) if count / RUNS < 0.9), None))

    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(0.95), one)) <= 0.05
    assert share_of_alarms(series, lambda one: first_cusum_alarm(Cusum(0.95, 0.92), one)) <= 0.05
    assert fixed > 0.99


def test_a_better_rate_is_no_decline() -> None:
    assert share_of_alarms(quiet(50, 0.97, seed=3), lambda one: first_alarm(DriftTest(0.95), one)) == 0


def delays(before: int, find: Callable[[list[int]], int | None], rate: float = 0.90, series: int = 60) -> list[int]:
    """Return how many windows after the change the alarm comes; the rate was 0.95 for so many windows before."""
    random = np.random.default_rng(4)
    found = [find([*random.binomial(RUNS, 0.95, before).tolist(), *random.binomial(RUNS, rate, 400).tolist()]) for _ in range(series)]
    true = [alarm - before for alarm in found if alarm is not None and alarm > before]
    assert len(true) >= 0.95 * series, "the others are false alarms before the change"
    return true


def test_a_fall_from_95_to_90_percent_is_found_soon_however_late_it_comes() -> None:
    early = delays(1, lambda one: first_alarm(DriftTest(0.95), one))
    late = delays(500, lambda one: first_alarm(DriftTest(0.95), one))

    assert np.median(early) <= 12
    assert np.median(late) <= 12
    assert max(late) <= 40


def test_a_slow_decline_is_found_by_the_cusum() -> None:
    slow = delays(100, lambda one: first_cusum_alarm(Cusum(0.95, 0.92), one), rate=0.92)

    assert np.median(slow) <= 30


def test_the_all_clear_comes_when_the_rate_is_above_its_target_again() -> None:
    random = np.random.default_rng(5)
    found = [first_alarm(DriftTest(0.90, "up"), random.binomial(RUNS, 0.95, 200).tolist()) for _ in range(30)]

    assert all(found)
    assert np.median([alarm for alarm in found if alarm]) <= 20


def test_a_baseline_that_is_estimated_does_not_cry_wolf() -> None:
    random, alarms = np.random.default_rng(6), 0
    for _ in range(100):
        low = lowest_likely_rate(int(random.binomial(100, 0.95)), 100, 0.025)
        alarms += first_alarm(DriftTest(low, alpha=0.025), random.binomial(RUNS, 0.95, 300).tolist()) is not None

    assert alarms <= 5


@pytest.mark.parametrize(
    ("passed", "runs", "lowest"), [(95, 100, 0.887165089), (1, 3, 0.008403759), (50, 50, 0.928878264), (700, 1000, 0.670538321)]
)
def test_the_lowest_likely_rate_is_clopper_and_pearsons(passed: int, runs: int, lowest: float) -> None:
    assert lowest_likely_rate(passed, runs, 0.025) == pytest.approx(lowest, abs=1e-8)  # the quantile of the beta distribution, by SciPy


def test_degenerate_windows_are_taken() -> None:
    test = DriftTest(1.0)
    state = test.after(DriftState(), 0, 0)

    assert state == DriftState()
    assert test.evidence(state) == 0
    assert not test.alarms(test.after(state, 10, 10))
    assert lowest_likely_rate(0, 10) == lowest_likely_rate(0, 0) == 0
    assert math.isfinite(test.evidence(test.after(state, 0, 100_000)))


def test_the_state_survives_as_json() -> None:
    test = DriftTest(0.9)
    state = test.after(test.after(DriftState(), 40, 50), 41, 50)

    assert test.evidence(DriftState.model_validate_json(state.model_dump_json())) == test.evidence(state)
