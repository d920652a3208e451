"""The drift test at its level: false alarms where rates vary in several ways, the delay to an alarm, and what a fixed threshold does."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from gradeloop.stats.drift import SHIFTS, DriftState, DriftTest, Spread, lowest_likely_rate

WINDOWS = 1_000
RUNS = 50
DAY = 144
"""Windows of a day."""

Rates = NDArray[np.float64]


def first_alarm(test: DriftTest, passed: Iterable[int], runs: int = RUNS) -> int | None:
    """Return the window of the first alarm, from 1."""
    state = DriftState()
    for window, count in enumerate(passed, 1):
        state = test.after(state, int(count), runs)
        if test.alarms(state):
            return window
    return None


def varied(random: np.random.Generator, rate: float, deviation: float = 0.05, windows: int = WINDOWS) -> Rates:
    """Return rates of windows that vary by a beta distribution."""
    total = rate * (1 - rate) / deviation**2 - 1
    return random.beta(rate * total, (1 - rate) * total, windows)


def daily(random: np.random.Generator, rate: float, height: float) -> Rates:
    return rate + height * np.sin(2 * np.pi * (np.arange(WINDOWS) / DAY + random.random()))


def quiet(series: int, rate: float, seed: int, runs: int = RUNS) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.binomial(runs, rate, WINDOWS).tolist() for _ in range(series)]


def share_of_alarms(series: list[list[int]], find: Callable[[list[int]], int | None]) -> float:
    return sum(find(one) is not None for one in series) / len(series)


@pytest.mark.slow
def test_a_quiet_series_raises_no_alarm() -> None:
    assert share_of_alarms(quiet(15, 0.95, seed=1), lambda one: first_alarm(DriftTest(0.95), one)) == 0


def test_rates_that_vary_between_windows_raise_no_alarm() -> None:
    """A test that takes all runs as independent raises one in 35 of 40 such series, and in all of the second kind."""
    random = np.random.default_rng(5)
    series = [random.binomial(RUNS, varied(random, rate)).tolist() for rate in (0.92, 0.9) for _ in range(10)]

    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(0.9), one)) == 0


@pytest.mark.slow
def test_a_daily_cycle_is_known_after_a_day_and_raises_hardly_any_alarm() -> None:
    """At most 5 % are promised; of 20 more than 4 raise one with a probability below 0.3 %."""
    random = np.random.default_rng(6)
    series = [random.binomial(RUNS, daily(random, 0.92, 0.05)).tolist() for _ in range(20)]

    found = [first_alarm(DriftTest(0.9, longest=DAY // 2), one) for one in series]

    assert sum(one is not None for one in found) <= 4
    assert not [one for one in found if one is not None and one > 2 * DAY]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "runs"), [(0.95, 50), (0.5, 7), (0.99, 200), (0.9, 1)])
def test_quiet_series_raise_an_alarm_in_at_most_5_percent_of_1000_windows(rate: float, runs: int) -> None:
    series = quiet(100, rate, seed=1, runs=runs)

    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(rate), one, runs)) <= 0.05
    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(rate, "up"), one, runs)) <= 0.05


@pytest.mark.slow
def test_false_alarms_of_300_series_beside_a_fixed_threshold() -> None:
    series = quiet(300, 0.95, seed=2)
    fixed = share_of_alarms(series, lambda one: next((at for at, count in enumerate(one, 1) if count / RUNS < 0.9), None))

    assert share_of_alarms(series, lambda one: first_alarm(DriftTest(0.95), one)) <= 0.05
    assert fixed > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["outages", "a great variance", "unequal windows"])
def test_the_distribution_of_the_rates_does_not_matter(kind: str) -> None:
    """At most 5 % of series at their limit are promised; of 40 more than 6 raise an alarm with a probability below 0.4 %."""
    random, alarms = np.random.default_rng(3), 0
    for _ in range(40):
        sizes = random.integers(1, 400, WINDOWS) if kind == "unequal windows" else np.full(WINDOWS, RUNS)
        rates = np.where(random.random(WINDOWS) < 0.05, 0, 0.9 / 0.95) if kind == "outages" else varied(random, 0.9, 0.15)
        test, state = DriftTest(0.9), DriftState()
        for runs, passed in zip(sizes, random.binomial(sizes, rates), strict=True):
            state = test.after(state, int(passed), int(runs))
            if test.alarms(state):
                alarms += 1
                break

    assert alarms <= 6


@pytest.mark.parametrize("runs", [1, 7, 50, 1000])
@pytest.mark.parametrize("base", [0.9, 0.5, 0.2])
def test_a_window_at_the_baseline_is_no_evidence_on_average(base: float, runs: int) -> None:
    """The factor of each shift has a mean of at most 1, which makes its product an e-process; the mean is exact, over all counts."""
    state = DriftState(spread=Spread(windows=256, rates=256 * base, sizes=256.0 * runs**2, scales=((0.0, 0.0, 0.0),) * 9))
    means = [0.0] * len(SHIFTS)
    for passed in range(runs + 1):
        logs = (math.lgamma(runs + 1), -math.lgamma(passed + 1), -math.lgamma(runs - passed + 1))
        chance = math.exp(math.fsum(logs) + passed * math.log(base) + (runs - passed) * math.log(1 - base))
        after = DriftTest(base).after(state, passed, runs)
        means = [mean + chance * math.exp(value) for mean, value in zip(means, after.log_evidence, strict=True)]

    assert max(means) <= 1 + 1e-6


def test_a_spread_finds_the_variance_between_windows_and_none_where_there_is_none() -> None:
    random = np.random.default_rng(7)
    none, some, steps = Spread(), Spread(), Spread()
    for rate in varied(random, 0.9, windows=4_096):
        none = none.after(random.binomial(RUNS, 0.9) / RUNS, RUNS)
        some = some.after(random.binomial(RUNS, rate) / RUNS, RUNS)
        steps = steps.after(random.binomial(RUNS, 0.95 if steps.windows < 1_024 else 0.8) / RUNS, RUNS)

    assert none.variance(0.9, 64) < 0.001
    assert 0.0025 <= some.variance(0.9, 64) < 0.004
    assert steps.variance(0.9, 64) < 0.001
    assert Spread().variance(0.9, 64) == pytest.approx(0.09 / 30)


def test_windows_of_one_run_say_nothing_of_the_variance_between_windows() -> None:
    random, spread = np.random.default_rng(8), Spread()
    for rate in varied(random, 0.9, windows=4_096):
        spread = spread.after(float(random.random() < rate), 1)

    assert spread.variance(0.9, 64) < 0.03


@pytest.mark.slow
def test_a_better_rate_is_no_decline() -> None:
    assert share_of_alarms(quiet(50, 0.97, seed=3), lambda one: first_alarm(DriftTest(0.95), one)) == 0


def delays(before: int, rate: float, deviation: float = 0.0, series: int = 60) -> list[int]:
    """Return how many windows after the change the alarm comes; the rate was 0.95 for so many windows before."""
    random = np.random.default_rng(4)

    def counts(mean: float, windows: int) -> list[int]:
        rates: Rates | float = varied(random, mean, deviation, windows) if deviation else mean
        return [int(count) for count in random.binomial(RUNS, rates, windows)]

    found = [first_alarm(DriftTest(0.95), [*counts(0.95, before), *counts(rate, 400)]) for _ in range(series)]
    true = [alarm - before for alarm in found if alarm is not None and alarm > before]
    assert len(true) >= 0.95 * series, "the others are false alarms before the change"
    return true


def test_a_fall_from_95_to_90_percent_is_found_soon_however_late_it_comes() -> None:
    early, late = delays(1, 0.9), delays(500, 0.9)

    assert np.median(early) <= 30
    assert np.median(late) <= 15
    assert max(late) <= 40


@pytest.mark.slow
def test_a_great_fall_is_found_within_a_few_windows_also_where_rates_vary() -> None:
    assert max(delays(500, 0.5)) <= 4
    assert np.median(delays(200, 0.8, deviation=0.05)) <= 15


def test_a_slow_decline_is_found() -> None:
    assert np.median(delays(100, 0.92)) <= 45


def test_the_all_clear_comes_when_the_rate_is_above_its_target_again() -> None:
    random = np.random.default_rng(5)
    found = [first_alarm(DriftTest(0.90, "up"), random.binomial(RUNS, 0.95, 200).tolist()) for _ in range(30)]

    assert all(found)
    assert np.median([alarm for alarm in found if alarm]) <= 35


@pytest.mark.slow
def test_a_baseline_that_is_estimated_does_not_cry_wolf() -> None:
    random, alarms = np.random.default_rng(6), 0
    for deviation in (0.0, 0.05):
        for _ in range(50):
            spread, passed, rates = Spread(), 0, varied(random, 0.92, deviation, 320) if deviation else np.full(320, 0.92)
            counts = random.binomial(RUNS, rates).tolist()
            for count in counts[:20]:
                spread, passed = spread.after(count / RUNS, RUNS), passed + count
            low = lowest_likely_rate(passed, 20 * RUNS, 0.025, spread)
            alarms += first_alarm(DriftTest(low, alpha=0.025), counts[20:]) is not None

    assert alarms <= 5


@pytest.mark.parametrize(
    ("passed", "runs", "lowest"), [(95, 100, 0.887165089), (1, 3, 0.008403759), (50, 50, 0.928878264), (700, 1000, 0.670538321)]
)
def test_the_lowest_likely_rate_without_a_spread_is_near_clopper_and_pearsons(passed: int, runs: int, lowest: float) -> None:
    found = lowest_likely_rate(passed, runs, 0.025, Spread())

    assert found == pytest.approx(lowest, abs=1.2 / runs**0.5 / 10)  # the quantile of the beta distribution, by SciPy


def test_degenerate_windows_are_taken() -> None:
    test = DriftTest(1.0)
    state = test.after(DriftState(), 0, 0)

    assert state == DriftState() == state.learned(0, 0)
    assert test.evidence(state) == 0
    assert not test.alarms(test.after(state, 10, 10))
    assert lowest_likely_rate(0, 10, 0.025, Spread()) == lowest_likely_rate(0, 0, 0.025, Spread()) == 0
    for _ in range(200):
        state = test.after(state, 0, 100_000)
    assert math.isfinite(test.evidence(state))
    assert DriftState.model_validate_json(state.model_dump_json()) == state


def test_the_state_survives_as_json() -> None:
    test = DriftTest(0.9)
    state = test.after(test.after(DriftState(), 40, 50), 41, 50)

    assert test.evidence(DriftState.model_validate_json(state.model_dump_json())) == test.evidence(state)


def test_evidence_of_an_older_release_is_none_since_it_took_all_runs_as_independent() -> None:
    test, old = DriftTest(0.9), '{"windows": 30, "log_evidence": [9.0, 9.0, 9.0, 9.0, 9.0]}'

    found = test.after(DriftState.model_validate_json(old), 45, 50)

    assert found.windows == 31
    assert found.log_evidence == test.after(DriftState(), 45, 50).log_evidence
