"""The Responses API, as OpenAI speaks it for its own models; nothing is stored there."""

import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from pydantic_core import to_json

from activities.providers import base
from gradeloop.contract.messages import CHOICES, Attachment, Message, Usage
from gradeloop.contract.provider import Connections, Endpoint, ModelReply, ModelRequest
from gradeloop.settings.catalog import capability_of
from gradeloop.text import objects_in

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ENDED = {"response.completed", "response.incomplete", "response.failed"}


def connect(connections: Connections, endpoint: Endpoint) -> "OpenAIResponses":
    """Return the adapter of an endpoint."""
    from activities.providers.http import openai_client

    return OpenAIResponses(openai_client(connections, endpoint))


class OpenAIResponses:
    """Speaks the Responses API through its SDK; reads the raw body, so that reasoning goes back byte for byte."""

    def __init__(self, client: "AsyncOpenAI") -> None:
        self._client = client
        self._keys = CacheKeys()

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call; see `Provider`."""
        if request.embedded:
            return await base.embed_openai(self._client, request)
        # Reasoning is bound only to its organization, and several keys may be one's.
        body, streamed = wire_request(request, base.first_with_thinking(request)), capability_of(request.spec).stream
        body["prompt_cache_key"] = self._keys.key(request)
        call, sent = self._client.responses.with_streaming_response.create, base.request_body(body, request.spec.config.extra)
        wait = base.reply_timeout(request, streamed=streamed)
        async with call(model=body["model"], stream=streamed, extra_body=sent, timeout=wait) as response:
            reply = model_reply(await base.reply_body(response.http_response, ResponseAssembly(), _usage, request), request)
        return base.with_circumstances(reply, request, "openai")

    async def models(self) -> tuple[str, ...]:
        """Return the models that the endpoint lists; see `ListsModels`."""
        return base.listed(await self._client.get("/models", cast_to=object))


class ResponseAssembly:
    """Waits for the event that ends a stream, which has the whole reply."""

    def __init__(self) -> None:
        self._body: base.JsonObject | None = None

    def add(self, event: base.JsonObject) -> None:
        """Take the next event in."""
        if event.get("type") == "error":
            raise base.error_in_reply({"code": event.get("code"), "message": event.get("message")}, status=200)
        response = event.get("response")
        if event.get("type") in _ENDED and isinstance(response, dict):
            self._body = response

    def body(self) -> base.JsonObject | None:
        """Return the reply."""
        return self._body

    def usage(self) -> JsonValue:
        """Return the reply's usage, which comes only with its end."""
        return self._body.get("usage") if self._body else None


_FUNCTION: base.JsonObject = {
    "type": "function",
    "name": "",
    "description": None,
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
"""A function of which nothing is known."""


def wire_request(request: ModelRequest, first: int = 0) -> dict[str, Any]:
    """Return the request's body, without `stream` and the request's own extras.

    `first`: the index of the first message whose reasoning is sent.
    """
    config, (functions, choice) = request.spec.config, base.callables(request)
    effort = config.reasoning_effort or ("none" if config.thinking == "disabled" else None)  # this API has no other `thinking`
    body: dict[str, Any] = {
        "model": request.spec.model,
        "input": [item for at, message in enumerate(request.messages) for item in _items(message, request, with_reasoning=at >= first)],
        "instructions": request.system or None,
        "store": False,
        "include": ["reasoning.encrypted_content", *(["message.output_text.logprobs"] if request.logprobs else [])],
        "prompt_cache_key": cache_key(request),
        "max_output_tokens": base.completion_cap(request),
        "temperature": config.temperature,
        "reasoning": {"effort": effort} if effort else None,
        "tools": [_FUNCTION | row for row in functions] or None,
        "tool_choice": choice if choice is None or choice in CHOICES else {"type": "function", "name": choice},
    }
    if (form := base.answer_form(request)) is not None:
        schema = {"type": "json_schema", "name": form.name, "strict": form.strict, "schema": form.json_schema}
        body["text"] = {"format": schema if form.json_schema else {"type": "json_object"}}
    return {name: value for name, value in body.items() if value is not None}


def _items(message: Message, request: ModelRequest, *, with_reasoning: bool) -> Iterator[JsonValue]:
    items = base.opaque(message.vendor, "openai", "items")
    if isinstance(items, list):
        yield from items if with_reasoning else _without_reasoning(objects_in(items))
        return
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        return
    parts = request.parts(message)
    if any(isinstance(part, Attachment) for part in parts):
        yield {"role": "user", "content": [_part(part) for part in parts]}
    elif message.content.strip():
        yield {"role": message.role, "content": message.content}
    for call in message.tool_calls:
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": to_json(call.arguments).decode()}


def _part(part: str | Attachment) -> JsonValue:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if part.type == "file":
        named = {"file_url": part.url} if part.media_type is None else {"filename": "file.pdf", "file_data": part.url}
        return {"type": "input_file", **named}
    return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}


