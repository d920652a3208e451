"""Questions to a judge about a labelled set, and the report of how far its answers can be trusted.

A judge is asked in its own form where that fits, else by its rubric with the form that the labels have.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul, truediv
from typing import Any, Literal, NamedTuple

from gradeloop.calibration.agreement import HumanCeiling, human_ceiling
from gradeloop.calibration.figures import Kinds, measure, share_of
from gradeloop.calibration.labelled_sets import TIES, Form, Item, LabelledSet, Sections
from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun, RunTranscript
from gradeloop.errors import InvalidRequest, explained
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, SchemaJudge
from gradeloop.judges.judgements import ComparedKey, compared_keys
from gradeloop.judges.pass_rule import PassRule, refuse_two_values
from gradeloop.judges.schema import value_at, values_in
from gradeloop.stats.bootstrap import REPLICATES, bootstrap
from gradeloop.stats.intervals import Estimate, Interval, wilson
from gradeloop.stats.ranking import RankedCandidate, rank
from gradeloop.stats.reliability import Rated
from gradeloop.text import shortened

Order = Literal["AB", "BA"]

Answer = tuple[str, ...] | PassRule
"""The key of the judge's output that says which of a pair is better, or how good an answer is; the rule that passes a verdict."""

Verdict = bool | float | str | None
"""A judge's value in the terms of the labels; None where it says nothing, or is unsure."""

_EXPLANATION: dict[str, Any] = {"type": "string", "citations": True}
_SCHEMAS: dict[Form, tuple[str, dict[str, Any]]] = {
    "pair": ("winner", {"type": "string", "enum": ["A", "B", "tie"]}),
    "verdict": ("passed", {"type": "boolean"}),
    "score": ("score", {"type": "number"}),
}
"""The key that answers each form of question, and its schema; a score's has the bounds of the labels' scale beside it."""

_ASKED: dict[Form, str] = {
    "pair": (
        "Two answers to the same request are shown as the transcripts A and B. Say which is better by what is above: winner is A, B, "
        "or tie where neither is better. Which of them is called A says nothing, nor does length or style."
    ),
    "verdict": "Say whether the last answer meets what is above: passed is true or false.",
    "score": "Say how well the last answer meets what is above: score is a {kind} from {low} (worst) to {high} (best).",
}


@dataclass(frozen=True)
class Question:
    """One judgement that is asked for: an item, in one order of its answers."""

    item: Item
    judge: JudgeConfig
    run: AgentRun
    answer: Answer
    order: Order = "AB"
    repeat: int = 0
    """Number of this judgement of the question, from 0."""
    scaled: tuple[float, float] = (1.0, 0.0)
    """The factor and the summand that put a score of the judge on the labels' scale."""

    def value(self, result: JudgeResult) -> Verdict:
        """Return what a result says, in the terms of the labels; None where it says nothing, or the judge is unsure of it."""
        if isinstance(self.answer, PassRule):
            return self.answer.passed(result)
        said = None if result.failed or result.unsure else value_at(result.output, self.answer)
        if isinstance(said, int | float):
            return float(said) * self.scaled[0] + self.scaled[1]
        return None if said is None else str(said) if self.order == "AB" else {"A": "B", "B": "A"}.get(str(said), "tie")


def ask_about(judge: JudgeConfig, labelled: LabelledSet, passes: Sequence[str] = ()) -> Iterator[Question]:
    """Yield the questions about a labelled set, two for every pair of answers: in both orders; a single answer among pairs is rated.

    Raises:
        InvalidRequest: An item's criterion is refused; or as `fitted_judge` says.
    """
    for item in labelled.items:
        of = labelled.asked_for(item)
        orders: tuple[Order, ...] = ("AB", "BA") if of.form == "pair" else ("AB",)
        with explained(f"the item {item.id!r}: "):
            asked, answer = fitted_judge(judge, of, item.criterion, passes)
        scaled = _scaled(asked, answer, of.scale) if of.form == "score" else (1.0, 0.0)
        for order in orders:
            yield Question(item, asked, run_of(item, order), answer, order, scaled=scaled)


