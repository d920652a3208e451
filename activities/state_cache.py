"""A cache of what calls refer to, bounded by bytes; the threads, runs and cases of a worker process are each kept in one."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteBoundedCache(Generic[Key, Value]):
    """Values by key; the least used are dropped where all together are too large or too many, but never the one used last."""

    def __init__(self, most_bytes: int, most: int | None = None, *, in_use: Callable[[Value], bool] = lambda _: False) -> None:
        """Create an empty cache.

        Args:
            most_bytes: The bytes of all values together, as `put` was given them.
            most: The number of values; by default any.
            in_use: Tells of a value that it must not be dropped now.
        """
        self._most_bytes = most_bytes
        self._most = most
        self._in_use = in_use
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Value | None:
        """Return a value, which counts as used now; None where there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Key, value: Value, size: int = 0) -> None:
        """Keep a value of so many bytes in place of an earlier one, and drop the least used."""
        self.drop(key)
        self._entries[key] = (value, size)
        self._bytes += size
        if self._fits():
            return
        for oldest in list(self._entries)[:-1]:
            if not self._in_use(self._entries[oldest][0]):
                self.drop(oldest)
            if self._fits():
                return

    def drop(self, key: Key) -> None:
        """Forget a value, if it is there."""
        if key in self._entries:
            self._bytes -= self._entries.pop(key)[1]

    def _fits(self) -> bool:
        return self._bytes <= self._most_bytes and (self._most is None or len(self._entries) <= self._most)
