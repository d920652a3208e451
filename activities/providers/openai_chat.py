"""Chat Completions, as OpenAI-compatible servers speak it."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import JsonValue
from pydantic_core import to_json

from activities.errors import failure_facts, note_paid, paid_by
from activities.providers import base
from activities.providers.environment import is_local
from activities.providers.probe import TRIAL_SECONDS, Description, Trial, describe
from gradeloop.contract.messages import CHOICES, Attachment, Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import Connections, Endpoint, ModelFault, ModelReply, ModelRequest
from gradeloop.settings.catalog import capability_of, server_facts
from gradeloop.settings.endpoints import AZURE_HOSTS, listed_model
from gradeloop.text import objects_in

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI


_TEXTS = ("content", "refusal", "reasoning", "reasoning_content")


class ChatAssembly:
    """Merges deltas to the one choice of a reply that was not streamed."""

    def __init__(self) -> None:
        self._reply: base.JsonObject = {}
        self._message: base.JsonObject = {"role": "assistant"}
        self._calls: dict[int, base.JsonObject] = {}
        self._reason: JsonValue = None
        self._logprobs: list[JsonValue] = []

    def add(self, event: base.JsonObject) -> None:
        """Take the next chunk in."""
        if event.get("error"):
            raise base.error_in_reply(event["error"], status=200)
        self._reply |= {name: value for name, value in event.items() if name in {"id", "model", "usage"} and value}
        for choice in objects_in(event.get("choices")):
            if choice.get("error"):
                raise base.error_in_reply(choice["error"], status=200)
            self._reason = choice.get("finish_reason") or self._reason
            self._logprobs += _token_list(choice)
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._merge(delta)

    def _merge(self, delta: base.JsonObject) -> None:
        for name in _TEXTS:
            if isinstance(delta.get(name), str):
                self._message[name] = f"{self._message.get(name) or ''}{delta[name]}"
        if details := objects_in(delta.get("reasoning_details")):
            self._message["reasoning_details"] = [*objects_in(self._message.get("reasoning_details")), *details]
        for ordinal, call in enumerate(objects_in(delta.get("tool_calls"))):
            index = call.get("index")
            self._extend(index if isinstance(index, int) else ordinal, call)

    def _extend(self, index: int, call: base.JsonObject) -> None:
        merged = self._calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        function, delta = merged["function"], call.get("function")
        merged |= {name: value for name, value in call.items() if name not in {"index", "function"} and value}
        if isinstance(function, dict) and isinstance(delta, dict):
            for name in ("name", "arguments"):
                function[name] = f"{function[name]}{delta.get(name) or ''}"

    # A stream that ends without a reason was cut: what came of it may be half a verdict, and does not count as a reply.
    def body(self) -> base.JsonObject | None:
        """Return the reply; None without the reason for which it ended."""
        if self._reason is None:
            return None
        calls: base.JsonObject = {"tool_calls": [self._calls[index] for index in sorted(self._calls)]} if self._calls else {}
        choice: base.JsonObject = {"index": 0, "message": self._message | calls, "finish_reason": self._reason}
        choice |= {"logprobs": {"content": self._logprobs}} if self._logprobs else {}
        return {**self._reply, "choices": [choice]}

    @property
    def message(self) -> base.JsonObject:
        """The message as far as it has come; empty where nothing was said."""
        return self._message if len(self._message) > 1 else {}

    def usage(self) -> JsonValue:
        """Return what the server has reported of the usage so far, which it does only at the end."""
        return self._reply.get("usage")


def _token_list(choice: base.JsonObject) -> list[JsonValue]:
    """Return the tokens of a choice with their log probabilities; none where it says nothing of them."""
    logprobs = choice.get("logprobs")
    return [*objects_in(logprobs.get("content"))] if isinstance(logprobs, dict) else []


_DONE = {"stop", "tool_calls"}
_OPAQUE = ("reasoning", "reasoning_content", "reasoning_details")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_OTHER = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The names of a completion's cap, by which compatible servers differ, each with the other one."""

_OPENAI_MODEL = re.compile(r"(openai/)?(gpt-[3-9]|chatgpt-|o[1-9]\b).*|ft:(gpt-|o[1-9]).*")
_OPENAI_HOSTS = (*AZURE_HOSTS, "api.openai.com")
_UNKNOWN_FIELD = re.compile(
    r"not supported|unsupported|unrecogni[sz]ed|unknown|unexpected|extra (inputs|fields)|not permitted", re.IGNORECASE
)
_UNKNOWN_CODES = frozenset({"unsupported_parameter", "unknown_parameter"})
_BAD_FIELD_STATUSES = frozenset({400, 422})


def connect(connections: Connections, endpoint: Endpoint) -> "OpenAIChat":
    """Return the adapter of an endpoint."""
    from activities.providers.http import openai_client

    return OpenAIChat(openai_client(connections, endpoint), endpoint, connections.memory(endpoint))


