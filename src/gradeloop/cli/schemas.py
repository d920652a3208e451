"""The command `schema`: the wire contract and the files that people write as JSON Schemas, and the contract as TypeScript."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gradeloop.cli.task_file import TaskFile
from gradeloop.contract.base import SchemaModels
from gradeloop.contract.evaluation import Evaluation, Event, verdict_schema
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import RemoteTool
from gradeloop.contract.notice import Notice
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import (
    ApproveRequest,
    DecideRequest,
    DenyRequest,
    InvokeRequest,
    OverrideRequest,
    RunResult,
    ThreadRequest,
    ThreadState,
)
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import parts
from gradeloop.settings.worker import WorkerSettings
from gradeloop.text import clip, did_you_mean

app = typer.Typer()


@app.command()
def schema(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this schema alone.")] = None,
    *,
    typescript: Annotated[bool, typer.Option("--typescript", help="Print TypeScript's declarations of the contract instead.")] = False,
) -> None:
    """Print the JSON Schemas of the wire contract."""
    if typescript and name:
        raise InvalidRequest(f"--typescript declares the whole contract; leave {clip(name)} or the flag out")
    typer.echo(contract_declarations() if typescript else json.dumps(json_schemas(name), indent=2), nl=not typescript)


DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""What the schemas are written in, which editors and validators look for."""

_OWN = SchemaModels(
    {
        "ThreadRequest": ThreadRequest,
        "InvokeRequest": InvokeRequest,
        "DecideRequest": DecideRequest,
        "OverrideRequest": OverrideRequest,
        "ApproveRequest": ApproveRequest,
        "DenyRequest": DenyRequest,
        "ToolElsewhere": RemoteTool,
        "Rubric": Rubric,
        "AgentRun": AgentRun,
    },
    {"RunResult": RunResult, "ThreadState": ThreadState, "Evaluation": Evaluation, "Message": Message, "Event": Event, "Notice": Notice},
    {"Task": TaskFile, "Settings": WorkerSettings},
)


def models(of: Callable[[SchemaModels], Mapping[str, type[BaseModel]]]) -> dict[str, type[BaseModel]]:
    """Return the models of one kind, those of extensions too, by name."""
    owners = (_OWN, *parts(lambda extension: extension.schemas))
    return {name: model for owner in owners for name, model in of(owner).items()}


_NOT_IN_FILE = ("config", "folder", "trust", "ready_file", "examine")
"""The settings of a worker that are flags alone."""


def contract_declarations() -> str:
    """Return the wire contract as TypeScript."""
    return declare(
        tuple(models(lambda owner: owner.sent).values()),
        tuple(models(lambda owner: owner.received).values()),
        {"Verdict": verdict_schema()},
    )


def json_schemas(name: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of one model by its name on the wire, or of all by name.

    Raises:
        InvalidRequest: There is no such name.
    """
    sent = models(lambda owner: {**owner.sent, **owner.files})
    schemas = {key: model.model_json_schema(mode="validation") for key, model in sent.items()}
    for key in _NOT_IN_FILE:
        del schemas["Settings"]["properties"][key]
    schemas |= {key: model.model_json_schema(mode="serialization") for key, model in models(lambda owner: owner.received).items()}
    schemas["Verdict"] = verdict_schema()
    schemas = {key: {"$schema": DIALECT, "$id": f"urn:gradeloop:schema:{key}"} | found for key, found in schemas.items()}
    if name is None:
        return schemas
    if name not in schemas:
        raise InvalidRequest(f"there is no schema {clip(name)}.{did_you_mean(name, sorted(schemas))}")
    return schemas[name]


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
        bare = {name: {**field, "description": None} for name, field in schema["properties"].items()}  # they have no lines of their own
        return f"{{ {' '.join(line.strip() for line in _fields({**schema, 'properties': bare}, ''))} }}"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"{{ [key: string]: {_type(more)} }}"
    return _PRIMITIVES.get(kind or "", "JsonValue")
