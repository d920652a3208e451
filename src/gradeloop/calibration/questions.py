"""Questions to a judge about labelled items: its own where its form fits, else its rubric with the form that the labels have."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from gradeloop.calibration.labelled_sets import Form, Item, LabelledSet
from gradeloop.calibration.labels import compared_keys
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, SchemaJudge
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
    path: tuple[str, ...]
    """The key of the judge's output that answers."""
    positive: JsonValue = True
    """The value of that key that passes, for a verdict."""
    order: Order = "AB"
    repeat: int = 0
    """Which judgement of the same question it is, from 0."""

    def value(self, result: JudgeResult) -> bool | float | str | None:
        """Return what a result says, in the terms of the labels; None where it says nothing."""
        said = None if result.failed else value_at(result.output, self.path)
        if said is None:
            return None
        if len(self.item.answers) > 1:
            return str(said) if self.order == "AB" else {"A": "B", "B": "A"}.get(str(said), "tie")
        if isinstance(said, int | float) and not isinstance(said, bool) and isinstance(self.item.opinions[0].value, float):
            return float(said)
        return said == self.positive


def ask_about(judge: JudgeConfig, labelled: LabelledSet, *, both_orders: bool = True) -> Iterator[Question]:
    """Yield the questions about a labelled set, two for every pair of answers: in both orders."""
    for item in labelled.items:
        asked, path, positive = fitted_judge(judge, labelled.form, item.criterion)
        orders: tuple[Order, ...] = ("AB", "BA") if labelled.form == "pair" and both_orders else ("AB",)
        for order in orders:
            yield Question(item, asked, run_of(item, order), path, positive, order)


def fitted_judge(judge: JudgeConfig, form: Form, criterion: str) -> tuple[JudgeConfig, tuple[str, ...], JsonValue]:
    """Return the judge that is asked, the key that answers, and the value of that key that passes.

    A judge whose own output answers a form is asked as it is; else its rubric and its model are, with the form's schema. A criterion of
    the item is asked beside the judge's own rubric, or as the one criterion of a criteria judge.
    """
    if isinstance(judge, CriteriaJudge):
        if form == "verdict":
            rubric = judge.rubric if not criterion else Rubric.model_validate({"criteria": [criterion]})
            return judge.model_copy(update={"rubric": rubric, "id": ""}), ("result",), "satisfied"
        text = "\n".join(f"- {one.text}" for one in judge.rubric.criteria)
        judge = SchemaJudge(rubric_text=text, judge_model=judge.grader.model if judge.grader else None)
    elif not criterion and (own := _own_key(judge, form)) is not None:
        return judge, *own
    name, schema = _SCHEMAS[form]
    wanted = {"type": "object", "properties": {name: schema, "explanation": _EXPLANATION}, "required": [name, "explanation"]}
    text = "\n\n".join(part for part in (judge.rubric_text.strip(), criterion, _ASKED[form]) if part)
    return judge.model_copy(update={"rubric_text": text, "output_schema": wanted, "id": ""}), (name,), True


def _own_key(judge: SchemaJudge, form: Form) -> tuple[tuple[str, ...], JsonValue] | None:
    for key in compared_keys(judge.output_schema):
        if form == "pair" and {"A", "B"} <= {value for value in key.values if isinstance(value, str)}:
            return key.path, True
        if form == "verdict" and key.kind == "category" and key.positive is not None:
            return key.path, key.positive
        if form == "score" and key.kind in {"number", "ordered"}:
            return key.path, True
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
