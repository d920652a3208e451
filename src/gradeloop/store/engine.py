"""The store of results: its URL, its database, opened at the first use, and its group commit."""

import asyncio
import json
import math
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from gradeloop.errors import InvalidRequest, StoreRefused, StoreUnavailable, ValueRefused
from gradeloop.settings.paths import close_database, state_folder
from gradeloop.settings.worker import is_embedded
from gradeloop.store.postgres import LOST_STATEMENT, TRANSACTION_SECONDS, BoundedConnections, take_time
from gradeloop.store.tables import table
from gradeloop.store.upgrade import ForeignStore, move_store, prepare_store, require_writable
from gradeloop.telemetry.metrics import STORE_SECONDS

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import Connection, Engine

T = TypeVar("T")

Row = Mapping[Any, Any]
"""A row by the names of its columns: SQLAlchemy's, whose keys may be columns, or of the driver."""

Rows = Sequence[Row]

GROUP = 64
"""The most works of one transaction: its rows are locked until it ends."""

TRIES = 2
"""Tries in a row that the database does not answer, after which those that wait are told: each try would wait for it anew."""


@dataclass(frozen=True)
class Pool:
    """The connections of a process to PostgreSQL; SQLite has as many as threads ask for."""

    size: int = 5
    """Connections that stay open."""
    overflow: int = 10
    """Connections beside them at most, while threads wait for one."""
    recycle: float = 1800.0
    """Seconds after which a connection is replaced, before it is used again."""


@dataclass
class _Waiting(Generic[T]):
    work: Callable[["Connection"], T]
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None


class GroupCommit:
    """Does works of a store one after the other, in a thread of its own; those that wait are one transaction.

    A work may be done more than once, and must leave nothing behind besides its rows.

    Args:
        do: Does a work in a transaction, in the thread that calls it.
    """

    def __init__(self, do: Callable[[Callable[["Connection"], Any]], Any]) -> None:
        self._do = do
        self._lock = threading.Lock()
        self._waiting: list[_Waiting[Any]] = []
        self._writing = False
        self._thread: ThreadPoolExecutor | None = None

    async def do(self, work: Callable[["Connection"], T]) -> T:
        """Do a work and return its result, once that is committed; raise StoreUnavailable where the database is away or no store."""
        loop = asyncio.get_running_loop()
        mine: _Waiting[T] = _Waiting(work, loop, loop.create_future())
        with self._lock:
            self._waiting.append(mine)
            if not self._writing:
                self._writing = True
                self._thread = self._thread or ThreadPoolExecutor(1, "gradeloop-store")
                self._thread.submit(self._write_all)
        return await mine.ended

    def close(self) -> None:
        """End the thread, once what waits is done."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    # SQLite has one writer at a time, and others sleep until it has ended; PostgreSQL waits for its disk at each
    # commit. So one thread writes for the process, and a connection that stays silent is cut (`store/postgres.py`),
    # so that this thread always comes back.
    # Works that come during a transaction form the next one: a single thread takes all that wait, so a hundred answers cost one commit.
    # Invariant: `_writing` is true exactly while the thread has a group or looks for one, and it changes only under the lock. If it were
    # cleared outside, a work appended in between would wait forever. A work's future ends after its group's commit; if it ended before,
    # a caller could report an answer that a crash still takes back.
    def _write_all(self) -> None:
        while True:
            with self._lock:
                group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
                if not group:
                    self._writing = False
                    return
            self._write(group)
            for loop in {one.loop for one in group}:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_report, [one for one in group if one.loop is loop])

    # A work that fails takes the whole transaction back, so all are done anew: those before it together, the one by itself, and
    # those behind it together. A savepoint for each would cost more than the works themselves. Where the transaction
    # fails as a whole, or its commit does, each is tried by itself, and the faulty one is the only one that fails.
    # Two failures in a row of a database that is away end that: each further try would wait for it anew.
    def _write(self, group: Sequence[_Waiting[Any]]) -> None:
        """Do works, together as far as they can be."""
        while len(group) > 1:
            done: list[_Waiting[Any]] = []
            try:
                self._do(lambda connection: _together(connection, group, done))  # noqa: B023 - done before the next turn
            except Exception as error:  # noqa: BLE001 - whose it is shows when each runs by itself
                if _is_away(error) or len(done) == len(group):
                    break
                self._write(done)
                self._write_alone(group[len(done)])
                group = group[len(done) + 1 :]
            else:
                return
        lost: list[str] = []
        for one in group:
            if len(lost) < TRIES:
                self._write_alone(one, TRIES if len(group) == 1 else 1)
                lost = [*lost, str(one.error)] if _is_away(one.error) else []
            else:
                one.result, one.error = None, StoreUnavailable(lost[-1])

    def _write_alone(self, one: _Waiting[Any], tries: int = 1) -> None:
        for _ in range(tries):
            one.result, one.error = None, None
            try:
                one.result = self._do(one.work)
            except Exception as error:  # noqa: BLE001 - the caller's
                one.error = error
            if not _is_away(one.error):
                return


def _is_away(error: Exception | None) -> bool:
    """Return whether an error is that of a database that does not answer."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)


