"""The wire contract as JSON Schemas."""

from typing import Any

from pydantic import BaseModel

from gradeloop.batches.contract import BatchRequest, BatchSummary, CaseResult, Upload
from gradeloop.contract.evaluation import Evaluation, Event, verdict_schema
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import RemoteTool
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
from gradeloop.judges.contract import JudgeResult, JudgingRequest
from gradeloop.suites.suite import SuiteFile
from gradeloop.text import clip, did_you_mean

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
    "Suite": SuiteFile,
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
}


def schemas_of(name: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of one name, or of all by name.

    Raises:
        InvalidRequest: There is no such name.
    """
    schemas = {key: model.model_json_schema(mode="validation") for key, model in _SENT.items()}
    schemas |= {key: model.model_json_schema(mode="serialization") for key, model in _RECEIVED.items()}
    schemas["Verdict"] = verdict_schema()
    if name is None:
        return schemas
    if name not in schemas:
        raise InvalidRequest(f"there is no schema {clip(name)}.{did_you_mean(name, sorted(schemas))}")
    return schemas[name]
