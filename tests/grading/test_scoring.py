"""Gate and score by figures that were computed by hand, from rows alone."""

from typing import Any

import pytest

from gradeloop.contract.evaluation import CheckOutcome, Decision, Judgement, Verdict
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.scoring import (
    GraderAnswer,
    PassFindings,
    Shortfall,
    aggregate,
    call_groups,
    result_of,
    score_of,
    shortfall_of,
    worst_of,
)

EXAMPLE = Rubric.model_validate(
    {
        "threshold": 0.8,
        "criteria": [
            "The response includes an analysis section",
            {"id": "cites", "description": "Includes citations", "required": False, "weight": 2},
            {"description": "Tone is professional", "score": {"min": 1, "max": 5, "threshold": 4}},
            {"description": "Apologizes or hedges", "negate": True},
            {"description": "All tests pass", "check": "run_test_suite"},
            {"description": "Every figure has a source", "votes": 3},
            {"group": "Style", "criteria": ["Short sentences", "No jargon"]},
        ],
    }
)

Row = bool | tuple[bool, float] | None


def verdict_of(rows: dict[str, Row], **more: Any) -> Verdict:
    """Return a verdict with these rows; a number beside a pass is a score, None is a row that is not there."""
    seen = []
    for name, row in rows.items():
        passed, score = row if isinstance(row, tuple) else (row, None)
        if passed is not None:
            seen.append({"id": name, "reason": "why", "passed": passed, "gap": None if passed else "gap", "score": score})
    return Verdict.model_validate({"criteria": seen, "explanation": "e", "result": "needs_revision"} | more)


def judgement_of(rubric: Rubric, *votes: dict[str, Row], checks: dict[str, bool] | None = None) -> Judgement:
    """Return what a pass comes to in which the n-th vote of every group says the n-th of these."""
    answers = {}
    for group in call_groups(rubric):
        for at in range(len(group.judges)):
            rows = {name: row for name, row in votes[min(at, len(votes) - 1)].items() if name in group.ids}
            answers[group.index, at] = GraderAnswer(judge=f"judge {at}", verdict=verdict_of(rows))
    outcomes = {name: CheckOutcome(passed=passed, gap=None if passed else "no") for name, passed in (checks or {}).items()}
    return aggregate(rubric, PassFindings(answers=answers, checks=outcomes))


ALL: dict[str, Row] = {"c1": True, "cites": True, "c3": (True, 5), "c4": False, "c6": True, "c7": True, "c8": True}


def test_the_example_of_the_contract(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Row], bool, str, float]] = [
        ({}, True, "satisfied", 1.0),
        # weights 1, 2, 1, 1, 1, 1, 1 = 8
        ({"cites": False}, True, "needs_revision", 6 / 8),
        ({"c3": (True, 4)}, True, "satisfied", 7.75 / 8),
        ({"c3": (True, 3)}, True, "needs_revision", 7.5 / 8),
        ({"c3": (False, 5)}, True, "needs_revision", 8 / 8),
        ({"c4": True}, True, "needs_revision", 7 / 8),
        ({}, False, "needs_revision", 7 / 8),
        ({"c7": False}, True, "needs_revision", 7.5 / 8),
        ({"c7": False, "c8": False}, True, "needs_revision", 7 / 8),
    ]
    for changed, tests, result, score in rows:
        with subtests.test(changed=changed):
            judgement = judgement_of(EXAMPLE, ALL | changed, checks={"c5": tests})

            assert result_of(EXAMPLE, judgement) == result
            assert score_of(EXAMPLE, judgement) == pytest.approx(score)


A = {"id": "a", "description": "a"}
B = {"id": "b", "description": "b"}


