"""Finished runs of agents: transcripts with their messages and metadata."""

import hashlib
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic_core import to_json

from gradeloop.contract.base import FirstMistakes, Items, Sparse, Strict
from gradeloop.contract.messages import Message, ToolCall

RUN_BYTES = 3 * 512 * 1024
"""The largest run as JSON: it enters a history whole, in one payload of 2 MiB."""


STORED_RUN_BYTES = 32 * 1024 * 1024
"""The largest run where payloads are stored outside of Temporal."""


TRANSCRIPTS = 100
"""The most transcripts of one run."""


RUN_MESSAGES = 100_000
"""The most messages of one transcript."""


RunRole = Literal["system", "user", "assistant", "tool"]


RunId = Annotated[str, Field(min_length=1, max_length=200)]


class RunMessage(Strict):
    """A message of a run; absent fields stay out of its JSON."""

    role: RunRole
    content: str = ""
    reasoning: Sparse[str | None] = None
    """The model's reasoning before its answer, where it was recorded."""
    name: Sparse[str | None] = None
    tool_calls: Sparse[Items[ToolCall]] = ()
    tool_call_id: Sparse[str | None] = None
    metadata: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hangs_together(self) -> "RunMessage":
        if self.role != "assistant" and self.tool_calls:
            raise ValueError(f"tool_calls belong to role 'assistant', not {self.role!r}")
        return self


class RunTranscript(Strict):
    """One conversation of a run."""

    id: str = ""
    name: Sparse[str | None] = None
    messages: Annotated[tuple[RunMessage, ...], FirstMistakes(RUN_MESSAGES)] = Field(min_length=1)
    metadata: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)


class AgentRun(Strict):
    """A finished run of an agent, in one conversation or several."""

    id: RunId
    transcripts: Annotated[tuple[RunTranscript, ...], FirstMistakes(TRANSCRIPTS)] = Field(min_length=1, max_length=TRANSCRIPTS)
    metadata: Sparse[dict[str, JsonValue]] = Field(default_factory=dict)
    """Data about the run, shown to a judge only where the judge's configuration asks for it: it may hold the answer."""

    @model_validator(mode="after")
    def _names_its_transcripts(self) -> "AgentRun":
        ids = [transcript.id or f"t{number}" for number, transcript in enumerate(self.transcripts)]
        if double := next((name for name in ids if ids.count(name) > 1), None):
            raise ValueError(f"two transcripts have the id {double!r}; give each its own")
        named = tuple(transcript.model_copy(update={"id": name}) for transcript, name in zip(self.transcripts, ids, strict=True))
        object.__setattr__(self, "transcripts", named)
        return self

    def json_bytes(self) -> bytes:
        """Return the run as JSON."""
        return to_json(self)

    def sha256(self) -> str:
        """Return the sha256 of the run as JSON, its id included."""
        return hashlib.sha256(self.json_bytes()).hexdigest()


def run_as_messages(run: AgentRun) -> list[Message]:
    """Return the run as the messages of one thread for judging by criteria; with several transcripts, every message names its own."""
    several = len(run.transcripts) > 1
    return [
        _message(message, f"{number} {transcript.name or transcript.id}" if several else message.name)
        for number, transcript in enumerate(run.transcripts)
        for message in transcript.messages
        if message.content.strip() or message.reasoning or message.tool_calls or message.role == "tool"
    ]


def draft_index(log: list[Message]) -> int:
    """Return the index of the message that is judged as the draft: the last answer with text, else the last message."""
    answers = [at for at, message in enumerate(log) if message.role == "assistant" and not message.tool_calls and message.content.strip()]
    return answers[-1] if answers else len(log) - 1


def request_index(log: list[Message], draft: int) -> int:
    """Return the index of the request that the draft answers: the last message of the user before it, else the first message."""
    requests = (at for at in range(draft, -1, -1) if log[at].role == "user" and log[at].source is None)
    return next(requests, 0)


def _message(message: RunMessage, name: str | None) -> Message:
    content = message.content if not message.reasoning else f"[reasoning]\n{message.reasoning}\n[end of reasoning]\n{message.content}"
    if message.role == "tool":
        return Message(role="tool", content=content, name=name, tool_call_id=message.tool_call_id or "unknown")
    if message.role == "system":
        return Message(role="user", content=content, name=name, source="system")
    return Message(role=message.role, content=content, name=name, tool_calls=message.tool_calls)