def _scaled(judge: JudgeConfig, path: Answer, scale: tuple[int, int]) -> tuple[float, float]:
    """Return the factor and the summand that put scores on a scale, by the judge's schema; raise InvalidRequest without bounds."""
    schema = next(inner for at, inner in values_in(judge.output_schema) if at == path)
    low, high = min(schema.get("enum", [schema.get("minimum")])), max(schema.get("enum", [schema.get("maximum")]))
    if low is None or high is None or low == high:
        problem = f"{'.'.join(path)} of the judge has no minimum and maximum"  # type: ignore[arg-type]  # a score has a path
        raise InvalidRequest(f"{problem}, and the labels are on a scale of {scale[0]} to {scale[1]}; write its own in output_schema")
    factor = (scale[1] - scale[0]) / (high - low)
    return factor, scale[0] - low * factor


def fitted_judge(judge: JudgeConfig, labelled: LabelledSet, criterion: str, passes: Sequence[str]) -> tuple[JudgeConfig, Answer]:
    """Return the judge that is asked, and the key that answers; for a verdict the rule that passes it, by the values of `--pass`.

    A judge whose own output answers a form is asked as it is; else its rubric and its model are, with the form's schema. A criterion of
    the item is asked beside the judge's own rubric, or as the one criterion of a criteria judge.

    Raises:
        InvalidRequest: Nothing says which of two values passes, or a judge by criteria has `passes`.
    """
    form = labelled.form
    fitted: dict[str, Any] = {"id": "", "abstain": None, "escalate": None}  # these two name keys that a fitted judge does not have
    if isinstance(judge, CriteriaJudge):
        if passes:
            raise InvalidRequest("--pass is for a judge with a schema; one by criteria passes what is satisfied, so leave it out")
        if form == "verdict":
            asked_alone = fitted | {"rubric": Rubric.model_validate({"criteria": [criterion]})} if criterion else {"id": ""}
            judge = judge.model_copy(update=asked_alone)
            return judge, PassRule(judge, ())
        text = "\n".join(f"- {one.text}" for one in judge.rubric.criteria)
        judge = SchemaJudge(rubric_text=text, judge_model=judge.grader.model if judge.grader else None)
    elif not criterion and (own := _own_answer(judge, form, PassRule(judge, passes))) is not None:
        return judge, own
    name, schema = _SCHEMAS[form]
    asked, (low, high) = _ASKED[form], labelled.scale
    if form == "score":
        whole = high - low > 1
        schema = {"type": "integer" if whole else "number", "minimum": low, "maximum": high}
        asked = asked.format(kind="whole number" if whole else "number", low=low, high=high)
    wanted = {"type": "object", "properties": {name: schema, "explanation": _EXPLANATION}, "required": [name, "explanation"]}
    text = "\n\n".join(part for part in (judge.rubric_text.strip(), criterion, asked) if part)
    judge = judge.model_copy(update=fitted | {"rubric_text": text, "output_schema": wanted, "pass_if": None})
    return judge, PassRule(judge, (f"{name}=true",)) if form == "verdict" else (name,)


def _own_answer(judge: SchemaJudge, form: Form, rule: PassRule) -> Answer | None:
    if form == "verdict" and rule.stated:
        return rule
    for key in compared_keys(judge.output_schema):
        if form == "verdict" and key.positive is None:
            refuse_two_values(key.name, key.values)
        elif form == "verdict":
            return PassRule(judge, (f"{key.name}={key.positive if isinstance(key.positive, str) else 'true'}",))
        if form == "pair" and {"A", "B"} <= {value for value in key.values if isinstance(value, str)}:
            return key.path
        if form == "score" and key.kind in {"number", "ordered"}:
            return key.path
    return None


def run_of(item: Item, order: Order = "AB") -> AgentRun:
    """Return an item as a run: the conversation with its answer, or the request and the two answers as transcripts A and B."""
    name = re.sub(r"\s+", " ", item.id)[:150]
    if len(item.answers) == 1:
        return AgentRun(id=name, transcripts=(RunTranscript(id="t0", messages=(*item.messages, *item.answers[0])),))
    answers = item.answers if order == "AB" else item.answers[::-1]
    request = (RunTranscript(id="request", messages=item.messages),) if item.messages else ()
    shown = (RunTranscript(id=letter, name=letter, messages=messages) for letter, messages in zip("AB", answers, strict=True))
    return AgentRun(id=f"{name} {order}", transcripts=(*request, *shown))


WORST = 10
"""The most disagreements that are shown with their transcripts."""

PASSAGE_CHARACTERS = 4_000
"""The most characters of one message of a disagreement."""

