"""Runs built from messages; of a trace the conversation that its calls recorded, each with the history before it, its tools and errors."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pydantic import JsonValue

from gradeloop.contract.transcript import (
    EMPTY_MESSAGE,
    TRANSCRIPTS,
    AgentRun,
    ErrorPart,
    OtherPart,
    ReasoningPart,
    RunMessage,
    RunPart,
    RunTranscript,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gradeloop.transcripts.json_access import Json, UnreadableMessage, dict_of, first_of, inside, json_within, structured, without
from gradeloop.transcripts.message_forms import build_message, is_message, parse_messages
from gradeloop.transcripts.parts import read_call, read_result

IDS = ("id", "agent_run_id", "run_id", "thread_id")
"""The keys that may hold a run's id; the first that is there counts."""


def id_of(value: dict[str, Json], name: str, *keys: str) -> str:
    """Return the id that a run has of its own, else its name by file and place."""
    return next(
        (str(value[key])[:200] for key in keys or IDS if value.get(key) not in (None, "") and not isinstance(value[key], dict)), name
    )


def build_run(name: str, transcripts: Sequence[RunTranscript], metadata: dict[str, JsonValue]) -> AgentRun:
    """Return a run; raise UnreadableMessage where nothing is said in it, or it breaks a limit."""
    if len(transcripts) > TRANSCRIPTS:
        why = f"the run {name!r} has {len(transcripts):,} conversations of which none goes on with another, {TRANSCRIPTS:,} at most"
        raise UnreadableMessage(f"{why}; make them runs of their own: for spans, a trace for each")
    with inside():
        run = AgentRun(id=name, transcripts=tuple(transcripts), metadata=metadata)
    messages = [message for transcript in run.transcripts for message in transcript.messages]
    if not any(message.says_something for message in messages):
        raise UnreadableMessage(f"nothing is said in the run {name!r}: its {len(messages)} messages are empty; nothing can be judged")
    if all(isinstance(part, ErrorPart) for message in messages if message.says_something for part in message.records()):
        errors = (part.text[:200] for message in messages for part in message.records() if isinstance(part, ErrorPart))
        raise UnreadableMessage(f"the run {name!r} holds nothing but errors: {next(errors, 'unknown')}; nothing can be judged")
    return run


_NOT_RECORDED = {"", "{}", "[]", "null", "__REDACTED__", "<fully masked due to failed mask function>"}
"""The texts that stand for content which was not recorded: OpenInference's, and Langfuse's where a mask fails."""


def build_trace(name: str, transcripts: Sequence[RunTranscript], metadata: dict[str, JsonValue], cure: str) -> AgentRun:
    """Return the run of a trace, whose writer may have been told to record no content.

    Raises:
        UnreadableMessage: Nothing but roles, and names of tools, is recorded of it; or as `build_run` says.
    """
    messages = [message for transcript in transcripts for message in transcript.messages]
    parts = [part for message in messages for part in message.records()]
    if not has_content(messages) and not all(isinstance(part, ErrorPart) for part in parts):
        why = f"nothing of what was said in the trace {name!r} is recorded: its {len(parts)} records hold no text, arguments or results"
        raise UnreadableMessage(f"{why}; {cure}")
    return build_run(name, transcripts, metadata)


def has_content(messages: Sequence[RunMessage]) -> bool:
    """Return whether messages say what was said, not only that something was."""
    return any(_has_content(part) for message in messages for part in message.records())


def _has_content(part: RunPart) -> bool:
    """Return whether a part holds more than that it was there; an error does not say what was said."""
    if isinstance(part, ErrorPart) or (isinstance(part, OtherPart) and part.kind == EMPTY_MESSAGE):
        return False
    if isinstance(part, ToolCallPart):
        return bool(part.invalid or any(str(value) not in _NOT_RECORDED for value in part.arguments.values()))
    return part.type == "file" or str(part.record()["text"]).strip() not in _NOT_RECORDED


