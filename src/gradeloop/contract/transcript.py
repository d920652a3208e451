"""Finished runs of agents: transcripts with their messages and metadata."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, JsonValue, model_validator
from pydantic_core import to_json

from gradeloop.contract.base import Bounded, Items, OmitEmpty, Strict
from gradeloop.contract.messages import FEEDBACK_SOURCE, Message, ToolCall

RUN_BYTES = 3 * 512 * 1024
"""The largest run as JSON: it enters a history whole, in one payload of 2 MiB."""

STORED_RUN_BYTES = 32 * 1024 * 1024
"""The largest run where payloads are stored outside of Temporal."""

TRANSCRIPTS = 1_000
"""The most transcripts of one run: a trace may hold as many calls of models that go on with none of the others."""

RUN_MESSAGES = 100_000
"""The most messages of one transcript."""


class MessagePlace(NamedTuple):
    """The place of a message in its run; for a message of an excerpt, its place in the longer run."""

    transcript: int
    message: int

    @property
    def label(self) -> str:
        """The name by which it is cited: `T0B3`."""
        return f"T{self.transcript}B{self.message}"


RunRole = Literal["system", "user", "assistant", "tool"]

RunId = Annotated[str, Field(min_length=1, max_length=200)]

EMPTY_MESSAGE = "empty_message"
"""The kind of the record that stands for a message which says nothing."""


class TextPart(Strict):
    """A text of the speaker."""

    type: Literal["text"] = "text"
    text: str
    refusal: OmitEmpty[bool] = False
    """Whether the model refuses by it, where its provider says so."""

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        return {"type": self.type, **({"refusal": True} if self.refusal else {}), "text": self.text}


class ReasoningPart(Strict):
    """A model's thoughts before it spoke, or a summary of them."""

    type: Literal["reasoning"] = "reasoning"
    text: str = ""
    redacted: OmitEmpty[bool] = False
    """Whether the provider hid the reasoning, or a part of it."""

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        return {"type": self.type, **({"redacted": True} if self.redacted else {}), "text": self.text}


class ToolCallPart(Strict):
    """A call of a tool."""

    type: Literal["tool_call"] = "tool_call"
    call: str
    """The call's id, which its result has too."""
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    invalid: OmitEmpty[str | None] = None
    """The arguments as they were written, where they are not a JSON object: the input of a custom tool is any text."""

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        text = self.invalid if self.invalid is not None else json.dumps(self.arguments, ensure_ascii=False)
        return {"type": self.type, "call": self.call, "tool": self.name, "text": text}


class ToolResultPart(Strict):
    """The result of a tool."""

    type: Literal["tool_result"] = "tool_result"
    call: str
    name: OmitEmpty[str | None] = None
    text: str = ""
    is_error: OmitEmpty[bool] = False

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        about: dict[str, JsonValue] = {"name": self.name} if self.name else {}
        about |= {"is_error": True} if self.is_error else {}
        return {"type": self.type, "call": self.call, **about, "text": self.text}


class FilePart(Strict):
    """An image, a sound, a document: what is known of it, and its text where it has one."""

    type: Literal["file"] = "file"
    name: OmitEmpty[str | None] = None
    media_type: OmitEmpty[str | None] = None
    url: OmitEmpty[str | None] = None
    bytes: OmitEmpty[int] = 0
    """Its size, where the run holds the content; the content itself is not shown."""
    text: str = ""
    """The text of a document, or what was transcribed of a recording."""

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        about: dict[str, JsonValue] = {"name": self.name, "media_type": self.media_type, "url": self.url, "bytes": self.bytes}
        return {"type": self.type, **{key: value for key, value in about.items() if value}, "text": self.text}


class ErrorPart(Strict):
    """An error that the run records beside what was said."""

    type: Literal["error"] = "error"
    name: OmitEmpty[str | None] = None
    """The kind of error: `timeout`, `RateLimitError`."""
    text: str

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        about: dict[str, JsonValue] = {"name": self.name} if self.name else {}
        return {"type": self.type, **about, "text": self.text}


