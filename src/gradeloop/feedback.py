"""The grader's findings as one message to the generator, in the rubric's language."""

from collections.abc import Iterable

from gradeloop.evaluation import CriterionRow, Evaluation
from gradeloop.records import visible
from gradeloop.rubric import Rubric
from gradeloop.transcript import FEEDBACK_SOURCE, Message


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())


def _section(heading: str, rows: Iterable[CriterionRow], *, gaps: bool = False) -> list[str]:
    told = [f"- [{row.id}] {_one_line(row.name)}" + (f": {_one_line(row.gap)}" if gaps and row.gap else "") for row in rows]
    return ["", heading, *told] if told else []


def feedback(rubric: Rubric, evaluation: Evaluation) -> Message:
    """Return the message that asks for a revision: what fails and why, what was not verified, what must stay."""
    rows, said = [row for row in evaluation.criteria if not (row.unverified and row.by == "human")], rubric.phrases
    failing = [row for row in rows if not row.passed and not row.unverified]
    lines = [
        said.opening,
        *_section(said.failing, (row for row in failing if row.id in rubric.pressing), gaps=True),
        *_section(said.unverified, (row for row in rows if row.unverified)),
        *_section(said.suggested, (row for row in failing if row.id not in rubric.pressing), gaps=True),
        *_section(said.passing, (row for row in rows if row.passed)),
        "",
        said.closing,
    ]
    return Message(role="user", content="\n".join(lines), name=FEEDBACK_SOURCE, source=FEEDBACK_SOURCE)
