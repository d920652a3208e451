"""How fast a batch goes, and when it will be done."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

WINDOW_SECONDS = 60.0
"""What the pace is taken from: the last minute, so that it follows a provider that slows down."""

LEAST_CASES = 5
"""The pace is taken from so many cases at least, however long ago they ended."""

LEAST_SECONDS = 3.0
"""Before that nobody knows."""


class _Sample(NamedTuple):
    when: float
    done: int


class Pace:
    """The cases that ended lately, by a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[_Sample] = deque()

    def observe(self, done: int, *, moving: bool) -> None:
        """Take note of how many cases have ended; where nothing moves, or cases are run again, the pace begins anew."""
        now = self._clock()
        if not moving or (self._samples and done < self._samples[-1].done):
            self._samples.clear()
        if moving and (not self._samples or done > self._samples[-1].done):
            self._samples.append(_Sample(now, done))
        while len(self._samples) > 1 and self._has_enough_without_first(now):
            self._samples.popleft()

    def seconds_left(self, cases: int) -> float | None:
        """Return how long that many more cases take; None where that is not known yet."""
        if len(self._samples) < 2:  # noqa: PLR2004 - two make a distance
            return None
        first, last = self._samples[0], self._samples[-1]
        elapsed, ended = self._clock() - first.when, last.done - first.done
        return None if elapsed < LEAST_SECONDS or ended < LEAST_CASES else cases * elapsed / ended

    def _has_enough_without_first(self, now: float) -> bool:
        second = self._samples[1]
        return now - second.when >= WINDOW_SECONDS and self._samples[-1].done - second.done >= LEAST_CASES


def span(seconds: float) -> str:
    """Return a time as h:mm:ss, or m:ss below an hour."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours:,}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
