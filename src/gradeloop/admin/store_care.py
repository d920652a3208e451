"""The care of a store: what is in it and whether it is whole, copies of it, and the end of what is old."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest, StoreRefused
from gradeloop.store.engine import Store
from gradeloop.store.postgres import take_time
from gradeloop.store.tables import Prune, metadata, owners, table
from gradeloop.store.upgrade import VERSION, require_known, version_of
from gradeloop.text import counted

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

CHUNK = 500
"""Rows that are copied at a time: a case may have a mebibyte."""

PASSING = frozenset({"call_paces", "workers"})
"""Tables that a copy leaves out: a pace is of today, and so is a worker."""


class StoreCheck(Strict):
    """The contents of a store, and the faults in it."""

    store: str
    version: int
    """The version of its tables; 0 where it has none yet."""
    newest: int = VERSION
    """The version that this gradeloop uses."""
    rows: dict[str, int]
    """Rows by table."""
    size: int
    """Bytes of the database."""
    faults: tuple[str, ...] = ()
    """Faults that the database itself finds; empty if there are none."""


class Pruned(Strict):
    """Rows that were deleted as old, or would be."""

    before: datetime
    rows: dict[str, int]
    """Rows by table."""


def check_store(store: Store) -> StoreCheck:
    """Look at a store as it is, without an upgrade of it; raise StoreUnavailable where the database cannot be reached."""
    if store.file is not None and not store.file.exists():
        raise InvalidRequest(f"there is no store at {store.file}; the first batch makes one")

    def look(connection: "Connection") -> StoreCheck:
        from sqlalchemy import func, inspect, select

        take_time(connection)
        there = set(inspect(connection).get_table_names())
        named = [found for found in metadata().sorted_tables if found.name in there]
        rows = {found.name: connection.execute(select(func.count()).select_from(found)).scalar_one() for found in named}
        version = version_of(connection)
        return StoreCheck(store=store.name, version=version, rows=rows, size=size, faults=tuple(_faults(connection)))

    size, _ = store.size()
    return store.do(look)


def _faults(connection: "Connection") -> Iterator[str]:
    """Yield what the database finds wrong, and rows that belong to nothing."""
    from sqlalchemy import func, select

    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
        yield from (str(line) for line in found if line != "ok")
    if version_of(connection) != VERSION:
        return
    for name, (whole, column) in {name: where for owner in owners() for name, where in owner.parts.items()}.items():
        there, names = select(table(whole).c.id), table(name).c[column]
        if lost := connection.execute(select(func.count()).select_from(table(name)).where(names.not_in(there))).scalar_one():
            noun = column.removesuffix("_id")
            yield f"{counted(lost, 'row')} of {name} belong to a {noun} that is not there"


def back_up(store: Store, file: Path, *, overwrite: bool = False) -> dict[str, int]:
    """Copy a store as it is at this moment into a SQLite file, which is there whole or not at all; return the rows by table.

    Raises:
        InvalidRequest: The file is there already, or its folder is not.
        StoreUnavailable: The store cannot be read, or the file cannot be written.
    """
    if file.exists() and not overwrite:
        raise InvalidRequest(f"{file} is there already; name another file, or give --overwrite")
    if not file.parent.is_dir():
        raise InvalidRequest(f"the folder {str(file.parent)!r} does not exist; create it")
    with tempfile.TemporaryDirectory(prefix=".gradeloop-backup-", dir=file.parent) as folder:
        draft = Path(folder) / "store.db"
        copy = Store(f"sqlite:///{draft.resolve()}")
        with store.snapshot() as snapshot:
            copied = copy.do(lambda target: snapshot.do(lambda source: copy_rows(source, target)))
        copy.do(lambda connection: connection.exec_driver_sql("SELECT 1"))
        copy.close()
        _close_file(draft)
        draft.replace(file)
    return copied


def _close_file(file: Path) -> None:
    """Bring what stands in SQLite's log into the file itself, and the file to the disk."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    with file.open("rb") as written:
        os.fsync(written.fileno())


def restore(file: Path, store: Store) -> dict[str, int]:
    """Copy a backup, upgraded where it is older, into a store that is empty, all of it or nothing; return the rows by table.

    Raises:
        InvalidRequest: The file is not a backup, or the store is not empty.
        StoreUnavailable: The store cannot be written to.
    """
    if not file.is_file():
        raise InvalidRequest(f"there is no file {str(file)!r}; correct the path")
    with file.open("rb") as content:
        if content.read(16) != b"SQLite format 3\0":
            raise InvalidRequest(f"{file} is not a backup of a store; name a file that `gradeloop store backup` wrote")
    with tempfile.TemporaryDirectory(prefix="gradeloop-restore-") as folder:
        draft = Path(folder) / "store.db"
        shutil.copyfile(file, draft)
        draft.chmod(0o600)
        backup = Store(f"sqlite:///{draft}")
        try:
            with backup.snapshot() as snapshot:
                return store.do(lambda target: snapshot.do(lambda source: _fill(source, target, store.name)))
        except StoreRefused as error:
            raise InvalidRequest(f"{file}: {str(error).replace(backup.name, str(file))}") from None
        finally:
            backup.close()


