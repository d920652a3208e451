"""Output schemas of judges: which are allowed, what a provider is given of one, and how an answer is validated by it."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from gradeloop.errors import MISTAKES
from gradeloop.grading.json_schema import compile_pattern, match_pattern, multiple_of
from gradeloop.text import canonical_json, clip, did_you_mean

Path = tuple[str, ...]
Schema = Mapping[str, Any]

SCHEMA_BYTES = 64 * 1024
DEPTH = 12
PROPERTIES = 200
"""The most properties of a schema, all of its objects together."""

TYPES = {
    "string": ("minLength", "maxLength", "pattern", "format", "enum", "citations"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"),
    "boolean": ("enum",),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
"""The keywords of each type of value, beside type, title and description."""

FORMATS = ("date-time", "date", "time", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")

_COMMON = ("type", "title", "description")
_SPECIFIC = {keyword for keywords in TYPES.values() for keyword in keywords}
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
"""Keywords of JSON Schema that are refused, and what to write instead."""

_COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"))
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Keyword(NamedTuple):
    """The values that a keyword takes, and what to write instead of another."""

    fits: Callable[[Any], bool]
    cure: str


_TEXT = _Keyword(lambda value: isinstance(value, str), "write text")
_COUNT = _Keyword(lambda value: _is_a("integer", value) and value >= 0, "write a whole number from 0 on")
_KEYWORDS = {
    "title": _TEXT,
    "description": _TEXT,
    **dict.fromkeys([keyword for pair in _COUNTS for keyword in pair], _COUNT),
    **dict.fromkeys(_NUMBERS, _Keyword(_is_number, "write a number")),
    "pattern": _TEXT._replace(cure="write a regular expression as text"),
    "citations": _Keyword(lambda value: isinstance(value, bool), "write true or false"),
    "enum": _Keyword(lambda value: isinstance(value, list) and bool(value), "list at least one value that the judge may give"),
    "required": _Keyword(
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value), "list names of properties"
    ),
    "additionalProperties": _Keyword(lambda value: value is False, "write false, or leave it out"),
}


def refuse_schema(schema: Any) -> None:  # noqa: ANN401 - raw input of any shape
    """Raise ValueError where a schema breaks a rule; the message names the place, the value and the cure."""
    try:
        text = json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"output_schema is not JSON: {error}") from None
    if (size := len(text.encode())) > SCHEMA_BYTES:
        raise ValueError(f"output_schema has {size} bytes, {SCHEMA_BYTES} at most; shorten its descriptions")
    if not isinstance(schema, dict):
        raise ValueError(f"output_schema is a {type(schema).__name__}; write an object with 'type: object' and properties")  # noqa: TRY004 - pydantic tells no other
    read, problems = _read_schema(text)
    if read != schema:  # of a file with other keys than texts, say
        problems = tuple(_root_problems(schema))
    if problems:
        more = [f"and {len(problems) - MISTAKES} more"] if len(problems) > MISTAKES else []
        raise ValueError("; ".join([*problems[:MISTAKES], *more]))


@lru_cache(maxsize=16)
def _read_schema(text: str) -> tuple[Schema, tuple[str, ...]]:
    """Return a schema and its problems by its JSON; they are kept, since hundreds of cases carry the schema of one judge."""
    schema = json.loads(text)
    return schema, tuple(_root_problems(schema))


def _root_problems(schema: Schema) -> Iterator[str]:
    if schema.get("type") != "object":
        yield f"output_schema.type is {clip(str(schema.get('type')))}; the whole answer is an object, so write 'object'"
        return
    if not isinstance(schema.get("properties"), dict) or not schema["properties"]:
        yield "output_schema.properties is missing or empty; name at least one property that the judge fills in"
        return
    if schema.get("citations") is not None:
        yield "output_schema.citations is for a string; write it at the property that is to have citations"
        return
    problems = list(_schema_problems(schema, "output_schema", 1))
    yield from problems
    if not problems and (count := _property_count(schema)) > PROPERTIES:
        yield f"output_schema has {count} properties in all, {PROPERTIES} at most; ask for less at once"


def _property_count(schema: Schema) -> int:
    inner = _inner_schemas(schema)
    return len(schema.get("properties", {})) + sum(map(_property_count, inner))


def _inner_schemas(schema: Schema) -> list[Schema]:
    """Return the schemas of the properties or items."""
    return [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else ())]


def _schema_problems(schema: Any, at: str, depth: int) -> Iterator[str]:  # noqa: ANN401 - raw input of any shape
    """Yield what breaks a rule in a schema and those within it."""
    if not isinstance(schema, dict):
        yield f"{at} is {clip(json.dumps(schema))}; write an object with a type"
        return
    if depth > DEPTH:
        yield f"{at} is nested more than {DEPTH} deep; flatten it"
        return
    if problems := list(_type_problems(schema, at)):
        yield from problems
        return
    yield from _keyword_problems(schema, at)
    if schema["type"] == "array":
        if "items" in schema:
            yield from _schema_problems(schema["items"], f"{at}.items", depth + 1)
        else:
            yield f"{at}.items is missing; say what the array holds"
    if schema["type"] == "object":
        if isinstance(schema.get("properties"), dict):
            for name, inner in schema["properties"].items():
                yield from _schema_problems(inner, f"{at}.properties.{name}", depth + 1)
        else:
            yield f"{at}.properties is missing; name what the object holds"


def _type_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield why a schema has no one type, without which its other keywords mean nothing."""
    refused = [keyword for keyword in schema if keyword in _REFUSED]
    kind = schema.get("type")
    if refused:
        yield from (f"{at}.{keyword} is refused; {_REFUSED[keyword]}" for keyword in refused)
    elif kind is None:
        yield f"{at}.type is missing; write one of {', '.join(TYPES)}"
    elif not isinstance(kind, str) or kind not in TYPES:
        lists = " (a list of types is refused: give one)" if isinstance(kind, list) else ""
        yield f"{at}.type is {clip(json.dumps(kind))}{lists}.{did_you_mean(str(kind), list(TYPES))}"


