"""Which criteria one grader call answers: those with the same judge, prompt, votes and form."""

import json
from dataclasses import dataclass

from gradeloop.criterion import Criterion
from gradeloop.judge import Judge
from gradeloop.own_prompt import OwnPrompt
from gradeloop.rubric import Rubric


@dataclass(frozen=True)
class CallGroup:
    """Criteria that are answered together, once by each of their judges."""

    index: int
    criteria: tuple[Criterion, ...]
    judges: tuple[Judge | None, ...]
    """One a sample; None is the thread's own grader."""
    prompt: OwnPrompt | None
    pass_score: bool
    scored: bool
    """True where a row has a number. Equal for all groups of a rubric, so that its calls share one schema."""
    quoted: bool
    """True where a row has quotes; equal for all groups too."""
    alone: bool
    """True where it is the rubric's only group."""
    plain: bool
    """True where the grader's own `result` must agree with its rows: nothing but rows that must all pass counts in this rubric."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its criteria."""
        return tuple(criterion.id for criterion in self.criteria)


def call_groups(rubric: Rubric) -> tuple[CallGroup, ...]:
    """Return the groups in the order of their first criteria."""
    found: dict[str, list[Criterion]] = {}
    for criterion in rubric.judged:
        found.setdefault(_kind(rubric, criterion), []).append(criterion)
    rows = [each for each in rubric.judged if each.form == "row"]
    scored, quoted, plain = any(each.score for each in rows), any(each.quoted for each in rows), _plain(rubric)
    return tuple(
        CallGroup(
            index=index,
            criteria=tuple(criteria),
            judges=criteria[0].judges,
            prompt=criteria[0].prompt or rubric.prompt,
            pass_score=criteria[0].form == "pass_score",
            scored=scored,
            quoted=quoted,
            alone=len(found) == 1,
            plain=plain,
        )
        for index, criteria in enumerate(found.values())
    )


def _kind(rubric: Rubric, criterion: Criterion) -> str:
    """Return what criteria of one call have in common."""
    prompt = criterion.prompt or rubric.prompt
    if rubric.mode == "per_criterion" or criterion.form == "pass_score" or (prompt and prompt.reaches):
        return criterion.id
    judges = [judge and judge.model_dump(mode="json") for judge in criterion.judges]
    own = criterion.prompt.model_dump(mode="json") if criterion.prompt else None
    return json.dumps([judges, own], sort_keys=True)


def _plain(rubric: Rubric) -> bool:
    more = any(each.check or each.human or each.negate or each.score or each.group for each in rubric.criteria)
    return not more and all(each.required for each in rubric.criteria) and rubric.threshold is None and rubric.gate == "required"
