"""One report of how far a judge can be trusted on a labelled set."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gradeloop.calibration.agreement import HumanCeiling, human_ceiling
from gradeloop.calibration.figures import Rated, measure
from gradeloop.calibration.labelled_sets import Form, Item, LabelledSet
from gradeloop.calibration.questions import Order, Question, combine, passages
from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Usage
from gradeloop.judges.contract import JudgeConfig, JudgeResult, SchemaJudge
from gradeloop.judges.labels import ComparedKey
from gradeloop.judges.pass_rule import PassRule
from gradeloop.stats.bootstrap import REPLICATES
from gradeloop.stats.intervals import Estimate
from gradeloop.stats.ranking import RankedCandidate, rank
from gradeloop.text import shortened

WORST = 10
"""The most disagreements that are shown with their transcripts."""

PASSAGE_CHARACTERS = 4_000
"""The most characters of one message of a disagreement."""

KEYS: dict[Form, ComparedKey] = {
    "pair": ComparedKey(("winner",), "category", ("A", "B", "tie")),
    "verdict": ComparedKey(("passed",), "category", (True, False), True),
    "score": ComparedKey(("score",), "number"),
}


class ShownMessage(Strict):
    """A message of a disagreement."""

    part: str
    """`request`, `answer`, `A` or `B`."""
    role: str
    text: str


class WorstDisagreement(Strict):
    """An item on which the judge is furthest from people, with its transcript."""

    id: str
    category: str
    people: tuple[str, ...]
    judge: str
    reason: str
    criterion: str
    transcript: tuple[ShownMessage, ...]


class CategoryFigures(Strict):
    """The figures of one category."""

    name: str
    items: int
    answered: Estimate
    agreement: Estimate
    """Accuracy of all items, what is unanswered counting as wrong; of scores, the mean absolute error."""


class ProbeFinding(Strict):
    """The effect on the judge's verdicts of a change that ought to change nothing."""

    name: str
    changed: Estimate
    """The share of verdicts that are another one after the change."""
    toward: Estimate | None = None
    """The share of changed verdicts that went to the side that the change favours."""
    what: str
    """The change, in words."""


class CheckReport(Strict):
    """The report of how far a judge can be trusted on a labelled set."""

    judge: str
    model: str | None
    labelled_set: str
    why: str
    form: Form
    items: int
    figures: dict[str, Estimate]
    categories: tuple[CategoryFigures, ...]
    ceiling: HumanCeiling | None = None
    standings: tuple[RankedCandidate, ...] = ()
    """The authors by their wins, as the judge says; empty where they are not known."""
    probes: tuple[ProbeFinding, ...] = ()
    usage: Usage
    judgements: int
    not_made: int = 0
    """Judgements without a judge's answer, which the same command asks for again: a provider failed, or the budget is used up."""
    invalid: int = 0
    """Judgements for which the judge's answers stayed invalid, which `--retry errors` asks for again."""
    contradictory: tuple[str, ...] = ()
    """The items on which the judge's reason contradicts its verdict."""
    worst: tuple[WorstDisagreement, ...]


class Answered(NamedTuple):
    """A question with its result."""

    question: Question
    result: JudgeResult

    @property
    def value(self) -> bool | float | str | None:
        """The judge's value, in the terms of the labels."""
        return self.question.value(self.result)


def verdicts_of(answers: Sequence[Answered]) -> dict[str, bool | float | str | None]:
    """Return the judge's verdict on every item: of a pair in both orders, the winner of both, else a tie."""
    by_item: dict[str, dict[Order, bool | float | str | None]] = {}
    for answer in answers:
        by_item.setdefault(answer.question.item.id, {})[answer.question.order] = answer.value
    return {
        name: next(iter(values.values()))
        if len(values) == 1
        else combine({order: None if value is None else str(value) for order, value in values.items()})
        for name, values in by_item.items()
    }


def report_check(
    judge: JudgeConfig,
    labelled: LabelledSet,
    answers: Sequence[Answered],
    probes: Sequence[ProbeFinding] = (),
    asked: int | None = None,
    *,
    replicates: int = REPLICATES,
) -> CheckReport:
    """Return the report of a judge on a labelled set.

    Args:
        judge: The judge.
        labelled: The set.
        answers: What it answered, for every question about every item.
        probes: What probes found.
        asked: How many judgements there were in all, those of probes included; as many as answers by default.
        replicates: How often items are drawn for the bootstrap of the figures of the whole set.
    """
    verdicts, key = verdicts_of(answers), KEYS[labelled.form]
    rated = {item.id: Rated.of(key, verdicts.get(item.id), (one.value for one in item.annotations)) for item in labelled.items}
    figures = measure(key, list(rated.values()), replicates=replicates) | _pair_figures(labelled, answers, verdicts)
    people = len({annotation.by for item in labelled.items for annotation in item.annotations})
    return CheckReport(
        judge=(judge.name if isinstance(judge, SchemaJudge) else None) or judge.rubric_id,
        model=next((answer.result.model for answer in answers if answer.result.model), None),
        labelled_set=labelled.name,
        why=labelled.why,
        form=labelled.form,
        items=len(labelled.items),
        figures=figures,
        categories=_categories(labelled, key, rated),
        ceiling=human_ceiling(list(rated.values()), people),
        standings=_standings(labelled, verdicts),
        probes=tuple(probes),
        usage=sum((answer.result.usage for answer in answers), Usage()),
        judgements=len(answers) if asked is None else asked,
        contradictory=tuple(
            one.item.id for one, result in answers if isinstance(one.answer, PassRule) and one.answer.contradictions(result)
        ),
        worst=_worst(labelled, answers, verdicts, key),
    )


