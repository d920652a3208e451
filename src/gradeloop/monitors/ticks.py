"""The monitors of a store: what a tick writes, each step in one transaction and once."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select

from gradeloop.batches.contract import MONITOR_PREFIX, UPLOAD_CASES, BatchRequest, Case, CaseResult, Upload
from gradeloop.batches.judged import judging_case
from gradeloop.batches.reader import select_batches, usage_of
from gradeloop.batches.store import insert_cases
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.transcript import AgentRun, ErrorPart
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgingRequest
from gradeloop.judges.pass_rule import PassRule
from gradeloop.judges.write_back import TraceScore, WriteBackCall, WriteBackReport, scores_of
from gradeloop.monitors.alerts import JudgedRun, alert_changes, finished_report, verdict_of
from gradeloop.monitors.anchor_runs import ask_afresh, count_anchors, take_anchors
from gradeloop.monitors.contract import (
    BACKFILL_RUNS,
    SHOWN_RUNS,
    TICK_RUNS,
    WAITING_DAYS,
    Alert,
    AlwaysRule,
    BackfillGate,
    DueTick,
    FinishedTick,
    MonitorDefinition,
    MonitorState,
    TickReport,
    Why,
)
from gradeloop.stats.decided import SLACK, EarlyAnswer, EarlyGate
from gradeloop.store.engine import Store
from gradeloop.store.tables import stored_moment, table
from gradeloop.text import clip, did_you_mean, encodable, printable

LOOKED_UP = 500
"""Runs that one statement looks up."""

WRITTEN_AT_ONCE = 1000
"""Runs that one statement inserts: a tick reads up to 20,000, and one statement would hold all of them a second time."""

LATE_PAGE = 100
"""Waiting runs that one statement reads."""

LATE_BYTES = 64 * 1024 * 1024
"""The most JSON of waiting runs that one tick takes."""

CONCURRENCY = 10
"""Calls of a monitor in flight: production's own work comes first."""


class CursorMoved(Exception):
    """Another tick has read the source meanwhile; this one reads again."""


@dataclass(frozen=True)
class Monitor:
    """A monitor as it is in the store."""

    definition: MonitorDefinition
    state: MonitorState
    cursor: str | None


@dataclass(frozen=True)
class ReadRun:
    """A new run of a source, and the case that judges it where it is chosen."""

    run_id: str
    run_sha256: str
    why: Why
    stratum: str | None
    case: Case | None
    shadow: Case | None = None
    """The case in which the second judge judges it; None where there is none."""


@dataclass(frozen=True)
class SourceReading:
    """Runs and problems that one tick has read."""

    cursor: str | None
    runs: tuple[ReadRun, ...] = ()
    known: int = 0
    unreadable: int = 0
    refused: tuple[str, ...] = ()
    """The first reasons for which something is unreadable."""
    problem: str | None = None
    more: bool = False
    no_webhooks: tuple[str, ...] = ()
    """The webhooks of the monitor that the reading worker does not have."""


def read_run(definition: MonitorDefinition, run: AgentRun, sha256: str) -> ReadRun:
    """Return a new run with the case that judges it; a chosen run that no case can hold has none, and so stays unjudged."""
    why, priority = choose(definition, run, sha256), definition.priority
    judging = JudgingRequest(judge=definition.judge, run=run, priority=priority)
    case = judging_case(judging) if why in {"sampled", "always"} else None
    shadow = definition.shadow if why == "sampled" and case is not None else None
    shadowing = None if shadow is None else judging_case(JudgingRequest(judge=shadow, run=run, priority=priority))
    return ReadRun(run.id, sha256, why, stratum_of(definition, run), case, shadowing)


