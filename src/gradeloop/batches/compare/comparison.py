"""The comparison of two batches: case by case, criterion by criterion, and the gate on it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from sys import intern
from typing import Literal, get_args

from pydantic import ConfigDict, Field

from gradeloop.batches.answer import NOT_ASKED, unsure_reason
from gradeloop.batches.contract import BatchStatus, BatchSummary, CaseResult, CaseStatus
from gradeloop.batches.exports import ReadBatch, read_batch
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.base import OmitEmpty, Strict
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.errors import InvalidRequest
from gradeloop.stats.intervals import Interval, difference, mcnemar, mean, paired_difference, wilson
from gradeloop.text import clip, counted


class ComparisonGate(StrEnum):
    """Changes that make `gradeloop diff --fail-on` exit with 1."""

    REGRESSIONS = "regressions"
    """Cases that regressed."""
    ERRORS = "errors"
    """Cases with more errors in B than in A."""
    UNSURE = "unsure"
    """Cases of which more runs are unsure in B than in A."""
    CRITERIA = "criteria"
    """Criteria that regressed in at least one case, whatever its verdict."""
    ANY = "any"
    """All of these, and cases missing from B."""


SCHEMA: Literal["gradeloop.diff/1"] = "gradeloop.diff/1"

Outcome = Literal["regressed", "lost", "unsure", "improved", "gained", "decided", "added", "removed", "unjudged", "unasked", "same"]
"""`lost`: a verdict in A, an error or nothing in B, and no failure; `gained`: the reverse; `unjudged`: no verdict in either.

`unsure`: a verdict in A, of which the judge is unsure in B; `decided`: the reverse; `unasked`: B ended once its answer was known.
"""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""The outcomes in the order in which cases are listed."""


class PassRate(Strict):
    """The share of some runs that passed."""

    rate: float
    """0 to 1; the mean of the cases' rates where cases were run several times."""
    interval: Interval
    cases: int
    """Judged cases, each of which counts once."""


class Cost(Strict):
    """The tokens and the cost of a batch."""

    tokens: int | None = 0
    """Input and output tokens; None where the server of some call does not report them."""
    cost_usd: float | None = None
    """None where the price or the tokens of some call are unknown, or no model was called."""


class BatchFacts(Strict):
    """One of the two batches as a whole."""

    source: str
    """The batch or the file, as the user named it."""
    batch_id: str | None = None
    """None for a `.jsonl` file, which has only cases, and for a thread, whose drafts are the cases."""
    thread_id: OmitEmpty[str | None] = None
    suite: str | None = None
    created: str | None = None
    """ISO 8601, UTC."""
    status: BatchStatus | None = None
    held_against: OmitEmpty[str | None] = None
    """The batch from which no case regressed, as far as its early end knows."""
    runs: int
    """Cases, each repetition counted."""
    statuses: dict[CaseStatus, int]
    """The number of runs per status."""
    pass_rate: PassRate | None = None
    """The pass rate over all judged cases, those missing from the other batch included; None where none was judged."""
    score: float | None = None
    """The mean over judged runs that have a score."""
    cost: Cost = Cost()
    """The cost of all attempts; in a `.jsonl` file, of each case's last attempt."""


class CriterionSide(Strict):
    """The result of a criterion in one batch, over the runs of one case."""

    judged: int
    passed: int
    gap: str = ""
    """The beginning of the gap in the first run that failed the criterion."""
    overridden: bool = False
    """True where a person overrode the grader's verdict."""


class CriterionChange(Strict):
    """A criterion whose verdict changed."""

    id: str
    name: str
    outcome: Outcome
    a: CriterionSide | None = None
    """None where only B has the criterion."""
    b: CriterionSide | None = None
    reworded: bool = False
    """True where the criterion's text changed, so that its verdicts may not be comparable."""


