"""The arithmetic of a grading pass: call groups, votes into rows, rows into gate, score and result."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from gradeloop.contract.criterion import TOLERANCE, Criterion, OwnPrompt, Score, weighted_mean
from gradeloop.contract.evaluation import (
    CHECK_FALSE,
    CheckOutcome,
    CriterionRow,
    Decision,
    Evaluation,
    EvaluationResult,
    Judgement,
    Override,
    RunStatus,
    Verdict,
    VerdictRow,
    Vote,
)
from gradeloop.contract.model_spec import GraderSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.telemetry import traces
from gradeloop.text import ROW_CHARACTERS, cut_repetition, shortened

PASS_CHARACTERS = 200_000
"""The characters of all reasons and gaps that a pass keeps: 1,000 of each with 100 criteria, so that many passes fit into a thread."""

BEST = Score(passed=True, share=1.0)
"""The score of a criterion that passes in full."""


@dataclass(frozen=True)
class CallGroup:
    """Criteria that one call answers, once for each of their graders."""

    index: int
    criteria: tuple[Criterion, ...]
    judges: tuple[GraderSpec | None, ...]
    """The graders, one for each sample; None is the thread's own grader."""
    prompt: OwnPrompt | None
    pass_score: bool
    alone: bool
    """Whether it is the rubric's only group."""
    shows_checks: bool
    """Whether the grader is told of the criteria that tools decide, and what they decided."""

    @property
    def references(self) -> tuple[str, ...]:
        """The texts to which the draft is compared, where it is compared by embeddings; else none."""
        return self.criteria[0].references if self.criteria[0].form == "similar" else ()

    @property
    def quoted(self) -> bool:
        """Whether some row has quotes."""
        return any(criterion.quoted for criterion in self.criteria)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its criteria."""
        return tuple(criterion.id for criterion in self.criteria)


def call_groups(rubric: Rubric) -> tuple[CallGroup, ...]:
    """Return the call groups of a rubric in the order of their first criteria."""
    groups: dict[str, list[Criterion]] = {}
    for criterion in rubric.judged:
        groups.setdefault(_group_key(rubric, criterion), []).append(criterion)
    return tuple(
        CallGroup(
            index=index,
            criteria=tuple(criteria),
            judges=criteria[0].judges,
            prompt=criteria[0].prompt or rubric.prompt,
            pass_score=criteria[0].form != "row",
            alone=len(groups) == 1,
            shows_checks=rubric.show_checks and criteria[0].form == "row",
        )
        for index, criteria in enumerate(groups.values())
    )


def _group_key(rubric: Rubric, criterion: Criterion) -> str:
    """Return the key that criteria of one call share."""
    prompt = criterion.prompt or rubric.prompt
    if rubric.mode == "per_criterion" or criterion.form != "row" or (prompt and prompt.reaches):
        return criterion.id
    if criterion.prompt is None and not any(criterion.judges):
        return f"[{len(criterion.judges)}]"  # most criteria, of which no more need be written out
    judges = [judge and judge.model_dump(mode="json") for judge in criterion.judges]
    own = criterion.prompt.model_dump(mode="json") if criterion.prompt else None
    return json.dumps([judges, own], sort_keys=True)


@dataclass(frozen=True)
class GraderAnswer:
    """The end of one conversation with a grader."""

    judge: str
    """The id of the grader."""
    verdict: Verdict | None = None
    missing: tuple[str, ...] = ()
    """Ids without a row, after all repairs."""
    error: str | None = None
    """The reason why there is no verdict, or why rows are missing."""
    cached: bool = False
    """Whether the verdict was reused from the same question."""
    instead_of: str | None = None
    """The id of the grader that was to answer, where a fallback did."""

    def row(self, name: str) -> VerdictRow | None:
        """Return the row of a criterion; None without one."""
        return next((row for row in self.verdict.criteria if row.id == name), None) if self.verdict else None


@dataclass(frozen=True)
class PassFindings:
    """The findings of a pass: answers by group and sample, checks and decisions by criterion."""

    answers: Mapping[tuple[int, int], GraderAnswer] = field(default_factory=dict)
    checks: Mapping[str, CheckOutcome] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)


def aggregate(rubric: Rubric, findings: PassFindings) -> Judgement:
    """Return the judgement of a pass; an error where a lost answer could change it."""
    groups = call_groups(rubric)
    rows = tuple(_rows(rubric, groups, findings))
    if explanation := next(filter(None, (_impossible(rubric, group, findings) for group in groups)), None):
        return Judgement(rows=rows, explanation=explanation, impossible=True)
    if error := _lost(rubric, groups, rows, findings):
        return Judgement(rows=tuple(row for row in rows if not row.unverified), explanation=error, error=error)
    remarks = _remarks(rubric, groups, rows, findings)
    return Judgement(rows=rows, explanation=_explanation(rubric, groups, rows, findings), remarks=remarks)


def _impossible(rubric: Rubric, group: CallGroup, findings: PassFindings) -> str | None:
    """Return why most of a group's graders say that it cannot be judged, where the result depends on it; else None."""
    answers = [findings.answers.get((group.index, at)) for at in range(len(group.judges))]
    failed = [answer.verdict for answer in answers if answer and answer.verdict and answer.verdict.result == "failed"]
    if 2 * len(failed) <= len(group.judges) or rubric.decisive.isdisjoint(group.ids):
        return None
    return failed[0].explanation


