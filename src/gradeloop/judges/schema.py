"""Output schemas of judges: what is allowed in one, and how an answer is validated by it."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]  # it has no types
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]
from pydantic import JsonValue

from gradeloop.errors import MISTAKES
from gradeloop.grading.checks import compiled
from gradeloop.text import clip, did_you_mean

Path = tuple[str, ...]

_KEPT = ("type", "enum", "description")
"""What every provider's dialect knows of a value; the rest is told in words, and checked afterwards."""

_TOLD = (
    ("minLength", "at least {} characters"), ("maxLength", "at most {} characters"), ("pattern", "matching the pattern {}"),
    ("format", "in the format {}"), ("minimum", "at least {}"), ("maximum", "at most {}"), ("exclusiveMinimum", "above {}"),
    ("exclusiveMaximum", "below {}"), ("multipleOf", "a multiple of {}"), ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
)  # fmt: skip


@dataclass(frozen=True)
class OutputKey:
    """A value of the output that rollouts are compared by."""

    path: Path
    how: Literal["vote", "median"]
    integer: bool = False

    @property
    def name(self) -> str:
        """The path as it is told: `outcome.label`."""
        return ".".join(self.path)


def keys_of(schema: Mapping[str, Any], at: Path = ()) -> list[OutputKey]:
    """Return the keys of a schema in order: enums and booleans are voted on, other numbers have a median; texts and arrays neither."""
    found: list[OutputKey] = []
    for name, each in schema["properties"].items():
        path = (*at, name)
        if each["type"] == "object":
            found += keys_of(each, path)
        elif "enum" in each or each["type"] == "boolean":
            found.append(OutputKey(path, "vote"))
        elif each["type"] in {"integer", "number"}:
            found.append(OutputKey(path, "median", integer=each["type"] == "integer"))
    return found


def value_at(output: JsonValue, path: Path) -> JsonValue:
    """Return the value at a path; None where it is absent."""
    value = output
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def with_value(output: dict[str, Any], path: Path, value: JsonValue) -> dict[str, Any]:
    """Return the output with another value at a path that is there."""
    name, *rest = path
    if not rest:
        return output | {name: value}
    inner = output.get(name)
    return output | {name: with_value(inner, tuple(rest), value)} if isinstance(inner, dict) else output


def citing_texts(schema: Mapping[str, Any], output: JsonValue, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and text of each string that may hold citations."""
    if schema["type"] == "string" and schema.get("citations") and isinstance(output, str):
        yield at, output
    elif schema["type"] == "object" and isinstance(output, dict):
        for name, each in schema["properties"].items():
            yield from citing_texts(each, output.get(name), f"{at}.{name}" if at else name)
    elif schema["type"] == "array" and isinstance(output, list):
        for index, item in enumerate(output):
            yield from citing_texts(schema["items"], item, f"{at}[{index}]")


def wants_citations(schema: Mapping[str, Any]) -> bool:
    """True where some string is to have citations."""
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else ())]
    return bool(schema.get("citations")) or any(wants_citations(each) for each in inner)


def for_provider(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the dialect that all providers take: every property required, an optional one may be null, no bounds."""
    words = [text.format(schema[key]) for key, text in _TOLD if key in schema]
    told = ". ".join(
        [*([schema["description"].rstrip(".")] if "description" in schema else ()), *([f"{', '.join(words)}"] if words else ())]
    )
    kept: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema} | ({"description": told} if told else {})
    if schema["type"] == "array":
        kept["items"] = for_provider(schema["items"])
    if schema["type"] == "object":
        required = schema.get("required", [])
        each = {name: for_provider(inner) for name, inner in schema["properties"].items()}
        kept["properties"] = {name: inner if name in required else {"anyOf": [inner, {"type": "null"}]} for name, inner in each.items()}
        kept["required"] = list(each)
        kept["additionalProperties"] = False
    return kept


def without_nulls(schema: Mapping[str, Any], output: JsonValue) -> JsonValue:
    """Return what a provider gave without the nulls that stand for optional properties left out."""
    if schema["type"] == "array" and isinstance(output, list):
        return [without_nulls(schema["items"], item) for item in output]
    if schema["type"] != "object" or not isinstance(output, dict):
        return output
    inner, required = schema["properties"], schema.get("required", [])
    kept = {name: value for name, value in output.items() if value is not None or name in required or name not in inner}
    return {name: without_nulls(inner[name], value) if name in inner else value for name, value in kept.items()}


