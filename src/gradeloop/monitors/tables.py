"""The tables of monitors and of the receiver: their shape, what is pruned of them, and what is forgotten with a subject."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Index, Integer, MetaData, String, Table, Text, func, select
from temporalio.client import Client

from gradeloop.admin.forgetting import ForgottenSubject, OwnedData
from gradeloop.monitors.client import MonitorSchedules
from gradeloop.monitors.contract import Alert, MonitorDefinition
from gradeloop.store.engine import Store
from gradeloop.store.tables import StoreTables, counter, created, prune_by_age, stored_moment, table

PARTS = ("monitor_alerts", "monitor_runs", "monitor_ticks")
"""The tables of what a monitor remembers."""

CHUNK = 500
"""Batches in one statement: SQLite takes 32,766 values at most."""


def monitors_of(connection: Connection, tenant: str) -> list[str]:
    """Return the names of a tenant's monitors."""
    monitors = table("monitors")
    rows = connection.execute(select(monitors.c.name, monitors.c.definition).order_by(monitors.c.name)).all()
    return [name for name, definition in rows if MonitorDefinition.model_validate_json(definition).tenant == tenant]


KEPT_PARTS = ("monitor_anchors", "monitor_labels")
"""The tables of what stays for as long as a monitor does: its anchors, and what people say."""


def remove_monitor(connection: Connection, name: str) -> dict[str, int]:
    """Delete a monitor with all that it remembers, and return how many rows of each table."""
    rows = {part: _deleted(connection, part, table(part).c.monitor == name) for part in (*PARTS, *KEPT_PARTS)}
    return rows | {"monitors": _deleted(connection, "monitors", table("monitors").c.name == name)}


def remove_of_batches(connection: Connection, batches: Sequence[str]) -> dict[str, int]:
    """Delete the ticks whose runs were judged in these batches, and those runs."""
    ticks, runs, rows = table("monitor_ticks"), table("monitor_runs"), dict.fromkeys(("monitor_runs", "monitor_ticks"), 0)
    judged = func.coalesce(runs.c.judged, runs.c.number)
    for at in range(0, len(batches), CHUNK):
        which = ticks.c.batch_id.in_(batches[at : at + CHUNK])
        for monitor, number in connection.execute(select(ticks.c.monitor, ticks.c.number).where(which)).all():
            mine = (runs.c.monitor == monitor) & (judged == number)
            rows["monitor_runs"] += _deleted(connection, "monitor_runs", mine & runs.c.case_id.is_not(None))
        rows["monitor_ticks"] += _deleted(connection, "monitor_ticks", which)
    return rows


def remove_before(connection: Connection, before: datetime) -> dict[str, int]:
    """Delete the runs, the settled ticks and the past alerts that are older than a moment; the monitors stay, and so does what is open."""
    old = {part: table(part).c.created < stored_moment(connection, before) for part in PARTS}
    rows = {
        "monitor_runs": _deleted(connection, "monitor_runs", old["monitor_runs"]),
        "monitor_ticks": _deleted(connection, "monitor_ticks", old["monitor_ticks"] & (table("monitor_ticks").c.settled == 1)),
        "monitor_alerts": _deleted(connection, "monitor_alerts", old["monitor_alerts"] & table("monitor_alerts").c.cleared.is_not(None)),
    }
    if rows["monitor_runs"]:
        _forget_names(connection)
    return rows


def _deleted(connection: Connection, name: str, which: ColumnElement[bool]) -> int:
    return connection.execute(table(name).delete().where(which)).rowcount


def _forget_names(connection: Connection) -> None:
    """Take the ids of runs that are no longer there out of alerts."""
    alerts, runs = table("monitor_alerts"), table("monitor_runs")
    for row in connection.execute(select(alerts)).mappings().all():
        alert = Alert.model_validate_json(row["alert"])
        known = select(runs.c.run_id).where(runs.c.monitor == row["monitor"], runs.c.run_id.in_(alert.runs))
        there = set(connection.execute(known).scalars())
        kept = alert.model_copy(update={"runs": tuple(name for name in alert.runs if name in there)})
        if kept != alert:
            mine = (alerts.c.monitor == row["monitor"], alerts.c.number == row["number"], alerts.c.kind == row["kind"])
            connection.execute(alerts.update().where(*mine).values(alert=kept.model_dump_json()))


