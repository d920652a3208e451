"""How a command ends: its exit code, and its last words."""

import os
import sys
from contextlib import suppress
from typing import NoReturn

SATISFIED, CAPPED, BAD_INPUT, NO_VERDICT, UNREACHABLE, STOPPED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141
"""Exit codes of commands that wait for a run."""


def code_of_error(error: Exception) -> int:
    """Return the exit code of what a command raised."""
    from gradeloop.errors import BatchLost, ServerUnreachable, ThreadClosed

    lost = isinstance(error, ThreadClosed | BatchLost)
    return UNREACHABLE if isinstance(error, ServerUnreachable) else NO_VERDICT if lost else BAD_INPUT


def fail(sentence: str, code: int) -> NoReturn:
    """Say what went wrong on stderr, and leave."""
    from gradeloop.printable import printable

    with suppress(OSError):
        print(f"gradeloop: {printable(sentence)}", file=sys.stderr)  # noqa: T201 - the command's last words
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process at once: in Python's own tidying, Temporal's threads crash one process in ten that saw a call fail."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
