"""Code that a model wrote, run where it can hurt nothing: pydantic-monty, a Python subset in a process of its own.

Never `exec()`, never a bare subprocess. Limits as measured to hold: time of its own, sleep, memory, depth, output, and a
watchdog around them all.
"""

import atexit
import builtins
import functools
import json
import re
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pydantic_monty

SECONDS = 5.0
MEMORY_BYTES = 128 * 1024 * 1024
PRINTED_BYTES = 64 * 1024
ERROR_CHARACTERS = 2_000
"""An exception's text comes back whole otherwise, 10 MB of it."""

PROCESSES = 4
"""Sandboxes at once in one worker process; further snippets wait for a free one."""

Status = Literal["ok", "raised", "limit", "unsupported"]

_LIMITS = ("TimeoutError", "MemoryError", "RecursionError")
_UNSUPPORTED = {
    "NotImplementedError": re.compile(r"The monty (?P<name>\w+)"),
    "ModuleNotFoundError": re.compile(r"No module named '(?P<module>\w+)"),
    "ImportError": re.compile(r"cannot import name '\w+' from '(?P<module>\w+)"),
    "AttributeError": re.compile(r"module '(?P<module>\w+)' has no attribute"),
    "NameError": re.compile(r"name '(?P<builtin>\w+)' is not defined"),
    "RuntimeError": re.compile(r"'[\w.]+' is not supported in this environment"),
}
"""How the sandbox words what it lacks of Python, by exception."""


@dataclass(frozen=True)
class Outcome:
    """How a snippet ended."""

    status: Status
    """`raised`: the code's own exception. `limit`: stopped by time, memory, depth or output. `unsupported`: valid Python, perhaps,
    that this sandbox cannot run: no word on the code."""
    value: Any = None
    """The value of the last expression, as JSON-like data."""
    printed: str = ""
    error: str = ""
    """Type and message of what stopped it, first 2,000 characters."""


class SandboxError(Exception):
    """The sandbox itself failed: no word on the code."""


_pool_lock = threading.Lock()


@functools.cache
def _pool() -> "pydantic_monty.Monty":
    import pydantic_monty

    pool = pydantic_monty.Monty(request_timeout=SECONDS * 4, max_processes=PROCESSES, checkout_timeout=60.0)
    pool.__enter__()  # lives as long as the worker process
    atexit.register(pool.__exit__, None, None, None)
    return pool


def run(code: str, *, seconds: float = SECONDS) -> Outcome:
    """Run a snippet and return its end; at most `seconds` of its own time, and no more asleep.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    import pydantic_monty

    printed = pydantic_monty.CollectString(max_bytes=PRINTED_BYTES)
    limits: pydantic_monty.ResourceLimits = {
        "max_feed_duration_secs": seconds,
        "max_memory": MEMORY_BYTES,
        "max_recursion_depth": 500,
        "max_total_sleep_secs": seconds,
        "max_suspensions": 1000,
    }
    with _pool_lock:
        pool = _pool()
    try:
        with pool.checkout(limits=limits) as box:
            value = box.feed_run(code, print_callback=printed)
    except pydantic_monty.MontyCrashedError as error:
        return Outcome("limit", printed=printed.output, error=f"the sandbox was stopped: {error}"[:ERROR_CHARACTERS])
    except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
        return _stopped(error, printed.output)
    except (pydantic_monty.MontyError, TimeoutError) as error:
        raise SandboxError(f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]) from None
    return Outcome("ok", value=_plain(value), printed=printed.output)


def _stopped(error: "pydantic_monty.MontyRuntimeError | pydantic_monty.MontySyntaxError", printed: str) -> Outcome:
    kind, message = type(error.exception()).__name__, error.display("msg")
    status: Status = "limit" if kind in _LIMITS else "unsupported" if _is_lacking(kind, message) else "raised"
    return Outcome(status, printed=printed, error=f"{kind}: {message}"[:ERROR_CHARACTERS])


def _is_lacking(kind: str, message: str) -> bool:
    """True where CPython would have what the sandbox does not: a construct, a standard module, a builtin."""
    found = _UNSUPPORTED[kind].match(message) if kind in _UNSUPPORTED else None
    if found is None:
        return False
    names = found.groupdict()
    if "module" in names:
        return names["module"] in sys.stdlib_module_names
    return "builtin" not in names or hasattr(builtins, names["builtin"])


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever the snippet's last expression is
    """Return the value as JSON-like data, by its repr where it is none."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)[:ERROR_CHARACTERS]
