"""One bad item of a source is refused by name, and its neighbours are read, whatever the source and the store are."""

import asyncio
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from temporalio.client import Client

from activities.monitors.monitor_ticks import _SourceReader
from gradeloop.client.thread import ThreadHandle
from gradeloop.errors import InvalidRequest
from gradeloop.monitors.contract import BackfillCall, FolderSource, MonitorDefinition, OtlpSource, SqlSource
from gradeloop.monitors.files import SourceItem
from gradeloop.monitors.overview import MonitorReader, tick_notes
from gradeloop.monitors.sources import MonitorBackfiller, SourceAccess, ThreadPlace, _Listed, _ThreadReader, read_chunks
from gradeloop.monitors.ticks import MonitorStore
from gradeloop.store.engine import Store
from rig.otlp import chat, receiver, request_of, span_of, trace_id
from tests.monitors.test_buckets import read
from tests.monitors.test_monitoring import JUDGE
from tests.monitors.test_sources import ids, last_cursor, write
from tests.rig.poison import LINES, said, write_poison
from tests.rig.sources import read_source


def reasons(items: list[SourceItem]) -> list[str]:
    return [item.unreadable for item in items if item.unreadable is not None]


async def all_of(source: Any, store: Store, cursor: str | None = None) -> list[SourceItem]:
    return [item async for chunk in read_chunks(source, cursor, SourceAccess(store)) for item, _ in chunk]


async def tick(store: Store, source: dict[str, Any], name: str = "m") -> str:
    """Read a source as a tick does, write what was found, and return what people see of it."""
    definition = MonitorDefinition.model_validate({"name": name, "source": source, "judge": JUDGE, "stratum": "tier"})
    await MonitorReader(store).create(definition)
    monitors = MonitorStore(store)
    monitor = await monitors.monitor(name)
    found = await _SourceReader(monitors, monitor, SourceAccess(store)).read()
    await monitors.collect(monitor, f"tick-{name}", found, datetime.now(UTC))
    (report,) = (await MonitorReader(store).summary(name)).ticks
    return f"{report.read} read; {tick_notes(report)}"