def refuse_unrecorded_calls(name: str, calls: Sequence[str], cure: str) -> None:
    """Refuse a trace of which tools are recorded, but not what its calls of models, by their names, were sent and answered."""
    if calls:
        called = ", ".join(sorted(set(calls))[:5])
        raise UnreadableMessage(f"nothing of what the trace {name!r} sent to models, or they answered, is recorded ({called}); {cure}")


_Run = TypeVar("_Run", AgentRun, AgentRun | None)


def run_or_error(make: Callable[[], _Run]) -> _Run | UnreadableMessage:
    """Return a run, or why it cannot be read, so that the others of a file still can."""
    try:
        return make()
    except UnreadableMessage as error:
        return error


_Part = TypeVar("_Part")


def run_of_each(parts: Sequence[_Part], name: str, read: Callable[[_Part, str], AgentRun]) -> Iterator[AgentRun | UnreadableMessage]:
    """Yield the run of each part of a file, or why it cannot be read; of several each has its number in its name."""
    for number, part in enumerate(parts, 1):
        yield run_or_error(partial(read, part, name if len(parts) == 1 else f"{name}-{number}"))


def run_of(name: str, messages: Sequence[RunMessage], metadata: dict[str, JsonValue] | None = None) -> AgentRun:
    """Return a run of one conversation; raise UnreadableMessage where there are no messages, or nothing is said in them."""
    return build_run(name, [transcript_of(messages)], metadata or {})


def transcript_of(messages: Sequence[RunMessage], **fields: object) -> RunTranscript:
    """Return a transcript; raise UnreadableMessage where there are no messages, or it breaks a limit."""
    with inside():
        return RunTranscript.model_validate({"messages": tuple(require_messages(messages)), **fields})


def require_messages(messages: Sequence[RunMessage], *path: int | str) -> Sequence[RunMessage]:
    """Return the messages, of which there is one at least."""
    if not messages:
        raise UnreadableMessage("there are no messages; nothing can be judged", *path)
    return messages


def other_message(role: str, kind: str, value: Json) -> RunMessage:
    """Return a message that keeps a value as its JSON."""
    return RunMessage.model_validate({"role": role, "parts": (OtherPart(kind=kind, value=value),)})


def error_message(text: str, name: str | None = None) -> RunMessage:
    """Return a message that says that the run met an error."""
    return RunMessage(role="system", parts=(ErrorPart(name=name, text=text or "an error without a message"),))


_TEXT_KEYS = ("text", "content", "question", "query", "prompt", "input", "output", "answer", "response", "result", "completion", "message")


def exchange(given: Json, answered: Json) -> list[RunMessage]:
    """Return the messages of a request and its reply, in whatever shape a trace keeps them; what is not a message is kept as its JSON.

    Either may be JSON in a text, as exports write it. A text within them was said, whatever it looks like.
    """
    return [*read_side(_unpacked(given), "user", "input"), *read_side(_unpacked(answered), "assistant", "output")]


def _unpacked(value: Json) -> Json:
    """Return the messages that a text holds as JSON; any other value as it is."""
    found = structured(value)
    rows = found if isinstance(found, list) else [found]
    known = ("messages", "choices", "generations", "candidates", "contents", "input", "output")
    readable = all(isinstance(row, dict) and (is_message(row) or any(isinstance(row.get(key), list) for key in known)) for row in rows)
    return found if rows and readable else value


QUESTIONS = ("instruction", "question", "query", "user_input", "request", "inputs")
"""The keys of a text that is asked, where there is no prompt."""

ANSWERS = (
    *("completion", "response", "actual_output", "model_output", "model_response", "prediction", "generation", "generated_text"),
    *("output_text", "output", "outputs", "final_answer", "assistant", "answer", "result"),
)
"""The keys of an answer, of which the first that is there counts: those that may also name a data set's reference stand last."""

