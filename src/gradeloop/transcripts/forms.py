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
"""The types of a message's parts that hold text, and the key that has it."""

_THOUGHTS = {"thinking": "thinking", "reasoning": "reasoning"}
"""The types of parts that hold what the model thought, and the key that has it."""

_READ = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "metadata", "function", "error", "type"),
    *("id", "status", "function_call", "source", "model", "refusal", "invalid"),
}
"""The keys of a message that are read; all others become metadata."""


class UnreadableMessage(ValueError):
    """A message or run cannot be read; the path leads to the value that is wrong."""

    def __init__(self, why: str, *path: int | str) -> None:
        super().__init__(why)
        self.path = path


def parse_messages(value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    """Parse a list of messages, or of the items of OpenAI's Responses.

    Raises:
        UnreadableMessage: An item is no message; the error's path leads to it.
    """
    if not isinstance(value, list):
        raise UnreadableMessage(f"{clip(str(value))} is no list of messages")
    messages: list[RunMessage] = []
    for at, item in enumerate(value):
        try:
            messages += _parse_message(item)
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), at, *error.path) from None
        except ValidationError as error:
            raise UnreadableMessage(explain(error), at) from None
    return messages


def is_message(value: object) -> bool:
    """Return whether a value is a message, or an item of OpenAI's Responses."""
    return isinstance(value, Mapping) and (("role" in value and "messages" not in value) or str(value.get("type")) in _ITEMS)


def _parse_message(value: Any) -> Iterator[RunMessage]:  # noqa: ANN401 - raw input of any shape
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
    content, thought, calls = _parse_content(rest if results else value.get("content"))
    thought = "\n".join(part for part in (_text(value.get("reasoning") or value.get("reasoning_content")), thought) if part)
    tool_calls = value.get("tool_calls") or []
    if not isinstance(tool_calls, list):
        raise UnreadableMessage(f"tool_calls is {clip(str(tool_calls))}; write a list", "tool_calls")
    calls += [_parse_call(call, at) for at, call in enumerate(tool_calls)]
    if isinstance(value.get("function_call"), dict):
        calls.append(_parse_call({"id": "call", "function": value["function_call"]}, 0))
    if error := value.get("error"):  # a tool's error, which Inspect and Docent write beside the result
        content += f"\n[error] {_text(error.get('message') if isinstance(error, dict) else error)}"
    name = value.get("name") or value.get("function")
    yield RunMessage.model_validate(
        {
            "role": role,
            "content": content,
            "reasoning": thought or None,
            "name": name if isinstance(name, str) else None,
            "tool_calls": tuple(calls),
            "tool_call_id": value.get("tool_call_id"),
            "metadata": _metadata(value),
        }
    )


def _metadata(value: dict[str, Any]) -> dict[str, JsonValue]:
    unread = {key: inner for key, inner in value.items() if key not in _READ and inner is not None}
    return {**unread, **_object(value, "metadata")}


def _parse_content(content: Any) -> tuple[str, str, list[ToolCall]]:  # noqa: ANN401 - raw input of any shape
    """Return what a message says, what it thought, and which tools it calls."""
    if content is None or isinstance(content, str):
        return content or "", "", []
    if not isinstance(content, list):
        raise UnreadableMessage(f"the content is {clip(str(content))}; write text, or a list of parts", "content")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for at, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise UnreadableMessage(f"{clip(str(part))} is no part of a message", "content", at)
        kind = str(part.get("type"))
        if kind in _TEXTS:
            texts.append(_text(part.get(_TEXTS[kind])))
        elif kind in _THOUGHTS:
            thoughts.append(_text(part.get(_THOUGHTS[kind]) or part.get("summary")))
        elif kind == "tool_use":
            calls.append(_parse_call({"id": part.get("id"), "function": part.get("name"), "arguments": part.get("input")}, at))
        else:
            texts.append(f"[{kind}]")  # an image, a sound, a document: all that a judge of texts is shown of it
    return "\n".join(texts), "\n".join(thought for thought in thoughts if thought), calls


def _results(content: Any) -> tuple[list[RunMessage], list[Any]]:  # noqa: ANN401 - raw input of any shape
    """Return the tool results in a user's message, where Anthropic has them, and the rest of the message."""
    parts = content if isinstance(content, list) else []
    results = [part for part in parts if isinstance(part, dict) and part.get("type") == "tool_result"]
    messages = [
        RunMessage(
            role="tool",
            content=_parse_content(result.get("content"))[0],
            tool_call_id=str(result.get("tool_use_id") or "unknown"),
            metadata={"is_error": True} if result.get("is_error") else {},
        )
        for result in results
    ]
    return messages, [part for part in parts if part not in results]