def test_gate_and_score(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Row], str, float]] = [
        ({"criteria": [A | {"required": False}, B | {"required": False}]}, {"a": True, "b": False}, "needs_revision", 0.5),
        ({"criteria": [A, B | {"required": False}]}, {"a": True, "b": False}, "satisfied", 0.5),
        ({"criteria": [A, B | {"required": False, "weight": 0}]}, {"a": True, "b": False}, "satisfied", 1.0),
        ({"gate": "none", "threshold": 0.5, "criteria": [A, B]}, {"a": True, "b": False}, "satisfied", 0.5),
        ({"gate": "none", "threshold": 0.51, "criteria": [A, B]}, {"a": True, "b": False}, "needs_revision", 0.5),
        ({"gate": "any", "criteria": [A, B]}, {"a": False, "b": True}, "satisfied", 0.5),
        ({"gate": "any", "criteria": [A, B]}, {"a": False, "b": False}, "needs_revision", 0.0),
        ({"scoring": "binary", "criteria": [A, B]}, {"a": True, "b": False}, "needs_revision", 0.0),
        ({"scoring": "binary", "criteria": [A, B | {"required": False}]}, {"a": True, "b": False}, "satisfied", 1.0),
        ({"criteria": [A | {"negate": True, "score": {"min": 0, "max": 10, "threshold": 6}}]}, {"a": (True, 5)}, "satisfied", 0.5),
        ({"criteria": [A | {"negate": True, "score": {"min": 0, "max": 10, "threshold": 6}}]}, {"a": (True, 8)}, "needs_revision", 0.2),
        ({"criteria": [A, {"group": "g", "threshold": 0.5, "criteria": [B, "c"]}]}, {"a": True, "b": False, "c3": True}, "satisfied", 0.75),
        ({"criteria": [A, {"group": "g", "criteria": [B, "c"]}]}, {"a": True, "b": False, "c3": True}, "needs_revision", 0.75),
        (
            {"criteria": [A, {"group": "g", "required": False, "weight": 3, "criteria": [B, "c"]}]},
            {"a": True, "b": False, "c3": False},
            "satisfied",
            0.25,
        ),
        (
            {"criteria": [A, {"group": "g", "threshold": 0.7, "criteria": [B | {"weight": 3}, "c"]}]},
            {"a": True, "b": True, "c3": False},
            "satisfied",
            0.875,
        ),
        (
            {"threshold": 0.3, "criteria": [A | {"weight": 0.1}, B | {"weight": 0.2, "required": False}]},
            {"a": True, "b": False},
            "satisfied",
            1 / 3,
        ),
    ]
    for rubric, rows, result, score in cases:
        with subtests.test(rubric=rubric):
            read = Rubric.model_validate(rubric)
            judgement = judgement_of(read, rows)

            assert result_of(read, judgement) == result
            assert score_of(read, judgement) == pytest.approx(score)


def test_a_negated_row_keeps_the_raw_score_and_its_reason_is_the_gap() -> None:
    rubric = Rubric.model_validate({"criteria": [A | {"negate": True, "score": {"min": 1, "max": 5}}]})

    (row,) = judgement_of(rubric, {"a": (True, 5)}).rows

    assert (row.passed, row.score, row.gap) == (False, 5, "why")


def test_a_score_below_its_threshold_is_no_pass_and_says_why() -> None:
    rubric = Rubric.model_validate({"criteria": [A | {"score": {"min": 1, "max": 5, "threshold": 4}}]})

    (row,) = judgement_of(rubric, {"a": (True, 3)}).rows

    assert (row.passed, row.gap, row.score) == (False, "why", 3)


VOTED = Rubric.model_validate({"criteria": [A | {"votes": 3, "score": {"min": 0, "max": 10}}]})
PAIR = Rubric.model_validate({"criteria": [A | {"panel": ["scripted:one", "scripted:two"]}]})


def votes(*said: Row, rubric: Rubric = VOTED, last: str | None = None) -> Judgement:
    """Return what these votes come to; None is a voter that broke."""
    answers = {}
    for at, answer in enumerate(said):
        broke = GraderAnswer(judge=f"judge {at}", error="overloaded: HTTP 529")
        answers[0, at] = broke if answer is None else GraderAnswer(judge=f"judge {at}", verdict=verdict_of({"a": answer}))
    return aggregate(rubric, PassFindings(answers=answers))


@pytest.mark.parametrize(
    ("said", "passed", "contested", "score"),
    [
        (((True, 9), (True, 7), (True, 8)), True, False, 8),
        (((True, 9), (False, 2), (True, 8)), True, True, 8),
        (((True, 9), (False, 2), (False, 4)), False, True, 4),
        (((True, 9), None, (True, 8)), True, False, 8.5),
        (((False, 1), None, (False, 2)), False, False, 1.5),
    ],
)
def test_a_majority_of_all_voters_decides(said: tuple[Row, ...], passed: bool, contested: bool, score: float) -> None:
    judgement = votes(*said)

    (row,) = judgement.rows
    assert judgement.error is None
    assert (row.passed, row.contested, row.score) == (passed, contested, score)
    assert [vote.passed for vote in row.votes] == [None if item is None else item[0] if isinstance(item, tuple) else item for item in said]


def test_a_tie_is_no_pass() -> None:
    (row,) = votes(True, False, rubric=PAIR).rows

    assert (row.passed, row.contested, row.gap) == (False, True, "gap")


