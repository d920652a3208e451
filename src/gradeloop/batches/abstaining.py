"""Cases that their graders do not decide: which criteria so many votes disagree on, and what becomes of the answers of a dearer model."""

from collections.abc import Mapping, Sequence

from gradeloop.batches.contract import Case
from gradeloop.contract.criterion import Score
from gradeloop.contract.evaluation import CriterionRow, Judgement
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.scoring import CallGroup, GraderAnswer, call_groups, row_of_answer, score_pass, scores_of
from gradeloop.stats.selective import is_below

CANNOT_JUDGE = "it says that this cannot be judged"
"""Why a dearer model's answer decides nothing."""


def unsure_criteria(case: Case, judgement: Judgement) -> tuple[str, ...]:
    """Return the ids of the criteria whose votes agree less than `abstain` wants, where it hangs on them whether the case passes."""
    if case.abstain is None or judgement.error is not None or judgement.impossible:
        return ()
    doubtful = [row.id for row in judgement.rows if _is_doubtful(case, row)]
    return tuple(doubtful) if doubtful and _hangs_on(case.rubric, judgement.rows, doubtful) else ()


def _is_doubtful(case: Case, row: CriterionRow) -> bool:
    wanted = case.abstain.get(row.id) if isinstance(case.abstain, Mapping) else case.abstain
    votes = [vote.passed for vote in row.votes if vote.passed is not None]
    if wanted is None or not votes or row.unverified:
        return False
    return is_below(sum(vote == row.passed for vote in votes) / len(votes), wanted)


def _hangs_on(rubric: Rubric, rows: Sequence[CriterionRow], doubtful: Sequence[str]) -> bool:
    """Return whether the rubric is met if all doubtful criteria pass, and is not if none does."""
    scores = scores_of(rubric, rows)
    ends = [score_pass(rubric, {**scores, **dict.fromkeys(doubtful, Score(passed, float(passed)))}) for passed in (True, False)]
    return ends[0].satisfied != ends[1].satisfied


def groups_to_escalate(case: Case, judgement: Judgement, asked: Sequence[int]) -> list[CallGroup]:
    """Return the call groups that a dearer model is asked about, those aside that it was asked about already."""
    unsure = set(unsure_criteria(case, judgement)) if case.escalate is not None else set()
    return [group for group in call_groups(case.rubric) if unsure & set(group.ids) and group.index not in asked]


def decide_by(rubric: Rubric, judgement: Judgement, unsure: Sequence[str], answers: Mapping[int, GraderAnswer]) -> Judgement:
    """Return a judgement with the rows of a dearer model where its graders are unsure: such a row is decided, and has no votes.

    Args:
        rubric: The rubric.
        judgement: What the graders' votes came to.
        unsure: The ids of the criteria that they do not decide.
        answers: The answers of the dearer model, by call group.
    """
    group_of = {name: group.index for group in call_groups(rubric) for name in group.ids}
    decided: dict[str, CriterionRow] = {}
    for row in judgement.rows:
        answer = answers.get(group_of.get(row.id, -1)) if row.id in unsure else None
        own = row_of_answer(rubric, rubric.criterion(row.id), answer) if answer and not _why_not(answer) else None
        if answer and own is not None and not own.unverified:
            decided[row.id] = own.model_copy(update={"contested": row.contested, "grader": answer.judge})
    if not decided:
        return judgement
    texts = [answer.verdict.explanation for answer in answers.values() if answer.verdict and not _why_not(answer)]
    rows = tuple(decided.get(row.id, row) for row in judgement.rows)
    return judgement.model_copy(update={"rows": rows, "explanation": " ".join(filter(None, texts)) or judgement.explanation})


def why_not_escalated(answers: Mapping[int, GraderAnswer]) -> str | None:
    """Return why a dearer model did not decide; None where nothing kept it from it."""
    reasons = [why for answer in answers.values() if (why := _why_not(answer))]
    return f"not escalated: {'; '.join(dict.fromkeys(reasons))}" if reasons else None


def _why_not(answer: GraderAnswer) -> str | None:
    if answer.verdict is None:
        return answer.error or f"{answer.judge}: it gave no verdict"
    return f"{answer.judge}: {CANNOT_JUDGE}" if answer.verdict.result == "failed" else None
