"""The sandbox for snippets: pydantic-monty, a Python subset in a process of its own.

It uses neither `exec()` nor a bare subprocess. Its limits are computing time, sleep, memory, depth and output, with a watchdog
around them all. The process that speaks with it is not the worker's either: a snippet's value may be far larger than the snippet's memory.
"""

import atexit
import builtins
import functools
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from gradeloop.sandbox.execution import ERROR_CHARACTERS, MIB, Execution, ExecutionStatus, Limits, SandboxError, counted
from gradeloop.sandbox.processes import FunctionFailed, FunctionStopped, call_in_process
from gradeloop.text import shortened

if TYPE_CHECKING:
    import pydantic_monty


WATCHDOG_SECONDS = 20.0
"""The time after which a silent sandbox is killed, above every limit of a snippet."""

MEMORY_BYTES = 128 * MIB
"""The memory of a snippet; its interpreter needs none of it for itself."""

VALUE_SECONDS = 5.0
"""The time for a snippet's value, beside its computing time and its sleep."""

VALUE_BYTES = MIB
"""The largest value, as JSON, that is returned; of a larger one its beginning is."""

_LIMITS = ("TimeoutError", "MemoryError", "RecursionError")
_UNSUPPORTED = {
    "NotImplementedError": re.compile(r"The monty (?P<name>\w+)"),
    "ModuleNotFoundError": re.compile(r"No module named '(?P<module>\w+)"),
    "ImportError": re.compile(r"cannot import name '\w+' from '(?P<module>\w+)"),
    "AttributeError": re.compile(r"module '(?P<module>\w+)' has no attribute"),
    "NameError": re.compile(r"name '(?P<builtin>\w+)' is not defined"),
    "RuntimeError": re.compile(r"'[\w.]+' is not supported in this environment"),
}
"""The messages for what the sandbox lacks of Python, by exception."""


class Monty:
    """A sandbox for snippets, without files, network and processes, since nothing in it leads there."""

    name: Literal["monty"] = "monty"

    def run(self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        """Run a snippet as `Sandbox.run` says; it may use at most 10 seconds, and no more asleep."""
        if not isinstance(program, str) or files:
            raise SandboxError("monty runs only Python snippets, without files")
        limits = limits or Limits(memory_bytes=MEMORY_BYTES)
        try:
            # The limits inside are the interpreter's own. The time around them is for what they do not bound:
            # computing and sleep may follow each other, and the value is turned into JSON by our own code.
            ended = call_in_process(run_snippet, {"code": program, "limits": asdict(limits)}, 2 * _seconds(limits) + VALUE_SECONDS)
        except FunctionStopped:
            return counted(Execution("limit", error="the sandbox was stopped: the snippet's value takes too much time or memory"))
        except (FunctionFailed, ValueError) as error:
            raise SandboxError(str(error)[:ERROR_CHARACTERS]) from None
        return counted(Execution(**ended))


@functools.cache
def _pool() -> "pydantic_monty.Monty":
    import pydantic_monty

    pool = pydantic_monty.Monty(request_timeout=WATCHDOG_SECONDS, max_processes=1, checkout_timeout=60.0)
    pool.__enter__()  # lives as long as the process
    atexit.register(pool.__exit__, None, None, None)
    return pool


def _seconds(limits: Limits) -> float:
    return min(limits.seconds, WATCHDOG_SECONDS / 2)


def run_snippet(code: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Run a snippet in this process's own monty and return its `Execution` as a dict; raise SandboxError where the sandbox failed."""
    import pydantic_monty

    given = Limits(**limits)
    printed = pydantic_monty.CollectString(max_bytes=given.output_bytes)
    seconds = _seconds(given)
    bounds: pydantic_monty.ResourceLimits = {
        "max_feed_duration_secs": seconds,
        "max_memory": min(given.memory_bytes, MEMORY_BYTES),
        "max_recursion_depth": 500,
        "max_total_sleep_secs": seconds,
        "max_suspensions": 1000,
    }
    pool = _pool()
    started = time.monotonic()
    try:
        with pool.checkout(limits=bounds) as box:
            started = time.monotonic()
            value = _plain(box.feed_run(code, print_callback=printed))
    except pydantic_monty.MontyCrashedError as error:
        ended = Execution("limit", error=f"the sandbox was stopped: {error}"[:ERROR_CHARACTERS])
    except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
        kind, message = type(error.exception()).__name__, error.display("msg")
        status: ExecutionStatus = "limit" if kind in _LIMITS else "unsupported" if _is_lacking(kind, message) else "raised"
        ended = Execution(status, error=f"{kind}: {message}"[:ERROR_CHARACTERS])
    except (MemoryError, RecursionError) as error:
        ended = Execution("limit", error=f"{type(error).__name__}: its value is too large or too deep")
    except (pydantic_monty.MontyError, TimeoutError) as error:
        raise SandboxError(f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]) from None
    else:
        ended = Execution("ok", value=value)
    wall = int((time.monotonic() - started) * 1000)
    shown = printed.output
    full = len(shown.encode(errors="replace")) >= given.output_bytes
    return asdict(Execution(ended.status, shown, "", wall, full, "monty", ended.error, None, ended.value))


def _is_lacking(kind: str, message: str) -> bool:
    """Tell whether CPython has what the sandbox lacks: a construct, a standard module, a builtin."""
    match = _UNSUPPORTED[kind].match(message) if kind in _UNSUPPORTED else None
    if match is None:
        return False
    names = match.groupdict()
    if "module" in names:
        return names["module"] in sys.stdlib_module_names
    return "builtin" not in names or hasattr(builtins, names["builtin"])


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever the snippet's last expression is
    """Return the value as JSON-like data, or as text where it is none or too large."""
    try:
        written = json.dumps(value)
        return json.loads(written) if len(written) <= VALUE_BYTES else shortened(written, ERROR_CHARACTERS)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)[:ERROR_CHARACTERS]
    except (ValueError, RecursionError) as error:  # a number of too many digits, a list of lists without end
        return f"a {type(value).__name__} that cannot be shown: {error}"
