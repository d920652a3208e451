"""From answers to a result: which criteria one call answers, how votes add up, and what gate and score make of the rows."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gradeloop.contract.criterion import TOLERANCE, Criterion, OwnPrompt, Score, mean
from gradeloop.contract.evaluation import (
    CHECK_FALSE,
    CheckOutcome,
    CriterionRow,
    Decision,
    Evaluation,
    Judgement,
    Override,
    Quote,
    Result,
    Status,
    Verdict,
    VerdictRow,
    Vote,
)
from gradeloop.contract.model_spec import GraderSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.text import ROW_CHARACTERS, shortened


@dataclass(frozen=True)
class CallGroup:
    """Criteria that are answered together, once by each of their judges."""

    index: int
    criteria: tuple[Criterion, ...]
    judges: tuple[GraderSpec | None, ...]
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
    scored, quoted, plain = any(row.score for row in rows), any(row.quoted for row in rows), _plain(rubric)
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
    more = any(
        criterion.check or criterion.human or criterion.negate or criterion.score or criterion.group for criterion in rubric.criteria
    )
    return not more and all(criterion.required for criterion in rubric.criteria) and rubric.threshold is None and rubric.gate == "required"


PASS_CHARACTERS = 200_000
"""What is kept of all reasons and gaps of a pass: with 100 criteria 1,000 of each, so that many passes fit into a thread."""

BEST = Score(passed=True, share=1.0)


@dataclass(frozen=True)
class PassStanding:
    """What a pass came to."""

    gate: bool
    score: float | None
    """0 to 1; None where nothing that counts was graded."""
    satisfied: bool


def standing(rubric: Rubric, marks: Mapping[str, Score]) -> PassStanding:
    """Compute gate, score and whether the rubric is met; an id without a mark was not graded."""
    at_the_gate = [unit.holds(marks) for unit in rubric.gate_units]
    gate = any(at_the_gate) if rubric.gate == "any" else all(at_the_gate)
    shares = [(unit.weight, share) for unit in rubric.units if (share := unit.share(marks)) is not None]
    score = float(gate) if rubric.scoring == "binary" else mean(shares)
    enough = rubric.threshold is None or (score is not None and score >= rubric.threshold - TOLERANCE)
    return PassStanding(gate, score, gate and enough)


def may_be_met(rubric: Rubric, marks: Mapping[str, Score], unknown: Iterable[str] = ()) -> bool:
    """Return whether the rubric would be met if all that is unknown, or has no mark, were at its best."""
    best = {criterion.id for criterion in rubric.criteria if criterion.id not in marks} | set(unknown)
    return standing(rubric, {**marks, **dict.fromkeys(best, BEST)}).satisfied


def row_characters(rows: int) -> int:
    """Return what is kept of a reason or gap where there are so many rows."""
    return min(ROW_CHARACTERS, PASS_CHARACTERS // (2 * max(rows, 1)))


def marks_of(rubric: Rubric, rows: Sequence[CriterionRow]) -> dict[str, Score]:
    """Return what each graded row counts; a person's override counts instead of the machine's verdict."""
    criteria = {criterion.id: criterion for criterion in rubric.criteria}
    graded = (row for row in rows if row.id in criteria and (row.override or not row.unverified))
    return {row.id: _row_mark(criteria[row.id], row) for row in graded}


def _row_mark(criterion: Criterion, row: CriterionRow) -> Score:
    if row.override:
        return Score(row.override.passed, float(row.override.passed))
    if criterion.scale is None or row.score is None:
        return Score(row.passed, float(row.passed))
    share = criterion.scale.share(row.score)
    return Score(row.passed, 1 - share if criterion.negate else share)


def result_of(rubric: Rubric, judgement: Judgement) -> Result:
    """Compute the pass's result from its rows; the grader's own word decides `failed` alone."""
    if judgement.error is not None:
        return "grader_error"
    if judgement.impossible:
        return "failed"
    return "satisfied" if standing(rubric, marks_of(rubric, judgement.rows)).satisfied else "needs_revision"


def status_of(result: Result, *, last: bool) -> Status:
    """Return the run's status after a pass with `result`; `last` says that no iteration is left."""
    if result == "needs_revision":
        return "max_iterations_reached" if last else "running"
    return result


def score_of(rubric: Rubric, judgement: Judgement) -> float | None:
    """Return the score, or None where the pass has no complete grade."""
    if judgement.error is not None or judgement.impossible or not rubric.criteria:
        return None
    return standing(rubric, marks_of(rubric, judgement.rows)).score


def overridden(rubric: Rubric, evaluation: Evaluation, criterion: str, override: Override) -> Evaluation:
    """Return the evaluation with a person's verdict on a criterion, and what it comes to with that."""
    rows = tuple(row.model_copy(update={"override": override}) if row.id == criterion else row for row in evaluation.criteria)
    met = standing(rubric, marks_of(rubric, rows)).satisfied
    return evaluation.model_copy(update={"criteria": rows, "overridden_result": "satisfied" if met else "needs_revision"})


