"""Prints the reference of the wire contract: `python deploy/site/describe_contract.py > docs/reference.md`, as `make docs` does."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from deploy.site.declare_contract import SENTENCES, definitions, plain_name
from gradeloop.cli.schemas import json_schemas, models
from gradeloop.contract.model_spec import PROVIDERS
from gradeloop.settings.endpoints import NamedEndpoint, presets_by_name
from gradeloop.telemetry.metrics import METRICS, Metric

HEAD = """# Reference of the wire contract

All types that gradeloop takes and writes as JSON, from the code's models and the docstrings of their fields.
`make docs` writes this page, and a test compares it with the code. [The contract](contract.md) says how to use these types.
`gradeloop schema NAME` prints one as JSON Schema.

In what you send, a field is optional unless it is marked **required**. A `null` counts as an absent field, and unknown fields are refused.
In what you receive, a field marked *optional* may be absent.

Schemas of the files that people write are for editors: `Task`, `Suite`, `Rubric`, `CriteriaJudge`, `SchemaJudge`, `Label` and `Settings`.
Print one by `gradeloop schema Task > task.schema.json`, and name it in the file's first line, as `gradeloop init` does:
`# yaml-language-server: $schema=task.schema.json` in YAML, `#:schema settings.schema.json` in TOML.
`gradeloop validate FILE...` reads these files as their commands do, and names file, line and cure of each mistake.

At the end stand the worker's [settings](#settings), its [metrics](#metrics) and its [endpoints with names](#endpoints-with-names)."""

SETTINGS = """The keys of a worker's `gradeloop.toml`, which are also its flags and variables `GRADELOOP_*`.
[Tools](tools/README.md#settings) has an example, and says which file is read and when it is trusted."""

METRICS_HEAD = """## Metrics

Metrics of a worker, as Prometheus sees them at `/metrics`. [Operating](operating.md#metrics) says how to switch them on.

| metric | kind | labels | meaning |
|---|---|---|---|"""

ENDPOINTS_HEAD = """## Endpoints with names

`NAME:model` is called at the endpoint of that name. `${NAME:-default}` in an address is a variable of the worker and its default.
The first variable of a key that is set counts. [Models](models.md#endpoints-with-names) says how to add endpoints and what clouds need.

| name | protocol | address | variables of its key |
|---|---|---|---|"""

BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"),
    ("maxLength", "at most {} characters"),
    ("maxItems", "at most {} items"),
)
PLAIN = frozenset({"string", "integer", "number", "boolean", "null"})


def contract_reference() -> str:
    """Return the page: what is sent, what is received, and the types inside them, with a table of fields for each type."""
    found = definitions()
    kinds = {"You send": models(lambda owner: owner.sent), "You receive": models(lambda owner: owner.received)}
    tops = {title: [model.__name__ for model in kind.values()] for title, kind in kinds.items()}
    inner = sorted({plain_name(name) for name in found} - {name for names in tops.values() for name in names})
    listed = (f"**{title}**: {', '.join(f'[{name}](#{name.lower()})' for name in names)}." for title, names in tops.items())
    names = dict.fromkeys([*(name for names in tops.values() for name in names), *inner])
    sent = {plain_name(name) for model in kinds["You send"].values() for name in _reached(model.__name__, found)}
    sections = (_section(name, found, sent=name in sent) for name in names)
    endpoints = (row for name, row in presets_by_name().items() if name not in PROVIDERS)
    tables = ["\n".join([METRICS_HEAD, *map(_metric_row, METRICS)]), "\n".join([ENDPOINTS_HEAD, *map(_endpoint_row, endpoints)])]
    return "\n\n".join([HEAD, *listed, *sections, *_settings(found), *tables]) + "\n"


