"""How often a monitor cries wolf, and how soon it sees a rate fall: `python -m lab.alarms`.

Series of ticks go through a monitor's own rules. First in 1,000 ticks whose true rates vary in several ways, beside the tests that take all
runs as independent, as monitors did. Then the true pass rate is 0.95, 0.90, and 0.95 again; a scripted judge errs at a known rate, so that
the monitor sees another one. Beside it stands what teams often have: an alarm when one tick's rate is below a threshold.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool

import numpy as np
from numpy.typing import NDArray

from gradeloop.exit_codes import leave
from gradeloop.monitors.alerts import alert_changes
from gradeloop.monitors.contract import BASELINE_RUNS, MonitorDefinition, MonitorState, TickReport
from gradeloop.monitors.contract import Rate as PassRate
from gradeloop.stats.drift import SHIFTS, Spread, lowest_likely_rate

DEFINITION = {
    "name": "m",
    "source": {"kind": "folder", "path": "/runs"},
    "judge": {"rubric": "- it is good", "grader": {"model": "scripted:judge"}},
    "alerts": [{"rate": "pass_rate", "below": True, "limit": 0.9}],
}
RULE, DRIFT = "pass_rate < 0.9", "drift"
TICKS = 1000
CHANGE = 500
"""The tick after which a rate steps."""

A_DAY = 144
"""Ticks of a day, every ten minutes."""

Rates = NDArray[np.float64]


def _varied(random: np.random.Generator, rates: Rates, deviation: float = 0.05) -> Rates:
    """Return rates that vary between ticks around these ones, by beta distributions."""
    total = rates * (1 - rates) / deviation**2 - 1
    return random.beta(rates * total, (1 - rates) * total)


def _daily(random: np.random.Generator, height: float) -> Rates:
    """Return rates that swing around 0.92 once a day, from any hour on."""
    return 0.92 + height * np.sin(2 * np.pi * (np.arange(TICKS) / A_DAY + random.random()))


def _stepped(before: float, after: float) -> Rates:
    return np.where(np.arange(TICKS) < CHANGE, before, after)


@dataclass(frozen=True)
class Rate:
    """How the true rate of a simulated production varies over ticks, and which alerts on it are false."""

    of: Callable[[np.random.Generator], Rates]
    false: tuple[str, ...] = (RULE, DRIFT)
    """Slow drift and steps are what `drift` is there for: on these only a rule whose limit is kept is false."""
    falls: bool = False
    """Whether it falls below the limit after `CHANGE`, so that only alerts before are false."""


RATES: Mapping[str, Rate] = {
    "constant, 0.92": Rate(lambda _: np.full(TICKS, 0.92)),
    "0.92, standard deviation 0.05 between ticks": Rate(lambda random: _varied(random, np.full(TICKS, 0.92))),
    "0.90, the limit, standard deviation 0.05": Rate(lambda random: _varied(random, np.full(TICKS, 0.9)), (RULE,)),
    "daily cycle, 0.92 ± 0.05": Rate(lambda random: _daily(random, 0.05)),
    "daily cycle, 0.92 ± 0.07": Rate(lambda random: _daily(random, 0.07)),
    "slow drift from 0.97 to 0.91": Rate(lambda _: np.linspace(0.97, 0.91, TICKS), (RULE,)),
    "step from 0.97 to 0.92": Rate(lambda _: _stepped(0.97, 0.92), (RULE,)),
    "step from 0.95 to 0.80": Rate(lambda _: _stepped(0.95, 0.8), falls=True),
    "step from 0.95 to 0.80, standard deviation 0.05": Rate(lambda random: _varied(random, _stepped(0.95, 0.8)), falls=True),
}


@dataclass
class Alarms:
    """What the alerts of some monitors on one kind of rate come to, of one way to test it."""

    false: int = 0
    delays: list[int] = field(default_factory=list)
    """Ticks from a fall to the first alert."""

    def add(self, rate: Rate, first: Mapping[str, int]) -> None:
        """Count a monitor by the first tick of each of its alerts."""
        ends = CHANGE if rate.falls else TICKS
        is_false = any(number <= ends for kind, number in first.items() if kind in rate.false)
        self.false += is_false
        if rate.falls and not is_false:
            self.delays.append(min([*first.values(), TICKS + 1]) - CHANGE)


def first_alerts_by_independence(passed: Sequence[int], runs: int) -> dict[str, int]:
    """Return the first alerts of tests that take all runs as independent, as those of a monitor were before: the evidence is binomial."""
    first, beginning = dict[str, int](), BASELINE_RUNS // runs
    baseline = lowest_likely_rate(sum(passed[:beginning]), beginning * runs, 0.025, Spread())
    declined, tests = 0.0, {RULE: (0.9, 0.05, 0), DRIFT: (baseline, 0.025, beginning)}
    for kind, (base, alpha, begins) in tests.items():
        moved = [1 / (1 + (1 - base) / base * math.exp(shift)) for shift in SHIFTS]
        ratios = [(math.log(rate / base), math.log((1 - rate) / (1 - base))) for rate in (*moved, base - 0.05)]
        evidence = [0.0] * len(SHIFTS)
        for number, count in enumerate(passed[begins:], begins + 1):
            steps = [count * hit + (runs - count) * miss for hit, miss in ratios]
            evidence = [(1 + value) * math.exp(min(step, 500)) for value, step in zip(evidence, steps, strict=False)]
            declined = max(0.0, declined + steps[-1]) if kind == DRIFT else 0.0
            if statistics.fmean(evidence) >= 1000 / alpha or declined >= math.log(1000 / alpha):
                first[kind] = number
                break
    return first


def _monitor(arguments: tuple[str, int, int]) -> tuple[str, dict[str, int], dict[str, int]]:
    name, runs, seed = arguments
    random = np.random.default_rng([seed, list(RATES).index(name)])
    passed = [int(count) for count in random.binomial(runs, RATES[name].of(random))]
    first = dict[str, int]()
    for kind, number, _ in spans_of_alarms(MonitorDefinition.model_validate(DEFINITION), runs, passed):
        first.setdefault(kind, number)
    return name, first_alerts_by_independence(passed, runs), first


def false_alarms(monitors: int, runs: int, names: Sequence[str] = tuple(RATES), processes: int = 1) -> dict[str, tuple[Alarms, Alarms]]:
    """Return what alerts come to over so many monitors of each kind of rate: with independent runs, and with a monitor's own tests."""
    found = {name: (Alarms(), Alarms()) for name in names}
    with Pool(processes) as pool:
        for name, before, now in pool.imap_unordered(
            _monitor, [(name, runs, seed) for name in names for seed in range(monitors)], chunksize=5
        ):
            for alarms, first in zip(found[name], (before, now), strict=True):
                alarms.add(RATES[name], first)
        pool.close()
        pool.join()
    return found


