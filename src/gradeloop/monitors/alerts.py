"""Meaning of a tick: rates with their intervals, and which alerts begin and end."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradeloop.batches.contract import CaseResult
from gradeloop.judges.contract import CriteriaJudge, SchemaJudge
from gradeloop.judges.pass_rule import PassRule, with_unsure
from gradeloop.monitors.anchors import AnchorCounts, Moved, moved_of
from gradeloop.monitors.contract import (
    CLEAR_RUNS,
    EMPTY_TICKS,
    LEAST_BASELINE,
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
from gradeloop.stats.drift import DriftState, DriftTest, lowest_likely_rate
from gradeloop.stats.intervals import wilson
from gradeloop.text import percent


def verdict_of(judge: CriteriaJudge | SchemaJudge, passes: Sequence[str], status: str, result: str | None) -> MonitorVerdict:
    """Return what a judge says of a run.

    `result`: the case's result as JSON; None where it has none.
    """
    if result is None:
        return "error" if status == "error" else "unjudged"
    judgement = CaseResult.model_validate_json(result).judgement
    if judgement is None or judgement.failed:
        return "error"
    judgement = with_unsure(judge, judgement)
    passed = PassRule(judge, passes).passed(judgement)
    return "unsure" if passed is None else "passed" if passed else "failed"


DRIFT, JUDGE, SILENCE = "drift", "judge", "silence"

FALSE_ALARMS = 0.05
"""The chance that any test of a monitor whose rates vary as they did raises an alarm in 1,000 ticks; its tests have equal shares of it."""

DAY = 86_400
"""The seconds for which a monitor's beginning lasts at least: the rate of a night is not that of the day."""


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


def finished_report(
    report: TickReport, runs: Sequence[JudgedRun], cost_usd: float | None, problem: str | None, anchors: AnchorCounts | None = None
) -> TickReport:
    """Return a tick's report with the results of its runs and anchors; rates count only sampled runs."""
    # Runs that a rule takes are taken for what they are, such as for an error. Counted among the sampled ones
    # they would shift the rate away from that of production, so they have one of their own.
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
            "anchors": anchors or AnchorCounts(),
            "cost_usd": cost_usd,
            "problem": report.problem or problem,
            "settled": True,
        }
    )


class AlertChanges(NamedTuple):
    """The state after a tick, with the alerts that begin, and the kinds of those that end."""

    state: MonitorState
    raised: tuple[Alert, ...]
    cleared: tuple[str, ...]
    explained: tuple[str, ...] = ()
    """The kinds of the open alerts of which the anchors say more than they did; what they say is in the state."""


@dataclass(frozen=True)
class _Watched:
    """A rate that a test watches, in one tick."""

    kind: str
    test: DriftTest
    hits: int
    runs: int
    text: str
    usual: float
    """The rate that was to be expected: that of the beginning, or the limit."""

    @property
    def fall(self) -> float:
        """Difference by which the rate of this tick is worse than that."""
        rate = self.hits / self.runs if self.runs else self.usual
        return max(self.usual - rate if self.test.direction == "down" else rate - self.usual, 0.0)


def alert_changes(definition: MonitorDefinition, state: MonitorState, report: TickReport, failed: Sequence[str]) -> AlertChanges:
    """Return what a tick changes.

    `failed`: the ids of the newest failed runs, the newest first.
    """
    changing = _TickChanges(definition, state, report, failed)
    changing.watch_judge()
    explained = changing.explain()
    changing.watch_rates()
    empty = changing.watch_silence()
    changed = {"empty": empty, "tests": changing.tests, "anchors": changing.anchors, "open": changing.opened}
    if report.rate.judged and _begins(definition, state):
        changed |= {
            "baseline_passed": state.baseline_passed + report.rate.passed,
            "baseline_judged": state.baseline_judged + report.rate.judged,
            "baseline_spread": state.baseline_spread.after(report.rate.passed / report.rate.judged, report.rate.judged),
        }
    still = tuple(kind for kind in explained if kind in changing.opened)
    return AlertChanges(state.model_copy(update=changed), tuple(changing.raised), tuple(changing.cleared), still)


