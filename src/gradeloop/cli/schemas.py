"""The command `schema`: the wire contract and the files that people write as JSON Schemas."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from gradeloop.cli.task_file import TaskFile
from gradeloop.contract import thread
from gradeloop.contract.base import SchemaModels
from gradeloop.contract.evaluation import Evaluation, Event, Verdict
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import RemoteTool
from gradeloop.contract.notice import Notice
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import parts
from gradeloop.settings.worker import WorkerSettings
from gradeloop.text import clip, did_you_mean

app = typer.Typer()


@app.command()
def schema(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print only this schema.")] = None,
) -> None:
    """Print the JSON Schemas of the wire contract."""
    typer.echo(json.dumps(json_schemas(name), indent=2))


DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of the schemas, which editors and validators look for."""

_OWN = SchemaModels(
    {
        "ThreadRequest": thread.ThreadRequest,
        "InvokeRequest": thread.InvokeRequest,
        "DecideRequest": thread.DecideRequest,
        "OverrideRequest": thread.OverrideRequest,
        "ApproveRequest": thread.ApproveRequest,
        "DenyRequest": thread.DenyRequest,
        "ToolElsewhere": RemoteTool,
        "Rubric": Rubric,
        "AgentRun": AgentRun,
    },
    {
        "RunResult": thread.RunResult,
        "ThreadState": thread.ThreadState,
        "SuppliedRubric": thread.SuppliedRubric,
        "Interruption": thread.Interruption,
        "Evaluation": Evaluation,
        "Verdict": Verdict,
        "Message": Message,
        "Event": Event,
        "Notice": Notice,
    },
    {"Task": TaskFile, "Settings": WorkerSettings},
)


def models(of: Callable[[SchemaModels], Mapping[str, type[BaseModel]]]) -> dict[str, type[BaseModel]]:
    """Return the models of one kind, those of extensions too, by name."""
    owners = (_OWN, *parts(lambda extension: extension.schemas))
    return {name: model for owner in owners for name, model in of(owner).items()}


_NOT_IN_FILE = ("config", "folder", "trust", "ready_file", "examine")
"""Settings of a worker that are only flags."""


def json_schemas(name: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of one model by its name on the wire, or of all by name. Raise InvalidRequest where there is no such name."""
    sent = models(lambda owner: {**owner.sent, **owner.files})
    schemas = {key: model.model_json_schema(mode="validation") for key, model in sent.items()}
    for key in _NOT_IN_FILE:
        del schemas["Settings"]["properties"][key]
    schemas |= {key: model.model_json_schema(mode="serialization") for key, model in models(lambda owner: owner.received).items()}
    schemas = {key: {"$schema": DIALECT, "$id": f"urn:gradeloop:schema:{key}"} | found for key, found in schemas.items()}
    if name is None:
        return schemas
    if name not in schemas:
        raise InvalidRequest(f"there is no schema {clip(name)}.{did_you_mean(name, sorted(schemas))}")
    return schemas[name]
