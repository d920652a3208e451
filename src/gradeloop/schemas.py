"""The wire contract as JSON Schemas."""

from typing import Any

from pydantic import BaseModel

from gradeloop.batches.batch_request import BatchRequest, Upload
from gradeloop.batches.case_result import BatchSummary, CaseResult
from gradeloop.contracts import RunResult, ThreadState
from gradeloop.errors import InvalidRequest
from gradeloop.evaluation import Evaluation
from gradeloop.event import Event
from gradeloop.judges.agent_run import AgentRun
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.judging_request import JudgingRequest
from gradeloop.printable import clip, did_you_mean
from gradeloop.request import ThreadRequest
from gradeloop.rubric import Rubric
from gradeloop.steering import ApproveRequest, DecideRequest, DenyRequest, InvokeRequest, OverrideRequest
from gradeloop.suites.suite import SuiteFile
from gradeloop.tool_elsewhere import ToolElsewhere
from gradeloop.transcript import Message
from gradeloop.verdict import verdict_schema

_SENT: dict[str, type[BaseModel]] = {
    "ThreadRequest": ThreadRequest,
    "InvokeRequest": InvokeRequest,
    "DecideRequest": DecideRequest,
    "OverrideRequest": OverrideRequest,
    "ApproveRequest": ApproveRequest,
    "DenyRequest": DenyRequest,
    "ToolElsewhere": ToolElsewhere,
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
