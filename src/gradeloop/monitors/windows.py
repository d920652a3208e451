"""What a tick means: rates with their intervals, and which alerts begin and end."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradeloop.monitors.contract import (
    BASELINE_RUNS,
    CLEAR_RUNS,
    EMPTY_TICKS,
    Alert,
    AlertRule,
    MonitorDefinition,
    MonitorState,
    MonitorVerdict,
    OpenAlert,
    Rate,
    TickReport,
    Why,
)
from gradeloop.stats.drift import Cusum, CusumState, DriftState, DriftTest, lowest_likely_rate
from gradeloop.stats.intervals import wilson
from gradeloop.text import percent

DRIFT, DECLINE, SILENCE = "drift", "decline", "silence"

DECLINE_BY = 0.05
"""How far below the baseline a rate is that the sum for slow decline is to notice."""


class JudgedRun(NamedTuple):
    """A run that was chosen, and what became of it."""

    run_id: str
    why: Why
    stratum: str | None
    verdict: MonitorVerdict


def rate_of(verdicts: Iterable[MonitorVerdict]) -> Rate:
    """Return the pass rate of those that passed or failed."""
    decided = [verdict for verdict in verdicts if verdict in {"passed", "failed"}]
    passed = decided.count("passed")
    return Rate(passed=passed, judged=len(decided), interval=wilson(passed, len(decided)) if decided else None)


def settled_report(report: TickReport, runs: Sequence[JudgedRun], cost_usd: float | None, problem: str | None) -> TickReport:
    """Return a tick's report with what its runs came to; only sampled runs count in rates."""
    sampled = [run for run in runs if run.why == "sampled"]
    verdicts: list[MonitorVerdict] = [run.verdict for run in sampled]
    names = sorted({run.stratum for run in sampled if run.stratum is not None})
    return report.model_copy(
        update={
            "rate": rate_of(verdicts),
            "unsure": verdicts.count("unsure"),
            "errors": verdicts.count("error"),
            "unjudged": sum(run.verdict == "unjudged" and run.why != "backfill" for run in runs),
            "strata": {name: rate_of(run.verdict for run in sampled if run.stratum == name) for name in names},
            "always_rate": rate_of(run.verdict for run in runs if run.why == "always"),
            "cost_usd": cost_usd,
            "problem": report.problem or problem,
            "settled": True,
        }
    )


class Settlement(NamedTuple):
    """The state after a tick, with the alerts that begin, and the kinds of those that end."""

    state: MonitorState
    raised: tuple[Alert, ...]
    cleared: tuple[str, ...]


@dataclass(frozen=True)
class _Watched:
    """A rate that a test watches, in one tick."""

    kind: str
    test: DriftTest
    hits: int
    runs: int
    text: str


def settle(definition: MonitorDefinition, state: MonitorState, report: TickReport, failed: Sequence[str]) -> Settlement:
    """Return what a tick changes.

    Args:
        definition: The monitor.
        state: What it remembers.
        report: The tick's report.
        failed: The ids of the newest failed runs, the newest first.
    """
    tests, opened = dict(state.tests), dict(state.open)
    raised, cleared = list[Alert](), list[str]()

    def alert(kind: str, text: str, runs: Sequence[str] = ()) -> None:
        opened[kind] = OpenAlert(number=report.number)
        raised.append(Alert(kind=kind, number=report.number, time=report.time, text=text, runs=tuple(runs)))

    cusum = state.cusum
    for watched in _watched(definition, state, report):
        kind = watched.kind
        if kind in opened:
            opened[kind] = open_one = _with_recent(opened[kind], watched)
            if _is_over(watched.test, open_one):
                cleared.append(kind)
                del opened[kind]
                tests.pop(kind, None)
                cusum = CusumState() if kind == DECLINE else cusum
        elif kind == DECLINE:
            sums = Cusum(watched.test.baseline, max(watched.test.baseline - DECLINE_BY, 0.01), alpha=watched.test.alpha)
            cusum = sums.after(cusum, watched.hits, watched.runs)
            if sums.alarms(cusum):
                alert(kind, watched.text, failed)
        else:
            tests[kind] = watched.test.after(tests.get(kind, DriftState()), watched.hits, watched.runs)
            if watched.test.alarms(tests[kind]):
                alert(kind, watched.text, failed)
    empty = 0 if report.rate.judged or report.always_rate.judged else state.empty + 1
    if SILENCE in opened and not empty:
        cleared.append(SILENCE)
        del opened[SILENCE]
    elif SILENCE not in opened and empty >= EMPTY_TICKS:
        alert(SILENCE, _silence(report, empty))
    in_baseline = state.baseline_judged < BASELINE_RUNS
    changed = {
        "empty": empty,
        "tests": tests,
        "cusum": cusum,
        "open": opened,
        "baseline_passed": state.baseline_passed + (report.rate.passed if in_baseline else 0),
        "baseline_judged": state.baseline_judged + (report.rate.judged if in_baseline else 0),
    }
    return Settlement(state.model_copy(update=changed), tuple(raised), tuple(cleared))


