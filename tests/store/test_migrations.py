"""The store's tables by version, on SQLite and on a real PostgreSQL: upgraded by one process while others wait, and taken back."""

import asyncio
import runpy
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, RowMapping, inspect, text

from gradeloop.admin.forgetting import ForgottenSubject, remove_rows
from gradeloop.admin.store_care import back_up
from gradeloop.batches.reader import BatchReader
from gradeloop.errors import StoreRefused, StoreUnavailable
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.store.engine import Store
from gradeloop.store.tables import metadata
from gradeloop.store.upgrade import MIGRATIONS, OLDEST_TABLE, VERSION, VERSION_TABLE, change_version, version_of
from rig.builds import NEXT
from tests.rig.stores import BEFORE_0_2_0, ON_EITHER, load, make_unreleased, next_version, write_next

OURS = {VERSION_TABLE, OLDEST_TABLE}
"""Tables of the upgrade's own."""


def rows_of(connection: Connection, name: str) -> Sequence[RowMapping]:
    return connection.execute(text(f"SELECT * FROM {name}")).mappings().all()


def contents(connection: Connection) -> dict[str, list[str]]:
    """Return the rows of every table of the store by its name."""
    names = set(inspect(connection).get_table_names()) - OURS
    return {name: sorted(str(sorted((key, str(item)) for key, item in row.items())) for row in rows_of(connection, name)) for name in names}


def schema(connection: Connection) -> dict[str, Any]:
    """Return every table of the store by its name: its columns with their defaults, its keys, constraints and indices."""
    found, counting = inspect(connection), set[str]()
    if connection.dialect.name == "sqlite":
        counting = set(connection.execute(text("SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%'")).scalars())
    return {
        name: {
            "columns": sorted(
                (column["name"], str(column["type"]), column["nullable"], column["default"], column.get("autoincrement"))
                for column in found.get_columns(name)
            ),
            "primary key": found.get_pk_constraint(name),
            "foreign keys": found.get_foreign_keys(name),
            "unique": sorted(found.get_unique_constraints(name), key=str),
            "indices": sorted(found.get_indexes(name), key=str),
            "never gives a number twice": name in counting,
        }
        for name in set(found.get_table_names()) - OURS
    }


def differences(connection: Connection) -> list[Any]:
    """Return what the tables of a store lack of those that statements name, or have beside them, as alembic sees it."""
    options = {"compare_type": True, "include_name": lambda name, kind, _: kind != "table" or name not in OURS}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata()))


async def test_a_new_store_has_the_tables_that_statements_name(url: str) -> None:
    store = Store(url)
    migrated, differing, version = await store.read(schema), await store.read(differences), await store.read(version_of)
    await store.write(lambda connection: change_version(connection, 0))
    emptied = await store.read(schema)
    await store.write(lambda connection: metadata().create_all(connection))
    named = await store.read(schema)
    store.close()

    assert (emptied, differing, version) == ({}, [], VERSION)
    assert migrated == named


def test_the_version_of_this_gradeloop_is_that_of_the_newest_migration() -> None:
    assert [int(path.stem[1:5]) for path in sorted((MIGRATIONS / "versions").glob("v*.py"))] == list(range(1, VERSION + 1))


async def test_a_store_of_the_first_version_is_read_and_keeps_what_it_has(url: str) -> None:
    load("version_1", url)
    store = Store(url)
    reader, registry = BatchReader(store), JudgeRegistry(store)

    summary = await reader.summary("kept-batch")
    results = list(reader.results("kept-batch"))
    (rubric,) = await registry.list_rubrics("reports")
    (judgement,) = await registry.judgements(await registry.get_rubric("reports", rubric.rubric_id, 1))
    differing = await store.read(differences)
    store.close()

    assert (summary.passed, summary.failed, summary.errors, summary.usage.calls) == (3, 1, 1, 14)
    assert {result.id: result.status for result in results} == {
        "c0": "passed",
        "c1": "passed",
        "c2": "failed",
        "c3": "error",
        "d": "passed",
    }
    assert (rubric.version, judgement.output["label"]) == (1, "match")
    assert differing == []


