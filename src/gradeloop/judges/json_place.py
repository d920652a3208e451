"""Where in a JSON text a value stands, so that a mistake is told with its line."""

import json
import re
from collections.abc import Sequence

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def line_of(text: str, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of the value at a path of keys and indexes; of the last one on the way where the path leads nowhere."""
    at = _skip(text, 0)
    for part in path:
        found = _item(text, at, part) if isinstance(part, int) else _member(text, at, part)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _after(text: str, at: int) -> int:
    """Return where the value that begins at `at` ends, and what is blank behind it."""
    return _skip(text, _DECODER.raw_decode(text, at)[1])


def _item(text: str, at: int, index: int) -> int | None:
    if text[at : at + 1] != "[":
        return None
    at = _skip(text, at + 1)
    for _ in range(index):
        at = _after(text, at)
        if text[at : at + 1] != ",":
            return None
        at = _skip(text, at + 1)
    return at if text[at : at + 1] != "]" else None


def _member(text: str, at: int, key: str) -> int | None:
    if text[at : at + 1] != "{":
        return None
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        name, end = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, end) + 1)
        if name == key:
            return value
        at = _after(text, value)
        if text[at : at + 1] != ",":
            return None
        at = _skip(text, at + 1)
    return None
