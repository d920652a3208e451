"""Replies from a file: the scripted provider, and recordings that it replays."""

import asyncio
import json
import re
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, JsonValue, NonNegativeInt, PrivateAttr, model_validator

from gradeloop.contract.base import Strict
from gradeloop.contract.messages import LogProbs, Message, ToolCall, Usage
from gradeloop.contract.provider import Endpoint, FailureKind, ModelFault, ModelReply, ModelRequest, Step
from gradeloop.errors import InvalidRequest, explained
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.verdicts import text_between_tags
from gradeloop.settings.secrets import scrubbed
from gradeloop.text import clip

if TYPE_CHECKING:
    from activities.providers import Providers

_CODES = re.compile(r"\b(verdict-)?[0-9a-f]{16,32}\b")
"""The random codes of fences and tags, which may contain any short text."""

_REPLIES: frozenset[FailureKind] = frozenset({"malformed_response", "degenerate", "refused", "truncated"})
"""Failures that are replies, and so are paid for."""


class ScriptedCall(Strict):
    """A tool call that the scripted model makes."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    id: str | None = None
    """The call's id; by default derived from the row's address."""


class ScriptedError(Strict):
    """A failure of the scripted provider."""

    kind: FailureKind
    message: str
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    retry_after: Annotated[float, Field(gt=0)] | None = None
    """Seconds."""


class ScriptedUsage(Strict):
    """Tokens that the scripted call claims to have cost; None as from a server that does not report them."""

    input: NonNegativeInt | None = 0
    cached: NonNegativeInt = 0
    cache_written: NonNegativeInt = 0
    output: NonNegativeInt | None = 0
    reasoning: NonNegativeInt = 0


class ScriptedReply(Strict):
    """One reply and its address; every part of the address but the role is 0 where it is absent."""

    role: Literal["generator", "grader"]
    run: NonNegativeInt = 0
    iteration: NonNegativeInt = 0
    group: NonNegativeInt = 0
    sample: NonNegativeInt = 0
    step: NonNegativeInt = 0
    when: Annotated[str, Field(min_length=1)] | None = None
    """The row answers only a prompt with this text; among several rows at one address the first that fits, before one without."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """The row answers only the model of this name, `judge` for `scripted:judge`; such a row comes before one without."""
    text: str | None = None
    verdict: dict[str, JsonValue] | None = None
    """The reply, as JSON text."""
    tool_calls: Annotated[tuple[ScriptedCall, ...], Field(min_length=1)] | None = None
    error: ScriptedError | None = None
    delay: Annotated[float, Field(ge=0, le=3600)] = 0
    """Seconds before the reply."""
    usage: ScriptedUsage = ScriptedUsage()
    logprobs: LogProbs | None = None
    """Log probabilities of the reply's tokens, for a call that asks for them."""
    asked: dict[str, JsonValue] | None = None
    """The prompt when the row was recorded; it plays no part."""
    failed_before: tuple[ScriptedError, ...] = ()
    """Failures that were retried when the row was recorded; they are not played."""

    @model_validator(mode="after")
    def _has_one_reply(self) -> "ScriptedReply":
        ways = ("text", "verdict", "tool_calls", "error")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1 and given != ["text", "tool_calls"]:
            raise ValueError(f"a row gives exactly one of {', '.join(ways)}; this one gives {' and '.join(given) or 'none'}")
        return self

    @property
    def address(self) -> Step:
        """The step that this row answers."""
        return Step(**{name: getattr(self, name) for name in Step.model_fields})

    def message(self) -> Message:
        """Return the reply as an assistant message; only for a row without an error."""
        text = json.dumps(self.verdict, ensure_ascii=False) if self.verdict is not None else self.text or ""
        address = f"{self.run}_{self.iteration}_{self.group}_{self.sample}_{self.step}"
        calls = tuple(
            ToolCall(id=call.id or f"call_{address}_{ordinal}", name=call.name, arguments=call.arguments)
            for ordinal, call in enumerate(self.tool_calls or ())
        )
        return Message(role="assistant", content=text, tool_calls=calls)


class Script(Strict):
    """The replies of a scripted file."""

    replies: tuple[ScriptedReply, ...]
    _file: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _addresses_differ(self) -> "Script":
        seen: dict[tuple[Step, str | None, str | None], int] = {}
        for ordinal, row in enumerate(self.replies):
            first = seen.setdefault((row.address, row.when, row.model), ordinal)
            if first != ordinal:
                raise ValueError(f"replies[{first}] and replies[{ordinal}] both answer {_describe_step(row.address)}; keep one")
        return self

    @classmethod
    def read(cls, path: Path) -> "Script":
        """Read the file; raise InvalidRequest, which names file and row, where it is not such a file."""
        value = read_yaml(path, "the scripted file")
        if not isinstance(value, dict):
            raise InvalidRequest(f"the scripted file {str(path)!r} holds no mapping; write `replies:` and a list of rows under it")
        with explained(f"the scripted file {str(path)!r}: "):
            script = cls.model_validate(value)
        script._file = path  # noqa: SLF001 - its own
        return script

    @cached_property
    def _rows(self) -> dict[Step, list[ScriptedReply]]:
        rows: dict[Step, list[ScriptedReply]] = {}
        for row in sorted(self.replies, key=lambda row: row.when is None and row.model is None):
            rows.setdefault(row.address, []).append(row)
        return rows

    def row(self, request: ModelRequest) -> ScriptedReply | None:
        """Return the row that answers a request; None where none does."""
        of_model = (row for row in self._rows.get(request.step, ()) if row.model in (None, request.spec.model))
        return next((row for row in of_model if row.when is None or _contains(request, row.when)), None)

    def describe_absence(self, request: ModelRequest) -> str:
        """Return which file has no row for a request, and the nearest row with the parts of it that do not fit."""
        name = f"the scripted file {str(self._file)!r}" if self._file else "the scripted file"
        unfit = [(list(_differences(row, request)), at) for at, row in enumerate(self.replies) if row.role == request.step.role]
        least, at = min(unfit, key=lambda found: len(found[0]), default=([], 0))
        nearest = f"; the nearest, replies[{at}], answers only {' and '.join(least)}" if least else ""
        return f"{name} has no reply for {_describe_step(request.step)}{nearest}; add a row for it"