def _keyword_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield what is wrong with the keywords of one schema: unknown ones, values that do not fit, bounds against each other."""
    kind = schema["type"]
    known = (*_COMMON, *TYPES[kind])
    unfit = []
    for keyword, value in schema.items():
        if keyword not in known and keyword in _SPECIFIC:
            yield f"{at}.{keyword} is not for type {kind!r}; leave it out, or change the type"
        elif keyword not in known:
            yield f"{at}: unknown keyword {clip(str(keyword))}.{did_you_mean(str(keyword), list(known))}"
        elif keyword in _KEYWORDS and not _KEYWORDS[keyword].fits(value):
            unfit.append(f"{at}.{keyword} is {clip(json.dumps(value))}; {_KEYWORDS[keyword].cure}")
    understood = {keyword: schema[keyword] for keyword in known if keyword in schema}
    problems = unfit or list(_bound_problems(understood, at))
    yield from problems
    if not problems and "enum" in understood:
        yield from _enum_problems(understood, at)


def _bound_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield what is wrong with bounds whose values fit."""
    for low, high in _COUNTS:
        if low in schema and high in schema and schema[low] > schema[high]:
            yield f"{at}.{low} {schema[low]} is above {high} {schema[high]}; give a least that is at most the most"
    if "format" in schema and schema["format"] not in FORMATS:
        yield f"{at}.format is {clip(json.dumps(schema['format']))}.{did_you_mean(str(schema['format']), list(FORMATS))}"
    if "pattern" in schema:
        try:
            compile_pattern(schema["pattern"])
        except ValueError as error:
            yield f"{at}.pattern: {error}"
    if "multipleOf" in schema and schema["multipleOf"] <= 0:
        yield f"{at}.multipleOf is {schema['multipleOf']}; write a number above 0"
    if empty := _empty_range(schema):
        yield f"{at}: nothing lies between {empty[0]} and {empty[1]}; give a lower bound that is below the upper one"
    if isinstance(properties := schema.get("properties"), dict):
        required, known = Counter[str](schema.get("required", ())), list(properties)
        unknown = (f"{clip(name)}, which is not a property.{did_you_mean(name, known)}" for name in required if name not in properties)
        twice = (f"{clip(name)} twice; name each property once" for name, count in required.items() if count > 1)
        yield from (f"{at}.required names {problem}" for problem in (*unknown, *twice))


