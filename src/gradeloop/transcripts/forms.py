"""Messages and runs in the shapes that providers and frameworks write."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.contract.messages import ToolCall
from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.errors import explain
from gradeloop.text import clip

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
"""Parts that say something, and where."""
_THOUGHTS = {"thinking": "thinking", "reasoning": "reasoning"}
_READ = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "metadata", "function", "error", "type"),
    *("id", "status", "function_call", "source", "model", "refusal", "invalid"),
}


class UnreadableMessage(ValueError):
    """A message that cannot be read; the path says where in it."""

    def __init__(self, why: str, *path: int | str) -> None:
        super().__init__(why)
        self.path = path


def parse_messages(value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    """Read a list of messages, or of the items of OpenAI's Responses.

    Raises:
        Unreadable: One of them is none; its path says which.
    """
    if not isinstance(value, list):
        raise UnreadableMessage(f"{clip(str(value))} is no list of messages")
    found: list[RunMessage] = []
    for at, each in enumerate(value):
        try:
            found += _read(each)
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), at, *error.path) from None
        except ValidationError as error:
            raise UnreadableMessage(explain(error), at) from None
    return found


def is_message(value: object) -> bool:
    """True for what is a message, or an item of OpenAI's Responses."""
    return isinstance(value, Mapping) and (("role" in value and "messages" not in value) or str(value.get("type")) in _ITEMS)


def _read(value: Any) -> Iterator[RunMessage]:  # noqa: ANN401 - raw input of any shape
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is no message; write an object with role and content")
    kind = str(value.get("type"))
    if kind in _ITEMS and "role" not in value:
        yield _ITEMS[kind](value)
        return
    role = ROLES.get(str(value.get("role")))
    if role is None:
        raise UnreadableMessage(
            f"the role is {clip(str(value.get('role')))}; known: {', '.join(ROLES)}", *(["role"] if "role" in value else [])
        )
    results, rest = _results(value.get("content"))
    yield from results
    if results and not rest:
        return
    said, thought, calls = _content(rest if results else value.get("content"))
    thought = "\n".join(part for part in (_text(value.get("reasoning") or value.get("reasoning_content")), thought) if part)
    called = value.get("tool_calls") or []
    if not isinstance(called, list):
        raise UnreadableMessage(f"tool_calls is {clip(str(called))}; write a list", "tool_calls")
    calls += [_call(each, at) for at, each in enumerate(called)]
    if isinstance(value.get("function_call"), dict):
        calls.append(_call({"id": "call", "function": value["function_call"]}, 0))
    said += _error(value.get("error"))
    name = value.get("name") or value.get("function")
    yield RunMessage.model_validate(
        {
            "role": role,
            "content": said,
            "reasoning": thought or None,
            "name": name if isinstance(name, str) else None,
            "tool_calls": tuple(calls),
            "tool_call_id": value.get("tool_call_id"),
            "metadata": _metadata(value),
        }
    )


def _metadata(value: dict[str, Any]) -> dict[str, JsonValue]:
    told = value.get("metadata")
    if told is not None and not isinstance(told, dict):
        raise UnreadableMessage(f"metadata is {clip(str(told))}; write an object", "metadata")
    unread = {key: each for key, each in value.items() if key not in _READ and each is not None}
    return {**unread, **(told or {})}


def _content(content: Any) -> tuple[str, str, list[ToolCall]]:  # noqa: ANN401 - raw input of any shape
    """Return what a message says, what it thought, and which tools it calls."""
    if content is None or isinstance(content, str):
        return content or "", "", []
    if not isinstance(content, list):
        raise UnreadableMessage(f"the content is {clip(str(content))}; write text, or a list of parts", "content")
    said: list[str] = []
    thought: list[str] = []
    calls: list[ToolCall] = []
    for at, part in enumerate(content):
        if isinstance(part, str):
            said.append(part)
            continue
        if not isinstance(part, dict):
            raise UnreadableMessage(f"{clip(str(part))} is no part of a message", "content", at)
        kind = str(part.get("type"))
        if kind in _TEXTS:
            said.append(_text(part.get(_TEXTS[kind])))
        elif kind in _THOUGHTS:
            thought.append(_text(part.get(_THOUGHTS[kind]) or part.get("summary")))
        elif kind == "tool_use":
            calls.append(_call({"id": part.get("id"), "function": part.get("name"), "arguments": part.get("input")}, at))
        else:
            said.append(f"[{kind}]")  # an image, a sound, a document: what a judge that reads text is told of it
    return "\n".join(said), "\n".join(each for each in thought if each), calls


