"""Long lists, a page at a time."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from pydantic_core import to_json

from gradeloop.strict import Strict

PAGE_BYTES = 1024 * 1024
"""Half of what one Temporal payload may have."""

Item = TypeVar("Item")


class Page(Strict, Generic[Item]):
    """A stretch of a list: `items` from `after` on, at most 1 MiB of them."""

    items: tuple[Item, ...]
    next: int | None
    """What to pass as `after` for the next page; None at the end."""
    total: int
    first: int = 0
    """Where the list still begins; earlier items were dropped."""


def page_of(items: Sequence[Any], after: int, limit: int, *, first: int = 0) -> dict[str, Any]:
    """Return the page of `items`, whose positions start at `first`, from position `after`."""
    start = min(max(after - first, 0), len(items))
    taken: list[Any] = []
    size = 0
    for item in items[start : start + max(1, min(limit, 1000))]:
        size += len(to_json(item))
        if taken and size > PAGE_BYTES:
            break
        taken.append(item)
    stop = start + len(taken)
    return {"items": taken, "next": first + stop if stop < len(items) else None, "total": first + len(items), "first": first}
