"""What is recorded of a pass follows from its rows, and from nothing that a model claims."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeloop.contract.evaluation import (
    CheckOutcome,
    CriterionRow,
    Evaluation,
    EvaluationResult,
    Judgement,
    RunStatus,
    Verdict,
    VerdictRow,
)
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.scoring import (
    GraderAnswer,
    PassFindings,
    aggregate,
    best_evaluation,
    could_be_satisfied,
    result_of,
    score_of,
    scores_of,
    status_of,
)

RUBRIC = Rubric.model_validate({"criteria": ["three lines", "spring", {"description": "a joke", "required": False}]})
TESTED = Rubric.model_validate({"criteria": [{"description": "tests pass", "check": "run_tests"}, "readable"]})


def rows(*passed: bool | None) -> tuple[CriterionRow, ...]:
    """Return rows for c1, c2, ...; None is a row that was never answered."""
    return tuple(
        CriterionRow(id=f"c{at}", name="n", passed=bool(value), reason="r", gap=None if value else "g", unverified=value is None)
        for at, value in enumerate(passed, 1)
    )


def said(*passed: bool, reason: str = "r", gap: str = "g") -> tuple[VerdictRow, ...]:
    """Return the grader's rows for c1, c2, ..."""
    return tuple(VerdictRow(id=f"c{at}", reason=reason, passed=value, gap=None if value else gap) for at, value in enumerate(passed, 1))


def rows_of(
    rubric: Rubric, verdicts: tuple[VerdictRow, ...], checks: dict[str, CheckOutcome], *, missing: tuple[str, ...] = ()
) -> tuple[CriterionRow, ...]:
    """Return the rows that follow from one grader's rows and from checks."""
    verdict = Verdict(criteria=verdicts, explanation="e", result="needs_revision")
    answer = GraderAnswer(judge="j", verdict=verdict, missing=missing, error="no rows" if missing else None)
    return aggregate(rubric, PassFindings(answers={(0, 0): answer}, checks=checks)).rows


def evaluation(iteration: int, *passed: bool, result: EvaluationResult = "needs_revision", **more: Any) -> Evaluation:
    """Return an evaluation of RUBRIC with these rows."""
    judgement = Judgement(rows=rows(*passed), explanation="e", error="broke" if result == "grader_error" else None)
    given = {"grading_run_id": "r", "iteration": iteration, "result": result, "status": "running", "explanation": "e", "draft": iteration}
    return Evaluation.model_validate(given | {"criteria": judgement.rows, "score": score_of(RUBRIC, judgement)} | more)


@pytest.mark.parametrize(
    ("passed", "result", "score"),
    [((True, True, True), "satisfied", 1.0), ((True, True, False), "satisfied", 2 / 3), ((True, False, True), "needs_revision", 2 / 3)],
)
def test_the_required_rows_decide_and_all_rows_score(passed: tuple[bool, ...], result: str, score: float) -> None:
    judgement = Judgement(rows=rows(*passed), explanation="")

    assert (result_of(RUBRIC, judgement), score_of(RUBRIC, judgement)) == (result, score)


def test_an_error_or_an_impossible_rubric_has_no_score_whatever_the_rows_say() -> None:
    broken = Judgement(rows=rows(True, True, True), explanation="", error="overloaded")
    impossible = Judgement(rows=rows(True, True, True), explanation="", impossible=True)

    assert [(result_of(RUBRIC, value), score_of(RUBRIC, value)) for value in (broken, impossible)] == [
        ("grader_error", None),
        ("failed", None),
    ]


def test_no_rows_are_no_pass() -> None:
    assert result_of(RUBRIC, Judgement(explanation="all is well")) == "needs_revision"


@pytest.mark.parametrize(
    ("result", "last", "status"),
    [
        ("satisfied", False, "satisfied"),
        ("satisfied", True, "satisfied"),
        ("needs_revision", False, "running"),
        ("needs_revision", True, "max_iterations_reached"),
        ("failed", False, "failed"),
        ("grader_error", True, "grader_error"),
    ],
)
def test_the_runs_status_after_a_pass(result: EvaluationResult, last: bool, status: RunStatus) -> None:
    assert status_of(result, last=last) == status