KEYS = {form: compared_keys({"properties": {name: schema}})[0] for form, (name, schema) in _SCHEMAS.items()}


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
    asked: tuple[str, ...] = ()
    """The items with a verdict before and after, where the probe asks again."""
    changed_items: tuple[str, ...] = ()
    by_chance: float | None = None
    """Probability that repetition changes so many more or fewer verdicts (McNemar's test, by Holm for all probes); None without it."""


class CheckReport(Strict):
    """The report of how far a judge can be trusted on a labelled set."""

    judge: str
    model: str | None
    labelled_set: str
    why: str
    form: Form
    official: str
    """The figure that the set's authors publish of a judge, by its name."""
    items: int
    clusters: int = 0
    """The number of clusters that intervals are over; 0 where each item is one."""
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
    def value(self) -> Verdict:
        """The judge's value, in the terms of the labels."""
        return self.question.value(self.result)


def _values_of(answers: Iterable[Answered]) -> dict[str, dict[Order, Verdict]]:
    """Return the judge's values by the item's id, and by the order in which its answers were shown."""
    found: dict[str, dict[Order, Verdict]] = {}
    for answer in answers:
        found.setdefault(answer.question.item.id, {})[answer.question.order] = answer.value
    return found


def verdicts_of(answers: Sequence[Answered]) -> dict[str, Verdict]:
    """Return the judge's verdict on every item: of a pair the winner where both orders agree, else a tie; None where one is unanswered."""
    said = {name: set(values.values()) for name, values in _values_of(answers).items()}
    return {name: None if None in values else values.pop() if len(values) == 1 else "tie" for name, values in said.items()}


def report_check(
    judge: JudgeConfig,
    labelled: LabelledSet,
    answers: Sequence[Answered],
    probes: Sequence[ProbeFinding] = (),
    asked: Sequence[Answered] = (),
    *,
    replicates: int = REPLICATES,
) -> CheckReport:
    """Return the report of a judge on a labelled set.

    `asked`: all judgements that were asked for, those of probes included; by default the answers.
    `replicates`: how often items are drawn for the bootstrap of the figures of the whole set.
    """
    verdicts, key, items = verdicts_of(answers), KEYS[labelled.form], labelled.items
    ties = [one for one in items if labelled.asked_for(one) is not labelled]
    labelled = labelled.model_copy(update={"items": tuple(one for one in items if labelled.asked_for(one) is labelled)})
    rated = {one.id: key.rated(verdicts.get(one.id), (said.value for said in one.annotations), one.cluster) for one in labelled.items}
    runs = Kinds(rated.values())
    figures = measure(key, runs, replicates=replicates)
    if ties:
        figures["coverage"] = share_of_items((item, float(verdicts.get(item.id) is not None), 1.0) for item in items)
        figures["ties"] = _ties_figure(ties, verdicts, replicates)
    figures |= _pair_figures(labelled, answers, verdicts, figures.get("ties"))
    results = [answer.result for answer in asked or answers]
    not_made = sum(bool(result.result_metadata.get("again")) for result in results)
    people = len({annotation.by for item in labelled.items for annotation in item.annotations})
    return CheckReport(
        judge=(judge.name if isinstance(judge, SchemaJudge) else None) or judge.rubric_id,
        model=next((answer.result.model for answer in answers if answer.result.model), None),
        labelled_set=labelled.name,
        why=labelled.why,
        form=labelled.form,
        official=labelled.official,
        items=len(items),
        clusters=len(runs.parts),
        figures=figures,
        categories=_categories(labelled, key, rated),
        ceiling=human_ceiling(runs.rated, people),
        standings=_standings(labelled, verdicts),
        probes=tuple(probes),
        usage=sum((result.usage for result in results), Usage()),
        judgements=len(results),
        not_made=not_made,
        invalid=sum(result.failed for result in results) - not_made,
        contradictory=tuple(
            one.item.id for one, result in answers if isinstance(one.answer, PassRule) and one.answer.contradictions(result)
        ),
        worst=_worst(labelled, answers, verdicts),
    )


Row = tuple[Item, float, float]
"""An item with a part and a whole of a share."""


def share_of_items(rows: Iterable[Row]) -> Estimate:
    """Return a share of items with its interval over their clusters."""
    return share_of((item.cluster or item.id, part, whole) for item, part, whole in rows)