class CaseSide(Strict):
    """The result of a case in one batch."""

    runs: int
    judged: int
    passed: int
    unsure: int = 0
    """The runs that their judge does not decide."""
    status: CaseStatus | None = None
    """The status of a case that was run once; None for several runs."""
    score: float | None = None
    """The mean over the judged runs."""
    interval: Interval | None = None
    """The interval of the pass rate of several runs."""
    error: str = ""
    """The beginning of the error of the first run without a verdict, or of what its judge is unsure of."""

    @property
    def unfinished(self) -> int:
        """The runs that are errors, or did not run."""
        return self.runs - self.judged - self.unsure


class CaseComparison(Strict):
    """A case in both batches, or in one of them."""

    id: str
    """The case's id without the number of its repetition."""
    outcome: Outcome
    a: CaseSide | None = None
    b: CaseSide | None = None
    difference: Interval | None = None
    """The interval of B's pass rate minus A's, for several runs: a case whose whole interval lies below 0 has `regressed`."""
    score_change: Literal["up", "down"] | None = None
    changes: tuple[CriterionChange, ...] = ()
    """Criteria whose verdict changed, regressed ones first."""

    @property
    def noise(self) -> bool:
        """Whether the pass rate changed, but by no more than chance may do."""
        both = self.a and self.b and self.outcome == "same"
        return bool(both) and self.a.passed * self.b.judged != self.b.passed * self.a.judged  # type: ignore[union-attr]  # both are there

    @property
    def silenced(self) -> bool:
        """Whether more of its runs are errors, or did not run, in B than in A."""
        return self.a is not None and self.b is not None and self.b.unfinished > self.a.unfinished and self.outcome != "unasked"

    @property
    def doubted(self) -> bool:
        """Whether its judge is unsure of more of its runs in B than in A."""
        return self.a is not None and self.b is not None and self.b.unsure > self.a.unsure


class CriterionTally(Strict):
    """A criterion over all cases that have it in both batches."""

    id: str
    name: str
    """The text in the first case in which the criterion regressed; where it did in none, in the first that has it."""
    texts: int = 1
    """The number of different texts: more than one where cases have rubrics of their own, or texts with variables in them."""
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
    """The interval of the difference, computed as paired: the cases are the same."""
    fell: int
    """Cases whose pass rate is lower in B, within noise or not."""
    rose: int
    by_chance: float
    """The p-value of McNemar's exact test, two-sided: how often chance is as uneven."""


