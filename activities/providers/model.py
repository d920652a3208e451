"""The seam: one model call, said without any vendor's words."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from gradeloop.modelspec import ModelSpec
from gradeloop.strict import Strict
from gradeloop.transcript import Message
from gradeloop.usage import Usage

CONNECT_TIMEOUT = 10.0
"""Seconds to reach a provider."""

IDLE_TIMEOUT = 240.0
"""Seconds without a byte after which a stream counts as hung: reasoning models think for minutes before their first word."""

DEADLINE = 540.0
"""Seconds that one model call may take in all, unless its completion may be so long that it needs more."""

LONGEST = 3300.0
"""Seconds that the longest completion may take: below the activity's own hour, so that the client ends first."""

SLOWEST = 30.0
"""Tokens a second: what a call is given for a long completion; few hosted models write slower."""

MAX_TOKENS = 16_384
"""The completion's cap where a provider demands one: room for reasoning and a long draft, under every current model's own cap."""

RAISE = 4
"""How many times its cap a completion gets when it was cut at it, once."""


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
    breakpoints: tuple[int, ...] = ()
    """Indexes of the messages up to which the prompt is the beginning of later ones, so that a provider may cache it; three at most.

    The system prompt is always such a beginning.
    """
    tag: str | None = None
    """The name of the tags between which the answer stands, where no schema binds it."""
    raised: bool = False
    """True where the completion was cut at its cap before: it gets `RAISE` times as much, as far as the model goes."""


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


def completion_cap(request: ModelRequest, most: int | None) -> int:
    """Return the tokens that a completion may have: `RAISE` times as many where one was cut, and never more than the model writes."""
    cap = (request.spec.config.max_tokens or MAX_TOKENS) * (RAISE if request.raised else 1)
    return min(cap, most) if most else cap


def raisable(request: ModelRequest, most: int | None) -> bool:
    """Say whether a completion that was cut at its cap may be longer."""
    return not request.raised and (most is None or (request.spec.config.max_tokens or MAX_TOKENS) < most)


def deadline(max_tokens: int | None) -> float:
    """Return the seconds that a call with this cap on its completion may take in all."""
    if max_tokens is None or max_tokens <= MAX_TOKENS:
        return DEADLINE
    return min(max(DEADLINE, max_tokens / SLOWEST), LONGEST)
