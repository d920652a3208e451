"""What the answers of a pass come to: votes counted, verdicts turned round, every row in rubric order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gradeloop.call_groups import CallGroup, call_groups
from gradeloop.criterion import Criterion
from gradeloop.evaluation import CheckOutcome, CriterionRow, Decision, Judgement, Vote
from gradeloop.evidence import CHECK_FALSE
from gradeloop.printable import shortened
from gradeloop.rubric import Rubric
from gradeloop.scoring import marks_of, may_be_met, row_characters
from gradeloop.verdict import Quote, Verdict, VerdictRow


@dataclass(frozen=True)
class Answer:
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
class Found:
    """What is known of a pass: by group and sample the answers, by id the checks and decisions."""

    answers: Mapping[tuple[int, int], Answer] = field(default_factory=dict)
    checks: Mapping[str, CheckOutcome] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)


def curtailed(verdict: Verdict, limit: int) -> Verdict:
    """Return a verdict with at most `limit` characters of each reason and gap."""
    rows = [
        row.model_copy(update={"reason": shortened(row.reason, limit), "gap": row.gap and shortened(row.gap, limit)})
        for row in verdict.criteria
    ]
    return verdict.model_copy(update={"criteria": tuple(rows), "explanation": shortened(verdict.explanation)})


def tally(rubric: Rubric, found: Found) -> Judgement:
    """Return the judgement that follows from what was found; an error where what is lost could change it."""
    groups = call_groups(rubric)
    rows = tuple(_rows(rubric, groups, found))
    if told := next(filter(None, (_impossible(rubric, group, found) for group in groups)), None):
        return Judgement(rows=rows, explanation=told, impossible=True)
    if error := _lost(rubric, groups, rows, found):
        return Judgement(rows=tuple(row for row in rows if not row.unverified), explanation=error, error=error)
    return Judgement(rows=rows, explanation=_explanation(rubric, groups, rows, found))


def _samples(group: CallGroup, found: Found) -> list[Answer]:
    """Return the answers of a group's graders; of several, one who says that it cannot be judged gives no vote."""
    answers = [answer for at in range(len(group.judges)) if (answer := found.answers.get((group.index, at)))]
    return answers if len(group.judges) == 1 else [_abstained(answer) for answer in answers]


def _abstained(answer: Answer) -> Answer:
    if answer.verdict is None or answer.verdict.result != "failed":
        return answer
    return Answer(judge=answer.judge, error=f"it says that this cannot be judged: {answer.verdict.explanation}")


def _impossible(rubric: Rubric, group: CallGroup, found: Found) -> str | None:
    """Return why a group cannot be judged, by most of its graders, where the outcome depends on it."""
    answers = [found.answers.get((group.index, at)) for at in range(len(group.judges))]
    failed = [each.verdict for each in answers if each and each.verdict and each.verdict.result == "failed"]
    if 2 * len(failed) <= len(group.judges) or rubric.pressing.isdisjoint(group.ids):
        return None
    return failed[0].explanation


def _lost(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], found: Found) -> str | None:
    """Return why the pass has no verdict: something was lost on which it depends."""
    open_ids = {row.id for row in rows if row.unverified}
    answered = marks_of(rubric, rows)
    for group in groups:
        samples = _samples(group, found)
        due = open_ids & set(group.ids)
        errors = [each for each in samples if each.error]
        if not due or not errors:
            continue
        whole = all(each.verdict is None for each in samples)
        pressing = not rubric.pressing.isdisjoint(due)
        if (whole and pressing) or ((pressing or not whole) and may_be_met(rubric, answered, due)):
            told = dict.fromkeys(f"{each.judge}: {each.error}" if len(samples) > 1 else str(each.error) for each in errors)
            return "; ".join(told)
    return None


def _rows(rubric: Rubric, groups: Sequence[CallGroup], found: Found) -> Iterator[CriterionRow]:
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


def _voted(rubric: Rubric, criterion: Criterion, samples: Sequence[Answer], voters: int) -> CriterionRow | None:
    """Count the votes; a majority of all voters decides, and where those that are lost could make one, nothing is decided."""
    rows = [(each, each.row(criterion.id)) for each in samples]
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
    votes = tuple(Vote(grader=each.judge, passed=_vote(voices, each)) for each in samples) if voters > 1 else ()
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


def _vote(voices: Sequence[tuple[Answer, _Voice]], answer: Answer) -> bool | None:
    return next((voice.passed for each, voice in voices if each is answer), None)


def _quotes(voices: Sequence[_Voice]) -> tuple[Quote, ...]:
    return tuple(dict.fromkeys(quote for voice in voices for quote in voice.row.quotes or ()))


def _open(rubric: Rubric, criterion: Criterion, samples: Sequence[Answer]) -> CriterionRow | None:
    """Return the row of a criterion on which there is no verdict; none where nobody was to give one any more."""
    if not any(each.error and (each.verdict is None or criterion.id in each.missing) for each in samples):
        return None
    told = rubric.phrases.no_verdict
    return CriterionRow(id=criterion.id, name=criterion.text, passed=False, reason=told, gap=told, unverified=True)


def _explanation(rubric: Rubric, groups: Sequence[CallGroup], rows: Sequence[CriterionRow], found: Found) -> str:
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