def table_of(found: Mapping[str, tuple[Alarms, Alarms]], monitors: int) -> str:
    """Return a table of false alarms, and of ticks until a fall was noticed."""
    lines = [
        "| the true rate | false alarms: independent runs | a monitor | ticks to the alert: independent runs | a monitor |",
        "|---|---|---|---|---|",
    ]
    for name, both in found.items():
        shares = [f"{alarms.false / monitors:.1%}" for alarms in both]
        delays = [f"{statistics.median(alarms.delays):.0f}" if alarms.delays else "" for alarms in both]
        lines.append(f"| {' | '.join([name, *shares, *delays])} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    """The series."""

    series: int = 1000
    runs: int = 50
    """Judged runs a tick."""
    quiet: int = 200
    """Ticks at 0.95, from which monitors take their baseline, too."""
    low: int = 150
    """Ticks at 0.90."""
    after: int = 50
    """Ticks at 0.95 again."""
    every: int = 600
    """Seconds from tick to tick: the ticks of a day at least are a monitor's beginning."""
    baseline: int = BASELINE_RUNS
    """The least judged runs of that beginning."""
    passes_good: float = 0.98
    """How often the judge passes a run that is good."""
    passes_bad: float = 0.10
    """How often it passes one that is bad."""

    def seen(self, rate: float) -> float:
        """Return the rate that the monitor sees."""
        return rate * self.passes_good + (1 - rate) * self.passes_bad


@dataclass
class Found:
    """What came of the series with one kind of alarm."""

    false: int = 0
    """Series with an alarm before the fall."""
    delays: list[int] = field(default_factory=list)
    """Ticks from the fall to the first alarm, of the others."""
    missed: int = 0
    cleared: list[int] = field(default_factory=list)
    """Ticks from the end of the fall to the all-clear."""
    false_after: int = 0
    """Series in which another alarm begins once all is well again."""

    def line(self, name: str, series: int) -> str:
        """Return it as a row of a table."""
        delay = f"{statistics.median(self.delays):.0f}, {np.percentile(self.delays, 95):.0f}" if self.delays else ""
        clear = f"{statistics.median(self.cleared):.0f}" if self.cleared else ""
        shares = [f"{count / series:.1%}" for count in (self.false, self.missed, self.false_after)]
        return f"| {name} | {shares[0]} | {shares[1]} | {delay} | {clear} | {shares[2]} |"


def judged(plan: Plan, seed: int, rates: Sequence[float]) -> list[int]:
    """Return how many of each tick's runs pass, as the judge says."""
    random = np.random.default_rng(seed)
    good = random.binomial(plan.runs, rates)
    return [int(one) for one in random.binomial(good, plan.passes_good) + random.binomial(plan.runs - good, plan.passes_bad)]


def spans_of_alarms(definition: MonitorDefinition, runs: int, passed: Sequence[int]) -> list[tuple[str, int, int | None]]:
    """Return the alarms of a monitor's own rules: their kind, the tick that raised each, and the one after which it was over."""
    state = MonitorState()
    found, begun = list[tuple[str, int, int | None]](), dict[str, int]()
    for number, count in enumerate(passed, 1):
        report = TickReport(number=number, tick="t", time="2026-01-01T00:00:00+00:00", rate=PassRate(passed=count, judged=runs))
        outcome = alert_changes(definition, state, report, [])
        state = outcome.state
        begun |= {alert.kind: number for alert in outcome.raised}
        found += [(kind, begun.pop(kind), number) for kind in outcome.cleared]
    return [*found, *((kind, number, None) for kind, number in begun.items())]


def below_threshold(plan: Plan, passed: Sequence[int], threshold: float) -> list[tuple[str, int, int | None]]:
    """Return the alarms of a fixed threshold: each tick below it, until one is not."""
    found, begun = list[tuple[str, int, int | None]](), None
    for number, count in enumerate(passed, 1):
        is_low = count / plan.runs < threshold
        if is_low and begun is None:
            begun = number
        elif not is_low and begun is not None:
            found.append(("threshold", begun, number))
            begun = None
    return [*found, *([("threshold", begun, None)] if begun is not None else [])]


def add(plan: Plan, found: Found, alarms: Sequence[tuple[str, int, int | None]]) -> None:
    """Count one series."""
    begins, ends = plan.quiet, plan.quiet + plan.low
    found.false += any(raised <= begins for _, raised, _ in alarms)
    in_time = [(raised, cleared) for _, raised, cleared in alarms if begins < raised <= ends]
    if in_time:
        found.delays.append(min(raised for raised, _ in in_time) - begins)
        overs = [cleared for _, cleared in in_time]
        if None not in overs and (last := max(over for over in overs if over is not None)) > ends:
            found.cleared.append(last - ends)
    elif not any(raised <= begins for _, raised, _ in alarms):
        found.missed += 1
    found.false_after += any(raised > ends for _, raised, _ in alarms)


def _series(arguments: tuple[Plan, int]) -> list[list[tuple[str, int, int | None]]]:
    plan, seed = arguments
    passed = judged(plan, seed, [0.95] * plan.quiet + [0.90] * plan.low + [0.95] * plan.after)
    definition = MonitorDefinition.model_validate(DEFINITION | {"every": plan.every, "baseline_runs": plan.baseline})
    alarms = spans_of_alarms(definition, plan.runs, passed)
    return [
        [alarm for alarm in alarms if alarm[0] == DRIFT],
        [alarm for alarm in alarms if alarm[0] == RULE],
        below_threshold(plan, passed, 0.9),
        below_threshold(plan, passed, 0.85),
    ]


NAMES = ("drift", "alert `pass_rate < 0.9`", "one tick below 0.90", "one tick below 0.85")


def simulate(plan: Plan, processes: int = 1) -> dict[str, Found]:
    """Return what each kind of alarm comes to over all series."""
    found = {name: Found() for name in NAMES}
    work = [(plan, seed) for seed in range(plan.series)]
    with Pool(processes) as pool:
        for alarms in pool.imap_unordered(_series, work, chunksize=10):
            for name, one in zip(NAMES, alarms, strict=True):
                add(plan, found[name], one)
        pool.close()
        pool.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=Plan.series)
    parser.add_argument("--runs", type=int, default=Plan.runs, help="Judged runs a tick.")
    parser.add_argument("--every", type=int, default=Plan.every, help="Seconds from tick to tick, of the fall.")
    parser.add_argument("--baseline", type=int, default=Plan.baseline, help="The least judged runs of a monitor's beginning, of the fall.")
    arguments = parser.parse_args()
    plan, began = Plan(series=arguments.series, runs=arguments.runs, every=arguments.every, baseline=arguments.baseline), time.monotonic()
    print(f"{plan.series} monitors of each kind, {TICKS} ticks of {plan.runs} judged runs every ten minutes; alerts on 0.90 and on drift")
    print(table_of(false_alarms(plan.series, plan.runs, processes=2), plan.series))
    print(f"{time.monotonic() - began:.0f} s\n")
    found = simulate(plan, processes=2)
    print(f"{plan.series} series, {plan.runs} judged runs a tick; seen: {plan.seen(0.95):.3f}, then {plan.seen(0.90):.3f}, then again")
    print(
        "| alarm | false before | missed | ticks to the alarm: median, 95th | to the all-clear | false after |\n|---|---|---|---|---|---|"
    )
    for name, one in found.items():
        print(one.line(name, plan.series))
    print(f"{time.monotonic() - began:.0f} s")
    leave(0)


if __name__ == "__main__":
    main()