async def test_a_folder_of_hostile_files_is_read_around_them(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    bad = write_poison(folder)
    store, source = Store(url), FolderSource(path=str(folder), quiet=0)
    async with asyncio.timeout(240):
        found = await all_of(source, store)
        notes = await tick(store, {"kind": "folder", "path": str(folder), "quiet": 0})
    again = await all_of(source, store, last_cursor(found))
    store.close()

    assert {"a", "m", "z"} <= set(ids(found))
    assert [name for name in sorted(bad) if not any(name in why for why in reasons(found))] == []
    assert any("pipe.jsonl is not a file, but a pipe" in why for why in reasons(found))
    assert re.match(r"3 read; \d+ unreadable: .*bad-", notes), notes
    assert again == []


def test_a_pipe_a_device_or_a_socket_is_no_run_that_is_waited_for(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.mknod(tmp_path / "zero.json", 0o666 | 0o020000, os.makedev(1, 5))
    os.mkfifo(tmp_path / "b.txt")
    write(tmp_path / "c.jsonl", "c")

    found = list(read_source(FolderSource(path=str(tmp_path), quiet=0), None))

    assert ids(found) == ["c"]
    assert len(reasons(found)) == 1 + (os.geteuid() == 0)


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    write(tmp_path / "a.jsonl", "a")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = list(read_source(FolderSource(path=str(tmp_path), quiet=0), None))

    assert ids(found) == ["a"]
    assert "closed' cannot be read: Permission denied; let the worker's user read it" in reasons(found)[0]


async def test_a_query_of_hostile_rows_is_read_around_them(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.dumps(said("a")), *(line.decode(errors="replace") for line in LINES.values()), json.dumps(said("z"))]
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE foreign_rows (at INTEGER, run TEXT)"))
        for at, row in enumerate(rows):
            if "\0" not in row:
                connection.execute(text("INSERT INTO foreign_rows VALUES (:at, :run)"), {"at": at, "run": row})
        if url.startswith("sqlite"):
            connection.execute(
                text(
                    "INSERT INTO foreign_rows VALUES (50, CAST(x'7b22ff' AS TEXT)), ('zzz', 'no number'), (CAST(x'ff' AS TEXT), 'no text')"
                )
            )
            connection.execute(text("INSERT INTO foreign_rows VALUES (60, :run)"), {"run": json.dumps(said("after"))})
    engine.dispose()
    monkeypatch.setenv("APP_DB", url)
    source = {"kind": "sql", "variable": "APP_DB", "query": "SELECT * FROM foreign_rows", "watermark": "at"}
    store = Store(f"{url}2" if url.startswith("sqlite") else url)
    found = await all_of(SqlSource.model_validate(source), store)
    notes = await tick(store, source)
    store.close()

    runs = {item.run.id: item.run for item in found if item.run is not None}
    assert {"a", "z"} <= runs.keys() <= {"a", "z", "after", "latin", "nan", "infinite", "half"}
    assert (runs["infinite"].metadata["score"], runs["nan"].metadata["score"]) == ("1e400", "NaN")
    assert ("after" in ids(found)) == url.startswith("sqlite")
    assert "unreadable: the row with at" in notes
    assert json.loads(str(last_cursor(found)))[0] == "int"


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        ("timestamptz", "'infinity'"),
        ("timestamp", "'-infinity'"),
        ("date", "'9999-12-31'"),
        ("double precision", "'NaN'"),
        ("date", "'12000-01-01'"),
    ],
)
async def test_a_watermark_behind_which_nothing_is_read_stops_no_row(
    server_url: str, kind: str, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ("1", "2", "3") if kind == "double precision" else ("'2026-01-01'", "'2026-01-02'", "'2026-01-03'")
    engine = create_engine(server_url.replace("postgresql:", "postgresql+psycopg:"))
    environment = {"APP_DB": server_url}
    source = SqlSource(variable="APP_DB", query="SELECT * FROM chats", watermark="at")

    def insert(name: str, at: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(f"INSERT INTO chats VALUES ('{name}', 'Hi', 'yes', {at}, 'infinity')"))

    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE chats (id text, question text, answer text, at {kind}, until timestamptz)"))
    for name, at in (("a", good[0]), ("bad", odd), ("b", good[1])):
        insert(name, at)
    first = list(read_source(source, None, environment))
    insert("c", good[2])
    second = list(read_source(source, last_cursor(first), environment))
    engine.dispose()

    assert (ids(first), ids(second)) == (["a", "b"], ["b", "c"])
    assert "a watermark is finite, not in the future" in reasons(first)[0]
    assert next(item.run for item in first if item.run).metadata["until"] == "infinity"


@pytest.mark.slow
def test_a_bucket_of_hostile_objects_is_read_around_them(s3: Any) -> None:
    for at, line in enumerate(LINES.values()):
        s3.put_object(Bucket="runs", Key=f"b-{at}.jsonl", Body=line)
    s3.put_object(Bucket="runs", Key="漢" * 120 + ".jsonl", Body=json.dumps(said("long name")).encode())
    s3.put_object(Bucket="runs", Key="a.jsonl", Body=json.dumps(said("a")).encode())
    s3.put_object(Bucket="runs", Key="z.jsonl", Body=json.dumps(said("z")).encode())

    found = read()

    assert {"a", "z", "long name"} <= set(ids(found))
    assert [name for at, name in enumerate(LINES) if not any(f"b-{at}.jsonl" in why for why in reasons(found))] == []


def test_an_object_that_may_not_be_read_stops_no_other_and_is_named_once_another_can_be(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.client import BaseClient  # type: ignore[import-untyped,import-not-found,unused-ignore]  # it has no types
    from botocore.exceptions import ClientError  # type: ignore[import-untyped,import-not-found,unused-ignore]  # it has no types

    for name in ("a", "denied", "z"):
        s3.put_object(Bucket="runs", Key=f"{name}.jsonl", Body=json.dumps(said(name)).encode())
    call = BaseClient._make_api_call

    def deny(self: Any, operation: str, given: dict[str, Any]) -> Any:
        if operation == "GetObject" and given["Key"].startswith(refused):
            raise ClientError({"Error": {"Code": "AccessDenied"}}, operation)
        return call(self, operation, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", deny)
    refused: tuple[str, ...] = ("denied",)
    found = read()
    refused = ("a", "denied", "z")
    with pytest.raises(InvalidRequest, match="access is denied"):
        read()

    assert ids(found) == ["a", "z"]
    assert "s3://runs/denied.jsonl cannot be read: access is denied" in reasons(found)[0]


async def test_what_a_receiver_refused_is_told_by_the_tick_and_its_backfill(url: str) -> None:
    nul = span_of("nul", "a\0b", {"gen_ai.operation.name": "chat"}, span="nul")
    async with receiver(url) as found:
        await found.send(request_of(nul, chat("a", tier="pa\0id")))
        await asyncio.sleep(0.15)
        await found.runs()
        items = await all_of(OtlpSource(), found.store)
        notes = await tick(found.store, {"kind": "otlp"})
        report = await MonitorBackfiller(found.store, SourceAccess(found.store)).run(
            BackfillCall(monitor="m", since="2020-01-01", preview=True)
        )

    assert ids(items) == [trace_id("a")]
    assert notes.startswith("1 read; 1 unreadable: ")
    assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in notes
    assert (report.unreadable, len(report.refused)) == (1, 1)


async def test_a_thread_of_which_its_worker_says_something_odd_stops_no_other(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    async def query(handle: ThreadHandle, name: str, *_given: Any, **_more: Any) -> Any:
        if handle.thread_id == "bad":
            return 7
        return {"items": [{"role": "assistant", "content": "yes"}], "next": None, "total": 1} if name == "messages" else {}

    monkeypatch.setattr(ThreadHandle, "query", query)
    listed = [_Listed(ThreadPlace(datetime.now(UTC), name, "run"), "queue") for name in ("a", "bad", "z")]
    found = await _ThreadReader(client).read(listed)

    assert ids(found) == ["a", "z"]
    assert "has not the shape of a thread" in reasons(found)[0]