def _parse_call(value: Any, at: int) -> ToolCall:  # noqa: ANN401 - raw input of any shape
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
        return "\n".join(_text(item.get("text") if isinstance(item, dict) else item) for item in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_called_item(item: dict[str, Any]) -> RunMessage:
    return RunMessage(role="assistant", tool_calls=(_parse_call(item | {"id": item.get("call_id") or item.get("id")}, 0),))


def _parse_output_item(item: dict[str, Any]) -> RunMessage:
    return RunMessage(role="tool", content=_parse_content(item.get("output"))[0], tool_call_id=str(item.get("call_id") or "unknown"))


def _parse_reasoning_item(item: dict[str, Any]) -> RunMessage:
    return RunMessage(role="assistant", reasoning=_text(item.get("summary") or item.get("content")) or "[hidden]")


_ITEMS = {"function_call": _parse_called_item, "function_call_output": _parse_output_item, "reasoning": _parse_reasoning_item}
"""The parsers of the items of OpenAI's Responses that have no role."""


_ATTACHMENT = "attachment://"

IDS = ("id", "agent_run_id", "run_id", "thread_id")
"""The keys that may hold a run's id; the first that is there counts."""


def parse_runs(value: Any, name: str) -> Iterator[AgentRun]:  # noqa: ANN401 - raw input of any shape
    """Yield the runs of a JSON value.

    Args:
        value: A run, a list of runs, a list of messages, or an Inspect log.
        name: The id of a run without one of its own.

    Raises:
        UnreadableMessage: The value is no run; the error's path leads to the mistake.
    """
    if isinstance(value, list) and value and not all(is_message(item) for item in value):
        for at, item in enumerate(value):
            try:
                yield from parse_runs(item, f"{name}-{at + 1}")
            except UnreadableMessage as error:
                raise UnreadableMessage(str(error), at, *error.path) from None
    elif isinstance(value, dict) and isinstance(value.get("samples"), list):
        yield from _parse_inspect_log(value, name)
    else:
        yield _parse_run(value, name)


def _parse_run(value: Any, name: str) -> AgentRun:  # noqa: ANN401 - raw input of any shape
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise UnreadableMessage(f"{clip(str(value))} is no run; write an object with messages or transcripts, or a list of messages")
    run_id = next((str(value[key]) for key in IDS if value.get(key) not in (None, "")), name)
    metadata = _object(value, "metadata")
    if "transcripts" in value:
        described = {key: value[key] for key in ("name", "description") if value.get(key)}
        return _build_run(run_id, _parse_transcripts(value["transcripts"]), {**described, **metadata})
    if isinstance(value.get("input"), str) and "messages" not in value:
        value = value | {"input": [{"role": "user", "content": value["input"]}]}
    key = next((key for key in ("messages", "input") if isinstance(value.get(key), list)), None)
    if key is None:
        raise UnreadableMessage(f"the run has neither transcripts nor messages; its keys: {', '.join(map(str, value)) or 'none'}")
    system = value.get("system") or value.get("instructions")  # beside the messages, as Anthropic and OpenAI's Responses have it
    output = value.get("output") if isinstance(value.get("input"), list) else None  # the reply, beside its request
    messages = [
        *(parse_messages([{"role": "system", "content": system}]) if system else ()),
        *_parse_messages_at(key, value[key]),
        *(_parse_messages_at("output", output) if isinstance(output, list) else ()),
    ]
    return _build_run(run_id, [RunTranscript.model_validate({"messages": tuple(_require_messages(messages, key))})], metadata)


def _parse_messages_at(key: str, value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    try:
        return parse_messages(value)
    except UnreadableMessage as error:
        raise UnreadableMessage(str(error), key, *error.path) from None


def _require_messages(messages: list[RunMessage], key: str) -> list[RunMessage]:
    if not messages:
        raise UnreadableMessage("there are no messages; nothing can be judged", key)
    return messages


def _parse_transcripts(value: Any) -> list[RunTranscript]:  # noqa: ANN401 - raw input of any shape
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list) or not items:
        raise UnreadableMessage("transcripts is no list with something in it; give at least one transcript", "transcripts")
    transcripts = []
    for at, item in enumerate(items):
        if not isinstance(item, dict) or "messages" not in item:
            raise UnreadableMessage(f"{clip(str(item))} is no transcript; write an object with messages", "transcripts", at)
        try:
            messages = _require_messages(_parse_messages_at("messages", item["messages"]), "messages")
            metadata = _object(item, "metadata")
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), "transcripts", at, *error.path) from None
        fields = {"id": str(item.get("id") or ""), "name": item.get("name"), "messages": tuple(messages), "metadata": metadata}
        try:
            transcripts.append(RunTranscript.model_validate(fields))
        except ValidationError as error:
            raise UnreadableMessage(explain(error), "transcripts", at) from None
    return transcripts


