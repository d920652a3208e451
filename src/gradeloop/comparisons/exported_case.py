"""What is read of the files that `gradeloop eval -o` writes; whatever a later version has put beside it is passed over."""

from pydantic import Field

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import SCHEMA, BatchStatus
from gradeloop.comparisons.comparison import Cost
from gradeloop.strict import Recorded


class _Spent(Recorded):
    input: int = 0
    output: int = 0
    cost_usd: float | None = None

    @property
    def cost(self) -> Cost:
        return Cost(tokens=self.input + self.output, cost_usd=self.cost_usd)


class _Override(Recorded):
    passed: bool
    why: str = ""


class ExportedRow(Recorded):
    """A criterion's row, whatever a later version has put beside it."""

    id: str
    name: str
    passed: bool
    reason: str = ""
    gap: str | None = None
    unverified: bool = False
    override: _Override | None = None


class ExportedCase(Recorded):
    """A case of a file."""

    id: str
    repeat: int = 0
    status: CaseStatus
    score: float | None = None
    error: str | None = None
    criteria: tuple[ExportedRow, ...] = ()
    usage: _Spent = _Spent()
    schema_name: str = Field(default=SCHEMA, alias="schema")


class ExportedSummary(Recorded):
    """The batch of a file, as a whole."""

    batch_id: str
    name: str | None = None
    created: str | None = None
    status: BatchStatus | None = None
    usage: _Spent = _Spent()


class ExportHead(Recorded):
    """What comes before the cases of a `.json` file."""

    schema_name: str = Field(alias="schema")
    summary: ExportedSummary