class Comparison(Strict):
    """All differences of two batches."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_name: Literal["gradeloop.diff/1"] = Field(default=SCHEMA, alias="schema")
    a: BatchFacts
    b: BatchFacts
    counts: dict[Outcome, int]
    """The number of cases per outcome; zero is left out."""
    overall: Overall | None = None
    """None where no case has a verdict in both batches."""
    cases: tuple[CaseComparison, ...]
    """Every case of A and of B once, the worst first."""
    criteria: tuple[CriterionTally, ...] = ()
    """The criteria, those that regressed in most cases first."""
    notes: tuple[str, ...] = ()
    """Reasons why the comparison may mean less than it seems to."""

    def findings(self, gate: ComparisonGate) -> int:
        """Return how many cases or criteria fail a gate."""
        found = {
            ComparisonGate.REGRESSIONS: self.counts.get("regressed", 0),
            ComparisonGate.ERRORS: sum(row.silenced for row in self.cases),
            ComparisonGate.UNSURE: sum(row.doubted for row in self.cases),
            ComparisonGate.CRITERIA: sum(1 for criterion in self.criteria if criterion.counts.get("regressed")),
        }
        return sum(found.values()) + self.counts.get("removed", 0) if gate is ComparisonGate.ANY else found[gate]

    def unknown(self, gates: Sequence[ComparisonGate]) -> str:
        """Return why gates that nothing fails do not pass either; empty where they do."""
        if self.overall is None:
            return "no case has a verdict in both batches, so nothing was compared"
        is_decided = self.a.batch_id is not None and self.b.held_against == self.a.batch_id and {*gates} == {ComparisonGate.REGRESSIONS}
        left = self.b.statuses.get("queued", 0) + self.b.statuses.get("waiting", 0)
        return f"B has not run {counted(left, 'case')}" if left and not is_decided else ""


GAP_CHARACTERS = 300
"""The most characters of a gap that are kept: 100,000 cases fit into memory, and a table shows less."""


@dataclass(frozen=True, slots=True)
class ComparedVerdict:
    """A verdict on a criterion."""

    id: str
    name: str
    passed: bool | None
    """The grader's verdict, or that of the person who overrode it; None where there is no verdict."""
    overridden: bool = False
    gap: str = ""


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One run of a case."""

    id: str
    repeat: int
    status: CaseStatus
    score: float | None
    verdicts: tuple[ComparedVerdict, ...]
    error: str = ""
    tokens: int | None = 0
    """Input and output tokens; None where the server of some call does not report them."""
    cost_usd: float | None = None

    @property
    def judged(self) -> bool:
        """Whether the run has a verdict; an error is not one."""
        return self.status in {"passed", "failed"}


def compared_case(result: CaseResult) -> ComparedCase:
    """Return the part of a result that a comparison needs."""
    verdicts = tuple(_verdict(row) for row in result.criteria)
    error = unsure_reason(result) if result.status == "unsure" else result.error
    spent = result.usage
    return ComparedCase(result.id, result.repeat, result.status, result.score, verdicts, _cut(error), spent.tokens, spent.cost_usd)


def _verdict(row: CriterionRow) -> ComparedVerdict:
    if (override := row.override) is not None:
        gap = "" if override.passed else _cut(override.why)
        return ComparedVerdict(intern(row.id), intern(row.name), override.passed, overridden=True, gap=gap)
    passed = None if row.unverified else row.passed
    if passed:
        return _passing(row.id, row.name)
    return ComparedVerdict(intern(row.id), intern(row.name), passed, gap=_cut(row.gap or row.reason))


@lru_cache(maxsize=10_000)
def _passing(name: str, text: str) -> ComparedVerdict:
    """Return the passing verdict on a criterion, one object for all cases that pass it."""
    return ComparedVerdict(intern(name), intern(text), passed=True)


def _cut(text: str | None) -> str:
    """Return the beginning of an error or a gap."""
    whole = text or ""
    return whole if len(whole) <= GAP_CHARACTERS else f"{whole[: GAP_CHARACTERS - 1]}…"


BatchSource = ReadBatch[ComparedCase]
"""A batch to compare."""


def load_batch(named: str, reader: Callable[[], BatchReader]) -> BatchSource:
    """Load a batch to compare; see `read_batch`."""
    return read_batch(named, reader, compared_case)


def stored_source(summary: BatchSummary, results: Iterable[CaseResult]) -> BatchSource:
    """Return a batch of the store, its results gone through once."""
    return ReadBatch(summary.batch_id, [compared_case(result) for result in results], summary)


def may_regress(batch: BatchSource) -> frozenset[str]:
    """Return the ids of the cases that regress from a batch if one later run of them fails."""
    failed = CaseSide(runs=1, judged=1, passed=0)
    return frozenset(name for name, runs in group_runs(batch.cases).items() if outcome_of(_side(runs), failed)[0] == "regressed")


def total_cost(cases: Iterable[ComparedCase]) -> Cost:
    """Return the sum; it is unknown where a case that used tokens has no known cost."""
    tokens, dollars, unreported, unknown = 0, 0.0, False, False
    for case in cases:
        tokens += case.tokens or 0
        dollars += case.cost_usd or 0.0
        unreported |= case.tokens is None
        unknown |= case.cost_usd is None and case.tokens != 0
    return Cost(tokens=None if unreported else tokens, cost_usd=None if unknown or not (tokens or unreported) else dollars)


def compare_batches(a: BatchSource, b: BatchSource) -> Comparison:
    """Compare two batches by case and criterion; raise InvalidRequest, with the probable reason, where they have no case in common."""
    runs_a, runs_b = group_runs(a.cases), group_runs(b.cases)
    refuse_unrelated(a, b, [*runs_a], [*runs_b])
    tallies, rows = dict[str, _Tally](), []
    for name in dict.fromkeys([*runs_a, *runs_b]):
        before, now = runs_a.get(name, ()), runs_b.get(name, ())
        changes = sorted(_changes(before, now, tallies), key=lambda change: OUTCOMES.index(change.outcome))
        rows.append(_row(name, _side(before), _side(now), tuple(changes)))
    counts = Counter(row.outcome for row in rows)
    worst_first = sorted(tallies.items(), key=lambda item: (-item[1].outcomes["regressed"], item[1].outcomes["improved"]))
    return Comparison(
        a=_facts(a, runs_a.values()),
        b=_facts(b, runs_b.values()),
        counts=_in_order(counts),
        overall=_overall(rows),
        cases=tuple(sorted(rows, key=lambda row: (OUTCOMES.index(row.outcome), _improvement(row)))),
        criteria=tuple(tally.row(name) for name, tally in worst_first),
        notes=tuple(comparison_notes(a, b, [name for name, tally in tallies.items() if tally.reworded])),
    )


def _in_order(counts: Counter[Outcome]) -> dict[Outcome, int]:
    return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}


# Two batches are aligned by the ids of their cases. A suite with `repeat: 3` has written three cases, `refund/1` to
# `refund/3`, of which only the number of the repetition tells that they are one; a user's own id may end the same way.
# So an id is cut only where its end is the case's own number, a later repetition has the same beginning, and no case is
# called like the beginning itself: a batch run once then aligns with one that was repeated, and two cases called `a/1`
# and `a/2` stay two.
def group_runs(cases: Sequence[ComparedCase]) -> dict[str, tuple[ComparedCase, ...]]:
    """Return the runs of each case by its id, in their order.

    A suite that runs each case several times ends their ids with `/1`, `/2`. So a case is a repetition where its id ends with its own
    number, and one that is not the first has the same beginning; an id that merely looks like that stays as it is.
    """
    repeated = {base for case in cases if case.repeat and (base := _base(case)) is not None} - {case.id for case in cases}
    grouped: dict[str, list[ComparedCase]] = {}
    for case in cases:
        base = _base(case)
        grouped.setdefault(base if base is not None and base in repeated else case.id, []).append(case)
    return {name: tuple(runs) for name, runs in grouped.items()}


def _base(case: ComparedCase) -> str | None:
    """Return an id without the number of its repetition; None where it does not end with one."""
    base, _, number = case.id.rpartition("/")
    return base if base and number == str(case.repeat + 1) else None


def outcome_of(a: CaseSide | CriterionSide | None, b: CaseSide | CriterionSide | None) -> tuple[Outcome, Interval | None]:
    """Return the outcome of a case or a criterion from A to B, and the interval of the difference where it was judged more than once.

    One run each is compared as it is: a pass that became a fail is a regression. Of several runs a lower rate may be noise, so a row is
    `regressed` only where the whole interval of the difference of the two rates lies below 0, `improved` where it lies above. Then
    chance calls at most 4 % of unchanged cases regressed, with two runs on each side 6 %; as if the runs were independent.
    """
    if a is None or b is None:
        return ("added" if a is None else "removed"), None
    if not a.judged or not b.judged:
        return _outcome_without_verdict(a, b), None
    if a.judged == b.judged == 1:
        return ("same" if a.passed == b.passed else "improved" if b.passed else "regressed"), None
    interval = difference(b.passed, b.judged, a.passed, a.judged)
    return ("regressed" if interval.high < 0 else "improved" if interval.low > 0 else "same"), interval


def _outcome_without_verdict(a: CaseSide | CriterionSide, b: CaseSide | CriterionSide) -> Outcome:
    """Return the outcome where one of the sides has no verdict, or neither."""
    if b.judged:
        return "decided" if _is_unsure(a) else "gained"
    if a.judged:
        return "unsure" if _is_unsure(b) else "unasked" if isinstance(b, CaseSide) and b.error.startswith(NOT_ASKED) else "lost"
    return "unjudged"


def _is_unsure(side: CaseSide | CriterionSide) -> bool:
    """Return whether its judge is unsure of every run of a case."""
    return isinstance(side, CaseSide) and side.unsure == side.runs


SCORE_EPSILON = 1e-9
"""The least change of a score that counts: sums of decimal weights are not exact."""


def _row(name: str, a: CaseSide | None, b: CaseSide | None, changes: tuple[CriterionChange, ...]) -> CaseComparison:
    outcome, interval = outcome_of(a, b)
    by = 0.0 if a is None or b is None or a.score is None or b.score is None else b.score - a.score
    moved = None if abs(by) <= SCORE_EPSILON else "up" if by > 0 else "down"
    return CaseComparison(id=name, outcome=outcome, a=a, b=b, difference=interval, score_change=moved, changes=changes)


def _side(runs: Sequence[ComparedCase]) -> CaseSide | None:
    if not runs:
        return None
    judged = [run for run in runs if run.judged]
    passed = sum(run.status == "passed" for run in judged)
    return CaseSide(
        runs=len(runs),
        judged=len(judged),
        passed=passed,
        unsure=sum(run.status == "unsure" for run in runs),
        status=runs[0].status if len(runs) == 1 else None,
        score=mean(run.score for run in judged if run.score is not None),
        interval=wilson(passed, len(judged)) if judged and len(runs) > 1 else None,
        error=next((run.error for run in runs if not run.judged), ""),
    )


def _improvement(row: CaseComparison) -> float:
    """Return the change of a case's pass rate and score together, by which the worst comes first."""
    if row.a is None or row.b is None or not row.a.judged or not row.b.judged:
        return 0.0
    scores = 0.0 if row.a.score is None or row.b.score is None else row.b.score - row.a.score
    return row.b.passed / row.b.judged - row.a.passed / row.a.judged + scores


