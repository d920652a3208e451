"""Reasoning that a provider does not take back, and Claude behind OpenRouter: whole threads through the real SDK."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client

from tests.rig.provider_server import call_openrouter_at
from tests.rig.threads import Models, a_thread, serving, verdict_text

JsonObject = dict[str, Any]
ROUTED = "openrouter:anthropic/claude-opus-5.5"


def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


@asynccontextmanager
async def server(answer: Callable[[JsonObject], web.StreamResponse]) -> AsyncIterator[tuple[str, list[JsonObject]]]:
    """Serve an answer to every request; yield the address and the requests."""
    seen: list[JsonObject] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        return answer(seen[-1])

    app = web.Application()
    app.router.add_post("/{tail:.*}", handle)
    served = TestServer(app)
    await served.start_server()
    try:
        yield str(served.make_url("")).rstrip("/"), seen
    finally:
        await served.close()


async def test_reasoning_that_another_organization_cannot_read_is_left_out_from_then_on(client: Client) -> None:
    def answer(body: JsonObject) -> web.StreamResponse:
        if any(item.get("type") == "reasoning" and item["encrypted_content"] == "old" for item in body["input"]):
            message = "The encrypted content old could not be verified. Reason: Encrypted content organization_id did not match."
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_encrypted_content"}
            return web.json_response({"error": error}, status=400)
        calls = [item for item in body["input"] if item.get("type") == "function_call"]
        output: list[JsonObject] = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "new" if calls else "old"}]
        if len(calls) < 2:
            place = {"type": "function_call", "id": f"fc_{len(calls)}", "call_id": f"call_{len(calls)}", "name": "look"}
            output.append(place | {"arguments": json.dumps({"at": "it"})})
        else:
            part = {"type": "output_text", "text": "done", "annotations": []}
            output.append({"type": "message", "id": "msg_1", "role": "assistant", "content": [part]})
        usage = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
        return web.json_response({"id": "r", "object": "response", "status": "completed", "output": output, "usage": usage})

    async with server(answer) as (url, seen):
        models = Models(environment={"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{url}/v1"})
        async with serving(client, models=models, tools=[look]) as served:
            generator = {"model": "openai:gpt-5.4", "tools": ["look"]}
            result = await served.run({"messages": [{"role": "user", "content": "Look twice."}], "generator": generator})
        await models.aclose()

    assert result.output == "done"
    assert [[item.get("encrypted_content") for item in body["input"] if item.get("type") == "reasoning"] for body in seen] == [
        [],
        ["old"],  # which is refused
        [],
        ["new"],
    ]
    assert [[item["id"] for item in body["input"] if "id" in item] for body in seen[2:]] == [[], ["rs_1", "fc_1"]]
    assert (result.usage.calls, result.usage.attempts) == (3, 4)


async def test_claude_behind_openrouter_caches_its_prompts_and_leaves_refused_thinking_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(body: JsonObject) -> web.StreamResponse:
        messages = body["messages"]
        if any("reasoning_details" in message for message in messages) and len(messages) == 4:
            raw = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
            report = {"code": 400, "message": "Provider returned error", "metadata": {"provider_name": "Anthropic", "raw": raw}}
            return web.json_response({"error": report}, status=400)
        reply: JsonObject = {"role": "assistant", "content": verdict_text() if "response_format" in body else "a draft"}
        if body.get("tools") and len(messages) < 6:
            function = {"name": "look", "arguments": json.dumps({"at": "it"})}
            reply = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
            reply["reasoning_details"] = [{"type": "reasoning.text", "text": "hm", "signature": f"s{len(messages)}"}]
        choice = {"index": 0, "message": reply, "finish_reason": "tool_calls" if "tool_calls" in reply else "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 1}})

    async with server(answer) as (url, seen):
        call_openrouter_at(url, monkeypatch)
        models = Models(environment={"OPENROUTER_API_KEY": "sk-test"})
        async with serving(client, models=models, tools=[look]) as served:
            generator = {"model": ROUTED, "tools": ["look"], "system_prompt": "Write well."}
            start = {"generator": generator, "grader": {"model": ROUTED}, "rubric": "- it is good"}
            result = await served.client.invoke(a_thread(), "Look.", start=start)
        await models.aclose()

    mark = {"type": "ephemeral"}
    drafts, grades = [body["messages"] for body in seen if body.get("tools")], [body["messages"] for body in seen if not body.get("tools")]
    assert (result.status, result.output) == ("satisfied", "a draft")
    assert drafts[0][0]["content"] == [{"type": "text", "text": "Write well.", "cache_control": mark}]
    assert [messages[-1]["content"][0]["cache_control"] for messages in drafts] == [mark] * len(drafts)
    assert "cache_control" not in str(drafts[3][1:-1])
    assert [message["content"][0].get("cache_control") for message in grades[0][:2]] == [mark, mark]
    assert isinstance(grades[0][-1]["content"], str)
    thoughts = [[part["signature"] for message in messages for part in message.get("reasoning_details", [])] for messages in drafts]
    assert thoughts == [[], ["s2"], [], ["s4"]]