class OpenAIChat:
    """Speaks Chat Completions through its SDK; reads the raw body, since compatible servers differ from the SDK's types."""

    def __init__(self, client: "AsyncOpenAI", endpoint: Endpoint, memory: dict[str, str]) -> None:
        self._client = client
        self._endpoint = endpoint
        self._memory = memory

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call, and the same one once more where the server does not know the cap by its name; see `Provider`."""
        if request.embedded:
            return await base.embed_openai(self._client, request)
        bound = base.circumstances(request, f"{self._client.base_url} {self._client.api_key}")
        first = base.first_with_thinking(request, bound) if _is_claude(request) or request.without_thinking else 0
        streamed = capability_of(request.spec).stream
        async with self._sent(request, first, streamed=streamed) as response:
            quiet = base.QUIET_SECONDS if is_local(self._endpoint.base_url) and base.silence(request) == base.IDLE_TIMEOUT else None
            reply = model_reply(await base.reply_body(response, ChatAssembly(), _usage, request, quiet), request)
        return base.with_circumstances(reply, request, request.spec.provider, bound) if _is_claude(request) else reply

    @asynccontextmanager
    async def _sent(self, request: ModelRequest, first: int = 0, *, streamed: bool) -> AsyncIterator["httpx2.Response"]:
        """Yield the response to a request; it is sent again where the server does not know the cap by its name."""
        model = request.spec.model
        field = self._memory.get(model) or cap_field(request.spec, urlsplit(self._endpoint.base_url).hostname or "")
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._call(request, first, field, streamed=streamed))
            except Exception as error:
                if not refuses_field(error, field):
                    raise
                # Servers know the cap by one of two names, and refuse the other in words of their own. What a
                # refusal taught is kept for the model before the second try, so each model costs one refused
                # call, at most, in a worker's life.
                self._memory[model] = _OTHER[field]
                response = await stack.enter_async_context(self._call(request, first, _OTHER[field], streamed=streamed))
            yield response.http_response

    def _call(self, request: ModelRequest, first: int, field: str, *, streamed: bool) -> Any:  # noqa: ANN401 - the SDK's context manager
        body = wire_request(request, first, field) | ({"stream": True, "stream_options": {"include_usage": True}} if streamed else {})
        call, sent = self._client.chat.completions.with_streaming_response.create, base.request_body(body, request.spec.config.extra)
        waits = is_local(self._endpoint.base_url) and server_facts(request.spec) is not None  # for a cold model, or a long prompt
        return call(model=body["model"], messages=[], extra_body=sent, timeout=base.reply_timeout(request, streamed=streamed and not waits))

    async def describe(self, spec: ModelSpec, *, trial: bool) -> Description:
        """Ask the server what it is, with a trial whether it enforces a schema if that is wanted; see `describe`."""
        return await describe(self._client, self._endpoint, spec, self._attempt if trial else None)

    async def _attempt(self, request: ModelRequest, streamed: bool) -> Trial:
        assembly, trial = ChatAssembly(), Trial(usage=Usage(attempts=1))
        try:
            async with asyncio.timeout(TRIAL_SECONDS), self._sent(request, streamed=streamed) as response:
                is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
                trial = replace(trial, streamed=is_stream, headers=response.headers)
                body = await base.reply_body(response, assembly, _usage, request, base.QUIET_SECONDS)
                choice = _choice(body)
        except asyncio.CancelledError as error:
            note_paid(error, (paid_by(error) or Usage()) + trial.usage)
            raise
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a result
            usage = paid_by(error) or getattr(error, "usage", None) or base.UNMETERED
            paid = usage if assembly.message else Usage()
            return replace(trial, message=assembly.message, error=error, usage=paid + trial.usage)
        message = choice.get("message")
        whole, usage = choice.get("finish_reason") == "stop", _usage(body.get("usage")) + trial.usage
        return replace(trial, message=message if isinstance(message, dict) else {}, whole=whole, usage=usage)

    async def models(self) -> tuple[str, ...]:
        """Return the models that the endpoint lists; OpenRouter, whose list is open to everybody, is asked for the key itself."""
        if self._endpoint.provider == "openrouter":
            await self._client.get("/key", cast_to=object)
            return ()
        return base.listed(await self._client.get("/models", cast_to=object))


def cap_field(spec: ModelSpec, host: str) -> str:
    """Return the cap's name for a model: OpenAI's own models, on Azure too, take only the newer one, and other servers often the older."""
    if spec.provider == "openrouter":
        return "max_tokens"
    own = host.endswith(_OPENAI_HOSTS) or listed_model(spec.provider, spec.model)[0] == "openai" or _OPENAI_MODEL.fullmatch(spec.model)
    return "max_completion_tokens" if own else "max_tokens"


# The field's name in a message is not enough: a server that says its value is too large names it, too, and
# the same request under the other name would be refused again, or run without a cap.
def refuses_field(error: Exception, field: str) -> bool:
    """Return whether an error says that the server does not know a field, not that its value is wrong."""
    facts = failure_facts(error)
    if facts.status not in _BAD_FIELD_STATUSES:
        return False
    is_named = re.search(rf"\b{field}\b", facts.message) is not None or getattr(error, "param", None) == field
    return is_named and (not _UNKNOWN_CODES.isdisjoint(facts.codes) or _UNKNOWN_FIELD.search(facts.message) is not None)


def _is_claude(request: ModelRequest) -> bool:
    """Return whether OpenRouter hands the call to a model of Anthropic's, whose thinking and whose cache have rules of their own."""
    return request.spec.provider == "openrouter" and request.spec.model.startswith("anthropic/")


