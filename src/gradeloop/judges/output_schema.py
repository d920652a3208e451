"""What a judge's output may look like: a subset of JSON Schema 2020-12, its rules told one by one.

The subset is that of Docent's judges (meta_schema.json of docent 0.1.88), with array bounds beside it; refused as well is what Docent takes
and no output can meet: an enum that is empty or contradicts its type, a least above its most, a required name that is no property.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradeloop.errors import PROBLEMS_TOLD
from gradeloop.patterns import compiled
from gradeloop.strict import clip, did_you_mean

SCHEMA_BYTES = 64 * 1024
DEPTH = 12
PROPERTIES = 200
"""Of a schema, all of its objects together."""

FORMATS = ("date-time", "date", "time", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")

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
_LIMITS = (("minLength", "maxLength"), ("minItems", "maxItems"))
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

Schema = Mapping[str, Any]


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
        more = [f"and {len(problems) - PROBLEMS_TOLD} more"] if len(problems) > PROBLEMS_TOLD else []
        raise ValueError("; ".join([*problems[:PROBLEMS_TOLD], *more]))


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
    if kind in _BOUNDS:
        yield from _BOUNDS[kind](schema, at)
    if "enum" in schema and kind in _BOUNDS:
        yield from _enum(schema, at, kind)
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
            yield f"{at}.{key} is not for a {kind}; leave it out, or change the type"
        else:
            yield f"{at}: unknown keyword {clip(str(key))}.{did_you_mean(str(key), list(known))}"


def _texts(schema: Schema, at: str) -> Iterator[str]:
    for key in ("title", "description"):
        if key in schema and not isinstance(schema[key], str):
            yield f"{at}.{key} is {clip(json.dumps(schema[key]))}; write text"


def _string(schema: Schema, at: str) -> Iterator[str]:
    yield from _bounds(schema, at)
    if "citations" in schema and not isinstance(schema["citations"], bool):
        yield f"{at}.citations is {clip(json.dumps(schema['citations']))}; write true or false"
    if "format" in schema and schema["format"] not in FORMATS:
        yield f"{at}.format is {clip(json.dumps(schema['format']))}.{did_you_mean(str(schema['format']), list(FORMATS))}"
    if "pattern" in schema:
        yield from _pattern(schema["pattern"], at)


def _pattern(pattern: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - raw input of any shape
    if not isinstance(pattern, str):
        yield f"{at}.pattern is {clip(json.dumps(pattern))}; write a regular expression as text"
        return
    try:
        compiled(pattern)
    except ValueError as error:
        yield f"{at}.pattern: {error}"


def _number(schema: Schema, at: str) -> Iterator[str]:
    wrong = [key for key in _NUMBERS if key in schema and not _is_number(schema[key])]
    yield from (f"{at}.{key} is {clip(json.dumps(schema[key]))}; write a number" for key in wrong)
    if wrong:
        return
    if "multipleOf" in schema and schema["multipleOf"] <= 0:
        yield f"{at}.multipleOf is {schema['multipleOf']}; write a number above 0"
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    strict = "exclusiveMinimum" in schema or "exclusiveMaximum" in schema
    if lows and highs and (max(lows) > min(highs) or (strict and max(lows) >= min(highs))):
        yield f"{at}: nothing lies between {max(lows)} and {min(highs)}; give a lower bound that is below the upper one"


def _truth(_schema: Schema, _at: str) -> Iterator[str]:
    """Yield nothing: a boolean has no bounds."""
    yield from ()


def _bounds(schema: Schema, at: str) -> Iterator[str]:
    for key in _COUNTS:
        if key in schema and (not isinstance(schema[key], int) or isinstance(schema[key], bool) or schema[key] < 0):
            yield f"{at}.{key} is {clip(json.dumps(schema[key]))}; write a whole number from 0 on"
            return
    for low, high in _LIMITS:
        if low in schema and high in schema and schema[low] > schema[high]:
            yield f"{at}.{low} {schema[low]} is above {high} {schema[high]}; give a least that is at most the most"


def _enum(schema: Schema, at: str, kind: str) -> Iterator[str]:
    values = schema["enum"]
    if not isinstance(values, list) or not values:
        yield f"{at}.enum is {clip(json.dumps(values))}; list at least one value that the judge may give"
        return
    if odd := [each for each in values if not _is_a(kind, each)]:
        yield f"{at}.enum has {clip(json.dumps(odd[0]))}, which is no {kind}; every value is of the property's type"
        return
    told = [json.dumps(each) for each in values]
    if double := next((each for each in told if told.count(each) > 1), None):
        yield f"{at}.enum has {clip(double)} twice; name each value once"
    from gradeloop.judges.validation import problems_of  # jsonschema, which only schemas need

    bare = {key: value for key, value in schema.items() if key not in {"enum", "citations", "title", "description"}}
    if list(_BOUNDS[kind](schema, at)):
        return
    if unfit := [each for each in values if list(problems_of(bare, each))]:
        yield f"{at}.enum has {clip(json.dumps(unfit[0]))}, which its other bounds refuse; change one of them"


def _array(schema: Schema, at: str, depth: int, count: list[int]) -> Iterator[str]:
    yield from _bounds(schema, at)
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_a(kind: str, value: object) -> bool:
    if kind in {"string", "boolean"}:
        return isinstance(value, str if kind == "string" else bool)
    return _is_number(value) and (kind == "number" or isinstance(value, int))


_BOUNDS: dict[str, Callable[[Schema, str], Iterator[str]]] = {"string": _string, "integer": _number, "number": _number, "boolean": _truth}
"""What is checked of a value that holds no others."""
