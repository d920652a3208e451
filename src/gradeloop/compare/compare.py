"""The comparison of two batches: case by case, criterion by criterion, and the gate on it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, get_args

from pydantic import ConfigDict, Field

from gradeloop.batches.contract import BatchStatus, CaseStatus
from gradeloop.compare.sources import BatchSource, ComparedCase, ComparedVerdict, Cost
from gradeloop.contract.base import Strict
from gradeloop.errors import InvalidRequest
from gradeloop.stats.intervals import Interval, by_chance, difference, mean, paired_difference, wilson
from gradeloop.text import clip, counted


@dataclass(frozen=True, slots=True)
class Pair:
    """The runs of one case in both batches; none where a batch lacks it."""

    id: str
    a: tuple[ComparedCase, ...]
    b: tuple[ComparedCase, ...]


def aligned(a: Sequence[ComparedCase], b: Sequence[ComparedCase]) -> Iterator[Pair]:
    """Yield every case once: those of A in their order, then those that B alone has."""
    ours, theirs = grouped(a), grouped(b)
    for name in dict.fromkeys([*ours, *theirs]):
        yield Pair(name, ours.get(name, ()), theirs.get(name, ()))


def grouped(cases: Sequence[ComparedCase]) -> dict[str, tuple[ComparedCase, ...]]:
    """Return the runs of each case by its id, in their order.

    A suite that runs each case several times ends their ids with `/1`, `/2`. So a case is a repetition where its id ends with its own
    number, and one that is not the first has the same beginning; an id that merely looks like that stays as it is.
    """
    repeated = {base for case in cases if case.repeat and (base := _base(case)) is not None} - {case.id for case in cases}
    found: dict[str, list[ComparedCase]] = {}
    for case in cases:
        base = _base(case)
        found.setdefault(base if base is not None and base in repeated else case.id, []).append(case)
    return {name: tuple(runs) for name, runs in found.items()}


def _base(case: ComparedCase) -> str | None:
    """Return what an id is without the number of its repetition; None where it does not end with it."""
    base, _, number = case.id.rpartition("/")
    return base if base and number == str(case.repeat + 1) else None


_NAMED = 5
"""The most criteria that a note names."""


def refuse_strangers(a: BatchSource, b: BatchSource, ours: Sequence[str], theirs: Sequence[str]) -> None:
    """Raise InvalidRequest where no case is in both batches; the ids are those without the numbers of repetitions."""
    for batch, ids in ((a, ours), (b, theirs)):
        if not ids:
            raise InvalidRequest(f"{batch.source} has no cases; there is nothing to compare")
    if not set(ours) & set(theirs):
        words = f"{a.source} has {clip(ours[0])}, {b.source} has {clip(theirs[0])}"
        raise InvalidRequest(f"the two batches have no case in common: {words}; {_why(a, b, ours, theirs)}")


def _why(a: BatchSource, b: BatchSource, ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return the probable reason, and the cure."""
    for longer, longs, shorts in ((a, ours, theirs), (b, theirs, ours)):
        known = set(shorts)
        if any(name.rpartition("/")[0] in known for name in longs):
            labels = f"the ids of {longer.source} end in labels, since its suite has several prompts or generators"
            return f"{labels}; compare batches of suites with the same number of them"
    if a.suite and b.suite and a.suite != b.suite:
        return f"they come from different suites, {clip(a.suite)} and {clip(b.suite)}"
    derived = "the id of a test without an `id` is derived from its description, vars and messages, and changes with them"
    return f"{derived}; give the tests an `id`"


def cautions(a: BatchSource, b: BatchSource, reworded: Mapping[str, int]) -> Iterator[str]:
    """Yield what the reader should know about the two batches before the numbers."""
    for batch in (a, b):
        yield from batch.notes
        yield from _unfinished(batch)
    if a.suite and b.suite and a.suite != b.suite:
        yield f"A and B come from different suites: {clip(a.suite)} and {clip(b.suite)}"
    changed = [name for name, cases in reworded.items() if cases]
    if changed:
        more = f" and {len(changed) - _NAMED:,} more" if len(changed) > _NAMED else ""
        yield f"criteria with another text in B: {', '.join(changed[:_NAMED])}{more}; their verdicts may not be comparable"
    for letter, batch in (("A", a), ("B", b)):
        overridden = sum(mark.overridden for case in batch.cases for mark in case.marks)
        if overridden:
            yield f"people overrode {counted(overridden, 'verdict')} on criteria in {letter}; the verdicts on cases stay the grader's"


def _unfinished(batch: BatchSource) -> Iterator[str]:
    statuses = Counter(case.status for case in batch.cases)
    missing = statuses["queued"] + statuses["waiting"]
    if missing:
        status = f"is {batch.status}" if batch.status in {"running", "paused", "stopped"} else "has not ended"
        yield f"{batch.source} {status}: {missing:,} of {len(batch.cases):,} cases have no verdict yet"


