"""The wire contract of a judgement: the typed door to the workflow `Judging`. Told in `docs/contract.md`."""

from collections.abc import Sequence

from pydantic import ValidationError
from temporalio import workflow

from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.judging_request import JudgingRequest
from gradeloop.usage import Usage

WORKFLOW = "Judging"

UNAVAILABLE = "JudgeUnavailable"
"""The type of the failure of a judgement that no judge could be had for; the same may be run again."""


@workflow.defn(name=WORKFLOW)
class Judging:
    """One judgement of one finished run. The worker's own class answers."""

    @workflow.run
    async def run(self, request: JudgingRequest) -> JudgeResult:
        """Judge the run; an answer that is invalid after its repairs is a result of type `FAILURE`.

        Raises:
            ApplicationError: `JudgeUnavailable` where providers or tools failed, so that the same may be run again; `InvalidRequest` and
                `RunTooLarge` before any paid call.
        """
        raise NotImplementedError


def usage_told(details: Sequence[object]) -> Usage:
    """Return what a judgement has cost that failed as `JudgeUnavailable`, as the details of its failure tell."""
    first = details[0] if details else None
    try:
        return Usage.model_validate(first["usage"] if isinstance(first, dict) and "usage" in first else {})
    except ValidationError:
        return Usage()