class OrderCounts(NamedTuple):
    """Counts of answers about pairs that differ between the two orders in which a pair is shown."""

    pairs: int
    """Pairs with an answer in both orders."""
    differing: int
    """Those whose answers name different passages."""
    first: int
    """Those whose answers name whatever came first."""


def compare_orders(answers: Sequence[Answered]) -> OrderCounts:
    """Count the pairs whose answers depend on the order; a pair without an answer in either order is left out."""
    by_item: dict[str, dict[Order, object]] = {}
    for answer in answers:
        if answer.value is not None:
            by_item.setdefault(answer.question.item.id, {})[answer.question.order] = answer.value
    both = [said for said in by_item.values() if len(said) == 2]  # noqa: PLR2004 - both orders
    differing = [said for said in both if said["AB"] != said["BA"]]
    return OrderCounts(len(both), len(differing), sum(said == {"AB": "A", "BA": "B"} for said in differing))


def _pair_figures(
    labelled: LabelledSet, answers: Sequence[Answered], verdicts: Mapping[str, bool | float | str | None]
) -> dict[str, Estimate]:
    """Return what only pairs have: consistency of both orders, preference for a position, and the share of best answers found."""
    if labelled.form != "pair":
        return {}
    orders = compare_orders(answers)
    groups: dict[str, list[bool]] = {}
    for item in labelled.items:
        if item.group:
            groups.setdefault(item.group, []).append(verdicts.get(item.id) == item.annotations[0].value)
    figures = {"consistency": Estimate.share(orders.pairs - orders.differing, orders.pairs)} if orders.pairs else {}
    if orders.differing:
        figures["first_position"] = Estimate.share(orders.first, orders.differing)
    return figures | ({"best_of_group": Estimate.share(sum(map(all, groups.values())), len(groups))} if groups else {})


def _categories(labelled: LabelledSet, key: ComparedKey, rated: Mapping[str, Rated]) -> tuple[CategoryFigures, ...]:
    named: dict[str, list[Rated]] = {}
    for item in labelled.items:
        named.setdefault(item.category or "(none)", []).append(rated[item.id])
    found = []
    for name in sorted(named) if len(named) > 1 else ():
        figures = measure(key, named[name], replicates=2_000)
        agreement = figures["mean_error" if key.kind == "number" else "accuracy_all"]
        found.append(CategoryFigures(name=name, items=len(named[name]), answered=figures["coverage"], agreement=agreement))
    return tuple(found)


def _standings(labelled: LabelledSet, verdicts: Mapping[str, bool | float | str | None]) -> tuple[RankedCandidate, ...]:
    wins: dict[tuple[str, str], float] = {}
    for item in labelled.items:
        verdict = verdicts.get(item.id)
        if len(item.models) == 2 and item.models[0] != item.models[1] and verdict is not None:  # noqa: PLR2004 - a pair
            one, other = item.models
            for pair, value in (((one, other), "A"), ((other, one), "B")):
                wins[pair] = wins.get(pair, 0.0) + (0.5 if verdict == "tie" else float(verdict == value))
    return tuple(rank(wins)) if wins else ()


def _worst(
    labelled: LabelledSet, answers: Sequence[Answered], verdicts: Mapping[str, bool | float | str | None], key: ComparedKey
) -> tuple[WorstDisagreement, ...]:
    """Return the items on which the judge is furthest from people: of scores by distance, else by how many people it contradicts."""
    first = {answer.question.item.id: answer for answer in reversed(answers)}
    ranked: list[tuple[float, Item]] = []
    for item in labelled.items:
        verdict = verdicts.get(item.id)
        if verdict is not None:
            distance = math.fsum(_distance(key, verdict, annotation.value) for annotation in item.annotations) / len(item.annotations)
            ranked.append((distance, item))
    ranked.sort(key=lambda row: -row[0])
    return tuple(_shown(item, first[item.id], str(verdicts[item.id])) for distance, item in ranked[:WORST] if distance > 0)


def _distance(key: ComparedKey, verdict: bool | float | str, label: bool | float | str) -> float:
    if key.kind == "number":
        return abs(float(verdict) - float(label))
    return 0.0 if verdict == label else 0.5 if "tie" in {verdict, label} else 1.0


def _shown(item: Item, answer: Answered, verdict: str) -> WorstDisagreement:
    output = answer.result.output
    return WorstDisagreement(
        id=item.id,
        category=item.category,
        people=tuple(f"{annotation.by}: {annotation.value}" for annotation in item.annotations),
        judge=verdict,
        reason=str(output.get("explanation") or ""),
        criterion=item.criterion,
        transcript=tuple(
            ShownMessage(part=part, role=row.role, text=shortened(row.content, PASSAGE_CHARACTERS)) for part, row in passages(item)
        ),
    )