def _monitor_tables(tables: MetaData) -> None:
    Table(
        "monitors",
        tables,
        Column("name", String(64), primary_key=True),
        Column("definition", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("cursor", Text),
        created(),
    )
    Table(
        "monitor_ticks",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("tick", String(200), nullable=False),
        Column("batch_id", String(200)),
        Column("request", Text),
        Column("report", Text, nullable=False),
        counter("settled"),
        created(),
        Index("monitor_ticks_by_tick", "monitor", "tick", unique=True),
    )
    Table(
        "monitor_runs",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("run_sha256", String(64), primary_key=True),
        Column("run_id", String(200), nullable=False),
        Column("number", Integer, nullable=False),
        Column("why", String(20), nullable=False),
        Column("stratum", String(200)),
        Column("case_id", String(200)),
        Column("verdict", String(20)),
        Column("judged", Integer),
        Column("waiting", Text),
        Column("shadow_case", String(200)),
        Column("shadow_verdict", String(20)),
        created(),
        Index("monitor_runs_by_tick", "monitor", "number"),
        Index("monitor_runs_by_judged", "monitor", "judged"),
    )
    Table(
        "monitor_alerts",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("kind", String(100), primary_key=True),
        Column("alert", Text, nullable=False),
        Column("cleared", Integer),
        created(),
    )


def _label_tables(tables: MetaData) -> None:
    Table(
        "monitor_anchors",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("run_sha256", String(64), primary_key=True),
        Column("run_id", String(200), nullable=False),
        Column("label", String(20), nullable=False),
        Column("spec", Text, nullable=False),
        Column("first", String(20)),
        Column("verdict", String(20)),
        Column("judged", Integer),
        counter("tick"),
        created(),
    )
    Table(
        "monitor_labels",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("run_sha256", String(64), primary_key=True),
        Column("created_by", String(200), primary_key=True),
        Column("passed", Integer, nullable=False),
        Column("reason", Text, nullable=False),
        created(),
    )


def _received_tables(tables: MetaData) -> None:
    Table(
        "received_traces",
        tables,
        Column("trace_id", String(32), primary_key=True),
        Column("heard", BigInteger, nullable=False),
        Column("settled", BigInteger),
        counter("closed"),
        counter("spans"),
        counter("bytes"),
        created(),
        Index("received_traces_by_silence", "settled", "heard"),
    )
    Table(
        "received_spans",
        tables,
        Column("trace_id", String(32), primary_key=True),
        Column("span_id", String(64), primary_key=True),
        Column("ended", BigInteger, nullable=False),
        Column("span", Text, nullable=False),
        created(),
    )
    Table(
        "received_runs",
        tables,
        Column("number", Integer, primary_key=True),
        Column("trace_id", String(32), nullable=False, unique=True),
        Column("run", Text),
        Column("problem", Text),
        created(),
        sqlite_autoincrement=True,
    )


def define(tables: MetaData) -> None:
    """Add the tables."""
    _monitor_tables(tables)
    _label_tables(tables)
    _received_tables(tables)


async def _stop(client: Client, store: Store, subject: ForgottenSubject) -> None:
    """End the schedules of a tenant's monitors, so that they begin no further tick."""
    if (tenant := subject.tenant) is not None:
        for name in await store.read(lambda connection: monitors_of(connection, tenant)):
            await MonitorSchedules(client).delete(name)


def _remove(connection: Connection, subject: ForgottenSubject, batches: Sequence[str]) -> Mapping[str, int]:
    """Delete a subject's rows, and return how many by table."""
    if subject.before is not None:
        return remove_before(connection, subject.before) | remove_received(connection, subject.before)
    rows, runs = Counter(remove_of_batches(connection, batches)), table("monitor_runs")
    if (judgement := subject.thread) is not None:
        rows["monitor_runs"] += _deleted(connection, "monitor_runs", (runs.c.case_id == judgement) | (runs.c.shadow_case == judgement))
    if rows["monitor_runs"]:
        _forget_names(connection)
    if subject.tenant is not None:
        rows.update(dict.fromkeys((*PARTS, *KEPT_PARTS, "monitors"), 0))
        for name in monitors_of(connection, subject.tenant):
            rows.update(remove_monitor(connection, name))
    return rows


remove_received = prune_by_age("received_runs", "received_spans", "received_traces")
"""Deletes the runs that are older than a moment, and the traces, open ones too, with their spans."""

TABLES = StoreTables(define, {"monitors": remove_before, "received": remove_received})

OWNED = OwnedData(_remove, stop=_stop)
