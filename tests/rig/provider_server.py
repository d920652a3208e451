"""One server for the protocols of all providers, and the recordings that it replays to the real SDKs over HTTP."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import BaseModel, ConfigDict

from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import FailureKind, ModelFault, ModelReply, ModelRequest, Step
from gradeloop.settings.endpoints import presets_by_name

JsonObject = dict[str, Any]

RECORDINGS = Path(__file__).parents[1] / "recordings"

PROTOCOLS = {
    "anthropic": "anthropic",
    "openai": "openai_responses",
    "openai_compatible": "openai_chat",
    "google_genai": "google",
}
"""The file of recordings, by the provider whose calls have its protocol."""


def call_openrouter_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give OpenRouter, whose address no variable changes, another base URL."""
    presets: Any = presets_by_name()
    monkeypatch.setitem(presets, "openrouter", presets["openrouter"].model_copy(update={"base_url": url}))


class Recorded(BaseModel):
    """A reply as a server sends it: a JSON body, or the events of a stream, of which a text is a comment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: int = 200
    headers: dict[str, str] = {}
    body: JsonObject | None = None
    events: tuple[JsonObject | str, ...] | None = None

    def stream(self, provider: str) -> list[bytes]:
        """Return the server-sent events as the provider writes them."""
        return [_event(event, provider) for event in self.events or ()] + ([b"data: [DONE]\n\n"] if provider == "openai_compatible" else [])


class Exchange(Recorded):
    """A request as its protocol documents it, and the reply."""

    request: JsonObject


class Fault(Recorded):
    """A reply that is not an answer, and the failure that it is."""

    kind: FailureKind
    says: str
    """A part of the failure's message."""
    wait: float | None = None
    """Seconds for which the provider asks the caller to wait."""
    paid: tuple[int, int] | None = None
    """Tokens of the prompt and of the completion, where the reply reports them."""
    raisable: bool = False
    """Whether the call is worth making again with a higher cap."""


class Recordings(BaseModel):
    """The recordings of a protocol, by name."""

    model_config = ConfigDict(extra="forbid")

    exchanges: dict[str, list[Exchange]]
    faults: dict[str, Fault]


@functools.cache
def recordings(provider: str) -> Recordings:
    """Return the recordings of a provider's protocol."""
    return Recordings.model_validate(yaml.safe_load((RECORDINGS / f"{PROTOCOLS[provider]}.yaml").read_text(encoding="utf-8")))


def all_exchanges() -> list[tuple[str, str, Exchange]]:
    """Return every exchange with its provider and its name."""
    return [
        (provider, f"{provider} {name} {at}", exchange)
        for provider in PROTOCOLS
        for name, exchanges in recordings(provider).exchanges.items()
        for at, exchange in enumerate(exchanges)
    ]


def _event(event: JsonObject | str, provider: str) -> bytes:
    if isinstance(event, str):
        return f": {event}\n\n".encode()
    end = "\r\n" if provider == "google_genai" else "\n"
    named = f"event: {event['type']}{end}" if provider in {"anthropic", "openai"} and "type" in event else ""
    return f"{named}data: {json.dumps(event, ensure_ascii=False)}{end}{end}".encode()


def provider_at(path: str) -> str:
    """Return the provider whose protocol a path belongs to; the clouds' paths for Claude are Anthropic's."""
    ends = {"/messages": "anthropic", "/invoke": "anthropic", "/responses": "openai", "/chat/completions": "openai_compatible"}
    cloud = "anthropic" if "rawpredict" in path.lower() else "google_genai"
    return next((provider for end, provider in ends.items() if path.endswith(end)), cloud)


@dataclass(frozen=True)
class Received:
    """A request as the server received it."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The body's JSON."""
        return json.loads(self.raw)

    @property
    def provider(self) -> str:
        """The provider whose protocol the path belongs to."""
        return provider_at(self.path)

    @property
    def model(self) -> str:
        """The model that is asked for."""
        return str(self.body.get("model") or self.path.split("/models/")[-1].partition(":")[0])


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

Cut = Literal["ends", "drops", "hangs"]

KEYS = {"ANTHROPIC_API_KEY": "ant-secret", "OPENAI_API_KEY": "oai-secret", "GOOGLE_API_KEY": "goo-secret"}