def _settings(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the worker's settings: the keys of its file, and the types inside them that the contract does not have."""
    schema = json_schemas("Settings")
    for key, field in schema["properties"].items():
        if "$ref" in field:
            del field["default"]  # the defaults of the type that it names
            field.setdefault("description", SENTENCES["Settings"].get(key, ""))
    inner = {name: one for name, one in schema["$defs"].items() if name not in found and name != "JsonValue"}
    yield _section("Settings", {"Settings": schema | {"description": SETTINGS}}, sent=True)
    yield from (_section(name, inner, sent=True) for name in sorted(inner))


def seen_name(metric: Metric) -> str:
    """Return the name of a metric that Prometheus sees."""
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{seen_name(metric)}` | {metric.kind} | {labels or 'none'} | {metric.description} |"


def _endpoint_row(row: NamedEndpoint) -> str:
    keys = " or ".join(f"`{key}`" for key in row.keys)
    optional = ", optional" if row.keyless and keys else ""
    address = row.base_url.removesuffix(":-}") + "}" if row.base_url.endswith(":-}") else row.base_url
    return f"| `{row.name}` | `{row.protocol}` | `{address}` | {keys or 'none'}{optional} |"


def _variant(name: str, found: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON of any shape
    return found.get(name) or found[f"{name}-Input"]


def _reached(name: str, found: Mapping[str, Any]) -> set[str]:
    """Return a type and all types inside it."""
    seen, unread = set[str](), [name]
    while unread:
        if (one := unread.pop()) not in seen and (one in found or f"{one}-Input" in found):
            seen.add(one)
            unread += map(plain_name, re.findall(r'#/\$defs/([\w-]+)"', json.dumps(_variant(one, found))))
    return seen


def _section(name: str, found: Mapping[str, Any], *, sent: bool) -> str:
    schema, others = _variant(name, found), list[str]()
    if options := schema.get("anyOf"):
        whole = next((one for one in options if "properties" in one), None)
        others = [_type(one) for one in options if one is not whole]
        schema = {"description": schema.get("description")} | (whole or found.get(f"{name}-Output", {}))
    text = " ".join((found.get(f"{name}-Output", schema).get("description") or "").split())
    also = f"Also written as {' or '.join(others)}." if others else ""
    required = set(schema.get("required", ()))
    rows = [
        f"| `{key}` | {_type(field)}{_more(field, key in required, sent)} | {_cell(field)} |" for key, field in schema["properties"].items()
    ]
    return "\n".join([f"## {name}\n\n{' '.join(filter(None, (text, also)))}\n", "| field | type | meaning |", "|---|---|---|", *rows])


def _cell(field: Mapping[str, Any]) -> str:
    return " ".join(str(field.get("description") or "").split()).replace("|", r"\|")


def _more(field: Mapping[str, Any], required: bool, sent: bool) -> str:
    if not sent:
        return "" if required else "; *optional*"
    if required:
        return "; **required**"
    default = field.get("default")
    if isinstance(default, Mapping):
        default = {key: value for key, value in default.items() if value is not None}
    return "" if default in (None, [], {}, "") else f"; default `{json.dumps(default)}`"


def _type(schema: Any) -> str:  # noqa: ANN401 - JSON of any shape
    """Return a type in words, with its bounds."""
    if not isinstance(schema, Mapping) or not schema:
        return "any JSON"
    if "$ref" in schema:
        name = plain_name(schema["$ref"].rpartition("/")[2])
        return "any JSON" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, options)))
    bounds = ", ".join(_bounds(schema))
    return f"{_kind(schema)} ({bounds})" if bounds else _kind(schema)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items'))}"
    if kind == "object":
        more = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
        named = [f"`{name}`" for name in schema.get("properties", ())]
        return f"object with {', '.join(named)}" if named else f"object of {_type(more)}" if isinstance(more, Mapping) else "object"
    return kind if kind in PLAIN else "any JSON"


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    if "minimum" in schema and "maximum" in schema:
        yield f"{schema['minimum']:,} to {schema['maximum']:,}"
        schema = {key: value for key, value in schema.items() if key not in {"minimum", "maximum"}}
    for key, words in BOUNDS:
        if key in schema and (key, schema[key]) != ("minimum", 0):
            yield words.format(f"{schema[key]:,}")


if __name__ == "__main__":
    sys.stdout.write(contract_reference())