class ComparisonGate(StrEnum):
    """Findings that fail the comparison."""

    REGRESSIONS = "regressions"
    """Cases that regressed."""
    ERRORS = "errors"
    """Cases with more errors in B than in A."""
    CRITERIA = "criteria"
    """Criteria that regressed in at least one case, whatever its verdict."""
    ANY = "any"
    """All of these, and cases missing from B."""


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


class CaseComparison(Strict):
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
    cases: tuple[CaseComparison, ...]
    """Every case of A and of B once, the worst first."""
    criteria: tuple[CriterionTally, ...] = ()
    """The one that regressed in most cases first."""
    notes: tuple[str, ...] = ()
    """What may make the comparison mean less than it seems to."""

    def hits(self, gate: ComparisonGate) -> int:
        """Return how many cases or criteria a gate holds against B."""
        found = {
            ComparisonGate.REGRESSIONS: self.counts.get("regressed", 0),
            ComparisonGate.ERRORS: sum(row.silenced for row in self.cases),
            ComparisonGate.CRITERIA: sum(1 for criterion in self.criteria if criterion.counts.get("regressed")),
        }
        return sum(found.values()) + self.counts.get("removed", 0) if gate is ComparisonGate.ANY else found[gate]


_TEXTS = 1_000
"""Texts of a criterion that are told apart: with variables in them each case has one of its own."""


@dataclass
class _Sum:
    name: str
    texts: set[str] = field(default_factory=set)
    counts: Counter[Outcome] = field(default_factory=Counter)
    a: Counter[str] = field(default_factory=Counter)
    b: Counter[str] = field(default_factory=Counter)


class Tallies:
    """What is added up, case by case, of criteria by their ids."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self.reworded: Counter[str] = Counter()
        """In how many cases a criterion's text is another one in B."""

    def add(self, name: str, text: str, outcome: Outcome, a: CriterionSide | None, b: CriterionSide | None, *, reworded: bool) -> None:
        """Count a criterion of one case."""
        found = self._sums.setdefault(name, _Sum(text))
        found.counts[outcome] += 1
        if len(found.texts) < _TEXTS:
            found.texts.add(text)
        self.reworded[name] += reworded
        if a is None or b is None:
            return
        for total, side in ((found.a, a), (found.b, b)):
            total.update(judged=side.judged, passed=side.passed, overridden=int(side.overridden))

    def worst_first(self) -> tuple[CriterionTally, ...]:
        """Return the criteria, those that regressed in most cases first."""
        order = sorted(self._sums.items(), key=lambda each: (-each[1].counts["regressed"], each[1].counts["improved"]))
        return tuple(_tally(name, found) for name, found in order)


def _tally(name: str, found: _Sum) -> CriterionTally:
    counts = {outcome: found.counts[outcome] for outcome in OUTCOMES if found.counts[outcome]}
    a, b = (
        CriterionSide(judged=total["judged"], passed=total["passed"], overridden=total["overridden"] > 0) for total in (found.a, found.b)
    )
    return CriterionTally(id=name, name=found.name, texts=len(found.texts), counts=counts, a=a, b=b)


EPSILON = 1e-9
"""By which a score must move to count as moved: sums of decimal weights are not exact."""

Side = CaseSide | CriterionSide


