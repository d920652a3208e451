"""The exit codes of the command line, and the two ways to exit."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

SATISFIED, CAPPED, BAD_INPUT, NO_VERDICT, UNREACHABLE, INTERNAL, STOPPED, BROKEN_PIPE = 0, 1, 2, 3, 4, 70, 130, 141
"""The exit codes of all commands; `CODES` has their meanings by command. 70 is EX_SOFTWARE of sysexits.h: 1, Python's own, means a gate."""

_INTERNAL = {INTERNAL: "an internal error of gradeloop, with what to report"}
_ALL = _INTERNAL | {
    BAD_INPUT: "usage, bad input, or a store that cannot be used",
    UNREACHABLE: "no Temporal server answers, or no worker starts",
    STOPPED: "Ctrl-C",
    BROKEN_PIPE: "output pipe closed",
}
_RUN = {
    SATISFIED: "satisfied, or nothing was graded",
    CAPPED: "max_iterations_reached",
    NO_VERDICT: "failed, grader_error, interrupted or waiting, or the thread was closed",
}
CODES: dict[str, dict[int, str]] = {
    "run": _ALL | _RUN | {SATISFIED: "satisfied, or nothing was graded; also with --detach"},
    "demo": _ALL | _RUN,
    "fork": _ALL | _RUN,
    "resume": _ALL | _RUN,
    "watch": _ALL | _RUN,
    "eval": _ALL
    | {
        SATISFIED: "at least the pass rate of the judged cases passed; also with --detach",
        CAPPED: "fewer passed",
        NO_VERDICT: "inconclusive: errors, a paused batch, waiting or unsure cases, nothing judged, or the store went away",
        STOPPED: "Ctrl-C; the batch continues",
    },
    "judge": _ALL
    | {
        SATISFIED: "every run was judged",
        CAPPED: "fewer passed than --pass-rate",
        NO_VERDICT: "more judgements failed than --allow-errors allows, or runs were left out without --max-bad; nothing was judged; or "
        "--gate corrected is inconclusive",
        STOPPED: "Ctrl-C; the judgements in flight continue",
    },
    "agreement": _ALL
    | {
        SATISFIED: "measured",
        NO_VERDICT: "the judge answered for none of the labelled runs",
    },
    "check-judge": _ALL
    | {
        SATISFIED: "measured, and no figure is below its --fail-under",
        CAPPED: "a figure is below its --fail-under",
        NO_VERDICT: "the judge answered nothing, or a figure of --fail-under is undefined",
        STOPPED: "Ctrl-C; the judgements in flight continue",
    },
    "backtest": _ALL
    | {SATISFIED: "every draft has a verdict", NO_VERDICT: "one has none", STOPPED: "Ctrl-C; the judgements in flight continue"},
    "diff": _ALL
    | {
        SATISFIED: "compared, and no --fail-on gate failed",
        CAPPED: "a --fail-on gate failed",
        NO_VERDICT: "no case has a verdict in both batches, so no gate could decide",
    },
    "forget": _ALL | {SATISFIED: "removed, or shown with --preview", CAPPED: "something is known to remain; the output says what"},
    "doctor": _INTERNAL | {SATISFIED: "everything works", CAPPED: "something does not work", BAD_INPUT: "usage"},
    "worker": _INTERNAL
    | {
        SATISFIED: "stopped, or idle for as long as --until-idle says",
        BAD_INPUT: "a setting or a file is wrong",
        NO_VERDICT: "the worker cannot serve",
        UNREACHABLE: "no Temporal server answers",
    },
    "": _ALL | {SATISFIED: "done", NO_VERDICT: "the thread or batch was closed, or --skip-bad left out runs"},
}
"""The exit codes of commands with their meanings; the empty name is for all other commands."""


def code_of_error(error: Exception) -> int:
    """Return the exit code of an error that a command raised."""
    from gradeloop.errors import BatchLost, ServerUnreachable, StoreLost, ThreadClosed, WorkerFailed

    lost = isinstance(error, ThreadClosed | BatchLost | StoreLost)
    return UNREACHABLE if isinstance(error, ServerUnreachable | WorkerFailed) else NO_VERDICT if lost else BAD_INPUT


def fail(message: str, code: int) -> NoReturn:
    """Print an error on stderr, and exit."""
    from gradeloop.text import printable

    with suppress(OSError):
        print(f"gradeloop: {printable(message)}", file=sys.stderr)  # noqa: T201 - the command's last line
    leave(code)


_last_acts: list[Callable[[], None]] = []


def before_leaving(act: Callable[[], None]) -> None:
    """Have something done before the process exits by `leave`."""
    _last_acts.append(act)


def leave(code: int) -> NoReturn:
    """Exit at once: in Python's own shutdown, Temporal's threads crash one in ten processes in which a call failed."""
    for act in _last_acts:
        act()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
