"""The Messages API of Anthropic."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from pydantic_core import from_json

from activities.providers import base
from gradeloop.contract.messages import Attachment, Message, Usage
from gradeloop.contract.provider import Cloud, Connections, Endpoint, ModelFault, ModelReply, ModelRequest, Step
from gradeloop.settings.catalog import capability_of

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.bedrock import AsyncAnthropicBedrock
    from anthropic.lib.vertex import AsyncAnthropicVertex

    AnthropicClient = AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex


def connect(connections: Connections, endpoint: Endpoint) -> "AnthropicMessages":
    """Return the adapter of an endpoint, with a cloud's own client where it is one's; raise ModelFault for an unknown region."""
    from anthropic import AsyncAnthropic, omit  # a second that only its users pay

    from activities.providers.http import sdk_headers, sdk_timeout

    settings: dict[str, Any] = {
        "http_client": connections.client(endpoint),
        "timeout": sdk_timeout(),
        "max_retries": 0,
        "default_headers": sdk_headers(connections, endpoint, omit),
        "default_query": dict(endpoint.query),
        "open_telemetry": False,
    }
    client: AnthropicClient
    if endpoint.cloud == "bedrock":
        from anthropic.lib.bedrock import AsyncAnthropicBedrock

        address = endpoint.base_url if endpoint.named else None
        try:
            client = AsyncAnthropicBedrock(aws_region=endpoint.location, api_key=endpoint.key, base_url=address, **settings)
        except ValueError as error:  # of a region that is nowhere
            raise ModelFault("config", f"bedrock: {error}") from None
    elif endpoint.cloud == "vertex":
        from anthropic.lib.vertex import AsyncAnthropicVertex

        settings |= {"region": endpoint.location or "global", "project_id": endpoint.project or "", "base_url": endpoint.base_url}
        client = AsyncAnthropicVertex(access_token=endpoint.key, **settings)
    else:
        client = AsyncAnthropic(api_key=endpoint.key, base_url=endpoint.base_url, webhook_key="", **settings)
    return AnthropicMessages(client, endpoint.cloud)


_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The field of a block that a delta lengthens, which has the same name in both."""


class MessageAssembly:
    """Merges events to the message that a reply without streaming is."""

    def __init__(self) -> None:
        self._message: base.JsonObject = {}
        self._blocks: dict[int, base.JsonObject] = {}
        self._inputs: dict[int, str] = {}
        self._ended = False

    def add(self, event: base.JsonObject) -> None:
        """Take the next event in; unknown ones are ignored."""
        kind, index = event.get("type"), event.get("index")
        if kind == "error":
            raise base.error_in_reply(event.get("error"), status=200)
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = dict(event["message"])  # type: ignore[arg-type]  # just seen to be one
        elif kind == "content_block_start" and isinstance(index, int) and isinstance(event.get("content_block"), dict):
            self._blocks[index] = dict(event["content_block"])  # type: ignore[arg-type]  # just seen to be one
        elif kind == "content_block_delta" and isinstance(index, int) and isinstance(event.get("delta"), dict):
            self._grow(index, event["delta"])  # type: ignore[arg-type]  # just seen to be one
        elif kind == "message_delta":
            self._finish(event)
        self._ended = self._ended or kind == "message_stop"

    def _grow(self, index: int, delta: base.JsonObject) -> None:
        block, kind = self._blocks.setdefault(index, {}), str(delta.get("type"))
        if kind == "input_json_delta":
            self._inputs[index] = f"{self._inputs.get(index, '')}{delta.get('partial_json') or ''}"
        elif name := _GROWS.get(kind):
            block[name] = f"{block.get(name) or ''}{delta.get(name) or ''}"
        elif kind == "citations_delta":
            earlier = block.get("citations")
            block["citations"] = [*(earlier if isinstance(earlier, list) else []), delta.get("citation")]

    def _finish(self, event: base.JsonObject) -> None:
        # The usage comes in two parts: prompt tokens with the beginning, completion tokens with the end. The
        # end names some of the beginning's counts again, perhaps as null, which means that it does not say and
        # must not erase them.
        delta, usage, earlier = event.get("delta"), event.get("usage"), self._message.get("usage")
        if isinstance(delta, dict):
            self._message |= delta
        if isinstance(usage, dict):
            newest = {name: value for name, value in usage.items() if value is not None}
            self._message["usage"] = {**(earlier if isinstance(earlier, dict) else {}), **newest}

    def body(self) -> base.JsonObject | None:
        """Return the message; None where its last event, or the reason for its end, has not come."""
        if not self._ended and self._message.get("stop_reason") is None:
            return None
        content: list[JsonValue] = [self._blocks[index] | self._input(index) for index in sorted(self._blocks)]
        return {**self._message, "content": content}

    def usage(self) -> JsonValue:
        """Return what the server has reported of the usage so far."""
        return self._message.get("usage")

    def _input(self, index: int) -> base.JsonObject:
        """Return a tool call's input; one that is not JSON stays as written."""
        text = self._inputs.get(index)
        if not text:
            return {}
        try:
            return {"input": from_json(text, allow_inf_nan=False)}
        except ValueError:
            return {"input": text}


