"""The seam: one model call, said without any vendor's words."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from gradeloop.modelspec import ModelSpec
from gradeloop.strict import Strict
from gradeloop.transcript import Message
from gradeloop.usage import Usage

DEADLINE = 540.0
"""Seconds that one model call may take in all, below the activity's own 10 minutes so that the client ends first."""

CONNECT_TIMEOUT = 10.0
"""Seconds to reach a provider."""

MAX_TOKENS = 16_384
"""The completion's cap where a provider demands one: room for reasoning and a long draft, under every current model's own cap."""


class ToolSpec(Strict):
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    """JSON Schema of the arguments: an object."""


class Step(Strict):
    """Where in a thread a call stands; a recorded or scripted reply is found by it."""

    role: Literal["generator", "grader"]
    run: int = 0
    """Ordinal of the grading run in the thread, from 0."""
    iteration: int = 0
    group: int = 0
    sample: int = 0
    step: int = 0
    """Ordinal of the model turn in its conversation, from 0."""


@dataclass(frozen=True)
class ModelRequest:
    """One call of one model."""

    spec: ModelSpec
    step: Step
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    """JSON Schema of the answer, in the dialect that all providers take; None for free text."""
    schema_name: str = "verdict"
    tools_allowed: bool = True
    """False on a last turn: the tools stay declared (earlier turns name them) but the model must answer."""


@dataclass(frozen=True)
class ModelReply:
    """What came back: an assistant message with text or tool calls, and what it cost."""

    message: Message
    usage: Usage = field(default_factory=Usage)


class Provider(Protocol):
    """An adapter of one vendor protocol."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make exactly one paid call and return its reply.

        Raises:
            ModelFault: The call failed, or its reply is no answer (refused, truncated, malformed, empty).
        """
        ...
