"""What a judge's output may look like: a subset of JSON Schema 2020-12, its rules told one by one.

The subset is that of Docent's judges (meta_schema.json of docent 0.1.88), with array bounds beside it; refused as well is what Docent takes
and no output can meet: an enum that is empty or contradicts its type, a least above its most, a required name that is no property.
"""

import json
from collections.abc import Iterator
from typing import Any

from gradeloop.errors import MISTAKES
from gradeloop.judges.schema_bounds import VALUES, Schema, count_problems, enum_problems
from gradeloop.printable import clip, did_you_mean

SCHEMA_BYTES = 64 * 1024
DEPTH = 12
PROPERTIES = 200
"""Of a schema, all of its objects together."""

TYPES = {
    "string": ("minLength", "maxLength", "pattern", "format", "enum", "citations"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"),
    "boolean": ("enum",),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
"""What each type of value may be bound by, beside type, title and description."""

_ANY = ("type", "title", "description")
_ELSEWHERE = {key: kind for kind, keys in TYPES.items() for key in keys}
_REFUSED = {
    "anyOf": "give the property one type",
    "oneOf": "give the property one type",
    "allOf": "write what holds into the property itself",
    "not": "say what may be there with enum, bounds or pattern",
    "$ref": "write the schema out where it is used",
    "$defs": "write the schema out where it is used",
    "const": "use an enum of one value",
    "default": "leave it out: a judge always answers",
    "if": "write what holds into the property itself",
}


def refuse_schema(schema: Any) -> None:  # noqa: ANN401 - raw input of any shape
    """Raise ValueError where a schema breaks a rule; the message names the place, the value and the cure."""
    try:
        size = len(json.dumps(schema, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"output_schema is no JSON: {error}") from None
    if size > SCHEMA_BYTES:
        raise ValueError(f"output_schema has {size} bytes, {SCHEMA_BYTES} at most; shorten its descriptions")
    if not isinstance(schema, dict):
        raise ValueError(f"output_schema is a {type(schema).__name__}; write an object with 'type: object' and properties")  # noqa: TRY004 - pydantic tells no other
    problems = list(_root(schema))
    if problems:
        more = [f"and {len(problems) - MISTAKES} more"] if len(problems) > MISTAKES else []
        raise ValueError("; ".join([*problems[:MISTAKES], *more]))


def _root(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") != "object":
        yield f"output_schema.type is {clip(str(schema.get('type')))}; the whole answer is an object, so write 'object'"
        return
    if not isinstance(schema.get("properties"), dict) or not schema["properties"]:
        yield "output_schema.properties is missing or empty; name at least one property that the judge fills in"
        return
    if schema.get("citations") is not None:
        yield "output_schema.citations is for a string; write it at the property that is to have citations"
        return
    count = [0]
    yield from _checked(schema, "output_schema", 1, count)
    if count[0] > PROPERTIES:
        yield f"output_schema has {count[0]} properties in all, {PROPERTIES} at most; ask for less at once"


def _checked(schema: Any, at: str, depth: int, count: list[int]) -> Iterator[str]:  # noqa: ANN401 - raw input of any shape
    if not isinstance(schema, dict):
        yield f"{at} is {clip(json.dumps(schema))}; write an object with a type"
        return
    if depth > DEPTH:
        yield f"{at} is nested more than {DEPTH} deep; flatten it"
        return
    if problems := list(_type_problems(schema, at)):
        yield from problems
        return
    kind = str(schema["type"])
    yield from _keys(schema, at, kind)
    yield from _texts(schema, at)
    if kind in VALUES:
        yield from VALUES[kind](schema, at)
        yield from enum_problems(schema, at)
    if kind == "array":
        yield from _array(schema, at, depth, count)
    if kind == "object":
        yield from _object(schema, at, depth, count)


def _type_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield why a schema has no one type, without which its other keys mean nothing."""
    foreign = [key for key in schema if key in _REFUSED]
    kind = schema.get("type")
    if foreign:
        yield from (f"{at}.{key} is refused; {_REFUSED[key]}" for key in foreign)
    elif kind is None:
        yield f"{at}.type is missing; write one of {', '.join(TYPES)}"
    elif not isinstance(kind, str) or kind not in TYPES:
        lists = " (a list of types is refused: give one)" if isinstance(kind, list) else ""
        yield f"{at}.type is {clip(json.dumps(kind))}{lists}.{did_you_mean(str(kind), list(TYPES))}"


def _keys(schema: Schema, at: str, kind: str) -> Iterator[str]:
    known = (*_ANY, *TYPES[kind])
    for key in schema:
        if key in known:
            continue
        if key in _ELSEWHERE:
            yield f"{at}.{key} is not for type {kind!r}; leave it out, or change the type"
        else:
            yield f"{at}: unknown keyword {clip(str(key))}.{did_you_mean(str(key), list(known))}"


def _texts(schema: Schema, at: str) -> Iterator[str]:
    for key in ("title", "description"):
        if key in schema and not isinstance(schema[key], str):
            yield f"{at}.{key} is {clip(json.dumps(schema[key]))}; write text"


def _array(schema: Schema, at: str, depth: int, count: list[int]) -> Iterator[str]:
    yield from count_problems(schema, at)
    if "items" not in schema:
        yield f"{at}.items is missing; say what the array holds"
    else:
        yield from _checked(schema["items"], f"{at}.items", depth + 1, count)


def _object(schema: Schema, at: str, depth: int, count: list[int]) -> Iterator[str]:
    if schema.get("additionalProperties", False) is not False:
        yield f"{at}.additionalProperties is {clip(json.dumps(schema['additionalProperties']))}; write false, or leave it out"
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        yield f"{at}.properties is missing; name what the object holds"
        return
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        yield f"{at}.required is {clip(json.dumps(required))}; list names of properties"
        return
    for name in required:
        if name not in properties:
            yield f"{at}.required names {clip(name)}, which is no property.{did_you_mean(name, list(properties))}"
    count[0] += len(properties)
    for name, each in properties.items():
        yield from _checked(each, f"{at}.properties.{name}", depth + 1, count)
