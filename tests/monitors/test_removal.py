"""What monitors remember goes with a tenant, a batch, a judgement or a time, on both databases; what is open stays."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select
from temporalio.client import Client

from gradeloop.admin.forgetting import Eraser, ForgottenSubject
from gradeloop.admin.store_care import prune
from gradeloop.monitors import alerts
from gradeloop.monitors.client import MonitorSchedules
from gradeloop.monitors.contract import Alert
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from tests.admin.test_forget import data_folder, files_with, histories
from tests.monitors.test_monitoring import watched
from tests.rig.batches import fails, passes
from tests.rig.stores import ON_EITHER

TABLES = ("monitors", "monitor_ticks", "monitor_runs", "monitor_alerts")


def rows(store: Store, name: str) -> dict[str, int]:
    """Return how many rows of each table a monitor has."""

    def read(connection: Connection) -> dict[str, int]:
        found = {}
        for one in TABLES:
            column = table(one).c.name if one == "monitors" else table(one).c.monitor
            found[one] = len(connection.execute(select(column).where(column == name)).all())
        return found

    return store.do(read)


def stored_alerts(store: Store) -> list[Alert]:
    def read(connection: Connection) -> list[Alert]:
        return [Alert.model_validate_json(text) for text in connection.execute(select(table("monitor_alerts").c.alert)).scalars()]

    return store.do(read)


def add_alert(store: Store, name: str, *runs: str, cleared: int | None = None, number: int = 1) -> None:
    """Have a monitor remember an alert that names runs."""
    alert = Alert(kind="drift", number=number, time="2026-01-01T00:00:00+00:00", text="it fell", runs=runs)
    values = {"monitor": name, "number": number, "kind": "drift", "alert": alert.model_dump_json(), "cleared": cleared}
    store.do(lambda connection: connection.execute(table("monitor_alerts").insert().values(**values)))


def age(store: Store, **which: Any) -> None:
    """Have rows of a table be a hundred days old."""

    def write(connection: Connection) -> None:
        for name, where in which.items():
            old = datetime.now(UTC) - timedelta(days=100)
            columns: Mapping[str, Any] = where
            matches = [table(name).c[column] == value for column, value in columns.items()]
            connection.execute(table(name).update().where(*matches).values(created=old))

    store.do(write)


@ON_EITHER
async def test_a_tenant_goes_with_its_monitors_and_their_schedules_and_others_stay(client: Client, tmp_path: Path, url: str) -> None:
    schedules = MonitorSchedules(client)
    async with watched(client, tmp_path, fails("MARKED"), passes(), url=url, tenant="acme") as mine:
        theirs = await mine.beside("theirs", tenant="beta")
        for monitor in (mine, theirs):
            monitor.write("a.jsonl", f"MARKED-{monitor.name}-end", "b")
            await monitor.tick()
        definition = (await mine.reader.summary(mine.name)).definition
        await schedules.create(mine.name, 3600, mine.batches.served.task_queue, priority=definition.priority)
        eraser = Eraser(client, mine.batches.store, None)
        before = files_with(f"MARKED-{mine.name}-end", data_folder(mine.batches.store))
        plan = await eraser.plan(ForgottenSubject(tenant="acme"))
        done = await eraser.forget(ForgottenSubject(tenant="acme"))
        left = files_with(f"MARKED-{mine.name}-end", data_folder(mine.batches.store), apart_from="pg_wal")
        schedule = await schedules.find(mine.name)
        kept = rows(mine.batches.store, theirs.name)
        gone = rows(mine.batches.store, mine.name)

    assert before
    assert left == []
    assert plan.rows == done.rows
    assert (done.rows["monitors"], done.rows["monitor_ticks"], done.rows["monitor_runs"]) == (1, 1, 2)
    assert set(gone.values()) == {0}
    assert (kept["monitors"], kept["monitor_ticks"], kept["monitor_runs"]) == (1, 1, 2)
    assert schedule is None
    assert await histories(client, f"{mine.name}-") == []
    assert await histories(client, f"{theirs.name}-")


@pytest.mark.slow
async def test_a_batch_and_a_judgement_go_with_the_runs_that_they_are_of(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        for name in "abc":
            monitor.write(f"{name}.jsonl", name)
            await monitor.tick()
        runs = {run.run_id: run for run in await monitor.reader.runs(monitor.name)}
        add_alert(monitor.batches.store, monitor.name, "a", "b", "c")
        eraser = Eraser(client, monitor.batches.store, None)
        await eraser.forget(ForgottenSubject(batch=runs["a"].batch_id))
        await eraser.forget(ForgottenSubject(thread=runs["b"].judgement))
        left = await monitor.reader.runs(monitor.name)
        ticks = [tick.number for tick in (await monitor.reader.summary(monitor.name)).ticks]
        (alert,) = stored_alerts(monitor.batches.store)
        monitor.write("d.jsonl", "d")
        after = await monitor.tick()

    assert [run.run_id for run in left] == ["c"]
    assert ticks == [3, 2]
    assert alert.runs == ("c",)
    assert (after.ticks[0].number, after.rate.judged) == (4, 3)


@ON_EITHER
async def test_what_is_old_is_pruned_and_the_monitor_goes_on(client: Client, tmp_path: Path, url: str) -> None:
    moment = datetime.now(UTC) - timedelta(days=90)
    async with watched(client, tmp_path, passes(), url=url) as monitor:
        for name in "ab":
            monitor.write(f"{name}.jsonl", name)
            await monitor.tick()
        store = monitor.batches.store
        add_alert(store, monitor.name, "a", cleared=1)
        add_alert(store, monitor.name, "a", "b", number=2)
        age(store, monitor_ticks={"number": 1}, monitor_runs={"number": 1}, monitor_alerts={})
        counted = prune(store, moment, ["monitors"], dry_run=True)
        untouched = rows(store, monitor.name)
        pruned = prune(store, moment, ["monitors"])
        (alert,) = stored_alerts(store)
        monitor.write("c.jsonl", "c")
        found = await monitor.tick()

    assert counted.rows == pruned.rows == {"monitor_runs": 1, "monitor_ticks": 1, "monitor_alerts": 1}
    assert untouched == {"monitors": 1, "monitor_ticks": 2, "monitor_runs": 2, "monitor_alerts": 2}
    assert alert.runs == ("b",)
    assert ([tick.number for tick in found.ticks], found.rate.judged, monitor.calls) == ([3, 2], 2, 3)


async def test_forgetting_a_time_takes_old_ticks_and_never_what_is_open(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "EMPTY_TICKS", 1)
    async with watched(client, tmp_path, passes()) as monitor:
        await monitor.tick()
        store = monitor.batches.store
        age(store, monitor_ticks={}, monitor_alerts={})
        done = await Eraser(client, store, None).forget(ForgottenSubject(before=datetime.now(UTC) - timedelta(days=90)))
        monitor.write("a.jsonl", "a")
        found = await monitor.tick()

    assert (done.rows["monitor_ticks"], done.rows["monitor_alerts"]) == (1, 0)
    assert [(alert.kind, alert.cleared is not None) for alert in found.alerts] == [("silence", True)]
