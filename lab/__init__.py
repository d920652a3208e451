"""Side by side with what a user would write instead."""

import os
import signal
import sys
import threading
from types import TracebackType


def _end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say nothing of Ctrl-C, which ended the servers and workers of a benchmark as an error would."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _end_as_ctrl_c_does() -> None:
    """Let SIGTERM end a benchmark as Ctrl-C does, also where a shell ignores that, so that none of its servers and workers stays."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    sys.excepthook = _end_quietly


_IS_ONE = any(word.startswith("lab.") for word in sys.orig_argv[1:3])
"""Whether this process is a benchmark, `python -m lab.NAME`; its tests import them, too."""

if _IS_ONE and threading.current_thread() is threading.main_thread():
    _end_as_ctrl_c_does()