def _fill(source: "Connection", target: "Connection", name: str) -> dict[str, int]:
    from sqlalchemy import func, select

    for found in _copied_tables():
        if rows := target.execute(select(func.count()).select_from(found)).scalar_one():
            raise InvalidRequest(f"the store {name!r} is not empty: {found.name} has {counted(rows, 'row')}; name an empty one")
    return copy_rows(source, target)


def _copied_tables() -> "list[Table]":
    return [found for found in metadata().sorted_tables if found.name not in PASSING]


def copy_rows(source: "Connection", target: "Connection") -> dict[str, int]:
    """Copy the rows of every table, those first to which others refer; times stay the same moments on either database."""
    rows: dict[str, int] = {}
    is_naive = target.dialect.name == "sqlite"  # which keeps times in UTC without saying so

    def fit(value: object) -> object:
        if not isinstance(value, datetime) or (value.tzinfo is None) == is_naive:
            return value
        return value.astimezone(UTC).replace(tzinfo=None) if is_naive else value.replace(tzinfo=UTC)

    require_known(source, entirely=True)
    take_time(target)
    for found in _copied_tables():
        rows[found.name] = 0
        result = source.execution_options(yield_per=CHUNK).execute(found.select())
        for part in result.mappings().partitions(CHUNK):
            target.execute(found.insert(), [{name: fit(value) for name, value in row.items()} for row in part])
            rows[found.name] += len(part)
    return rows


BROUGHT: dict[str, int] = {}
"""Tables and columns that hold something, each with the version that brought it, where that is not the first."""


def what_is_lost(store: Store, version: int) -> list[str]:
    """Return in words what of a store its tables of an older version have no place for; raise StoreUnavailable if it cannot be read."""
    from sqlalchemy import String, func, select

    def look(connection: "Connection") -> list[str]:
        found, lost = version_of(connection), []
        for name, since in BROUGHT.items():
            if version < since <= found:
                rows, _, column = name.partition(".")
                query = select(func.count()).select_from(table(rows))
                query = query.where(table(rows).c[column].is_not(None), table(rows).c[column].cast(String) != "0") if column else query
                if count := connection.execute(query).scalar_one():
                    lost.append(f"{name} of {counted(count, 'row')}" if column else f"{counted(count, 'row')} of {name}")
        return lost

    return store.do(look)


def prune(store: Store, before: datetime, kinds: Sequence[str], *, dry_run: bool = False) -> Pruned:
    """Delete what is older than a moment, and give the space back; with `dry_run` only count it.

    `kinds`: names of `prune_kinds`: of batches those that have ended go, of monitors the ticks, runs and past alerts; the monitors stay.

    Raises:
        StoreUnavailable: The store cannot be reached.
    """

    def work(connection: "Connection") -> dict[str, int]:
        rows: dict[str, int] = {}
        take_time(connection)
        # A preview runs the same statements and takes them back. Counts by queries of their own would say
        # something else as soon as one of the two is changed.
        for kind in kinds:
            rows |= prune_kinds()[kind](connection, before)
        if dry_run:
            connection.rollback()
        return rows

    rows = store.do(work)
    if not dry_run and any(rows.values()):
        erase_freed(store, [])  # PostgreSQL reuses the space by itself, and its tables stay open to workers
    return Pruned(before=before, rows=rows)


def prune_kinds() -> dict[str, Prune]:
    """Return what may be pruned, by name."""
    return {name: prune for owner in owners() for name, prune in owner.prunes.items()}


def erase_freed(store: Store, names: Sequence[str]) -> list[str]:
    """Write the database anew, so that nothing of what was deleted is left in its files, and return what still is, in words.

    Raises:
        StoreUnavailable: Others keep the database busy.
    """
    if not store.shared:
        busy = store.rewrite()
        return [f"the log of {store.name}, while others read it: run the command again once they have ended"] if busy else []
    for name in names:
        store.vacuum(name)
    return ["PostgreSQL's own log (pg_wal), until the server has used its segments again, and backups of the server"] if names else []