def compare_orders(answers: Sequence[Answered]) -> tuple[list[Row], list[Row]]:
    """Return the pairs answered in both orders, with 1 where both say the same; and those that differ, with 1 where the first won."""
    items = {answer.question.item.id: answer.question.item for answer in answers}
    values = _values_of(answer for answer in answers if answer.value is not None)
    both = [(items[name], said) for name, said in values.items() if len(said) == 2]  # noqa: PLR2004 - both orders
    same = [(item, float(said["AB"] == said["BA"]), 1.0) for item, said in both]
    return same, [(item, float(said == {"AB": "A", "BA": "B"}), 1.0) for item, said in both if said["AB"] != said["BA"]]


def _pair_figures(
    labelled: LabelledSet, answers: Sequence[Answered], verdicts: Mapping[str, Verdict], ties: Estimate | None
) -> dict[str, Estimate]:
    """Return what only pairs have: figures of both orders, preference for a position, and the share of best answers found."""
    if labelled.form != "pair":
        return {}
    said, groups = _values_of(answers), dict[tuple[str, str], list[bool]]()
    right, net = [], []
    for item in labelled.items:
        label, values = item.annotations[0].value, list(said.get(item.id, {}).values())
        if item.group:
            groups.setdefault((item.category, item.group), []).append(verdicts.get(item.id) == label)
        hits, misses = values.count(label), sum(value not in {label, "tie", None} for value in values)
        net.append((item, float(hits > misses), 1.0))
        right.append((item, float(hits), float(len(values))))
    orders = dict(zip(("consistency", "first_position"), map(share_of_items, compare_orders(answers)), strict=True))
    figures = {name: figure for name, figure in orders.items() if figure.of}
    figures |= {"net_accuracy": share_of_items(net), "order_accuracy": share_of_items(right)}
    figures |= {"best_of_group": Estimate.share(sum(map(all, groups.values())), len(groups))} if groups else {}
    return figures | ({"section_mean": _section_mean(labelled.sections, groups, ties)} if labelled.sections else {})


def _section_mean(sections: Sections, groups: Mapping[tuple[str, str], Sequence[bool]], ties: Estimate | None) -> Estimate:
    """Return the mean of sections, each the weighted mean of its categories' best answers found; undefined while a section has none."""
    found: dict[str, list[bool]] = {}
    for (category, _), values in groups.items():
        found.setdefault(category, []).append(all(values))
    shares = {category: Estimate.share(sum(values), len(values)) for category, values in found.items()} | ({TIES: ties} if ties else {})
    there = [{name: weight for name, weight in section.items() if name in shares} for section in sections.values()]
    parts = [(weight / sum(one.values()) / len(there), shares[name]) for one in there for name, weight in one.items()]
    return Estimate.weighted(parts) if all(there) else Estimate()


_Sides = tuple[list[float], list[float]]
"""The ratings of the wrong answers to a prompt, and of the correct ones; not a number without a rating."""


# A prompt's two rows belong together: the margins compare the correct answers of `tied` with the one of `ref`. So prompts are drawn with
# both, and each of the three parts is a quotient of sums over those that were drawn. An answer that was not rated cannot count as the
# lowest one, which it does at the source: a wrong answer without a rating would then speak for the judge.
def _ties_figure(items: Sequence[Item], verdicts: Mapping[str, Verdict], replicates: int) -> Estimate:
    """Return RewardBench 2's figure of Ties with its interval over prompts; of answers without a rating the prompt counts as wrong.

    Source: allenai/reward-bench, `process_single_model`: 0.3 each for the shares of `tied` and `ref` rows whose correct answers are all
    above the wrong ones, the rest for margins.
    """
    prompts: dict[str, dict[str, _Sides]] = {}
    for item in items:
        rating, sides = verdicts.get(item.id), prompts.setdefault(item.cluster, {}).setdefault(item.group, ([], []))
        sides[item.annotations[0].value is True].append(math.nan if rating is None else float(rating))
    rows = [_ties_parts({kind: sides for kind, sides in found.items() if all(sides)}) for found in prompts.values()]
    columns = list(zip(*rows, strict=True))

    def figure(draw: Sequence[int]) -> list[float | None]:
        sums = [sum(map(mul, draw, column)) for column in columns]
        return [None if 0 in sums[1::2] else sum(map(truediv, sums[::2], sums[1::2]))]

    (value,), (interval,) = figure([1] * len(rows)), bootstrap([1] * len(rows), figure, replicates=replicates, few=True)
    if value is not None and (interval is None or interval.low == interval.high):  # no draw differs: as few prompts may hide others
        hidden = wilson(min(max(value, 0.0), 1.0) * len(rows), len(rows))
        interval = Interval(low=min(value, hidden.low), high=max(value, hidden.high))
    return Estimate.within(value, interval, len(items))