def compared(a: BatchSource, b: BatchSource) -> Comparison:
    """Return what two batches differ in, case by case and criterion by criterion.

    Raises:
        InvalidRequest: They have no case in common; the message says why, as far as that can be told.
    """
    refuse_strangers(a, b, [*grouped(a.cases)], [*grouped(b.cases)])
    tallies, rows = Tallies(), []
    for pair in aligned(a.cases, b.cases):
        changes = _changes(pair, tallies)
        rows.append(_row(pair, tuple(sorted(changes, key=lambda change: OUTCOMES.index(change.outcome)))))
    counts = Counter(row.outcome for row in rows)
    return Comparison(
        a=_facts(a),
        b=_facts(b),
        counts={outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        overall=_overall(rows),
        cases=tuple(sorted(rows, key=lambda row: (OUTCOMES.index(row.outcome), _moved(row)))),
        criteria=tallies.worst_first(),
        notes=tuple(cautions(a, b, tallies.reworded)),
    )


def outcome_of(a: Side | None, b: Side | None) -> tuple[Outcome, Interval | None]:
    """Return what became of a case or a criterion from A to B, and how sure that is where it was judged more than once.

    One run each is compared as it is: a pass that became a fail is a regression. Of several runs a lower rate may be noise, so a row is
    `regressed` only where the whole interval of the difference of the two rates lies below 0, `improved` where it lies above. Then
    chance alone calls at most 4 % of unchanged cases regressed, with two runs on each side 6 %; as if the runs were independent.
    """
    if a is None or b is None:
        return ("added" if a is None else "removed"), None
    if not a.judged or not b.judged:
        return ("gained" if b.judged else "lost" if a.judged else "unjudged"), None
    if a.judged == b.judged == 1:
        return ("same" if a.passed == b.passed else "improved" if b.passed else "regressed"), None
    found = difference(b.passed, b.judged, a.passed, a.judged)
    return ("regressed" if found.high < 0 else "improved" if found.low > 0 else "same"), found


def _row(pair: Pair, changes: tuple[CriterionChange, ...]) -> CaseComparison:
    a, b = _side(pair.a), _side(pair.b)
    outcome, interval = outcome_of(a, b)
    by = 0.0 if a is None or b is None or a.score is None or b.score is None else b.score - a.score
    moved = None if abs(by) <= EPSILON else "up" if by > 0 else "down"
    return CaseComparison(id=pair.id, outcome=outcome, a=a, b=b, difference=interval, score_change=moved, changes=changes)


def _side(runs: Sequence[ComparedCase]) -> CaseSide | None:
    if not runs:
        return None
    judged = [run for run in runs if run.judged]
    passed = sum(run.status == "passed" for run in judged)
    return CaseSide(
        runs=len(runs),
        judged=len(judged),
        passed=passed,
        status=runs[0].status if len(runs) == 1 else None,
        score=mean(run.score for run in judged if run.score is not None),
        interval=wilson(passed, len(judged)) if judged and len(runs) > 1 else None,
        error=next((run.error for run in runs if not run.judged), ""),
    )


def _changes(pair: Pair, tallies: Tallies) -> Iterable[CriterionChange]:
    """Return the criteria that came to something else; of a case without a verdict on either side none is compared."""
    ours, theirs = _marks(pair.a), _marks(pair.b)
    if not ours or not theirs:
        return
    for name in dict.fromkeys([*ours, *theirs]):
        a, b = (_criterion(marks.get(name, [])) for marks in (ours, theirs))
        outcome, _ = outcome_of(a, b)
        texts = [marks[name][0].name for marks in (ours, theirs) if name in marks]
        reworded = len(set(texts)) > 1
        tallies.add(name, texts[0], outcome, a, b, reworded=reworded)
        if outcome not in {"same", "unjudged"}:
            yield CriterionChange(id=name, name=texts[-1], outcome=outcome, a=a, b=b, reworded=reworded)


def _marks(runs: Sequence[ComparedCase]) -> dict[str, list[ComparedVerdict]]:
    """Return what was decided about each criterion in the runs that were judged."""
    found: dict[str, list[ComparedVerdict]] = {}
    for run in runs:
        for mark in run.marks if run.judged else ():
            found.setdefault(mark.id, []).append(mark)
    return found


def _criterion(marks: Sequence[ComparedVerdict]) -> CriterionSide | None:
    if not marks:
        return None
    judged = [mark for mark in marks if mark.passed is not None]
    gap = next((mark.gap for mark in marks if not mark.passed), "")
    overridden = any(mark.overridden for mark in marks)
    return CriterionSide(judged=len(judged), passed=sum(bool(mark.passed) for mark in judged), gap=gap, overridden=overridden)


def _moved(row: CaseComparison) -> float:
    """Return by how much a row got better, so that the worst comes first: its pass rate and its score together."""
    if row.a is None or row.b is None or not row.a.judged or not row.b.judged:
        return 0.0
    scores = 0.0 if row.a.score is None or row.b.score is None else row.b.score - row.a.score
    return row.b.passed / row.b.judged - row.a.passed / row.a.judged + scores


def _overall(rows: Iterable[CaseComparison]) -> Overall | None:
    both = [(row.a.passed / row.a.judged, row.b.passed / row.b.judged) for row in rows if row.a and row.b and row.a.judged and row.b.judged]
    before, now = [one for one, _ in both], [other for _, other in both]
    a, b = _rate(before), _rate(now)
    if a is None or b is None:
        return None
    fell, rose = sum(other < one for one, other in both), sum(other > one for one, other in both)
    interval = paired_difference(now, before)
    return Overall(a=a, b=b, difference=b.rate - a.rate, interval=interval, fell=fell, rose=rose, by_chance=by_chance(fell, rose))


def _rate(rates: Sequence[float]) -> PassRate | None:
    whole = mean(rates)
    return None if whole is None else PassRate(rate=whole, interval=wilson(whole * len(rates), len(rates)), cases=len(rates))


def _facts(batch: BatchSource) -> BatchFacts:
    sides = [side for runs in grouped(batch.cases).values() if (side := _side(runs)) and side.judged]
    return BatchFacts(
        source=batch.source,
        batch_id=batch.batch_id,
        suite=batch.suite,
        created=batch.created,
        status=batch.status,
        runs=len(batch.cases),
        statuses=dict(Counter(case.status for case in batch.cases)),
        pass_rate=_rate([side.passed / side.judged for side in sides]),
        score=mean(case.score for case in batch.cases if case.judged and case.score is not None),
        cost=batch.cost,
    )