@dataclass(frozen=True)
class SetStatement:
    """SQL that does works of one kind: a statement that is sent again, although it was done, must change nothing."""

    sql: tuple[str, ...]
    """Statements with one parameter, `works`: a JSON array of the works' values, each with its number `n`; result rows begin with it."""
    on_sqlite: Callable[["Connection", Mapping[str, Any]], Rows]
    """Does one work by its values."""


@dataclass(frozen=True)
class SetWork(Generic[T]):
    """A work of a kind, by its values."""

    statement: SetStatement
    values: Mapping[str, Any]
    read: Callable[[Rows], T]
    keys: tuple[object, ...] = ()
    """Names of what it changes: of two works that share one, the second is done by statements behind those of the first."""

    def __call__(self, connection: "Connection") -> T:
        """Do only this work."""
        return self.read(_do_works(connection, [self])[0])


# One statement does all works of a kind. Works that share a key go into different rounds, in their order: within one statement the second
# would not see what the first wrote. Every worker writes rows in the order of their keys; in another order two workers could each lock
# a row that the other one needs, and the database would end one of them.
def _do_works(connection: "Connection", works: Sequence[SetWork[Any]]) -> list[Rows]:
    """Do works by as few statements as they need, and return the rows of each."""
    if connection.dialect.name == "sqlite":
        return [work.statement.on_sqlite(connection, work.values) for work in works]
    rounds, turns = dict[tuple[int, tuple[str, ...]], list[int]](), dict[object, int]()
    for at, work in enumerate(works):
        turn = max((turns.get(key, 0) for key in work.keys), default=0)
        turns |= dict.fromkeys(work.keys, turn + 1)
        rounds.setdefault((turn, work.statement.sql), []).append(at)
    found: list[list[Row]] = [[] for _ in works]
    with driver_connection(connection) as driver:
        sent = []
        with driver.pipeline() if len(rounds) > 1 or len(works[0].statement.sql) > 1 else nullcontext():
            for (_, statements), those in sorted(rounds.items()):
                those.sort(key=lambda at: str(works[at].keys))  # two workers that write the same take the rows' locks in the same order
                values = {"works": json.dumps([{**works[at].values, "n": at} for at in those], ensure_ascii=False)}
                sent.append([driver.execute(statement, values, prepare=False) for statement in statements][-1])
        for cursor in sent:
            names = [column.name for column in cursor.description]
            for row in cursor:
                found[row[0]].append(dict(zip(names, row, strict=True)))
    return list(found)


@contextmanager
def driver_connection(connection: "Connection") -> Iterator[Any]:
    """Yield the driver's own connection; its errors are those of SQLAlchemy."""
    from sqlalchemy.exc import DBAPIError

    errors = connection.dialect.loaded_dbapi.Error
    try:
        yield connection.connection.driver_connection
    except errors as error:
        raise DBAPIError.instance(None, None, error, errors, dialect=connection.dialect) from error