CACHED: base.JsonObject = {"type": "ephemeral"}
"""The mark up to which Anthropic caches a prompt."""

BREAKPOINTS = 3
"""Marks beside the one on the system prompt: Anthropic takes four."""


def wire_request(request: ModelRequest, first: int = 0, field: str = "max_tokens") -> dict[str, Any]:
    """Return the request's body, with the reasoning of the messages from index `first` on."""
    config, (functions, choice) = request.spec.config, base.callables(request)
    system = [_marked({"role": "system", "content": request.system}, request)] if request.system else []
    body: dict[str, Any] = {
        "model": request.spec.model,
        "messages": [*system, *_merged(request, first)],
        "max_tokens": base.completion_cap(request) if config.max_tokens or request.cap or request.raised else None,
        "temperature": config.temperature,
        "seed": config.seed,
        "reasoning_effort": config.reasoning_effort,
        "logprobs": request.logprobs or None,
        **_thinking(request.spec),
        "tools": [{"type": "function", "function": row} for row in functions] or None,
        "tool_choice": choice if choice is None or choice in CHOICES else {"type": "function", "function": {"name": choice}},
    }
    if (form := base.answer_form(request)) is not None:
        schema = {"name": form.name, "strict": form.strict, "schema": form.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema} if form.json_schema else {"type": "json_object"}
    return {field if name == "max_tokens" else name: value for name, value in body.items() if value is not None}


def _thinking(spec: ModelSpec) -> dict[str, Any]:
    """Return the setting of thinking: OpenRouter's own, or the one that compatible servers took over from Anthropic."""
    thinking = spec.config.thinking
    if thinking is None:
        return {}
    if spec.provider == "openrouter":
        return {"reasoning": {"max_tokens": thinking} if isinstance(thinking, int) else {"enabled": thinking != "disabled"}}
    return {"thinking": {"type": "enabled", "budget_tokens": thinking} if isinstance(thinking, int) else {"type": thinking}}


def _merged(request: ModelRequest, first: int) -> Iterator[dict[str, Any]]:
    """Yield the messages, neighbours of the user's merged to one: the templates of some servers take no two in a row."""
    marks = set(request.breakpoints[-BREAKPOINTS:]) if _is_claude(request) else set()
    provider = request.spec.provider

    def is_merged(place: tuple[int, Message]) -> bool:
        message = place[1]
        return message.role == "user" and not message.name and not _is_claude(request)  # whose messages have marks of their own

    for by_user, group in groupby(enumerate(request.messages), key=is_merged):
        places = list(group)
        if by_user:
            yield {"role": "user", "content": _shown([message for _, message in places], request)}
            continue
        for at, message in places:
            written = _message(message, provider, with_reasoning=at >= first)
            written |= {"content": _shown([message], request)} if message.role == "user" else {}
            yield _marked(written, request) if at in marks else written


def _shown(messages: Sequence[Message], request: ModelRequest) -> str | list[dict[str, Any]]:
    """Return what the user says, in parts where images or files stand in it."""
    parts = request.parts(*messages)
    if all(isinstance(part, str) for part in parts):
        return "\n\n".join(message.content for message in messages)
    return [{"type": "text", "text": part} if isinstance(part, str) else _image(part) for part in parts]


def _image(image: Attachment) -> dict[str, Any]:
    if image.type == "file":
        if image.media_type is None:
            raise ModelFault("config", f"{image.label()}: Chat Completions takes no file by its address; give it as data:application/pdf")
        return {"type": "file", "file": {"filename": "file.pdf", "file_data": image.url}}
    return {"type": "image_url", "image_url": {"url": image.url} | ({"detail": image.detail} if image.detail else {})}


def _marked(message: dict[str, Any], request: ModelRequest) -> dict[str, Any]:
    """Mark a message for Anthropic's cache; a message without a text takes no mark."""
    content = message["content"]
    if not _is_claude(request) or not isinstance(content, str) or not content:
        return message
    return {**message, "content": [{"type": "text", "text": content, "cache_control": CACHED}]}


