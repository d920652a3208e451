"""The comparison of two batches, by case and by criterion."""

from typing import Literal, get_args

from pydantic import ConfigDict, Field

from gradeloop.batches.case import CaseStatus
from gradeloop.batches.case_result import BatchStatus
from gradeloop.comparisons.batch_source import Cost
from gradeloop.comparisons.gate import Gate
from gradeloop.comparisons.interval import Interval
from gradeloop.strict import Strict

SCHEMA: Literal["gradeloop.diff/1"] = "gradeloop.diff/1"

Outcome = Literal["regressed", "lost", "improved", "gained", "added", "removed", "unjudged", "same"]
"""`lost`: a verdict in A, an error or nothing in B, which is no failure; `gained`: the reverse; `unjudged`: no verdict in either."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""In the order in which cases are listed."""


class PassRate(Strict):
    """How many of some runs passed."""

    rate: float
    """0 to 1; of cases that were run several times the mean of their rates."""
    interval: Interval
    cases: int
    """Judged ones, each of which counts once."""


class BatchFacts(Strict):
    """One of the two batches as a whole."""

    source: str
    """As it was asked for: a batch, or a file."""
    batch_id: str | None = None
    """None of a file of lines, which has cases alone."""
    suite: str | None = None
    created: str | None = None
    """ISO 8601, UTC."""
    status: BatchStatus | None = None
    runs: int
    """Cases, each repetition counted."""
    statuses: dict[CaseStatus, int]
    """The number of runs per status."""
    pass_rate: PassRate | None = None
    """Of all its judged cases, those that the other one lacks too; None where none was judged."""
    score: float | None = None
    """The mean over judged runs that have one."""
    cost: Cost = Cost()
    """Of all attempts; of a file of lines, of each case's last one."""


class CriterionSide(Strict):
    """The result of a criterion in one batch, over the runs of one case."""

    judged: int
    passed: int
    gap: str = ""
    """What is said against it in the first run that it failed; its beginning."""
    overridden: bool = False
    """True where a person's word counts instead of the machine's."""


class CriterionChange(Strict):
    """A criterion whose verdict changed."""

    id: str
    name: str
    outcome: Outcome
    a: CriterionSide | None = None
    """None where only B has it."""
    b: CriterionSide | None = None
    reworded: bool = False
    """True where its text is not the same, so that its verdicts may not be of the same thing."""


class CaseSide(Strict):
    """The result of a case in one batch."""

    runs: int
    judged: int
    passed: int
    status: CaseStatus | None = None
    """Of a case that was run once."""
    score: float | None = None
    """The mean over its judged runs."""
    interval: Interval | None = None
    """Of its pass rate, where it was run several times."""
    error: str = ""
    """Why the first run without a verdict has none; its beginning."""


class CaseRow(Strict):
    """A case in both batches, or in one of them."""

    id: str
    """Without the number of its repetition."""
    outcome: Outcome
    a: CaseSide | None = None
    b: CaseSide | None = None
    difference: Interval | None = None
    """Of its pass rate, B's minus A's, where it was run several times: `regressed` is what lies below 0 as a whole."""
    score_change: Literal["up", "down"] | None = None
    changes: tuple[CriterionChange, ...] = ()
    """Regressed criteria first."""

    @property
    def noise(self) -> bool:
        """Whether its pass rate is another one, but by no more than chance may do."""
        both = self.a and self.b and self.outcome == "same"
        return bool(both) and self.a.passed * self.b.judged != self.b.passed * self.a.judged  # type: ignore[union-attr]  # both are there

    @property
    def silenced(self) -> bool:
        """Whether more of its runs have no verdict in B than in A."""
        return bool(self.a and self.b) and self.b.runs - self.b.judged > self.a.runs - self.a.judged  # type: ignore[union-attr]  # both are there


class CriterionTally(Strict):
    """A criterion over all cases that have it in both batches."""

    id: str
    name: str
    """Its text where it is first met."""
    texts: int = 1
    """How many texts it has: more than one where cases have rubrics of their own, or texts with variables in them."""
    counts: dict[Outcome, int]
    """The number of cases per outcome."""
    a: CriterionSide
    b: CriterionSide


class Overall(Strict):
    """Both batches over the cases that have a verdict in each."""

    a: PassRate
    b: PassRate
    difference: float
    """B's rate minus A's."""
    interval: Interval
    """Of the difference; it knows that the cases are the same."""
    fell: int
    """Cases whose pass rate is lower in B, within noise or not."""
    rose: int
    by_chance: float
    """How often chance alone would be as uneven as that: McNemar's exact test, two-sided."""


class Comparison(Strict):
    """All that two batches differ in."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_name: Literal["gradeloop.diff/1"] = Field(default=SCHEMA, alias="schema")
    a: BatchFacts
    b: BatchFacts
    counts: dict[Outcome, int]
    """The number of cases per outcome; zero is left out."""
    overall: Overall | None = None
    """None where no case has a verdict in both."""
    cases: tuple[CaseRow, ...]
    """Every case of A and of B once, the worst first."""
    criteria: tuple[CriterionTally, ...] = ()
    """The one that regressed in most cases first."""
    notes: tuple[str, ...] = ()
    """What may make the comparison mean less than it seems to."""

    def hits(self, gate: Gate) -> int:
        """Return how many cases or criteria a gate holds against B."""
        found = {
            Gate.REGRESSIONS: self.counts.get("regressed", 0),
            Gate.ERRORS: sum(row.silenced for row in self.cases),
            Gate.CRITERIA: sum(1 for each in self.criteria if each.counts.get("regressed")),
        }
        return sum(found.values()) + self.counts.get("removed", 0) if gate is Gate.ANY else found[gate]