# A lost answer is an error only where it could matter. Where some graders of a group answered, the open rows
# get the best score: if the rubric is not met even then, the pass fails whatever the lost ones would say. Where
# all are lost and a criterion is decisive, nothing supports a verdict, and the pass has none. Without this rule
# one failing grader would discard evaluations that are already certain.
def _lost(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], findings: PassFindings) -> str | None:
    """Return why the pass has no verdict, where a lost answer could change the result; else None."""
    open_ids = {row.id for row in rows if row.unverified}
    answered = scores_of(rubric, rows)
    for group in groups:
        samples = _samples(group, findings)
        due = open_ids & set(group.ids)
        errors = [sample for sample in samples if sample.error]
        if not due or not errors:
            continue
        whole = all(sample.verdict is None for sample in samples)
        decisive = not rubric.decisive.isdisjoint(due)
        if (whole and decisive) or ((decisive or not whole) and could_be_satisfied(rubric, answered, due)):
            reasons = dict.fromkeys(f"{error.judge}: {error.error}" if len(samples) > 1 else str(error.error) for error in errors)
            return "; ".join(reasons)
    return None


def samples_due(rubric: Rubric, group: CallGroup, answers: Mapping[int, GraderAnswer]) -> list[int]:
    """Return the numbers of a group's graders that are still to be asked; none once no further vote can change a row.

    A majority is asked first, then each time the fewest votes that could fix all rows: so the votes that count are always the first ones,
    whichever answer comes first. All are asked of a criterion with a scale, whose score is the median of all votes.
    """
    # Each wave is found anew from the first votes in their order, and never from those that have come. So a
    # case that goes on at another worker asks the same votes. If a decision were taken at each answer, the
    # order of arrival would choose who votes.
    asked = 0
    while wave := _wave(rubric, group, {(group.index, at): answers[at] for at in range(asked)}):
        if missing := [at for at in range(asked, asked + wave) if at not in answers]:
            return missing
        asked += wave
    return []


def _wave(rubric: Rubric, group: CallGroup, answers: Mapping[tuple[int, int], GraderAnswer]) -> int:
    """Return how many more graders of a group are asked after the first ones have answered; 0 where all rows are fixed."""
    left, majority = len(group.judges) - len(answers), len(group.judges) // 2 + 1
    if any(criterion.scale for criterion in group.criteria):
        return left
    wanted, samples = 0, _samples(group, PassFindings(answers))
    for criterion in group.criteria:
        votes = [_vote(rubric, criterion, row).passed for sample in samples if (row := sample.row(criterion.id)) is not None]
        passing, failing = votes.count(True), votes.count(False)
        wanted = max(wanted, min(majority - passing, len(group.judges) + 1 - majority - failing) if answers else majority)
    return min(wanted, left)


def _samples(group: CallGroup, findings: PassFindings) -> list[GraderAnswer]:
    """Return the answers of a group's graders; one of several that answers `failed` gives no vote."""
    answers = [answer for at in range(len(group.judges)) if (answer := findings.answers.get((group.index, at)))]
    if len(group.judges) == 1:
        return answers
    return [
        replace(answer, verdict=None, missing=(), cached=False, error=f"it says that this cannot be judged: {answer.verdict.explanation}")
        if answer.verdict is not None and answer.verdict.result == "failed"
        else answer
        for answer in answers
    ]


