"""The command `schema`: the wire contract and the files that people write as JSON Schemas, and the contract as TypeScript."""

import json
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from gradeloop.batches.contract import BatchRequest, BatchSummary, CaseResult, Upload
from gradeloop.calibration.labels import Label
from gradeloop.cli.task_file import TaskFile
from gradeloop.cli.typescript import declare
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
from gradeloop.judges.contract import CriteriaJudge, JudgeResult, JudgingRequest, SchemaJudge
from gradeloop.settings.worker import WorkerSettings
from gradeloop.suites.suite import SuiteFile
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

_SENT: dict[str, type[BaseModel]] = {
    "ThreadRequest": ThreadRequest,
    "InvokeRequest": InvokeRequest,
    "DecideRequest": DecideRequest,
    "OverrideRequest": OverrideRequest,
    "ApproveRequest": ApproveRequest,
    "DenyRequest": DenyRequest,
    "ToolElsewhere": RemoteTool,
    "Rubric": Rubric,
    "JudgingRequest": JudgingRequest,
    "AgentRun": AgentRun,
    "BatchRequest": BatchRequest,
    "Upload": Upload,
    "SchemaJudge": SchemaJudge,
    "CriteriaJudge": CriteriaJudge,
}
_RECEIVED: dict[str, type[BaseModel]] = {
    "RunResult": RunResult,
    "ThreadState": ThreadState,
    "Evaluation": Evaluation,
    "Message": Message,
    "Event": Event,
    "JudgeResult": JudgeResult,
    "CaseResult": CaseResult,
    "BatchSummary": BatchSummary,
    "Notice": Notice,
}


FILES: dict[str, type[BaseModel]] = {"Suite": SuiteFile, "Task": TaskFile, "Settings": WorkerSettings, "Label": Label}
"""The models of files that people write, besides those that go over the wire."""

_NOT_IN_FILE = ("config", "folder", "trust", "ready_file", "examine")
"""The settings of a worker that are flags alone."""


def contract_declarations() -> str:
    """Return the wire contract as TypeScript."""
    return declare(tuple(_SENT.values()), tuple(_RECEIVED.values()), {"Verdict": verdict_schema()})


def json_schemas(name: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of one model by its name on the wire, or of all by name.

    Raises:
        InvalidRequest: There is no such name.
    """
    schemas = {key: model.model_json_schema(mode="validation") for key, model in {**_SENT, **FILES}.items()}
    for key in _NOT_IN_FILE:
        del schemas["Settings"]["properties"][key]
    schemas |= {key: model.model_json_schema(mode="serialization") for key, model in _RECEIVED.items()}
    schemas["Verdict"] = verdict_schema()
    schemas = {key: {"$schema": DIALECT, "$id": f"urn:gradeloop:schema:{key}"} | found for key, found in schemas.items()}
    if name is None:
        return schemas
    if name not in schemas:
        raise InvalidRequest(f"there is no schema {clip(name)}.{did_you_mean(name, sorted(schemas))}")
    return schemas[name]
