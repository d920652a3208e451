"""What a page says first: passed or not, what failed, and what to do next."""

from dataclasses import replace

import pytest

from gradeloop.compare.compare import Comparison, compare_batches
from gradeloop.compare.sources import BatchSource, ComparedCase, ShownCase
from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.messages import Message
from gradeloop.reports.diff_page import output_pairs
from gradeloop.reports.model import RunReport
from gradeloop.reports.run_page import failing_rows, run_next_step, run_page
from gradeloop.text import headline

DRAFTS = (
    Message(role="user", content="Write a sign."),
    Message(role="assistant", content="Closed."),
    Message(role="user", content="Say when it opens.", source="grader_feedback"),
    Message(role="assistant", content="Closed. ```open()```"),
)


def evaluation(draft: int, *failing: str) -> Evaluation:
    rows = [
        CriterionRow(
            id=name, name=f"the text of {name}", passed=name not in failing, reason="r", gap="mend it" if name in failing else None
        )
        for name in ("when", "short")
    ]
    return Evaluation(
        status="running",
        grading_run_id="g",
        iteration=draft // 2,
        draft=draft,
        result="needs_revision",
        criteria=tuple(rows),
        explanation="",
    )


def failed(best: int) -> RunReport:
    return RunReport(
        name="sign",
        kind="thread",
        verdict="failed",
        word="max_iterations_reached",
        thread_id="sign",
        messages=DRAFTS,
        evaluations=(evaluation(1, "when"), evaluation(3, "when", "short")),
        best=best,
    )


def test_a_failed_thread_names_the_criteria_of_its_best_draft_with_their_words_and_gaps() -> None:
    report = failed(best=1)
    page = run_page(report)
    head = page[page.index('<p class="answer failed">') : page.index("<h2>Criteria</h2>")]

    assert [row.id for row in failing_rows(report)] == ["when"]
    assert "FAILED: when<" in head
    assert "the text of when" in head
    assert "mend it" in head
    assert "the text of short" not in head
    assert '<a href="#r-m1">Read the best draft</a>' in head


def test_where_the_best_draft_is_not_known_the_last_one_says_what_failed() -> None:
    assert [row.id for row in failing_rows(failed(best=2))] == ["when", "short"]


@pytest.mark.parametrize(("word", "step"), [("interrupted", "gradeloop resume sign"), ("satisfied", ""), ("max_iterations_reached", "")])
def test_an_interrupted_thread_says_how_it_goes_on(word: str, step: str) -> None:
    assert run_next_step(failed(best=1).model_copy(update={"word": word})) == step


def test_changes_of_a_draft_with_fenced_code_are_monospaced() -> None:
    page = run_page(failed(best=1))

    assert '<div class="text mono" dir="auto" tabindex="0" role="region" aria-label="Changes of message 3">' in page


@pytest.mark.parametrize(
    ("before", "now", "marked"), [("closed on Sunday", "closed on Monday", True), ("closed on Sunday", "We love you", False)]
)
def test_outputs_that_have_nothing_in_common_are_shown_without_marks(before: str, now: str, marked: bool, compared: Comparison) -> None:
    (pair,) = output_pairs(compared, {"a": ShownCase(before, "")}, {"a": ShownCase(now, "Opening hours · question: When?")})

    assert pair.asked == "Opening hours · question: When?"
    assert any(piece.kind == "removed" for piece in pair.a) is marked
    assert any(piece.kind == "added" for piece in pair.b) is marked


@pytest.fixture
def compared() -> Comparison:
    passed = ComparedCase("a", 0, "passed", 1.0, ())
    return compare_batches(*(BatchSource(name, [case]) for name, case in (("A", passed), ("B", replace(passed, status="failed")))))


@pytest.mark.parametrize(("text", "line"), [("a\nb", "a b"), ("abcdef", "abcdef"), ("abcdefg", "abcdef…"), ("abcde  xyz", "abcde…")])
def test_a_headline_is_one_line_and_says_where_it_goes_on(text: str, line: str) -> None:
    assert headline(text, 6) == line
