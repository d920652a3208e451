"""Python's search for cyclic garbage in a worker, which leaves out what the worker has loaded."""

import contextlib
import gc
from collections.abc import Iterator, Mapping
from time import perf_counter

OLDEST = 2
"""The generation that a full search walks, with all younger ones."""

LONG = 0.02
"""Seconds from which a full search is long: a worker's own objects take less, a provider's SDK, loaded at its first call, takes more."""

TIMES = 8
"""How many times what a long search left is set aside at most; cycles in it would never be found."""


class LoadedObjects:
    """Sets aside what a process has loaded, so that no search for cyclic garbage walks it.

    A full search stops all that a worker does for as long as it takes to walk all objects: with the SDKs loaded 0.15 s, once in some
    200 calls. What is set aside is freed as ever once nothing refers to it.

    Args:
        long: Seconds from which a full search is followed by setting aside what it left.
    """

    def __init__(self, long: float = LONG) -> None:
        self._long = long
        self._left = TIMES
        self._began = 0.0

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Set aside all objects that there are, and what is loaded later after a search that took long; give them back at the end."""
        gc.freeze()  # without a search, which would take a tenth of the worker's start
        gc.callbacks.append(self._searched)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(self._searched)
            gc.unfreeze()

    def _searched(self, phase: str, found: Mapping[str, int]) -> None:
        if found["generation"] != OLDEST:
            return
        if phase == "start":
            self._began = perf_counter()
        elif perf_counter() - self._began >= self._long:
            gc.freeze()
            self._left -= 1
            if not self._left:
                gc.callbacks.remove(self._searched)
