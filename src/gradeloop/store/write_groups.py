"""Transactions in groups: what comes while one commits is committed together next."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gradeloop.errors import StoreRefused, StoreUnavailable

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
    once its transaction is committed. Where one fails, the transaction is taken back and all are done anew: those before it together, it
    alone, those after it together; a savepoint for each would cost more than the works themselves. Where the transaction fails as a
    whole, each is tried alone. So a work may be done more than once, and must leave nothing behind besides its rows.

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
        """Do works, together as far as they can be."""
        while len(group) > 1:
            done: list[_Waiting[Any]] = []
            try:
                self._do(lambda connection: _together(connection, group, done))  # noqa: B023 - done before the next turn
            except Exception as error:  # noqa: BLE001 - whose it is shows when each is done alone
                if (isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)) or len(done) == len(group):
                    break
                self._write(done)
                self._write_alone(group[len(done)])
                group = group[len(done) + 1 :]
            else:
                return
        for one in group:
            self._write_alone(one)

    def _write_alone(self, one: _Waiting[Any]) -> None:
        one.result, one.error = None, None
        try:
            one.result = self._do(one.work)
        except Exception as error:  # noqa: BLE001 - the caller's
            one.error = error


def _together(connection: "Connection", group: Sequence[_Waiting[Any]], done: list[_Waiting[Any]]) -> None:
    """Do all works in this transaction, and add each to `done` that did not fail."""
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