def _overall(rows: Iterable[CaseComparison]) -> Overall | None:
    both = [(row.a.passed / row.a.judged, row.b.passed / row.b.judged) for row in rows if row.a and row.b and row.a.judged and row.b.judged]
    before, now = [before for before, _ in both], [now for _, now in both]
    a, b = _rate(before), _rate(now)
    if a is None or b is None:
        return None
    fell, rose = sum(now < before for before, now in both), sum(now > before for before, now in both)
    interval = paired_difference(now, before)
    return Overall(a=a, b=b, difference=b.rate - a.rate, interval=interval, fell=fell, rose=rose, by_chance=mcnemar(fell, rose))


def _rate(rates: Sequence[float]) -> PassRate | None:
    rate = mean(rates)
    return None if rate is None else PassRate(rate=rate, interval=wilson(rate * len(rates), len(rates)), cases=len(rates))


def _facts(batch: BatchSource, runs: Iterable[Sequence[ComparedCase]]) -> BatchFacts:
    sides = [side for of_case in runs if (side := _side(of_case)) and side.judged]
    known, spent = batch.summary, batch.summary.usage if batch.summary else batch.thread
    return BatchFacts(
        source=batch.source,
        batch_id=known and known.batch_id,
        thread_id=batch.source if batch.thread is not None else None,
        suite=known and known.name,
        created=known and known.created,
        status=known and known.status,
        held_against=known.baseline if known and known.decided and known.decided.answer == "passed" else None,
        runs=len(batch.cases),
        statuses=dict(Counter(case.status for case in batch.cases)),
        pass_rate=_rate([side.passed / side.judged for side in sides]),
        score=mean(case.score for case in batch.cases if case.judged and case.score is not None),
        cost=Cost(tokens=spent.tokens, cost_usd=spent.cost_usd) if spent else total_cost(batch.cases),
    )