def _together(connection: "Connection", group: Sequence[_Waiting[Any]], done: list[_Waiting[Any]]) -> None:
    """Do all works in this transaction, and add each to `done` that did not fail."""
    works = [one.work for one in group if isinstance(one.work, SetWork)]
    if len(works) == len(group) and connection.dialect.name != "sqlite":
        done.extend(group)  # where a statement fails, it has failed for all
        for one, work, rows in zip(group, works, _do_works(connection, works), strict=True):
            one.result = work.read(rows)
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # else works that only read, and come first, would be no part of it
    for one in group:
        one.result = one.work(connection)
        done.append(one)


def _report(group: Sequence[_Waiting[Any]]) -> None:
    for one in group:
        if one.ended.done():  # nobody waits any more
            continue
        if one.error is not None:
            one.ended.set_exception(one.error)
        else:
            one.ended.set_result(one.result)


STORE_VARIABLE = "GRADELOOP_STORE"
STORE_FILE = "results.db"
STORE_CURE = f"set {STORE_VARIABLE} to sqlite:////folder/results.db or postgresql://user@host/database"


def store_url(*, embedded: bool) -> str:
    """Return the store's URL: the one that GRADELOOP_STORE names, else a file in the state folder.

    Args:
        embedded: Whether the Temporal server is the embedded one; any other needs a store that is named.

    Raises:
        InvalidRequest: No store is named for a server, or GRADELOOP_STORE names no SQLite or PostgreSQL database.
    """
    named = os.environ.get(STORE_VARIABLE, "").strip()
    if not named:
        if embedded:
            return f"sqlite:///{state_folder() / STORE_FILE}"
        raise InvalidRequest(f"no store of results is named, and the server is not the embedded one; {STORE_CURE}")
    scheme = urlsplit(named).scheme
    if scheme not in {"sqlite", "postgresql", "postgres"}:
        raise InvalidRequest(f"{STORE_VARIABLE} names {_without_secrets(named)!r}, which is neither SQLite nor PostgreSQL; {STORE_CURE}")
    if scheme == "sqlite" and not named.removeprefix("sqlite:///").startswith("/"):
        raise InvalidRequest(f"{STORE_VARIABLE} names {_without_secrets(named)!r}, whose path is not absolute; {STORE_CURE}")
    return named


def own_store(*, durable: bool = False, pool: Pool | None = None) -> "Store":
    """Return the store that the environment names, or that of the state folder; raise InvalidRequest for a server without a store."""
    return Store(store_url(embedded=is_embedded()), durable=durable, pool=pool)