def _object(value: dict[str, Any], key: str) -> dict[str, JsonValue]:
    """Return the object at a key; empty where there is none."""
    inner = value.get(key)
    if inner is not None and not isinstance(inner, dict):
        raise UnreadableMessage(f"{key} is {clip(str(inner))}; write an object", key)
    return inner or {}


def _build_run(name: str, transcripts: list[RunTranscript], metadata: dict[str, JsonValue]) -> AgentRun:
    try:
        return AgentRun(id=name, transcripts=tuple(transcripts), metadata=metadata)
    except ValidationError as error:
        raise UnreadableMessage(explain(error)) from None


def _parse_inspect_log(log: dict[str, Any], name: str) -> Iterator[AgentRun]:
    """Yield the samples of an Inspect log as runs."""
    about = log.get("eval")
    eval_header = about if isinstance(about, dict) else {}
    task = str(eval_header.get("task") or name)
    for at, sample in enumerate(log["samples"]):
        try:
            yield parse_inspect_sample(sample, task, eval_header.get("model"))
        except UnreadableMessage as error:
            raise UnreadableMessage(str(error), "samples", at, *error.path) from None


def parse_inspect_sample(sample: Any, task: str, model: object = None) -> AgentRun:  # noqa: ANN401 - raw input of any shape
    """Return a sample of an Inspect log as a run; its scores and target are metadata, which a judge is not shown by default.

    Raises:
        UnreadableMessage: The value is no sample.
    """
    if not isinstance(sample, dict) or not isinstance(sample.get("messages"), list):
        raise UnreadableMessage(f"{clip(str(sample))} is no sample of an Inspect log: it has no messages")
    attached = sample.get("attachments") if isinstance(sample.get("attachments"), dict) else {}
    messages = _require_messages(_parse_messages_at("messages", _with_attachments(sample["messages"], attached or {})), "messages")
    metadata = {key: sample[key] for key in ("target", "scores", "epoch", "metadata") if sample.get(key) not in (None, {}, [])}
    metadata |= ({"model": str(model)} if model else {}) | {"task": task}
    epoch = f"-{sample['epoch']}" if sample.get("epoch") not in (None, 1) else ""
    run_id = f"{task.rpartition('/')[2]}-{sample.get('id', 'sample')}{epoch}"
    return _build_run(run_id, [RunTranscript(messages=tuple(messages))], metadata)


def _with_attachments(value: Any, attached: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return messages with the texts that a log keeps as attachments."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attached.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_with_attachments(item, attached) for item in value]
    return {key: _with_attachments(inner, attached) for key, inner in value.items()} if isinstance(value, dict) else value


_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def line_of(text: str, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of the value at a path of keys and indexes; where the path leads nowhere, of the last value on it."""
    at = _skip_blank(text, 0)
    for part in path:
        inner = _item_start(text, at, part) if isinstance(part, int) else _member_start(text, at, part)
        if inner is None:
            break
        at = inner
    return text.count("\n", 0, at) + 1


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _end_of_value(text: str, at: int) -> int:
    """Return where the value that begins at `at`, and the blank behind it, end."""
    return _skip_blank(text, _DECODER.raw_decode(text, at)[1])


def _item_start(text: str, at: int, index: int) -> int | None:
    if text[at : at + 1] != "[":
        return None
    at = _skip_blank(text, at + 1)
    for _ in range(index):
        at = _end_of_value(text, at)
        if text[at : at + 1] != ",":
            return None
        at = _skip_blank(text, at + 1)
    return at if text[at : at + 1] != "]" else None


def _member_start(text: str, at: int, key: str) -> int | None:
    if text[at : at + 1] != "{":
        return None
    at = _skip_blank(text, at + 1)
    while text[at : at + 1] == '"':
        name, end = _DECODER.raw_decode(text, at)
        value = _skip_blank(text, _skip_blank(text, end) + 1)
        if name == key:
            return value
        at = _end_of_value(text, value)
        if text[at : at + 1] != ",":
            return None
        at = _skip_blank(text, at + 1)
    return None
