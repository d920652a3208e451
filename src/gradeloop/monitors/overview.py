"""The monitors of a store as commands and pages read them, and what creates and removes them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import Field
from sqlalchemy import Connection, case, func, select
from sqlalchemy.exc import IntegrityError

from gradeloop.batches.answer import early_answer
from gradeloop.batches.contract import Case
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.monitors.alerts import DRIFT, JUDGE, counts_of
from gradeloop.monitors.anchor_runs import Anchor, anchor_error, forget_first_verdicts, insert_anchors
from gradeloop.monitors.anchors import AnchorCounts, AnchorState
from gradeloop.monitors.contract import Alert, MonitorDefinition, MonitorState, Rate, TickReport, refuse_hasty
from gradeloop.monitors.labelling import sample_labels
from gradeloop.monitors.tables import remove_monitor
from gradeloop.monitors.ticks import Monitor, clear_alert, definition_json, lock_monitor, monitor_names, monitor_of
from gradeloop.stats.correction import LEAST_LABELS, CorrectedRate, JudgeError, SampleLabels, corrected_rate, labelled_rate
from gradeloop.stats.drift import Spread
from gradeloop.stats.intervals import Interval, dispersion, paired_difference, wilson
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.text import counted, percent

SHOWN_TICKS = 100
"""The newest ticks over which a summary adds up rates."""

SHOWN_FAILED = 20
"""The newest failed runs of a summary."""


class MonitoredRun(Strict):
    """A run that a monitor has read."""

    run_id: str
    run_sha256: str
    tick: int
    why: str
    stratum: str | None = None
    verdict: str | None = None
    """Verdict of the judge; None for a run that was not chosen."""
    judgement: str | None = None
    """The id of the judgement, which is the case's in the tick's batch."""
    batch_id: str | None = None


class ShadowComparison(Strict):
    """Two judges of the same runs."""

    judge: Rate
    shadow: Rate
    difference: Interval
    """The shadow's rate less the judge's, with its 95 % interval (Newcombe's paired method)."""
    agreed: int
    """Runs of which both say the same."""


class AnchorSummary(Strict):
    """Accuracy of a monitor's judge on its anchors."""

    total: int
    newest: AnchorCounts
    """The anchors of the newest tick that judged some."""
    beginning: AnchorState
    """Steadiness of the judge at first."""
    error: JudgeError
    """Share of the newest verdicts that are right, of those that pass or fail."""


class MonitorSummary(Strict):
    """A monitor with what it has found."""

    name: str
    definition: MonitorDefinition
    state: MonitorState
    rate: Rate
    """The rate of the newest ticks together."""
    strata: dict[str, Rate]
    corrected: CorrectedRate | None = None
    """The rate corrected for the judge's error, as its anchors have measured it; None where they do not suffice."""
    corrected_strata: dict[str, CorrectedRate] = Field(default_factory=dict)
    """The strata's rates, corrected likewise."""
    labels: SampleLabels = SampleLabels()
    """Labels by people for its sampled runs."""
    labelled: CorrectedRate | None = None
    """The rate at which people would pass the runs of the newest ticks, by their labels; None where these are too few."""
    ticks: tuple[TickReport, ...]
    """The newest ticks, the newest first."""
    alerts: tuple[Alert, ...]
    """The newest first."""
    failed: tuple[MonitoredRun, ...]
    """The newest failed runs, the newest first."""
    shadow: ShadowComparison | None = None
    """The second judge beside the first, of the runs that both have passed or failed; None without such a run."""
    anchors: AnchorSummary | None = None
    """Error rates of the judge on the labelled runs; None where there are none."""
    backfill: Rate = Rate()
    """The rate of the runs that backfills have asked for; they are in no other."""
    backfill_waiting: int = 0
    """Runs that backfills have asked for, and that are still to be judged."""
    waiting: int = 0
    """Runs that the day's budget or an outage left out, and a later tick judges."""
    waiting_since: str | None = None
    """Time at which the first of them was read."""

    @property
    def open_alerts(self) -> tuple[Alert, ...]:
        """The alerts that are not over."""
        return tuple(alert for alert in self.alerts if alert.cleared is None)


class MonitorBrief(Strict):
    """A monitor in a list."""

    name: str
    alerts: tuple[str, ...]
    """The kinds of its alerts that are not over."""


def rate_text(rate: Rate) -> str:
    """Return a rate with its interval."""
    if rate.interval is None:
        return "none judged"
    interval = f"{percent(rate.interval.low)} to {percent(rate.interval.high)}"
    return f"{percent(rate.passed / rate.judged)} ({interval}, {rate.passed} of {rate.judged})"


def corrected_of(rate: Rate, anchors: AnchorSummary | None) -> CorrectedRate | None:
    """Return a rate corrected for the error that the anchors have measured of the judge; None where they do not suffice."""
    return None if anchors is None else corrected_rate(rate.passed * rate.worth, rate.judged * rate.worth, anchors.error)


def rates_text(rate: Rate, found: MonitorSummary) -> str:
    """Return a rate with its interval, beside the one corrected for the judge's error where that is known."""
    if (corrected := corrected_of(rate, found.anchors)) is None:
        return rate_text(rate)
    return f"{rate_text(rate)}, {percent(corrected.value)} corrected ({percent(corrected.low)} to {percent(corrected.high)})"


def labels_text(found: MonitorSummary) -> str:
    """Return what people's labels say of the rate, and of how many runs that is; empty where nobody has labelled one."""
    labels = found.labels
    if not labels.of_passed + labels.of_failed:
        return ""
    passes, fails = f"{labels.right_passes} of {labels.of_passed}", f"{labels.wrong_fails} of {labels.of_failed}"
    counts = f"people pass {passes} that the judge passed, and {fails} that it failed"
    if (rate := found.labelled) is None:
        return f"labels: {counts}; {LEAST_LABELS} of each say what they would pass of all"
    interval = f"{percent(rate.low)} to {percent(rate.high)}"
    return f"labels: people would pass {percent(rate.value)} ({interval}); {counts}, each weighed for the runs that it stands for"


def sum_of_rates(rates: Sequence[Rate]) -> Rate:
    """Return the rate of the runs of several rates together; where these differ by more than chance, the interval is the wider for it."""
    parts = [(rate.passed, rate.judged) for rate in rates if rate.judged]
    passed, judged = sum(part for part, _ in parts), sum(size for _, size in parts)
    worth = 1 / dispersion(parts) if len(parts) > 1 else 1.0
    return Rate(passed=passed, judged=judged, worth=worth, interval=wilson(passed * worth, judged * worth) if judged else None)


def waiting_text(found: MonitorSummary) -> str:
    """Return what waits to be judged, and why; empty where nothing does."""
    if not found.waiting:
        return ""
    verb = "waits" if found.waiting == 1 else "wait"
    why = "left out by the day's budget or an outage"
    return (
        f"{counted(found.waiting, 'run')} {verb} to be judged, the oldest since {found.waiting_since}: {why}; later ticks judge them first"
    )


def backfill_text(found: MonitorSummary) -> str:
    """Return what backfills have come to; empty where there was none."""
    gate = found.state.backfill
    if not found.backfill.judged and not found.backfill_waiting:
        return ""
    rate, left = f"pass rate {rate_text(found.backfill)}", f"{counted(found.backfill_waiting, 'run')} still to be judged"
    if gate is None or gate.decision is None:
        return f"backfill: {rate}, {left}{f', until {percent(gate.pass_rate)} is decided' if gate is not None else ''}"
    answer = early_answer(gate.decision, gate.total)
    return f"backfill: {answer.text}, {percent(gate.pass_rate)} wanted{f': {answer.words}' if answer.words else ''}; {rate}"


def shadow_text(monitor: MonitorSummary) -> str:
    """Return what the second judge, which is named, says beside the first; empty where there is none, or it has said nothing."""
    if (found := monitor.shadow) is None:
        return ""
    shadow = monitor.definition.shadow
    named = "shadow" if shadow is None else f"shadow {shadow.rubric_id}@{shadow.version}"
    rates = f"pass rate {rate_text(found.shadow)}, the judge's {rate_text(found.judge)}"
    change = (found.shadow.passed - found.judge.passed) / found.judge.judged
    low, high = found.difference.low, found.difference.high
    points = f"{100 * change:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
    return f"{named}: {rates}; difference {points}; they agree on {found.agreed} of {found.judge.judged} runs"


def anchor_text(monitor: MonitorSummary) -> str:
    """Return what the anchors say of the judge; empty where there are none."""
    if (found := monitor.anchors) is None:
        return ""
    error, labels = found.error, found.error.passed + found.error.failed
    if not labels:
        return f"anchors: {found.total}, none judged yet"
    right = error.passed_found + error.failed_found
    kinds = f"it passes {error.passed_found} of {error.passed} that pass and fails {error.failed_found} of {error.failed} that fail"
    return f"anchors: the judge is right on {right} of {labels}; {kinds}; {found.newest.text} ({found.beginning.text})"


def undecided_text(found: MonitorSummary) -> str:
    """Return which rate is on the wrong side of its limit without an alert, since chance may still explain it; empty where none is."""
    for rule in found.definition.alerts:
        if rule.text in found.state.open:
            continue
        over = max((alert.cleared for alert in found.alerts if alert.kind == rule.text and alert.cleared), default="")
        counts = [counts_of(rule, tick) for tick in found.ticks if tick.settled and tick.time > over]
        hits, runs = sum(hits for hits, _ in counts), sum(runs for _, runs in counts)
        if runs and ((hits / runs < rule.limit) if rule.below else (hits / runs > rule.limit)):
            rate, side = rule.rate.replace("_", " "), "below" if rule.below else "above"
            share = f"{percent(hits / runs)} ({hits:,} of {runs:,})"
            return f"the {rate} is {share}, {side} its limit of {percent(rule.limit)}, which may be chance: more judged runs decide"
    return ""


def tick_notes(tick: TickReport) -> str:
    """Return what is special about a tick; empty where nothing is."""
    unreadable = f"{tick.unreadable} unreadable: {'; '.join(tick.refused)}" if tick.unreadable else ""
    parts = [tick.problem or "", unreadable, "more to read" if tick.more else ""]
    parts += [f"{tick.backfilled} of a backfill"] if tick.backfilled else []
    parts += [f"{tick.late} of earlier ticks" if tick.late else "", f"{tick.given_up} waited too long" if tick.given_up else ""]
    parts += [f"{tick.anchors.right} of {counted(tick.anchors.judged, 'anchor')} right"] if tick.anchors.judged else []
    parts += [f"{tick.anchors.errors} anchors not judged"] if tick.anchors.errors else []
    parts += [f"the worker has no webhook {', '.join(tick.no_webhooks)}; add it to [notify] in its settings"] if tick.no_webhooks else []
    parts += [tick.written_back.text] if tick.written_back else []
    return "; ".join(part for part in parts if part)


class MonitorReader:
    """Reads and keeps the monitors of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, definition: MonitorDefinition, anchors: Sequence[Anchor] = ()) -> bool:
        """Store a monitor with its anchors, and return whether it is new; the same definition again changes nothing.

        Raises:
            InvalidRequest: There is another monitor of this name, or its source has too little time to settle.
        """
        refuse_hasty(definition.source)
        monitors, text = table("monitors"), definition_json(definition)
        row = {"name": definition.name, "definition": text, "state": MonitorState().model_dump_json()}

        def write(connection: Connection) -> None:
            connection.execute(monitors.insert().values(**row))
            insert_anchors(connection, definition.name, anchors)

        try:
            await self._store.write(write)
        except IntegrityError:
            known = select(monitors.c.definition).where(monitors.c.name == definition.name)
            if await self._store.read(lambda connection: connection.execute(known).scalar()) == text:
                return False
            cure = f"delete it with `gradeloop monitor delete {definition.name}`, or choose another name"
            raise InvalidRequest(f"there is another monitor {definition.name!r}; {cure}") from None
        return True

    async def delete(self, name: str) -> None:
        """Remove a monitor with all that it remembers; what its judge said stays in the cache of verdicts."""
        await self._store.write(lambda connection: remove_monitor(connection, name))

    async def accept(self, name: str) -> tuple[str, ...]:
        """Take rates and judge as they are now, and return the alerts that this ends: what comes is compared with the ticks to come.

        Raises:
            InvalidRequest: There is none of this name.
        """

        def write(connection: Connection) -> tuple[str, ...]:
            lock_monitor(connection, name)
            state, monitors = monitor_of(connection, name).state, table("monitors")
            over = tuple(kind for kind in state.open if kind in {DRIFT, JUDGE})
            for kind in over:
                clear_alert(connection, name, kind, state.ticks, datetime.now(UTC).isoformat(timespec="seconds"))
            changed: dict[str, object] = {
                "baseline_passed": 0,
                "baseline_judged": 0,
                "baseline_spread": Spread(),
                "tests": {kind: test for kind, test in state.tests.items() if kind != DRIFT},
                "anchors": AnchorState(),
                "open": {kind: alert for kind, alert in state.open.items() if kind not in over},
            }
            values = {"state": state.model_copy(update=changed).model_dump_json()}
            connection.execute(monitors.update().where(monitors.c.name == name).values(**values))
            forget_first_verdicts(connection, name)
            return over

        return await self._store.write(write)

    async def require(self, name: str) -> Monitor:
        """Return a monitor; raise InvalidRequest where there is none of this name."""
        return await self._store.read(lambda connection: monitor_of(connection, name))

    async def summaries(self) -> list[MonitorSummary]:
        """Return all monitors by name, with their newest ticks."""
        return await self._store.read(lambda connection: [_summary(connection, name) for name in monitor_names(connection)])

    async def briefs(self) -> list[MonitorBrief]:
        """Return all monitors by name, with the alerts that are not over."""
        monitors = table("monitors")
        statement = select(monitors.c.name, monitors.c.state).order_by(monitors.c.name)
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [MonitorBrief(name=name, alerts=tuple(sorted(MonitorState.model_validate_json(state).open))) for name, state in rows]

    async def mark(self, name: str) -> str:
        """Return a text that is another one whenever a tick of the monitor has begun or was settled, a label was given, or rows have gone.

        Raises:
            InvalidRequest: There is no such monitor.
        """

        def read(connection: Connection) -> str:
            monitor, ticks = monitor_of(connection, name), table("monitor_ticks")
            counts = select(func.count(), func.sum(ticks.c.settled), func.max(ticks.c.number)).where(ticks.c.monitor == name)
            said = sample_labels(connection, name).model_dump_json()
            return f"{monitor.state.model_dump_json()} {tuple(connection.execute(counts).one())} {said}"

        return await self._store.read(read)

    async def summary(self, name: str, *, ticks: int = SHOWN_TICKS) -> MonitorSummary:
        """Return a monitor with its newest ticks, 100 by default; raise InvalidRequest where there is none of this name."""
        return await self._store.read(lambda connection: _summary(connection, name, ticks))

    async def runs(self, name: str) -> list[MonitoredRun]:
        """Return every run that was chosen, in the order of the ticks; raise InvalidRequest where there is no such monitor."""
        return await self._store.read(lambda connection: _runs(connection, monitor_of(connection, name).definition.name))

    async def failed_cases(self, name: str) -> list[tuple[MonitoredRun, Case]]:
        """Return the failed runs whose judgement the store still has, with the cases that judged them, in the order of the ticks.

        Raises:
            InvalidRequest: There is no such monitor.
        """

        def read(connection: Connection) -> list[tuple[MonitoredRun, Case]]:
            cases, found = table("cases"), list[tuple[MonitoredRun, Case]]()
            for run in _runs(connection, monitor_of(connection, name).definition.name):
                mine = (cases.c.batch_id == run.batch_id, cases.c.case_id == run.judgement)
                if run.verdict == "failed" and (spec := connection.execute(select(cases.c.spec).where(*mine)).scalar()) is not None:
                    found.append((run, Case.model_validate_json(spec)))
            return found

        return await self._store.read(read)


def _summary(connection: Connection, name: str, shown: int = SHOWN_TICKS) -> MonitorSummary:
    monitor, ticks, alerts = monitor_of(connection, name), table("monitor_ticks"), table("monitor_alerts")
    newest = select(ticks.c.report).where(ticks.c.monitor == name).order_by(ticks.c.number.desc()).limit(shown)
    reports = tuple(map(TickReport.model_validate_json, connection.execute(newest).scalars()))
    raised = select(alerts.c.alert).where(alerts.c.monitor == name).order_by(alerts.c.number.desc(), alerts.c.kind).limit(SHOWN_TICKS)
    runs = table("monitor_runs")
    waits = select(func.count(), func.min(runs.c.created)).where(runs.c.monitor == name, runs.c.waiting.is_not(None))
    waiting, since = connection.execute(waits.where(runs.c.why != "backfill")).one()
    asked_for = select(runs.c.verdict, func.count()).where(runs.c.monitor == name, runs.c.why == "backfill").group_by(runs.c.verdict)
    found: dict[str, int] = dict(connection.execute(asked_for).all())
    passed, failed = found.get("passed", 0), found.get("failed", 0)
    names = sorted({stratum for report in reports for stratum in report.strata})
    strata = {stratum: sum_of_rates([report.strata.get(stratum, Rate()) for report in reports]) for stratum in names}
    rate, labels, anchors = sum_of_rates([report.rate for report in reports]), sample_labels(connection, name), None
    if (plan := monitor.definition.anchors) is not None:
        judged = next((report.anchors for report in reports if report.anchors.judged), AnchorCounts())
        anchors = AnchorSummary(total=plan.total, newest=judged, beginning=monitor.state.anchors, error=anchor_error(connection, name))
    return MonitorSummary(
        name=name,
        definition=monitor.definition,
        state=monitor.state,
        rate=rate,
        strata=strata,
        corrected=corrected_of(rate, anchors),
        corrected_strata={stratum: one for stratum in names if (one := corrected_of(strata[stratum], anchors)) is not None},
        labelled=labelled_rate(rate.passed * rate.worth, rate.judged * rate.worth, labels),
        ticks=reports,
        alerts=tuple(map(Alert.model_validate_json, connection.execute(raised).scalars())),
        failed=tuple(_runs(connection, name, failed=True)),
        shadow=_shadow(connection, name),
        anchors=anchors,
        labels=labels,
        backfill=sum_of_rates([Rate(passed=passed, judged=passed + failed)]),
        backfill_waiting=connection.execute(waits.where(runs.c.why == "backfill")).one()[0],
        waiting=waiting,
        waiting_since=since and (since.astimezone(UTC) if since.tzinfo else since.replace(tzinfo=UTC)).isoformat(timespec="seconds"),
    )


def _shadow(connection: Connection, name: str) -> ShadowComparison | None:
    runs, decided = table("monitor_runs"), ("passed", "failed")
    both = (runs.c.monitor == name, runs.c.verdict.in_(decided), runs.c.shadow_verdict.in_(decided))
    statement = select(runs.c.verdict, runs.c.shadow_verdict, func.count()).where(*both)
    rows = connection.execute(statement.group_by(runs.c.verdict, runs.c.shadow_verdict)).all()
    judge = [float(verdict == "passed") for verdict, _, count in rows for _ in range(count)]
    shadow = [float(verdict == "passed") for _, verdict, count in rows for _ in range(count)]
    if not judge:
        return None
    return ShadowComparison(
        judge=sum_of_rates([Rate(passed=int(sum(judge)), judged=len(judge))]),
        shadow=sum_of_rates([Rate(passed=int(sum(shadow)), judged=len(shadow))]),
        difference=paired_difference(shadow, judge),
        agreed=sum(count for verdict, other, count in rows if verdict == other),
    )


def _runs(connection: Connection, name: str, *, failed: bool = False) -> list[MonitoredRun]:
    runs, ticks = table("monitor_runs"), table("monitor_ticks")
    judging = (runs.c.monitor == ticks.c.monitor) & (func.coalesce(runs.c.judged, runs.c.number) == ticks.c.number)
    columns = (runs.c.run_id, runs.c.run_sha256, runs.c.number.label("tick"), runs.c.why, runs.c.stratum, runs.c.verdict)
    judgement = (runs.c.case_id.label("judgement"), case((runs.c.case_id.is_not(None), ticks.c.batch_id)).label("batch_id"))
    statement = select(*columns, *judgement).select_from(runs.join(ticks, judging, isouter=True)).where(runs.c.monitor == name)
    if failed:
        newest = statement.where(runs.c.verdict == "failed").order_by(runs.c.number.desc(), runs.c.run_sha256)
        statement = newest.limit(SHOWN_FAILED)
    else:
        statement = statement.where(runs.c.verdict.is_not(None)).order_by(runs.c.number, runs.c.run_sha256)
    return [MonitoredRun.model_validate(dict(row)) for row in connection.execute(statement).mappings()]