_MAX_TEXTS = 1_000
"""The most texts of a criterion that are told apart: with variables in them each case has one of its own."""


@dataclass
class _Tally:
    """The counts of a criterion, which grow case by case."""

    name: str
    texts: set[str] = field(default_factory=set)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    a: Counter[str] = field(default_factory=Counter)
    b: Counter[str] = field(default_factory=Counter)
    reworded: bool = False
    """Whether its text changed in some case."""

    def add(self, text: str, outcome: Outcome, a: CriterionSide | None, b: CriterionSide | None) -> None:
        """Count the criterion of one case."""
        if outcome == "regressed" and not self.outcomes[outcome]:
            self.name = text
        self.outcomes[outcome] += 1
        if len(self.texts) < _MAX_TEXTS:
            self.texts.add(text)
        if a is None or b is None:
            return
        for total, side in ((self.a, a), (self.b, b)):
            total.update(judged=side.judged, passed=side.passed, overridden=int(side.overridden))

    def row(self, name: str) -> CriterionTally:
        """Return the counts as they are shown."""
        a, b = (
            CriterionSide(judged=total["judged"], passed=total["passed"], overridden=total["overridden"] > 0) for total in (self.a, self.b)
        )
        return CriterionTally(id=name, name=self.name, texts=len(self.texts), counts=_in_order(self.outcomes), a=a, b=b)