class OtherPart(Strict):
    """Anything else, kept as its JSON."""

    type: Literal["other"] = "other"
    kind: str
    """The type by which the run names it."""
    value: JsonValue = None

    def record(self) -> dict[str, JsonValue]:
        """Return the fields of the record that judges are shown."""
        text = "" if self.value is None else self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)
        return {"type": self.type, "kind": self.kind, "text": text}


RunPart = Annotated[
    TextPart | ReasoningPart | ToolCallPart | ToolResultPart | FilePart | ErrorPart | OtherPart, Field(discriminator="type")
]
"""A part of a message. Every part is a record of its own, whose type no content can imitate."""


class RunMessage(Strict):
    """A message of a run, plain or as parts; absent fields stay out of its JSON: `RunMessage(role="user", content="Hi")`."""

    role: RunRole
    content: str = ""
    reasoning: OmitEmpty[str | None] = None
    """The model's reasoning before its answer, where it was recorded."""
    name: OmitEmpty[str | None] = None
    tool_calls: OmitEmpty[Items[ToolCall]] = ()
    tool_call_id: OmitEmpty[str | None] = None
    """The id of the call that a message of role `tool` answers."""
    is_error: OmitEmpty[bool] = False
    """Whether a tool's result is an error."""
    parts: OmitEmpty[Items[RunPart]] = ()
    """The parts in their order, where content, reasoning and tool calls cannot say it; then those are absent."""
    metadata: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hangs_together(self) -> "RunMessage":
        if self.role != "assistant" and self.tool_calls:
            raise ValueError(f"tool_calls belong to role 'assistant', not {self.role!r}")
        if self.role != "tool" and self.is_error:
            raise ValueError(f"is_error belongs to role 'tool', not {self.role!r}")
        if self.parts and (self.content or self.reasoning or self.tool_calls or self.tool_call_id or self.is_error):
            raise ValueError("a message has parts, or content with reasoning and tool calls; write all of it as parts")
        return self

    def records(self) -> tuple[RunPart, ...]:
        """Return the message's parts as judges are shown them, one record each; a message that says nothing has one that says so."""
        if self.parts:
            return self.parts
        found: list[RunPart] = [ReasoningPart(text=self.reasoning)] if self.reasoning else []
        if self.role == "tool":
            failed = self.is_error or self.metadata.get("is_error") is True
            found.append(ToolResultPart(call=self.tool_call_id or "unknown", name=self.name, text=self.content, is_error=failed))
        elif self.content.strip():
            found.append(TextPart(text=self.content))
        found += [ToolCallPart(call=call.id, name=call.name, arguments=call.arguments, invalid=call.invalid) for call in self.tool_calls]
        return tuple(found) or (OtherPart(kind=EMPTY_MESSAGE),)

    @property
    def says_something(self) -> bool:
        """Whether there is anything in the message that can be judged."""
        return any(
            part.text.strip() if isinstance(part, TextPart) else not (isinstance(part, OtherPart) and part.kind == EMPTY_MESSAGE)
            for part in self.records()
        )

    @property
    def is_answer(self) -> bool:
        """Whether an assistant says something in it, or calls a tool; reasoning and errors do not make an answer."""
        spoken = any(not isinstance(part, ReasoningPart | ErrorPart) for part in self.records())
        return self.role == "assistant" and self.says_something and spoken


class RunTranscript(Strict):
    """One conversation of a run: `RunTranscript(messages=(RunMessage(role="user", content="Hi"),))`."""

    id: str = ""
    """The id of the conversation; `t` and its position by default."""
    name: OmitEmpty[str | None] = None
    messages: Annotated[tuple[RunMessage, ...], Bounded(RUN_MESSAGES)] = Field(min_length=1)
    metadata: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)


class PartFinding(Strict):
    """A judge's finding about one part of a longer run."""

    part: int
    """The number of the part, from 1."""
    first: str
    """The first message of the part, `T0B0`; one at the run's beginning or end may stand in all parts."""
    last: str
    text: str
    """The judge's output, as JSON."""


class RunExcerpt(Strict):
    """The messages of a longer run that an excerpt holds, by their numbers there, and the findings about the run's parts."""

    parts: Annotated[int, Field(ge=2)]
    """The number of parts of the longer run."""
    part: OmitEmpty[int | None] = None
    """The number of this part, from 1; None for the messages that the findings on all parts cite."""
    transcripts: Items[int]
    """The number of each transcript in the longer run."""
    messages: Items[Items[int]]
    """The numbers of each transcript's messages, ascending."""
    findings: OmitEmpty[Items[PartFinding]] = ()