def _results(content: Any) -> tuple[list[RunMessage], list[Any]]:  # noqa: ANN401 - raw input of any shape
    """Return the tools' results that stand in a user's message, as Anthropic has it, and the rest of the message."""
    parts = content if isinstance(content, list) else []
    results = [part for part in parts if isinstance(part, dict) and part.get("type") == "tool_result"]
    read = [
        RunMessage(
            role="tool",
            content=_content(result.get("content"))[0],
            tool_call_id=str(result.get("tool_use_id") or "unknown"),
            metadata={"is_error": True} if result.get("is_error") else {},
        )
        for result in results
    ]
    return read, [part for part in parts if part not in results]


def _call(value: Any, at: int) -> ToolCall:  # noqa: ANN401 - raw input of any shape
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is no tool call", "tool_calls", at)
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    name = inner.get("name") or value.get("function")
    arguments = inner.get("arguments")
    if not isinstance(name, str) or not name:
        raise UnreadableMessage("a tool call names no tool; write its name", "tool_calls", at)
    identifier = str(value.get("id") or value.get("call_id") or f"call_{at}")
    parsed = _arguments(arguments)
    if isinstance(parsed, dict):
        return ToolCall(id=identifier, name=name, arguments=parsed)
    return ToolCall(id=identifier, name=name, invalid=arguments if isinstance(arguments, str) else json.dumps(arguments))


def _arguments(arguments: Any) -> object:  # noqa: ANN401 - raw input of any shape
    if arguments in (None, ""):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def _text(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_text(each.get("text") if isinstance(each, dict) else each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _error(value: Any) -> str:  # noqa: ANN401 - raw input of any shape
    """Return a tool's error as Inspect and Docent tell it beside the result."""
    if not value:
        return ""
    told = value.get("message") if isinstance(value, dict) else value
    return f"\n[error] {_text(told)}"


def _called(item: dict[str, Any]) -> RunMessage:
    return RunMessage(role="assistant", tool_calls=(_call(item | {"id": item.get("call_id") or item.get("id")}, 0),))


def _returned(item: dict[str, Any]) -> RunMessage:
    return RunMessage(role="tool", content=_content(item.get("output"))[0], tool_call_id=str(item.get("call_id") or "unknown"))


def _reasoned(item: dict[str, Any]) -> RunMessage:
    return RunMessage(role="assistant", reasoning=_text(item.get("summary") or item.get("content")) or "[hidden]")


_ITEMS = {"function_call": _called, "function_call_output": _returned, "reasoning": _reasoned}
"""The items of OpenAI's Responses that have no role."""


_ATTACHMENT = "attachment://"

IDS = ("id", "agent_run_id", "run_id", "thread_id")
"""Where a run's id may stand, the first that does."""


def parse_runs(value: Any, name: str) -> Iterator[AgentRun]:  # noqa: ANN401 - raw input of any shape
    """Yield the runs of a JSON value.

    Args:
        value: A run, a list of runs, a list of messages, or an Inspect log.
        name: What a run without an id of its own is called.

    Raises:
        Unreadable: It is none; its path says where.
    """
    if isinstance(value, list) and value and not all(is_message(each) for each in value):
        for at, each in enumerate(value):
            try:
                yield from parse_runs(each, f"{name}-{at + 1}")
            except UnreadableMessage as error:
                raise UnreadableMessage(str(error), at, *error.path) from None
    elif isinstance(value, dict) and isinstance(value.get("samples"), list):
        yield from _inspect(value, name)
    else:
        yield _run(value, name)


def _run(value: Any, name: str) -> AgentRun:  # noqa: ANN401 - raw input of any shape
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is no run; write an object with messages or transcripts, or a list of messages")
    named = next((str(value[key]) for key in IDS if value.get(key) not in (None, "")), name)
    metadata = _object(value, "metadata")
    if "transcripts" in value:
        transcripts = _transcripts(value["transcripts"])
        told = {key: value[key] for key in ("name", "description") if value.get(key)}
        return _made(named, transcripts, {**told, **metadata})
    if isinstance(value.get("input"), str) and "messages" not in value:
        value = value | {"input": [{"role": "user", "content": value["input"]}]}
    key = next((each for each in ("messages", "input") if isinstance(value.get(each), list)), None)
    if key is None:
        raise UnreadableMessage(f"the run has neither transcripts nor messages; its keys: {', '.join(map(str, value)) or 'none'}")
    messages = [*_system(value.get("system") or value.get("instructions")), *_under(key, value[key]), *_output(value)]
    return _made(named, [RunTranscript.model_validate({"messages": tuple(_some(messages, key))})], metadata)


def _system(value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    """Return the system prompt that stands beside the messages, as Anthropic and OpenAI's Responses have it."""
    return parse_messages([{"role": "system", "content": value}]) if value else []


def _output(value: dict[str, Any]) -> list[RunMessage]:
    """Return what the model answered, where a request and its reply stand together."""
    given = value.get("output") if isinstance(value.get("input"), list) else None
    return _under("output", given) if isinstance(given, list) else []


def _under(key: str, value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    try:
        return parse_messages(value)
    except UnreadableMessage as error:
        raise UnreadableMessage(str(error), key, *error.path) from None


def _some(messages: list[RunMessage], key: str) -> list[RunMessage]:
    if not messages:
        raise UnreadableMessage("there are no messages; nothing can be judged", key)
    return messages


def _transcripts(value: Any) -> list[RunTranscript]:  # noqa: ANN401 - raw input of any shape
    held = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(held, list) or not held:
        raise UnreadableMessage("transcripts is no list with something in it; give at least one transcript", "transcripts")
    found = []
    for at, each in enumerate(held):
        if not isinstance(each, dict) or "messages" not in each:
            raise UnreadableMessage(f"{clip(str(each))} is no transcript; write an object with messages", "transcripts", at)
        try:
            messages = _some(_under("messages", each["messages"]), "messages")
            metadata = _object(each, "metadata")
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), "transcripts", at, *error.path) from None
        told = {"id": str(each.get("id") or ""), "name": each.get("name"), "messages": tuple(messages), "metadata": metadata}
        try:
            found.append(RunTranscript.model_validate(told))
        except ValidationError as error:
            raise UnreadableMessage(explain(error), "transcripts", at) from None
    return found


def _object(value: dict[str, Any], key: str) -> dict[str, JsonValue]:
    told = value.get(key)
    if told is not None and not isinstance(told, dict):
        raise UnreadableMessage(f"{key} is {clip(str(told))}; write an object", key)
    return told or {}


def _made(name: str, transcripts: list[RunTranscript], metadata: dict[str, JsonValue]) -> AgentRun:
    try:
        return AgentRun(id=name, transcripts=tuple(transcripts), metadata=metadata)
    except ValidationError as error:
        raise UnreadableMessage(explain(error)) from None


def _inspect(log: dict[str, Any], name: str) -> Iterator[AgentRun]:
    """Yield the samples of an Inspect log, a run each."""
    about = log.get("eval") if isinstance(log.get("eval"), dict) else {}
    task = str((about or {}).get("task") or name)
    for at, sample in enumerate(log["samples"]):
        try:
            yield parse_inspect_sample(sample, task, (about or {}).get("model"))
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), "samples", at, *error.path) from None


