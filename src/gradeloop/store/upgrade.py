"""The version of a store's tables, and how it changes: by alembic's migrations, one process at a time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gradeloop.store.postgres import take_time

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy; a store of today's version needs no alembic
    from sqlalchemy import Connection, Engine

VERSION = 4
"""The version of the tables: the number of the newest migration. A store of a lower one is upgraded; one of a higher one is used while it
says that this version may, and refused otherwise."""

VERSION_TABLE = "store_version"
"""The table in which alembic keeps the version. Stores of before 0.2.0 kept theirs in others, and their numbers mean other tables."""

OLDEST_TABLE = "store_oldest"
"""The table with the lowest version that a gradeloop must know to use the store: the highest `oldest` of its migrations.

A migration that workers of the version before can go on beside, and start behind, says that version or an earlier one as its `oldest`: it
adds tables, and columns which an INSERT may leave out. One that drops, renames or gives another meaning says its own number."""

LOCK_SECONDS = 120.0
"""Seconds that a process waits for another one that upgrades the same store."""

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
    """Upgrade a store of an older version, or an empty one; raise ForeignStore for a newer one, and one made before 0.2.0."""
    # The version is read twice: once without a lock, since almost every start finds today's, and once under the
    # lock. Of several processes that start together, the first one upgrades. The others wait for it, find the
    # new version, and must not run the migrations again.
    if (found := _read_version(engine)) < VERSION or not _is_shared(engine):
        with _alone(engine) as connection:
            if (found := version_of(connection)) < VERSION:
                change_version(connection, VERSION)
    if found > VERSION:
        with engine.connect() as connection:
            require_known(connection)


def require_writable(connection: "Connection") -> None:
    """Have the database do what a write needs, short of locking a row.

    Raises:
        ForeignStore: Its tables are of a version that this gradeloop may not use.
        SQLAlchemyError: The database cannot be written.
    """
    look = "SELECT version_num FROM store_version"
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA user_version = 0")
    else:  # an update must be allowed, and the log take the end of a transaction that has a number
        look = (
            "WITH writes AS (UPDATE store_version SET version_num = version_num WHERE false RETURNING 1) "
            "SELECT version_num, txid_current() FROM store_version"
        )
    found = int(connection.exec_driver_sql(look).scalar() or 0)
    if found < VERSION:
        raise ForeignStore(f"is of version {found}, this gradeloop needs {VERSION}; run: gradeloop store upgrade")
    if found > VERSION:
        require_known(connection)


def require_known(connection: "Connection", *, entirely: bool = False) -> None:
    """Refuse a newer store that this gradeloop may not use.

    `entirely`: whether all tables have to be known, as to whoever copies the store or erases from it.

    Raises:
        ForeignStore: It is of such a version.
    """
    from sqlalchemy import inspect

    needed = found = version_of(connection)
    # A newer store says which version a gradeloop must know at least to go on with it. So workers of two versions
    # may share it while they are replaced. To copy or erase, all of its tables have to be known.
    if not entirely and found > VERSION and inspect(connection).has_table(OLDEST_TABLE):
        needed = int(connection.exec_driver_sql("SELECT version FROM store_oldest").scalar_one())
    if needed > VERSION:
        needs = f"is of version {found}, which needs a gradeloop that knows version {needed}"
        raise ForeignStore(f"{needs}, this gradeloop knows {VERSION}; install a newer gradeloop")


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
    """Return the version of a store's tables; 0 where it has none. Raise ForeignStore where it was made before 0.2.0."""
    from sqlalchemy import column, inspect, select, table

    names = inspect(connection).get_table_names()
    if VERSION_TABLE in names:
        return int(connection.execute(select(column("version_num")).select_from(table(VERSION_TABLE))).scalar() or 0)
    if "judgements" in names:  # which every version had
        made = "was made by a gradeloop before 0.2.0, whose tables this one does not read"
        raise ForeignStore(f"{made}; export its batches with that gradeloop and move it away")
    return 0


# The version, the tables and `store_oldest` change in one transaction. A process that dies in the middle
# leaves the store as it was, and the next one upgrades it from there.
def change_version(connection: "Connection", version: int) -> None:
    """Bring a store's tables to a version, up or down, in the transaction of the connection.

    Args:
        connection: Whoever calls keeps other processes from changing the version at the same time.
        version: The number of a migration; 0 drops every table.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    move = command.downgrade if version < version_of(connection) else command.upgrade
    with _MIGRATING:
        move(config, f"{version:04}" if version else "base")
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {OLDEST_TABLE}")
    if version:
        migrations = ScriptDirectory.from_config(config).iterate_revisions(f"{version:04}", "base")
        oldest = max(migration.module.oldest for migration in migrations)
        connection.exec_driver_sql(f"CREATE TABLE {OLDEST_TABLE} AS SELECT {oldest} AS version")


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

    # PostgreSQL gives the lock back with the transaction, so that a process that dies while it upgrades leaves neither
    # a lock nor half an upgrade. SQLite's own lock does not do: its file has to change into the mode in which readers
    # go on beside a writer, and that is possible only outside of a transaction. So a lock file keeps others away from
    # both steps.
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            take_time(connection)
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
