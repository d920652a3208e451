"""What the workflow `Judging` is started with, and the id that makes a judgement one."""

import hashlib
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from gradeloop import prompts
from gradeloop.errors import InvalidRequest, RunTooLarge, explain
from gradeloop.judges.agent_run import RUN_BYTES, STORED_RUN_BYTES, AgentRun, as_log
from gradeloop.judges.config import CriteriaJudge, JudgeConfig, config_of
from gradeloop.judges.schema_judge import SchemaJudge
from gradeloop.request import Priority
from gradeloop.strict import Strict

JUDGE_PROMPT_VERSION = "1"
"""Raised with every change of a text in `prompts/judge_*.md`."""


class JudgingRequest(Strict):
    """The one argument of the workflow `Judging`."""

    judge: SchemaJudge | CriteriaJudge
    run: AgentRun
    repeat: Annotated[int, Field(ge=0)] = 0
    """Which judgement of the same run by the same judge, from 0."""
    priority: Priority | None = None

    @field_validator("judge", mode="before")
    @classmethod
    def _reads_judge(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        return config_of(value)

    @model_validator(mode="after")
    def _says_something(self) -> "JudgingRequest":
        if isinstance(self.judge, CriteriaJudge) and not as_log(self.run):
            raise ValueError(f"run: no message of {self.run.id!r} says anything; there is nothing to judge")
        return self


def parse_judging(raw: object) -> JudgingRequest:
    """Validate the workflow's raw argument.

    Raises:
        InvalidRequest: With field, value and cure; RunTooLarge.
    """
    if not isinstance(raw, dict):
        raise InvalidRequest("the request is no object; send one JSON object with judge and run")
    try:
        request = JudgingRequest.model_validate(raw)
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from None
    refuse_large(request.run, stored=True)
    return request


def refuse_large(run: AgentRun, *, stored: bool) -> None:
    """Raise RunTooLarge where a run does not fit into a history.

    Args:
        run: The run.
        stored: Whether large payloads are kept outside of Temporal.
    """
    size, most = len(run.json_bytes()), STORED_RUN_BYTES if stored else RUN_BYTES
    if size > most:
        cure = "split it" if stored else "configure external storage (GRADELOOP_STORAGE), or split it"
        raise RunTooLarge(f"the run {run.id!r} has {size} bytes as JSON, {most} at most; {cure}")


def judging_id(judge: JudgeConfig, run_sha256: str, repeat: int = 0) -> str:
    """Return the id of a judgement: the same judge, run and repeat are one workflow, which is not paid for twice.

    So are those that an earlier version of gradeloop judged, as long as its own words in the prompt were the same.
    """
    words = prompts.VERSION if isinstance(judge, CriteriaJudge) else JUDGE_PROMPT_VERSION
    told = f"{judge.sha256()} {words} {run_sha256} {repeat}"
    return f"judging-{hashlib.sha256(told.encode()).hexdigest()}"