def parse_inspect_sample(sample: Any, task: str, model: object = None) -> AgentRun:  # noqa: ANN401 - raw input of any shape
    """Return a sample of an Inspect log as a run; its scores and target are metadata, which a judge is not shown by default.

    Raises:
        Unreadable: It is none.
    """
    if not isinstance(sample, dict) or not isinstance(sample.get("messages"), list):
        raise UnreadableMessage(f"{clip(str(sample))} is no sample of an Inspect log: it has no messages")
    attached = sample.get("attachments") if isinstance(sample.get("attachments"), dict) else {}
    messages = _some(_under("messages", _with_attachments(sample["messages"], attached or {})), "messages")
    known = {key: sample[key] for key in ("target", "scores", "epoch", "metadata") if sample.get(key) not in (None, {}, [])}
    told = known | ({"model": str(model)} if model else {}) | {"task": task}
    epoch = f"-{sample['epoch']}" if sample.get("epoch") not in (None, 1) else ""
    named = f"{task.rpartition('/')[2]}-{sample.get('id', 'sample')}{epoch}"
    return _made(named, [RunTranscript(messages=tuple(messages))], told)


def _with_attachments(value: Any, attached: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return messages with the texts that a log keeps apart."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attached.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_with_attachments(each, attached) for each in value]
    return {key: _with_attachments(each, attached) for key, each in value.items()} if isinstance(value, dict) else value


_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def line_of(text: str, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of the value at a path of keys and indexes; of the last one on the way where the path leads nowhere."""
    at = _skip(text, 0)
    for part in path:
        found = _item(text, at, part) if isinstance(part, int) else _member(text, at, part)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _after(text: str, at: int) -> int:
    """Return where the value that begins at `at` ends, and what is blank behind it."""
    return _skip(text, _DECODER.raw_decode(text, at)[1])


def _item(text: str, at: int, index: int) -> int | None:
    if text[at : at + 1] != "[":
        return None
    at = _skip(text, at + 1)
    for _ in range(index):
        at = _after(text, at)
        if text[at : at + 1] != ",":
            return None
        at = _skip(text, at + 1)
    return at if text[at : at + 1] != "]" else None


def _member(text: str, at: int, key: str) -> int | None:
    if text[at : at + 1] != "{":
        return None
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        name, end = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, end) + 1)
        if name == key:
            return value
        at = _after(text, value)
        if text[at : at + 1] != ",":
            return None
        at = _skip(text, at + 1)
    return None