_COUNTED = re.compile(r"c[1-9]\d*")
"""The ids of criteria to which the rubric gives none."""

_Verdicts = dict[str, list[ComparedVerdict]]
"""Verdicts by the criterion's id."""


def _changes(a: Sequence[ComparedCase], b: Sequence[ComparedCase], tallies: dict[str, _Tally]) -> Iterator[CriterionChange]:
    """Count the criteria of a case, and yield those whose verdict changed; none where one of the batches has no verdict on the case."""
    before = _verdicts(a)
    now = _under_ids_of(before, _verdicts(b))
    if not before or not now:
        return
    for name in dict.fromkeys([*before, *now]):
        texts = [verdicts[name][0].name for verdicts in (before, now) if name in verdicts]
        one, other = (_criterion_side(verdicts.get(name, [])) for verdicts in (before, now))
        outcome, _ = outcome_of(one, other)
        label, reworded = " -> ".join(dict.fromkeys(texts)), len(set(texts)) > 1
        tally = tallies.setdefault(name, _Tally(label))
        tally.add(label, outcome, one, other)
        tally.reworded |= reworded
        if outcome not in {"same", "unjudged"}:
            yield CriterionChange(id=name, name=texts[-1], outcome=outcome, a=one, b=other, reworded=reworded)


def _under_ids_of(before: _Verdicts, now: _Verdicts) -> _Verdicts:
    """Return B's verdicts under A's ids: an id that only counts criteria follows their text, which may stand at another place in B."""
    texts, asked = ({name: rows[0].name for name, rows in side.items() if _COUNTED.fullmatch(name)} for side in (before, now))
    places = {text: name for name, text in texts.items() if asked.get(name) != text}
    moved = {name: places.pop(text) for name, text in asked.items() if texts.get(name) != text and text in places}
    taken = frozenset(moved.values())
    return {moved.get(name) or (f"{name} of B" if name in taken else name): rows for name, rows in now.items()}


def _verdicts(runs: Sequence[ComparedCase]) -> _Verdicts:
    """Return the verdicts on each criterion in the runs that were judged."""
    found: _Verdicts = {}
    for run in runs:
        for verdict in run.verdicts if run.judged else ():
            found.setdefault(verdict.id, []).append(verdict)
    return found


