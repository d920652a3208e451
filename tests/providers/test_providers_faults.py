"""What the adapters make of replies that are no answers: every one is a failure with a name, none is an empty draft."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.errors import FailureKind, ModelFault
from activities.providers import Providers
from activities.providers.base import ModelReply, ModelRequest, Step, ToolSpec
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.model_spec import ModelSpec

BOTH = ("anthropic:m", "openai_compatible:m")
CHAT = "openai_compatible:m"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Ask = Callable[..., Awaitable[ModelReply]]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Call a model whose server answers every request by the handler, or with the JSON, that the test gives."""
    opened: list[tuple[TestServer, Providers]] = []

    async def call(model: str, answer: Handler | Any, **parts: Any) -> ModelReply:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await answer(request) if callable(answer) else web.json_response(answer)

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        server = TestServer(app)
        await server.start_server()
        url = str(server.make_url("")).rstrip("/")
        environ = {"ANTHROPIC_API_KEY": "ant-secret", "OPENAI_API_KEY": "oai-secret", "ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url}
        providers = Providers(Environment.read(environ))
        opened.append((server, providers))
        said = (Message(role="user", content="hi"),)
        request = ModelRequest(ModelSpec(id=model), Step(role="generator", iteration=2, step=1), parts.pop("messages", said), **parts)
        reply = await providers.complete(request)
        return replace(reply, usage=reply.usage.model_copy(update={"attempts": 0, "seconds": 0, "cost_usd": None}))

    yield call
    for server, providers in opened:
        await providers.aclose()
        await server.close()


async def fault(reply: Awaitable[ModelReply]) -> ModelFault:
    """Return the fault that the call raises."""
    with pytest.raises(ModelFault) as caught:
        await reply
    assert caught.value.__cause__ is None
    return caught.value


UNREPORTED = Usage(input=None, output=None, calls=1)
"""The usage of a call whose server reports none."""


def claude(content: Any, reason: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    """Write a reply of the Messages API."""
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": reason, "usage": {"output_tokens": 5}, **more}


def chat(message: Any, reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    """Write a reply of the Chat Completions API."""
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": reason, **more}]}


def text(words: str) -> list[dict[str, Any]]:
    """Write a text block."""
    return [{"type": "text", "text": words}]


def body(raw: bytes, content_type: str = "application/json", status: int = 200, **headers: str) -> Handler:
    """Answer with these bytes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=raw, status=status, headers={"content-type": content_type, **headers})

    return answer


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize(
    ("raw", "content_type", "words"),
    [
        (
            b"<html>gateway</html>",
            "text/html",
            "the reply is no JSON (expected value at line 1 column 1); it begins '<html>gateway</html>'",
        ),
        (b"", "application/json", "it is empty"),
        (b'{"type": "message", "content": [{"ty', "application/json", "the reply is no JSON (EOF while parsing"),
        (b"[1]", "application/json", "the reply is a JSON list, not an object: '[1]'"),
        (b'{"a": NaN}', "application/json", "the reply is no JSON"),
        (b'{"a": "\\ud800"}', "application/json", "its keys: a"),
        (b'{"a": "\\ud800', "application/json", "the reply is no JSON"),
        (b"[" * 5000, "application/json", "the reply is no JSON"),
        (b"{}", "application/json", "its keys: none"),
    ],
)
async def test_a_200_that_is_no_reply_is_malformed(ask: Ask, model: str, raw: bytes, content_type: str, words: str) -> None:
    error = await fault(ask(model, body(raw, content_type)))

    assert (error.kind, error.model) == ("malformed_response", model)
    assert words in error.message


@pytest.mark.parametrize(
    ("model", "reply", "kind", "words"),
    [
        ("anthropic:m", claude([]), "malformed_response", "the reply is empty: no text and no tool call"),
        ("anthropic:m", claude(text(" \n")), "malformed_response", "the reply is empty"),
        ("anthropic:m", claude([{"type": "thinking", "thinking": "hm", "signature": "s"}]), "malformed_response", "the reply is empty"),
        ("anthropic:m", claude(None), "malformed_response", "the reply has no list of content blocks"),
        ("anthropic:m", claude(text("half"), "max_tokens"), "truncated", "the reply was cut (max_tokens) after 5 tokens; raise"),
        ("anthropic:m", claude(text("half"), "model_context_window_exceeded"), "truncated", "model_context_window_exceeded"),
        ("anthropic:m", claude(text("a"), "pause_turn"), "malformed_response", "unknown reason: stop_reason 'pause_turn'"),
        ("anthropic:m", claude(text("a"), None), "malformed_response", "stop_reason None"),
        ("anthropic:m", claude([], "refusal"), "refused", "the model refused to answer (no reason given)"),
        (
            "anthropic:m",
            claude(text("a"), "refusal", stop_details={"type": "refusal", "category": "cyber", "explanation": "not this"}),
            "refused",
            "the model refused to answer (cyber: not this)",
        ),
        ("anthropic:m", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "overloaded", "inside HTTP 200: busy"),
        ("anthropic:m", claude([{"type": "tool_use", "id": "t", "input": {}}], "tool_use"), "malformed_response", "names no tool: None"),
        (CHAT, chat({"content": ""}), "malformed_response", "the reply is empty"),
        (CHAT, chat({"content": None}), "malformed_response", "the reply is empty"),
        (CHAT, chat({"content": "half"}, "length"), "truncated", "the reply was cut (finish_reason length)"),
        (CHAT, chat({"content": "a"}, "eos"), "malformed_response", "unknown reason: finish_reason 'eos'"),
        (CHAT, chat({"content": "a"}, None), "malformed_response", "finish_reason None"),
        (CHAT, chat(None), "malformed_response", "the reply's choice has no message"),
        (CHAT, chat(None, "content_filter"), "refused", "the model refused to answer (content_filter)"),
        (CHAT, chat({"content": None, "refusal": "I cannot."}), "refused", "the model refused to answer (I cannot.)"),
        (CHAT, {"choices": []}, "malformed_response", "the reply has no choices; its keys: choices"),
        (CHAT, {"choices": None, "error": {"code": 429, "message": "slow down"}}, "rate_limited", "inside HTTP 200: slow down"),
        (CHAT, {"error": {"code": 502, "message": "upstream"}}, "server", "inside HTTP 200: upstream"),
        (CHAT, {"error": {"code": 400, "message": "Token limit reached"}}, "truncated", "Token limit reached"),
        (CHAT, {"error": {"code": "insufficient_quota", "message": "pay"}}, "quota_exhausted", "pay"),
        (CHAT, {"error": "model is loading"}, "malformed_response", "model is loading"),
        (CHAT, chat({"content": "half"}, "error", error={"code": 503, "message": "gone"}), "server", "gone"),
        (CHAT, chat({"tool_calls": [{"id": "a", "type": "custom"}]}), "malformed_response", "a tool call has no function"),
        (CHAT, chat({"tool_calls": [{"id": "a", "function": {"name": ""}}]}), "malformed_response", "names no tool: ''"),
    ],
)
async def test_a_reply_without_an_answer_is_a_failure_with_a_name(ask: Ask, model: str, reply: Any, kind: FailureKind, words: str) -> None:
    error = await fault(ask(model, reply))

    assert error.kind == kind
    assert words in error.message


@pytest.mark.parametrize("model", BOTH)
async def test_a_redirect_is_not_followed(ask: Ask, model: str) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        return web.Response(status=307, headers={"location": "/elsewhere"})

    error = await fault(ask(model, answer))

    assert (error.kind, error.status, len(seen)) == ("bad_request", 307, 1)
    assert "redirects to '/elsewhere', which is refused" in error.message


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_a_failing_server_is_asked_once_since_temporal_owns_retries(ask: Ask, model: str, status: int) -> None:
    calls: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        calls.append(request.path)
        return web.json_response({"error": {"message": "no", "type": "x"}}, status=status, headers={"retry-after": "7"})

    error = await fault(ask(model, answer))

    assert (error.status, error.retry_after, len(calls)) == (status, 7.0, 1)


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_dropped_connection_is_a_connection_failure(ask: Ask, model: str, begun: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
        if begun:
            await response.prepare(request)
            await response.write(b'{"id": ')
        assert request.transport is not None
        request.transport.abort()
        return response

    error = await fault(ask(model, answer))

    assert error.kind == "connection"


@pytest.mark.parametrize("model", BOTH)
async def test_a_server_that_trickles_beyond_the_deadline_is_a_timeout(ask: Ask, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.base.CALL_SECONDS", 0.4)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    error = await fault(ask(model, answer))

    assert error.kind == "timeout"
    assert error.message.startswith("no whole reply within 0.4 s; what the provider charges for it is not known; raise config.timeout")


@pytest.mark.parametrize("model", BOTH)
async def test_a_cancelled_call_ends_as_cancelled(ask: Ask, model: str) -> None:
    arrived = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        arrived.set()
        await asyncio.sleep(30)
        return web.Response()

    task = asyncio.ensure_future(ask(model, answer))
    await arrived.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(("model", "key"), [("anthropic:m", "ant-secret"), ("openai:m", "oai-secret")])
async def test_a_server_that_quotes_the_key_does_not_get_it_into_the_message(ask: Ask, model: str, key: str) -> None:
    error = await fault(ask(model, body(json.dumps({"error": {"message": f"bad key {key}!"}}).encode(), status=401)))

    assert (error.kind, error.message) == ("auth", "bad key [key]!")


@pytest.mark.parametrize(
    ("model", "reply"),
    [
        ("anthropic:m", claude([{"type": "tool_use", "id": "", "name": "look", "input": {"n": 1}}], "tool_use")),
        (CHAT, chat({"tool_calls": [{"id": None, "function": {"name": "look", "arguments": '{"n": 1}'}}]}, "tool_calls")),
        (CHAT, chat({"tool_calls": [{"function": {"name": "look", "arguments": {"n": 1}}}]}, "tool_calls")),
    ],
)
async def test_a_tool_call_without_an_id_gets_the_same_one_at_every_retry(ask: Ask, model: str, reply: Any) -> None:
    first, again = await ask(model, reply), await ask(model, reply)

    assert first.message.tool_calls == (ToolCall(id="call_0_2_0_0_1_0", name="look", arguments={"n": 1}),)
    assert again == first


@pytest.mark.parametrize("arguments", ['{"n": ', "[1]", "7", '{"n": NaN}', '{"n": "\\ud800"}'])
async def test_arguments_that_are_no_json_object_are_kept_as_written(ask: Ask, arguments: str) -> None:
    reply = await ask(CHAT, chat({"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}]}, "tool_calls"))

    assert reply.message.tool_calls == (ToolCall(id="a", name="look", invalid=arguments),)


@pytest.mark.parametrize("arguments", ["", None, "{}"])
async def test_no_arguments_are_an_empty_object(ask: Ask, arguments: str | None) -> None:
    reply = await ask(CHAT, chat({"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}]}, "tool_calls"))

    assert reply.message.tool_calls == (ToolCall(id="a", name="look"),)


async def test_input_of_anthropic_that_is_no_object_is_kept_as_written(ask: Ask) -> None:
    reply = await ask("anthropic:m", claude([{"type": "tool_use", "id": "t", "name": "look", "input": [1]}], "tool_use"))

    assert reply.message.tool_calls == (ToolCall(id="t", name="look", invalid="[1]"),)


async def test_text_in_parts_is_one_text(ask: Ask) -> None:
    reply = await ask(CHAT, chat({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}))

    assert reply.message.content == "ab"


@pytest.mark.parametrize(
    ("model", "reply", "usage"),
    [
        (
            "anthropic:m",
            claude(
                text("a"),
                usage={
                    "input_tokens": 10,
                    "cache_creation_input_tokens": 3,
                    "cache_read_input_tokens": 4,
                    "output_tokens": 9,
                    "output_tokens_details": {"thinking_tokens": 2},
                },
            ),
            Usage(input=17, cached=4, cache_written=3, output=9, reasoning=2, calls=1),
        ),
        (
            CHAT,
            {
                **chat({"content": "a"}),
                "usage": {
                    "prompt_tokens": 17,
                    "prompt_tokens_details": {"cached_tokens": 4},
                    "completion_tokens": 9,
                    "completion_tokens_details": {"reasoning_tokens": 2},
                },
            },
            Usage(input=17, cached=4, output=9, reasoning=2, calls=1),
        ),
        ("anthropic:m", claude(text("a"), usage=None), UNREPORTED),
        (CHAT, chat({"content": "a"}), UNREPORTED),
        (CHAT, {**chat({"content": "a"}), "usage": {"prompt_tokens": -1, "completion_tokens": "9"}}, UNREPORTED),
    ],
)
async def test_usage_is_counted_alike_for_all_providers(ask: Ask, model: str, reply: Any, usage: Usage) -> None:
    assert (await ask(model, reply)).usage == usage


class Listener:
    """A server that answers well and keeps what it was sent."""

    def __init__(self, model: str) -> None:
        self.sent: dict[str, Any] = {}
        self._reply = claude(text("ok")) if model == "anthropic:m" else chat({"content": "ok"})

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.sent = await request.json()
        return web.json_response(self._reply)


@pytest.mark.parametrize(("model", "choice"), [("anthropic:m", {"type": "none"}), (CHAT, "none")])
async def test_on_a_last_turn_the_tools_stay_declared_but_may_not_be_called(ask: Ask, model: str, choice: Any) -> None:
    listener, look = Listener(model), ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})

    await ask(model, listener, tools=(look,), tools_allowed=False)

    assert listener.sent["tool_choice"] == choice
    assert len(listener.sent["tools"]) == 1


@pytest.mark.parametrize("model", BOTH)
async def test_without_tools_no_choice_of_one_is_sent(ask: Ask, model: str) -> None:
    listener = Listener(model)

    await ask(model, listener, tools_allowed=False)

    assert not {"tools", "tool_choice"} & listener.sent.keys()


THOUGHT = {"provider": "anthropic", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, *text("spoken")]}
REASONED = {"provider": "openai_compatible", "message": {"reasoning_content": "hm"}}


@pytest.mark.parametrize(
    ("model", "vendor", "assistant"),
    [
        ("anthropic:m", THOUGHT, {"role": "assistant", "content": THOUGHT["content"]}),
        ("anthropic:m", REASONED, {"role": "assistant", "content": text("plain")}),
        (CHAT, REASONED, {"role": "assistant", "content": "plain", "reasoning_content": "hm"}),
        (CHAT, THOUGHT, {"role": "assistant", "content": "plain"}),
        (CHAT, {**REASONED, "provider": "openrouter"}, {"role": "assistant", "content": "plain"}),
    ],
)
async def test_opaque_parts_go_back_to_the_provider_that_made_them_and_to_no_other(
    ask: Ask, model: str, vendor: Any, assistant: dict[str, Any]
) -> None:
    listener = Listener(model)
    said = (Message(role="user", content="a"), Message(role="assistant", content="plain", vendor=vendor), Message(role="user", content="b"))

    await ask(model, listener, messages=said)

    assert listener.sent["messages"][1] == assistant


async def test_reasoning_is_kept_with_the_tool_calls_that_it_led_to_and_dropped_from_a_final_answer(ask: Ask) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}, "extra_content": {"google": {"sig": "s"}}}
    reasons = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}], "reasoning": None, "other": 1}

    asked = await ask(CHAT, chat({**reasons, "tool_calls": [call]}, "tool_calls"))
    answer = await ask(CHAT, chat({**reasons, "content": "done"}))

    kept = {"reasoning_details": reasons["reasoning_details"], "tool_calls": [call]}
    assert asked.message.vendor == {"provider": "openai_compatible", "message": kept}
    assert answer.message.vendor is None


@pytest.mark.parametrize("model", BOTH)
async def test_a_call_that_another_provider_named_oddly_is_answered_under_one_name(ask: Ask, model: str) -> None:
    listener, call = Listener(model), ToolCall(id="functions.look:0", name="look", invalid='{"n": ')
    asked = Message(role="assistant", content=" ", tool_calls=(call,))
    said = (Message(role="user", content="a"), asked, Message(role="tool", tool_call_id=call.id))

    await ask(model, listener, messages=said)

    _, assistant, results = listener.sent["messages"]
    if model == CHAT:
        assert assistant["tool_calls"] == [{"id": call.id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        assert results == {"role": "tool", "tool_call_id": call.id, "content": ""}
    else:
        assert assistant["content"] == [{"type": "tool_use", "id": "functions_look_0", "name": "look", "input": {}}]
        assert results["content"] == [{"type": "tool_result", "tool_use_id": "functions_look_0", "content": ""}]


async def test_neighbours_of_one_role_become_one_message_of_anthropic(ask: Ask) -> None:
    listener = Listener("anthropic:m")
    said = [Message(role=role, content=f"{role} {n}") for role in ("user", "assistant", "user") for n in (1, 2)]

    await ask("anthropic:m", listener, messages=tuple(said))

    assert [(sent["role"], [block["text"] for block in sent["content"]]) for sent in listener.sent["messages"]] == [
        (role, [f"{role} 1", f"{role} 2"]) for role in ("user", "assistant", "user")
    ]


async def test_the_same_request_is_the_same_bytes(ask: Ask) -> None:
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.read())
        return web.json_response(claude(text("ok")))

    for _ in range(2):
        await ask("anthropic:m", answer, system="s", schema={"type": "object", "properties": {"b": {}, "a": {}}})

    assert bodies[0] == bodies[1]


async def test_calls_of_one_process_share_their_connections() -> None:
    ports: set[Any] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.json_response(claude(text("ok")) if request.path == "/v1/messages" else chat({"content": "ok"}))

    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    providers = Providers(Environment.read({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url}))
    for model in (*BOTH, *BOTH):
        await providers.complete(ModelRequest(ModelSpec(id=model), Step(role="grader"), (Message(role="user", content="hi"),)))
    await providers.aclose()
    await server.close()

    assert len(ports) == 1
