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
from gradeloop.stats.intervals import Interval, difference, mcnemar, mean, paired_difference, wilson
from gradeloop.text import clip, counted


class ComparisonGate(StrEnum):
    """Findings that make `gradeloop diff --fail-on` exit with 1."""

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

Outcome = Literal["regressed", "lost", "unsure", "improved", "gained", "decided", "added", "removed", "unjudged", "same"]
"""`lost`: a verdict in A, an error or nothing in B, which is no failure; `gained`: the reverse; `unjudged`: no verdict in either.

`unsure`: a verdict in A, of which the judge is unsure in B; `decided`: the reverse.
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


class BatchFacts(Strict):
    """One of the two batches as a whole."""

    source: str
    """The batch or the file, as the user named it."""
    batch_id: str | None = None
    """None for a `.jsonl` file, which has cases alone."""
    suite: str | None = None
    created: str | None = None
    """ISO 8601, UTC."""
    status: BatchStatus | None = None
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
        return self.a is not None and self.b is not None and self.b.unfinished > self.a.unfinished

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
    """The p-value of McNemar's exact test, two-sided: how often chance alone is as uneven."""


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


def compare_batches(a: BatchSource, b: BatchSource) -> Comparison:
    """Compare two batches case by case and criterion by criterion.

    Raises:
        InvalidRequest: They have no case in common; the message gives the probable reason.
    """
    refuse_unrelated(a, b, [*group_runs(a.cases)], [*group_runs(b.cases)])
    tallies, rows = CriterionTallies(), []
    for pair in align(a.cases, b.cases):
        changes = _changes(pair, tallies)
        rows.append(_row(pair, tuple(sorted(changes, key=lambda change: OUTCOMES.index(change.outcome)))))
    counts = Counter(row.outcome for row in rows)
    return Comparison(
        a=_facts(a),
        b=_facts(b),
        counts={outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]},
        overall=_overall(rows),
        cases=tuple(sorted(rows, key=lambda row: (OUTCOMES.index(row.outcome), _improvement(row)))),
        criteria=tallies.worst_first(),
        notes=tuple(comparison_notes(a, b, tallies.reworded)),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """The runs of one case in both batches; none where a batch lacks it."""

    id: str
    a: tuple[ComparedCase, ...]
    b: tuple[ComparedCase, ...]


def align(a: Sequence[ComparedCase], b: Sequence[ComparedCase]) -> Iterator[Pair]:
    """Yield every case once: the cases of A in their order, then those that only B has."""
    runs_a, runs_b = group_runs(a), group_runs(b)
    for name in dict.fromkeys([*runs_a, *runs_b]):
        yield Pair(name, runs_a.get(name, ()), runs_b.get(name, ()))


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
    chance alone calls at most 4 % of unchanged cases regressed, with two runs on each side 6 %; as if the runs were independent.
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
        return "unsure" if _is_unsure(b) else "lost"
    return "unjudged"


def _is_unsure(side: CaseSide | CriterionSide) -> bool:
    """Return whether its judge is unsure of every run of a case."""
    return isinstance(side, CaseSide) and side.unsure == side.runs


SCORE_EPSILON = 1e-9
"""The least change of a score that counts: sums of decimal weights are not exact."""


def _row(pair: Pair, changes: tuple[CriterionChange, ...]) -> CaseComparison:
    a, b = _side(pair.a), _side(pair.b)
    outcome, interval = outcome_of(a, b)
    by = 0.0 if a is None or b is None or a.score is None or b.score is None else b.score - a.score
    moved = None if abs(by) <= SCORE_EPSILON else "up" if by > 0 else "down"
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


def _facts(batch: BatchSource) -> BatchFacts:
    sides = [side for runs in group_runs(batch.cases).values() if (side := _side(runs)) and side.judged]
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


_MAX_TEXTS = 1_000
"""The most texts of a criterion that are told apart: with variables in them each case has one of its own."""


@dataclass
class _Counts:
    name: str
    texts: set[str] = field(default_factory=set)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    a: Counter[str] = field(default_factory=Counter)
    b: Counter[str] = field(default_factory=Counter)