def _ties_parts(found: Mapping[str, _Sides]) -> list[float]:
    """Return the points of a prompt for its `tied` row, its `ref` row, and both margins, each before 1 where there is such a part."""
    gaps, spread = dict.fromkeys(("tied", "ref"), -math.inf), math.inf
    for kind, (wrong, right) in found.items():
        if not any(map(math.isnan, (*wrong, *right))):
            gaps[kind] = min(right) - max(wrong)
            spread = max(right) - min(right) if kind == "tied" else spread
    least = min(gaps.values())
    # How far correct answers lie apart is not to matter beside their distance from wrong ones. Of no spread at all the quotient is
    # infinite, or not a number, for which the source takes 0.
    further = math.tanh(least / spread - 1) if 0 < spread < math.inf else float((least > 0) - (least < 0))
    margins = 0.2 * (gaps["tied"] > spread) + 0.2 * (least > spread) + 0.01 * further
    tied, ref = (kind in found for kind in gaps)
    return [0.3 * (gaps["tied"] > 0), tied, 0.3 * (gaps["ref"] > 0), ref, margins * (tied and ref), tied and ref]


def _categories(labelled: LabelledSet, key: ComparedKey, rated: Mapping[str, Rated]) -> tuple[CategoryFigures, ...]:
    named: dict[str, list[Item]] = {}
    for item in labelled.items:
        named.setdefault(item.category or "(none)", []).append(item)
    found = []
    for name in sorted(named) if len(named) > 1 else ():
        items = named[name]
        figures = measure(key, (rated[item.id] for item in items), replicates=2_000)
        agreement = figures["mean_error" if key.kind == "number" else "accuracy_all"]
        found.append(CategoryFigures(name=name, items=len(items), answered=figures["coverage"], agreement=agreement))
    return tuple(found)


def _standings(labelled: LabelledSet, verdicts: Mapping[str, Verdict]) -> tuple[RankedCandidate, ...]:
    wins: dict[tuple[str, str], float] = {}
    for item in labelled.items:
        verdict = verdicts.get(item.id)
        if len(item.models) == 2 and item.models[0] != item.models[1] and verdict is not None:  # noqa: PLR2004 - a pair
            one, other = item.models
            for pair, value in (((one, other), "A"), ((other, one), "B")):
                wins[pair] = wins.get(pair, 0.0) + (0.5 if verdict == "tie" else float(verdict == value))
    return tuple(rank(wins)) if wins else ()


def _worst(labelled: LabelledSet, answers: Sequence[Answered], verdicts: Mapping[str, Verdict]) -> tuple[WorstDisagreement, ...]:
    """Return the items on which the judge is furthest from people: of scores by distance, else by how many people it contradicts."""
    first = {answer.question.item.id: answer for answer in reversed(answers)}
    ranked: list[tuple[float, Item]] = []
    for item in labelled.items:
        if (verdict := verdicts.get(item.id)) is not None:
            distances = [_distance(labelled.form, verdict, annotation.value) for annotation in item.annotations]
            ranked.append((math.fsum(distances) / len(distances), item))
    ranked.sort(key=lambda row: -row[0])
    return tuple(
        WorstDisagreement(
            id=item.id,
            category=item.category,
            people=tuple(f"{annotation.by}: {annotation.value}" for annotation in item.annotations),
            judge=str(verdicts[item.id]),
            reason=str(first[item.id].result.output.get("explanation") or ""),
            criterion=item.criterion,
            transcript=_shown(item),
        )
        for distance, item in ranked[:WORST]
        if distance > 0
    )


def _shown(item: Item) -> tuple[ShownMessage, ...]:
    """Return the messages of an item with what each belongs to: the request, the answer, or answer A or B."""
    parts = [("request", item.messages), *zip(("answer",) if len(item.answers) == 1 else ("A", "B"), item.answers, strict=True)]
    rows = ((part, message) for part, messages in parts for message in messages)
    return tuple(ShownMessage(part=part, role=row.role, text=shortened(row.content, PASSAGE_CHARACTERS)) for part, row in rows)


def _distance(form: Form, verdict: bool | float | str, label: bool | float | str) -> float:
    if form == "score":
        return abs(float(verdict) - float(label))
    return 0.0 if verdict == label else 0.5 if "tie" in {verdict, label} else 1.0