class MonitorStore:
    """Reads and writes the monitors of a store; each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def monitor(self, name: str) -> Monitor:
        """Return a monitor; raise InvalidRequest where there is none of this name."""
        return await self._store.read(lambda connection: monitor_of(connection, name))

    async def begun(self, name: str, tick: str) -> tuple[DueTick, ...] | None:
        """Return the ticks to finish if this tick has read its source already, else None."""

        def read(connection: Connection) -> tuple[DueTick, ...] | None:
            ticks = table("monitor_ticks")
            mine = select(ticks.c.number).where(ticks.c.monitor == name, ticks.c.tick == tick)
            return None if connection.execute(mine).first() is None else _due(connection, name)

        return await self._store.read(read)

    async def known(self, name: str, shas: Sequence[str]) -> frozenset[str]:
        """Return which of these runs the monitor has read before."""
        return await self._store.read(lambda connection: _known(connection, name, shas))

    async def collect(self, before: Monitor, tick: str, found: SourceReading, now: datetime) -> tuple[DueTick, ...]:
        """Write a tick's runs, their cases and the new cursor; return the ticks to finish. Raise CursorMoved after a faster tick."""

        def write(connection: Connection) -> tuple[DueTick, ...]:
            lock_monitor(connection, before.definition.name)
            monitor = monitor_of(connection, before.definition.name)
            ticks, name = table("monitor_ticks"), monitor.definition.name
            if connection.execute(select(ticks.c.number).where(ticks.c.monitor == name, ticks.c.tick == tick)).first() is None:
                # The source was read outside of this transaction, from the cursor of `before`. If the cursor
                # has moved, another tick has taken some of these runs, and this tick reads again. The lock
                # makes the comparison and the write one step; otherwise two ticks could each write the same
                # runs.
                if monitor.cursor != before.cursor:
                    raise CursorMoved(f"the monitor {name!r} was read by another tick; this one reads again")
                _write_tick(connection, monitor, tick, found, now)
            return _due(connection, name)

        return await self._store.write(write)

    async def finish_tick(self, name: str, number: int, problem: str | None) -> FinishedTick:
        """Write a tick's result; return the alerts that begin and end, also if it was finished before."""
        return await self._store.write(lambda connection: _finish_tick(connection, name, number, problem))

    async def scores(self, name: str, number: int) -> tuple[list[TraceScore], int]:
        """Return the scores of a tick's judged runs, and the number of runs whose trace is not known."""
        return await self._store.read(lambda connection: _scores(connection, name, number))

    async def note_written(self, name: str, number: int, written: WriteBackReport) -> None:
        """Note in a tick's report what became of its scores."""
        ticks = table("monitor_ticks")
        mine = (ticks.c.monitor == name, ticks.c.number == number)

        def write(connection: Connection) -> None:
            for text in connection.execute(select(ticks.c.report).where(*mine)).scalars().all():
                report = TickReport.model_validate_json(text).model_copy(update={"written_back": written})
                connection.execute(ticks.update().where(*mine).values(report=report.model_dump_json()))

        await self._store.write(write)


def monitor_names(connection: Connection) -> list[str]:
    """Return the names of all monitors, in order."""
    monitors = table("monitors")
    return list(connection.execute(select(monitors.c.name).order_by(monitors.c.name)).scalars())


def lock_monitor(connection: Connection, name: str) -> None:
    """Have no other process write this monitor until the transaction ends."""
    monitors = table("monitors")
    connection.execute(monitors.update().where(monitors.c.name == name).values(name=name))


def monitor_of(connection: Connection, name: str) -> Monitor:
    """Return a monitor; raise InvalidRequest where there is none of this name."""
    monitors = table("monitors")
    row = connection.execute(select(monitors).where(monitors.c.name == name)).mappings().first()
    if row is None:
        known = monitor_names(connection)
        hint = did_you_mean(name, known) if known else " The store has none yet."
        raise InvalidRequest(f"there is no monitor {clip(name)} in the store.{hint}")
    definition = MonitorDefinition.model_validate_json(row["definition"])
    return Monitor(definition, MonitorState.model_validate_json(row["state"]), row["cursor"])


def _known(connection: Connection, name: str, shas: Collection[str]) -> frozenset[str]:
    runs, wanted, found = table("monitor_runs"), list(shas), set[str]()
    for start in range(0, len(wanted), LOOKED_UP):
        mine = (runs.c.monitor == name, runs.c.run_sha256.in_(wanted[start : start + LOOKED_UP]))
        found |= set(connection.execute(select(runs.c.run_sha256).where(*mine)).scalars())
    return frozenset(found)