def _without_reasoning(items: list[base.JsonObject]) -> Iterator[JsonValue]:
    """Yield the items but for reasoning, and without their ids: an item that is known by its id wants its reasoning before it."""
    for item in items:
        if item.get("type") != "reasoning":
            yield {name: value for name, value in item.items() if name != "id"}


def model_reply(body: base.JsonObject, request: ModelRequest) -> ModelReply:
    """Read the reply's body; raise ModelFault where it is not an answer."""
    with base.paid_reply(body, "usage", _usage) as usage:
        if not isinstance(body.get("output"), list) and not body.get("error"):
            raise base.malformed(f"the reply has no list of output items; its keys: {', '.join(body) or 'none'}")
        output = _named(objects_in(body.get("output")), request)
        parts = [part for item in output if item.get("type") == "message" for part in objects_in(item.get("content"))]
        _refuse_unfinished(body, parts, request, usage)
        text = "".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text")
        functions = [item for item in output if item.get("type") == "function_call"]
        calls = [base.tool_call(str(item["call_id"]), item.get("name"), item.get("arguments")) for item in functions]
        # What goes back has no `status`, which only replies have.
        items: list[JsonValue] = [{name: value for name, value in item.items() if name != "status"} for item in output]
        tokens: list[JsonValue] = [token for part in parts for token in objects_in(part.get("logprobs"))]
        probable = base.log_probs(tokens) if request.logprobs else None
        return base.assistant_reply(text, calls, {"provider": "openai", "items": items} if calls else None, usage, probable)


def _named(output: list[base.JsonObject], request: ModelRequest) -> list[base.JsonObject]:
    """Return the items, each function call with an id."""
    return [
        {**item, "call_id": item.get("call_id") or base.call_id(request.step, ordinal)} if item.get("type") == "function_call" else item
        for ordinal, item in enumerate(output)
    ]


def _refuse_unfinished(body: base.JsonObject, parts: list[base.JsonObject], request: ModelRequest, usage: Usage) -> None:
    status, details, error = body.get("status"), body.get("incomplete_details"), body.get("error")
    if status == "failed" or error:
        raise base.error_in_reply(error or "the response failed without a reason", status=200)
    refusal = next((part.get("refusal") for part in parts if part.get("type") == "refusal"), None)
    reason = details.get("reason") if isinstance(details, dict) else None
    if refusal or reason == "content_filter":
        raise base.refused(refusal or reason, usage)
    if reason == "max_output_tokens":
        raise base.truncated("max_output_tokens", request, usage, [*parts])
    if status != "completed":
        raise base.unknown_end(f"status {status!r}, {reason!r}", usage)


def _usage(usage: JsonValue) -> Usage:
    return Usage(
        input=base.reported(usage, "input_tokens"),
        cached=base.count(usage, "input_tokens_details", "cached_tokens"),
        cache_written=base.count(usage, "input_tokens_details", "cache_write_tokens"),
        output=base.reported(usage, "output_tokens"),
        reasoning=base.count(usage, "output_tokens_details", "reasoning_tokens"),
        calls=1,
    )


MINUTE = 60.0

CALLS_A_KEY = 8
"""Calls a minute of one key, on the average, above which more keys are used: by chance some then have nearly twice as many.

The router keeps a key on one machine up to about 15 calls a minute, says OpenAI's community; above that, calls find no cache.
"""

MOST_CALLS = 4096
"""Calls of a prompt that are remembered."""

MOST_PROMPTS = 1024
"""Prompts whose calls are remembered."""


class CacheKeys:
    """Spreads the calls with one beginning over as many keys as their rate needs; the calls of one run have one key while that lasts."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()

    def key(self, request: ModelRequest) -> str:
        """Return a call's key, and count the call."""
        key = cache_key(request)
        keys = self._count(key)
        place = int.from_bytes(hashlib.sha256(request.thread.encode()).digest()[:4]) % keys
        return key if place == 0 else f"{key[:-4]}{place:04x}"

    def _count(self, key: str) -> int:
        """Count a call, and return how many keys the last minute's calls need: a power of two, so that most runs keep theirs."""
        now, calls = time.monotonic(), self._calls.setdefault(key, deque(maxlen=MOST_CALLS))
        self._calls.move_to_end(key)
        if len(self._calls) > MOST_PROMPTS:
            self._calls.popitem(last=False)
        calls.append(now)
        while now - calls[0] > MINUTE:
            calls.popleft()
        keys = 1
        while len(calls) > keys * CALLS_A_KEY:
            keys *= 2
        return keys


def cache_key(request: ModelRequest) -> str:
    """Return what calls with equal beginnings have in common: their model and their system prompt, which holds the rubric."""
    return hashlib.sha256(f"{request.spec.id}\n{request.system}".encode()).hexdigest()[:32]
