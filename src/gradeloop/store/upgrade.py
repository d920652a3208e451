"""The version of a store's tables, and how it changes: by alembic's migrations, one process at a time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy; a store of today's version needs no alembic
    from sqlalchemy import Connection, Engine

VERSION = 1
"""The version of the tables: the number of the newest migration. A store of a higher one is refused, one of a lower one is upgraded."""

VERSION_TABLE = "store_version"
"""The table in which alembic keeps the version. Stores of before 0.2.0 kept theirs in others, and their numbers mean other tables."""

LOCK_SECONDS = 120.0
"""How long a process waits for another one that upgrades the same store."""

SHARE_SECONDS = 0.05
"""The pause between two tries to change the mode of a SQLite file in which another process writes."""

POSTGRES_LOCK = 0x67726164656C6F6F
"""The key of the lock under which a PostgreSQL store is upgraded: `gradeloo` in ASCII."""

MIGRATIONS = Path(__file__).parent / "migrations"

_MIGRATING = threading.Lock()
"""Alembic keeps the migration that runs in global variables, so that one thread of a process migrates at a time."""


class ForeignStore(Exception):
    """A store has tables that this gradeloop cannot use; the message goes on where the store was named, and leaves the cure unfinished."""


def prepare_store(engine: "Engine") -> None:
    """Upgrade a store that is of an older version, or empty.

    Raises:
        ForeignStore: It is of a newer version, or was made before 0.2.0.
    """
    if (found := _read_version(engine)) < VERSION or not _is_shared(engine):
        with _alone(engine) as connection:
            if (found := version_of(connection)) < VERSION:
                change_version(connection, VERSION)
    if found > VERSION:
        raise ForeignStore(f"is of version {found}, this gradeloop knows {VERSION}; install a newer gradeloop")


def move_store(engine: "Engine", version: int) -> int:
    """Bring a store to a version, up or down, while no other process does, and return the version that it had.

    Raises:
        ForeignStore: It is of a newer version, or was made before 0.2.0.
    """
    with _alone(engine) as connection:
        if (found := version_of(connection)) > VERSION:
            cure = "downgrade it with the gradeloop that upgraded it"
            raise ForeignStore(f"is of version {found}, this gradeloop knows {VERSION}; {cure}")
        if found != version:
            change_version(connection, version)
        return found


def _read_version(engine: "Engine") -> int:
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).exists():
        return 0
    with engine.connect() as connection:
        return version_of(connection)


def version_of(connection: "Connection") -> int:
    """Return the version of a store's tables; 0 where it has none.

    Raises:
        ForeignStore: It was made before 0.2.0.
    """
    from sqlalchemy import column, inspect, select, table

    names = inspect(connection).get_table_names()
    if VERSION_TABLE in names:
        return int(connection.execute(select(column("version_num")).select_from(table(VERSION_TABLE))).scalar() or 0)
    if "judgements" in names:  # which every version had
        made = "was made by a gradeloop before 0.2.0, whose tables this one does not read"
        raise ForeignStore(f"{made}; export its batches with that gradeloop and move it away")
    return 0


def change_version(connection: "Connection", version: int) -> None:
    """Bring a store's tables to a version, up or down, in the transaction of the connection.

    Args:
        connection: Whoever calls keeps other processes from changing the version at the same time.
        version: The number of a migration; 0 drops every table.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    move = command.downgrade if version < version_of(connection) else command.upgrade
    with _MIGRATING:
        move(config, f"{version:04}" if version else "base")


def _is_shared(engine: "Engine") -> bool:
    """Return whether readers of the store read while one writes; a SQLite file that was copied by hand may have lost that."""
    if engine.dialect.name != "sqlite":
        return True
    with engine.connect() as connection:
        return connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@contextmanager
def _alone(engine: "Engine") -> Iterator["Connection"]:
    """Return a connection in a transaction, which no other process has at the same time; the others wait."""
    from filelock import FileLock
    from sqlalchemy import text

    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRES_LOCK})
            yield connection
        return
    with FileLock(f"{engine.url.database}.lock", timeout=LOCK_SECONDS, mode=0o600):
        _share(engine)
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()


def _share(engine: "Engine") -> None:
    """Let readers of a SQLite store read while one writes, as soon as nobody writes: SQLite itself does not wait for that."""
    from sqlalchemy.exc import OperationalError

    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except OperationalError as error:
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(SHARE_SECONDS)
        else:
            return
