"""Python's search for cyclic garbage in a worker, which leaves out what the worker has loaded."""

import gc
from collections.abc import Mapping

OLDEST = 2
"""The generation that a full search walks, with all younger ones."""

SEARCHES = 3
"""After how many full searches what they left is set aside: the providers' SDKs are loaded at the first call, after the worker is ready."""


class LoadedObjects:
    """Sets aside what a process has loaded, so that no search for cyclic garbage walks it.

    A full search stops all that a worker does for as long as it takes to walk all objects: with the SDKs loaded 0.15 s, once in some
    200 calls. What is set aside is freed as ever once nothing refers to it; only cycles in it are not found any more, and so it ends
    after the first `SEARCHES` full ones.
    """

    def __init__(self) -> None:
        self._left = SEARCHES

    def set_aside(self) -> None:
        """Set aside all objects that there are, and what is there after each of the next full searches."""
        gc.freeze()  # without a search, which would take a tenth of the worker's start
        gc.callbacks.append(self._searched)

    def _searched(self, phase: str, found: Mapping[str, int]) -> None:
        if phase != "stop" or found["generation"] != OLDEST:
            return
        gc.freeze()
        self._left -= 1
        if not self._left:
            gc.callbacks.remove(self._searched)