def _write_tick(connection: Connection, monitor: Monitor, tick: str, found: SourceReading, now: datetime) -> None:
    definition, number = monitor.definition, monitor.state.ticks + 1
    day = now.astimezone(UTC).date().isoformat()
    spent = monitor.state.spent_usd if monitor.state.day == day else 0.0
    left = None if definition.budget_usd is None else definition.budget_usd - spent
    known = _known(connection, definition.name, [run.run_sha256 for run in found.runs])
    new = [run for run in found.runs if run.run_sha256 not in known]
    affordable = left is None or left > 0
    # Runs, cases, the batch's request and the cursor are written in one transaction. Otherwise a crash could move
    # the cursor past runs that no batch judges. Runs that have waited come first and those of a backfill last, so
    # that a backfill holds up nothing new.
    given_up = _give_up(connection, definition.name, now)
    batch = _TickBatch(connection, definition, tick)
    late = batch.add_waiting(number, TICK_RUNS) if affordable else 0
    counts = Counter[object]()
    for start in range(0, len(new), WRITTEN_AT_ONCE):
        rows = [_row_of_run(definition.name, number, run, affordable=affordable) for run in new[start : start + WRITTEN_AT_ONCE]]
        connection.execute(table("monitor_runs").insert(), rows)
        counts.update(row["why"] for row in rows)
    if affordable:
        cases = [run.case for run in new if run.case is not None]
        batch.add_with_anchors(cases, take_anchors(connection, definition, number) if late or cases else [])
        batch.add([run.shadow for run in new if run.shadow is not None])
    backfilled = batch.add_waiting(number, BACKFILL_RUNS, backfill=True) if affordable else 0
    request = batch.request(left)
    report = TickReport(
        number=number,
        tick=tick,
        time=now.astimezone(UTC).isoformat(timespec="seconds"),
        read=len(new),
        known=found.known + len(known),
        unreadable=found.unreadable,
        refused=found.refused,
        problem=found.problem,
        sampled=counts["sampled"],
        always=counts["always"],
        over_budget=counts["over budget"],
        late=late,
        backfilled=backfilled,
        given_up=given_up,
        more=found.more,
        no_webhooks=found.no_webhooks,
    )
    row = {"batch_id": request and request.batch_id, "request": request and request.model_dump_json(), "report": report.model_dump_json()}
    connection.execute(table("monitor_ticks").insert().values(monitor=definition.name, number=number, tick=tick, **row))
    state = monitor.state.model_copy(update={"ticks": number, "day": day, "spent_usd": spent})
    monitors = table("monitors")
    values = {"state": state.model_dump_json(), "cursor": found.cursor}
    connection.execute(monitors.update().where(monitors.c.name == definition.name).values(**values))


def _row_of_run(name: str, number: int, run: ReadRun, *, affordable: bool) -> dict[str, object]:
    # A chosen run that the day's budget does not cover is kept with its whole case. The cursor moves past it, so
    # no later tick would find it in the source again.
    chosen = run.why in {"sampled", "always"}
    why = run.why if affordable or not chosen else "over budget"
    waits = why == "over budget" and run.case is not None
    return {
        "monitor": name,
        "run_sha256": run.run_sha256,
        "run_id": run.run_id,
        "number": number,
        "why": why,
        "stratum": run.stratum,
        "case_id": run.case.id if run.case is not None and affordable else None,
        "verdict": "unjudged" if chosen else None,
        "judged": number if chosen and not waits else None,
        "waiting": run.case.model_dump_json() if waits and run.case is not None else None,
        "shadow_case": run.shadow.id if run.shadow is not None and affordable else None,
    }


