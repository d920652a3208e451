"""What happens to a thread, told as numbered events."""

from typing import Literal

from gradeloop.evaluation import InterruptReason, Status
from gradeloop.strict import Sparse, Strict

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
    index: Sparse[int | None] = None
    """Of the message or evaluation that is told of."""
    criterion: Sparse[str | None] = None
    """That a person decided."""
    call: Sparse[str | None] = None
    """The id of a tool call that a person approved or denied."""
    tool: Sparse[str | None] = None
    role: Sparse[Literal["generator", "grader", "check"] | None] = None
    why: Sparse[str | None] = None
    """Of a refusal: what is wrong with the rubric that was supplied."""
    reason: Sparse[InterruptReason | None] = None
    """Of an interruption."""
    result: Sparse[str | None] = None
    status: Sparse[Status | None] = None