class AgentRun(Strict):
    """A finished run of an agent, in one conversation or several: `AgentRun(id="7", transcripts=(RunTranscript(messages=said),))`."""

    id: RunId
    """The id of the run, unique among those that are judged together."""
    transcripts: Annotated[tuple[RunTranscript, ...], Bounded(TRANSCRIPTS)] = Field(min_length=1, max_length=TRANSCRIPTS)
    """The conversations of the run, in order."""
    metadata: OmitEmpty[dict[str, JsonValue]] = Field(default_factory=dict)
    """Data about the run, shown to a judge only where the judge's configuration asks for it: it may hold the answer."""
    excerpt: OmitEmpty[RunExcerpt | None] = None
    """The place of these messages in a longer run, if they are a part of one; they are cited by their numbers there."""

    @model_validator(mode="after")
    def _names_its_transcripts(self) -> "AgentRun":
        if "\0" in self.id:
            raise ValueError("the id has a NUL character, which no database keeps; write another one")
        ids = [transcript.id or f"t{number}" for number, transcript in enumerate(self.transcripts)]
        if double := next((name for name, count in Counter(ids).items() if count > 1), None):
            raise ValueError(f"two transcripts have the id {double!r}; give each its own")
        named = tuple(transcript.model_copy(update={"id": name}) for transcript, name in zip(self.transcripts, ids, strict=True))
        object.__setattr__(self, "transcripts", named)
        return self

    @model_validator(mode="after")
    def _numbers_its_messages(self) -> "AgentRun":
        if (excerpt := self.excerpt) is None:
            return self
        if [len(numbers) for numbers in excerpt.messages] != [len(transcript.messages) for transcript in self.transcripts]:
            raise ValueError("excerpt.messages has not a number for each message; give each transcript a list of its messages' numbers")
        lists = (excerpt.transcripts, *excerpt.messages)
        if len(excerpt.transcripts) != len(self.transcripts) or any(list(numbers) != sorted(set(numbers)) for numbers in lists):
            raise ValueError("excerpt: the numbers of transcripts and messages are not one each, ascending; write them in their order")
        return self

    def placed(self) -> Iterator[tuple[MessagePlace, RunTranscript, RunMessage]]:
        """Yield every message with its transcript and its place, in order."""
        for at, transcript in enumerate(self.transcripts):
            number = self.excerpt.transcripts[at] if self.excerpt else at
            numbers = self.excerpt.messages[at] if self.excerpt else range(len(transcript.messages))
            for index, message in zip(numbers, transcript.messages, strict=True):
                yield MessagePlace(number, index), transcript, message

    def json_bytes(self) -> bytes:
        """Return the run as JSON."""
        return to_json(self)

    def sha256(self) -> str:
        """Return the sha256 of the run as JSON, its id included."""
        return hashlib.sha256(self.json_bytes()).hexdigest()


def output_run(output: str, request: str | None) -> AgentRun:
    """Return a text as a run: the request that it answers, where there is one, and the text."""
    requested = (RunMessage(role="user", content=request),) if request else ()
    name = hashlib.sha256(f"{request}\0{output}".encode(errors="surrogatepass")).hexdigest()[:16]
    return AgentRun(id=f"output-{name}", transcripts=(RunTranscript(messages=(*requested, RunMessage(role="assistant", content=output))),))


def why_unanswered(run: AgentRun) -> str | None:
    """Return why there is no answer to judge, with the keys that were read as metadata; None for a run with one, or a part of a run."""
    messages = [message for _, _, message in run.placed()]
    if not any(message.says_something for message in messages):
        return f"the run {run.id!r}: no message says anything; there is nothing to judge"
    if run.excerpt is not None or any(message.is_answer for message in messages):
        return None
    aside = f"; these keys beside its messages were set aside: {', '.join(list(run.metadata)[:20])}" if run.metadata else ""
    cure = "write it as the last message, of role 'assistant', or under the key 'output', or leave the run out"
    return f"the run {run.id!r} has no answer: no text and no tool call of an assistant{aside}; {cure}"