class _TickBatch:
    """The batch that judges a tick's runs, in the transaction that writes the tick: those that have waited come first."""

    def __init__(self, connection: Connection, definition: MonitorDefinition, tick: str) -> None:
        self._connection = connection
        self._definition = definition
        digits = hashlib.sha256(f"{definition.name}\n{tick}".encode()).hexdigest()[:24]
        self._batch_id = f"{MONITOR_PREFIX}{definition.name}-{digits}"
        self._total = 0

    def add(self, cases: Sequence[Case]) -> None:
        """Insert cases behind those that it has."""
        for first in range(0, len(cases), UPLOAD_CASES):
            part = tuple(cases[first : first + UPLOAD_CASES])
            insert_cases(self._connection, Upload(batch_id=self._batch_id, first=self._total, cases=part))
            self._total += len(part)

    def add_with_anchors(self, cases: Sequence[Case], anchors: Sequence[Case]) -> None:
        """Insert cases with anchors among them, which are judged past the cache of verdicts."""
        mixed = [*cases, *anchors]
        self.add(sorted(mixed, key=lambda case: hashlib.sha256(case.id.encode()).digest()) if anchors else mixed)
        ask_afresh(self._connection, self._batch_id, anchors)

    def add_waiting(self, number: int, most: int, *, backfill: bool = False) -> int:
        """Have a tick judge runs that wait, the oldest first, those of a backfill in a random order; return how many."""
        runs, taken, size = table("monitor_runs"), 0, 0
        asked_for = (runs.c.why == "backfill") if backfill else (runs.c.why != "backfill")
        waiting = select(runs).where(runs.c.monitor == self._definition.name, runs.c.waiting.is_not(None), asked_for)
        page = waiting.order_by(*(() if backfill else (runs.c.number,)), runs.c.run_sha256).limit(LATE_PAGE)
        while taken < most and size < LATE_BYTES and (rows := self._connection.execute(page).mappings().all()):
            cases = list[Case]()
            for row in rows:
                mine = (runs.c.monitor == self._definition.name, runs.c.run_sha256 == row["run_sha256"])
                case = Case.model_validate_json(row["waiting"])
                cases.append(case)
                why = "backfill" if backfill else why_of(self._definition, row["run_sha256"], row["stratum"])
                size += len(row["waiting"])
                self._connection.execute(runs.update().where(*mine).values(waiting=None, judged=number, case_id=case.id, why=why))
            self.add(cases)
            taken += len(cases)
        return taken

    def request(self, left: float | None) -> BatchRequest | None:
        """Return the request that judges the batch; None where it has no case."""
        if not self._total:
            return None
        return BatchRequest(
            batch_id=self._batch_id,
            total=self._total,
            name=f"monitor {self._definition.name}",
            at_once=CONCURRENCY,
            budget=None if left is None else Budget(max_cost_usd=left),
            max_error_rate=1,
            priority=self._definition.priority,
        )


def _give_up(connection: Connection, name: str, now: datetime) -> int:
    """Have no run wait that has waited for too long, and return how many there were."""
    runs, since = table("monitor_runs"), stored_moment(connection, now - timedelta(days=WAITING_DAYS))
    old = (runs.c.monitor == name, runs.c.waiting.is_not(None), runs.c.why != "backfill", runs.c.created < since)
    return connection.execute(runs.update().where(*old).values(waiting=None)).rowcount


def _leave_waiting(connection: Connection, name: str, number: int, batch_id: str | None) -> None:
    """Have the runs wait that a tick's batch has left out, and that batch not go on."""
    if batch_id is None:
        return
    # A batch that its budget has paused is not resumed. The runs that it left out wait as whole cases, and a
    # later tick judges them in its own batch, by the budget of its own day. The paused batch is stopped in
    # the same transaction: if it went on, the same runs would be judged and paid for twice.
    runs, cases, batches = table("monitor_runs"), table("cases"), table("batches")
    spec = select(cases.c.spec).where(cases.c.batch_id == batch_id, cases.c.case_id == runs.c.case_id).scalar_subquery()
    left_out = (runs.c.monitor == name, runs.c.judged == number, runs.c.verdict == "unjudged", runs.c.case_id.is_not(None))
    connection.execute(runs.update().where(*left_out).values(waiting=spec))
    connection.execute(batches.update().where(batches.c.id == batch_id, batches.c.status == "paused").values(status="stopped"))


def _due(connection: Connection, name: str) -> tuple[DueTick, ...]:
    ticks = table("monitor_ticks")
    statement = select(ticks.c.number, ticks.c.request).where(ticks.c.monitor == name, ticks.c.settled == 0).order_by(ticks.c.number)
    rows = connection.execute(statement).all()
    return tuple(DueTick(number=number, batch=None if text is None else BatchRequest.model_validate_json(text)) for number, text in rows)