WORDS = 300
"""Of each problem."""

PROBLEMS = 20


def problems_of(schema: Mapping[str, Any], output: object) -> Iterator[str]:
    """Yield what does not fit, in the validator's own words, each with its place."""
    found = _validator()(dict(schema), format_checker=_formats()).iter_errors(output)
    for count, error in enumerate(sorted(found, key=lambda each: [str(part) for part in each.absolute_path])):
        if count == PROBLEMS:
            yield "and more"
            return
        yield f"{error.json_path}: {error.message[:WORDS]}"


@cache
def _validator() -> Any:  # noqa: ANN401 - a class that the library makes
    return validators.extend(Draft202012Validator, {"pattern": _check_pattern})


@cache
def _formats() -> Any:  # noqa: ANN401 - the library's own
    return Draft202012Validator.FORMAT_CHECKER


def _check_pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's own
    if validator.is_type(instance, "string") and not compiled(pattern).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


FORMATS = ("date-time", "date", "time", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")

_LIMITS = (("minLength", "maxLength"), ("minItems", "maxItems"))
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

Schema = Mapping[str, Any]


def _string(schema: Schema, at: str) -> Iterator[str]:
    yield from count_problems(schema, at)
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
    low, high = _least(schema), _most(schema)
    if low is not None and high is not None and _is_empty(low, high, whole=schema["type"] == "integer"):
        yield f"{at}: nothing lies between {low[0]} and {high[0]}; give a lower bound that is below the upper one"


def _least(schema: Schema) -> tuple[float, bool] | None:
    """Return the lower bound, and whether it is itself excluded."""
    found = [(schema[key], key == "exclusiveMinimum") for key in ("minimum", "exclusiveMinimum") if key in schema]
    return max(found, default=None)


def _most(schema: Schema) -> tuple[float, bool] | None:
    found = [(schema[key], key == "exclusiveMaximum") for key in ("maximum", "exclusiveMaximum") if key in schema]
    return min(found, key=lambda each: (each[0], not each[1]), default=None)


def _is_empty(low: tuple[float, bool], high: tuple[float, bool], *, whole: bool) -> bool:
    if low[0] == high[0]:
        return low[1] or high[1]
    if low[0] > high[0] or not whole:
        return low[0] > high[0]
    first = math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
    last = math.ceil(high[0]) - 1 if high[1] else math.floor(high[0])
    return first > last


def _truth(_schema: Schema, _at: str) -> Iterator[str]:
    """Yield nothing: a boolean has no bounds."""
    yield from ()


def count_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield what is wrong with least and most lengths."""
    for key in _COUNTS:
        if key in schema and (not isinstance(schema[key], int) or isinstance(schema[key], bool) or schema[key] < 0):
            yield f"{at}.{key} is {clip(json.dumps(schema[key]))}; write a whole number from 0 on"
            return
    for low, high in _LIMITS:
        if low in schema and high in schema and schema[low] > schema[high]:
            yield f"{at}.{low} {schema[low]} is above {high} {schema[high]}; give a least that is at most the most"


def enum_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield what is wrong with the values of a choice, where there is one."""
    if "enum" not in schema:
        return
    values, kind = schema["enum"], schema["type"]
    if not isinstance(values, list) or not values:
        yield f"{at}.enum is {clip(json.dumps(values))}; list at least one value that the judge may give"
        return
    if odd := [value for value in values if not _is_a(kind, value)]:
        yield f"{at}.enum has {clip(json.dumps(odd[0]))}, which is no {kind}; every value is of the property's type"
        return
    told = [json.dumps(value) for value in values]
    if double := next((each for each in told if told.count(each) > 1), None):
        yield f"{at}.enum has {clip(double)} twice; name each value once"

    bare = {key: value for key, value in schema.items() if key not in {"enum", "citations", "title", "description"}}
    if list(VALUES[kind](schema, at)):
        return
    if unfit := [value for value in values if list(problems_of(bare, value))]:
        yield f"{at}.enum has {clip(json.dumps(unfit[0]))}, which its other bounds refuse; change one of them"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_a(kind: str, value: object) -> bool:
    if kind in {"string", "boolean"}:
        return isinstance(value, str if kind == "string" else bool)
    return _is_number(value) and (kind == "number" or isinstance(value, int))


VALUES: dict[str, Callable[[Schema, str], Iterator[str]]] = {"string": _string, "integer": _number, "number": _number, "boolean": _truth}
"""What is checked of a value that holds no others."""


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
