"""The paces of all workers of a PostgreSQL store: a row for each model, which one transaction at a time changes."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from activities.calls.limiter import LocalPaces
from activities.calls.pace import Pace
from gradeloop.errors import StoreUnavailable

if TYPE_CHECKING:  # a worker without a store does not load SQLAlchemy
    from sqlalchemy import Connection

    from gradeloop.store.engine import Store

logger = logging.getLogger("gradeloop.limits")

FRESH_SECONDS = 1.0
"""Seconds for which a pace counts as known: as long as no worker was refused, and nobody set a ceiling, calls do not wait for the store."""

T = TypeVar("T")


class SharedPaces:
    """Keeps paces in a store; while it is away, in the worker alone."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._local = LocalPaces()
        self._known: dict[str, tuple[float, Pace]] = {}
        self._away = False

    async def change(self, key: str, change: Callable[[Pace], tuple[Pace, T]]) -> tuple[Pace, T]:
        """Change a pace, alone among all workers, and return it with what the change returns."""
        read, known = self._known.get(key, (0.0, None))
        if known is not None and time.monotonic() - read < FRESH_SECONDS:
            pace, result = change(known)
            if pace.next_at == known.next_at and pace.rate is None and pace.in_row == 0:  # nothing that others must know
                self._known[key] = (read, pace)
                return pace, result
        try:
            pace, result = await self._store.write(lambda connection: _change(connection, key, change))
        except StoreUnavailable as error:
            if not self._away:
                logger.warning("the pace of calls is not shared with other workers: %s", error)
            self._away = True
            return await self._local.change(key, change)
        self._away = False
        self._known[key] = (time.monotonic(), pace)
        return pace, result


def _change(connection: "Connection", key: str, change: Callable[[Pace], tuple[Pace, T]]) -> tuple[Pace, T]:
    """Change a model's row, whose lock is taken first, so that its turns follow one after the other."""
    from sqlalchemy.dialects import postgresql

    from gradeloop.store.tables import table

    paces = table("call_paces")
    named = key[:700]
    take = paces.update().where(paces.c.model == named).values(turns=paces.c.turns + 1).returning(paces.c.pace)
    found = connection.execute(take).scalar()
    if found is None:
        new = postgresql.insert(paces).values(model=named, turns=0, pace=Pace().model_dump_json()).on_conflict_do_nothing()
        connection.execute(new)
        found = connection.execute(take).scalar_one()
    pace, result = change(Pace.model_validate_json(found))
    connection.execute(paces.update().where(paces.c.model == named).values(pace=pace.model_dump_json()))
    return pace, result
