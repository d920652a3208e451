"""What a thread waits for: criteria that are a person's, and tool calls that need one's approval."""

from typing import Literal

from pydantic import JsonValue

from gradeloop.strict import Sparse, Strict


class Asked(Strict):
    """A criterion that waits for a person."""

    id: str
    name: str
    """Its description."""


class PendingCall(Strict):
    """A tool call that waits for a person."""

    call: str
    """Its id, which `approve` and `deny` name."""
    tool: str
    arguments: dict[str, JsonValue]
    role: Literal["generator", "grader", "check"]
    """Who wants it."""


class WaitingFor(Strict):
    """What a person is asked: criteria, which `decide` names, or tool calls, which `approve` and `deny` name."""

    grading_run_id: str | None
    """None where a generator without a rubric wants a tool."""
    iteration: int | None
    criteria: tuple[Asked, ...]
    calls: Sparse[tuple[PendingCall, ...]] = ()