def _rows(rubric: Rubric, groups: Sequence[CallGroup], findings: PassFindings) -> Iterator[CriterionRow]:
    limit = row_characters(len(rubric.criteria))
    group_of = {name: group for group in groups for name in group.ids}
    for criterion in rubric.criteria:
        if criterion.check:
            row = _checked(rubric, criterion, findings.checks.get(criterion.id))
        elif criterion.human:
            row = _decided(rubric, criterion, findings.decisions.get(criterion.id))
        else:
            group = group_of[criterion.id]
            row = _voted(rubric, criterion, _samples(group, findings), group.judges)
        if row is not None:
            gap = shortened(row.gap, limit) if row.gap else None
            yield row.model_copy(update={"reason": shortened(row.reason, limit), "gap": gap})


def _checked(rubric: Rubric, criterion: Criterion, outcome: CheckOutcome | None) -> CriterionRow | None:
    if outcome is None or criterion.check is None:
        return None
    reason = rubric.phrases.check_passed if outcome.passed else rubric.phrases.check_failed
    gap = rubric.phrases.check_false if outcome.gap == CHECK_FALSE else outcome.gap
    reason = reason.format(tool=criterion.check.tool)
    return CriterionRow(id=criterion.id, name=criterion.text, passed=outcome.passed, reason=reason, gap=gap, by="tool", score=outcome.share)


def _decided(rubric: Rubric, criterion: Criterion, decision: Decision | None) -> CriterionRow:
    about: dict[str, Any] = {"id": criterion.id, "name": criterion.text}
    if decision is None:
        return CriterionRow(**about, passed=False, reason=rubric.phrases.not_asked, by="nobody", unverified=True)
    reason = rubric.phrases.decided.format(by=decision.by)
    return CriterionRow(**about, passed=decision.passed, reason=reason, gap=decision.gap, by="human")


# The majority is of all voters, not of those that answered: with two of three lost, one vote would decide
# otherwise. A row passes once more than half of all pass. It fails only if the lost votes could not change
# that; until then it is unverified.
def _voted(rubric: Rubric, criterion: Criterion, samples: Sequence[GraderAnswer], by: Sequence[GraderSpec | None]) -> CriterionRow | None:
    """Return the row that a majority of all voters decides; an unverified one where lost votes could make the majority."""
    voters = len(by)
    rows = [(sample, sample.row(criterion.id)) for sample in samples]
    votes = [(sample, _vote(rubric, criterion, row)) for sample, row in rows if row is not None]
    passing = [vote for _, vote in votes if vote.passed]
    failing = [vote for _, vote in votes if not vote.passed]
    passed = 2 * len(passing) > voters
    lost = voters - len(votes)
    if not passed and 2 * (len(passing) + lost) > voters:
        return _unverified(rubric, criterion, samples)
    deciding = passing if passed else failing or passing
    gaps = dict.fromkeys(vote.gap for vote in failing if vote.gap)
    scores = [vote.row.score for _, vote in votes if vote.row.score is not None]
    passed_of = {id(sample): vote.passed for sample, vote in votes}
    said = [Vote(grader=sample.judge, passed=passed_of.get(id(sample)), instead_of=sample.instead_of) for sample in samples]
    left = [Vote(grader=judge.id if judge else samples[0].instead_of or samples[0].judge, unasked=True) for judge in by[len(samples) :]]
    return CriterionRow(
        id=criterion.id,
        name=criterion.text,
        passed=passed,
        reason=deciding[0].row.reason,
        gap=None if passed else "; ".join(gaps),
        score=median(scores) if scores and criterion.scale else None,
        contested=bool(passing and failing),
        votes=(*said, *left) if voters > 1 else (),
        quotes=tuple(dict.fromkeys(quote for vote in deciding for quote in vote.row.quotes or ())) if criterion.quoted else (),
        metadata=deciding[0].row.metadata,
        by="cached" if all(sample.cached for sample, _ in votes) else "model",
        grader=samples[0].judge if voters == 1 and (criterion.grader or samples[0].instead_of) else None,
        instead_of=samples[0].instead_of if voters == 1 else None,
    )


