"""Drafts that call declared functions instead of saying something: the calls as JSON, as the vendors' replies and promptfoo show them."""

from pydantic import JsonValue
from pydantic_core import to_json

from gradeloop.contract.functions import CallForm
from gradeloop.contract.messages import Message, ToolCall
from gradeloop.text import read_json


def show_calls(message: Message, form: CallForm) -> str:
    """Return the text of a draft; one that calls functions is shown as promptfoo 0.123.1 shows it."""
    if not message.tool_calls:
        return message.content
    if form in _SEPARATORS:
        said = [message.content] if message.content.strip() and form != "bedrock" else []
        return _SEPARATORS[form].join([*said, *(to_json(_shown(call, form)).decode() for call in message.tool_calls)])
    return to_json(_value(message, form)).decode()


_SEPARATORS: dict[CallForm, str] = {"responses": "\n", "anthropic": "\n\n", "bedrock": "\n\n"}
"""What stands between the parts of a reply that is shown as one text."""


def _value(message: Message, form: CallForm) -> JsonValue:
    calls: list[JsonValue] = [_shown(call, form) for call in message.tool_calls]
    if form == "google":
        said: list[JsonValue] = [{"text": message.content}] if message.content.strip() else []
        return [*said, *calls]
    calling: JsonValue = calls[0] if form == "function_call" else calls
    if not message.content.strip():
        return calling
    return {"role": "assistant", "content": message.content, "function_call" if form == "function_call" else "tool_calls": calling}


def _shown(call: ToolCall, form: CallForm) -> JsonValue:
    arguments = call.invalid if call.invalid is not None else to_json(call.arguments).decode()
    if form == "anthropic":
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call)}
    if form == "bedrock":
        return {"toolUseId": call.id, "name": call.name, "input": _object(call)}
    if form == "google":
        return {"functionCall": {"name": call.name, "args": _object(call)}}
    if form == "responses":
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments, "status": "completed"}
    function: JsonValue = {"name": call.name, "arguments": arguments}
    return function if form == "function_call" else {"id": call.id, "type": "function", "function": function}


def _object(call: ToolCall) -> JsonValue:
    return dict(call.arguments) if call.invalid is None else call.invalid


def called_value(draft: str, form: CallForm) -> JsonValue:
    """Return the calls that a draft shows as code finds them, parsed; the draft itself where it shows none or is one text."""
    if form in _SEPARATORS:
        return draft
    value = _read(draft)
    return value if _is_calls(value, form) else draft


def calls_functions(draft: str, form: CallForm) -> bool:
    """Tell whether a draft calls functions."""
    if form not in _SEPARATORS:
        return _is_calls(_read(draft), form)
    parts = [part for part in map(_read, draft.split(_SEPARATORS[form])) if isinstance(part, dict)]
    kind = "function_call" if form == "responses" else "tool_use"
    return any("toolUseId" in part if form == "bedrock" else part.get("type") == kind for part in parts)


def _read(text: str) -> JsonValue:
    try:
        value: JsonValue = read_json(text)
    except ValueError:
        return None
    return value


def _is_calls(value: JsonValue, form: CallForm) -> bool:
    if form == "function_call":
        calling = value.get("function_call", value) if isinstance(value, dict) else None
        return isinstance(calling, dict) and {"name", "arguments"} <= set(calling)
    if isinstance(value, dict) and value.get("role") == "assistant":
        value = value.get("tool_calls")
    key = "functionCall" if form == "google" else "function"
    return isinstance(value, list) and any(isinstance(call, dict) and isinstance(call.get(key), dict) for call in value)
