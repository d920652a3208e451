"""Prints the wire contract as TypeScript: `python deploy/site/declare_contract.py > docs/contract.d.ts`, as `make docs` does."""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gradeloop.cli.schemas import models
from gradeloop.contract.base import field_descriptions
from gradeloop.contract.messages import ContentBlocks

HEAD = """// The wire contract of gradeloop (contract.md) as TypeScript.
// Generated from its JSON Schemas by `make docs`. What has a default is optional; a null counts as absent.
"""

JSON_VALUE = "export type JsonValue = string | number | boolean | null | JsonValue[] | { [key: string]: JsonValue };\n"

SENTENCES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("fields.toml").read_text())
"""Sentences of fields without a docstring, by type and field; those of `every` are for all types."""

_PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def contract_declarations() -> str:
    """Return the declarations of the models that gradeloop takes and writes, and of what they are made of.

    A model that is read otherwise than it is written has two: `Rubric`, as it is written, and `RubricInput`, as it may be sent.
    """
    found = definitions()
    return "\n".join([HEAD, JSON_VALUE, *(_declaration(_type_name(name), found[name]) for name in sorted(found, key=_type_name))])


def definitions() -> dict[str, Any]:
    """Return the JSON Schemas of all types that are sent or received, with the docstrings of their fields as descriptions."""
    modes = [(model, "validation") for model in models(lambda owner: owner.sent).values()]
    modes += [(model, "serialization") for model in models(lambda owner: owner.received).values()]
    _, whole = models_json_schema(modes)  # type: ignore[arg-type]  # the literals of a list
    found = {name: schema for name, schema in whole["$defs"].items() if name != "JsonValue"}
    told = {cls.__name__: field_descriptions(cls) for cls in _inside([ContentBlocks, *(model for model, _ in modes)], set())}
    for name, schema in found.items():
        for part in (schema, *schema.get("anyOf", ())):
            for field, about in part.get("properties", {}).items():
                if text := told[plain_name(name)].get(field) or _sentence(plain_name(name), field, about, found):
                    about.setdefault("description", text)
    return found


def _sentence(name: str, field: str, about: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the sentence of a field without a docstring: from the table, else its constant, else the first sentence of its type."""
    options = about.get("anyOf", [about])
    text = SENTENCES.get(name, {}).get(field) or SENTENCES["every"].get(field, "")
    if text and {"type": "null"} not in options:
        text = re.sub(r"; null [^;]*\.$", ".", text)
    if not text and "const" in about:
        return f"Always `{about['const']}`."
    kinds = [plain_name(option.get("items", option).get("$ref", "").rpartition("/")[2]) for option in options]
    about_type = next((found[kind].get("description", "") for kind in kinds if kind in found), "")
    return text or re.sub(r"[:,]? `[A-Z].*`|[.:] .*", "", about_type.partition("\n")[0].rstrip(".")) + "." * bool(about_type)


def _inside(kinds: Iterable[Any], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Return the models among annotations, with all models inside them."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            _inside([field.annotation for field in kind.model_fields.values()], seen)
        _inside(get_args(kind), seen)
    return seen


def plain_name(name: str) -> str:
    """Return the name of a type's class: `Rubric` of `Rubric-Input`."""
    return name.removesuffix("-Output").removesuffix("-Input")


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
    """Return the type of a schema; what is not supported, a range say, is left to gradeloop."""
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
        bare = {name: {**field, "description": None} for name, field in schema["properties"].items()}  # they have no lines of their own
        return f"{{ {' '.join(line.strip() for line in _fields({**schema, 'properties': bare}, ''))} }}"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"{{ [key: string]: {_type(more)} }}"
    return _PRIMITIVES.get(kind or "", "JsonValue")


if __name__ == "__main__":
    sys.stdout.write(contract_declarations())