def row_of_answer(rubric: Rubric, criterion: Criterion, answer: GraderAnswer) -> CriterionRow | None:
    """Return the row of a criterion only by one grader's answer; None where the answer has none, though the grader did not fail."""
    row, limit = _voted(rubric, criterion, [answer], (None,)), row_characters(len(rubric.criteria))
    if row is None:
        return None
    return row.model_copy(update={"reason": shortened(row.reason, limit), "gap": shortened(row.gap, limit) if row.gap else None})


@dataclass(frozen=True)
class _GraderVote:
    """One grader's vote on a criterion, with its threshold applied, and inverted where the criterion is negated."""

    row: VerdictRow
    passed: bool
    gap: str | None


def _vote(rubric: Rubric, criterion: Criterion, row: VerdictRow) -> _GraderVote:
    # The order matters. The threshold and the missing quote can only take a pass away, and they do so before
    # the negation: a criterion that must not hold is then met where the grader could not show that it holds.
    passed, gap, scale = row.passed, row.gap, criterion.scale
    if passed and scale and scale.threshold is not None and (row.score is None or row.score < scale.threshold):
        passed, gap = False, row.reason
    if passed and criterion.require_quotes and not any(quote.quote_verified for quote in row.quotes or ()):
        passed, gap = False, rubric.phrases.unquoted
    if criterion.negate:
        passed, gap = not passed, row.reason
    return _GraderVote(row, passed, None if passed else gap or row.reason)


def _unverified(rubric: Rubric, criterion: Criterion, samples: Sequence[GraderAnswer]) -> CriterionRow | None:
    """Return the unverified row of a criterion whose grader failed; None where no grader failed on it."""
    if not any(sample.error and (sample.verdict is None or criterion.id in sample.missing) for sample in samples):
        return None
    reason = rubric.phrases.no_verdict
    return CriterionRow(id=criterion.id, name=criterion.text, passed=False, reason=reason, gap=reason, unverified=True)


def _explanation(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], findings: PassFindings) -> str:
    """Return the explanation of the only grader, else a summary of the rows; with a note where rows that nobody asked for were dropped."""
    verdicts = [answer.verdict for answer in findings.answers.values() if answer.verdict]
    dropped = list(dict.fromkeys(name for verdict in verdicts for name in verdict.dropped))
    note = [rubric.phrases.dropped.format(ids=", ".join(dropped))] if dropped else []
    return " ".join([*filter(None, [_summary(rubric, groups, rows, findings)]), *note])


def _summary(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], findings: PassFindings) -> str:
    phrases = rubric.phrases
    if len(findings.answers) == 1 and groups[0].alone and not rubric.asked_of_people:
        verdict = next(iter(findings.answers.values())).verdict
        if verdict is None or verdict.explanation.strip():
            return verdict.explanation if verdict else ""
    if not groups and not rubric.asked_of_people:
        return phrases.checks.format(passed=sum(row.passed for row in rows), total=len(rows))
    counted = phrases.counted.format(passed=sum(row.passed for row in rows), total=len(rubric.criteria))
    failing = ", ".join(row.id for row in rows if not row.passed and not row.unverified)
    unverified = ", ".join(row.id for row in rows if row.unverified)
    sentences = [counted, *([phrases.not_passed.format(ids=failing)] if failing else ())]
    return " ".join([*sentences, *([phrases.not_verified.format(ids=unverified)] if unverified else ())])


def _remarks(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], findings: PassFindings) -> tuple[str, ...]:
    """Return the explanations of the graders that object to a criterion which does not pass; of all graders where none does."""
    failing = {row.id: rubric.criterion(row.id) for row in rows if not row.passed and not row.unverified}
    verdicts = [sample.verdict for group in groups for sample in _samples(group, findings) if sample.verdict]
    objecting = [
        verdict
        for verdict in verdicts
        if any(row.id in failing and not _vote(rubric, failing[row.id], row).passed for row in verdict.criteria)
    ]
    return tuple(dict.fromkeys(verdict.explanation for verdict in objecting or verdicts if verdict.explanation.strip()))


@dataclass(frozen=True)
class PassOutcome:
    """Gate and score of a pass, and whether they meet the rubric."""

    gate: bool
    score: float | None
    """The score, 0 to 1 unless an assertion in code gives more or less; None where nothing that counts was graded."""
    satisfied: bool


