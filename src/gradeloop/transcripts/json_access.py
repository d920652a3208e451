"""Access to JSON that others wrote: values taken with care, and errors with the way to the value that is wrong."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.errors import explain
from gradeloop.text import acceptable, clip, encodable

Json = Any
"""JSON of any shape, as others wrote it."""

ODD_SHAPES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that a value of another shape than expected may raise; the loop over such values goes on with the next."""


class UnreadableMessage(ValueError):
    """A message or run cannot be read; the path leads to the value that is wrong."""

    def __init__(self, why: str, *path: int | str) -> None:
        super().__init__(why)
        self.path = path


@contextmanager
def inside(*path: int | str) -> Iterator[None]:
    """Put a path before that of whatever cannot be read inside the block."""
    try:
        yield
    except UnreadableMessage as error:
        raise UnreadableMessage(str(error), *path, *error.path) from None
    except ValidationError as error:
        raise UnreadableMessage(explain(error), *path) from None


def object_at(value: dict[str, Json], key: str) -> dict[str, JsonValue]:
    """Return the object at a key; empty where there is none. Raise UnreadableMessage where there is something else."""
    inner = value.get(key)
    if inner is not None and not isinstance(inner, dict):
        raise UnreadableMessage(f"{key} is {clip(str(inner))}; write an object", key)
    return inner or {}


def list_at(value: dict[str, Json], key: str) -> list[Json]:
    """Return the list at a key; empty where there is none. Raise UnreadableMessage where there is something else."""
    inner = value.get(key)
    if inner is not None and not isinstance(inner, list):
        raise UnreadableMessage(f"{key} is {clip(str(inner))}; write a list", key)
    return inner or []


def dict_of(value: Json) -> dict[str, Json]:
    """Return the value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def require_rows(value: Json, *path: int | str) -> list[dict[str, Json]]:
    """Return the objects of a list; none where there is nothing. Raise UnreadableMessage for anything else."""
    if value in (None, "", {}):
        return []
    if not isinstance(value, list):
        raise UnreadableMessage(f"{clip(str(value))} is not a list of objects; write one", *path)
    if (at := next((at for at, item in enumerate(value) if not isinstance(item, dict)), None)) is not None:
        raise UnreadableMessage(f"{clip(str(value[at]))} is not an object; leave it out, or write what it stands for as one", *path, at)
    return value


def flag_at(value: dict[str, Json], *keys: str) -> bool:
    """Return the truth value of the first key with something; False without one. Raise UnreadableMessage for anything else."""
    for key in keys:
        found = value.get(key)
        if found not in (None, ""):
            if not isinstance(found, bool):
                raise UnreadableMessage(f"{key} is {clip(str(found))}; write true or false", key)
            return found
    return False


def first_of(value: dict[str, Json], *keys: str) -> Json:
    """Return the value of the first key that is there with something; None where none is."""
    return next((value[key] for key in keys if value.get(key) not in (None, "")), None)


def without(value: dict[str, Json], *keys: str) -> dict[str, JsonValue]:
    """Return an object without some keys, and without those that have nothing."""
    return {key: inner for key, inner in value.items() if key not in keys and inner not in (None, "", [], {})}


def embedded_json(text: str) -> Json:
    """Return the value of a text within a run that is JSON itself; half a character in it, as of a text that was cut, becomes U+FFFD.

    A number that is not finite is a text, as it is written.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=str, parse_float=lambda number: float(number) if isfinite(float(number)) else number)
        written = json.dumps(value, ensure_ascii=False)
        if (whole := encodable(written)) != written:
            value = json.loads(whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return acceptable(value)


def json_within(value: Json) -> Json:
    """Return what a text is as JSON, as `embedded_json` reads it; any other value, and a text that is not JSON, as it is."""
    try:
        return embedded_json(value) if isinstance(value, str) else value
    except ValueError:
        return value


def structured(value: Json) -> Json:
    """Return a value of which a text that is written as a JSON list or object is parsed."""
    return json_within(value) if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") else value
