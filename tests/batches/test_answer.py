"""The answer to the first question about a batch: one text for page, index, terminal and Markdown, which agrees with the exit code."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gradeloop.batches.answer import BatchAnswer, answer_of, gate_exit_code, next_step
from gradeloop.batches.cli.batch_view import answer_lines
from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.compare.comparison import stored_source
from gradeloop.batches.compare.wording import baseline_of
from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.markdown import MOST_BYTES, Baseline, BatchStory, MarkdownFile, RegressedCase
from gradeloop.batches.outputs import Outputs
from gradeloop.exit_codes import CAPPED, NO_VERDICT, SATISFIED
from gradeloop.stats.correction import GatedRate, JudgeError, hold_rate
from tests.rig.batch_results import case, summary_of


def counts(passed: int = 0, failed: int = 0, errors: int = 0, **facts: Any) -> BatchSummary:
    """Return the summary of a batch with these counts."""
    numbers = {"passed": passed, "failed": failed, "errors": errors, "total": passed + failed + errors}
    return summary_of([], **(numbers | facts))


def corrected(right: int, threshold: float) -> GatedRate:
    """Return 80 of 100 passed by a judge that is right on so many of 100 good runs, and of 100 bad ones."""
    return hold_rate(80, 100, JudgeError(passed=100, passed_found=right, failed=100, failed_found=right), threshold)


ANSWERS: dict[str, tuple[BatchSummary, str, int]] = {
    "all": (counts(3), "PASSED", SATISFIED),
    "enough": (counts(8, 2, pass_rate=0.8), "PASSED 80% of 80%", SATISFIED),
    "too few": (counts(77, 23, pass_rate=0.8), "FAILED 77% of 80%", CAPPED),
    "just too few": (counts(7999, 2001, pass_rate=0.8), "FAILED 79.99% of 80%", CAPPED),
    "errors": (counts(30, 0, 11), "INCONCLUSIVE: 11 errors", NO_VERDICT),
    "one error": (counts(30, 0, 1), "INCONCLUSIVE: 1 error", NO_VERDICT),
    "waiting": (counts(1, total=2, waiting=1), "INCONCLUSIVE: 1 case waiting for a person", NO_VERDICT),
    "nothing": (counts(), "INCONCLUSIVE: nothing was judged", NO_VERDICT),
    "not asked": (counts(total=2, ungraded=2, asks=False), "UNGRADED: the suite asks for no verdict; give its tests assertions", SATISFIED),
    "paused": (counts(1, total=5, status="paused", reason="the budget of $1 is spent"), "PAUSED: the budget of $1 is spent", NO_VERDICT),
    "stopped": (counts(1, total=5, status="stopped"), "STOPPED", NO_VERDICT),
    "corrected enough": (
        counts(80, 20, pass_rate=0.5, corrected=corrected(95, 0.5)),
        "PASSED 83.3% (73.1% to 92.9%) corrected of 50%",
        SATISFIED,
    ),
    "corrected too few": (
        counts(80, 20, pass_rate=0.5, corrected=corrected(95, 0.95)),
        "FAILED 83.3% (73.1% to 92.9%) corrected of 95%",
        CAPPED,
    ),
    "corrected undecided": (
        counts(80, 20, pass_rate=0.5, corrected=corrected(90, 0.79)),
        "INCONCLUSIVE: 87.5% (75.3% to 99.4%) corrected of 79%, no number of labels would decide; judge more runs",
        NO_VERDICT,
    ),
    "corrected with errors": (counts(80, 20, 1, corrected=corrected(95, 0.5)), "INCONCLUSIVE: 1 error", NO_VERDICT),
    "corrected, decides nothing": (
        counts(80, 20, pass_rate=0.8, corrected=corrected(95, 0.5).held_against(None)),
        "PASSED 80% of 80%",
        SATISFIED,
    ),
    "running": (counts(1, 1, total=5, status="running"), "RUNNING 2 of 5", NO_VERDICT),
}


def test_the_answer_agrees_with_the_exit_code(subtests: pytest.Subtests) -> None:
    for name, (summary, text, code) in ANSWERS.items():
        with subtests.test(name=name):
            assert (answer_of(summary).text, gate_exit_code(summary)) == (text, code)


def test_the_flags_of_a_command_change_the_answer_as_they_change_the_exit_code() -> None:
    summary = counts(30, 10, 1)

    assert answer_of(summary, allow_errors=0.1, pass_rate=0.7) == BatchAnswer("PASSED", "75% of 70%")
    assert answer_of(summary, allow_errors=0.1, pass_rate=0.9) == BatchAnswer("FAILED", "75% of 90%")


def test_the_next_step_is_a_command_or_nothing() -> None:
    steps = {name: next_step(summary, answer_of(summary)) for name, (summary, _, _) in ANSWERS.items()}

    assert steps["errors"] == "gradeloop eval --retry errors --attach batch-1"
    assert steps["waiting"] == "gradeloop inbox"
    assert steps["paused"] == "gradeloop eval --resume batch-1"
    assert steps["too few"] == steps["corrected too few"] == "gradeloop report batch-1 --open"
    for summary in (counts(1, total=3, unsure=2), counts(8, 2, 1, allow_errors=0.5)):
        assert next_step(summary, answer_of(summary)) == "gradeloop report batch-1 --open"
    assert steps["all"] == steps["enough"] == steps["running"] == ""


def test_terminal_and_markdown_say_the_same_words(tmp_path: Path) -> None:
    results = [case(0), case(1, "failed"), case(2, "failed"), case(3)]
    summary = summary_of(results, pass_rate=0.8)
    screen = io.StringIO()
    for line in answer_lines(summary):
        Console(file=screen, width=100).print(line)
    Outputs([tmp_path / "out.md"]).close(summary, lambda: iter(results))

    assert screen.getvalue().splitlines()[0] == "FAILED 50% of 80%"
    assert "**FAILED 50% of 80%**" in (tmp_path / "out.md").read_text()


def summarised(results: list[Any], said: BatchStory | None = None) -> str:
    """Return a batch as Markdown."""
    text = io.StringIO()
    file = MarkdownFile(text, summary_of(results), ColumnTable(summary_of(results)), said)
    for result in results:
        file.write(result)
    file.end()
    return text.getvalue()


def test_a_summary_lists_the_worst_first_and_what_failed_before_them() -> None:
    text = summarised([case(0), case(1, "error"), case(2, "failed"), case(3, "waiting")])

    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| case-")] == [
        "| case-2",
        "| case-1",
        "| case-3",
        "| case-0",
    ]
    assert (
        text.index("**INCONCLUSIVE: 1 case waiting for a person**")
        < text.index("**Criteria by how often they failed**")
        < text.index("| case-2")
    )
    assert "| c2 | the text of c2 | 1 of 2 |" in text


def test_a_summary_fits_a_comment_and_counts_what_it_leaves_out() -> None:
    text = summarised([case(index, "failed", output="é|" * 900) for index in range(2_000)])

    assert len(text.encode()) <= MOST_BYTES
    left = 2_000 - sum(line.startswith("| case-") for line in text.splitlines())
    assert f"and {left:,} more cases; the other files of results have all" in text


def test_a_summary_has_a_table_of_what_regressed_from_the_baseline() -> None:
    before, now = [case(0), case(1)], [case(0), case(1, "failed")]
    baseline = baseline_of(stored_source(summary_of(before), before), stored_source(summary_of(now), now))
    text = summarised(now, BatchStory(BatchAnswer("FAILED", "50% of 100%"), baseline))

    assert baseline.regressed == (RegressedCase("case-1", "passed", "failed", "c2 regressed: it says nothing"),)
    assert "**Compared with batch-1**: 1 REGRESSED: too few to tell from chance; pass rate 100% -\\> 50% of 2 cases" in text
    assert "| case-1 | passed | failed | c2 regressed: it says nothing |" in text


def test_a_summary_without_regressions_says_so() -> None:
    text = summarised([case(0)], BatchStory(BatchAnswer("PASSED"), Baseline("main.json", "no change")))

    assert "**Compared with main.json**: no change\n\nNo case regressed." in text
