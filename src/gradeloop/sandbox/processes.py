"""Functions of our own that read foreign text, in processes that can be killed: nothing that they read stops or fills the worker.

A process serves one call at a time, and is kept for the next one. Run as a script, this module is such a process.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import importlib
import json
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

SECONDS = 60.0
"""The time limit of a call, where the caller gives none."""

MEMORY_BYTES = 1024 * 1024 * 1024
"""The address space of a process: many times what reading the largest text takes."""

CONCURRENCY = max(4, 2 * (os.cpu_count() or 1))
"""The most calls at once; further ones wait before their clock starts."""

KEPT = max(2, os.cpu_count() or 1)
"""The most processes that are kept without work."""

_HEADER = struct.Struct("=QQ")
"""The sizes of a message's two parts: JSON, and bytes."""

_READ_BYTES = 1024 * 1024


class FunctionFailed(RuntimeError):
    """A function in its own process raised an error other than ValueError."""


class FunctionStopped(ValueError):
    """A function in a process of its own did not return: what it was given took it too long, or too much memory."""


class CallCancelled(Exception):
    """The caller has given the call up."""


class _Process:
    """A process that serves one call after the other."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(  # noqa: S603 - this very file
            [sys.executable, "-I", "-B", "-W", "ignore", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it can serve a call."""
        return self._popen.poll() is None

    def ask(self, request: bytes, data: bytes, seconds: float) -> bytes:
        """Send a request with its data and return the answer.

        Raises:
            TimeoutError: It takes more than `seconds`.
            EOFError: The process has ended instead.
        """
        # Both parts of a message have their sizes in front, so that the end of an answer needs no mark that a
        # text could contain. The function itself reads foreign text and may never return, so every read has the
        # deadline; only the write has none, since the process reads a request before it calls anything.
        until = time.monotonic() + seconds
        source, sink = self._popen.stdout, self._popen.stdin
        if source is None or sink is None:
            raise EOFError
        try:
            sink.write(_HEADER.pack(len(request), len(data)) + request)
            sink.write(data)
            sink.flush()
        except OSError:
            raise EOFError from None
        size, _ = _HEADER.unpack(_receive(source.fileno(), _HEADER.size, until))
        return _receive(source.fileno(), size, until)

    def kill(self) -> None:
        """End the process, with all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and forget it."""
        self.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _receive(source: int, size: int, until: float) -> bytes:
    received = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while len(received) < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if selector.select(left):
                part = os.read(source, min(_READ_BYTES, size - len(received)))
                if not part:
                    raise EOFError
                received += part
    return bytes(received)


