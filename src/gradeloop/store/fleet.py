"""The workers that share a store: each registers its slots there, and learns those of the others."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from gradeloop.errors import StoreUnavailable
from gradeloop.store.tables import table

if TYPE_CHECKING:  # a worker without a store does not load SQLAlchemy
    from sqlalchemy import ColumnElement, Connection, FromClause

    from gradeloop.store.engine import Store

logger = logging.getLogger("gradeloop.fleet")

REFRESH_SECONDS = 2.0
"""Seconds between two registrations of a worker."""

LIVE_SECONDS = 6
"""Seconds for which a worker counts as live after a registration, and for which one that ends waits for its last one."""


class Fleet:
    """The live workers of a task queue that share a store, as one of them sees them; all times are the database's.

    Args:
        store: The store that they share; without one the worker shares with nobody.
        queue: The task queue.
        slots: The number of calls that this worker makes at once.
    """

    def __init__(self, store: "Store | None", queue: str, slots: int) -> None:
        self.worker_id = uuid4().hex
        """The worker's name in the store, drawn anew by each process."""
        self._store, self._queue, self._own = store, queue[:200], slots
        self._others, self._read = 0, -math.inf
        self._leaving = asyncio.Event()

    # The other workers count as they were at the last look, and only while that look is fresh; then this worker
    # counts only itself. A store that is away therefore makes batches slower, and never wider than the fleet
    # is.
    @property
    def slots(self) -> int:
        """The slots of all live workers of the queue, as read last; only this one's own where the store does not answer."""
        return self._own * (not self._leaving.is_set()) + (self._others if time.monotonic() - self._read < LIVE_SECONDS else 0)

    @asynccontextmanager
    async def registered(self) -> AsyncIterator[None]:
        """Keep the worker registered during the block; a store that is away hinders nothing."""
        registering = asyncio.create_task(self._register())
        try:
            yield
        finally:
            self.leave()
            await asyncio.wait([registering], timeout=LIVE_SECONDS)

    def leave(self) -> None:
        """Have the store told at once that the worker takes no further call: its slots no longer count, and its end is not a loss."""
        self._leaving.set()

    async def _register(self) -> None:
        left = False
        known: int | None = -1  # None: the store was away
        while self._store is not None and not left:
            left = self._leaving.is_set()
            try:
                others = await asyncio.to_thread(self._store.do_at_once, lambda connection: self._refresh(connection, left=left))  # noqa: B023 - awaited here
            except StoreUnavailable as error:
                if known is not None:
                    logger.warning("the worker is not registered in the store: %s", error)
                known = None
            else:
                if others != known:
                    logger.info("the workers of the queue %r have %d slots", self._queue, self._own + others)
                known, self._others, self._read = others, others, time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), REFRESH_SECONDS)

    def _refresh(self, connection: "Connection", *, left: bool) -> int:
        """Write this worker's row, and return the slots of all others, in one statement; the first time old rows are removed, too."""
        from sqlalchemy import func, select
        from sqlalchemy.dialects import postgresql, sqlite

        workers = table("workers")
        if self._read < 0:
            connection.execute(workers.delete().where(~seen_within(connection, workers, 24 * 3600)))
        other = workers.alias()
        live = (other.c.queue == self._queue, other.c.id != self.worker_id, is_live(connection, other))
        others = select(func.coalesce(func.sum(other.c.slots), 0)).where(*live).scalar_subquery()
        row = {"queue": self._queue, "slots": self._own, "seen": func.now(), "left": int(left)}
        mine = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(workers).values(id=self.worker_id, **row)
        return int(connection.execute(mine.on_conflict_do_update(index_elements=["id"], set_=row).returning(others)).scalar_one())


def is_live(connection: "Connection", workers: "FromClause") -> "ColumnElement[bool]":
    """Return the condition that a worker has registered lately and not left."""
    return (workers.c.left == 0) & seen_within(connection, workers, LIVE_SECONDS)


def seen_within(connection: "Connection", workers: "FromClause", seconds: int) -> "ColumnElement[bool]":
    """Return the condition that a worker has registered within so many seconds of the database's present time."""
    from sqlalchemy import func

    if connection.dialect.name == "sqlite":
        return workers.c.seen > func.datetime("now", f"-{seconds} seconds")
    return workers.c.seen > func.now() - timedelta(seconds=seconds)
