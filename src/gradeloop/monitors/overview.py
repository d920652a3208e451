"""The monitors of a store as commands and pages read them, and what creates and removes them."""

from collections.abc import Sequence
from datetime import UTC

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.monitors.contract import Alert, MonitorDefinition, MonitorState, Rate, TickReport
from gradeloop.monitors.removal import remove_monitor
from gradeloop.monitors.ticks import Monitor, definition_json, read_monitor
from gradeloop.stats.intervals import wilson
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.text import clip, did_you_mean

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
    """What the judge found; None for a run that was not chosen."""
    judgement: str | None = None
    """The id of the judgement, which is the case's in the tick's batch."""
    batch_id: str | None = None


class MonitorSummary(Strict):
    """A monitor with what it has found."""

    name: str
    definition: MonitorDefinition
    state: MonitorState
    rate: Rate
    """The rate of the newest ticks together."""
    strata: dict[str, Rate]
    ticks: tuple[TickReport, ...]
    """The newest ticks, the newest first."""
    alerts: tuple[Alert, ...]
    """The newest first."""
    failed: tuple[MonitoredRun, ...]
    """The newest failed runs, the newest first."""
    waiting: int = 0
    """Runs that the day's budget or an outage left out, and a later tick judges."""
    waiting_since: str | None = None
    """When the first of them was read."""

    @property
    def open_alerts(self) -> tuple[Alert, ...]:
        """The alerts that are not over."""
        return tuple(alert for alert in self.alerts if alert.cleared is None)


class MonitorReader:
    """Reads and keeps the monitors of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, definition: MonitorDefinition) -> bool:
        """Store a monitor, and return whether it is new; the same definition again changes nothing.

        Raises:
            InvalidRequest: There is another monitor of this name.
        """
        monitors, text = table("monitors"), definition_json(definition)
        row = {"name": definition.name, "definition": text, "state": MonitorState().model_dump_json()}
        try:
            await self._store.write(lambda connection: connection.execute(monitors.insert().values(**row)).rowcount)
        except IntegrityError:
            known = select(monitors.c.definition).where(monitors.c.name == definition.name)
            if await self._store.read(lambda connection: connection.execute(known).scalar()) == text:
                return False
            cure = f"delete it with `gradeloop monitor delete {definition.name}`, or choose another name"
            raise InvalidRequest(f"there is another monitor {definition.name!r}; {cure}") from None
        return True

    async def delete(self, name: str) -> None:
        """Remove a monitor with all that it remembers; what its judge said stays in the cache of verdicts."""

        def write(connection: Connection) -> None:
            remove_monitor(connection, name)

        await self._store.write(write)

    async def require(self, name: str) -> Monitor:
        """Return a monitor.

        Raises:
            InvalidRequest: There is none of this name.
        """
        return await self._store.read(lambda connection: _require(connection, name))

    async def summaries(self) -> list[MonitorSummary]:
        """Return all monitors by name, with their newest ticks."""

        def read(connection: Connection) -> list[MonitorSummary]:
            names = connection.execute(select(table("monitors").c.name).order_by(table("monitors").c.name)).scalars().all()
            return [_summary(connection, name) for name in names]

        return await self._store.read(read)

    async def summary(self, name: str) -> MonitorSummary:
        """Return a monitor with what it has found.

        Raises:
            InvalidRequest: There is none of this name.
        """
        return await self._store.read(lambda connection: _summary(connection, name))

    async def runs(self, name: str) -> list[MonitoredRun]:
        """Return every run that was chosen, in the order of the ticks.

        Raises:
            InvalidRequest: There is no such monitor.
        """

        def read(connection: Connection) -> list[MonitoredRun]:
            _require(connection, name)
            return _runs(connection, name)

        return await self._store.read(read)


def _require(connection: Connection, name: str) -> Monitor:
    monitors = table("monitors")
    row = connection.execute(select(monitors).where(monitors.c.name == name)).mappings().first()
    if row is not None:
        return read_monitor(row)
    known = list(connection.execute(select(monitors.c.name).order_by(monitors.c.name)).scalars())
    hint = did_you_mean(name, known) if known else " The store has none yet."
    raise InvalidRequest(f"there is no monitor {clip(name)} in the store.{hint}")


def _summary(connection: Connection, name: str) -> MonitorSummary:
    monitor, ticks, alerts = _require(connection, name), table("monitor_ticks"), table("monitor_alerts")
    newest = select(ticks.c.report).where(ticks.c.monitor == name).order_by(ticks.c.number.desc()).limit(SHOWN_TICKS)
    reports = tuple(map(TickReport.model_validate_json, connection.execute(newest).scalars()))
    raised = select(alerts.c.alert).where(alerts.c.monitor == name).order_by(alerts.c.number.desc(), alerts.c.kind).limit(SHOWN_TICKS)
    runs = table("monitor_runs")
    waits = select(func.count(), func.min(runs.c.created)).where(runs.c.monitor == name, runs.c.waiting.is_not(None))
    waiting, since = connection.execute(waits).one()
    strata = sorted({stratum for report in reports for stratum in report.strata})
    return MonitorSummary(
        name=name,
        definition=monitor.definition,
        state=monitor.state,
        rate=_together([report.rate for report in reports]),
        strata={stratum: _together([report.strata.get(stratum, Rate()) for report in reports]) for stratum in strata},
        ticks=reports,
        alerts=tuple(map(Alert.model_validate_json, connection.execute(raised).scalars())),
        failed=tuple(_runs(connection, name, failed=True)),
        waiting=waiting,
        waiting_since=None if since is None else (since if since.tzinfo else since.replace(tzinfo=UTC)).isoformat(timespec="seconds"),
    )


def _together(rates: Sequence[Rate]) -> Rate:
    passed, judged = sum(rate.passed for rate in rates), sum(rate.judged for rate in rates)
    return Rate(passed=passed, judged=judged, interval=wilson(passed, judged) if judged else None)


def _runs(connection: Connection, name: str, *, failed: bool = False) -> list[MonitoredRun]:
    runs, ticks = table("monitor_runs"), table("monitor_ticks")
    joined = runs.join(
        ticks, (runs.c.monitor == ticks.c.monitor) & (func.coalesce(runs.c.judged, runs.c.number) == ticks.c.number), isouter=True
    )
    statement = select(runs, ticks.c.batch_id).select_from(joined).where(runs.c.monitor == name)
    if failed:
        newest = statement.where(runs.c.verdict == "failed").order_by(runs.c.number.desc(), runs.c.run_sha256)
        statement = newest.limit(SHOWN_FAILED)
    else:
        statement = statement.where(runs.c.verdict.is_not(None)).order_by(runs.c.number, runs.c.run_sha256)
    return [
        MonitoredRun(
            run_id=row["run_id"],
            run_sha256=row["run_sha256"],
            tick=row["number"],
            why=row["why"],
            stratum=row["stratum"],
            verdict=row["verdict"],
            judgement=row["case_id"],
            batch_id=row["batch_id"] if row["case_id"] else None,
        )
        for row in connection.execute(statement).mappings()
    ]