def _criterion_side(verdicts: Sequence[ComparedVerdict]) -> CriterionSide | None:
    if not verdicts:
        return None
    judged = [verdict for verdict in verdicts if verdict.passed is not None]
    gap = next((verdict.gap for verdict in verdicts if not verdict.passed), "")
    overridden = any(verdict.overridden for verdict in verdicts)
    return CriterionSide(judged=len(judged), passed=sum(bool(verdict.passed) for verdict in judged), gap=gap, overridden=overridden)


def refuse_unrelated(a: BatchSource, b: BatchSource, ids_a: Sequence[str], ids_b: Sequence[str]) -> None:
    """Raise InvalidRequest where no case is in both batches; the ids are those without the numbers of repetitions."""
    for batch, ids in ((a, ids_a), (b, ids_b)):
        if not ids:
            nothing = "no graded draft in its last turn" if batch.thread is not None else "no cases"
            raise InvalidRequest(f"{batch.source} has {nothing}; there is nothing to compare")
    if (a.thread is None) != (b.thread is None):
        raise InvalidRequest(f"of {a.source} and {b.source} one is a thread and the other a batch; compare two of a kind")
    if not set(ids_a) & set(ids_b):
        examples = f"{a.source} has {clip(ids_a[0])}, {b.source} has {clip(ids_b[0])}"
        raise InvalidRequest(f"the two batches have no case in common: {examples}; {_probable_reason(a, b, ids_a, ids_b)}")


def _probable_reason(a: BatchSource, b: BatchSource, ids_a: Sequence[str], ids_b: Sequence[str]) -> str:
    """Return why two batches have no case in common, and the cure."""
    for longer, long_ids, short_ids in ((a, ids_a, ids_b), (b, ids_b, ids_a)):
        known = set(short_ids)
        if any(name.rpartition("/")[0] in known for name in long_ids):
            labels = f"the ids of {longer.source} end in labels, since its suite has several prompts or generators"
            return f"{labels}; compare batches of suites with the same number of them"
    if suites := _different_suites(a, b):
        return f"they come from different suites, {suites}"
    derived = "the id of a test without an `id` is derived from its description, vars and messages, and changes with them"
    return f"{derived}; give the tests an `id`"


def _different_suites(a: BatchSource, b: BatchSource) -> str | None:
    one, other = (batch.summary and batch.summary.name for batch in (a, b))
    return f"{clip(one)} and {clip(other)}" if one and other and one != other else None


_MAX_NAMES = 5
"""The most criteria that a note names."""


def comparison_notes(a: BatchSource, b: BatchSource, reworded: Sequence[str]) -> Iterator[str]:
    """Yield what the reader should know about the two batches before the numbers."""
    for batch in (a, b):
        yield from batch.notes
        statuses = Counter(case.status for case in batch.cases)
        if missing := statuses["queued"] + statuses["waiting"]:
            if batch.summary and batch.summary.decided:
                cure = f"gradeloop eval --resume {batch.summary.batch_id} --all asks them"
                yield f"{batch.source} ended once its answer was known: {missing:,} of {len(batch.cases):,} cases were not asked; {cure}"
                continue
            known = batch.summary.status if batch.summary else None
            status = f"is {known}" if known in {"running", "paused", "stopped"} else "has not ended"
            yield f"{batch.source} {status}: {missing:,} of {len(batch.cases):,} cases have no verdict yet"
    if suites := _different_suites(a, b):
        yield f"A and B come from different suites: {suites}"
    if reworded:
        more = f" and {len(reworded) - _MAX_NAMES:,} more" if len(reworded) > _MAX_NAMES else ""
        yield f"criteria with another text in B: {', '.join(reworded[:_MAX_NAMES])}{more}; their verdicts may not be comparable"
    for letter, batch in (("A", a), ("B", b)):
        if overridden := sum(verdict.overridden for case in batch.cases for verdict in case.verdicts):
            yield f"people overrode {counted(overridden, 'verdict')} on criteria in {letter}; the verdicts on cases stay the grader's"
