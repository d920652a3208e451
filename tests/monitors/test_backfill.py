"""A backfill: what a monitor has passed without a verdict is judged behind its own runs, and nothing is judged twice."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from temporalio.client import Client

from gradeloop.errors import InvalidRequest
from gradeloop.monitors import sources, ticks
from gradeloop.monitors.client import MonitorSchedules
from gradeloop.monitors.contract import BackfillCall, BackfillReport, FolderSource, SqlSource
from gradeloop.monitors.overview import backfill_text
from gradeloop.monitors.sources import MonitorBackfiller, SourceAccess
from gradeloop.monitors.ticks import place_of
from tests.monitors.test_monitoring import Watched, watched
from tests.rig.batches import breaks, fails, passes
from tests.rig.sources import place_since, read_source

YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()


async def backfill(monitor: Watched, **more: Any) -> BackfillReport:
    call = BackfillCall.model_validate({"monitor": monitor.name, "since": YESTERDAY} | more)
    return await MonitorSchedules(monitor.batches.client).backfill(call, monitor.batches.served.task_queue)


@pytest.mark.slow
async def test_what_the_sample_left_out_is_judged_outside_of_the_rate_and_nothing_twice(client: Client, tmp_path: Path) -> None:
    names = [f"run-{number}" for number in range(20)]
    async with watched(client, tmp_path, fails("run-3"), passes(), sample=0.5) as monitor:
        monitor.write("a.jsonl", *names)
        first = await monitor.tick()
        calls = monitor.calls
        preview = await backfill(monitor, share=1.0, preview=True)
        untouched = await monitor.reader.summary(monitor.name)
        asked = await backfill(monitor, share=1.0)
        again = await backfill(monitor, share=1.0)
        monitor.write("b.jsonl", "new-1", "new-2", "new-3")
        second = await monitor.tick()
        after = await backfill(monitor, share=1.0)
        shas = {run.run_id: run.run_sha256 for run in await monitor.reader.runs(monitor.name)}

    left = 20 - first.rate.judged
    sampled = sum(place_of(shas[name]) < 0.5 for name in ("new-1", "new-2", "new-3") if name in shas)
    assert (calls, preview.read, preview.done, preview.chosen, preview.calls) == (first.rate.judged, 20, first.rate.judged, left, left)
    assert untouched.backfill_waiting == 0
    assert (asked.chosen, again.chosen, again.waiting) == (left, 0, left)
    assert second.rate.judged == first.rate.judged + sampled
    assert (second.ticks[0].backfilled, second.backfill.judged, second.backfill_waiting) == (left, left, 0)
    assert monitor.calls == 20 + sampled
    assert (after.read, after.done, after.chosen) == (23, 20 + sampled, 3 - sampled)


async def test_an_error_is_judged_again_and_the_share_of_the_monitor_counts(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, breaks("bad", kind="auth"), passes(), sample=1.0) as monitor:
        monitor.write("a.jsonl", "a", said="bad")
        monitor.write("b.jsonl", "b")
        await monitor.tick()
        found = await backfill(monitor)

    assert (found.read, found.done, found.chosen, found.left_out) == (2, 1, 1, 0)


@pytest.mark.slow
async def test_a_tick_takes_few_of_a_backfill_and_its_own_runs_come_first(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "BACKFILL_RUNS", 2)
    monkeypatch.setattr(ticks, "LATE_PAGE", 2)
    async with watched(client, tmp_path, passes(), sample=0.000001) as monitor:
        monitor.write("a.jsonl", *(f"run-{number}" for number in range(5)))
        await monitor.tick()
        await backfill(monitor, share=1.0)
        left = [(await monitor.tick()).backfill_waiting for _ in range(3)]
        found = await monitor.reader.summary(monitor.name)

    assert left == [3, 1, 0]
    assert (found.backfill.judged, found.rate.judged) == (5, 0)


async def test_a_backfill_ends_once_its_answer_is_known_and_the_rest_waits_no_more(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "BACKFILL_RUNS", 20)
    monkeypatch.setattr(ticks, "LATE_PAGE", 20)
    async with watched(client, tmp_path, passes(), sample=0.000001) as monitor:
        monitor.write("a.jsonl", *(f"run-{number}" for number in range(100)))
        await monitor.tick()
        await backfill(monitor, share=1.0, gate={"pass_rate": 0.5})
        with pytest.raises(InvalidRequest, match="100 runs of an earlier backfill wait to be judged"):
            await backfill(monitor, share=1.0)
        found = await monitor.tick()
        await monitor.tick()
        calls = monitor.calls
        again = await backfill(monitor, share=1.0, preview=True)

    gate = found.state.backfill
    assert gate is not None
    assert gate.decision is not None
    assert (gate.total, gate.decision.answer, gate.decision.asked < 20) == (100, "passed", True)
    assert (calls, found.backfill_waiting, again.chosen) == (20, 0, 80)
    said = f"backfill: PASSED after {gate.decision.asked} of 100, 50% wanted: at most a 5% chance that asking all would say otherwise"
    assert backfill_text(found).startswith(said)


@pytest.mark.slow
async def test_a_backfill_that_stays_open_is_judged_whole_and_errors_are_no_verdict(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), breaks("lost", kind="auth"), passes(), sample=0.000001) as monitor:
        for number, said in enumerate(("good", "bad", "lost", "good", "good")):
            monitor.write(f"{number}.jsonl", f"run-{number}", said=said)
        await monitor.tick()
        await backfill(monitor, share=1.0, gate={"pass_rate": 0.75})
        found = await monitor.tick()
        after = await backfill(monitor, share=1.0)

    assert backfill_text(found).startswith("backfill: PASSED after 5 of 5, 75% wanted; pass rate 75%")
    assert after.chosen == 1


async def test_a_backfill_that_a_crash_cut_short_goes_on_with_all_of_its_runs(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = sources._count_backfill

    def dies(connection: Connection, name: str) -> None:
        monkeypatch.setattr(sources, "_count_backfill", count)
        raise OSError("the disk is gone")

    async with watched(client, tmp_path, passes(), sample=0.000001) as monitor:
        monitor.write("a.jsonl", *(f"run-{number}" for number in range(9)))
        await monitor.tick()
        monkeypatch.setattr(sources, "_count_backfill", dies)
        found = await backfill(monitor, share=1.0, gate={"pass_rate": 0.5})
        state = (await monitor.reader.summary(monitor.name)).state

    assert (found.waiting, found.chosen) == (9, 0)
    assert state.backfill is not None
    assert state.backfill.total == 9


async def test_what_is_ahead_of_the_monitor_is_left_to_its_ticks(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        with pytest.raises(InvalidRequest, match="has read nothing yet; its first tick reads all"):
            await backfill(monitor)
        monitor.write("a.jsonl", "a")
        await monitor.tick()
        monitor.write("b.jsonl", "b")
        found = await backfill(monitor)
        judged = await monitor.tick()
        with pytest.raises(InvalidRequest, match="--since is 'lately'; write a date"):
            await backfill(monitor, since="lately")
        with pytest.raises(InvalidRequest, match="there is no monitor 'none'"):
            await MonitorBackfiller(monitor.batches.store, SourceAccess(monitor.batches.store)).run(
                BackfillCall(monitor="none", since=YESTERDAY)
            )

    assert (found.read, found.done, found.chosen) == (1, 1, 0)
    assert judged.rate.judged == 2


def test_rows_are_read_from_a_watermark_to_another(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("CREATE TABLE logs (at INTEGER, input TEXT, output TEXT)")
        connection.executemany("INSERT INTO logs VALUES (?, 'q', 'a')", [(at,) for at in range(1, 8)])
    source = SqlSource(variable="LOGS", query="SELECT * FROM logs", watermark="at")
    environment = {"LOGS": f"sqlite:///{tmp_path / 'runs.db'}"}
    cursor = '["int", "5"]'
    items = list(read_source(source, place_since(source, "3", cursor), environment, until=cursor))

    assert [item.cursor for item in items if item.cursor] == [f'["int", "{at}"]' for at in (3, 4, 5)]
    with pytest.raises(InvalidRequest, match="the watermark at has values such as '5', so write one"):
        place_since(source, "2026-01-01", cursor)


@pytest.mark.parametrize(
    ("cursor", "place"),
    [
        ('["datetime", "2026-02-01T00:00:00+00:00"]', '["datetime", "2026-01-31T00:00:00+00:00"]'),
        ('["datetime", "2026-02-01T00:00:00"]', '["datetime", "2026-01-31T00:00:00"]'),
        ('["date", "2026-02-01"]', '["date", "2026-01-31"]'),
        ('["str", "2026-02-01T10:00"]', '["str", "2026-01-31"]'),
    ],
)
def test_a_date_is_a_place_in_what_the_watermark_is(cursor: str, place: str) -> None:
    source = SqlSource(variable="LOGS", query="SELECT 1", watermark="at")

    assert place_since(source, "2026-01-31", cursor) == place


def test_a_date_is_a_place_in_a_folder() -> None:
    moment = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1e9)

    assert place_since(FolderSource(path="/runs"), "2026-01-31", "[1, 'a']") == f'[{moment}, ""]'