_OF_ANYTHING = ("completion", "response", "output", "outputs", "answer")
"""The keys whose answer may be any JSON; the answer under the others is a string."""


def with_answer(messages: Sequence[RunMessage], value: dict[str, Json], kind: str = "") -> tuple[list[RunMessage], str | None]:
    """Return messages with the answer that stands beside them, where they end without one, and the key that was read."""
    key = next((key for key in ANSWERS if (said := value.get(key)) and (key in _OF_ANYTHING or isinstance(said, str))), None)
    if key is None or (messages and messages[-1].is_answer):
        return list(messages), None
    with inside(key):
        return [*messages, *read_side(value[key], "assistant", kind or key)], key


def read_side(value: Json, role: str, kind: str) -> list[RunMessage]:
    """Return the messages of a request or of a reply; a text has the given role, and what is not a message is kept as its JSON."""
    if value in (None, "", [], {}):
        return []
    if isinstance(value, str):
        return [build_message(role, [TextPart(text=value)])]
    if isinstance(value, list):
        return _read_list(value, role, kind)
    return _read_object(value, role, kind) if isinstance(value, dict) else [other_message(role, kind, value)]


# The tests go from the most exact to the least: messages, lists that hold messages, the parts of a single
# message. A list that is none of these is kept as its JSON. A guess at its items could show data as something
# that was said.
def _read_list(value: list[Json], role: str, kind: str) -> list[RunMessage]:
    if all(is_message(item) for item in value):
        return parse_messages(value)
    if all(isinstance(item, list) for item in value):  # LangChain's batches of one
        return [message for item in value for message in read_side(item, role, kind)]
    if all(isinstance(item, dict) and ({"message", "generation_info", "text"} & set(item)) for item in value):  # generations and choices
        return [message for item in value for message in read_side(item.get("message") or item.get("text"), role, kind)]
    if all(isinstance(item, dict) and isinstance(item.get("type"), str) for item in value):  # the parts of one message
        return parse_messages([{"role": role, "content": value}])
    return [other_message(role, kind, value)]


_SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction")
"""The keys of a system prompt beside messages."""


def _read_object(value: dict[str, Json], role: str, kind: str) -> list[RunMessage]:
    if is_message(value):
        return parse_messages([value])
    if isinstance(inner := value.get("kwargs"), dict) and value.get("lc") is not None:
        return read_side(inner, role, kind)
    config = dict_of(value.get("config"))
    system = first_of(value, *_SYSTEM) or first_of(config, *_SYSTEM)
    system = system.get("parts", system) if isinstance(system, dict) else system
    before = parse_messages([{"role": "system", "content": system}]) if system else []
    if isinstance(candidates := value.get("candidates"), list):
        return [*before, *(message for item in candidates for message in read_side(dict_of(item).get("content"), role, kind))]
    lists = (value[key] for key in ("messages", "choices", "generations", "contents") if isinstance(value.get(key), list) and value[key])
    if isinstance(asked := value.get("input"), str) and "model" in value:  # a request of Responses
        value = {**value, "input": {"role": role, "content": asked}}
    more = (value[key] for key in ("input", "output", "message", "response", "result") if isinstance(value.get(key), (dict, list)))
    if (inner := next(lists, None) or next(filter(None, more), None)) is not None:
        return [*before, *read_side(inner, role, kind)]
    prompts = [text for text in value.get("prompts") or () if isinstance(text, str)] if isinstance(value.get("prompts"), list) else []
    # A text counts as said only where it is all that the object holds. Beside other fields nobody can tell which
    # of them were said. So an object without `prompts` is kept as its JSON.
    filled = [(key, inner) for key, inner in value.items() if inner not in (None, "", [], {})]
    if len(filled) == 1 and filled[0][0] in _TEXT_KEYS and isinstance(filled[0][1], str):
        return read_side(filled[0][1], role, kind)
    return [
        *before,
        *([RunMessage.model_validate({"role": role, "content": text}) for text in prompts] or [other_message(role, kind, value)]),
    ]


