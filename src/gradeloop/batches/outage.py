"""What a command does while the store of a batch that it follows is away: it says so, and waits."""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gradeloop.errors import InvalidRequest, StoreLost, StoreRefused, StoreUnavailable
from gradeloop.text import clip, duration

TIMEOUT_VARIABLE = "GRADELOOP_STORE_TIMEOUT"

GIVE_UP_SECONDS = 600.0
"""How long a command waits for a store that is away: above a restart of its server, below the limit of a job of CI."""

PAUSE_SECONDS = 1.0
"""The pause between two tries."""

T = TypeVar("T")


def store_timeout() -> float:
    """Return for how many seconds a command waits for a store that is away.

    Raises:
        InvalidRequest: GRADELOOP_STORE_TIMEOUT is no number of seconds.
    """
    named = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    try:
        seconds = float(named or GIVE_UP_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"{TIMEOUT_VARIABLE} is {clip(named)}, which is no number of seconds; set it to 600, or unset it")
    return seconds


class StoreWatch:
    """Reads the store of a batch, which may be away for a while, and says so once for each time."""

    def __init__(self, batch_id: str, notify: Callable[[str], None]) -> None:
        self._batch_id = batch_id
        self._notify = notify
        self._problem: str | None = None
        self._timeout = store_timeout()

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return what a read of the store returns, tried again and again while the store is away.

        Raises:
            StoreLost: It was away for long.
        """
        since, noted = time.monotonic(), False
        while True:
            try:
                found = await read()
            except StoreRefused:
                raise
            except StoreUnavailable as error:
                if not noted:
                    self._notify(f"{error}; the batch {self._batch_id} goes on, waiting for the store")
                noted = True
                if time.monotonic() - since > self._timeout:
                    raise self.lost(error) from None
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                if noted:
                    self._notify("the store answers again")
                return found

    def lost(self, error: StoreUnavailable) -> StoreLost:
        """Return the error with which a command gives up."""
        waited = f"gave up after {duration(self._timeout)}"
        return StoreLost(f"{error}; {waited}, the batch goes on; follow it with: gradeloop eval --attach {self._batch_id}")

    def note_worker(self, problem: str | None) -> None:
        """Say what the batch's worker waits for, once for each problem; None where it waits for nothing."""
        if problem is not None and self._problem is None:
            self._notify(f"the batch waits, its worker cannot write: {problem}")
        if problem is None and self._problem is not None:
            self._notify("the worker can write again")
        self._problem = problem
