"""The store's tables by version, on SQLite and on a real PostgreSQL: upgraded by one process while others wait, and taken back."""

import asyncio
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, RowMapping, inspect, text

from gradeloop.batches.reader import BatchReader
from gradeloop.judges.registry import Registry
from gradeloop.store.engine import Store
from gradeloop.store.tables import metadata
from gradeloop.store.upgrade import MIGRATIONS, VERSION, change_version, version_of

DUMPS = Path(__file__).parent / "dumps"
"""A batch and a rubric in a store of an earlier version, as `.dump` of SQLite and `pg_dump --inserts` write them."""

OF_ALEMBIC = {"alembic_version"}


def load(dump: str, url: str) -> None:
    """Fill an empty database with a dump."""
    kind = url.partition(":")[0]
    script = (DUMPS / f"{dump}_{kind}.sql").read_text()
    if kind == "sqlite":
        path = Path(url.removeprefix("sqlite:///"))
        path.parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
        path.chmod(0o600)  # else whoever opens it closes it to others, with a word
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def rows_of(connection: Connection, name: str) -> Sequence[RowMapping]:
    return connection.execute(text(f"SELECT * FROM {name}")).mappings().all()


def without_later_columns(table: Any, earlier: Any) -> Any:
    """Return a table without the columns that it did not have earlier."""
    names = {column[0] for column in earlier[0]}
    columns = [column for column in table[0] if column[0] in names]
    return columns, table[1], sorted(({key: item for key, item in row.items() if key in names} for row in table[2]), key=str)


def tables(connection: Connection) -> dict[str, Any]:
    """Return every table of the store by its name: its columns, indices and rows."""
    found = inspect(connection)
    return {
        name: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(name)],
            sorted(str(index["name"]) for index in found.get_indexes(name)),
            sorted(({key: str(item) for key, item in row.items()} for row in rows_of(connection, name)), key=str),
        )
        for name in set(found.get_table_names()) - OF_ALEMBIC
    }


def differences(connection: Connection) -> list[Any]:
    """Return what the tables of a store lack of those that statements name, or have beside them."""
    options = {"compare_type": True, "include_name": lambda name, kind, _: kind != "table" or name not in OF_ALEMBIC}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata()))


async def test_a_new_store_has_the_tables_that_statements_name(url: str) -> None:
    store = Store(url)
    found = await store.read(differences)
    version = await store.read(version_of)
    store.close()

    assert (found, version) == ([], VERSION)


def test_the_version_of_this_gradeloop_is_that_of_the_newest_migration() -> None:
    assert [int(path.stem[1:5]) for path in sorted((MIGRATIONS / "versions").glob("v*.py"))] == list(range(1, VERSION + 1))


async def test_a_store_of_an_earlier_version_is_upgraded_and_keeps_what_it_has(url: str) -> None:
    load("version_2", url)
    store = Store(url)
    reader = BatchReader(store)

    summary = await reader.summary("kept-batch")
    results = list(reader.results("kept-batch"))
    (rubric,) = await Registry(store).list_rubrics("reports")
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
    assert rubric.version == 1
    assert differing == []


async def test_every_migration_can_be_taken_back_and_loses_only_what_it_brought(url: str) -> None:
    dumped = re.findall(r"CREATE TABLE (?:public\.)?(\w+)", (DUMPS / f"version_2_{url.partition(':')[0]}.sql").read_text())
    load("version_2", url)
    store = Store(url)
    upgraded, before = await store.read(tables), {}
    for version in range(VERSION - 1, -1, -1):
        await store.write(lambda connection, version=version: change_version(connection, version))  # type: ignore[misc]
        before[version] = await store.read(tables)
    await store.write(lambda connection: change_version(connection, VERSION))
    again = await store.read(differences)
    store.close()

    assert before[2].pop("schema_version")[2] == [{"version": "2"}]
    assert before[2] == {name: without_later_columns(upgraded[name], table) for name, table in before[2].items()}
    assert set(before[2]) == set(dumped) - {"schema_version"}
    assert set(before[1]) == {"schema_version", "rubrics", "rubric_versions", "judgements"}
    assert before[0] == {}
    assert again == []


def test_a_store_of_an_earlier_version_into_which_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'busy.db'}"
    load("version_2", url)
    writer = sqlite3.connect(tmp_path / "busy.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    released = threading.Timer(0.5, lambda: writer.execute("ROLLBACK"))
    released.start()
    store = Store(url)
    version = store.do(version_of)
    released.join()
    writer.close()
    store.close()

    assert version == VERSION


async def test_a_store_of_an_earlier_version_that_many_open_at_once_is_upgraded_once_while_the_others_wait(url: str) -> None:
    load("version_2", url)
    stores = [Store(url) for _ in range(8)]
    versions = await asyncio.gather(*(store.read(version_of) for store in stores))
    kept = (await BatchReader(stores[0]).summary("kept-batch")).total
    for store in stores:
        store.close()

    assert versions == [VERSION] * 8
    assert kept == 5


@pytest.mark.parametrize("dump", ["version_2", None], ids=["an earlier version", "a new one"])
def test_processes_that_open_a_store_at_once_all_find_it(url: str, dump: str | None) -> None:
    if dump:
        load(dump, url)
    code = (
        "import sys; from gradeloop.store.engine import Store; from gradeloop.store.upgrade import version_of\n"
        "import sqlalchemy, alembic.command\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"print(Store({url!r}).do(version_of))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(3)
    ]
    for process in started:
        assert process.stdout
        process.stdout.readline()
    for process in started:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in started]

    assert ended == [(f"{VERSION}\n", "")] * 3


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