@dataclass
class GrowingHistory:
    """Messages that grow from call to call."""

    messages: list[RunMessage]
    keys: list[str]
    """The content of its messages, those of the system apart: some calls have a system prompt that the trace's own messages lack."""
    system: list[str]


def key_of(message: RunMessage) -> str:
    """Return what a message says, by which the same message in two histories is known."""
    return json.dumps([message.role, *(part.record() for part in message.records())], sort_keys=True, ensure_ascii=False)


def _said(message: RunMessage) -> str:
    """Return what a message says, its reasoning apart: many clients do not send that back with the next call."""
    records = [part.record() for part in message.records() if not isinstance(part, ReasoningPart)]
    return json.dumps([message.role, *records], sort_keys=True, ensure_ascii=False) if records else key_of(message)


# Every call of a model is sent the whole conversation so far, so that a trace of n calls holds its beginning n times. A
# history is one with another where one is the beginning of the other, message by message; what clients leave out when
# they send a conversation back (the system prompt, reasoning) does not count in that. The longer one is kept, with what
# only the shorter one has. Were they compared whole, each call of a client that drops reasoning would be a conversation
# of its own; were any overlap enough, two subagents with one prompt would be one.
def merge_histories(histories: Sequence[Sequence[RunMessage]]) -> list[list[RunMessage]]:
    """Return the conversations that calls of models recorded, where a later call repeats what was said before it.

    A history that begins with a whole earlier one continues it, one that an earlier one begins with says nothing new, and any other is a
    conversation of its own. One of two may lack the system prompt, or the reasoning of its answers, and one whose messages all stand in
    another in their order, as the question and the answer of an agent do in the calls below it, is not a conversation of its own.
    """
    found: list[GrowingHistory] = []
    begun: dict[str, list[GrowingHistory]] = {}
    for history in histories:
        made = GrowingHistory(
            list(history),
            [_said(message) for message in history if message.role != "system"],
            [key_of(message) for message in history if message.role == "system"],
        )
        near = [*begun.get(made.keys[0], ()), *begun.get(_NOTHING, ())] if made.keys else found
        if not any(_joined(known, made) for known in near):
            found.append(made)
            begun.setdefault(made.keys[0] if made.keys else _NOTHING, []).append(made)
    holders: dict[str, list[GrowingHistory]] = {}
    for one in found:
        for key in set(one.keys):
            holders.setdefault(key, []).append(one)
    near_of = {id(one): holders[one.keys[0]] if one.keys else found for one in found}
    return [one.messages for one in found if not any(_holds(other, one) for other in near_of[id(one)] if other is not one)]


_NOTHING = ""
"""The stand-in for the first message of a history without any: the key of no message."""


def _holds(whole: GrowingHistory, part: GrowingHistory) -> bool:
    """Return whether all messages of one conversation stand in a longer one, in their order."""
    if len(part.keys) >= len(whole.keys) or not set(part.system) <= set(whole.system):
        return False
    rest = iter(whole.keys)
    return all(key in rest for key in part.keys) and _thoughts(part) <= _thoughts(whole)


def _thoughts(history: GrowingHistory) -> set[str]:
    return {part.text for message in history.messages for part in message.records() if isinstance(part, ReasoningPart)}


def _joined(known: GrowingHistory, made: GrowingHistory) -> bool:
    """Return whether two histories are one, after the known one has taken what the other has more."""
    one, other = set(known.system), set(made.system)
    grows, repeats = made.keys[: len(known.keys)] == known.keys, known.keys[: len(made.keys)] == made.keys
    if not (grows or repeats) or not (one <= other or other <= one):
        return False
    longer, shorter = (made, known) if grows and len(made.keys) >= len(known.keys) else (known, made)
    missing = [message for message in shorter.messages if message.role == "system" and key_of(message) not in set(longer.system)]
    known.messages, known.keys = [*missing, *_with_reasoning(longer, shorter)], longer.keys
    known.system = shorter.system if missing else longer.system
    return True