def score_pass(rubric: Rubric, scores: Mapping[str, Score]) -> PassOutcome:
    """Compute gate, score and whether the rubric is met; an id without a score was not graded."""
    units_passed = [unit.passes(scores) for unit in rubric.gate_units]
    gate = any(units_passed) if rubric.gate == "any" else all(units_passed)
    shares = [(unit.weight, share) for unit in rubric.units if (share := unit.share(scores)) is not None]
    score = float(gate) if rubric.scoring == "binary" else weighted_mean(shares)
    enough = rubric.threshold is None or (score is not None and score >= rubric.threshold - TOLERANCE)
    return PassOutcome(gate, score, gate and enough)


def could_be_satisfied(rubric: Rubric, scores: Mapping[str, Score], unknown: Iterable[str] = ()) -> bool:
    """Tell whether the rubric would be met if every unknown or ungraded criterion got the best score."""
    best = {criterion.id for criterion in rubric.criteria if criterion.id not in scores} | set(unknown)
    return score_pass(rubric, {**scores, **dict.fromkeys(best, BEST)}).satisfied


def scores_of(rubric: Rubric, rows: Sequence[CriterionRow]) -> dict[str, Score]:
    """Return the scores of the graded rows; a person's override counts instead of the grader's verdict."""
    criteria = {criterion.id: criterion for criterion in rubric.criteria}
    graded = (row for row in rows if row.id in criteria and (row.override or not row.unverified))
    return {row.id: _row_score(criteria[row.id], row) for row in graded}


def _row_score(criterion: Criterion, row: CriterionRow) -> Score:
    if row.override:
        return Score(row.override.passed, float(row.override.passed))
    if criterion.check and row.score is not None:
        return Score(row.passed, row.score)
    if criterion.scale is None or row.score is None:
        return Score(row.passed, float(row.passed))
    share = criterion.scale.share(row.score)
    return Score(row.passed, 1 - share if criterion.negate else share)


def result_of(rubric: Rubric, judgement: Judgement) -> EvaluationResult:
    """Compute the result of a pass from its rows; the grader's own answer decides only `failed`."""
    if judgement.error is not None:
        return "grader_error"
    if judgement.impossible:
        return "failed"
    return "satisfied" if score_pass(rubric, scores_of(rubric, judgement.rows)).satisfied else "needs_revision"


@dataclass(frozen=True)
class Shortfall:
    """The reasons why the rows of a pass do not meet a rubric."""

    criteria: tuple[str, ...] = ()
    """Ids of the criteria that decided, the worst first; none where the rubric is met."""
    threshold: float | None = None
    """The threshold that the score did not reach, where the gate passed."""


def shortfall_of(rubric: Rubric, rows: Sequence[CriterionRow]) -> Shortfall:
    """Return what decided that rows do not meet a rubric: what failed of its gate, else what the score lacks."""
    scores = scores_of(rubric, rows)
    outcome = score_pass(rubric, scores)
    if outcome.satisfied:
        return Shortfall()
    if outcome.gate:
        short = [member.id for unit in rubric.units if unit.weight for member in _lacking(unit.members, scores)]
    else:
        units = [unit for unit in rubric.gate_units if not unit.passes(scores)]
        short = [
            member.id
            for unit in units
            for member in (_failing(unit.deciding, scores) if unit.threshold is None else _lacking(unit.members, scores))
        ]
    graded = {row.id for row in rows}
    ordered = sorted((name for name in short if name in graded), key=lambda name: _share_of(scores, name))
    return Shortfall(tuple(ordered), rubric.threshold if outcome.gate else None)


def _failing(members: Iterable[Criterion], scores: Mapping[str, Score]) -> Iterator[Criterion]:
    return (member for member in members if member.id not in scores or not scores[member.id].passed)


def _lacking(members: Iterable[Criterion], scores: Mapping[str, Score]) -> Iterator[Criterion]:
    """Yield the criteria that count in a mean and lower it."""
    return (member for member in members if member.weight and _share_of(scores, member.id) < 1)


def _share_of(scores: Mapping[str, Score], name: str) -> float:
    return scores[name].share if name in scores else 0.0