def best_of(rubric: Rubric, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the evaluation whose draft stands: gate held, then score, then gating criteria passed, then the latest."""

    def rank(evaluation: Evaluation) -> tuple[bool, bool, float, int, int]:
        marks = marks_of(rubric, evaluation.criteria)
        stands = standing(rubric, marks)
        graded = evaluation.result in {"satisfied", "needs_revision"}
        score = -1.0 if evaluation.score is None else evaluation.score
        passed = sum(marks[name].passed for name in rubric.gating if name in marks)
        return graded and stands.satisfied, graded and stands.gate, score, passed, evaluation.iteration

    return max(evaluations, key=rank, default=None)


@dataclass(frozen=True)
class GraderAnswer:
    """What one conversation with a grader came to."""

    judge: str
    """Who was asked."""
    verdict: Verdict | None = None
    missing: tuple[str, ...] = ()
    """Ids for which it gave no row, however often it was asked."""
    error: str | None = None
    """Why there is no verdict, or rows are missing."""
    cached: bool = False
    """True where it was given before to the same question."""

    def row(self, name: str) -> VerdictRow | None:
        """Return its row of an id."""
        return next((row for row in self.verdict.criteria if row.id == name), None) if self.verdict else None


@dataclass(frozen=True)
class PassFindings:
    """What is known of a pass: by group and sample the answers, by id the checks and decisions."""

    answers: Mapping[tuple[int, int], GraderAnswer] = field(default_factory=dict)
    checks: Mapping[str, CheckOutcome] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)


def curtailed(verdict: Verdict, limit: int) -> Verdict:
    """Return a verdict with at most `limit` characters of each reason and gap."""
    rows = [
        row.model_copy(update={"reason": shortened(row.reason, limit), "gap": row.gap and shortened(row.gap, limit)})
        for row in verdict.criteria
    ]
    return verdict.model_copy(update={"criteria": tuple(rows), "explanation": shortened(verdict.explanation)})


def aggregate(rubric: Rubric, found: PassFindings) -> Judgement:
    """Return the judgement that follows from what was found; an error where what is lost could change it."""
    groups = call_groups(rubric)
    rows = tuple(_rows(rubric, groups, found))
    if told := next(filter(None, (_impossible(rubric, group, found) for group in groups)), None):
        return Judgement(rows=rows, explanation=told, impossible=True)
    if error := _lost(rubric, groups, rows, found):
        return Judgement(rows=tuple(row for row in rows if not row.unverified), explanation=error, error=error)
    return Judgement(rows=rows, explanation=_explanation(rubric, groups, rows, found))


def _samples(group: CallGroup, found: PassFindings) -> list[GraderAnswer]:
    """Return the answers of a group's graders; of several, one who says that it cannot be judged gives no vote."""
    answers = [answer for at in range(len(group.judges)) if (answer := found.answers.get((group.index, at)))]
    return answers if len(group.judges) == 1 else [_abstained(answer) for answer in answers]


def _abstained(answer: GraderAnswer) -> GraderAnswer:
    if answer.verdict is None or answer.verdict.result != "failed":
        return answer
    return GraderAnswer(judge=answer.judge, error=f"it says that this cannot be judged: {answer.verdict.explanation}")


def _impossible(rubric: Rubric, group: CallGroup, found: PassFindings) -> str | None:
    """Return why a group cannot be judged, by most of its graders, where the outcome depends on it."""
    answers = [found.answers.get((group.index, at)) for at in range(len(group.judges))]
    failed = [answer.verdict for answer in answers if answer and answer.verdict and answer.verdict.result == "failed"]
    if 2 * len(failed) <= len(group.judges) or rubric.pressing.isdisjoint(group.ids):
        return None
    return failed[0].explanation


def _lost(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], found: PassFindings) -> str | None:
    """Return why the pass has no verdict: something was lost on which it depends."""
    open_ids = {row.id for row in rows if row.unverified}
    answered = marks_of(rubric, rows)
    for group in groups:
        samples = _samples(group, found)
        due = open_ids & set(group.ids)
        errors = [sample for sample in samples if sample.error]
        if not due or not errors:
            continue
        whole = all(sample.verdict is None for sample in samples)
        pressing = not rubric.pressing.isdisjoint(due)
        if (whole and pressing) or ((pressing or not whole) and may_be_met(rubric, answered, due)):
            told = dict.fromkeys(f"{error.judge}: {error.error}" if len(samples) > 1 else str(error.error) for error in errors)
            return "; ".join(told)
    return None


def _rows(rubric: Rubric, groups: Sequence[CallGroup], found: PassFindings) -> Iterator[CriterionRow]:
    limit = row_characters(len(rubric.criteria))
    of = {name: group for group in groups for name in group.ids}
    for criterion in rubric.criteria:
        if criterion.check:
            row = _checked(rubric, criterion, found.checks.get(criterion.id))
        elif criterion.human:
            row = _decided(rubric, criterion, found.decisions.get(criterion.id))
        else:
            row = _voted(rubric, criterion, _samples(of[criterion.id], found), len(of[criterion.id].judges))
        if row is not None:
            gap = shortened(row.gap, limit) if row.gap else None
            yield row.model_copy(update={"reason": shortened(row.reason, limit), "gap": gap})