def connect(providers: "Providers", _endpoint: Endpoint) -> "Scripted":
    """Return the adapter of the worker's script."""
    return Scripted(providers.script or Script(replies=()))


class Scripted:
    """Answers from a script, the same at every retry and replay."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Return the row at the request's step, after its delay."""
        row, model = self._script.row(request), request.spec.id
        if row is None:
            raise ModelFault("config", self._script.describe_absence(request), model=model)
        await asyncio.sleep(row.delay)
        usage = Usage(**dict(row.usage), calls=1)
        if row.error is not None:
            error, paid = row.error, usage if row.error.kind in _REPLIES else None
            raise ModelFault(error.kind, error.message, model=model, status=error.status, retry_after=error.retry_after, usage=paid)
        if row.text is not None and not row.text.strip() and not row.tool_calls:
            raise ModelFault("malformed_response", "the reply is empty", model=model, usage=usage)
        return ModelReply(row.message(), usage, row.logprobs if request.logprobs else None)


def _contains(request: ModelRequest, text: str) -> bool:
    """Return whether a text is in the prompt, as it is or as JSON writes it."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    contents = [_CODES.sub("", message.content) for message in request.messages]
    return any(text in content or written in content for content in contents)


def _differences(row: ScriptedReply, request: ModelRequest) -> Iterator[str]:
    """Yield the conditions of a row that a request does not meet."""
    yield from (f"{name} {value}" for name, value in row.address.model_dump().items() if value != getattr(request.step, name))
    if row.model not in {None, request.spec.model}:
        yield f"the model {row.model!r}"
    if row.when is not None and not _contains(request, row.when):
        yield f"a prompt with {clip(row.when)}"


def _describe_step(step: Step) -> str:
    return ", ".join(f"{name} {value}" for name, value in step.model_dump().items())


HEADER = "Exchanges with models, as `gradeloop run --record` wrote them; `gradeloop run --replay` plays them back."

Fields = dict[str, Any]


class Recording:
    """A file of exchanges, whole after each of them; where the file is removed, a new one begins."""

    def __init__(self, path: Path, secrets: Collection[str]) -> None:
        self._path = path
        self._secrets = secrets
        self._rows: dict[Step, Fields] = {}

    def reply(self, request: ModelRequest, reply: ModelReply) -> None:
        """Write a reply; its step answers with it from now on."""
        message, usage = reply.message, reply.usage
        fields: Fields = {"text": _answer(message.content, request.tag)} if message.content.strip() else {}
        if message.tool_calls:
            fields["tool_calls"] = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in message.tool_calls]
        spent = {name: getattr(usage, name) for name in ("input", "cached", "cache_written", "output", "reasoning")}
        fields |= {"logprobs": reply.logprobs.model_dump()} if reply.logprobs else {}
        self._write(request, fields | {"usage": {name: tokens for name, tokens in spent.items() if tokens}})

    def fault(self, request: ModelRequest, fault: ModelFault) -> None:
        """Write a failure; a reply that comes after it at the same step takes its place and names it."""
        facts = {"kind": fault.kind, "message": fault.message, "status": fault.status, "retry_after": fault.retry_after}
        self._write(request, {"error": {name: value for name, value in facts.items() if value}})

    def _write(self, request: ModelRequest, fields: Fields) -> None:
        if not self._path.exists():
            self._rows.clear()
        step = request.step
        earlier = self._rows.get(step, {})
        failed = [*earlier.get("failed_before", []), *([earlier["error"]] if "error" in earlier else [])]
        address = {name: value for name, value in step.model_dump().items() if value}
        row = address | fields | ({"failed_before": failed} if failed else {}) | {"asked": _prompt(request)}
        self._rows[step] = _portable(row, self._secrets)
        from ruamel.yaml import YAML  # a tenth of a second that only recorders pay

        partial, yaml = self._path.with_suffix(f"{self._path.suffix}.partial"), YAML()
        yaml.width = 100_000
        with partial.open("w", encoding="utf-8") as file:
            file.write(f"# {HEADER}\n")
            yaml.dump({"replies": list(self._rows.values())}, file)
        partial.replace(self._path)


def _answer(text: str, tag: str | None) -> str:
    """Return an answer without tags of its own call's: another run has others, and the scripted provider needs none."""
    try:
        return text_between_tags(text, tag).strip() if tag else text
    except ValueError:
        return text


def _prompt(request: ModelRequest) -> Fields:
    messages = [message.model_dump(mode="json", exclude={"vendor"}) for message in request.messages]
    return {"model": request.spec.id, "system": request.system, "messages": messages, "tools": [tool.name for tool in request.tools]}


def _portable(value: Any, secrets: Collection[str]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a value without keys, its texts of several lines written as blocks."""
    if isinstance(value, dict):
        return {key: _portable(element, secrets) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(element, secrets) for element in value]
    if not isinstance(value, str):
        return value
    from ruamel.yaml.scalarstring import LiteralScalarString  # as above

    text = scrubbed(value, secrets)
    return LiteralScalarString(text) if "\n" in text.strip("\n") else text