def _message(message: Message, provider: str, *, with_reasoning: bool) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if message.role == "user":
        named = {"name": message.name} if message.name and _NAME.fullmatch(message.name) else {}
        return {"role": "user", "content": message.content, **named}
    extras = base.opaque(message.vendor, provider, "message")
    echo: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if message.tool_calls:
        echo["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": to_json(call.arguments).decode()}}
            for call in message.tool_calls
        ]
    kept = {name: part for name, part in extras.items() if with_reasoning or name not in _OPAQUE} if isinstance(extras, dict) else {}
    return {**echo, **kept}


def model_reply(body: base.JsonObject, request: ModelRequest) -> ModelReply:
    """Read the reply's body; raise ModelFault where it is not an answer."""
    with base.paid_reply(body, "usage", _usage) as usage:
        choice = _choice(body)
        message = choice.get("message")
        _refuse_unfinished(choice, message if isinstance(message, dict) else {}, request, usage)
        if not isinstance(message, dict):
            raise base.malformed(f"the reply's choice has no message; finish_reason {choice.get('finish_reason')!r}")
        text, raw_calls = _text(message.get("content")), list(_raw_calls(message, request))
        calls = [base.tool_call(str(raw["id"]), function.get("name"), function.get("arguments")) for raw, function in raw_calls]
        extras = _extras(message, [raw for raw, _ in raw_calls]) if calls else {}
        vendor: base.JsonObject | None = {"provider": request.spec.provider, "message": extras} if extras else None
        return base.assistant_reply(text, calls, vendor, usage, base.log_probs(_token_list(choice)) if request.logprobs else None)


def _choice(body: base.JsonObject) -> base.JsonObject:
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        if choices[0].get("error"):
            raise base.error_in_reply(choices[0]["error"], status=200)
        return choices[0]
    if body.get("error"):
        raise base.error_in_reply(body["error"], status=200)
    raise base.malformed(f"the reply has no choices; its keys: {', '.join(body) or 'none'}")


def _refuse_unfinished(choice: base.JsonObject, message: base.JsonObject, request: ModelRequest, usage: Usage) -> None:
    # A reply counts only if it is whole, which its reason to end says. A cut answer may be valid JSON with rows
    # missing, and a reason that is not known could mean that.
    reason = choice.get("finish_reason")
    if message.get("refusal") or reason == "content_filter":
        raise base.refused(message.get("refusal") or reason, usage)
    if reason == "length":
        raise base.truncated("finish_reason length", request, usage, message)
    if reason == "model_length":  # Mistral's: the prompt and the reply together fill the model's window, which no larger cap cures
        raise base.truncated("finish_reason model_length", request, usage, message, at_own_cap=False)
    if reason not in _DONE:
        raise base.unknown_end(f"finish_reason {reason!r}", usage)


def _text(content: JsonValue) -> str:
    """Return the text; some servers send it in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _raw_calls(message: base.JsonObject, request: ModelRequest) -> Iterator[tuple[base.JsonObject, base.JsonObject]]:
    """Yield each tool call as sent, with an id, beside its function."""
    calls = message.get("tool_calls")
    for ordinal, raw in enumerate(calls if isinstance(calls, list) else []):
        function = raw.get("function") if isinstance(raw, dict) else None
        if not isinstance(raw, dict) or not isinstance(function, dict):
            raise base.malformed(f"a tool call has no function: {raw!r}")
        yield {**raw, "id": raw.get("id") or base.call_id(request.step, ordinal)}, function


def _extras(message: base.JsonObject, raw_calls: list[base.JsonObject]) -> base.JsonObject:
    """Keep what a server wants back with the results of its tool calls; final answers need none, and one server refuses it there."""
    extras: base.JsonObject = {name: message[name] for name in _OPAQUE if message.get(name)}
    if any(raw.get("extra_content") for raw in raw_calls):
        extras["tool_calls"] = list(raw_calls)
    return extras


def _usage(usage: JsonValue) -> Usage:
    return Usage(
        input=base.reported(usage, "prompt_tokens"),
        cached=base.count(usage, "prompt_tokens_details", "cached_tokens"),
        cache_written=base.count(usage, "prompt_tokens_details", "cache_write_tokens"),
        output=base.reported(usage, "completion_tokens"),
        reasoning=base.count(usage, "completion_tokens_details", "reasoning_tokens"),
        calls=1,
        cost_usd=_reported_cost(usage),
    )


def _reported_cost(usage: JsonValue) -> float | None:
    """Return what the call cost in US dollars where the server says so, as OpenRouter does."""
    cost = usage.get("cost") if isinstance(usage, dict) else None
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 < cost < math.inf else None