def _empty_range(schema: Schema) -> tuple[float, float] | None:
    """Return the lower and the upper bound if no value lies between them."""
    lows = [(schema[keyword], keyword == "exclusiveMinimum") for keyword in ("minimum", "exclusiveMinimum") if keyword in schema]
    highs = [(schema[keyword], keyword == "exclusiveMaximum") for keyword in ("maximum", "exclusiveMaximum") if keyword in schema]
    if not lows or not highs:
        return None
    # Of equal bounds the exclusive one counts, as it is the stricter: for the lower one the greater pair, for
    # the upper one the lesser with exclusion first.
    low, low_excluded = max(lows)
    high, high_excluded = min(highs, key=lambda bound: (bound[0], not bound[1]))
    empty = low > high or (low == high and (low_excluded or high_excluded))
    if schema["type"] == "integer" and low < high:
        first = math.floor(low) + 1 if low_excluded else math.ceil(low)
        empty = first > (math.ceil(high) - 1 if high_excluded else math.floor(high))
    return (low, high) if empty else None


def _enum_problems(schema: Schema, at: str) -> Iterator[str]:
    """Yield what is wrong with the values of a choice."""
    values, kind = schema["enum"], schema["type"]
    if odd := [value for value in values if not _is_a(kind, value)]:
        yield f"{at}.enum has {clip(json.dumps(odd[0]))}, which is not of type {kind}; every value is of the property's type"
        return
    counts = Counter(map(canonical_json, values))
    if twice := next((text for text, count in counts.items() if count > 1), None):
        yield f"{at}.enum has {clip(twice)} twice; name each value once"
    bounds = {keyword: value for keyword, value in schema.items() if keyword != "enum"}
    if refused := [value for value in values if list(problems_of(bounds, value))]:
        yield f"{at}.enum has {clip(json.dumps(refused[0]))}, which its other bounds refuse; change one of them"


def _is_a(kind: str, value: object) -> bool:
    if kind in {"string", "boolean"}:
        return isinstance(value, str if kind == "string" else bool)
    return _is_number(value) and (kind == "number" or isinstance(value, int))


PROBLEM_CHARACTERS = 300
"""The most characters of the message of one problem, which quotes the value."""

PROBLEMS = 20
"""The most problems of an answer that are listed."""


def problems_of(schema: Schema, output: object) -> Iterator[str]:
    """Yield what does not fit the schema, in the validator's own words, each with its place."""
    validator = _validator()
    errors = validator(dict(schema), format_checker=validator.FORMAT_CHECKER).iter_errors(output)
    for count, error in enumerate(sorted(errors, key=lambda error: [str(part) for part in error.absolute_path])):
        if count == PROBLEMS:
            yield "and more"
            return
        yield f"{error.json_path}: {error.message[:PROBLEM_CHARACTERS]}"


@cache
def _validator() -> Any:  # noqa: ANN401 - a class that the library makes
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]  # it has no types; 80 ms, which most commands do without

    return validators.extend(Draft202012Validator, {"pattern": match_pattern, "multipleOf": multiple_of})


@dataclass(frozen=True)
class OutputKey:
    """A value of the output by which rollouts are compared."""

    path: Path
    type: str
    choices: tuple[JsonValue, ...] = ()

    @property
    def how(self) -> Literal["vote", "median"]:
        """Aggregation of rollouts: choices are voted on, other numbers have a median."""
        return "vote" if self.choices or self.type == "boolean" else "median"

    @property
    def name(self) -> str:
        """The path as text: `outcome.label`."""
        return ".".join(self.path)


