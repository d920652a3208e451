"""What a single value of a judge's output may be bound by: lengths, ranges, patterns, formats, choices."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradeloop.judges.validation import problems_of
from gradeloop.patterns import compiled
from gradeloop.printable import clip, did_you_mean

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
    if odd := [each for each in values if not _is_a(kind, each)]:
        yield f"{at}.enum has {clip(json.dumps(odd[0]))}, which is no {kind}; every value is of the property's type"
        return
    told = [json.dumps(each) for each in values]
    if double := next((each for each in told if told.count(each) > 1), None):
        yield f"{at}.enum has {clip(double)} twice; name each value once"

    bare = {key: value for key, value in schema.items() if key not in {"enum", "citations", "title", "description"}}
    if list(VALUES[kind](schema, at)):
        return
    if unfit := [each for each in values if list(problems_of(bare, each))]:
        yield f"{at}.enum has {clip(json.dumps(unfit[0]))}, which its other bounds refuse; change one of them"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_a(kind: str, value: object) -> bool:
    if kind in {"string", "boolean"}:
        return isinstance(value, str if kind == "string" else bool)
    return _is_number(value) and (kind == "number" or isinstance(value, int))


VALUES: dict[str, Callable[[Schema, str], Iterator[str]]] = {"string": _string, "integer": _number, "number": _number, "boolean": _truth}
"""What is checked of a value that holds no others."""
