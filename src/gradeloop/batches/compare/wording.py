"""A comparison in sentences."""

import shlex
from collections.abc import Iterator, Sequence

from gradeloop.batches.answer import STATUS_LABELS
from gradeloop.batches.compare.comparison import (
    BatchFacts,
    BatchSource,
    CaseComparison,
    CaseSide,
    Comparison,
    ComparisonGate,
    CriterionSide,
    Outcome,
    Overall,
    compare_batches,
)
from gradeloop.batches.exports import is_batch_file
from gradeloop.batches.markdown import Baseline, RegressedCase
from gradeloop.reports.model import NextStep
from gradeloop.text import counted, money, one_line, percent, token_count

OUTCOME_LABELS: dict[Outcome, str] = {
    "gained": "error -> verdict",
    "lost": "verdict -> error",
    "unsure": "verdict -> unsure",
    "decided": "unsure -> verdict",
    "added": "only in B",
    "removed": "only in A",
    "unjudged": "no verdict in either",
    "unasked": "not asked in B",
}
"""The labels of the outcomes whose own names do not explain them."""

SIGNIFICANT = 0.05
"""A change is significant below this p-value, as the field has it."""

LEAST_P = 0.0001
"""The smallest p-value that is printed as a number."""

_FINDINGS: dict[ComparisonGate, tuple[str, str, str]] = {
    ComparisonGate.REGRESSIONS: ("case", "cases", "regressed"),
    ComparisonGate.ERRORS: ("case", "cases", "went from a verdict to an error"),
    ComparisonGate.UNSURE: ("case", "cases", "went from a verdict to unsure"),
    ComparisonGate.CRITERIA: ("criterion", "criteria", "regressed in at least one case"),
    ComparisonGate.ANY: ("finding", "findings", "(regressed cases and criteria, verdicts now errors or unsure, cases missing from B)"),
}


def outcome_label(outcome: Outcome) -> str:
    """Return the label of an outcome."""
    return OUTCOME_LABELS.get(outcome, outcome)


def counts_line(found: Comparison) -> str:
    """Return in one line how many cases, or drafts of threads, have each outcome."""
    total = counted(len(found.cases), "case" if found.b.thread_id is None else "draft")
    return f"{', '.join(f'{number:,} {outcome_label(outcome)}' for outcome, number in found.counts.items())} of {total}"


def points(value: float) -> str:
    """Return a difference of two rates in percentage points, with its sign."""
    signed = f"{value * 100:+.1f}"
    return "±0.0" if signed in {"+0.0", "-0.0"} else signed


def overall_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the change of the pass rate with its confidence interval, and whether it is significant; nothing for the drafts of threads."""
    overall = comparison.overall
    if overall is None or comparison.b.thread_id is not None:
        return
    rates = f"pass rate {percent(overall.a.rate)} -> {percent(overall.b.rate)} of {counted(overall.a.cases, 'case')} judged in both"
    yield f"{rates}: {points(overall.difference)} points (95% CI {points(overall.interval.low)} to {points(overall.interval.high)})"
    if overall.fell or overall.rose:
        change = chance_words(overall)
        repeated = any(side is not None and side.runs > 1 for row in comparison.cases for side in (row.a, row.b))
        p = p_value(overall.by_chance)
        if repeated:
            yield f"pass rate lower in {counted(overall.fell, 'case')}, higher in {overall.rose:,}: {change} (sign test {p})"
        else:
            yield f"{overall.fell:,} regressed, {overall.rose:,} improved: {change} (McNemar {p})"


def chance_words(overall: Overall) -> str:
    """Return whether chance explains the change of the pass rate, as far as so many changed cases can tell."""
    if overall.by_chance < SIGNIFICANT:
        return "more than chance explains"
    least = 2 * 0.5 ** (overall.fell + overall.rose)
    return "too few to tell from chance" if least >= SIGNIFICANT else "no more than chance explains"


def comparison_answer(found: Comparison) -> str:
    """Return what became of the cases, in capitals, and whether chance explains it: what pages, the terminal and Markdown begin with."""
    regressed, improved = found.counts.get("regressed", 0), found.counts.get("improved", 0)
    parts = [f"{regressed:,} REGRESSED" if regressed else "NOTHING COMPARED" if found.overall is None else "NO REGRESSIONS"]
    apart: dict[Outcome, str] = {"lost": "NOW WITHOUT A VERDICT", "unsure": "UNSURE", "improved": "IMPROVED"}
    parts += [f"{number:,} {label}" for outcome, label in apart.items() if (number := found.counts.get(outcome, 0))]
    says = f": {chance_words(found.overall)}" if found.overall is not None and found.b.thread_id is None and (regressed or improved) else ""
    return f"{', '.join(parts)}{says}"


def gated_answer(found: Comparison, gates: Sequence[ComparisonGate]) -> tuple[str, bool | None]:
    """Return the answer with what the gates of `--fail-on` make of it, and whether they pass.

    They neither pass nor fail (None) where there are none, and where too little was compared, which is inconclusive.
    """
    answer = comparison_answer(found)
    failing = [gate for gate in gates if found.findings(gate)]
    if gates and found.unknown(gates) and not failing:
        return f"INCONCLUSIVE by --fail-on {', '.join(gates)}: {answer}", None
    if not gates:
        return answer, None
    return f"{'FAILED' if failing else 'PASSED'} by --fail-on {', '.join(failing or gates)}: {answer}", not failing


def comparison_step(found: Comparison) -> NextStep:
    """Return what comes next: to mend what is worse in B and compare again, else to hold later runs against B."""
    again = f"gradeloop diff {shlex.quote(found.a.source)} {shlex.quote(found.b.source)}"
    batch = found.b.batch_id if not is_batch_file(found.b.source) else None
    if found.b.thread_id is not None:
        return NextStep(command=f"gradeloop report {shlex.quote(found.b.source)}", words="read the drafts of thread B with")
    worse = found.counts.get("regressed", 0)
    if worse:
        command = again if batch is None else f"gradeloop diff {shlex.quote(found.a.source)}"
        return NextStep(command=command, words="mend what regressed, run the suite again, then")
    if found.counts.get("lost"):
        words = "run its errors again, then" if batch is None else ""
        return NextStep(command=again if batch is None else f"gradeloop eval --retry errors --attach {batch}", words=words)
    if found.counts.get("unsure"):
        return NextStep(command="gradeloop inbox")
    command = f"gradeloop eval SUITE --baseline {shlex.quote(batch or found.b.source)}"
    return NextStep(command=command, words="take B for the baseline of later runs with")


def p_value(value: float) -> str:
    """Return a p-value with two digits, as `p = 0.73`."""
    return f"p < {LEAST_P:g}" if value < LEAST_P else f"p = {float(f'{value:.2g}'):g}"


def side_result(side: CaseSide | None) -> str:
    """Return a case's result in one batch: its verdict, or how many of its several runs passed."""
    if side is None:
        return ""
    if side.status is not None:
        return STATUS_LABELS[side.status][0]
    unsure = f", {side.unsure} unsure" if side.unsure else ""
    rest = f", {side.unfinished} without a verdict" if side.unfinished else ""
    return f"{side.passed}/{side.judged} passed{unsure}{rest}"


