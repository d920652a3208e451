"""What an output schema means: for the provider, for a vote, for citations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

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
class Key:
    """A value of the output that rollouts are compared by."""

    path: Path
    how: Literal["vote", "median"]
    integer: bool = False

    @property
    def name(self) -> str:
        """The path as it is told: `outcome.label`."""
        return ".".join(self.path)


def keys_of(schema: Mapping[str, Any], at: Path = ()) -> list[Key]:
    """Return the keys of a schema in order: enums and booleans are voted on, other numbers have a median; texts and arrays neither."""
    found: list[Key] = []
    for name, each in schema["properties"].items():
        path = (*at, name)
        if each["type"] == "object":
            found += keys_of(each, path)
        elif "enum" in each or each["type"] == "boolean":
            found.append(Key(path, "vote"))
        elif each["type"] in {"integer", "number"}:
            found.append(Key(path, "median", integer=each["type"] == "integer"))
    return found


def value_at(output: JsonValue, path: Path) -> JsonValue:
    """Return the value at a path; None where it is absent."""
    value = output
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def put(output: dict[str, Any], path: Path, value: JsonValue) -> dict[str, Any]:
    """Return the output with another value at a path that is there."""
    name, *rest = path
    if not rest:
        return output | {name: value}
    inner = output.get(name)
    return output | {name: put(inner, tuple(rest), value)} if isinstance(inner, dict) else output


def cited(schema: Mapping[str, Any], output: JsonValue, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and text of each string that may hold citations."""
    if schema["type"] == "string" and schema.get("citations") and isinstance(output, str):
        yield at, output
    elif schema["type"] == "object" and isinstance(output, dict):
        for name, each in schema["properties"].items():
            yield from cited(each, output.get(name), f"{at}.{name}" if at else name)
    elif schema["type"] == "array" and isinstance(output, list):
        for index, item in enumerate(output):
            yield from cited(schema["items"], item, f"{at}[{index}]")


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
