"""Votes that are asked only while they can change a verdict: the verdict is that of asking all, whatever the votes are."""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from gradeloop.contract.evaluation import Judgement, Verdict, VerdictRow
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.scoring import GraderAnswer, PassFindings, aggregate, call_groups, result_of, samples_due, score_of

FULL_LENGTH = 9


def rubric_of(votes: int, **more: Any) -> Rubric:
    return Rubric.model_validate({"criteria": [{"description": "it is good", "votes": votes, **more}]})


def answer(at: int, said: str | Sequence[bool], ids: Sequence[str] = ("c1",)) -> GraderAnswer:
    """Return a vote on each criterion, an error, or the word that nothing can be judged."""
    judge = f"judge {at}"
    if said == "error":
        return GraderAnswer(judge=judge, error=f"lost {at}")
    if said == "cannot":
        return GraderAnswer(judge=judge, verdict=Verdict(criteria=(), explanation=f"cannot {at}", result="failed"))
    passed = [said == "pass"] if isinstance(said, str) else said
    rows = [VerdictRow(id=name, reason=f"{at} {one}", passed=one, gap=None if one else "no") for name, one in zip(ids, passed, strict=True)]
    result = "satisfied" if all(passed) else "needs_revision"
    return GraderAnswer(judge=judge, verdict=Verdict(criteria=tuple(rows), explanation=f"e {at}", result=result))


def asked_early(rubric: Rubric, answers: Sequence[GraderAnswer], order: random.Random) -> Judgement:
    """Return the judgement of the votes that are asked, each wave of which ends in any order."""
    (group,) = call_groups(rubric)
    known = dict[int, GraderAnswer]()
    while due := samples_due(rubric, group, known):
        order.shuffle(due)
        while due:
            at = due.pop()
            known[at] = answers[at]
            assert not due or set(samples_due(rubric, group, known)) == set(due)
    assert sorted(known) == list(range(len(known)))  # the first ones, whatever has ended first
    return aggregate(rubric, PassFindings(answers={(0, at): one for at, one in known.items()}))


def whole(rubric: Rubric, answers: Sequence[GraderAnswer]) -> Judgement:
    return aggregate(rubric, PassFindings(answers={(0, at): one for at, one in enumerate(answers)}))


def said(rubric: Rubric, judgement: Judgement) -> Any:
    """Return all that a judgement states."""
    rows = [(row.id, row.passed, row.unverified, row.reason, row.score, len(row.votes)) for row in judgement.rows]
    about = (judgement.error, judgement.impossible, judgement.explanation)
    return rows, about, result_of(rubric, judgement), score_of(rubric, judgement)


@pytest.mark.parametrize("votes", [*range(1, 7), *(pytest.param(votes, marks=pytest.mark.slow) for votes in range(7, FULL_LENGTH + 1))])
def test_every_sequence_of_votes_comes_to_the_verdict_of_all_of_them(votes: int) -> None:
    rubric, order, fewer = rubric_of(votes), random.Random(votes), 0
    kinds = ("pass", "fail", "error", "cannot") if votes <= 6 else ("pass", "fail", "error")
    pool = {(at, kind): answer(at, kind) for at in range(votes) for kind in kinds}
    for sequence in product(kinds, repeat=votes):
        answers = [pool[at, kind] for at, kind in enumerate(sequence)]
        early = asked_early(rubric, answers, order)
        assert said(rubric, early) == said(rubric, whole(rubric, answers)), sequence
        fewer += any(vote.unasked for row in early.rows for vote in row.votes)
        if set(sequence) == {"pass"}:
            asked = [vote for row in early.rows for vote in row.votes if not vote.unasked]
            assert len(asked) == (votes // 2 + 1 if votes > 1 else 0)

    assert (fewer > 0) == (votes > 2)


def test_votes_on_several_criteria_are_asked_until_all_rows_are_fixed() -> None:
    order = random.Random(3)
    for _ in range(3_000):
        votes, count = order.randint(1, 9), order.randint(1, 4)
        criteria = [{"description": f"it is {at}", "votes": votes, "negate": order.random() < 0.3} for at in range(count)]
        rubric = Rubric.model_validate({"criteria": criteria, "mode": "holistic"})
        ids = [criterion.id for criterion in rubric.criteria]
        bias = [order.random() for _ in ids]
        answers = []
        for at in range(votes):
            kind = order.choices(["votes", "error", "cannot"], [8, 1, 1])[0]
            answers.append(answer(at, [order.random() < one for one in bias] if kind == "votes" else kind, ids))
        assert said(rubric, asked_early(rubric, answers, order)) == said(rubric, whole(rubric, answers))


def test_all_are_asked_where_a_score_is_the_median_of_all() -> None:
    rubric = rubric_of(5, score={"min": 1, "max": 5, "threshold": 4})

    assert samples_due(rubric, call_groups(rubric)[0], {}) == [0, 1, 2, 3, 4]


def test_the_votes_that_were_asked_are_told_apart_from_the_others() -> None:
    rubric = rubric_of(5)
    (row,) = asked_early(rubric, [answer(at, "pass") for at in range(5)], random.Random(1)).rows

    assert row.votes_text == "3 of 3 votes, 2 not asked"
    assert [(vote.passed, vote.unasked) for vote in row.votes] == [(True, False)] * 3 + [(None, True)] * 2
    assert not row.contested


def test_a_panel_names_who_was_not_asked() -> None:
    panel = [f"scripted:{name}" for name in "abc"]
    rubric = Rubric.model_validate({"criteria": [{"description": "it is good", "panel": panel}]})
    (row,) = asked_early(rubric, [answer(at, "fail") for at in range(3)], random.Random(1)).rows

    assert [vote.grader for vote in row.votes] == ["judge 0", "judge 1", "scripted:c"]
