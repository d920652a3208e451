"""A reason that contradicts its verdict is found by what it concludes; what it quotes, supposes or takes back is not a conclusion."""

import itertools

import pytest

from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.verdicts import contradicted, contradiction

FAILS = {
    "The deadline is missing. Therefore this fails.": "Therefore this fails",
    "There is no date, so the answer fails.": "so the answer fails",
    "It does not meet the criterion.": "It does not meet the criterion",
    "The answer does not meet the length requirement, as it has 40 words.": "The answer does not meet the length requirement",
    "It names no source; the criterion is not met.": "the criterion is not met",
    "The requirement is clearly not satisfied because no date is given.": "The requirement is clearly not satisfied",
    "It is short, but it rambles, and it does not satisfy this requirement.": "it does not satisfy this requirement",
    "The draft doesn't meet it.": "The draft doesn't meet it",
    "The agent's answer fails the criterion.": "The agent's answer fails the criterion",
    "Verdict: fail.": "Verdict: fail",
    "It has no source. The response does not meet the 100-word minimum.": "The response does not meet the 100-word minimum",
    "It does not meet the requirement to cite a source.": "It does not meet the requirement to cite a source",
    "Lyon is not the capital.\nThus, the response fails to meet the criterion": "the response fails to meet the criterion",
}
PASSES = {
    "It names Paris. Therefore this passes.": "Therefore this passes",
    "The answer meets the criterion.": "The answer meets the criterion",
    "It has a date, so the criterion is met.": "the criterion is met",
    "The response fully satisfies the requirement, since it cites a source.": "The response fully satisfies the requirement",
    "All the requirements are met.": "All the requirements are met",
    "Verdict: pass": "Verdict: pass",
}
NEITHER = (
    "It names Paris.",
    "It does not name Lyon.",
    "The user says it does not meet the requirement.",
    'The reviewer wrote "this does not meet the criterion" and the agent answered.',
    "`fails the criterion` is what the log prints.",
    "The agent quotes ‘it does not meet the requirement’ and refutes it.",
    "If it had no date, it would fail the criterion.",
    "Although it does not meet the word limit requirement, the rest is there.",
    "At first it does not meet the criterion.",
    "It does not meet the length requirement, but the rubric asks for tone.",
    "It does not meet the length requirement. However, the rubric asks for tone.",
    "Nothing shows that the criterion is not met.",
    "There is not part in which it fails the criterion.",
    "The applicant does not meet the visa requirements.",
    "It explains that the applicant does not meet the visa requirements of Spain.",
    "The test fails as it should, so the bug is shown.",
    "The code no longer fails.",
    "It meets the deadline.",
    "It meets the format requirement of the style guide.",
    "The criterion is partially met.",
    "Only one of the requirements is met.",
    "Not all requirements are met.",
    "The criterion is met only in the first part.",
    "It would meet the criterion with a date.",
    "It fails to mention the date.",
    "The agent meets the user's needs.",
    "The answer passes the salt.",
    "It does not meet the criterion for failure.",
    "",
)


def told(phrase: str) -> str:
    return f"its reason concludes “{phrase}”, which contradicts its verdict"


def test_a_pass_whose_reason_concludes_that_it_fails_is_found(subtests: pytest.Subtests) -> None:
    for reason, why in FAILS.items():
        with subtests.test(reason=reason):
            assert contradicted(reason, passed=True) == told(why)
            assert contradicted(reason, passed=False) == ""


@pytest.mark.parametrize("reason", PASSES)
def test_a_fail_whose_reason_concludes_that_it_passes_is_found(reason: str) -> None:
    assert contradicted(reason, passed=False) == told(PASSES[reason])
    assert contradicted(reason, passed=True) == ""


def test_what_is_quoted_supposed_or_taken_back_is_no_conclusion(subtests: pytest.Subtests) -> None:
    for reason, passed in itertools.product(NEITHER, (True, False)):
        with subtests.test(reason=reason, passed=passed):
            assert contradicted(reason, passed=passed) == ""


def test_a_reason_that_concludes_both_says_nothing() -> None:
    both = "The criterion is not met. It has a date after all, so the criterion is met."

    assert {contradicted(both, passed=passed) for passed in (True, False)} == {""}


def test_a_row_is_held_against_what_its_grader_said(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, object], dict[str, object], bool]] = [
        ({}, {"passed": True, "reason": "The criterion is not met."}, True),
        ({}, {"passed": False, "reason": "The criterion is met."}, True),
        ({}, {"passed": True, "reason": "The criterion is met."}, False),
        ({"negate": True}, {"passed": True, "reason": "The criterion is not met."}, False),
        ({"negate": True}, {"passed": True, "reason": "The criterion is met."}, True),
        ({"require_quotes": True}, {"passed": False, "reason": "The criterion is met."}, False),
        ({"require_quotes": True}, {"passed": True, "reason": "The criterion is not met."}, True),
        ({"score": {"min": 1, "max": 5, "threshold": 4}}, {"passed": False, "reason": "The criterion is met."}, False),
        ({"score": {"min": 1, "max": 5}}, {"passed": False, "reason": "The criterion is met."}, True),
        ({}, {"passed": False, "reason": "The criterion is met.", "unverified": True}, False),
        ({}, {"passed": True, "reason": "The criterion is not met.", "by": "human"}, False),
        ({}, {"passed": True, "reason": "The criterion is not met.", "by": "cached"}, True),
    ]
    for criterion, row, is_told in rows:
        with subtests.test(criterion=criterion):
            rubric = Rubric.model_validate({"criteria": [{"id": "c1", "description": "It has a date."} | criterion]})
            made = CriterionRow.model_validate({"id": "c1", "name": "It has a date."} | row)

            assert bool(contradiction(made, rubric)) == is_told
            assert contradiction(made, None) == ""
