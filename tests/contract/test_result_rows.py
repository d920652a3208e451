"""Results as rows and in a notebook: one row a criterion, no verdict is no fail, and nothing that a model wrote is markup."""

from typing import Any

from gradeloop.batches.contract import CaseResult
from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import RunResult

ATTACK = '<img src=x onerror="alert(1)">'
PASSED = CriterionRow(id="c1", name="it is short", passed=True, reason="nine words")
FAILED = CriterionRow(id="c2", name="it is kind", passed=False, reason=ATTACK, gap=ATTACK)
NOBODY = CriterionRow(id="c3", name="it is true", passed=False, unverified=True, reason="nobody was asked")


def result(**more: Any) -> RunResult:
    judged = {"grading_run_id": "r", "result": "needs_revision", "status": "running", "explanation": "", "draft": 1, "score": 0.5}
    evaluations = [Evaluation(iteration=at, criteria=(PASSED, FAILED, NOBODY), **judged) for at in range(2)]
    plain: dict[str, Any] = dict.fromkeys(RunResult.model_fields) | {
        "thread_id": ATTACK,
        "iterations": 2,
        "status": "max_iterations_reached",
        "evaluations": evaluations,
        "messages_truncated": False,
        "usage": Usage(),
        "score": 0.5,
    }
    return RunResult.model_validate(plain | more)


def test_a_result_has_a_row_for_every_criterion_of_every_evaluation() -> None:
    rows = result().rows()

    assert [(row["iteration"], row["criterion"], row["passed"]) for row in rows] == [
        *((0, "c1", True), (0, "c2", False), (0, "c3", None)),
        *((1, "c1", True), (1, "c2", False), (1, "c3", None)),
    ]
    assert len({tuple(row) for row in rows}) == 1


def test_a_notebook_shows_the_last_evaluation_and_runs_nothing() -> None:
    shown = result()._repr_html_()

    assert shown.count("<tr>") == 4
    assert "<img" not in shown
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;: max_iterations_reached after 2 iterations, score 0.50" in shown


def test_a_result_without_evaluations_has_no_rows_and_a_title() -> None:
    assert result(evaluations=[]).rows() == []
    assert "ungraded" in result(evaluations=[], status=None, score=None)._repr_html_()


def test_a_case_that_is_an_error_has_one_row_that_says_why() -> None:
    case = CaseResult(index=0, id="late", status="error", error="quota_exhausted")

    assert case.rows() == [{"case": "late", "repeat": 0, "status": "error", "score": None, "error": "quota_exhausted"}]
    assert "quota_exhausted" in case._repr_html_()
    assert [row["passed"] for row in CaseResult(index=0, id="a", status="passed", criteria=(PASSED,)).rows()] == [True]
