"""What a judgement of a batch says in a monitor's terms."""

from collections.abc import Sequence

from gradeloop.batches.contract import CaseResult
from gradeloop.judges.abstention import with_unsure
from gradeloop.judges.contract import CriteriaJudge, SchemaJudge
from gradeloop.judges.pass_rule import PassRule
from gradeloop.monitors.contract import MonitorVerdict


def verdict_of(judge: CriteriaJudge | SchemaJudge, passes: Sequence[str], status: str, result: str | None) -> MonitorVerdict:
    """Return what a judge says of a run.

    Args:
        judge: The judge.
        passes: What passes a judgement by a schema, as KEY=VALUE.
        status: The status of the case that judges the run.
        result: The case's result as JSON; None where it has none.
    """
    if result is None:
        return "error" if status == "error" else "unjudged"
    judgement = CaseResult.model_validate_json(result).judgement
    if judgement is None or judgement.failed:
        return "error"
    judgement = with_unsure(judge, judgement)
    passed = PassRule(judge, passes).passed(judgement)
    return "unsure" if passed is None else "passed" if passed else "failed"
