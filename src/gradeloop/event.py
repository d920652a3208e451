"""What happens to a thread, told as numbered events."""

from typing import Literal

from pydantic import Field

from gradeloop.evaluation import InterruptReason, Status
from gradeloop.strict import Strict

EventType = Literal[
    "run_started",
    "message",
    "rubric_evaluation_start",
    "rubric_evaluation_end",
    "tool_called",
    "run_ended",
    "interrupted",
    "resumed",
    "rubric_supplied",
    "rubric_rejected",
    "waiting",
    "decided",
    "approved",
    "denied",
    "overridden",
]


class Event(Strict):
    """Something that happened to a thread; references, never text."""

    seq: int
    """From 1, without gaps."""
    type: EventType
    time: str
    """ISO 8601, UTC."""
    grading_run_id: str | None = None
    iteration: int | None = None
    index: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of the message or evaluation that is told of."""
    criterion: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """That a person decided."""
    call: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The id of a tool call that a person approved or denied."""
    tool: str | None = Field(default=None, exclude_if=lambda value: value is None)
    role: Literal["generator", "grader", "check"] | None = Field(default=None, exclude_if=lambda value: value is None)
    why: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a refusal: what is wrong with the rubric that was supplied."""
    reason: InterruptReason | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of an interruption."""
    result: str | None = Field(default=None, exclude_if=lambda value: value is None)
    status: Status | None = Field(default=None, exclude_if=lambda value: value is None)