_DONE = {"end_turn", "stop_sequence", "tool_use"}
CACHED: base.JsonObject = {"type": "ephemeral"}
"""The mark up to which the provider caches a prompt, for five minutes from its last use."""

BREAKPOINTS = 3
"""Marks beside the one on the system prompt: the API takes four."""

_MARKABLE = {"text", "tool_use", "tool_result"}
_CUT = {"max_tokens", "model_context_window_exceeded"}

_OLDER_VERSIONS: dict[str | None, str] = {"bedrock": "bedrock-2023-05-31", "vertex": "vertex-2023-10-16"}
"""The older protocol's names on the clouds, which take it in the body."""


class AnthropicMessages:
    """Speaks the Messages API through its SDK; reads the raw body, so that opaque blocks go back byte for byte."""

    def __init__(self, client: "AnthropicClient", cloud: Cloud | None = None) -> None:
        self._client = client
        self._cloud = cloud

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call; see `Provider`."""
        if request.embedded:
            raise ModelFault("config", f"{request.spec.id!r} makes no embeddings; name an embedding model of OpenAI or Google")
        account = getattr(self._client, "api_key", None)  # a cloud's client has none
        bound = base.circumstances(request, f"{self._client.base_url} {account}")
        body, streamed = wire_request(request, base.first_with_thinking(request, bound)), capability_of(request.spec).stream
        config = request.spec.config
        extra: dict[str, Any] = config.extra | ({} if config.temperature is None else {"temperature": config.temperature})
        # Only the older protocol takes a temperature, of the older models that have one.
        headers = {} if config.temperature is None else {"anthropic-version": "2023-06-01"}
        streamed = streamed and self._cloud != "bedrock"  # which streams in a form of its own
        if headers and self._cloud in _OLDER_VERSIONS:
            extra["anthropic_version"] = _OLDER_VERSIONS[self._cloud]
        call, sent = self._client.messages.with_streaming_response.create, base.request_body(body, extra)
        known, wait = {"model": body["model"], "max_tokens": body["max_tokens"]}, base.reply_timeout(request, streamed=streamed)
        async with call(**known, messages=[], stream=streamed, extra_body=sent, extra_headers=headers, timeout=wait) as response:
            reply = model_reply(await base.reply_body(response.http_response, MessageAssembly(), _usage, request), request)
        return base.with_circumstances(reply, request, "anthropic", bound)

    async def models(self) -> tuple[str, ...]:
        """Return the models that the endpoint lists; see `ListsModels`."""
        return base.listed(await self._client.get("/v1/models", cast_to=object, options={"params": {"limit": base.MODELS_PAGE}}))


def wire_request(request: ModelRequest, first: int = 0) -> dict[str, Any]:
    """Return the request's body, with the thinking of the messages from index `first` on.

    Raises:
        ModelFault: Any JSON is asked for, for which this API has no setting.
    """
    config = request.spec.config
    output: dict[str, Any] = {"effort": config.reasoning_effort} if config.reasoning_effort else {}
    if (form := base.answer_form(request)) is not None:
        if form.json_schema is None:
            raise ModelFault("bad_request", "output_form has no json_schema, which Anthropic's API asks for; give it one")
        output["format"] = {"type": "json_schema", "schema": form.json_schema}
    body: dict[str, Any] = {
        "model": request.spec.model,
        "max_tokens": base.completion_cap(request),
        "messages": _messages(request, first),
    }
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, "cache_control": CACHED}]
    if config.thinking is not None:
        budget = {"type": "enabled", "budget_tokens": config.thinking}
        body["thinking"] = {"type": config.thinking} if isinstance(config.thinking, str) else budget
    if output:
        body["output_config"] = output
    functions, choice = base.callables(request)
    if functions:
        body["tools"] = [{"input_schema": row.pop("parameters", _ANY), **row} for row in functions]
    if choice is not None:
        body["tool_choice"] = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": choice}
    return body


_ANY: JsonValue = {"type": "object", "properties": {}}

_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
"""Our choices of functions, by this API's names."""