class _Call:
    """A call, which another thread may cancel at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Give the call up: its process is killed, if it has one already."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def run(self, request: Mapping[str, Any], data: bytes, seconds: float) -> dict[str, Any]:
        """Have a process serve the request, and return its answer.

        Raises:
            CallCancelled: The call was given up.
            TimeoutError: It takes more than `seconds`.
            EOFError: Its process has ended.
        """
        # A cancellation may come before there is a process, while it works, and after it has answered. The lock
        # joins `_process` and `_cancelled`, so that only a process that works on this call is killed. A process
        # whose answer was not read to the end is closed and never given back. Its next caller would read the
        # rest of this answer.
        with _slots:
            if self._cancelled:
                raise CallCancelled
            process = _take()
            with self._lock:
                self._process = process
            served = False
            try:
                if self._cancelled:
                    raise CallCancelled
                answer: dict[str, Any] = json.loads(process.ask(json.dumps(request).encode(), data, seconds))
                served = True
            finally:
                with self._lock:
                    self._process = None
                    served = served and not self._cancelled
                _give_back(process) if served else process.close()
            return answer


_slots = threading.BoundedSemaphore(CONCURRENCY)
_idle: list[_Process] = []
_idle_lock = threading.Lock()


def _take() -> _Process:
    with _idle_lock:
        process = _idle.pop() if _idle else None
    if process is not None and not process.alive:
        process.close()
        process = None
    return process or _Process()


def _give_back(process: _Process) -> None:
    with _idle_lock:
        if len(_idle) < KEPT:
            _idle.append(process)
            return
    process.close()


@atexit.register
def _close_all() -> None:
    with _idle_lock:
        while _idle:
            _idle.pop().close()


def call_in_process(function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float = SECONDS) -> Any:  # noqa: ANN401 - whatever it returns
    """Call a module's own function in another process and return its value; arguments and value are JSON.

    Raises:
        ValueError: The function has raised it.
        FunctionFailed: The function has raised another exception.
        FunctionStopped: It takes more than `seconds`, or too much memory, or its process has ended.
    """
    return _call(_Call(), function, arguments, b"", seconds)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def await_in_process(
    function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float = SECONDS, *, data: bytes = b""
) -> Any:  # noqa: ANN401 - whatever it returns
    """Await `call_in_process`; a call that is cancelled is killed, and a function that is given `data` has a parameter of that name."""
    call = _Call()
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CONCURRENCY)):
        run = functools.partial(_call, call, function, arguments, data, seconds)
        return await await_in_thread(run, f"process of {function.__name__}", call.cancel)


_NOT_FOR_THE_LOOP = (SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)


async def await_in_thread(function: Callable[[], Any], name: str, give_up: Callable[[], object] = lambda: None) -> Any:  # noqa: ANN401 - as above
    """Call a function in a thread and return its value; where the wait is cancelled, the thread goes on, since Python cannot end it."""
    # A thread of its own and not the loop's executor: a function that does not return would keep one of the
    # executor's few threads for ever, and the interpreter would wait for it at its end. A daemon thread holds
    # up neither.
    loop = asyncio.get_running_loop()
    returned: asyncio.Future[Any] = loop.create_future()

    def finish(value: Any, error: BaseException | None) -> None:  # noqa: ANN401 - whatever the function returns
        if not returned.done():
            returned.set_result(value) if error is None else returned.set_exception(error)

    def run() -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            value = function()
        except _NOT_FOR_THE_LOOP as left:
            failure = RuntimeError(repr(left))  # an exit or a cancellation would mean something else to the event loop
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, value, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await returned
    finally:
        if not returned.done() or returned.cancelled():
            give_up()


def _call(call: _Call, function: Callable[..., Any], arguments: Mapping[str, Any], data: bytes, seconds: float) -> Any:  # noqa: ANN401
    name = function.__name__
    root = Path(sys.modules[function.__module__].__file__ or "").parents[function.__module__.count(".")]
    request = {"root": str(root), "module": function.__module__, "function": name, "arguments": dict(arguments), "seconds": seconds}
    try:
        answer = call.run(request, data, seconds)
    except TimeoutError:
        raise FunctionStopped(f"{name} took more than {seconds:g} seconds") from None
    except EOFError:
        raise FunctionStopped(f"{name} ended with its process, as where it needs more than {MEMORY_BYTES} bytes of memory") from None
    if "stopped" in answer:
        raise FunctionStopped(answer["stopped"])
    if "refused" in answer:
        raise ValueError(answer["refused"])
    if "error" in answer:
        raise FunctionFailed(answer["error"])
    return answer["value"]


def _serve() -> None:
    """Serve calls from standard input until it ends."""
    # The channel moves to descriptors of its own, and standard output goes to standard error. Otherwise a
    # line that a library prints would be read as the head of an answer. The timer is for the case that the
    # worker is killed: nobody else would end a function that hangs.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is not an answer
    with contextlib.suppress(OSError, ValueError):  # macOS bounds no address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while header := source.read(_HEADER.size):
        size, more = _HEADER.unpack(header)
        request, data = json.loads(source.read(size)), source.read(more)
        if data:
            request["arguments"]["data"] = data
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 1)  # it ends the process where nobody is left to kill it
        answer, healthy = _answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            sink.write(_HEADER.pack(len(answer), 0) + answer)
            sink.flush()
        except BrokenPipeError:  # who asked has ended meanwhile
            os._exit(0)
        if not healthy:
            return


def _answer(request: dict[str, Any]) -> tuple[bytes, bool]:
    """Return the answer to a request, and whether this process can serve another one."""
    try:
        if request["root"] not in sys.path:
            sys.path.insert(0, request["root"])
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return json.dumps({"value": function(**request["arguments"])}).encode(), True
    except (MemoryError, RecursionError) as error:
        what = "memory" if isinstance(error, MemoryError) else "depth"
        return json.dumps({"stopped": f"{request['function']} needs more {what} than it may have"}).encode(), False
    except ValueError as error:
        return json.dumps({"refused": str(error)}).encode(), True
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode(), True


if __name__ == "__main__":
    _serve()
