"""How soon a monitor sees a rate fall, and how often it cries wolf: `python -m lab.drift`.

Series of ticks go through a monitor's own rules. The true pass rate is 0.95, then 0.90, then 0.95 again; a scripted judge errs at a known
rate, so that the monitor sees another one. Beside it stands what teams often have: an alarm when one tick's rate is below a threshold.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool

import numpy as np

from gradeloop.exit_codes import leave
from gradeloop.monitors.alerts import rate_of, settle
from gradeloop.monitors.contract import BASELINE_RUNS, MonitorDefinition, MonitorState, MonitorVerdict, TickReport

DEFINITION = {
    "name": "m",
    "source": {"kind": "folder", "path": "/runs"},
    "judge": {"rubric": "- it is good", "grader": {"model": "scripted:judge"}},
    "alerts": [{"rate": "pass_rate", "below": True, "limit": 0.9}],
}
WATCHED = ("drift", "decline")


@dataclass(frozen=True)
class Plan:
    """The series."""

    series: int = 1000
    runs: int = 50
    """Judged runs a tick."""
    quiet: int = 100
    """Ticks at 0.95, from which monitors take their baseline, too."""
    low: int = 150
    """Ticks at 0.90."""
    after: int = 50
    """Ticks at 0.95 again."""
    baseline: int = BASELINE_RUNS
    """Judged runs from which a monitor takes its baseline."""
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


def spans_of_alarms(plan: Plan, passed: Sequence[int]) -> list[tuple[str, int, int | None]]:
    """Return the alarms of a monitor's own rules: their kind, the tick that raised each, and the one after which it was over."""
    definition, state = MonitorDefinition.model_validate(DEFINITION | {"baseline_runs": plan.baseline}), MonitorState()
    found, begun = list[tuple[str, int, int | None]](), dict[str, int]()
    for number, count in enumerate(passed, 1):
        verdicts: list[MonitorVerdict] = [*(["passed"] * count), *(["failed"] * (plan.runs - count))]  # type: ignore[list-item]  # literals
        rate = rate_of(verdicts)
        report = TickReport(number=number, tick="t", time="2026-01-01T00:00:00+00:00", read=plan.runs, sampled=plan.runs, rate=rate)
        outcome = settle(definition, state.model_copy(update={"ticks": number}), report, [])
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
    alarms = spans_of_alarms(plan, passed)
    return [
        [alarm for alarm in alarms if alarm[0] in WATCHED],
        [alarm for alarm in alarms if alarm[0] not in {*WATCHED, "silence"}],
        below_threshold(plan, passed, 0.9),
        below_threshold(plan, passed, 0.85),
    ]


NAMES = ("drift or decline", "alert `pass_rate < 0.9`", "one tick below 0.90", "one tick below 0.85")


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
    parser.add_argument("--baseline", type=int, default=Plan.baseline, help="Judged runs from which a monitor takes its baseline.")
    arguments = parser.parse_args()
    plan, began = Plan(series=arguments.series, runs=arguments.runs, baseline=arguments.baseline), time.monotonic()
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