class Store:
    """A database of results, opened at its first use.

    Args:
        url: Its URL, as `store_url` returns it.
        upgrade: Whether a database of an older version is upgraded when it is opened; False for those who look at it as it is.
        durable: Whether each commit waits for the disk, so that even a crash of the machine loses none; PostgreSQL's always do.
        pool: The connections to PostgreSQL.
    """

    def __init__(self, url: str, *, upgrade: bool = True, durable: bool = False, pool: Pool | None = None) -> None:
        self._url = url
        self._pool = pool or Pool()
        self._durable = durable
        self._upgrades = upgrade
        self._engine: Engine | None = None
        self._opening = threading.Lock()
        self._groups = GroupCommit(self.do)
        self._sets = GroupCommit(self._do_at_once)
        self._direct: Connection | None = None

    @property
    def shared(self) -> bool:
        """Whether workers of several machines may share it: whether it is a PostgreSQL database."""
        return urlsplit(self._url).scheme != "sqlite"

    @property
    def name(self) -> str:
        """The URL, without password and query."""
        return _without_secrets(self._url)

    @property
    def file(self) -> Path | None:
        """The database's file; None for PostgreSQL."""
        return None if self.shared else Path(urlsplit(self._url).path[1:])

    def move(self, version: int) -> int:
        """Bring the tables to a version, up or down, while no other process does, and return the version that they had.

        Raises:
            StoreUnavailable: The database cannot be reached, or is not a store of gradeloop.
        """
        return self._checked(lambda: move_store(self._opened(), version))

    async def read(self, work: Callable[["Connection"], T]) -> T:
        """Do work in a thread, in a transaction of its own; raise StoreUnavailable where the database is away, or no store of gradeloop."""
        return await asyncio.to_thread(self.do, work)

    write = read
    """Another name for `read`, for work that changes rows."""

    async def ping(self) -> None:
        """Find out whether the database can be written, in the way that writes go.

        Raises:
            StoreUnavailable: It cannot.
            StoreRefused: Its tables are not those that this gradeloop knows: it was upgraded or taken back meanwhile.
        """
        for writer in (self._groups, self._sets) if self.shared else (self._groups,):
            await writer.do(require_writable)

    async def write_soon(self, work: Callable[["Connection"], T]) -> T:
        """Do short work in a transaction together with whatever else waits to be written; it is committed when this returns.

        Raises:
            StoreUnavailable: The database cannot be reached, or is not a store of gradeloop.
        """
        return await (self._sets if self.shared and isinstance(work, SetWork) else self._groups).do(work)

    # A set work needs no BEGIN and no COMMIT of its own, so it takes one round trip instead of three. The price
    # is that a lost connection leaves open whether it was done; set works are therefore written so that doing
    # one again changes nothing. A connection that failed is not used again, since nobody knows its state.
    def _do_at_once(self, work: Callable[["Connection"], T]) -> T:
        """Do set work in this thread, each statement a transaction; its connection is kept, so that a work is one round trip."""

        def transact() -> T:
            connection, self._direct = self._direct, None
            connection = connection or self._opened().connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.info["until"] = time.monotonic() + TRANSACTION_SECONDS
            try:
                done = work(connection)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            connection.info["until"], self._direct = math.inf, connection
            return done

        return self._timed(transact)

    def do(self, work: Callable[["Connection"], T]) -> T:
        """Do work in this thread, as `read` does in another; raise StoreUnavailable where the database is away, or not a store."""

        def transact() -> T:
            with self._opened().begin() as connection:
                return work(connection)

        return self._timed(transact)

    def _timed(self, work: Callable[[], T]) -> T:
        started, outcome = time.perf_counter(), "error"
        try:
            done = self._checked(work)
            outcome = "ok"
            return done
        finally:
            STORE_SECONDS.record(time.perf_counter() - started, outcome=outcome)

    def do_at_once(self, work: Callable[["Connection"], T]) -> T:
        """Do work in this thread, each of whose statements is committed by itself, with one round trip.

        Raises:
            StoreUnavailable: The database cannot be reached, or is not a store of gradeloop.
        """

        def execute() -> T:
            with self._opened().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                return work(connection)

        return self._checked(execute)

    def rewrite(self) -> bool:
        """Write a SQLite file anew without its free pages, and empty its log; return whether a reader kept the log from that.

        Raises:
            StoreUnavailable: Others keep the database busy.
        """

        def work(connection: "Connection") -> bool:
            connection.exec_driver_sql("VACUUM")
            return bool(connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0])

        return self.do_at_once(work)

    def vacuum(self, name: str) -> None:
        """Write a table of PostgreSQL anew without what was deleted; the table is locked meanwhile.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """

        def work(connection: "Connection") -> None:
            take_time(connection)
            connection.exec_driver_sql(f"VACUUM FULL {table(name).name}")
            connection.invalidate()  # it is bounded no more

        self.do_at_once(work)

    def size(self) -> tuple[int, int | None]:
        """Return the bytes of the store, and those left on a file's disk; raise StoreUnavailable where the database is away."""
        if self.shared:
            return self.do(
                lambda connection: int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
            ), None
        file = Path(self._url.removeprefix("sqlite:///"))
        try:
            return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*")), shutil.disk_usage(file.parent).free
        except OSError as error:
            raise StoreUnavailable(f"the store {_without_secrets(self._url)!r} cannot be used: {error.strerror}; {STORE_CURE}") from None

    @contextmanager
    def snapshot(self) -> Iterator["StoreSnapshot"]:
        """Yield the store as it is now, for this thread: all that is read of it is of one moment, whoever writes meanwhile.

        Raises:
            StoreUnavailable: The database cannot be reached, or is not a store of gradeloop.
        """
        connection = self._checked(lambda: _begin_snapshot(self._opened()))
        try:
            yield StoreSnapshot(lambda work: self._checked(lambda: work(connection)))
        finally:
            connection.close()

    def _checked(self, work: Callable[[], T]) -> T:
        """Do work on the database, and say what is wrong where it cannot be used."""
        # Whoever calls has three ways to react, so errors fall into three classes. A database that does not
        # answer is tried again. One that refuses the statement, such as one with other tables, refuses it
        # again, and the caller is told. A value that no column takes fails only its own work. A pooler that has
        # lost a prepared statement looks like the second class and belongs to the first: the next connection
        # knows the statement.
        from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

        try:
            return work()
        except IntegrityError:
            raise
        except ForeignStore as error:
            raise StoreRefused(f"the store {_without_secrets(self._url)!r} {error}, or name another store with {STORE_VARIABLE}") from None
        except (SQLAlchemyError, ModuleNotFoundError, OSError, OverflowError, UnicodeEncodeError) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            problem = " ".join(str(cause).split())
            cure = "run: pip install 'gradeloop[postgres]'" if isinstance(error, ModuleNotFoundError) else STORE_CURE
            refused = isinstance(error, ProgrammingError | ModuleNotFoundError) and getattr(cause, "sqlstate", None) not in LOST_STATEMENT
            kind = StoreRefused if refused else StoreUnavailable
            kind = ValueRefused if isinstance(error, DataError | OverflowError | UnicodeEncodeError) else kind
            raise kind(f"the store {_without_secrets(self._url)!r} cannot be used: {problem}; {cure}") from None

    def _opened(self) -> "Engine":
        with self._opening:
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def _open(self) -> "Engine":
        from sqlalchemy import create_engine, event

        parts = urlsplit(self._url)
        if parts.scheme == "sqlite":
            engine = create_engine(self._url, connect_args={"timeout": 30})
            self._close_file(Path(engine.url.database or ""))
            if not self._durable:
                event.listen(engine, "connect", _synchronize_seldom)
        else:
            # The connection that was used last is taken first, since it needs no ping (`BoundedConnections`).
            # Without a look for hstore columns, which no table has, a new connection costs a round trip less.
            pool = {"pool_size": self._pool.size, "max_overflow": self._pool.overflow, "pool_recycle": self._pool.recycle}
            engine = create_engine(
                f"postgresql+psycopg{self._url[len(parts.scheme) :]}", use_native_hstore=False, pool_use_lifo=True, **pool
            )
            BoundedConnections(engine)
        try:
            if self._upgrades:
                prepare_store(engine)
        except BaseException:
            engine.dispose()
            raise
        # Commands and programs of users forget a store without closing it. The engine must outlive the store by
        # one call, and is therefore held here: collected together with it, its connections would stay open.
        weakref.finalize(self, engine.dispose)
        return engine

    def _close_file(self, file: Path) -> None:
        """Make the database's file, not its folder, which may be misspelt or not mounted yet, and close the file to other users."""
        if not file.parent.is_dir():
            problem = f"its folder {str(file.parent)!r} does not exist; create it, or name another store with {STORE_VARIABLE}"
            raise StoreRefused(f"the store {_without_secrets(self._url)!r} cannot be used: {problem}")
        try:
            close_database(file, STORE_CURE)
        except InvalidRequest as error:
            raise StoreRefused(str(error)) from None

    def close(self) -> None:
        """Close the connections."""
        self._groups.close()
        self._sets.close()
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


class StoreSnapshot:
    """A store as it was at one moment."""

    def __init__(self, do: Callable[[Callable[["Connection"], Any]], Any]) -> None:
        self._do = do

    def do(self, work: Callable[["Connection"], T]) -> T:
        """Read in this thread; raise StoreUnavailable where the database cannot be reached any more."""
        return self._do(work)  # type: ignore[no-any-return]  # whatever the work returns


def _begin_snapshot(engine: "Engine") -> "Connection":
    """Return a connection in a transaction that sees one state of the database."""
    connection = engine.connect()
    if engine.dialect.name != "sqlite":
        connection = connection.execution_options(isolation_level="REPEATABLE READ")
        take_time(connection)
        return connection
    connection.exec_driver_sql("BEGIN")  # which Python's driver leaves out before a statement that only reads
    return connection


def _synchronize_seldom(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own
    """Have a commit not wait for the disk: a crash of the machine, not of a process, may lose the last ones."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _without_secrets(url: str) -> str:
    """Return a URL without password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{user}{host}{port}{parts.path}"