def _finish_tick(connection: Connection, name: str, number: int, problem: str | None) -> FinishedTick:
    lock_monitor(connection, name)
    monitor, ticks = monitor_of(connection, name), table("monitor_ticks")
    row = connection.execute(select(ticks).where(ticks.c.monitor == name, ticks.c.number == number)).mappings().first()
    if row is None:  # it was forgotten meanwhile
        return FinishedTick()
    # An attempt whose answer was lost has written the end already. The next one only reads it: its alerts are
    # returned again, and nothing is counted twice.
    if not row["settled"]:
        _write_tick_end(connection, monitor, row, problem)
    return _finished_tick(connection, monitor.definition, number)


def _write_tick_end(connection: Connection, monitor: Monitor, row: RowMapping, problem: str | None) -> None:
    definition, number, name = monitor.definition, row["number"], monitor.definition.name
    cases = table("cases")
    statement = select(cases.c.case_id, cases.c.status, cases.c.result).where(cases.c.batch_id == row["batch_id"])
    found = {case_id: (status, result) for case_id, status, result in connection.execute(statement)}
    judged = _judged_runs(connection, definition, number, found)
    anchors = count_anchors(connection, definition, number, found)
    cost = _cost_of(connection, row["batch_id"]) if row["batch_id"] else 0.0
    _leave_waiting(connection, name, number, row["batch_id"])
    report = finished_report(TickReport.model_validate_json(row["report"]), judged, cost, problem, anchors)
    outcome = alert_changes(definition, monitor.state, report, _newest_failed(connection, name))
    state = outcome.state.model_copy(update={"spent_usd": monitor.state.spent_usd + (cost or 0.0)})
    ticks, alerts, monitors = table("monitor_ticks"), table("monitor_alerts"), table("monitors")
    mine = (ticks.c.monitor == name, ticks.c.number == number)
    connection.execute(ticks.update().where(*mine).values(report=report.model_dump_json(), settled=1))
    for alert in outcome.raised:
        connection.execute(alerts.insert().values(monitor=name, number=number, kind=alert.kind, alert=alert.model_dump_json()))
    for kind in outcome.explained:
        opened = state.open[kind]
        _change_alert(connection, name, kind, {"moved": opened.moved, "anchors": opened.anchors})
    for kind in outcome.cleared:
        clear_alert(connection, name, kind, number, report.time)
    state = state.model_copy(update={"backfill": _looked_at(connection, name, state.backfill)})
    connection.execute(monitors.update().where(monitors.c.name == name).values(state=state.model_dump_json()))


def _looked_at(connection: Connection, name: str, gate: BackfillGate | None) -> BackfillGate | None:
    """Return the gate of a backfill after a tick; once its answer is known, no run of it waits any more."""
    if gate is None or not gate.total or gate.decision is not None:
        return gate
    if (known := _answer_of_backfill(connection, name, gate)) is not None:
        runs = table("monitor_runs")
        left = (runs.c.monitor == name, runs.c.why == "backfill", runs.c.waiting.is_not(None))
        connection.execute(runs.update().where(*left).values(waiting=None))
    return gate.model_copy(update={"decision": known})


# Runs enter the gate in the order of their digests. A digest does not depend on the verdict, so that this order is as good as a shuffled
# one, and it needs no place in the store. Whoever writes many versions of a run could choose its place, as in a sample by digests. A run
# that is still to be judged holds the place: otherwise quick verdicts would come before slow ones. Ticks judge in this order, too, or the
# gate would wait for the last tick.
def _answer_of_backfill(connection: Connection, name: str, gate: BackfillGate) -> EarlyAnswer | None:
    """Return the answer of a backfill, early or of all of its runs; None while it is not known, and where none has a verdict."""
    runs = table("monitor_runs")
    statement = select(runs.c.verdict, is_due(name)).where(*runs_of_backfill(name, gate)).order_by(runs.c.run_sha256)
    early, counts = EarlyGate(gate.total, gate.pass_rate, gate.risk), Counter[str]()
    for verdict, is_open in connection.execute(statement):
        if is_open:
            return None
        early.take("passed" if verdict == "passed" else "failed" if verdict == "failed" else "neither")
        if early.decision is not None:
            return early.decision
        counts[verdict] += 1
    if not (judged := counts["passed"] + counts["failed"]):
        return None
    passes = counts["passed"] >= gate.pass_rate * judged - SLACK
    return EarlyAnswer(answer="passed" if passes else "failed", asked=gate.total, risk=0, wanted=gate.pass_rate)