def test_a_row_that_was_never_answered_is_no_confirmed_failure() -> None:
    assert could_be_satisfied(RUBRIC, scores_of(RUBRIC, rows(True, None, False)))
    assert not could_be_satisfied(RUBRIC, scores_of(RUBRIC, rows(False, None, True)))


def test_rows_come_in_the_rubrics_order_with_what_a_tool_decided() -> None:
    checks = {"c1": CheckOutcome(passed=False, gap="test_unhashable: TypeError")}

    judged = rows_of(TESTED, said(True, True)[1:], checks)

    assert [item.model_dump(mode="json") for item in judged] == [
        {
            "id": "c1",
            "name": "tests pass",
            "passed": False,
            "reason": "run_tests failed",
            "gap": "test_unhashable: TypeError",
            "by": "tool",
        },
        {"id": "c2", "name": "readable", "passed": True, "reason": "r", "by": "model"},
    ]


def test_no_model_overrules_a_check() -> None:
    judged = rows_of(TESTED, said(True, True), {"c1": CheckOutcome(passed=False, gap="no")})

    assert [(item.id, item.passed, item.by) for item in judged] == [("c1", False, "tool"), ("c2", True, "model")]


def test_an_unanswered_row_says_that_the_grader_gave_no_verdict() -> None:
    judged = rows_of(RUBRIC, said(False), {}, missing=("c2",))

    assert [(item.id, item.passed, item.unverified, item.gap) for item in judged] == [
        ("c1", False, False, "g"),
        ("c2", False, True, "the grader gave no verdict"),
    ]


def test_long_reasons_and_gaps_are_cut_and_their_length_told() -> None:
    row = rows_of(RUBRIC, said(False, reason="r" * 5000, gap="g" * 9000), {})[0]

    assert row.reason == "r" * 4000 + "… (5000 characters)"
    assert row.gap == "g" * 4000 + "… (9000 characters)"


def test_a_hundred_rows_together_stay_far_below_a_payload() -> None:
    rubric = Rubric.model_validate("\n".join(f"- number {number}" for number in range(100)))

    judged = rows_of(rubric, said(*[False] * 100, reason="r" * 9000, gap="g" * 9000), {})

    assert len(judged) == 100
    assert sum(len(item.model_dump_json()) for item in judged) < 256 * 1024


def test_a_curtailed_evaluation_keeps_every_decision() -> None:
    whole = evaluation(0, False, True, True, explanation="e" * 3000)
    short = whole.curtailed()

    assert [(criterion.id, criterion.passed) for criterion in short.criteria] == [
        (criterion.id, criterion.passed) for criterion in whole.criteria
    ]
    assert (short.score, short.result, short.size() < 1200 < whole.size()) == (whole.score, whole.result, True)


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([evaluation(0, True, False, False), evaluation(1, False, False, False)], 0),
        ([evaluation(0, True, False, False), evaluation(1, False, True, False)], 1),
        ([evaluation(0, True, False, True), evaluation(1, True, True, False)], 1),
        ([evaluation(0, True, False, False), evaluation(1, False, False, True)], 0),
        ([evaluation(0, False, False, False), evaluation(1, result="grader_error", score=None)], 0),
        ([evaluation(0, result="grader_error", score=None)], 0),
    ],
    ids=["higher score", "a tie goes to the latest", "gate before score", "required before optional", "any grade before none", "only one"],
)
def test_the_best_draft_holds_the_gate_then_scores_then_is_the_latest(evaluations: list[Evaluation], best: int) -> None:
    chosen = best_evaluation(RUBRIC, evaluations)

    assert chosen is not None
    assert chosen.iteration == best


def test_nothing_graded_has_no_best() -> None:
    assert best_evaluation(RUBRIC, []) is None


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_satisfied_means_that_every_gating_row_passed(passed: list[bool], required: list[bool]) -> None:
    rubric = Rubric.model_validate({"criteria": [{"description": "x", "required": must} for must in required[: len(passed)]]})
    judged = rows(*passed)

    assert (result_of(rubric, Judgement(rows=judged, explanation="")) == "satisfied") == all(
        item.passed for item in judged if item.id in rubric.gating
    )
