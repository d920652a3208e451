"""What stands beside the conversations of a trace: its tools, and errors that spans repeat of those below them."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradeloop.contract.transcript import RunMessage, RunPart, ToolCallPart, ToolResultPart
from gradeloop.transcripts.message_forms import build_message
from gradeloop.transcripts.parts import read_call, read_result
from gradeloop.transcripts.unreadable import Json, dict_of, embedded_json

DEPTH = 100
"""How far up a trace is looked, in spans: far more than agents nest, and few enough for a trace of 100,000 spans in one another."""


def ancestors(name: str, parents: Mapping[str, str]) -> Iterator[str]:
    """Yield the ids of the spans that one is below, the nearest first, given the id of each one's parent."""
    seen = {name}
    for _ in range(DEPTH):
        name = parents.get(name, "")
        if name not in parents or name in seen:
            return
        seen.add(name)
        yield name


def not_repeated(errors: Sequence[tuple[str, str]], parents: Mapping[str, str]) -> list[bool]:
    """Return of each error, the id of its span and its text, whether no span below that one has it, by its first line."""
    lines = [(name, text.strip().partition("\n")[0]) for name, text in errors]
    failed = {name for name, _ in lines}
    repeated = {(over, line) for name, line in lines for over in ancestors(name, parents) if over in failed}
    found = [one not in repeated for one in lines]
    kept = {line for (_, line), is_own in zip(lines, found, strict=True) if is_own}
    lost = {line: at for at, (_, line) in reversed([*enumerate(lines)]) if line not in kept}  # of spans that are within each other
    return [is_own or lost.get(line) == at for at, ((_, line), is_own) in enumerate(zip(lines, found, strict=True))]


@dataclass(frozen=True)
class ToolRecord:
    """A call of a tool as a trace records it, apart from the conversation."""

    id: str
    """Its own id, of the span or the run."""
    name: str
    arguments: Json
    output: Json = None
    """What it returned, or why it failed; None where neither is recorded."""
    failed: bool = False
    call: str | None = None
    """The id of the call in the conversation, where that is recorded."""

    def text(self) -> str:
        """Return its arguments as a record shows them, without the wrapper of a decorated function's."""
        written = self.arguments
        if isinstance(written, str):
            try:
                written = embedded_json(written)
            except ValueError:
                written = self.arguments
        given = dict_of(written)
        plain = given["kwargs"] if set(given) == {"args", "kwargs"} and not given["args"] else written
        return str(read_call(self.id, self.name, plain).record()["text"])


class _Spoken:
    """The calls and results of the conversations of a trace."""

    def __init__(self, conversations: Sequence[Sequence[RunMessage]], used: set[str]) -> None:
        parts = [part for messages in conversations for message in messages for part in message.records()]
        self.results = {part.call: part for part in parts if isinstance(part, ToolResultPart)}
        self.calls: dict[str, ToolCallPart] = {}
        self.used = used
        """The calls that a tool's record is of."""
        self._named: dict[tuple[str, ...], deque[str]] = {}
        for part in parts:
            if isinstance(part, ToolCallPart) and part.call not in self.calls:
                self.calls[part.call] = part
                answer = ("result", self.results[part.call].text) if part.call in self.results else ("waiting",)
                for words in (("called",), ("arguments", str(part.record()["text"])), answer):  # what it may be known by, in order
                    self._named.setdefault((part.name, *words), deque()).append(part.call)

    def _first(self, *words: str) -> str | None:
        """Return the first call that is known by this, and that no record is of yet."""
        calls = self._named.get(words, deque())
        while calls and calls[0] in self.used:
            calls.popleft()
        return calls[0] if calls else None

    def mate(self, tool: ToolRecord, *, in_order: bool) -> str | None:
        """Return the id of the call that a record is of: by its arguments; where it names none, by its result or its name, too."""
        same = self._first(tool.name, "arguments", tool.text())
        if same is not None or tool.call is not None:  # whose id is another one in the conversation
            return same
        shown = (part.text for part in read_result(tool.id, tool.output) if isinstance(part, ToolResultPart))
        gave = next((call for text in shown if (call := self._first(tool.name, "result", text))), None)
        return gave or self._first(tool.name, "called" if in_order or tool.arguments in (None, "", {}) else "waiting")


def join_tools(
    tools: Sequence[ToolRecord], conversations: Sequence[Sequence[RunMessage]], *, in_order: bool
) -> tuple[list[list[RunMessage]], list[RunMessage]]:
    """Return the conversations of a trace, and the calls and results of its tools that none of them has.

    A result that a conversation has is one that failed where the tool's own record says so.

    Args:
        tools: The records of its tools, in the order in which they were called.
        conversations: Its conversations.
        in_order: Whether a record that names no call, and whose arguments are those of none, is the next call of its tool, as where
            exporters wrap arguments and results.
    """
    spoken = _Spoken(conversations, {tool.call for tool in tools if tool.call})
    failed: set[str] = set()
    unseen: list[RunMessage] = []
    for tool in tools:
        known = tool.call if tool.call in spoken.calls or tool.call in spoken.results else None
        call = known or spoken.mate(tool, in_order=in_order) or tool.call or tool.id
        spoken.used.add(call)
        if call in spoken.results:
            failed |= {call} if tool.failed else set()
        unseen += _messages_of(tool, call, spoken)
    return [with_failures(messages, failed) for messages in conversations], unseen


def _messages_of(tool: ToolRecord, call: str, spoken: _Spoken) -> Iterator[RunMessage]:
    """Yield the call of a tool, and its result, where the conversations lack them."""
    if call not in spoken.calls:
        yield build_message("assistant", [read_call(call, tool.name, tool.arguments)])
    if call not in spoken.results and (tool.output is not None or tool.failed):
        yield build_message("tool", [*read_result(call, tool.output, name=tool.name, failed=tool.failed)])


def with_failures(messages: Sequence[RunMessage], failed: set[str]) -> list[RunMessage]:
    """Return messages whose results of these calls say that they failed."""
    marked = list[RunMessage]()
    for message in messages:
        parts = [
            part.model_copy(update={"is_error": True}) if isinstance(part, ToolResultPart) and part.call in failed else part
            for part in message.records()
        ]
        same = parts == [*message.records()]
        marked.append(message if same else build_message(message.role, parts, metadata=message.metadata))
    return marked


def sums_up(history: Sequence[RunMessage], below: Sequence[Sequence[RunMessage]]) -> bool:
    """Return whether a span says nothing but what the calls below it say: the question, and all that came of it in one message."""
    if not below or len(history[-1].records()) == 1:
        return False
    said = {_words(part) for messages in below for message in messages for part in message.records()}
    return all(_words(part) in said for message in history for part in message.records())


def _words(part: RunPart) -> tuple[str, ...]:
    """Return what a part says; of a result not whether it failed, which some calls leave out."""
    return (part.type, part.call, part.text) if isinstance(part, ToolResultPart) else tuple(map(str, part.record().values()))