class _TickChanges:
    """The alerts that one tick raises and clears, and the state that they change."""

    def __init__(self, definition: MonitorDefinition, state: MonitorState, report: TickReport, failed: Sequence[str]) -> None:
        self._definition = definition
        self._report = report
        self._failed = failed
        self._state = state
        self._alpha = _alpha(definition)
        self.tests, self.opened = dict(state.tests), dict(state.open)
        self.anchors = state.anchors.after(report.anchors, self._alpha)
        self.raised, self.cleared = list[Alert](), list[str]()

    def watch_judge(self) -> None:
        """Raise or clear the alert on the judge itself."""
        counts = self._report.anchors
        if JUDGE in self.opened:
            self.opened[JUDGE] = _with_recent(self.opened[JUDGE], counts.same, counts.repeated)
            if _is_over(self.anchors.tests(self._alpha)[0], self.opened[JUDGE]):
                self._clear(JUDGE)
                self.anchors = self.anchors.restarted()
        elif self.anchors.alarms(self._alpha):
            agrees = f"it agrees with {counts.right} of {counts.judged} labels in this tick"
            text = f"the judge has changed: {counts.text}, {self.anchors.text}; {agrees}"
            self._raise(JUDGE, text, opened=OpenAlert(number=self._report.number, moved="judge"))

    def explain(self) -> list[str]:
        """Add the tick's anchors to the open alerts that are not explained, and return the kinds of these."""
        counts = self._report.anchors
        unclear = [kind for kind, alert in self.opened.items() if alert.moved == "unclear"]
        if not counts.judged and JUDGE not in self.opened:
            return []
        for kind in unclear:
            alert = self.opened[kind].model_copy(update={"anchors": self.opened[kind].anchors.plus(counts)})
            self.opened[kind] = alert.model_copy(update={"moved": self._moved(alert.anchors, alert)})
        return unclear

    def watch_rates(self) -> None:
        """Raise or clear the alerts on rates, and clear those of which nothing is watched any more."""
        rates = {watched.kind: watched for watched in _watched(self._definition, self._state, self._report)}
        for kind, watched in rates.items():
            before, test = self.tests.get(kind, DriftState()), watched.test
            if kind == DRIFT and not before.spread.windows:
                before = DriftState(spread=self._state.baseline_spread)
            # While an alert is open, its test learns only how far windows lie apart. Its evidence begins anew
            # when the alert is over: what has raised the alert once must not raise it again.
            if kind in self.opened:
                self.tests[kind] = before.learned(watched.hits, watched.runs)
                self.opened[kind] = _with_recent(self.opened[kind], watched.hits, watched.runs)
                if _is_over(test, self.opened[kind]):
                    self._clear(kind)
                continue
            self.tests[kind] = test.after(before, watched.hits, watched.runs)
            if test.alarms(self.tests[kind]):
                self._raise(kind, watched.text, self._failed, self._opened(watched))
        for kind in set(self.opened) - {*rates, JUDGE, SILENCE}:
            self._clear(kind)

    def watch_silence(self) -> int:
        """Raise or clear the alert on silence, and return for how many ticks nothing was judged."""
        report = self._report
        empty = 0 if report.rate.judged or report.always_rate.judged else self._state.empty + 1
        if SILENCE in self.opened and not empty:
            self._clear(SILENCE)
        elif SILENCE not in self.opened and empty >= EMPTY_TICKS:
            chosen = report.sampled + report.always + report.late
            why = report.problem or (f"{chosen} runs were chosen and none was judged" if chosen else "no new runs came")
            self._raise(SILENCE, f"nothing was judged in {empty} ticks: {why}")
        return empty

    def _opened(self, watched: _Watched) -> OpenAlert:
        """Return an alert that begins, with what has moved as the tick's anchors say."""
        begun, counts = OpenAlert(number=self._report.number), self._report.anchors
        if self._definition.anchors is None or watched.kind.startswith("error_rate"):
            return begun
        usual = None if watched.test.direction == "up" else watched.usual
        opened = begun.model_copy(update={"fall": watched.fall, "usual": usual, "anchors": counts})
        return opened.model_copy(update={"moved": self._moved(counts, opened)})

    def _moved(self, counts: AnchorCounts, alert: OpenAlert) -> Moved:
        return "judge" if JUDGE in self.opened else moved_of(self.anchors, counts, alert.fall, alert.usual)

    def _raise(self, kind: str, text: str, runs: Sequence[str] = (), opened: OpenAlert | None = None) -> None:
        self.opened[kind] = opened = opened or OpenAlert(number=self._report.number)
        begun = {"kind": kind, "number": self._report.number, "time": self._report.time, "text": text, "runs": tuple(runs)}
        self.raised.append(Alert.model_validate(begun | {"moved": opened.moved, "anchors": opened.anchors}))

    def _clear(self, kind: str) -> None:
        self.cleared.append(kind)
        del self.opened[kind]