@pytest.mark.parametrize("said", [((True, 9), (False, 1), None), ((True, 9), None, None), (None, None, None), ((False, 1), None, None)])
def test_a_lost_vote_that_could_decide_is_the_graders_error(said: tuple[Row, ...]) -> None:
    judgement = votes(*said)

    assert (judgement.error or "").count("overloaded: HTTP 529") == said.count(None)
    assert result_of(VOTED, judgement) == "grader_error"
    assert score_of(VOTED, judgement) is None


def test_a_voter_who_says_that_it_cannot_be_judged_gives_no_vote() -> None:
    impossible = GraderAnswer(judge="c", verdict=verdict_of({"a": (True, 9)}, result="failed", explanation="about nothing"))
    answers = {(0, at): GraderAnswer(judge="j", verdict=verdict_of({"a": row})) for at, row in enumerate([(True, 9), (False, 1)])}

    split = aggregate(VOTED, PassFindings(answers=answers | {(0, 2): impossible}))
    agreed = aggregate(VOTED, PassFindings(answers={(0, 0): answers[0, 0], (0, 1): impossible, (0, 2): impossible}))

    assert (result_of(VOTED, split), split.error) == ("grader_error", "c: it says that this cannot be judged: about nothing")
    assert (result_of(VOTED, agreed), agreed.explanation) == ("failed", "about nothing")


def test_a_lost_vote_that_cannot_change_the_outcome_leaves_its_row_open() -> None:
    rubric = Rubric.model_validate({"criteria": [A | {"votes": 2}, B]})
    answers = {
        (0, 0): GraderAnswer(judge="one", verdict=verdict_of({"a": True})),
        (0, 1): GraderAnswer(judge="two", error="overloaded"),
        (1, 0): GraderAnswer(judge="one", verdict=verdict_of({"b": False})),
    }

    judgement = aggregate(rubric, PassFindings(answers=answers))

    assert [(row.id, row.passed, row.unverified) for row in judgement.rows] == [("a", False, True), ("b", False, False)]
    assert result_of(rubric, judgement) == "needs_revision"
    assert score_of(rubric, judgement) == 0.0


@pytest.mark.parametrize(("required", "result"), [(True, "grader_error"), (False, "satisfied")])
def test_a_lost_group_is_an_error_where_it_is_required_and_what_the_others_found_is_kept(required: bool, result: str) -> None:
    rubric = Rubric.model_validate({"mode": "per_criterion", "criteria": [A | {"required": required}, B]})
    answers = {(0, 0): GraderAnswer(judge="j", error="overloaded"), (1, 0): GraderAnswer(judge="j", verdict=verdict_of({"b": True}))}

    judgement = aggregate(rubric, PassFindings(answers=answers))

    assert result_of(rubric, judgement) == result
    assert [row.id for row in judgement.rows if row.passed] == ["b"]


@pytest.mark.parametrize(("required", "result"), [(True, "failed"), (False, "satisfied")])
def test_a_required_criterion_that_cannot_be_judged_fails_the_run(required: bool, result: str) -> None:
    rubric = Rubric.model_validate({"mode": "per_criterion", "criteria": [A | {"required": required}, B]})
    impossible = verdict_of({}, result="failed", explanation="about nothing that is here")
    answers = {(0, 0): GraderAnswer(judge="j", verdict=impossible), (1, 0): GraderAnswer(judge="j", verdict=verdict_of({"b": True}))}

    judgement = aggregate(rubric, PassFindings(answers=answers))

    assert result_of(rubric, judgement) == result
    assert judgement.explanation == ("about nothing that is here" if required else "1 of 2 criteria pass.")


def remarks_of(rubric: Rubric, *explained: tuple[dict[str, Row], str], **more: Any) -> tuple[str, ...]:
    """Return the remarks of a pass in which each call group has one grader, with its explanation."""
    verdicts = [verdict_of(rows, explanation=explanation) for rows, explanation in explained]
    answers = {(at, 0): GraderAnswer(judge="j", verdict=verdict) for at, verdict in enumerate(verdicts)}
    return aggregate(rubric, PassFindings(answers=answers, **more)).remarks


def test_the_remarks_are_those_of_the_graders_that_object() -> None:
    rubric = Rubric.model_validate({"mode": "per_criterion", "criteria": [A, B | {"negate": True}, "c", "d"]})

    remarks = remarks_of(rubric, ({"a": False}, "no a"), ({"b": True}, "it has b"), ({"c3": True}, "c is there"), ({"c4": False}, " "))

    assert remarks == ("no a", "it has b")


def test_the_only_grader_is_heard_even_where_it_does_not_object() -> None:
    rubric = Rubric.model_validate({"criteria": [A, {"description": "t", "check": "t"}]})

    assert remarks_of(rubric, ({"a": True}, "well said"), checks={"c2": CheckOutcome(passed=False, gap="no")}) == ("well said",)