def worst_of(rubric: Rubric, rows: Sequence[CriterionRow]) -> str | None:
    """Return the id of the criterion that did not pass with the lowest score, of those that decided if there are any.

    A criterion that counts nothing, since it or its group has the weight 0, is never the worst one; None without any.
    """
    scores, decided = scores_of(rubric, rows), shortfall_of(rubric, rows).criteria
    counting = {member.id for unit in rubric.units if unit.weight for member in unit.members if member.weight}
    failing = [row.id for row in rows if row.id in counting and not (row.id in scores and scores[row.id].passed)]
    return min(failing, key=lambda name: (name not in decided, _share_of(scores, name)), default=None)


def status_of(result: EvaluationResult, *, last: bool) -> RunStatus:
    """Return the run's status after a pass with `result`; `last` says that no iteration is left."""
    if result == "needs_revision":
        return "max_iterations_reached" if last else "running"
    return result


def score_of(rubric: Rubric, judgement: Judgement) -> float | None:
    """Return the score, or None where the pass has no complete grade."""
    if judgement.error is not None or judgement.impossible or not rubric.criteria:
        return None
    return score_pass(rubric, scores_of(rubric, judgement.rows)).score


def apply_override(rubric: Rubric, evaluation: Evaluation, criterion: str, override: Override) -> Evaluation:
    """Return the evaluation with a person's verdict on a criterion and the overridden result."""
    rows = tuple(row.model_copy(update={"override": override}) if row.id == criterion else row for row in evaluation.criteria)
    met = score_pass(rubric, scores_of(rubric, rows)).satisfied
    return evaluation.model_copy(update={"criteria": rows, "overridden_result": "satisfied" if met else "needs_revision"})


def best_evaluation(rubric: Rubric, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the evaluation of the best draft: rubric met, then gate passed, then score, then gating criteria passed, then the latest."""

    # The best draft is the one that a person would hand in, not the last one: a revision may lose what an
    # earlier draft had. A pass without a grade ranks below every graded one by its gate and its missing
    # score, and only among equals the later draft counts, since it has had more feedback.
    def rank(evaluation: Evaluation) -> tuple[bool, bool, float, int, int]:
        scores = scores_of(rubric, evaluation.criteria)
        outcome = score_pass(rubric, scores)
        graded = evaluation.result in {"satisfied", "needs_revision"}
        score = -1.0 if evaluation.score is None else evaluation.score
        passed = sum(scores[name].passed for name in rubric.gating if name in scores)
        return graded and outcome.satisfied, graded and outcome.gate, score, passed, evaluation.iteration

    return max(evaluations, key=rank, default=None)


def shorten_verdict(verdict: Verdict, limit: int) -> Verdict:
    """Return the verdict with at most `limit` characters of each reason and gap, and without pieces that are repeated."""

    def short(text: str, most: int = ROW_CHARACTERS) -> str:
        return shortened(cut_repetition(text), most)

    rows = [
        row.model_copy(update={"reason": short(row.reason, limit), "gap": row.gap and short(row.gap, limit)}) for row in verdict.criteria
    ]
    return verdict.model_copy(update={"criteria": tuple(rows), "explanation": short(verdict.explanation)})


def row_characters(rows: int) -> int:
    """Return how many characters of a reason or gap are kept in a pass of so many rows."""
    return min(ROW_CHARACTERS, PASS_CHARACTERS // (2 * max(rows, 1)))


def trace_grading(
    label: str, score: float | None, explanation: str, rows: Sequence[CriterionRow], ids: Mapping[str, str | int | None]
) -> None:
    """Add a grading to the trace of this process, where it is traced.

    Args:
        label: The result of the whole rubric.
        score: Its score, 0 to 1; None where it has none.
        explanation: Why.
        rows: The rows of the criteria; those without a verdict are left out.
        ids: Attributes of the span; those that are None are left out.
    """
    if traces.tracing() is None:
        return
    judged = [row for row in rows if not row.unverified]
    results = [traces.EvaluationResult(row.id, "passed" if row.passed else "failed", _score(row), row.gap or row.reason) for row in judged]
    whole = traces.EvaluationResult("rubric", label, score, explanation)
    traces.trace_evaluation([whole, *results], {name: value for name, value in ids.items() if value is not None})


def _score(row: CriterionRow) -> float:
    return float(row.passed) if row.score is None else row.score
