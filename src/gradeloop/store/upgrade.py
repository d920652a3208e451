"""The version of a store's tables, and how it changes: by alembic's migrations, one process at a time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy; a store of today's version needs no alembic
    from sqlalchemy import Connection, Engine

VERSION = 13
"""The version of the tables: the number of the newest migration. A store of a higher one is refused, one of a lower one is upgraded."""

LOCK_SECONDS = 120.0
"""How long a process waits for another one that upgrades the same store."""

SHARE_SECONDS = 0.05
"""The pause between two tries to change the mode of a SQLite file in which another process writes."""

POSTGRES_LOCK = 0x67726164656C6F6F
"""The key of the lock under which a PostgreSQL store is upgraded: `gradeloo` in ASCII."""

MIGRATIONS = Path(__file__).parent / "migrations"

_MIGRATING = threading.Lock()
"""Alembic keeps the migration that runs in global variables, so that one thread of a process migrates at a time."""


def prepare_store(engine: "Engine") -> int:
    """Upgrade a store that is of an older version, or empty, and return the version that it then has."""
    if (found := _read_version(engine)) >= VERSION and _is_shared(engine):
        return found
    with _alone(engine) as connection:
        found = version_of(connection)
        if found < VERSION:
            change_version(connection, VERSION)
        return max(found, VERSION)


def move_store(engine: "Engine", version: int) -> int:
    """Bring a store to a version, up or down, while no other process does, and return the version that it had."""
    with _alone(engine) as connection:
        if (found := version_of(connection)) != version:
            change_version(connection, version)
        return found


def _read_version(engine: "Engine") -> int:
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).exists():
        return 0
    with engine.connect() as connection:
        return version_of(connection)


def version_of(connection: "Connection") -> int:
    """Return the version of a store's tables; 0 where it has none."""
    from sqlalchemy import inspect, text

    if not inspect(connection).has_table("schema_version"):
        return 0
    return int(connection.execute(text("SELECT version FROM schema_version")).scalar() or 0)


def change_version(connection: "Connection", version: int) -> None:
    """Bring a store's tables to a version, up or down, in the transaction of the connection.

    Args:
        connection: Whoever calls keeps other processes from changing the version at the same time.
        version: The number of a migration; 0 drops every table.
    """
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import inspect, text

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    found = version_of(connection)
    with _MIGRATING:
        if found and not inspect(connection).has_table("alembic_version"):  # made before there were migrations
            command.stamp(config, f"{found:04}")
        if version < found:
            command.downgrade(config, f"{version:04}" if version else "base")
        else:
            command.upgrade(config, f"{version:04}")
    if version:  # also for a gradeloop of before the migrations, which refuses a higher one
        connection.execute(text("DELETE FROM schema_version"))
        connection.execute(text("INSERT INTO schema_version (version) VALUES (:version)"), {"version": version})


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