def test_what_a_voter_in_the_minority_says_is_no_remark() -> None:
    answers = {
        (0, at): GraderAnswer(judge="j", verdict=verdict_of({"a": (passed, 9)}, explanation=f"vote {at}"))
        for at, passed in enumerate((True, False, False))
    }

    assert aggregate(VOTED, PassFindings(answers=answers)).remarks == ("vote 1", "vote 2")


def test_a_summary_that_code_wrote_is_no_remark_and_names_the_dropped_rows() -> None:
    rubric = Rubric.model_validate({"mode": "per_criterion", "criteria": [A, B]})
    answers = {
        (0, 0): GraderAnswer(judge="j", verdict=verdict_of({"a": False}, explanation="", dropped=["'b'"])),
        (1, 0): GraderAnswer(judge="j", verdict=verdict_of({"b": True}, dropped=["'a'", "'b'"])),
    }

    judgement = aggregate(rubric, PassFindings(answers=answers))

    assert judgement.remarks == ()
    assert judgement.explanation == "1 of 2 criteria pass. Not passed: a. (Rows that nobody asked for were dropped: 'b', 'a'.)"


def test_rows_come_in_the_order_of_the_rubric_whoever_decided() -> None:
    rubric = Rubric.model_validate({"criteria": [A | {"human": True}, {"description": "c", "check": "t"}, B, "d"], "mode": "per_criterion"})
    answers = {(at, 0): GraderAnswer(judge="j", verdict=verdict_of({name: True}), cached=at == 0) for at, name in enumerate(("b", "c4"))}
    found = PassFindings(answers=answers, checks={"c2": CheckOutcome(passed=True)}, decisions={"a": Decision(passed=True, by="ann")})

    judgement = aggregate(rubric, found)

    assert [(row.id, row.by, row.reason) for row in judgement.rows] == [
        ("a", "human", "decided by ann"),
        ("c2", "tool", "t passed"),
        ("b", "cached", "why"),
        ("c4", "model", "why"),
    ]
    assert judgement.explanation == "4 of 4 criteria pass."


FREE = {"weight": 0, "required": False}
SCALED = {"score": {"min": 0, "max": 10}}
GROUPED: list[dict[str, Any]] = [{"group": "g", "threshold": 0.8, "criteria": [A, B]}, {"id": "c", "description": "c"}]

DECIDED: list[tuple[dict[str, Any], dict[str, Row], tuple[str, ...], float | None, str | None]] = [
    ({"criteria": [A | FREE, B]}, {"a": False, "b": False}, ("b",), None, "b"),
    ({"criteria": [A | {"weight": 0}, B]}, {"a": False, "b": True}, ("a",), None, None),
    ({"criteria": [A | FREE | SCALED, B | SCALED]}, {"a": (False, 0), "b": (False, 5)}, ("b",), None, "b"),
    ({"criteria": [A, B | {"required": False}]}, {"a": False, "b": False}, ("a",), None, "a"),
    ({"criteria": [A, B | {"required": False}]}, {"a": True, "b": False}, (), None, "b"),
    ({"criteria": [A | FREE, B]}, {"a": False, "b": True}, (), None, None),
    ({"criteria": [A | SCALED, B | SCALED]}, {"a": (False, 4), "b": (False, 2)}, ("b", "a"), None, "b"),
    ({"gate": "any", "criteria": [A, B]}, {"a": False, "b": False}, ("a", "b"), None, "a"),
    ({"gate": "none", "threshold": 0.9, "criteria": [A | FREE, B]}, {"a": False, "b": False}, ("b",), 0.9, "b"),
    ({"threshold": 0.9, "criteria": [A, B | SCALED]}, {"a": True, "b": (True, 5)}, ("b",), 0.9, None),
    ({"criteria": GROUPED}, {"a": True, "b": False, "c": True}, ("b",), None, "b"),
    ({"criteria": [{**GROUPED[0], "weight": 0}, GROUPED[1]]}, {"a": False, "b": False, "c": False}, ("a", "b", "c"), None, "c"),
    ({"criteria": [A, B]}, {"a": True, "b": True}, (), None, None),
]


def test_what_decided_is_known_and_what_weighs_nothing_is_never_the_worst(subtests: pytest.Subtests) -> None:
    for raw, said, decided, threshold, worst in DECIDED:
        with subtests.test(raw=raw):
            rubric = Rubric.model_validate(raw)
            rows = judgement_of(rubric, said).rows

            assert (shortfall_of(rubric, rows), worst_of(rubric, rows)) == (Shortfall(decided, threshold), worst)