def run_as_messages(run: AgentRun) -> list[Message]:
    """Return the run as the messages of one thread for judging by criteria, in the same records that judges with a schema are shown.

    With several transcripts, every message names its own; in an excerpt also its block, and findings follow at the end. A run in which
    nothing is said has no messages.
    """
    if not any(message.says_something for _, _, message in run.placed()):
        return []
    several = len(run.transcripts) > 1
    found: list[Message] = []
    for place, transcript, message in run.placed():
        about: dict[str, JsonValue] = {"block": place.label} if run.excerpt else {}
        about |= {"transcript": f"{place.transcript} {transcript.name or transcript.id}"} if several else {}
        found += messages_of(message, about)
    return found + [_finding_message(finding) for finding in (run.excerpt.findings if run.excerpt else ())]


def _finding_message(finding: PartFinding) -> Message:
    """Return a finding as a message, of a type that no part of a run has."""
    return Message(role="user", content=finding.text, kind="finding", about=finding.model_dump(mode="json", exclude={"text"}))


def draft_index(log: list[Message]) -> int:
    """Return the index of the message that is judged as the draft: the last answer with text, else the last plain message."""
    answers = (at for at in range(len(log) - 1, -1, -1) if log[at].role == "assistant" and not log[at].tool_calls and _speaks(log[at]))
    plain = (at for at in range(len(log) - 1, -1, -1) if log[at].kind is None)
    return next(answers, next(plain, len(log) - 1))


def request_index(log: list[Message], draft: int) -> int:
    """Return the index of the request that the draft answers: the user's last message before it that is not feedback, else the first."""
    asked = (at for at in range(draft, -1, -1) if log[at].role == "user" and log[at].source is None and log[at].name != FEEDBACK_SOURCE)
    requests = (at for at in asked if _speaks(log[at]))
    return next(requests, 0)


def _speaks(message: Message) -> bool:
    return message.kind in {None, "text"} and bool(message.content.strip())


def messages_of(message: RunMessage, about: dict[str, JsonValue]) -> Iterator[Message]:
    """Yield a message for each record; a text with the tool calls behind it stays one, as models write it."""
    role = "user" if message.role == "system" else message.role
    common: dict[str, Any] = {"name": message.name, "source": "system" if message.role == "system" else None}
    parts = [part for part in message.records() if not (isinstance(part, ToolCallPart) and message.tool_calls)]
    for part in parts:
        fields = part.record()
        kind, text = str(fields.pop("type")), str(fields.pop("text"))
        if kind == "text" and not fields and text.strip() and role != "tool":
            calls = message.tool_calls if part is parts[-1] else ()
            yield Message(role=role, content=text, tool_calls=calls, about=about or None, **common)
        elif kind == "tool_result" and role == "tool":
            call, tool = str(fields.pop("call")), fields.pop("name", None)
            named: dict[str, Any] = {**common, "name": tool or message.name}
            yield Message(role="tool", content=text, tool_call_id=call, about={**fields, **about} or None, **named)
        else:
            call_id = str(fields.get("call", "none")) if role == "tool" else None
            yield Message.model_validate(
                {"role": role, "content": text, "kind": kind, "tool_call_id": call_id, "about": {**fields, **about} or None} | common
            )
    if message.tool_calls and not (parts and isinstance(parts[-1], TextPart)):
        yield Message(role="assistant", tool_calls=message.tool_calls, about=about or None, **common)


class Citation(Strict):
    """One citation in an output, and what it points at in the run."""

    path: str
    """The path of the text in the output: `explanation`, `findings[2].why`."""
    start: int
    """Start of the citation in that text, in characters; each of several in one bracket has its own stretch."""
    end: int
    kind: Literal["block", "metadata"]
    target: str
    """The cited block: `T0B3`, or for metadata `R0M.model`."""
    quote: OmitEmpty[str | None] = None
    verified: bool
    problem: OmitEmpty[str | None] = None
    """The reason why the citation is not verified; None for one that is."""
    transcript_id: OmitEmpty[str | None] = None
    block_start: OmitEmpty[int | None] = None
    """The first character meant in the block's text, reasoning and tool calls included."""
    block_end: OmitEmpty[int | None] = None
