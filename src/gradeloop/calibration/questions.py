"""Questions to a judge about labelled items: its own where its form fits, else its rubric with the form that the labels have."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gradeloop.calibration.labelled_sets import Form, Item, LabelledSet
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.errors import InvalidRequest, explained
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, SchemaJudge
from gradeloop.judges.labels import compared_keys
from gradeloop.judges.pass_rule import PassRule, refuse_two_values
from gradeloop.judges.schema import value_at

Order = Literal["AB", "BA"]

_EXPLANATION: dict[str, Any] = {"type": "string", "citations": True}
_SCHEMAS: dict[Form, tuple[str, dict[str, Any]]] = {
    "pair": ("winner", {"type": "string", "enum": ["A", "B", "tie"]}),
    "verdict": ("passed", {"type": "boolean"}),
    "score": ("score", {"type": "integer", "minimum": 1, "maximum": 5}),
}
"""The key that answers each form of question, and its schema."""

_ASKED: dict[Form, str] = {
    "pair": (
        "Two answers to the same request are shown as the transcripts A and B. Say which is better by what is above: winner is A, B, "
        "or tie where neither is better. Which of them is called A says nothing, nor does length or style."
    ),
    "verdict": "Say whether the last answer meets what is above: passed is true or false.",
    "score": "Say how well the last answer meets what is above: score is a whole number from 1 (worst) to 5 (best).",
}


@dataclass(frozen=True)
class Question:
    """One judgement that is asked for: an item, in one order of its answers."""

    item: Item
    judge: JudgeConfig
    run: AgentRun
    answer: tuple[str, ...] | PassRule
    """The key of the judge's output that says which of a pair is better, or how good an answer is; the rule that passes a verdict."""
    order: Order = "AB"
    repeat: int = 0
    """Which judgement of the same question it is, from 0."""

    def value(self, result: JudgeResult) -> bool | float | str | None:
        """Return what a result says, in the terms of the labels; None where it says nothing, or the judge is unsure of it."""
        if isinstance(self.answer, PassRule):
            return self.answer.passed(result)
        said = None if result.failed or result.unsure else value_at(result.output, self.answer)
        if isinstance(said, int | float):
            return float(said)
        return None if said is None else str(said) if self.order == "AB" else {"A": "B", "B": "A"}.get(str(said), "tie")


def ask_about(judge: JudgeConfig, labelled: LabelledSet, passes: Sequence[str] = (), *, both_orders: bool = True) -> Iterator[Question]:
    """Yield the questions about a labelled set, two for every pair of answers: in both orders.

    Raises:
        InvalidRequest: An item's criterion is refused; or as `fitted_judge` says.
    """
    for item in labelled.items:
        with explained(f"the item {item.id!r}: "):
            asked, answer = fitted_judge(judge, labelled.form, item.criterion, passes)
        orders: tuple[Order, ...] = ("AB", "BA") if labelled.form == "pair" and both_orders else ("AB",)
        for order in orders:
            yield Question(item, asked, run_of(item, order), answer, order)


def fitted_judge(
    judge: JudgeConfig, form: Form, criterion: str, passes: Sequence[str] = ()
) -> tuple[JudgeConfig, tuple[str, ...] | PassRule]:
    """Return the judge that is asked, and the key that answers; for a verdict the rule that passes it, by the values of `--pass`.

    A judge whose own output answers a form is asked as it is; else its rubric and its model are, with the form's schema. A criterion of
    the item is asked beside the judge's own rubric, or as the one criterion of a criteria judge.

    Raises:
        InvalidRequest: Nothing says which of two values passes, or a judge by criteria has `passes`.
    """
    fitted: dict[str, Any] = {"id": "", "abstain": None, "escalate": None}  # these two name keys that a fitted judge does not have
    if isinstance(judge, CriteriaJudge):
        if passes:
            raise InvalidRequest("--pass is for a judge with a schema; one by criteria passes what is satisfied, so leave it out")
        if form == "verdict":
            fitted |= {"rubric": Rubric.model_validate({"criteria": [criterion]})} if criterion else {}
            judge = judge.model_copy(update=fitted if criterion else {"id": ""})
            return judge, PassRule(judge, ())
        text = "\n".join(f"- {one.text}" for one in judge.rubric.criteria)
        judge = SchemaJudge(rubric_text=text, judge_model=judge.grader.model if judge.grader else None)
    elif not criterion and (own := _own_answer(judge, form, PassRule(judge, passes))) is not None:
        return judge, own
    name, schema = _SCHEMAS[form]
    wanted = {"type": "object", "properties": {name: schema, "explanation": _EXPLANATION}, "required": [name, "explanation"]}
    text = "\n\n".join(part for part in (judge.rubric_text.strip(), criterion, _ASKED[form]) if part)
    judge = judge.model_copy(update=fitted | {"rubric_text": text, "output_schema": wanted, "pass_if": None})
    return judge, PassRule(judge, (f"{name}=true",)) if form == "verdict" else (name,)


def _own_answer(judge: SchemaJudge, form: Form, rule: PassRule) -> tuple[str, ...] | PassRule | None:
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


def passages(item: Item) -> list[tuple[str, RunMessage]]:
    """Return the messages of an item with what each belongs to: the request, the answer, or answer A or B."""
    names = ("answer",) if len(item.answers) == 1 else ("A", "B")
    rows = [("request", message) for message in item.messages]
    return rows + [(name, message) for name, messages in zip(names, item.answers, strict=True) for message in messages]


def combine(values: Mapping[Order, str | None]) -> str | None:
    """Return the verdict of a pair asked in both orders: the winner where both orders agree, else a tie; None where one is unanswered."""
    said = set(values.values())
    return None if None in said else said.pop() if len(said) == 1 else "tie"
