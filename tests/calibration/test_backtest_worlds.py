"""A backtest says what a real rerun does, up to the divergence: in 1,000 scripted worlds whose drafts depend on the feedback."""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from gradeloop.calibration.cli.backtest import Outcome, story_of
from gradeloop.contract.criterion import Criterion
from gradeloop.contract.evaluation import Evaluation, Judgement, Verdict, VerdictRow
from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.prompts import feedback_message
from gradeloop.grading.scoring import GraderAnswer, PassFindings, aggregate, call_groups, result_of, score_of, status_of
from gradeloop.judges.answers import criteria_output
from gradeloop.judges.contract import CriteriaJudge, JudgeResult

WORLDS = 1_000
MOST = 4
"""The most drafts of a run."""


def chance(*parts: object) -> float:
    """Return a number from 0 to 1 that these parts decide."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


@dataclass(frozen=True)
class World:
    """Models that always do the same: drafts follow from the feedback, verdicts from the draft and the criterion's text."""

    seed: int
    talks: bool
    """Whether graders say something of their own about all that they were asked."""

    def draft(self, feedback: str | None) -> str:
        return f"draft {chance(self.seed, feedback):.9f}"

    def judge(self, rubric: Rubric, draft: str) -> Judgement:
        answers = {}
        for group in call_groups(rubric):
            rows = tuple(self.row(criterion, draft) for criterion in group.criteria)
            said = (
                f"I note {chance(self.seed, draft, [(one.text, one.quotes) for one in group.criteria]):.6f}." if self.talks else "so it is"
            )
            answers[group.index, 0] = GraderAnswer("judge", Verdict(criteria=rows, explanation=said, result="needs_revision"))
        return aggregate(rubric, PassFindings(answers=answers))

    def row(self, criterion: Criterion, draft: str) -> VerdictRow:
        passed = chance(self.seed, criterion.text, draft) < 0.7
        return VerdictRow(id=criterion.id, reason="looked", passed=passed, gap=None if passed else f"lacks {criterion.text[:9]}")

    def run(self, rubric: Rubric) -> tuple[list[Message], list[Evaluation]]:
        """Return the thread of a run: the loop's own rules, without its calls."""
        log, found = [Message(role="user", content="write")], list[Evaluation]()
        said: str | None = None
        while True:
            log.append(Message(role="assistant", content=self.draft(said)))
            judgement = self.judge(rubric, log[-1].content)
            result = result_of(rubric, judgement)
            status = status_of(result, last=len(found) + 1 >= MOST)
            about: dict[str, Any] = {"grading_run_id": "run", "iteration": len(found), "result": result, "status": status}
            about |= {"explanation": judgement.explanation, "criteria": judgement.rows, "score": score_of(rubric, judgement)}
            found.append(Evaluation(**about, draft=len(log) - 1, rubric_sha256=rubric.sha256()))
            if status != "running":
                return log, found
            log.append(feedback_message(rubric, found[-1], judgement.remarks))
            said = log[-1].content


def two_rubrics(dice: random.Random) -> tuple[Rubric, Rubric]:
    """Return a rubric and a change of it."""
    criteria: list[dict[str, Any]] = [
        {"id": f"c{at}", "description": f"rule {dice.random():.6f}", "required": dice.random() < 0.8} for at in range(1, dice.randint(2, 5))
    ]
    shared: dict[str, Any] = {"mode": dice.choice(["holistic", "per_criterion"])}
    changed = [dict(one) for one in criteria]
    for _ in range(dice.randint(1, 2)):
        one = dice.choice(changed)
        match dice.choice(["text", "negate", "weight", "required", "new", "gone", "threshold", "quotes", "nothing"]):
            case "text":
                one["description"] += " indeed"
            case "negate":
                one["negate"] = True
            case "weight":
                one["weight"] = 3
            case "quotes":
                one["quotes"] = True
            case "required":
                one["required"] = not one.get("required", True)
            case "new":
                changed.insert(dice.randint(0, len(changed)), {"id": f"n{dice.randint(0, 99)}{len(changed)}", "description": "also"})
            case "gone" if len(changed) > 1:
                changed.remove(one)
            case "threshold":
                shared["threshold"] = 0.6
    plain = {name: value for name, value in shared.items() if name != "threshold"}
    return Rubric.model_validate(plain | {"criteria": criteria}), Rubric.model_validate(shared | {"criteria": changed})


def predicted(world: World, old: Rubric, new: Rubric, log: list[Message], found: list[Evaluation]) -> Outcome:
    thread = {
        "thread_id": "t",
        "log": [one.model_dump(mode="json") for one in log],
        "evaluations": [one.model_dump(mode="json") for one in found],
        "rubric": old.model_dump(mode="json"),
        "grader": {"model": "scripted:judge"},
    }
    story = story_of(thread, new, old, None)
    assert story is not None
    results = {}
    for at, asked in enumerate(story.requests()):
        assert isinstance(asked.judge, CriteriaJudge)
        part = asked.judge.rubric
        said = criteria_output(part, world.judge(part, log[found[at].draft].content))
        about = {"id": str(at), "agent_run_id": asked.run.id, "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
        results[asked.run.id] = JudgeResult.model_validate(about | {"output": said})
    return story.outcome(results)


def is_the_rerun(outcome: Outcome, old: tuple[list[Message], list[Evaluation]], rerun: tuple[list[Message], list[Evaluation]]) -> bool:
    """Return whether a prediction is what the rerun did: the same drafts up to its end, and the same verdicts on the last of them."""
    at, (log, found), (was, before) = outcome.draft - 1, rerun, old
    if len(found) <= at or [one.content for one in log[: 2 * at + 2]] != [one.content for one in was[: 2 * at + 2]]:
        return False
    if [row.passed for row in outcome.rows] != [row.passed for row in found[at].criteria]:
        return False
    goes_on = found[at].result == "needs_revision"
    match outcome.end:
        case "accepted":
            return not goes_on and outcome.saved == len(before) - outcome.draft and before[at].result != "satisfied"
        case "sent_back":
            return goes_on and before[at].status == "satisfied"
        case "same":
            return len(found) == len(before) and found[at].status == before[at].status
        case _:
            return goes_on and found[at].status == "running"


@pytest.mark.slow
@pytest.mark.parametrize("talks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_backtest_is_the_rerun_up_to_the_divergence(talks: bool) -> None:
    ends, wrong, needless = Counter[str](), list[int](), list[int]()
    for seed in range(WORLDS):
        world, (old, new) = World(seed, talks), two_rubrics(random.Random(seed))
        first, rerun = world.run(old), world.run(new)
        outcome = predicted(world, old, new, *first)
        ends[outcome.end] += 1
        if not is_the_rerun(outcome, first, rerun):
            wrong.append(seed)
        at = 2 * outcome.draft
        if outcome.end == "diverges" and first[0][at].content == rerun[0][at].content:
            needless.append(seed)

    assert wrong == []
    assert min(ends[end] for end in ("accepted", "sent_back", "same", "diverges")) > 20, ends
    assert ends["unknown"] == 0
    assert len(needless) < WORLDS // 10 if talks else needless == []