def _with_reasoning(longer: GrowingHistory, shorter: GrowingHistory) -> Iterator[RunMessage]:
    """Yield the messages of a history, each as the shorter one has it where only that holds its reasoning."""
    spoken = (message for message in shorter.messages if message.role != "system")
    for message in longer.messages:
        twin = next(spoken, None) if message.role != "system" else None
        yield twin if twin is not None and len(twin.records()) > len(message.records()) else message


def beside_messages(value: Json) -> dict[str, JsonValue]:
    """Return what an object has beside the messages that `exchange` reads of it; nothing for any other value."""
    fields = dict_of(value)
    if is_message(fields) or not any(isinstance(fields.get(key), list) for key in ("messages", "choices", "generations", "contents")):
        return {}
    return without(fields, "messages", "choices", "generations", "contents")


DEPTH = 100
"""The most spans above one that are looked at: far more than agents nest, and few enough for 100,000 spans in one another."""


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
    # An exception climbs through the spans that contain it, and each records it. Only the lowest one is kept,
    # known by the first line, since the spans above add their own stacks. Spans whose parents form a circle
    # have no lowest one; then the first is kept, or the error would be lost.
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
    """Its result, or why it failed; None where neither is recorded."""
    failed: bool = False
    call: str | None = None
    """The id of the call in the conversation, where that is recorded."""

    def text(self) -> str:
        """Return its arguments as a record shows them, without the wrapper of a decorated function's."""
        given = dict_of(written := json_within(self.arguments))
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


@dataclass(frozen=True)
class TraceStep:
    """A span, an observation or a run of a trace, as far as it stands beside the conversations: a tool's call, or an error."""

    id: str
    name: str
    parent: str = ""
    """The id of the step that it is below."""
    error: str | None = None
    """The reason why it failed."""
    tool: ToolRecord | None = None


# A trace records a tool's call twice: in the conversation, where the model made it, and as a step of its own, often
# under another id and with wrapped arguments. Each step takes the first call of its tool that no step has taken yet: by
# the call's id, else by the arguments, else by the result, else in order. A call is taken once, so that the same call
# made twice is two records; without that, a retried tool would be shown once too often, or a failure be marked on the
# wrong result.
def join_steps(steps: Sequence[TraceStep], conversations: Sequence[Sequence[RunMessage]], *, in_order: bool) -> list[list[RunMessage]]:
    """Return the conversations of a trace; the calls and results of tools that none of them has, and the errors, end the first.

    A result that a conversation has is one that failed where the tool's own record says so. An error that a tool returned, or that a step
    below has, is not said again.

    `in_order`: whether a record that names no call, and whose arguments are those of none, is the next call of its tool, as where exporters
    wrap arguments and results.
    """
    tools = [step.tool for step in steps if step.tool]
    spoken = _Spoken(conversations, {tool.call for tool in tools if tool.call})
    failed: set[str] = set()
    unseen: list[RunMessage] = []
    for tool in tools:
        known = tool.call if tool.call in spoken.calls or tool.call in spoken.results else None
        call = known or spoken.mate(tool, in_order=in_order) or tool.call or tool.id
        spoken.used.add(call)
        failed |= {call} if tool.failed and call in spoken.results else set()
        unseen += _messages_of(tool, call, spoken)
    lost = [(step, step.error) for step in steps if step.error and not (step.tool and step.tool.output == step.error)]
    own = not_repeated([(step.id, text) for step, text in lost], {step.id: step.parent for step in steps if step.id})
    errors = [error_message(text, step.name) for (step, text), is_own in zip(lost, own, strict=True) if is_own]
    joined = [with_failures(messages, failed) for messages in conversations]
    return [[*joined[0], *unseen, *errors], *joined[1:]]


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
