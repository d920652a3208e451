"""The models of batches and judges that `gradeloop schema` shows."""

from gradeloop.batches.contract import BatchRequest, BatchSummary, CaseResult, Upload
from gradeloop.contract.base import SchemaModels
from gradeloop.judges.contract import CriteriaJudge, JudgeResult, JudgingRequest, SchemaJudge
from gradeloop.judges.judgements import Label

SCHEMAS = SchemaModels(
    {
        "JudgingRequest": JudgingRequest,
        "BatchRequest": BatchRequest,
        "Upload": Upload,
        "SchemaJudge": SchemaJudge,
        "CriteriaJudge": CriteriaJudge,
    },
    {"JudgeResult": JudgeResult, "CaseResult": CaseResult, "BatchSummary": BatchSummary},
    {"Label": Label},
)
