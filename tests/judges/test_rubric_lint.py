"""The rules about criteria: what they find, what they leave alone, and what they propose."""

from typing import Any

import pytest

from gradeloop.contract.rubric import Rubric
from gradeloop.grading.rubric_lint import LintFinding, lint_rubric


def findings(*criteria: Any) -> list[LintFinding]:
    return lint_rubric(Rubric.model_validate({"criteria": list(criteria)}))


COMPOUND: dict[str, tuple[str, ...]] = {
    "It names Paris and cites a source": ("It names Paris", "It cites a source"),
    "The answer names Paris, and it does not mention Lyon": ("The answer names Paris", "It does not mention Lyon"),
    "It is in French; it has three paragraphs": ("It is in French", "It has three paragraphs"),
    "It names Paris. It cites a source.": ("It names Paris.", "It cites a source"),
    "It greets the user as well as names the price": ("It greets the user", "It names the price"),
}


@pytest.mark.parametrize("text", COMPOUND)
def test_a_criterion_of_several_claims_is_split(text: str) -> None:
    (found,) = [finding for finding in findings(text) if finding.problem == "compound"]

    assert found.better == COMPOUND[text]


NEGATED: dict[str, tuple[str, ...]] = {
    "It does not lack a summary": ("It includes a summary",),
    "It never fails to cite a source": ("It cites a source",),
    "The claim is not unfounded": ("The claim is founded",),
    "It is not without a date": ("It has a date",),
    "It does not say that nothing was found": (),
}


@pytest.mark.parametrize("text", NEGATED)
def test_a_double_negation_is_turned_around_where_a_rule_knows_how(text: str) -> None:
    (found,) = [finding for finding in findings(text) if finding.problem == "double negation"]

    assert found.better == NEGATED[text]


def test_negate_over_a_negation_is_a_double_one() -> None:
    (found,) = findings({"description": "It does not mention Lyon", "negate": True})

    assert found.problem == "double negation"
    assert "leave negate out" in found.why


@pytest.mark.parametrize(
    ("text", "problem", "words"),
    [
        ("The tone is appropriate", "vague", "appropriate"),
        ("It gives several examples", "vague", "several"),
        ("The agent understands the request", "unverifiable", "understands"),
        ("The code runs without errors", "unverifiable", "runs without errors"),
        ("The prices are up-to-date", "unverifiable", "up-to-date"),
    ],
)
def test_what_is_vague_or_unseen_is_named_with_its_words(text: str, problem: str, words: str) -> None:
    found = findings(text)

    assert [(finding.problem, finding.words) for finding in found] == [(problem, words)]


@pytest.mark.parametrize(
    "text",
    [
        "It names Paris",
        "It lists milk, bread and butter",
        "The reply is in French",
        "It does not mention Lyon",
        "The table has columns for price and date",
        "It asks for the order's number before the refund",
        "It names neither Lyon nor Nice",
    ],
)
def test_a_criterion_that_says_one_thing_that_can_be_seen_is_left_alone(text: str) -> None:
    assert findings(text) == []


def test_what_a_check_decides_is_left_alone() -> None:
    assert findings({"description": "It is good and names Paris", "check": {"tool": "text_check"}}) == []
