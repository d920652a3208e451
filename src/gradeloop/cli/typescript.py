"""The wire contract as TypeScript: one declaration for each model of its schemas."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

HEAD = """// The wire contract of gradeloop (contract.md) as TypeScript.
// Generated from its JSON Schemas: `gradeloop schema --typescript`. What has a default is optional; a null counts as absent.
"""

JSON_VALUE = "export type JsonValue = string | number | boolean | null | JsonValue[] | { [key: string]: JsonValue };\n"

_PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def declare(sent: Sequence[type[BaseModel]], received: Sequence[type[BaseModel]], schemas: Mapping[str, dict[str, Any]]) -> str:
    """Return the declarations of models that are sent and received, and of what they are made of.

    A model that is read otherwise than it is written has two: `Rubric`, as it is written, and `RubricInput`, as it may be sent.

    Args:
        sent: The models of what gradeloop takes.
        received: The models of what it writes.
        schemas: Schemas without a model, by name.
    """
    modes = [(model, "validation") for model in sent] + [(model, "serialization") for model in received]
    _, whole = models_json_schema(modes)  # type: ignore[arg-type]  # the literals of a list
    models = {name: schema for name, schema in whole["$defs"].items() if name != "JsonValue"} | dict(schemas)
    return "\n".join([HEAD, JSON_VALUE, *(_declaration(_type_name(name), models[name]) for name in sorted(models, key=_type_name))])


def _type_name(name: str) -> str:
    return name.removesuffix("-Output").replace("-", "")


def _declaration(name: str, schema: Mapping[str, Any]) -> str:
    head = "".join(_comment(schema.get("description"), ""))
    if schema.get("type") == "object" and "properties" in schema:
        return "\n".join([f"{head}export interface {name} {{", *_fields(schema, "  "), "}", ""])
    return f"{head}export type {name} = {_type(schema)};\n"


def _fields(schema: Mapping[str, Any], indent: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        yield from (line.rstrip("\n") for line in _comment(field.get("description"), indent))
        key = name if _NAME.fullmatch(name) else json.dumps(name)
        yield f"{indent}{key}{'' if name in required else '?'}: {_type(field)};"


def _comment(text: str | None, indent: str) -> Iterator[str]:
    if text:
        yield f"{indent}/** {' '.join(text.split()).replace('*/', '* /')} */\n"


def _type(schema: Any) -> str:  # noqa: ANN401 - JSON of any shape
    """Return the type of a schema; what has no counterpart, a range say, is left to gradeloop."""
    if not isinstance(schema, Mapping):
        return "JsonValue"
    if "$ref" in schema:
        return _type_name(schema["$ref"].rpartition("/")[2])
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(map(_type, options)))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_PRIMITIVES.get(one, "JsonValue") for one in kind)
    return _container(kind, schema)


def _container(kind: str | None, schema: Mapping[str, Any]) -> str:
    if kind == "array":
        items = [_type(item) for item in schema.get("prefixItems", ())]
        one = _type(schema.get("items"))
        return f"[{', '.join(items)}]" if items else f"({one})[]" if " " in one else f"{one}[]"
    if kind == "object" and "properties" in schema:
        return f"{{ {' '.join(line.strip() for line in _fields({**schema, **_undescribed(schema)}, ''))} }}"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"{{ [key: string]: {_type(more)} }}"
    return _PRIMITIVES.get(kind or "", "JsonValue")


def _undescribed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without their descriptions, which stand in no line of their own."""
    return {"properties": {name: {**field, "description": None} for name, field in schema["properties"].items()}}