def is_due(name: str) -> ColumnElement[bool]:
    """Return the condition by which a run waits to be judged, or is judged by a tick that has not ended."""
    runs, ticks = table("monitor_runs"), table("monitor_ticks")
    unsettled = select(ticks.c.number).where(ticks.c.monitor == name, ticks.c.settled == 0)
    return or_(runs.c.waiting.is_not(None), runs.c.judged.in_(unsettled))


def runs_of_backfill(name: str, gate: BackfillGate) -> tuple[ColumnElement[bool], ...]:
    """Return the condition by which runs belong to a backfill: they wait, or a tick after its beginning has judged them."""
    runs = table("monitor_runs")
    return (runs.c.monitor == name, runs.c.why == "backfill", or_(runs.c.waiting.is_not(None), runs.c.judged > gate.after))


def clear_alert(connection: Connection, name: str, kind: str, number: int, time: str) -> None:
    """Write that an open alert is over, since a tick."""
    _change_alert(connection, name, kind, {"cleared": time}, cleared=number)


def _change_alert(connection: Connection, name: str, kind: str, changes: Mapping[str, object], **values: object) -> None:
    alerts = table("monitor_alerts")
    opened = (alerts.c.monitor == name, alerts.c.kind == kind, alerts.c.cleared.is_(None))
    for text in connection.execute(select(alerts.c.alert).where(*opened)).scalars().all():
        changed = Alert.model_validate_json(text).model_copy(update=dict(changes))
        connection.execute(alerts.update().where(*opened).values(alert=changed.model_dump_json(), **values))


def _finished_tick(connection: Connection, definition: MonitorDefinition, number: int) -> FinishedTick:
    alerts = table("monitor_alerts")
    mine = select(alerts.c.alert).where(alerts.c.monitor == definition.name)
    raised = connection.execute(mine.where(alerts.c.number == number)).scalars()
    cleared = connection.execute(mine.where(alerts.c.cleared == number)).scalars()
    return FinishedTick(
        raised=tuple(map(Alert.model_validate_json, raised)),
        cleared=tuple(map(Alert.model_validate_json, cleared)),
        notify=definition.notify,
        title=f"monitor {definition.name}",
        write_back=definition.write_back and WriteBackCall(to=definition.write_back, monitor=definition.name, number=number),
    )


def _scores(connection: Connection, name: str, number: int) -> tuple[list[TraceScore], int]:
    """Return the scores of a tick's judged runs, and the number of runs whose trace is not known."""
    definition, runs, cases, ticks = monitor_of(connection, name).definition, table("monitor_runs"), table("cases"), table("monitor_ticks")
    row = connection.execute(select(ticks).where(ticks.c.monitor == name, ticks.c.number == number)).mappings().one()
    mine = (runs.c.monitor == name, runs.c.judged == number, cases.c.batch_id == row["batch_id"], cases.c.result.is_not(None))
    time = datetime.fromisoformat(TickReport.model_validate_json(row["report"]).time)
    found, untraced = list[TraceScore](), 0
    for spec, result in connection.execute(select(cases.c.spec, cases.c.result).where(*mine, cases.c.case_id == runs.c.case_id)):
        judging, judgement = Case.model_validate_json(spec).judging, CaseResult.model_validate_json(result).judgement
        if judging is None or judgement is None or definition.write_back is None or judgement.failed:
            continue
        scores = scores_of(definition.write_back, PassRule(definition.judge, definition.passes), judging.run, judgement, time)
        found.extend(scores or ())
        untraced += scores is None
    return found, untraced


