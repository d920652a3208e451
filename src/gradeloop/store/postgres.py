"""Connections to PostgreSQL on which no wait is without end, also through a pooler."""

import math
import socket
import threading
import time
from contextlib import suppress
from os import dup
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import Connection, Dialect, Engine
    from sqlalchemy.pool import ConnectionPoolEntry

LIMITS = {"statement_timeout": 25_000, "lock_timeout": 20_000, "idle_in_transaction_session_timeout": 30_000}
"""The server's limits in milliseconds: of a statement, of its wait for a lock, and of the wait for a transaction's next statement."""

PATIENT = {"statement_timeout": 0, "lock_timeout": 120_000, "idle_in_transaction_session_timeout": 0}
"""The limits of exports, upgrades and clean-ups, which take as long as they do."""

TRANSACTION_SECONDS = 40.0
"""Seconds after which a connection that was not given back is cut on this side: above the limits of a server that answers."""

PING_SECONDS = 5.0
"""Seconds that a connection has to answer before it is used again."""

UNUSED_SECONDS = 1.0
"""Seconds that a connection may lie unused before it is asked whether it is alive; asking each time would be one more round trip."""

LOOK_SECONDS = 0.5

CONNECT = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "prepare_threshold": None,  # a pooler gives the next transaction to another server, which knows no statement prepared before
}
"""The options of a connection to PostgreSQL, where the URL has no others."""

LOST_STATEMENT = {"26000", "42P05"}
"""The codes of a prepared statement that the server does not know, or has already: a pooler lies between."""


class BoundedConnections:
    """Connects an engine so that every wait of a transaction ends."""

    # The server bounds statements, waits for locks and idle transactions. It cannot bound the wait for an answer that
    # never comes: where a firewall or a proxy takes bytes and says nothing, the thread would read for ever. So a
    # connection that is not given back in time is shut down under its reader, who sees it end as any that is lost,
    # and its work is done anew. The thread of a group commit has no other way to come back.

    def __init__(self, engine: "Engine") -> None:
        from sqlalchemy import event

        self._dialect = engine.dialect
        self._pooled = False
        """True if a pooler lies between, which refuses limits when a connection begins: they are set in each transaction."""
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "begin", self._limit)
        event.listen(engine, "checkout", self._take)
        event.listen(engine, "checkin", _give_back)
        event.listen(engine, "close", _forget)

    def _connect(self, dialect: "Dialect", entry: "ConnectionPoolEntry", arguments: list[Any], named: dict[str, Any]) -> object:
        """Connect, with the limits as options of the session where no pooler refuses that."""
        named = {**CONNECT, **named}
        given = named.pop("options", "")
        limits = " ".join([*(f"-c {name}={value}" for name, value in LIMITS.items()), given])
        try:
            connection = dialect.connect(*arguments, **named, options=given if self._pooled else limits)
        except dialect.loaded_dbapi.OperationalError as error:
            if self._pooled or "support" not in str(error):  # PgBouncer: unsupported startup parameter; RDS Proxy: feature not supported
                raise
            connection = dialect.connect(*arguments, **named, options=given)
            self._pooled = True
        _watch(connection, entry)
        return connection

    # A pooler hands a server's session to another client after each transaction, and refuses limits that are
    # options of the session. So they are set inside of each transaction, together with its BEGIN in one
    # message. That costs no round trip, and nothing of it stays in the session.
    def _limit(self, connection: "Connection") -> None:
        """Set the limits for this transaction, in the message that begins it: the driver's own begin would be one more round trip."""
        driver: Any = connection.connection.driver_connection
        if not self._pooled or (driver.autocommit and not connection.info.get("begun")):
            return
        level = f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}" if driver.isolation_level is not None else ""
        try:
            driver.autocommit = connection.info["begun"] = True
            driver.execute("; ".join([f"BEGIN {level}", *(f"SET LOCAL {name} = {value}" for name, value in LIMITS.items())]))
        except self._dialect.loaded_dbapi.Error as error:
            from sqlalchemy.exc import OperationalError

            raise OperationalError(None, None, error) from None

    def _take(self, connection: Any, entry: "ConnectionPoolEntry", _fairy: object) -> None:  # noqa: ANN401 - the driver's own
        """Note that a connection is in use, and ask one that lay unused whether it is alive."""
        from sqlalchemy.exc import InvalidatePoolError

        now = time.monotonic()
        # The watcher bounds the ping, too: a connection that was cut silently while it lay unused would
        # otherwise keep its reader until the limit of a whole transaction.
        entry.info["until"] = now + PING_SECONDS
        _watched.add(entry)
        if now - entry.info.get("unused", now) > UNUSED_SECONDS:
            try:
                self._dialect.do_ping(connection)
            except self._dialect.loaded_dbapi.Error:
                raise InvalidatePoolError from None
        entry.info["until"] = now + TRANSACTION_SECONDS


def take_time(connection: "Connection") -> None:
    """Let a connection's transaction take as long as it does; one without transactions keeps that, and is closed after its work."""
    if connection.dialect.name != "sqlite":
        driver: Any = connection.connection.driver_connection
        locally = "false" if driver.autocommit and not connection.info.get("begun") else "true"
        connection.exec_driver_sql("SELECT " + ", ".join(f"set_config('{name}', '{value}', {locally})" for name, value in PATIENT.items()))
        connection.info["until"] = math.inf


_watched: "set[ConnectionPoolEntry]" = set()
"""The connections of all stores of the process that are in use."""

_watcher: threading.Thread | None = None


# The watcher shuts the socket down and does not close it. The thread that reads gets an end of the connection,
# as after a network fault, and all of its own cleaning up still works. If the descriptor were closed, its
# number could be another file's by the time that the reader uses it.
def _watch(connection: Any, entry: "ConnectionPoolEntry") -> None:  # noqa: ANN401 - the driver's own
    """Watch a new connection, by a handle of our own on its socket: its number may be another file's by the time that it is cut."""
    global _watcher  # noqa: PLW0603 - one for all stores of the process; a second one would do no harm
    entry.info.update(socket=socket.socket(fileno=dup(connection.fileno())), until=time.monotonic() + PING_SECONDS)
    _watched.add(entry)
    if _watcher is None:
        _watcher = threading.Thread(target=_cut_overdue, name="gradeloop-store-watch", daemon=True)
        _watcher.start()


def _give_back(connection: Any, entry: "ConnectionPoolEntry") -> None:  # noqa: ANN401 - the driver's own
    _watched.discard(entry)
    entry.info["unused"] = time.monotonic()
    if entry.info.pop("begun", False) and connection is not None and not connection.closed:
        connection.autocommit = False


def _forget(_connection: object, entry: "ConnectionPoolEntry") -> None:
    _watched.discard(entry)
    if (handle := entry.info.pop("socket", None)) is not None:
        handle.close()


def _cut_overdue() -> None:
    """Cut each connection that was not given back in time."""
    while True:
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        for entry in list(_watched):
            if (handle := entry.info.get("socket")) is not None and entry.info.get("until", math.inf) < now:
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)