def values_in(schema: Schema, at: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """Yield the path of each value that is not an object, in order, with its own schema."""
    for name, inner in schema["properties"].items():
        yield from values_in(inner, (*at, name)) if inner["type"] == "object" else [((*at, name), inner)]


def keys_of(schema: Schema) -> list[OutputKey]:
    """Return the keys of a schema in order: enums, booleans and numbers, but neither texts nor arrays."""
    values = ((path, inner["type"], tuple(inner.get("enum", ()))) for path, inner in values_in(schema))
    return [OutputKey(path, kind, choices) for path, kind, choices in values if choices or kind in {"boolean", "integer", "number"}]


def refuse_values(schema: Schema, values: Mapping[str, JsonValue], field: str) -> None:
    """Raise ValueError where a value that is wanted of an output names no key of its schema, or one that the schema does not allow."""
    keys = {key.name: key for key in keys_of(schema)}
    for name, value in values.items():
        if name not in keys:
            hint = did_you_mean(name, list(keys)) if keys else " The schema has no enum, boolean or number to pass by."
            raise ValueError(f"{field}: {clip(name)} is not a key of the output_schema whose value the judge chooses.{hint}")
        kind, choices = keys[name].type, keys[name].choices
        if not _is_a(kind, value) or canonical_json(value) not in map(canonical_json, choices or [value]):
            known = f" Known: {', '.join(map(str, choices))}." if choices else f" Write a value of type {kind}."
            raise ValueError(f"{field}.{name}: the output_schema does not allow {clip(str(value))}.{known}")


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


def with_presence(output: dict[str, Any], other: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the output with what another one has, or without what it lacks, at the first key of a path that only one of them has."""
    name, *rest = path
    if name in output and name in other:
        return output | {name: with_presence(output[name], other[name], tuple(rest))} if rest else output
    return output | {name: other[name]} if name in other else {key: value for key, value in output.items() if key != name}


def citing_texts(schema: Schema, output: JsonValue, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and text of each string that may hold citations."""
    if schema["type"] == "string" and schema.get("citations") and isinstance(output, str):
        yield at, output
    elif schema["type"] == "object" and isinstance(output, dict):
        for name, inner in schema["properties"].items():
            yield from citing_texts(inner, output.get(name), f"{at}.{name}" if at else name)
    elif schema["type"] == "array" and isinstance(output, list):
        for index, item in enumerate(output):
            yield from citing_texts(schema["items"], item, f"{at}[{index}]")


def wants_citations(schema: Schema) -> bool:
    """Return whether some string of the output may hold citations."""
    return bool(schema.get("citations")) or any(map(wants_citations, _inner_schemas(schema)))


_BOUNDS_IN_WORDS = (
    ("minLength", "at least {} characters"), ("maxLength", "at most {} characters"), ("pattern", "matching the pattern {}"),
    ("format", "in the format {}"), ("minimum", "at least {}"), ("maximum", "at most {}"), ("exclusiveMinimum", "above {}"),
    ("exclusiveMaximum", "below {}"), ("multipleOf", "a multiple of {}"), ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
)  # fmt: skip
"""The words for bounds in descriptions, since no provider's dialect knows them; answers are checked for them afterwards."""


def for_provider(schema: Schema) -> dict[str, Any]:
    """Return the schema in the dialect that all providers take: every property required, an optional one may be null, no bounds."""
    described = [schema["description"].rstrip(".")] if "description" in schema else []
    bounds = ", ".join(text.format(schema[keyword]) for keyword, text in _BOUNDS_IN_WORDS if keyword in schema)
    kept: dict[str, Any] = {keyword: schema[keyword] for keyword in ("type", "enum") if keyword in schema}
    if description := ". ".join([*described, *([bounds] if bounds else [])]):
        kept["description"] = description
    if schema["type"] == "array":
        kept["items"] = for_provider(schema["items"])
    if schema["type"] == "object":
        required = schema.get("required", [])
        inner = {name: for_provider(property_schema) for name, property_schema in schema["properties"].items()}
        kept["properties"] = {name: given if name in required else {"anyOf": [given, {"type": "null"}]} for name, given in inner.items()}
        kept["required"] = list(inner)
        kept["additionalProperties"] = False
    return kept


def without_nulls(schema: Schema, output: JsonValue) -> JsonValue:
    """Return a provider's output without the nulls that stand for optional properties left out."""
    if schema["type"] == "array" and isinstance(output, list):
        return [without_nulls(schema["items"], item) for item in output]
    if schema["type"] != "object" or not isinstance(output, dict):
        return output
    inner, required = schema["properties"], schema.get("required", [])
    kept = {name: value for name, value in output.items() if value is not None or name in required or name not in inner}
    return {name: without_nulls(inner[name], value) if name in inner else value for name, value in kept.items()}
