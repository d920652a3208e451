"""What was paid for is written down, even where the store is away for a while."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gradeloop.errors import StoreUnavailable

PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between tries: half a minute in all, before the call is given up and its activity tried again."""

T = TypeVar("T")


async def insist(write: Callable[[], Awaitable[T]]) -> T:
    """Do a write, again and again where the store cannot be had.

    Raises:
        StoreUnavailable: It was away for half a minute.
    """
    for seconds in PAUSES:
        try:
            return await write()
        except StoreUnavailable:
            await asyncio.sleep(seconds)
    return await write()
