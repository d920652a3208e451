"""A plain function beside the event loop: each call in a thread of its own, so that one which never returns holds nobody up."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

_NOT_FOR_THE_LOOP = (SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)


AT_ONCE = 32
"""Calls in threads at once; one that is given up counts no more, though its thread goes on."""

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def in_a_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
    """Call the function and return its value. Given up, it goes on behind our back: Python cannot end a thread."""
    loop = asyncio.get_running_loop()
    async with _slots.setdefault(loop, asyncio.Semaphore(AT_ONCE)):
        return await _started(loop, function, values)


async def _started(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401
    told: asyncio.Future[Any] = loop.create_future()

    def finish(value: Any, error: BaseException | None) -> None:  # noqa: ANN401 - whatever the function returns
        if not told.done():
            told.set_result(value) if error is None else told.set_exception(error)

    def call() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = function(**values)
        except _NOT_FOR_THE_LOOP as left:
            error = RuntimeError(repr(left))  # an exit or a cancellation would mean something else to the event loop
        except BaseException as raised:  # noqa: BLE001 - it is told where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, value, error)

    threading.Thread(target=call, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    return await told