async def test_a_store_of_an_earlier_version_is_upgraded_and_taken_back_and_loses_only_what_the_next_one_brought(
    url: str, tmp_path: Path
) -> None:
    load("version_1", url)
    first = Store(url)
    before, kept = await first.read(schema), await first.read(contents)
    first.close()
    with next_version(tmp_path):
        store = Store(url)
        version, upgraded, brought = await store.read(version_of), await store.read(schema), await store.read(contents)
        batch = await BatchReader(store).summary("kept-batch")
        store.move(VERSION)
        back, left = await store.read(schema), await store.read(contents)
        store.close()

    assert (version, batch.passed) == (NEXT, 3)
    assert set(upgraded) - set(before) == {"colours"}
    assert {name for name in before if upgraded[name] != before[name]} == {"batches"}
    assert {name for name in kept if brought[name] != kept[name]} == {"batches"}
    assert (back, left) == (before, kept)


def upgrade_to_next(url: str, folder: Path, oldest: int) -> None:
    """Upgrade a store as a gradeloop of the next version does when it opens it."""
    with next_version(folder, oldest):
        newer = Store(url)
        newer.do(version_of)
        newer.close()


async def test_a_store_that_was_upgraded_beside_this_gradeloop_is_used_while_it_may_be(url: str, tmp_path: Path) -> None:
    running = Store(url)
    await running.ping()
    upgrade_to_next(url, tmp_path, oldest=VERSION)
    await running.ping()
    new = Store(url)
    await new.ping()
    versions = [await store.read(version_of) for store in (running, new)]
    for store in (running, new):
        store.close()

    assert versions == [NEXT, NEXT]


async def test_a_store_that_was_upgraded_beyond_this_gradeloop_is_refused_with_the_cure_also_while_it_runs(
    url: str, tmp_path: Path
) -> None:
    running = Store(url)
    await running.ping()
    upgrade_to_next(url, tmp_path, oldest=NEXT)
    said = f"is of version {NEXT}, which needs a gradeloop that knows version {NEXT}, this gradeloop knows {VERSION}; install a newer"
    for store in (running, new := Store(url)):
        with pytest.raises(StoreRefused, match=said):
            await store.ping()
    for store in (running, new):
        store.close()


async def test_a_store_that_was_taken_back_below_this_gradeloop_is_refused_while_it_runs(url: str) -> None:
    running = Store(url)
    await running.ping()
    taking_back = Store(url, upgrade=False)
    taking_back.move(VERSION - 1)
    taking_back.close()
    with pytest.raises(StoreRefused, match=f"is of version {VERSION - 1}, this gradeloop needs {VERSION}"):
        await running.ping()
    running.close()


def test_a_newer_store_is_neither_copied_nor_forgotten_from_by_a_gradeloop_that_does_not_know_all_of_it(url: str, tmp_path: Path) -> None:
    upgrade_to_next(url, tmp_path, oldest=VERSION)
    store, subject = Store(url), ForgottenSubject(tenant="acme")
    with pytest.raises(StoreRefused, match=f"is of version {NEXT}, .*this gradeloop knows {VERSION}; install a newer"):
        back_up(store, tmp_path / "copy.db")
    with pytest.raises(StoreRefused, match=f"is of version {NEXT}, .*this gradeloop knows {VERSION}; install a newer"):
        store.do(lambda connection: remove_rows(connection, subject, [], dry_run=False))
    store.close()


def test_each_migration_says_which_version_a_gradeloop_must_know_after_it() -> None:
    migrations = {path.stem: runpy.run_path(str(path)) for path in (MIGRATIONS / "versions").glob("v*.py")}

    assert all(1 <= migration["oldest"] <= int(name[1:5]) for name, migration in migrations.items())


async def test_a_store_that_cannot_be_written_is_not_ready(server_url: str) -> None:
    store = Store(server_url)
    await store.ping()
    store.close()
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {server.info.dbname} SET default_transaction_read_only = on")  # as a full disk's guard does
        reopened = Store(server_url)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await reopened.ping()
        reopened.close()


