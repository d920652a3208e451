"""The care of a store: copies that are whole, also from one database to another, what is old goes, and faults are named."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from typer.testing import CliRunner

from gradeloop.admin.store_care import back_up, check_store, prune, prune_kinds, restore
from gradeloop.batches.reader import BatchReader
from gradeloop.cli.upkeep import store_app
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import Store
from gradeloop.store.tables import metadata
from gradeloop.store.upgrade import VERSION, version_of
from rig.builds import NEXT
from tests.rig.cli import CommandLine
from tests.rig.stores import load, make_unreleased, next_version

MARK = "osprey-4711"
OLD = datetime.now(UTC) - timedelta(days=100)


@pytest.fixture
def filled(url: str) -> Iterator[Store]:
    """Yield a store with a batch, a rubric, a judgement and verdicts, made by the first version."""
    load("version_1", url)
    store = Store(url)
    yield store
    store.close()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "other").mkdir()
    store = Store(f"sqlite:///{tmp_path / 'other' / 'store.db'}")
    yield store
    store.close()


def content(store: Store) -> dict[str, Any]:
    """Return all rows but those of today, with times as moments."""

    def rows(connection: Connection) -> dict[str, Any]:
        tables = [table for table in metadata().sorted_tables if table.name not in {"call_paces", "workers"}]
        return {table.name: sorted(map(plain, connection.execute(table.select()).mappings()), key=str) for table in tables}

    return store.do(rows)


def plain(row: Mapping[Any, Any]) -> list[tuple[str, object]]:
    return sorted((name, moment(value)) for name, value in row.items())


def moment(value: object) -> object:
    if not isinstance(value, datetime):
        return value
    return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat()


def test_a_backup_has_every_row_and_comes_back_on_either_database(filled: Store, empty: Store, tmp_path: Path, url: str) -> None:
    filled.do(lambda connection: connection.execute(text("INSERT INTO workers (id, queue, slots) VALUES ('w', 'q', 20)")))
    before, file = content(filled), tmp_path / "backup.db"
    copied = back_up(filled, file)
    restored = restore(file, empty)
    again = back_up(empty, tmp_path / "again.db")

    assert content(empty) == before
    assert copied == restored == again
    assert copied["cases"] == 5
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["backup.db"]
    assert (file.stat().st_mode & 0o077) == 0


@pytest.mark.slow
def test_a_backup_of_sqlite_fills_a_postgresql(tmp_path: Path, server_url: str) -> None:
    file_url = f"sqlite:///{tmp_path / 'store.db'}"
    load("version_1", file_url)
    source, target = Store(file_url), Store(server_url)
    back_up(source, tmp_path / "backup.db")
    restore(tmp_path / "backup.db", target)
    same, summaries = content(target) == content(source), [result.id for result in BatchReader(target).results("kept-batch")]
    target.close()

    assert same
    assert summaries == ["c0", "c1", "c2", "c3", "d"]


def test_a_backup_is_of_one_moment_while_others_write(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradeloop.admin import store_care

    copy = store_care.copy_rows

    def meanwhile(source: Connection, target: Connection) -> dict[str, int]:
        source.execute(text("SELECT count(*) FROM batches"))  # a moment begins with the first look
        filled.do(lambda connection: connection.execute(text("DELETE FROM verdicts")))
        return copy(source, target)

    monkeypatch.setattr(store_care, "copy_rows", meanwhile)
    before = content(filled)["verdicts"]
    copied = back_up(filled, tmp_path / "backup.db")

    assert copied["verdicts"] == len(before) > 0
    assert content(filled)["verdicts"] == []


def test_a_file_that_is_there_is_kept(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "backup.db").write_text("mine")

    with pytest.raises(InvalidRequest, match="is there already; name another file, or give --overwrite"):
        back_up(filled, tmp_path / "backup.db")
    assert (tmp_path / "backup.db").read_text() == "mine"
    back_up(filled, tmp_path / "backup.db", overwrite=True)
    assert (tmp_path / "backup.db").read_bytes().startswith(b"SQLite format 3")


def test_a_store_that_has_something_is_not_restored_into(filled: Store, tmp_path: Path) -> None:
    back_up(filled, tmp_path / "backup.db")
    before = content(filled)

    with pytest.raises(InvalidRequest, match=r"is not empty: \w+ has \d+ rows?; name an empty one"):
        restore(tmp_path / "backup.db", filled)
    assert content(filled) == before


@pytest.mark.parametrize(
    ("wrote", "why"), [(None, "there is no file"), (b"", "is not a backup of a store"), (b"PK\x03\x04", "is not a backup of a store")]
)
def test_what_is_no_backup_is_refused(empty: Store, tmp_path: Path, wrote: bytes | None, why: str) -> None:
    file = tmp_path / "backup.db"
    if wrote is not None:
        file.write_bytes(wrote)

    with pytest.raises(InvalidRequest, match=why):
        restore(file, empty)


def test_a_backup_of_a_newer_version_is_refused(filled: Store, empty: Store, tmp_path: Path) -> None:
    file = tmp_path / "backup.db"
    back_up(filled, file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE store_version SET version_num = 99")
        connection.commit()

    with pytest.raises(InvalidRequest, match=rf"backup.db.* is of version 99, .*this gradeloop knows {VERSION}"):
        restore(file, empty)


def test_what_is_old_goes_and_what_goes_on_stays(filled: Store) -> None:
    def age(connection: Connection) -> None:
        connection.execute(text("UPDATE batches SET created = :old"), {"old": f"{OLD:%F %T}.000000"})
        row = connection.execute(text("SELECT * FROM batches WHERE id = 'kept-batch'")).mappings().one()
        names = ", ".join(str(name) for name in row)
        marks = ", ".join(f":{name}" for name in row)
        for name, status in (("runs", "running"), ("waits", "paused")):
            connection.execute(text(f"INSERT INTO batches ({names}) VALUES ({marks})"), dict(row) | {"id": name, "status": status})

    filled.do(age)
    before = content(filled)
    counted = prune(filled, OLD + timedelta(days=1), tuple(prune_kinds()), dry_run=True)
    untouched = content(filled) == before
    pruned = prune(filled, OLD + timedelta(days=1), ["batches"])
    after = content(filled)

    assert untouched
    assert counted.rows["batches"] == pruned.rows["batches"] == 1
    assert sorted(dict(row)["id"] for row in after["batches"]) == ["runs", "waits"]
    assert (after["cases"], after["case_units"], after["charges"]) == ([], [], [])
    assert after["verdicts"] == before["verdicts"]


def test_nothing_of_what_was_deleted_is_left_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    load("version_1", f"sqlite:///{file}")
    store = Store(f"sqlite:///{file}")
    store.do(lambda connection: connection.execute(text("UPDATE verdicts SET verdict = :mark"), {"mark": MARK * 100}))
    prune(store, datetime.now(UTC) + timedelta(days=1), ["verdicts"])

    assert MARK.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("store.db*"))


def test_rows_that_belong_to_nothing_are_a_fault(filled: Store) -> None:
    filled.do(lambda connection: connection.execute(text("DELETE FROM batches")))

    faults = check_store(filled).faults
    assert "5 rows of cases belong to a batch that is not there" in faults


def test_a_damaged_file_is_named(commands: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    load("version_1", f"sqlite:///{file}")
    Store(f"sqlite:///{file}").do(lambda connection: None)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page, size) = (connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'cases_by_end'").fetchone()[0], 4096)
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * 64)

    done = commands("store", "check", GRADELOOP_STORE=f"sqlite:///{file}")
    assert done.code in {1, 2}
    assert re.search("fault|malformed", done.out + done.err)
    assert "Traceback" not in done.err


def test_a_store_is_looked_at_upgraded_and_taken_back_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("GRADELOOP_STORE", where)
    load("version_1", where)

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(store_app, arguments)
        return done.output or str(done.exception)

    command("upgrade")
    with next_version(tmp_path):
        looked = command("check")
        again = command("check", "--json")
        upgraded = command("upgrade", "--to", str(NEXT))
        there = command("downgrade", "--to", str(NEXT))
        kept = command("downgrade", "--to", str(VERSION))
        back = command("downgrade", "--to", str(VERSION), "--yes")
        below = command("upgrade", "--to", str(VERSION))
        beyond = command("upgrade", "--to", "99")

    assert f"version   {VERSION} (this gradeloop's is {NEXT}; the first use upgrades it)" in looked
    assert f'"version": {VERSION}' in again
    assert f"version {VERSION} is now {NEXT}" in upgraded
    assert there == f"the store is of version {NEXT}, and --to is {NEXT}; write a lower one, or see `store upgrade`"
    assert kept.startswith(f"version {VERSION} has no place for 1 row of judgements, verdicts.batch_id of 13 rows; make a copy with")
    assert f"version {NEXT} is now {VERSION}" in back
    assert f"it is of version {VERSION} already" in below
    assert beyond == f"--to is 99, and this gradeloop knows versions up to {NEXT}; install a newer one"


def test_a_store_of_before_0_2_0_is_refused_by_every_command(commands: CommandLine, tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "store.db"
    make_unreleased(url, 13)
    for arguments in (
        ("check",),
        ("upgrade",),
        ("downgrade", "--to", "1"),
        ("backup", str(tmp_path / "b.db")),
        ("prune", "--older-than", "9d"),
    ):
        done = commands("store", *arguments, GRADELOOP_STORE=url)
        assert (done.code, done.out) == (2, ""), arguments
        assert f"the store '{url}' was made by a gradeloop before 0.2.0" in done.err
    restored = commands("store", "restore", str(file), GRADELOOP_STORE=f"sqlite:///{tmp_path / 'empty.db'}")
    assert restored.code == 2
    assert f"{file}: the store '{file}' was made by a gradeloop before 0.2.0" in restored.err


def test_a_backup_of_an_earlier_version_is_upgraded_where_it_is_restored(filled: Store, empty: Store, tmp_path: Path) -> None:
    before = content(filled)
    back_up(filled, tmp_path / "backup.db")
    with next_version(tmp_path):
        restore(tmp_path / "backup.db", empty)
        version = empty.do(version_of)

    assert (version, content(empty)) == (NEXT, before)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("prune", "--older-than", "soon"), "--older-than is 'soon'; write a number with d, h or w"),
        (("prune", "--older-than", "9d", "--kind", "rubrics"), "--kind is 'rubrics'; write one of batches, verdicts, judgements"),
        (("backup", "no/such/folder/b.db"), "the folder 'no/such/folder' does not exist; create it"),
        (("check",), "there is no store at"),
    ],
)
def test_a_mistake_is_a_sentence(commands: CommandLine, tmp_path: Path, flags: tuple[str, ...], why: str) -> None:
    done = commands("store", *flags, GRADELOOP_STORE=f"sqlite:///{tmp_path / 'store.db'}")

    assert (done.code, why in done.err) == (2, True)