def _checked(rubric: Rubric, criterion: Criterion, outcome: CheckOutcome | None) -> CriterionRow | None:
    if outcome is None or criterion.check is None:
        return None
    told = rubric.phrases.check_passed if outcome.passed else rubric.phrases.check_failed
    gap = rubric.phrases.check_false if outcome.gap == CHECK_FALSE else outcome.gap
    reason = told.format(tool=criterion.check.tool)
    return CriterionRow(id=criterion.id, name=criterion.text, passed=outcome.passed, reason=reason, gap=gap, by="tool")


def _decided(rubric: Rubric, criterion: Criterion, decision: Decision | None) -> CriterionRow:
    row = CriterionRow(id=criterion.id, name=criterion.text, passed=False, reason=rubric.phrases.not_asked, by="human", unverified=True)
    if decision is None:
        return row
    reason = rubric.phrases.decided.format(by=decision.by)
    return row.model_copy(update={"passed": decision.passed, "reason": reason, "gap": decision.gap, "unverified": False})


@dataclass(frozen=True)
class _Voice:
    """One grader's word on a criterion, its threshold applied, turned round where the criterion is negated."""

    row: VerdictRow
    passed: bool
    gap: str | None


def _voice(rubric: Rubric, criterion: Criterion, row: VerdictRow) -> _Voice:
    passed, gap, scale = row.passed, row.gap, criterion.scale
    if passed and scale and scale.threshold is not None and (row.score is None or row.score < scale.threshold):
        passed, gap = False, row.reason
    if passed and criterion.require_quotes and not any(quote.quote_verified for quote in row.quotes or ()):
        passed, gap = False, rubric.phrases.unquoted
    if criterion.negate:
        passed, gap = not passed, row.reason
    return _Voice(row, passed, None if passed else gap or row.reason)


def _voted(rubric: Rubric, criterion: Criterion, samples: Sequence[GraderAnswer], voters: int) -> CriterionRow | None:
    """Count the votes; a majority of all voters decides, and where those that are lost could make one, nothing is decided."""
    rows = [(sample, sample.row(criterion.id)) for sample in samples]
    voices = [(each, _voice(rubric, criterion, row)) for each, row in rows if row is not None]
    passing = [voice for _, voice in voices if voice.passed]
    failing = [voice for _, voice in voices if not voice.passed]
    passed = 2 * len(passing) > voters
    lost = voters - len(voices)
    if not passed and 2 * (len(passing) + lost) > voters:
        return _open(rubric, criterion, samples)
    deciding = passing if passed else failing or passing
    gaps = dict.fromkeys(voice.gap for voice in failing if voice.gap)
    scores = [voice.row.score for _, voice in voices if voice.row.score is not None]
    votes = tuple(Vote(grader=sample.judge, passed=_vote(voices, sample)) for sample in samples) if voters > 1 else ()
    return CriterionRow(
        id=criterion.id,
        name=criterion.text,
        passed=passed,
        reason=deciding[0].row.reason,
        gap=None if passed else "; ".join(gaps),
        score=median(scores) if scores and criterion.scale else None,
        contested=bool(passing and failing),
        votes=votes,
        quotes=_quotes(deciding) if criterion.quoted else (),
        metadata=deciding[0].row.metadata,
        by="cached" if all(each.cached for each, _ in voices) else "model",
        grader=samples[0].judge if criterion.grader and voters == 1 else None,
    )


def _vote(voices: Sequence[tuple[GraderAnswer, _Voice]], answer: GraderAnswer) -> bool | None:
    return next((voice.passed for each, voice in voices if each is answer), None)


def _quotes(voices: Sequence[_Voice]) -> tuple[Quote, ...]:
    return tuple(dict.fromkeys(quote for voice in voices for quote in voice.row.quotes or ()))


def _open(rubric: Rubric, criterion: Criterion, samples: Sequence[GraderAnswer]) -> CriterionRow | None:
    """Return the row of a criterion on which there is no verdict; none where nobody was to give one any more."""
    if not any(sample.error and (sample.verdict is None or criterion.id in sample.missing) for sample in samples):
        return None
    told = rubric.phrases.no_verdict
    return CriterionRow(id=criterion.id, name=criterion.text, passed=False, reason=told, gap=told, unverified=True)


def _explanation(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], found: PassFindings) -> str:
    """Return the grader's own words where it judged all alone, else what the rows say."""
    said = rubric.phrases
    if len(found.answers) == 1 and groups[0].alone and not rubric.asked_of_people:
        verdict = next(iter(found.answers.values())).verdict
        return verdict.explanation if verdict else ""
    if not groups and not rubric.asked_of_people:
        return said.checks.format(passed=sum(row.passed for row in rows), total=len(rows))
    counted = said.counted.format(passed=sum(row.passed for row in rows), total=len(rubric.criteria))
    failing = ", ".join(row.id for row in rows if not row.passed and not row.unverified)
    unverified = ", ".join(row.id for row in rows if row.unverified)
    told = [counted, *([said.not_passed.format(ids=failing)] if failing else ())]
    return " ".join([*told, *([said.not_verified.format(ids=unverified)] if unverified else ())])