@pytest.mark.parametrize("version", BEFORE_0_2_0)
def test_a_store_of_before_0_2_0_is_refused_with_the_cure_and_stays_as_it_is(url: str, version: int) -> None:
    make_unreleased(url, version)
    as_it_is = Store(url, upgrade=False)
    before = as_it_is.do(contents)
    name = as_it_is.name
    cure = "export its batches with that gradeloop and move it away, or name another store with GRADELOOP_STORE"
    said = f"the store '{name}' was made by a gradeloop before 0.2.0, whose tables this one does not read; {cure}"
    store = Store(url)
    for use in (partial(store.do, version_of), partial(as_it_is.do, version_of), partial(as_it_is.move, VERSION)):
        with pytest.raises(StoreRefused) as caught:
            use()
        assert str(caught.value) == said
    after = as_it_is.do(contents)
    store.close()
    as_it_is.close()

    assert after == before
    assert before["judgements"] == ["[('id', 'kept')]"]


def test_a_store_of_a_newer_version_is_not_moved(url: str, tmp_path: Path) -> None:
    with next_version(tmp_path):
        newer = Store(url)
        newer.do(version_of)
        newer.close()
    store = Store(url, upgrade=False)
    with pytest.raises(StoreRefused, match=f"is of version {NEXT}, this gradeloop knows {VERSION}; downgrade it with the gradeloop that"):
        store.move(VERSION)
    version = store.do(version_of)
    store.close()

    assert version == NEXT


def test_a_store_of_an_earlier_version_into_which_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'busy.db'}"
    load("version_1", url)
    writer = sqlite3.connect(tmp_path / "busy.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    released = threading.Timer(0.5, lambda: writer.execute("ROLLBACK"))
    released.start()
    with next_version(tmp_path):
        store = Store(url)
        version = store.do(version_of)
    released.join()
    writer.close()
    store.close()

    assert version == NEXT


async def test_a_store_of_an_earlier_version_that_many_open_at_once_is_upgraded_once_while_the_others_wait(
    url: str, tmp_path: Path
) -> None:
    load("version_1", url)
    with next_version(tmp_path):
        stores = [Store(url) for _ in range(8)]
        versions = await asyncio.gather(*(store.read(version_of) for store in stores))
    kept = (await BatchReader(stores[0]).summary("kept-batch")).total
    for store in stores:
        store.close()

    assert versions == [NEXT] * 8
    assert kept == 5


@pytest.mark.slow
@ON_EITHER
@pytest.mark.parametrize("dump", ["version_1", pytest.param(None, marks=pytest.mark.slow)], ids=["an earlier version", "a new one"])
def test_processes_that_open_a_store_at_once_all_find_it(url: str, dump: str | None, tmp_path: Path) -> None:
    if dump:
        load(dump, url)
    code = (
        "import sys; from pathlib import Path; from gradeloop.store.engine import Store; from gradeloop.store import upgrade\n"
        "import sqlalchemy, alembic.command\n"
        f"upgrade.VERSION, upgrade.MIGRATIONS = {NEXT}, Path({str(write_next(tmp_path))!r})\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"print(Store({url!r}).do(upgrade.version_of))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(2)
    ]
    for process in started:
        assert process.stdout
        process.stdout.readline()
    for process in started:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in started]

    assert ended == [(f"{NEXT}\n", "")] * 2


@pytest.mark.slow
def test_a_store_of_today_is_opened_without_alembic(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'today.db'}")
    store.do(version_of)
    store.close()
    code = f"""
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from gradeloop.store.engine import Store
Store("sqlite:///{tmp_path / "today.db"}").do(lambda _: None)
print([name for name in sys.modules if name.startswith(("alembic", "mako"))])
"""

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_copy_of_a_store_that_lost_its_mode_lets_readers_read_while_one_writes(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'copy.db'}", tmp_path / "copy.db"
    made = Store(url)
    made.do(version_of)
    made.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    opened = Store(url)
    mode = opened.do(lambda connection: connection.exec_driver_sql("PRAGMA journal_mode").scalar())
    opened.close()

    assert mode == "wal"
