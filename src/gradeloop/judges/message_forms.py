"""Messages as others write them, read into ours: OpenAI's Chat and Responses, Anthropic's, Inspect's and Docent's.

Sources: the request and response types of the packages openai 3.52, anthropic 2.11, inspect-ai 0.3 and docent 0.1.88.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.errors import explain
from gradeloop.judges.agent_run import RunMessage
from gradeloop.printable import clip
from gradeloop.transcript import ToolCall

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


class Unreadable(ValueError):
    """A message that cannot be read; the path says where in it."""

    def __init__(self, why: str, *path: int | str) -> None:
        super().__init__(why)
        self.path = path


def read_messages(value: Any) -> list[RunMessage]:  # noqa: ANN401 - raw input of any shape
    """Read a list of messages, or of the items of OpenAI's Responses.

    Raises:
        Unreadable: One of them is none; its path says which.
    """
    if not isinstance(value, list):
        raise Unreadable(f"{clip(str(value))} is no list of messages")
    found: list[RunMessage] = []
    for at, each in enumerate(value):
        try:
            found += _read(each)
        except Unreadable as error:
            raise Unreadable(str(error), at, *error.path) from None
        except ValidationError as error:
            raise Unreadable(explain(error), at) from None
    return found


def is_message(value: object) -> bool:
    """True for what is a message, or an item of OpenAI's Responses."""
    return isinstance(value, Mapping) and (("role" in value and "messages" not in value) or str(value.get("type")) in _ITEMS)


def _read(value: Any) -> Iterator[RunMessage]:  # noqa: ANN401 - raw input of any shape
    if not isinstance(value, dict):
        raise Unreadable(f"{clip(str(value))} is no message; write an object with role and content")
    kind = str(value.get("type"))
    if kind in _ITEMS and "role" not in value:
        yield _ITEMS[kind](value)
        return
    role = ROLES.get(str(value.get("role")))
    if role is None:
        raise Unreadable(f"the role is {clip(str(value.get('role')))}; known: {', '.join(ROLES)}", *(["role"] if "role" in value else []))
    results, rest = _results(value.get("content"))
    yield from results
    if results and not rest:
        return
    said, thought, calls = _content(rest if results else value.get("content"))
    thought = "\n".join(part for part in (_text(value.get("reasoning") or value.get("reasoning_content")), thought) if part)
    called = value.get("tool_calls") or []
    if not isinstance(called, list):
        raise Unreadable(f"tool_calls is {clip(str(called))}; write a list", "tool_calls")
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
        raise Unreadable(f"metadata is {clip(str(told))}; write an object", "metadata")
    unread = {key: each for key, each in value.items() if key not in _READ and each is not None}
    return {**unread, **(told or {})}


def _content(content: Any) -> tuple[str, str, list[ToolCall]]:  # noqa: ANN401 - raw input of any shape
    """Return what a message says, what it thought, and which tools it calls."""
    if content is None or isinstance(content, str):
        return content or "", "", []
    if not isinstance(content, list):
        raise Unreadable(f"the content is {clip(str(content))}; write text, or a list of parts", "content")
    said: list[str] = []
    thought: list[str] = []
    calls: list[ToolCall] = []
    for at, part in enumerate(content):
        if isinstance(part, str):
            said.append(part)
            continue
        if not isinstance(part, dict):
            raise Unreadable(f"{clip(str(part))} is no part of a message", "content", at)
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
    results = [each for each in parts if isinstance(each, dict) and each.get("type") == "tool_result"]
    read = [
        RunMessage(
            role="tool",
            content=_content(each.get("content"))[0],
            tool_call_id=str(each.get("tool_use_id") or "unknown"),
            metadata={"is_error": True} if each.get("is_error") else {},
        )
        for each in results
    ]
    return read, [each for each in parts if each not in results]


def _call(value: Any, at: int) -> ToolCall:  # noqa: ANN401 - raw input of any shape
    if not isinstance(value, dict):
        raise Unreadable(f"{clip(str(value))} is no tool call", "tool_calls", at)
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    name = inner.get("name") or value.get("function")
    arguments = inner.get("arguments")
    if not isinstance(name, str) or not name:
        raise Unreadable("a tool call names no tool; write its name", "tool_calls", at)
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
