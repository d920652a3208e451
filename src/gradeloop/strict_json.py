"""JSON as RFC 8259 has it, and nothing beside it: no doubled keys, no NaN, no half characters."""

import json
import math
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from gradeloop.printable import clip

DEPTH = 100
"""Of lists and objects in one another: readers of JSON give up at 200 and more, some of them for ever."""


def strict_json(text: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Read one JSON value that is the whole text.

    Raises:
        ValueError: It is none; RecursionError where it is nested too deeply.
    """
    return _whole(_DECODER.decode(text))


def leading_json(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value that begins at `start`, and return it and where it ends.

    Raises:
        ValueError: There is none; RecursionError where it is nested too deeply.
    """
    value, end = _DECODER.raw_decode(text, start)
    return _whole(value), end


def _whole(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a value that every reader takes: one that is nested deeply, or holds half a character, wedges whoever is sent it."""
    if depth(value) > DEPTH:
        raise ValueError(f"it is nested more than {DEPTH} deep")
    try:
        to_json(value)
    except (PydanticSerializationError, UnicodeEncodeError):
        raise ValueError("a text in it holds half of a surrogate pair") from None
    return value


def depth(value: object) -> int:
    """Return how deeply a value is nested, without descending on Python's own stack."""
    deepest, pending = 0, [(value, 1)]
    while pending:
        each, level = pending.pop()
        deepest = max(deepest, level)
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        pending += [(part, level + 1) for part in inner]
    return deepest


def no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; json's hook.

    Raises:
        ValueError: A key appears twice.
    """
    read: dict[str, Any] = {}
    for key, value in pairs:
        if key in read:
            raise ValueError(f"the key {clip(key)} appears twice")
        read[key] = value
    return read


def no_constant(name: str) -> Any:  # noqa: ANN401 - json's hook
    """Refuse NaN and Infinity; json's hook."""
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {clip(text)} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=no_doubles, parse_constant=no_constant, parse_float=_finite)