class ProviderServer:
    """A server that answers as a test says, and the models that are called there."""

    def __init__(self) -> None:
        self.answer: Any = None
        """A handler, a recording, several that are sent in turn, or JSON."""
        self.received: list[Received] = []
        self.providers = Providers(Environment())
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        """The server's address."""
        return str(self.server.make_url("")).rstrip("/")

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which the calls of all providers go there."""
        places = {"ANTHROPIC_BASE_URL": self.url, "OPENAI_BASE_URL": f"{self.url}/v1", "GOOGLE_GEMINI_BASE_URL": self.url}
        return KEYS | places | {"GRADELOOP_BASE_URLS": f"{self.url}/compatible"}

    def forget(self) -> None:
        """Forget what an earlier test made of it."""
        self.answer = None
        self.received.clear()

    async def ask(self, model: str, answer: Any = None, config: JsonObject | None = None, **parts: Any) -> ModelReply:
        """Make one call; the arguments beside the model's are those of `ModelRequest`."""
        if answer is not None:
            self.answer = answer
        spec = ModelSpec.model_validate({"id": model, "config": config or {}})
        step = parts.pop("step", Step(role="grader", iteration=1))
        messages = parts.pop("messages", (Message(role="user", content="hi"),))
        return await self.providers.complete(ModelRequest(spec, step, tuple(messages), **parts))

    async def fault(self, model: str, answer: Any = None, config: JsonObject | None = None, **parts: Any) -> ModelFault:
        """Return the fault that a call raises."""
        with pytest.raises(ModelFault) as caught:
            await self.ask(model, answer, config, **parts)
        assert caught.value.__cause__ is None
        return caught.value

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":  # it lists no models, and says nothing of itself
            return web.json_response({"error": {"message": "not found"}}, status=404)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.path_qs, headers, await request.read()))
        answer = self.answer.pop(0) if isinstance(self.answer, list) else self.answer
        if callable(answer):
            response: web.StreamResponse = await answer(request)
            return response
        return await send(request, answer if isinstance(answer, Recorded) else Recorded(body=answer))


async def send(request: web.Request, recorded: Recorded, cut: Cut | None = None) -> web.StreamResponse:
    """Send a recording, or the beginning of its stream, after which the server ends it, drops the connection, or says no more."""
    if recorded.events is None:
        return web.json_response(recorded.body, status=recorded.status, headers=recorded.headers)
    response = web.StreamResponse(status=recorded.status, headers={"content-type": "text/event-stream", **recorded.headers})
    await response.prepare(request)
    provider = provider_at(request.path)
    for event in recorded.stream(provider)[: 1 if cut else None]:
        await response.write(event)
    if cut == "drops" and request.transport is not None:
        request.transport.abort()
    if cut == "hangs":
        await asyncio.sleep(3600)
    return response


def reply(provider: str, text: str = "", arguments: Any = None, name: str | None = "look", reported: bool = True) -> JsonObject:
    """Return a small reply of a provider's protocol, without streaming: a text, or a tool call."""
    called = arguments is not None
    usage: JsonObject
    if provider == "anthropic":
        block = {"type": "tool_use", "id": "t", "name": name, "input": arguments} if called else {"type": "text", "text": text}
        usage = {"usage": {"input_tokens": 10, "output_tokens": 5}}
        body = {"type": "message", "role": "assistant", "content": [block], "stop_reason": "tool_use" if called else "end_turn"}
    elif provider == "openai":
        call = {"type": "function_call", "call_id": "t", "name": name, "arguments": arguments}
        said = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        usage = {"usage": {"input_tokens": 10, "output_tokens": 5}}
        body = {"status": "completed", "output": [call if called else said]}
    elif provider == "openai_compatible":
        calls = [{"id": "t", "type": "function", "function": {"name": name, "arguments": arguments}}]
        message = {"content": None, "tool_calls": calls} if called else {"content": text}
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    else:
        part = {"functionCall": {"id": "t", "name": name, "args": arguments}} if called else {"text": text}
        usage = {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5}}
        body = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}
    return body | (usage if reported else {})


def raw_body(raw: bytes, content_type: str = "application/json", status: int = 200, **headers: str) -> Handler:
    """Answer with these bytes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=raw, status=status, headers={"content-type": content_type, **headers})

    return answer


def turns(provider: str, name: str) -> list[Recorded]:
    """Return the replies of a recording, to be sent in turn."""
    return list[Recorded](recordings(provider).exchanges[name])


def tokens(usage: Usage) -> Usage:
    """Return what the server reported of the usage, without the clock and the price."""
    return usage.model_copy(update={"attempts": 0, "seconds": 0, "cost_usd": None})


def timeless(reply: ModelReply) -> ModelReply:
    """Return a reply with no more of its usage than the server reported."""
    return replace(reply, usage=tokens(reply.usage))


@asynccontextmanager
async def provider_server() -> AsyncIterator[ProviderServer]:
    """Serve on a free port of this machine."""
    served = ProviderServer()
    await served.server.start_server()
    served.providers = Providers(Environment.read(served.environ))
    try:
        yield served
    finally:
        await served.providers.aclose()
        await served.server.close()