# The tests of a monitor share one budget of false alarms. The chance that any of them is wrong is at most the
# sum of their chances, however they depend on each other. So equal shares keep the promise. If each test had
# the whole budget, a monitor with ten rules would raise ten times as many false alarms.
def _alpha(definition: MonitorDefinition) -> float:
    """Return a test's share of the false alarms of a monitor."""
    return FALSE_ALARMS / max(len(definition.alerts) + definition.drift + (definition.anchors is not None), 1)


def _begins(definition: MonitorDefinition, state: MonitorState) -> bool:
    """Return whether a tick's runs belong to the beginning, from which drift is measured."""
    is_short = state.baseline_judged < definition.baseline_runs or state.baseline_spread.windows * definition.every < DAY
    return is_short and DRIFT not in state.open


def _watched(definition: MonitorDefinition, state: MonitorState, report: TickReport) -> Iterator[_Watched]:
    """Yield each rate that a rule, or the monitor's own beginning, has a limit for."""
    alpha, longest = _alpha(definition), DAY // 2 // definition.every
    for rule in definition.alerts:
        hits, runs = counts_of(rule, report)
        test = DriftTest(rule.limit, "down" if rule.below else "up", alpha, longest=longest)
        side = "below" if rule.below else "above"
        text = f"{rule.rate} is {side} {percent(rule.limit)}: {_share(hits, runs)} in this tick"
        yield _Watched(rule.text, test, hits, runs, text, _usual(rule, state))
    if not definition.drift or _begins(definition, state):
        return
    baseline = lowest_likely_rate(state.baseline_passed, state.baseline_judged, alpha / 2, state.baseline_spread, longest)
    passed, judged = report.rate.passed, report.rate.judged
    first = f"{_share(state.baseline_passed, state.baseline_judged)} of the monitor's first runs"
    test = DriftTest(baseline, alpha=alpha / 2, longest=longest)
    text = f"pass_rate has left {first}: {_share(passed, judged)} in this tick"
    yield _Watched(DRIFT, test, passed, judged, text, state.baseline_passed / state.baseline_judged)


def _usual(rule: AlertRule, state: MonitorState) -> float:
    """Return the rate from which a rule's change is counted: that of the beginning, where that is better than the limit."""
    if rule.rate != "pass_rate" or state.baseline_judged < LEAST_BASELINE:
        return rule.limit
    beginning = state.baseline_passed / state.baseline_judged
    return max(beginning, rule.limit) if rule.below else min(beginning, rule.limit)


def counts_of(rule: AlertRule, report: TickReport) -> tuple[int, int]:
    """Return how many runs a rate counts, and of how many."""
    judged = report.rate.judged
    if rule.rate == "pass_rate":
        return report.rate.passed, judged
    if rule.rate == "unsure_rate":
        return report.unsure, judged + report.unsure
    return report.errors, judged + report.unsure + report.errors


def _share(hits: int, runs: int) -> str:
    return f"{percent(hits / runs)} ({hits} of {runs})" if runs else "no run"


def _with_recent(alert: OpenAlert, hits: int, runs: int) -> OpenAlert:
    """Return an alert with one more tick, and without those that are not needed to see whether it is over."""
    recent = [*alert.recent, (hits, runs)] if runs else list(alert.recent)
    while recent and sum(runs for _, runs in recent[1:]) >= CLEAR_RUNS:
        recent.pop(0)
    return alert.model_copy(update={"recent": tuple(recent)})


def _is_over(test: DriftTest, alert: OpenAlert) -> bool:
    hits, runs = (sum(counts) for counts in zip(*alert.recent, strict=True)) if alert.recent else (0, 0)
    rate = hits / runs if runs else 0.0
    return runs >= CLEAR_RUNS and (rate >= test.baseline if test.direction == "down" else rate <= test.baseline)
