"""What a grader that is not ours returned, read as strictly as a model's answer, and more briefly written."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, JsonValue, ValidationError
from pydantic_core import to_json

from gradeloop.answer import checked
from gradeloop.call_groups import CallGroup
from gradeloop.errors import explain
from gradeloop.strict import Items, Strict
from gradeloop.verdict import Malformed, Verdict, VerdictResult, VerdictRow

METADATA_BYTES = 16 * 1024
"""Of a row's metadata as JSON."""


class ForeignRow(Strict):
    """One criterion; only the verdict must be there, and a fail's gap or reason."""

    id: str
    passed: Annotated[bool, Field(strict=True)]
    reason: str = ""
    gap: str | None = None
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    metadata: dict[str, JsonValue] | None = None


class ForeignAnswer(Strict):
    """A whole answer."""

    criteria: Items[ForeignRow]
    explanation: str = ""
    result: VerdictResult | None = None


def returned(value: Any, group: CallGroup) -> Verdict | Malformed:  # noqa: ANN401 - whatever somebody else's code returns
    """Read `{criteria: [{id, passed, reason?, gap?, score?, metadata?}], explanation?, result?}`, or one row where one was asked."""
    if isinstance(value, dict) and "criteria" not in value and len(group.ids) == 1:
        value = {"criteria": [{"id": group.ids[0]} | value]}
    try:
        answer = ForeignAnswer.model_validate(value)
    except ValidationError as error:
        return Malformed(problems=(explain(error),))
    if problems := tuple(_problems(answer)):
        return Malformed(problems=problems)
    rows = tuple(_row(row) for row in answer.criteria)
    due: VerdictResult = "satisfied" if all(row.passed for row in rows) else "needs_revision"
    result: VerdictResult = "failed" if answer.result == "failed" else due
    return checked(Verdict(criteria=rows, explanation=answer.explanation, result=result), group, group.ids)


def _row(row: ForeignRow) -> VerdictRow:
    gap = None if row.passed else row.gap or row.reason
    return VerdictRow(id=row.id, reason=row.reason, passed=row.passed, gap=gap, score=row.score, metadata=row.metadata)


def _problems(answer: ForeignAnswer) -> Iterator[str]:
    for row in answer.criteria:
        if row.metadata is not None and (size := len(to_json(row.metadata))) > METADATA_BYTES:
            yield f"the metadata of {row.id} has {size} bytes as JSON, {METADATA_BYTES} at most"