def score_change(row: CaseComparison) -> str:
    """Return a case's scores in A and in B, or the only one."""
    before, now = ("-" if side is None or side.score is None else f"{side.score:.2f}" for side in (row.a, row.b))
    if before == now == "-":
        return ""
    return f"{before} -> {now}" if row.a and row.b else now if row.b else before


def change_reason(row: CaseComparison) -> str:
    """Return in one line why a case changed: its error, what its judge is unsure of, or the criterion that changed most."""
    if row.outcome in {"lost", "unsure"} and row.b is not None:
        return one_line(row.b.error)
    if row.outcome == "decided" and row.a is not None:
        return one_line(f"was {row.a.error}")
    worst = next(iter(row.changes), None)
    if worst is None:
        return ""
    gap = (worst.b.gap if worst.b else "") or ("" if row.outcome == "improved" else worst.name)
    more = f" (and {len(row.changes) - 1} more)" if len(row.changes) > 1 else ""
    return one_line(f"{worst.id} {outcome_label(worst.outcome)}{f': {gap}' if gap else ''}{more}")


def passed_of(side: CriterionSide | None) -> str:
    """Return in how many judged runs a criterion passed in one batch."""
    return "" if side is None else f"{side.passed:,}/{side.judged:,}"


def batch_facts(facts: BatchFacts) -> dict[str, str]:
    """Return the facts about a batch by their headings."""
    rate = facts.pass_rate if facts.thread_id is None else None
    return {
        "batch" if facts.thread_id is None else "thread": one_line(facts.source),
        "suite": one_line(facts.suite or ""),
        "created": one_line(facts.created or ""),
        "pass rate": "" if rate is None else f"{percent(rate.rate)} ({rate.interval.low * 100:.0f}-{rate.interval.high * 100:.0f})",
        "unsure": f"{unsure:,}" if (unsure := facts.statuses.get("unsure", 0)) else "",
        "score": "" if facts.score is None else f"{facts.score:.3f}",
        "tokens": "" if facts.cost.tokens == 0 else token_count(facts.cost.tokens),
        "cost": money(facts.cost.cost_usd),
    }


def gate_line(comparison: Comparison, gate: ComparisonGate) -> str:
    """Return the finding of a gate, for which the exit code is 1."""
    number = comparison.findings(gate)
    one, many, finding = _FINDINGS[gate]
    return f"--fail-on {gate}: {number:,} {one if number == 1 else many} {finding}"


def baseline_of(before: BatchSource, now: BatchSource) -> Baseline:
    """Return the comparison with an earlier batch, as a summary in Markdown has it."""
    found = compare_batches(before, now)
    regressed = tuple(
        RegressedCase(row.id, side_result(row.a), side_result(row.b), change_reason(row))
        for row in found.cases
        if row.outcome in {"regressed", "lost", "unsure"}
    )
    return Baseline(before.source, f"{comparison_answer(found)}; {one_sentence(found)}", regressed)


def one_sentence(found: Comparison) -> str:
    """Return the comparison in one sentence: the change of the pass rate, and whether chance explains it."""
    return "; ".join(overall_lines(found)) or counts_line(found)