def _messages(request: ModelRequest, first: int) -> list[dict[str, Any]]:
    """Merge neighbours of one role: all results of a turn's tool calls belong in the one message after it."""
    turns = [
        ("assistant" if message.role == "assistant" else "user", list(_blocks(message, request, with_thinking=at >= first)))
        for at, message in enumerate(request.messages)
    ]
    for index in request.breakpoints[-BREAKPOINTS:]:
        role, blocks = turns[index]
        turns[index] = (role, _marked(blocks))
    merged = groupby(turns, key=lambda turn: turn[0])
    return [{"role": role, "content": [block for _, blocks in group for block in blocks]} for role, group in merged]


def _marked(blocks: list[JsonValue]) -> list[JsonValue]:
    """Mark the last block for the cache; thinking takes no mark."""
    *before, last = blocks
    if not isinstance(last, dict) or last.get("type") not in _MARKABLE:
        return blocks
    return [*before, {**last, "cache_control": CACHED}]


def _blocks(message: Message, request: ModelRequest, *, with_thinking: bool) -> Iterator[JsonValue]:
    content = base.opaque(message.vendor, "anthropic", "content")
    if isinstance(content, list):
        yield from (block for block in content if with_thinking or not (isinstance(block, dict) and block.get("type") in base.THINKING))
        return
    if message.role == "tool":
        yield {"type": "tool_result", "tool_use_id": _wire_id(message.tool_call_id or ""), "content": message.content}
        return
    for part in request.parts(message):
        if isinstance(part, str):
            yield {"type": "text", "text": part}
        else:
            yield {"type": "document" if part.type == "file" else "image", "source": _source(part)}
    for call in message.tool_calls:
        yield {"type": "tool_use", "id": _wire_id(call.id), "name": call.name, "input": call.arguments}


def _source(image: Attachment) -> JsonValue:
    if image.media_type is None:
        return {"type": "url", "url": image.url}
    return {"type": "base64", "media_type": image.media_type, "data": image.data}


def _wire_id(identifier: str) -> str:
    """Spell an id that another provider gave in the characters that this one takes."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", identifier)


def model_reply(body: base.JsonObject, request: ModelRequest) -> ModelReply:
    """Read the reply's body; raise ModelFault where it is not an answer."""
    if body.get("type") == "error":
        raise base.error_in_reply(body.get("error"), status=200)
    with base.paid_reply(body, "usage", _usage) as usage:
        content = _content(body, request.step)
        _refuse_unfinished(body, request, usage)
        text = "".join(str(block.get("text") or "") for block in content if block.get("type") == "text")
        tool_uses = [block for block in content if block.get("type") == "tool_use"]
        calls = [base.tool_call(str(block["id"]), block.get("name"), block.get("input")) for block in tool_uses]
        plain = all(block.get("type") in {"text", "tool_use"} for block in content)
        vendor: base.JsonObject | None = None if plain else {"provider": "anthropic", "content": list(content)}
        return base.assistant_reply(text, calls, vendor, usage)


def _content(body: base.JsonObject, step: Step) -> list[base.JsonObject]:
    """Return the content blocks, each tool call with an id."""
    content = body.get("content")
    if not isinstance(content, list):
        raise base.malformed(f"the reply has no list of content blocks; its keys: {', '.join(body) or 'none'}")
    blocks = [block for block in content if isinstance(block, dict)]
    return [
        {**block, "id": block.get("id") or base.call_id(step, ordinal)} if block.get("type") == "tool_use" else block
        for ordinal, block in enumerate(blocks)
    ]


def _refuse_unfinished(body: base.JsonObject, request: ModelRequest, usage: Usage) -> None:
    reason = body.get("stop_reason")
    if reason == "refusal":
        details = body.get("stop_details")
        given = [str(details[part]) for part in ("category", "explanation") if details.get(part)] if isinstance(details, dict) else []
        raise base.refused(": ".join(given) or "no reason given", usage)
    if reason in _CUT:
        raise base.truncated(str(reason), request, usage, body.get("content"), at_own_cap=reason == "max_tokens")
    if reason not in _DONE:
        raise base.unknown_end(f"stop_reason {reason!r}", usage)


def _usage(usage: JsonValue) -> Usage:
    """Read the usage; the cached tokens are added to the input, which leaves them out here."""
    cached, fresh = base.count(usage, "cache_read_input_tokens"), base.reported(usage, "input_tokens")
    return Usage(
        input=None if fresh is None else fresh + base.count(usage, "cache_creation_input_tokens") + cached,
        cached=cached,
        cache_written=base.count(usage, "cache_creation_input_tokens"),
        output=base.reported(usage, "output_tokens"),
        reasoning=base.count(usage, "output_tokens_details", "thinking_tokens"),
        calls=1,
    )
