"""The Messages API."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from activities.failures import ModelFault
from activities.providers.model import MAX_TOKENS, ModelReply, ModelRequest, Step
from activities.providers.wire import JsonObject, call_id, count, json_object, opaque, reported, tool_call
from gradeloop.transcript import Message, ToolCall
from gradeloop.usage import Usage

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_DONE = {"end_turn", "stop_sequence", "tool_use"}
_CUT = {"max_tokens", "model_context_window_exceeded"}


class AnthropicMessages:
    """Speaks the Messages API through its SDK; reads the raw body, so that opaque blocks go back byte for byte."""

    def __init__(self, client: "AsyncAnthropic") -> None:
        self._client = client

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call; see `Provider`."""
        raw = await self._client.messages.with_raw_response.create(**wire_request(request))
        return model_reply(json_object(raw.http_response.content), request.step)


def wire_request(request: ModelRequest) -> dict[str, Any]:
    """Return the request's body."""
    config = request.spec.config
    output: dict[str, Any] = {"effort": config.reasoning_effort} if config.reasoning_effort else {}
    if request.schema is not None:
        output["format"] = {"type": "json_schema", "schema": request.schema}
    body: dict[str, Any] = {
        "model": request.spec.model,
        "max_tokens": config.max_tokens or MAX_TOKENS,
        "messages": _messages(request.messages),
    }
    if request.system:
        body["system"] = request.system
    if output:
        body["output_config"] = output
    if request.tools:
        body["tools"] = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools]
        body["tool_choice"] = {"type": "auto" if request.tools_allowed else "none"}
    return body


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Merge neighbours of one role: all results of a turn's tool calls must stand in the one message after it."""
    turns = groupby(messages, key=lambda message: "assistant" if message.role == "assistant" else "user")
    return [{"role": role, "content": [block for message in group for block in _blocks(message)]} for role, group in turns]


def _blocks(message: Message) -> Iterator[JsonValue]:
    content = opaque(message.vendor, "anthropic", "content")
    if isinstance(content, list):
        yield from content
        return
    if message.role == "tool":
        yield {"type": "tool_result", "tool_use_id": _wire_id(message.tool_call_id or ""), "content": message.content}
        return
    if message.content.strip():
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        yield {"type": "tool_use", "id": _wire_id(call.id), "name": call.name, "input": call.arguments}


def _wire_id(identifier: str) -> str:
    """Spell an id that another provider gave in the characters that this one takes."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", identifier)


def model_reply(body: JsonObject, step: Step) -> ModelReply:
    """Read the reply's body.

    Raises:
        ModelFault: It is no answer.
    """
    if body.get("type") == "error":
        raise reported(body.get("error"), status=200)
    content = _content(body, step)
    _refuse_unfinished(body)
    text = "".join(str(block.get("text") or "") for block in content if block.get("type") == "text")
    calls = tuple(_call(block) for block in content if block.get("type") == "tool_use")
    if not text.strip() and not calls:
        raise ModelFault("malformed_response", f"the reply is empty: no text and no tool call in {len(content)} blocks")
    plain = all(block.get("type") in {"text", "tool_use"} for block in content)
    vendor: JsonObject | None = None if plain else {"provider": "anthropic", "content": list(content)}
    return ModelReply(Message(role="assistant", content=text, tool_calls=calls, vendor=vendor), _usage(body.get("usage")))


def _content(body: JsonObject, step: Step) -> list[JsonObject]:
    """Return the content blocks, each tool call with an id."""
    content = body.get("content")
    if not isinstance(content, list):
        raise ModelFault("malformed_response", f"the reply has no list of content blocks; its keys: {', '.join(body) or 'none'}")
    blocks = [block for block in content if isinstance(block, dict)]
    return [
        {**block, "id": block.get("id") or call_id(step, ordinal)} if block.get("type") == "tool_use" else block
        for ordinal, block in enumerate(blocks)
    ]


def _call(block: JsonObject) -> ToolCall:
    return tool_call(str(block["id"]), block.get("name"), block.get("input"))


def _refuse_unfinished(body: JsonObject) -> None:
    reason = body.get("stop_reason")
    if reason == "refusal":
        details = body.get("stop_details")
        said = [str(details[part]) for part in ("category", "explanation") if details.get(part)] if isinstance(details, dict) else []
        raise ModelFault("refused", f"the model refused to answer ({': '.join(said) or 'no reason given'})")
    if reason in _CUT:
        spent = count(body.get("usage"), "output_tokens")
        raise ModelFault("truncated", f"the reply was cut ({reason}) after {spent} tokens; raise config.max_tokens or shorten the task")
    if reason not in _DONE:
        raise ModelFault("malformed_response", f"the reply ended for an unknown reason: stop_reason {reason!r}")


def _usage(usage: JsonValue) -> Usage:
    """Add the cached tokens to the input, which leaves them out here."""
    cached = count(usage, "cache_read_input_tokens")
    return Usage(
        input=count(usage, "input_tokens") + count(usage, "cache_creation_input_tokens") + cached,
        cached=cached,
        output=count(usage, "output_tokens"),
        reasoning=count(usage, "output_tokens_details", "thinking_tokens"),
        calls=1,
    )
