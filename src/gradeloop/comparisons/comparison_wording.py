"""A comparison in words: sums, rates and what became of a case."""

from collections.abc import Iterator, Mapping

from gradeloop.batches.wording import VERDICTS
from gradeloop.comparisons.comparison import BatchFacts, CaseRow, CaseSide, Comparison, CriterionSide, Outcome, Overall, PassRate
from gradeloop.comparisons.gate import Gate
from gradeloop.comparisons.interval import Interval
from gradeloop.printable import counted, one_line, percent

WORDS: dict[Outcome, str] = {"added": "only in B", "removed": "only in A", "unjudged": "judged in neither"}
"""Instead of the outcome's own name."""

LEAST_CHANCE = 0.0001

_GATES: dict[Gate, tuple[str, str, str]] = {
    Gate.REGRESSIONS: ("case", "cases", "regressed"),
    Gate.ERRORS: ("case", "cases", "lost a verdict"),
    Gate.CRITERIA: ("criterion", "criteria", "regressed in some case"),
    Gate.ANY: ("finding", "findings", "against B: cases and criteria that regressed, verdicts lost, cases that B lacks"),
}


def word(outcome: Outcome) -> str:
    """Return an outcome in a word or three."""
    return WORDS.get(outcome, outcome)


def counts_line(counts: Mapping[Outcome, int], total: int) -> str:
    """Return what all cases came to, in one line."""
    return f"{', '.join(f'{number:,} {word(outcome)}' for outcome, number in counts.items())} of {counted(total, 'case')}"


def pass_rate(found: PassRate | None) -> str:
    """Return a rate with its interval."""
    return "" if found is None else f"{percent(found.rate)} ({_bounds(found.interval)})"


def points(value: float) -> str:
    """Return a difference of two rates in points of per cent, with its sign."""
    told = f"{value * 100:+.1f}"
    return "±0.0" if told in {"+0.0", "-0.0"} else told


def overall_lines(found: Overall) -> Iterator[str]:
    """Yield how the batches compare as a whole, and what chance alone does."""
    rates = f"{percent(found.a.rate)} -> {percent(found.b.rate)} of {counted(found.a.cases, 'case')} judged in both"
    yield f"{rates}: {points(found.difference)} points ({points(found.interval.low)} to {points(found.interval.high)}, 95%)"
    if found.fell or found.rose:
        uneven = f"by chance alone as uneven as this in {chance(found.by_chance)} of comparisons"
        yield f"{counted(found.fell, 'case')} fell, {found.rose:,} rose; {uneven}"


def chance(share: float) -> str:
    """Return a probability in per cent: whole ones, below ten two digits."""
    if share < LEAST_CHANCE:
        return f"less than {LEAST_CHANCE * 100:g}%"
    return f"{share:.0%}" if share >= 0.1 else f"{float(f'{share * 100:.2g}'):g}%"  # noqa: PLR2004 - as the sentence says


def _bounds(found: Interval) -> str:
    return f"{found.low * 100:.0f}-{found.high * 100:.0f}"


def came_to(side: CaseSide | None) -> str:
    """Return what a case came to in one batch: its verdict, or of several runs how many passed."""
    if side is None:
        return ""
    if side.status is not None:
        return VERDICTS[side.status][0]
    lost = f", {side.runs - side.judged} without a verdict" if side.runs > side.judged else ""
    return f"{side.passed}/{side.judged} passed{lost}"


def scores(row: CaseRow) -> str:
    """Return a case's score in A and in B, where either has one; of a case in one of them that one's."""
    before, now = ("-" if side is None or side.score is None else f"{side.score:.2f}" for side in (row.a, row.b))
    if before == now == "-":
        return ""
    return f"{before} -> {now}" if row.a and row.b else now if row.b else before


def why(row: CaseRow) -> str:
    """Return in one line what is behind a row: the error, or the criterion that changed most with what is said against it now."""
    if row.outcome == "lost" and row.b is not None:
        return one_line(row.b.error)
    worst = next(iter(row.changes), None)
    if worst is None:
        return ""
    gap = (worst.b.gap if worst.b else "") or ("" if row.outcome == "improved" else worst.name)
    more = f" (and {len(row.changes) - 1} more)" if len(row.changes) > 1 else ""
    return one_line(f"{worst.id} {word(worst.outcome)}{f': {gap}' if gap else ''}{more}")


def passed_of(side: CriterionSide | None) -> str:
    """Return how often a criterion passed in one batch."""
    return "" if side is None else f"{side.passed:,}/{side.judged:,}"


def beside(facts: BatchFacts) -> dict[str, str]:
    """Return what is told of a batch as a whole, by headings."""
    cost = facts.cost
    return {
        "batch": one_line(facts.source),
        "suite": one_line(facts.suite or ""),
        "created": one_line(facts.created or ""),
        "pass rate": pass_rate(facts.pass_rate),
        "score": "" if facts.score is None else f"{facts.score:.3f}",
        "tokens": f"{cost.tokens:,}" if cost.tokens else "",
        "cost": f"${cost.cost_usd:.4f}" if cost.cost_usd else "",
    }


def gate_line(found: Comparison, gate: Gate) -> str:
    """Return why the exit code is 1."""
    number = found.hits(gate)
    one, many, words = _GATES[gate]
    return f"--fail-on {gate}: {number:,} {one if number == 1 else many} {words}"
