"""The provider that needs no network: replies from a YAML file, found by where the call stands in its thread."""

import asyncio
import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, NonNegativeInt, ValidationError, model_validator

from activities.failures import Kind, ModelFault
from activities.providers.model import ModelReply, ModelRequest, Step
from gradeloop.errors import InvalidRequest, explain
from gradeloop.strict import Strict
from gradeloop.transcript import Message, ToolCall
from gradeloop.usage import Usage
from gradeloop.yaml_file import read_yaml

_CODES = re.compile(r"\b(verdict-)?[0-9a-f]{16,32}\b")
"""The random codes of fences and tags, in which any short text may stand."""


class ScriptedCall(Strict):
    """A tool call that the scripted model makes."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    id: str | None = None
    """Absent: derived from the row's address."""


class ScriptedError(Strict):
    """A failure of the scripted provider."""

    kind: Kind
    message: str
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    retry_after: Annotated[float, Field(gt=0)] | None = None
    """Seconds."""


class ScriptedUsage(Strict):
    """Tokens that the scripted call claims to have cost."""

    input: NonNegativeInt = 0
    cached: NonNegativeInt = 0
    cache_written: NonNegativeInt = 0
    output: NonNegativeInt = 0
    reasoning: NonNegativeInt = 0


class Row(Strict):
    """One reply and its address; every part of the address but the role is 0 where it is absent."""

    role: Literal["generator", "grader"]
    run: NonNegativeInt = 0
    iteration: NonNegativeInt = 0
    group: NonNegativeInt = 0
    sample: NonNegativeInt = 0
    step: NonNegativeInt = 0
    when: Annotated[str, Field(min_length=1)] | None = None
    """The row answers only what holds this text; of several at one address the first that fits, before one without."""
    text: str | None = None
    verdict: dict[str, JsonValue] | None = None
    """Given back as JSON text."""
    tool_calls: Annotated[tuple[ScriptedCall, ...], Field(min_length=1)] | None = None
    error: ScriptedError | None = None
    delay: Annotated[float, Field(ge=0, le=3600)] = 0
    """Seconds before the reply."""
    usage: ScriptedUsage = ScriptedUsage()
    asked: dict[str, JsonValue] | None = None
    """What the model was asked when the row was recorded; it plays no part."""
    failed_before: tuple[ScriptedError, ...] = ()
    """Failures that were retried when the row was recorded; they are not played."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Row":
        ways = ("text", "verdict", "tool_calls", "error")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1 and given != ["text", "tool_calls"]:
            raise ValueError(f"a row says exactly one of {', '.join(ways)}; this one says {' and '.join(given) or 'none'}")
        return self

    @property
    def address(self) -> Step:
        """Where the call stands that this row answers."""
        return Step(**{name: getattr(self, name) for name in Step.model_fields})

    def message(self) -> Message:
        """Write the reply as an assistant message; only for a row without an error."""
        text = json.dumps(self.verdict, ensure_ascii=False) if self.verdict is not None else self.text or ""
        address = f"{self.run}_{self.iteration}_{self.group}_{self.sample}_{self.step}"
        calls = tuple(
            ToolCall(id=call.id or f"call_{address}_{ordinal}", name=call.name, arguments=call.arguments)
            for ordinal, call in enumerate(self.tool_calls or ())
        )
        return Message(role="assistant", content=text, tool_calls=calls)


class Script(Strict):
    """The replies of a scripted file."""

    replies: tuple[Row, ...]

    @model_validator(mode="after")
    def _addresses_differ(self) -> "Script":
        seen: dict[tuple[Step, str | None], int] = {}
        for ordinal, row in enumerate(self.replies):
            first = seen.setdefault((row.address, row.when), ordinal)
            if first != ordinal:
                raise ValueError(f"replies[{first}] and replies[{ordinal}] both answer {_said(row.address)}; keep one")
        return self

    @classmethod
    def read(cls, path: Path) -> "Script":
        """Read the file.

        Raises:
            InvalidRequest: It is no such file; the message names file and row.
        """
        value = read_yaml(path, "the scripted file")
        if not isinstance(value, dict):
            raise InvalidRequest(f"the scripted file {str(path)!r} holds no mapping; write `replies:` and a list of rows under it")
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InvalidRequest(f"the scripted file {str(path)!r}: {explain(error)}") from None


class Scripted:
    """Answers from a script, the same at every retry and replay."""

    def __init__(self, script: Script) -> None:
        self._rows: dict[Step, list[Row]] = {}
        for row in sorted(script.replies, key=lambda row: row.when is None):
            self._rows.setdefault(row.address, []).append(row)

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Return the row at the request's step, after its delay."""
        rows, model = self._rows.get(request.step, []), request.spec.id
        row = next((each for each in rows if each.when is None or _holds(request, each.when)), None)
        if row is None:
            raise ModelFault("config", f"the scripted file has no reply for {_said(request.step)}; add a row for it", model=model)
        await asyncio.sleep(row.delay)
        if row.error is not None:
            error = row.error
            raise ModelFault(error.kind, error.message, model=model, status=error.status, retry_after=error.retry_after)
        if row.text is not None and not row.text.strip() and not row.tool_calls:
            raise ModelFault("malformed_response", "the reply is empty", model=model)
        return ModelReply(row.message(), Usage(**dict(row.usage), calls=1))


def _holds(request: ModelRequest, text: str) -> bool:
    """Tell whether a text stands in what is asked, as it is or as JSON writes it."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    contents = [_CODES.sub("", message.content) for message in request.messages]
    return any(text in content or written in content for content in contents)


def _said(step: Step) -> str:
    return ", ".join(f"{name} {value}" for name, value in step.model_dump().items())
