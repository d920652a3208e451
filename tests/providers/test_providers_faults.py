"""What the adapters make of replies that are no answers: every one is a failure with a name, none is an empty draft."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.provider import FailureKind, ModelReply, Step, ToolSpec
from tests.rig.provider_server import ProviderServer, raw_body, timeless

BOTH = ("anthropic:m", "openai_compatible:m")
CHAT = "openai_compatible:m"


async def ask(provider: ProviderServer, model: str, answer: Any, **parts: Any) -> ModelReply:
    """Call a model whose server answers by the handler, or with the JSON."""
    step = Step(role="generator", iteration=2, step=1)
    return timeless(await provider.ask(model, answer, step=step, **parts))


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


@pytest.mark.parametrize(
    ("model", "raw", "content_type", "words"),
    [
        (
            CHAT,
            b"<html>gateway</html>",
            "text/html",
            "the reply is not JSON (expected value at line 1 column 1); it begins '<html>gateway</html>'",
        ),
        (CHAT, b"", "application/json", "it is empty"),
        (CHAT, b'{"type": "message", "content": [{"ty', "application/json", "the reply is not JSON (EOF while parsing"),
        (CHAT, b"[1]", "application/json", "the reply is a JSON list, not an object: '[1]'"),
        (CHAT, b'{"a": NaN}', "application/json", "the reply is not JSON"),
        (CHAT, b'{"a": "\\ud800"}', "application/json", "its keys: a"),
        (CHAT, b'{"a": "\\ud800', "application/json", "the reply is not JSON"),
        (CHAT, b"[" * 5000, "application/json", "the reply is not JSON"),
        (CHAT, b"{}", "application/json", "its keys: none"),
        (CHAT, b"data: [1]\n\n", "text/event-stream", "an event of the stream is not an object"),
        (CHAT, b"data: {\n\n", "text/event-stream", "an event of the stream is not JSON"),
        (CHAT, b"data: [DONE]", "text/event-stream", "the stream ended before the reply was complete"),
        ("anthropic:m", b"{}", "application/json", "its keys: none"),
        ("openai:m", b"{}", "application/json", "the reply has no list of output items; its keys: none"),
        ("google_genai:m", b"{}", "application/json", "the reply has no candidates; its keys: none"),
    ],
)
async def test_a_200_that_is_no_reply_is_malformed(provider: ProviderServer, model: str, raw: bytes, content_type: str, words: str) -> None:
    error = await provider.fault(model, raw_body(raw, content_type))

    assert (error.kind, error.model) == ("malformed_response", model)
    assert words in error.message


@pytest.mark.parametrize(
    ("model", "reply", "kind", "words"),
    [
        ("anthropic:m", claude([]), "malformed_response", "the reply is empty: no text and no tool call"),
        ("anthropic:m", claude(text(" \n")), "malformed_response", "the reply is empty"),
        ("anthropic:m", claude([{"type": "thinking", "thinking": "hm", "signature": "s"}]), "malformed_response", "the reply is empty"),
        ("anthropic:m", claude(None), "malformed_response", "the reply has no list of content blocks"),
        ("anthropic:m", claude(text("half"), "model_context_window_exceeded"), "truncated", "model_context_window_exceeded"),
        ("anthropic:m", claude(text("a"), "pause_turn"), "malformed_response", "unknown reason: stop_reason 'pause_turn'"),
        ("anthropic:m", claude(text("a"), None), "malformed_response", "stop_reason None"),
        ("anthropic:m", claude([], "refusal"), "refused", "the model refused to answer (no reason given)"),
        ("anthropic:m", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "overloaded", "inside HTTP 200: busy"),
        ("anthropic:m", claude([{"type": "tool_use", "id": "t", "input": {}}], "tool_use"), "malformed_response", "names no tool: None"),
        (CHAT, chat({"content": ""}), "malformed_response", "the reply is empty"),
        (CHAT, chat({"content": None}), "malformed_response", "the reply is empty"),
        (CHAT, chat({"content": "a"}, "eos"), "malformed_response", "unknown reason: finish_reason 'eos'"),
        (CHAT, chat({"content": "a"}, None), "malformed_response", "finish_reason None"),
        (CHAT, chat(None), "malformed_response", "the reply's choice has no message"),
        (CHAT, chat(None, "content_filter"), "refused", "the model refused to answer (content_filter)"),
        (CHAT, {"choices": []}, "malformed_response", "the reply has no choices; its keys: choices"),
        (CHAT, {"choices": None, "error": {"code": 429, "message": "slow down"}}, "rate_limited", "inside HTTP 200: slow down"),
        (CHAT, {"error": {"code": "insufficient_quota", "message": "pay"}}, "quota_exhausted", "pay"),
        (CHAT, {"error": "model is loading"}, "malformed_response", "model is loading"),
        (CHAT, chat({"content": "half"}, "error", error={"code": 503, "message": "gone"}), "server", "gone"),
        (CHAT, chat({"tool_calls": [{"id": "a", "type": "custom"}]}), "malformed_response", "a tool call has no function"),
        (CHAT, chat({"tool_calls": [{"id": "a", "function": {"name": ""}}]}), "malformed_response", "names no tool: ''"),
    ],
)
async def test_a_reply_without_an_answer_is_a_failure_with_a_name(
    provider: ProviderServer, model: str, reply: Any, kind: FailureKind, words: str
) -> None:
    error = await provider.fault(model, reply)

    assert error.kind == kind
    assert words in error.message


@pytest.mark.parametrize("model", BOTH)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_dropped_connection_is_a_connection_failure(provider: ProviderServer, model: str, begun: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
        if begun:
            await response.prepare(request)
            await response.write(b'{"id": ')
        assert request.transport is not None
        request.transport.abort()
        return response

    error = await provider.fault(model, answer)

    assert error.kind == "connection"


async def test_a_cancelled_call_ends_as_cancelled(provider: ProviderServer) -> None:
    arrived = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        arrived.set()
        await asyncio.sleep(30)
        return web.Response()

    task = asyncio.ensure_future(provider.ask(CHAT, answer))
    await arrived.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_server_that_quotes_the_key_does_not_get_it_into_the_message(provider: ProviderServer) -> None:
    answer = json.dumps({"error": {"message": "bad key oai-secret!"}}).encode()
    error = await provider.fault(CHAT, raw_body(answer, status=401))

    assert (error.kind, error.message) == ("auth", "bad key [key]!")


@pytest.mark.parametrize(
    ("model", "reply"),
    [
        ("anthropic:m", claude([{"type": "tool_use", "id": "", "name": "look", "input": {"n": 1}}], "tool_use")),
        (CHAT, chat({"tool_calls": [{"id": None, "function": {"name": "look", "arguments": '{"n": 1}'}}]}, "tool_calls")),
        (CHAT, chat({"tool_calls": [{"function": {"name": "look", "arguments": {"n": 1}}}]}, "tool_calls")),
    ],
)
async def test_a_tool_call_without_an_id_gets_the_same_one_at_every_retry(provider: ProviderServer, model: str, reply: Any) -> None:
    first, again = await ask(provider, model, reply), await ask(provider, model, reply)

    assert first.message.tool_calls == (ToolCall(id="call_0_2_0_0_1_0", name="look", arguments={"n": 1}),)
    assert again == first


@pytest.mark.parametrize("arguments", ['{"n": ', "[1]", "7", '{"n": NaN}', '{"n": "\\ud800"}'])
async def test_arguments_that_are_no_json_object_are_kept_as_written(provider: ProviderServer, arguments: str) -> None:
    reply = await ask(
        provider, CHAT, chat({"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}]}, "tool_calls")
    )

    assert reply.message.tool_calls == (ToolCall(id="a", name="look", invalid=arguments),)


@pytest.mark.parametrize("arguments", ["", None, "{}"])
async def test_no_arguments_are_an_empty_object(provider: ProviderServer, arguments: str | None) -> None:
    reply = await ask(
        provider, CHAT, chat({"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": arguments}}]}, "tool_calls")
    )

    assert reply.message.tool_calls == (ToolCall(id="a", name="look"),)


async def test_input_of_anthropic_that_is_no_object_is_kept_as_written(provider: ProviderServer) -> None:
    reply = await ask(provider, "anthropic:m", claude([{"type": "tool_use", "id": "t", "name": "look", "input": [1]}], "tool_use"))

    assert reply.message.tool_calls == (ToolCall(id="t", name="look", invalid="[1]"),)


async def test_text_in_parts_is_one_text(provider: ProviderServer) -> None:
    reply = await ask(provider, CHAT, chat({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}))

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
        (
            "openai:m",
            {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]},
            UNREPORTED,
        ),
        ("google_genai:m", {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}, UNREPORTED),
        (CHAT, chat({"content": "a"}), UNREPORTED),
        (CHAT, {**chat({"content": "a"}), "usage": {"prompt_tokens": -1, "completion_tokens": "9"}}, UNREPORTED),
    ],
)
async def test_usage_is_counted_alike_for_all_providers(provider: ProviderServer, model: str, reply: Any, usage: Usage) -> None:
    assert (await ask(provider, model, reply)).usage == usage


async def body_of(provider: ProviderServer, model: str, **parts: Any) -> dict[str, Any]:
    """Return the body of a call that is answered well."""
    await provider.ask(model, claude(text("ok")) if model == "anthropic:m" else chat({"content": "ok"}), **parts)
    body: dict[str, Any] = provider.received[-1].body
    return body


@pytest.mark.parametrize(("model", "choice"), [("anthropic:m", {"type": "none"}), (CHAT, "none")])
async def test_on_a_last_turn_the_tools_stay_declared_but_may_not_be_called(provider: ProviderServer, model: str, choice: Any) -> None:
    look = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})

    body = await body_of(provider, model, tools=(look,), tools_allowed=False)

    assert (body["tool_choice"], len(body["tools"])) == (choice, 1)


@pytest.mark.parametrize("model", BOTH)
async def test_without_tools_no_choice_of_one_is_sent(provider: ProviderServer, model: str) -> None:
    assert not {"tools", "tool_choice"} & (await body_of(provider, model, tools_allowed=False)).keys()


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
    provider: ProviderServer, model: str, vendor: Any, assistant: dict[str, Any]
) -> None:
    said = (Message(role="user", content="a"), Message(role="assistant", content="plain", vendor=vendor), Message(role="user", content="b"))

    assert (await body_of(provider, model, messages=said))["messages"][1] == assistant


async def test_reasoning_is_kept_with_the_tool_calls_that_it_led_to_and_dropped_from_a_final_answer(provider: ProviderServer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}, "extra_content": {"google": {"sig": "s"}}}
    reasons = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}], "reasoning": None, "other": 1}

    asked = await ask(provider, CHAT, chat({**reasons, "tool_calls": [call]}, "tool_calls"))
    answer = await ask(provider, CHAT, chat({**reasons, "content": "done"}))

    kept = {"reasoning_details": reasons["reasoning_details"], "tool_calls": [call]}
    assert asked.message.vendor == {"provider": "openai_compatible", "message": kept}
    assert answer.message.vendor is None


@pytest.mark.parametrize("model", BOTH)
async def test_a_call_that_another_provider_named_oddly_is_answered_under_one_name(provider: ProviderServer, model: str) -> None:
    call = ToolCall(id="functions.look:0", name="look", invalid='{"n": ')
    asked = Message(role="assistant", content=" ", tool_calls=(call,))
    said = (Message(role="user", content="a"), asked, Message(role="tool", tool_call_id=call.id))

    _, assistant, results = (await body_of(provider, model, messages=said))["messages"]
    if model == CHAT:
        assert assistant["tool_calls"] == [{"id": call.id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        assert results == {"role": "tool", "tool_call_id": call.id, "content": ""}
    else:
        assert assistant["content"] == [{"type": "tool_use", "id": "functions_look_0", "name": "look", "input": {}}]
        assert results["content"] == [{"type": "tool_result", "tool_use_id": "functions_look_0", "content": ""}]


async def test_neighbours_of_one_role_become_one_message_of_anthropic(provider: ProviderServer) -> None:
    said = [Message(role=role, content=f"{role} {n}") for role in ("user", "assistant", "user") for n in (1, 2)]

    body = await body_of(provider, "anthropic:m", messages=said)

    assert [(sent["role"], [block["text"] for block in sent["content"]]) for sent in body["messages"]] == [
        (role, [f"{role} 1", f"{role} 2"]) for role in ("user", "assistant", "user")
    ]


async def test_the_same_request_is_the_same_bytes(provider: ProviderServer) -> None:
    for _ in range(2):
        await body_of(provider, "anthropic:m", system="s", schema={"type": "object", "properties": {"b": {}, "a": {}}})

    assert provider.received[0].raw == provider.received[1].raw


async def test_calls_of_one_process_share_their_connections(provider: ProviderServer) -> None:
    ports: set[Any] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.json_response(claude(text("ok")) if request.path == "/v1/messages" else chat({"content": "ok"}))

    for model in (*BOTH, *BOTH):
        await provider.ask(model, answer)

    assert len(ports) == 1
