"""How a batch compares with the baseline that a command names, for its summary as Markdown."""

from gradeloop.batches.markdown import Baseline, RegressedCase
from gradeloop.compare.compare import Comparison, compare_batches
from gradeloop.compare.sources import BatchSource
from gradeloop.compare.wording import change_reason, comparison_answer, counts_line, overall_lines, side_result


def baseline_of(before: BatchSource, now: BatchSource) -> Baseline:
    """Return the comparison with an earlier batch, as a summary has it."""
    found = compare_batches(before, now)
    regressed = tuple(
        RegressedCase(row.id, side_result(row.a), side_result(row.b), change_reason(row))
        for row in found.cases
        if row.outcome in {"regressed", "lost", "unsure"}
    )
    return Baseline(before.source, f"{comparison_answer(found)}; {one_sentence(found)}", regressed)


def one_sentence(found: Comparison) -> str:
    """Return the comparison in one sentence: the change of the pass rate, and whether chance explains it."""
    return "; ".join(overall_lines(found)) or counts_line(found.counts, len(found.cases))
