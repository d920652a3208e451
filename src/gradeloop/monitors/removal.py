"""What monitors remember is removed: of batches, of a judgement, of a tenant, or of a time."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, func, select

from gradeloop.monitors.contract import Alert, MonitorDefinition
from gradeloop.store.engine import stored_moment
from gradeloop.store.tables import table

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


def remove_of_tenant(connection: Connection, tenant: str) -> dict[str, int]:
    """Delete a tenant's monitors with all that they remember."""
    removed = [remove_monitor(connection, name) for name in monitors_of(connection, tenant)]
    return {name: sum(rows[name] for rows in removed) for name in (*PARTS, *KEPT_PARTS, "monitors")}


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
    if rows["monitor_runs"]:
        _forget_names(connection)
    return rows


def remove_of_judgement(connection: Connection, judgement: str) -> dict[str, int]:
    """Delete the runs that a judgement is of."""
    runs = table("monitor_runs")
    rows = _deleted(connection, "monitor_runs", (runs.c.case_id == judgement) | (runs.c.shadow_case == judgement))
    if rows:
        _forget_names(connection)
    return {"monitor_runs": rows}


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
