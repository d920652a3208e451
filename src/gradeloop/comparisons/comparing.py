"""How two batches compare: pure functions from their cases to a `Comparison`."""

from collections import Counter
from collections.abc import Iterable, Sequence

from gradeloop.comparisons.alignment import Pair, aligned, grouped
from gradeloop.comparisons.batch_source import BatchSource
from gradeloop.comparisons.cautions import cautions, refuse_strangers
from gradeloop.comparisons.compared_case import ComparedCase, Mark
from gradeloop.comparisons.comparison import (
    OUTCOMES,
    BatchFacts,
    CaseRow,
    CaseSide,
    Comparison,
    CriterionChange,
    CriterionSide,
    Outcome,
    Overall,
    PassRate,
)
from gradeloop.comparisons.criterion_tallies import Tallies
from gradeloop.comparisons.interval import Interval, by_chance, difference, mean, paired_difference, wilson

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
        rows.append(_row(pair, tuple(sorted(changes, key=lambda each: OUTCOMES.index(each.outcome)))))
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


def _row(pair: Pair, changes: tuple[CriterionChange, ...]) -> CaseRow:
    a, b = _side(pair.a), _side(pair.b)
    outcome, interval = outcome_of(a, b)
    by = 0.0 if a is None or b is None or a.score is None or b.score is None else b.score - a.score
    moved = None if abs(by) <= EPSILON else "up" if by > 0 else "down"
    return CaseRow(id=pair.id, outcome=outcome, a=a, b=b, difference=interval, score_change=moved, changes=changes)


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


def _marks(runs: Sequence[ComparedCase]) -> dict[str, list[Mark]]:
    """Return what was decided about each criterion in the runs that were judged."""
    found: dict[str, list[Mark]] = {}
    for run in runs:
        for mark in run.marks if run.judged else ():
            found.setdefault(mark.id, []).append(mark)
    return found


def _criterion(marks: Sequence[Mark]) -> CriterionSide | None:
    if not marks:
        return None
    judged = [mark for mark in marks if mark.passed is not None]
    gap = next((mark.gap for mark in marks if not mark.passed), "")
    overridden = any(mark.overridden for mark in marks)
    return CriterionSide(judged=len(judged), passed=sum(bool(mark.passed) for mark in judged), gap=gap, overridden=overridden)


def _moved(row: CaseRow) -> float:
    """Return by how much a row got better, so that the worst comes first: its pass rate and its score together."""
    if row.a is None or row.b is None or not row.a.judged or not row.b.judged:
        return 0.0
    scores = 0.0 if row.a.score is None or row.b.score is None else row.b.score - row.a.score
    return row.b.passed / row.b.judged - row.a.passed / row.a.judged + scores


def _overall(rows: Iterable[CaseRow]) -> Overall | None:
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
