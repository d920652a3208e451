"""Abstention: which verdicts a judge gives with too few of its votes to decide, and the dearer judge that is asked instead."""

from pydantic import JsonValue

from gradeloop.contract.thread import Grader
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult
from gradeloop.stats.votes import is_below
from gradeloop.text import objects_in

CRITERIA = "criteria."
"""The prefix of a criterion's id among the keys of an output, as `gradeloop agreement` prints it."""


def with_unsure(judge: JudgeConfig, result: JudgeResult) -> JudgeResult:
    """Return a result with the keys that the judge is unsure of, by the least shares of votes that its `abstain` names."""
    if not judge.abstain or result.failed:
        return result
    shares = {key: share_of_votes(judge, result, key) for key in judge.abstain}
    unsure = tuple(key for key, share in shares.items() if share is not None and is_below(share, judge.abstain[key]))
    return result.model_copy(update={"unsure": unsure})


def share_of_votes(judge: JudgeConfig, result: JudgeResult, key: str) -> float | None:
    """Return the share of a judgement's votes on a key that agree with its verdict, 0 to 1; None without votes."""
    if isinstance(judge, CriteriaJudge):
        row = next((row for row in objects_in(result.output.get("criteria")) if f"{CRITERIA}{row.get('id')}" == key), None)
        votes = [vote.get("passed") for vote in objects_in(row.get("votes"))] if row is not None else []
        said = [vote for vote in votes if vote is not None]
        return sum(vote == row.get("passed") for vote in said) / len(said) if row is not None and said else None
    keys = result.result_metadata.get("keys")
    found = keys.get(key) if isinstance(keys, dict) else None
    if not isinstance(found, dict):
        return None
    return next((float(str(one["share"])) for one in objects_in(found.get("distribution")) if one.get("value") == found.get("value")), None)


def dearer_judge(judge: JudgeConfig) -> JudgeConfig | None:
    """Return the judge that is asked anew of what this one is unsure of: the same question to the model of `escalate`; None without one."""
    if judge.escalate is None:
        return None
    same = {"id": judge.rubric_id, "abstain": None, "escalate": None}
    if isinstance(judge, CriteriaJudge):
        return judge.model_copy(update=same | {"grader": (judge.grader or Grader()).model_copy(update={"model": judge.escalate})})
    alone = {"judge_model": judge.escalate, "panel": None, "quorum": None, "n_rollouts_per_input": 1, "judge_variant": "majority"}
    return judge.model_copy(update=same | alone)


def decided_by(first: JudgeResult, dearer: JudgeResult) -> JudgeResult:
    """Return what becomes of an unsure judgement once the dearer judge was asked: its answer, or the first one where it gave none."""
    usage = first.usage + dearer.usage
    about = {"usage": usage, "attempts": usage.attempts}
    if dearer.failed:
        reason = str(dearer.result_metadata.get("reason") or "the dearer judge gave no answer")
        return not_escalated(first.model_copy(update=about), reason, again=bool(dearer.result_metadata.get("again")))
    return dearer.model_copy(update=about | {"escalated_from": first.id})


def not_escalated(first: JudgeResult, reason: str, *, again: bool) -> JudgeResult:
    """Return an unsure judgement that stays one.

    Args:
        first: The judgement.
        reason: Why no dearer judge decided it.
        again: Whether the same command asks the dearer judge again; else its answers stayed invalid, and only a retry does.
    """
    about: dict[str, JsonValue] = {"escalation": reason, "escalation_again": again}
    return first.model_copy(update={"result_metadata": first.result_metadata | about})
