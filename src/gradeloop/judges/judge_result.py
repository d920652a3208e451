"""What a judgement comes to."""

from typing import Literal

from pydantic import Field, JsonValue

from gradeloop.strict import Recorded
from gradeloop.usage import Usage

ResultType = Literal["DIRECT_RESULT", "FAILURE"]


class JudgeResult(Recorded):
    """One judgement of one run; a `FAILURE` says nothing about the run."""

    id: str
    """Of the judgement: the Temporal workflow's id."""
    agent_run_id: str
    rubric_id: str
    rubric_version: int
    output: dict[str, JsonValue]
    """By the judge's schema; empty where it is a `FAILURE`."""
    result_type: ResultType
    result_metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Rollouts, votes, ties and citations; of a `FAILURE` its `reason`, `raw_text`, and as `again` whether the same may be run again."""
    usage: Usage = Usage()
    model: str | None = None
    """Who judged; None where checks alone decided, or nobody was reached."""
    attempts: int = 0
    """Requests that were sent to providers, the failed ones included."""
    prompt_sha256: str | None = None
    """Of what the judge was sent, the judgement's random code masked; None where several calls of a rubric make one judgement."""

    @property
    def failed(self) -> bool:
        """True where there is no output."""
        return self.result_type == "FAILURE"