class CriterionTallies:
    """Counts, case by case, what became of each criterion."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self.reworded: Counter[str] = Counter()
        """The number of cases in which a criterion's text changed, by its id."""

    def add(self, name: str, text: str, outcome: Outcome, a: CriterionSide | None, b: CriterionSide | None, *, reworded: bool) -> None:
        """Count a criterion of one case."""
        counts = self._counts.setdefault(name, _Counts(text))
        if outcome == "regressed" and not counts.outcomes[outcome]:
            counts.name = text
        counts.outcomes[outcome] += 1
        if len(counts.texts) < _MAX_TEXTS:
            counts.texts.add(text)
        self.reworded[name] += reworded
        if a is None or b is None:
            return
        for total, side in ((counts.a, a), (counts.b, b)):
            total.update(judged=side.judged, passed=side.passed, overridden=int(side.overridden))

    def worst_first(self) -> tuple[CriterionTally, ...]:
        """Return the criteria, those that regressed in most cases first."""
        order = sorted(self._counts.items(), key=lambda item: (-item[1].outcomes["regressed"], item[1].outcomes["improved"]))
        return tuple(_tally(name, counts) for name, counts in order)


def _tally(name: str, counts: _Counts) -> CriterionTally:
    a, b = (
        CriterionSide(judged=total["judged"], passed=total["passed"], overridden=total["overridden"] > 0) for total in (counts.a, counts.b)
    )
    outcomes: dict[Outcome, int] = {outcome: counts.outcomes[outcome] for outcome in OUTCOMES if counts.outcomes[outcome]}
    return CriterionTally(id=name, name=counts.name, texts=len(counts.texts), counts=outcomes, a=a, b=b)


def _changes(pair: Pair, tallies: CriterionTallies) -> Iterable[CriterionChange]:
    """Yield the criteria whose verdict changed; none of a case that has no verdict in one of the batches."""
    before, now = _verdicts(pair.a), _verdicts(pair.b)
    if not before or not now:
        return
    for name in dict.fromkeys([*before, *now]):
        a, b = (_criterion_side(verdicts.get(name, [])) for verdicts in (before, now))
        outcome, _ = outcome_of(a, b)
        texts = [verdicts[name][0].name for verdicts in (before, now) if name in verdicts]
        reworded = len(set(texts)) > 1
        tallies.add(name, texts[0], outcome, a, b, reworded=reworded)
        if outcome not in {"same", "unjudged"}:
            yield CriterionChange(id=name, name=texts[-1], outcome=outcome, a=a, b=b, reworded=reworded)


def _verdicts(runs: Sequence[ComparedCase]) -> dict[str, list[ComparedVerdict]]:
    """Return the verdicts on each criterion in the runs that were judged."""
    found: dict[str, list[ComparedVerdict]] = {}
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
            raise InvalidRequest(f"{batch.source} has no cases; there is nothing to compare")
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
    if a.suite and b.suite and a.suite != b.suite:
        return f"they come from different suites, {clip(a.suite)} and {clip(b.suite)}"
    derived = "the id of a test without an `id` is derived from its description, vars and messages, and changes with them"
    return f"{derived}; give the tests an `id`"


_MAX_NAMES = 5
"""The most criteria that a note names."""


def comparison_notes(a: BatchSource, b: BatchSource, reworded: Mapping[str, int]) -> Iterator[str]:
    """Yield what the reader should know about the two batches before the numbers."""
    for batch in (a, b):
        yield from batch.notes
        statuses = Counter(case.status for case in batch.cases)
        if missing := statuses["queued"] + statuses["waiting"]:
            status = f"is {batch.status}" if batch.status in {"running", "paused", "stopped"} else "has not ended"
            yield f"{batch.source} {status}: {missing:,} of {len(batch.cases):,} cases have no verdict yet"
    if a.suite and b.suite and a.suite != b.suite:
        yield f"A and B come from different suites: {clip(a.suite)} and {clip(b.suite)}"
    if changed := [name for name, cases in reworded.items() if cases]:
        more = f" and {len(changed) - _MAX_NAMES:,} more" if len(changed) > _MAX_NAMES else ""
        yield f"criteria with another text in B: {', '.join(changed[:_MAX_NAMES])}{more}; their verdicts may not be comparable"
    for letter, batch in (("A", a), ("B", b)):
        if overridden := sum(verdict.overridden for case in batch.cases for verdict in case.verdicts):
            yield f"people overrode {counted(overridden, 'verdict')} on criteria in {letter}; the verdicts on cases stay the grader's"
