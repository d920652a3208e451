"""One thread with an event loop, and an async client's methods as plain ones that wait for it."""

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar, get_origin

from gradeloop.errors import InvalidRequest

Result = TypeVar("Result")

_END = object()

OWN = {"connect", "close", "temporal"}
"""The names that are not made from the async client's: each client has its own."""


class LoopThread:
    """A thread with an event loop, which any other thread may give work to, many of them at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gradeloop-client", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[Result]) -> Result:
        """Wait for work that the loop does; an exception in the waiting thread, such as Ctrl-C, cancels it, and waits for its end.

        Raises:
            InvalidRequest: The loop is another process's, was stopped, or itself makes this call.
        """
        ended = threading.Event()
        future = self.submit(work, ended.set)
        try:
            return future.result()
        except CancelledError:
            raise InvalidRequest("this client was closed while a call was in flight; its thread continues") from None
        except BaseException:
            if future.cancel():
                ended.wait(5)  # seconds for its end: what it holds shall not outlive a program that Ctrl-C ends
            raise

    def submit(self, work: Awaitable[Result], ended: Callable[[], object] = bool) -> "Future[Result]":
        """Give work to the loop, and return its future; `ended` is called once the work has ended.

        Raises:
            InvalidRequest: The loop is another process's, was stopped, or itself makes this call.
        """
        problem = self._problem()
        if problem:
            if inspect.iscoroutine(work):
                work.close()
            raise InvalidRequest(problem)

        async def wait() -> Result:
            try:
                return await work
            finally:
                ended()

        return asyncio.run_coroutine_threadsafe(wait(), self._loop)

    def stop(self) -> None:
        """End the thread."""
        if self._loop.is_closed() or self._process != os.getpid():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _problem(self) -> str | None:
        """Return why work cannot be done here; None where it can."""
        if self._process != os.getpid():
            return "this client was connected before its process forked; connect one in each process, after the fork"
        if self._loop.is_closed():
            return "this client is closed; connect another one with SyncGradingClient.connect()"
        if threading.current_thread() is self._thread:
            return "a callback of this client calls the client itself, and would wait for ever; call it from a thread of your own"
        return None


def plain_method(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async client's method as one that waits, or that iterates where the method does.

    Args:
        name: The method's name.
        method: The method; the object that has the plain one has the client as `_client` and the loop as `_loop`.
    """

    @functools.wraps(method)
    def wait(self: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any method
        return self._loop.run(getattr(self._client, name)(*arguments, **options))

    @functools.wraps(method)
    def iterate(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - of any method
        items = getattr(self._client, name)(*arguments, **options)
        try:
            while (item := self._loop.run(anext(items, _END))) is not _END:
                yield item
        finally:
            if inspect.isasyncgen(items):
                self._loop.run(items.aclose())

    return iterate if is_iterator(method) else wait


def is_iterator(method: Callable[..., Any]) -> bool:
    """Return whether a method yields what it has one by one."""
    return inspect.isasyncgenfunction(method) or get_origin(inspect.signature(method).return_annotation) in {AsyncIterator, AsyncGenerator}