def _judged_runs(
    connection: Connection, definition: MonitorDefinition, number: int, found: Mapping[str, tuple[str, str | None]]
) -> list[JudgedRun]:
    """Write what became of a tick's chosen runs, and return them; `found` has status and result of its batch's cases, by their ids."""
    runs = table("monitor_runs")
    mine = (runs.c.monitor == definition.name, runs.c.judged == number)
    chosen = connection.execute(select(runs).where(*mine, runs.c.verdict.is_not(None))).mappings().all()
    judged = list[JudgedRun]()
    for row in chosen:
        verdict = verdict_of(definition.judge, definition.passes, *found.get(row["case_id"], ("queued", None)))
        values: dict[str, str] = {"verdict": verdict} if verdict != row["verdict"] else {}
        if definition.shadow is not None and row["shadow_case"] in found:
            values["shadow_verdict"] = verdict_of(definition.shadow, definition.passes, *found[row["shadow_case"]])
        if values:
            connection.execute(runs.update().where(*mine, runs.c.run_sha256 == row["run_sha256"]).values(**values))
        judged.append(JudgedRun(row["run_id"], row["why"], row["stratum"], verdict))
    return judged


def _newest_failed(connection: Connection, name: str) -> list[str]:
    """Return the ids of the newest failed runs of the sample, the newest first."""
    runs = table("monitor_runs")
    failed = (runs.c.monitor == name, runs.c.verdict == "failed", runs.c.why == "sampled")
    newest = select(runs.c.run_id).where(*failed).order_by(runs.c.number.desc(), runs.c.run_sha256).limit(SHOWN_RUNS)
    return list(connection.execute(newest).scalars())


def _cost_of(connection: Connection, batch_id: str) -> float | None:
    """Return what a batch has cost; None where it is not known."""
    row = connection.execute(select_batches().where(table("batches").c.id == batch_id)).mappings().first()
    usage = None if row is None else usage_of(row)
    return 0.0 if usage is None or not usage.calls else usage.cost_usd


def definition_json(definition: MonitorDefinition) -> str:
    """Return a definition as the store has it: equal definitions are equal texts."""
    return json.dumps(definition.model_dump(mode="json", exclude_none=True), sort_keys=True)


# A run's content decides whether it is sampled, and no random number. So every worker chooses alike, and a tick
# that is repeated chooses the same runs. A larger share only adds runs to those of a smaller one.
def place_of(run_sha256: str) -> float:
    """Return the place of a run between 0 and 1, which only its content decides."""
    return int(run_sha256[:16], 16) / 2**64


def stratum_of(definition: MonitorDefinition, run: AgentRun) -> str | None:
    """Return the stratum of a run; None where the monitor tells none apart, or the run does not say."""
    value = None if definition.stratum is None else run.metadata.get(definition.stratum)
    return None if value is None else printable(encodable(_text(value)))[:200]


def choose(definition: MonitorDefinition, run: AgentRun, run_sha256: str) -> Why:
    """Return whether a run is judged, and why; a run of the sample counts as such although a rule would take it, too."""
    if _is_sampled(definition, run_sha256, stratum_of(definition, run)):
        return "sampled"
    return "always" if any(_takes(rule, run) for rule in definition.always) else "left out"


def why_of(definition: MonitorDefinition, run_sha256: str, stratum: str | None) -> Why:
    """Return why a run was chosen that is known to be."""
    return "sampled" if _is_sampled(definition, run_sha256, stratum) else "always"


def _is_sampled(definition: MonitorDefinition, run_sha256: str, stratum: str | None) -> bool:
    return place_of(run_sha256) < definition.strata.get(stratum or "", definition.sample)


def _takes(rule: AlwaysRule, run: AgentRun) -> bool:
    value = run.metadata.get(rule.key)
    if rule.value is not None:
        return value is not None and _text(value) == _text(rule.value)
    return bool(value) or (rule.key == "error" and _has_error(run))


def _has_error(run: AgentRun) -> bool:
    messages = (message for transcript in run.transcripts for message in transcript.messages)
    return any(message.is_error or any(isinstance(part, ErrorPart) for part in message.parts) for message in messages)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
