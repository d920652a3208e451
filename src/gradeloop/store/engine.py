"""A database of ours: its URL, its engine, opened at its first use."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.settings.paths import state_folder
from gradeloop.settings.worker import is_embedded
from gradeloop.store.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


STORE_VARIABLE = "GRADELOOP_STORE"
STORE_FILE = "results.db"
STORE_CURE = f"set {STORE_VARIABLE} to sqlite:////folder/results.db or postgresql://user@host/database"

T = TypeVar("T")


def store_url(*, embedded: bool) -> str:
    """Return where the store is: as GRADELOOP_STORE says, or beside the embedded server's database.

    Raises:
        InvalidRequest: Neither is there; or it names no database that is known.
    """
    named = os.environ.get(STORE_VARIABLE, "").strip()
    if not named:
        if embedded:
            return f"sqlite:///{state_folder() / STORE_FILE}"
        raise InvalidRequest(f"no store of results is named, and the server is not the embedded one; {STORE_CURE}")
    scheme = urlsplit(named).scheme
    if scheme not in {"sqlite", "postgresql", "postgres"}:
        raise InvalidRequest(f"{STORE_VARIABLE} names {_bare(named)!r}, which is neither SQLite nor PostgreSQL; {STORE_CURE}")
    if scheme == "sqlite" and not named.removeprefix("sqlite:///").startswith("/"):
        raise InvalidRequest(f"{STORE_VARIABLE} names {_bare(named)!r}, whose path is not absolute; {STORE_CURE}")
    return named


def own_store() -> "Store":
    """Return the store that the environment names, else the one in the state folder.

    Raises:
        InvalidRequest: A server is named and no store.
    """
    return Store(store_url(embedded=is_embedded()))


class Store:
    """A database of ours, opened at its first use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None

    async def read(self, work: Callable[["Connection"], T]) -> T:
        """Do work in a thread, on a connection of its own.

        Raises:
            StoreUnavailable: The database cannot be reached, or is not one of ours.
        """
        return await asyncio.to_thread(self.do, work)

    write = read
    """The same: every piece of work is one transaction."""

    def do(self, work: Callable[["Connection"], T]) -> T:
        """Do work in this thread, as `read` does.

        Raises:
            StoreUnavailable: The database cannot be reached, or is not one of ours.
        """
        from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

        try:
            with self._opened().begin() as connection:
                return work(connection)
        except IntegrityError:
            raise
        except (SQLAlchemyError, ModuleNotFoundError, OSError) as error:
            words = error.orig if isinstance(error, DBAPIError) and error.orig else error
            told = " ".join(str(words).split())
            raise StoreUnavailable(f"the store {_bare(self._url)!r} cannot be used: {told}; {_cure(error)}") from None

    def _opened(self) -> "Engine":
        if self._engine is None:
            self._engine = self._prepared()
        return self._engine

    def _prepared(self) -> "Engine":
        from sqlalchemy import create_engine, event

        from gradeloop.store.tables import prepare_tables

        parts = urlsplit(self._url)
        if parts.scheme == "sqlite":
            Path(unquote(parts.path)).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            engine = create_engine(self._url, connect_args={"timeout": 30})
            event.listen(engine, "connect", _in_wal_mode)
        else:
            engine = create_engine(f"postgresql+psycopg{self._url[len(parts.scheme) :]}", pool_pre_ping=True)
        found = prepare_tables(engine)
        if found > SCHEMA_VERSION:
            engine.dispose()
            words = f"the store {_bare(self._url)!r} is of version {found}, this gradeloop knows {SCHEMA_VERSION}"
            raise StoreUnavailable(f"{words}; install a newer gradeloop, or name another store with {STORE_VARIABLE}")
        return engine

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _in_wal_mode(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own
    """Let readers read while one writes; a crash of the machine, not of a process, may lose the last commits."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _bare(url: str) -> str:
    """Return a URL as it may be told: without password or query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{user}{host}{port}{parts.path}"


def _cure(error: Exception) -> str:
    return "run: pip install 'gradeloop[postgres]'" if isinstance(error, ModuleNotFoundError) else STORE_CURE
