"""Transactions in groups: what comes while one commits is committed together next, each work in a savepoint of its own."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:  # a worker without a store does not load SQLAlchemy
    from sqlalchemy import Connection

T = TypeVar("T")

GROUP = 64
"""The most works of one transaction: its rows are locked until it ends."""


@dataclass
class _Waiting(Generic[T]):
    work: Callable[["Connection"], T]
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None


class WriteGroups:
    """Does works of a store one after the other, in a thread of its own; those that wait are one transaction.

    SQLite has one writer at a time, and others sleep until it has ended; PostgreSQL waits for its disk at each commit. A work is reported
    once the transaction is committed. One that fails is rolled back alone; where the transaction as a whole fails, each is tried alone.

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
        """Do a work and return its result, once that is committed.

        Raises:
            StoreUnavailable: The database cannot be reached, or is no store of gradeloop.
        """
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

    def _write(self, group: Sequence[_Waiting[Any]]) -> None:
        if len(group) > 1:
            try:
                self._do(lambda connection: _together(connection, group))
            except Exception:  # noqa: BLE001, S110 - whose it is shows when each is done alone
                pass
            else:
                return
        for one in group:
            one.result, one.error = None, None
            try:
                one.result = self._do(one.work)
            except Exception as error:  # noqa: BLE001 - the caller's
                one.error = error


def _together(connection: "Connection", group: Sequence[_Waiting[Any]]) -> None:
    """Do all works in this transaction.

    Raises:
        SQLAlchemyError: The database failed, and not only a rule of it.
    """
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError

    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # else the first savepoint would be the transaction
    for one in group:
        savepoint = connection.begin_nested()
        try:
            one.result = one.work(connection)
        except Exception as error:
            if isinstance(error, SQLAlchemyError) and not isinstance(error, IntegrityError):
                raise
            savepoint.rollback()
            one.error = error
        else:
            savepoint.commit()


def _report(group: Sequence[_Waiting[Any]]) -> None:
    for one in group:
        if one.ended.done():  # nobody waits any more
            continue
        if one.error is not None:
            one.ended.set_exception(one.error)
        else:
            one.ended.set_result(one.result)
