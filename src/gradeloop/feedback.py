"""The grader's findings as one message to the generator."""

from collections.abc import Iterable

from gradeloop.evaluation import CriterionRow, Evaluation
from gradeloop.prompts import prompt
from gradeloop.records import visible
from gradeloop.rubric import Rubric
from gradeloop.transcript import FEEDBACK_SOURCE, Message

_OPENING, _FAILING, _UNVERIFIED, _SUGGESTED, _PASSING, _CLOSING = prompt("feedback").split("\n\n")


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())


def _section(heading: str, rows: Iterable[CriterionRow], *, gaps: bool = False) -> list[str]:
    told = [f"- [{row.id}] {_one_line(row.name)}" + (f": {_one_line(row.gap)}" if gaps and row.gap else "") for row in rows]
    return ["", heading, *told] if told else []


def feedback(rubric: Rubric, evaluation: Evaluation) -> Message:
    """Return the message that asks for a revision: what fails and why, what was not verified, what must stay."""
    rows = evaluation.criteria
    failing = [row for row in rows if not row.passed and not row.unverified]
    lines = [
        _OPENING,
        *_section(_FAILING, (row for row in failing if row.id in rubric.gating), gaps=True),
        *_section(_UNVERIFIED, (row for row in rows if row.unverified)),
        *_section(_SUGGESTED, (row for row in failing if row.id not in rubric.gating), gaps=True),
        *_section(_PASSING, (row for row in rows if row.passed)),
        "",
        _CLOSING,
    ]
    return Message(role="user", content="\n".join(lines), name=FEEDBACK_SOURCE, source=FEEDBACK_SOURCE)