def _silence(report: TickReport, empty: int) -> str:
    if report.problem:
        return f"nothing was judged in {empty} ticks: {report.problem}"
    chosen = report.sampled + report.always + report.late
    why = f"{chosen} runs were chosen and none was judged" if chosen else "no new runs came"
    return f"nothing was judged in {empty} ticks: {why}"


def _watched(definition: MonitorDefinition, state: MonitorState, report: TickReport) -> Iterator[_Watched]:
    """Yield each rate that a rule, or the monitor's own beginning, has a limit for."""
    for rule in definition.alerts:
        hits, runs = _counts(rule, report)
        test = DriftTest(rule.limit, "down" if rule.below else "up")
        side = "below" if rule.below else "above"
        yield _Watched(rule.text, test, hits, runs, f"{rule.rate} is {side} {percent(rule.limit)}: {_share(hits, runs)} in this tick")
    if not definition.drift or state.baseline_judged < BASELINE_RUNS:
        return
    baseline = lowest_likely_rate(state.baseline_passed, state.baseline_judged)
    passed, judged = report.rate.passed, report.rate.judged
    first = f"{_share(state.baseline_passed, state.baseline_judged)} of the monitor's first runs"
    for kind, verb in ((DRIFT, "has left"), (DECLINE, "declines from")):
        yield _Watched(
            kind, DriftTest(baseline, alpha=0.025), passed, judged, f"pass_rate {verb} {first}: {_share(passed, judged)} in this tick"
        )


def _counts(rule: AlertRule, report: TickReport) -> tuple[int, int]:
    """Return how many runs a rate counts, and of how many."""
    judged = report.rate.judged
    if rule.rate == "pass_rate":
        return report.rate.passed, judged
    if rule.rate == "unsure_rate":
        return report.unsure, judged + report.unsure
    return report.errors, judged + report.unsure + report.errors


def _share(hits: int, runs: int) -> str:
    return f"{percent(hits / runs)} ({hits} of {runs})" if runs else "no run"


def _with_recent(alert: OpenAlert, watched: _Watched) -> OpenAlert:
    """Return an alert with one more tick, and without those that are not needed to see whether it is over."""
    recent = [*alert.recent, (watched.hits, watched.runs)] if watched.runs else list(alert.recent)
    while recent and sum(runs for _, runs in recent[1:]) >= CLEAR_RUNS:
        recent.pop(0)
    return alert.model_copy(update={"recent": tuple(recent)})


def _is_over(test: DriftTest, alert: OpenAlert) -> bool:
    hits, runs = (sum(counts) for counts in zip(*alert.recent, strict=True)) if alert.recent else (0, 0)
    return runs >= CLEAR_RUNS and _is_back(test, hits, runs)


def _is_back(test: DriftTest, hits: int, runs: int) -> bool:
    rate = hits / runs if runs else 0.0
    return rate >= test.baseline if test.direction == "down" else rate <= test.baseline
