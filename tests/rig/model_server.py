"""A local server that speaks three protocols from one story, and refuses what the vendors refuse."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

JsonObject = dict[str, Any]

KEY = "sk-local-test"


@dataclass(frozen=True)
class Reply:
    """One turn of a model: a text, or tool calls as (name, arguments)."""

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()


@dataclass
class ModelServer:
    """What the models say, by the model's name and in order, and what they were asked."""

    story: Mapping[str, Sequence[Reply]]
    reports_usage: bool = True
    """Whether its replies say what they used."""
    url: str = ""
    requests: list[JsonObject] = field(default_factory=list)
    _turns: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def start_again(self) -> None:
        """Tell the story from its beginning."""
        self.requests.clear()
        self._turns.clear()

    async def messages(self, request: web.Request) -> web.Response:
        """Answer as Anthropic's Messages API does."""
        body = await request.json()
        problem = None if request.headers.get("Authorization") == f"Bearer {KEY}" else "invalid API key"
        problem = problem or next(messages_problems(body), None)
        if problem:
            return web.json_response({"type": "error", "error": {"type": "invalid_request_error", "message": problem}}, status=400)
        reply, identifier = self._next(body)
        content: list[JsonObject] = [{"type": "text", "text": reply.text}] if reply.text else []
        content += [
            {"type": "tool_use", "id": f"toolu_{identifier}_{at}", "name": name, "input": arguments}
            for at, (name, arguments) in enumerate(reply.calls)
        ]
        answer = {"id": f"msg_{identifier}", "type": "message", "role": "assistant", "model": body["model"], "content": content}
        usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 20}
        return web.json_response(
            answer | {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None} | self._reported(usage)
        )

    async def chat(self, request: web.Request) -> web.Response:
        """Answer as OpenAI's Chat Completions API does."""
        body = await request.json()
        problem = next(_chat_problems(body), None)
        if problem:
            return web.json_response({"error": {"message": problem, "type": "invalid_request_error", "code": None}}, status=400)
        reply, identifier = self._next(body)
        message: JsonObject = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = [
                {"id": f"call_{identifier}_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for at, (name, arguments) in enumerate(reply.calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
        usage = {"prompt_tokens": 120, "completion_tokens": 10, "total_tokens": 130, "prompt_tokens_details": {"cached_tokens": 20}}
        answer = {"id": f"chatcmpl-{identifier}", "object": "chat.completion", "created": 0, "model": body["model"]}
        return web.json_response(answer | {"choices": [choice]} | self._reported(usage))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer as OpenAI's Responses API does, as a stream where one is asked for."""
        body = await request.json()
        problem = next(_responses_problems(body), None)
        if problem:
            return web.json_response({"error": {"message": problem, "type": "invalid_request_error", "code": None}}, status=400)
        reply, identifier = self._next(body)
        output: list[JsonObject] = [
            {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{identifier}_{at}", "name": name, "arguments": json.dumps(given)}
            for at, (name, given) in enumerate(reply.calls)
        ]
        if reply.text:
            content = [{"type": "output_text", "text": reply.text, "annotations": []}]
            output.insert(0, {"type": "message", "id": f"msg_{identifier}", "role": "assistant", "content": content})
        usage = {"input_tokens": 120, "output_tokens": 10, "total_tokens": 130, "input_tokens_details": {"cached_tokens": 20}}
        answer = {"id": f"resp_{identifier}", "object": "response", "status": "completed", "model": body["model"], "output": output}
        if not body.get("stream"):
            return web.json_response(answer | self._reported(usage))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in ({"type": "response.created"}, {"type": "response.completed", "response": answer | self._reported(usage)}):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response

    def _reported(self, usage: JsonObject) -> JsonObject:
        return {"usage": usage} if self.reports_usage else {}

    def _next(self, body: JsonObject) -> tuple[Reply, int]:
        self.requests.append(body)
        model = body["model"]
        turn = self._turns[model]
        self._turns[model] += 1
        return self.story[model][turn], len(self.requests)


def messages_problems(body: JsonObject) -> Iterator[str]:
    """Yield what the Messages API would refuse."""
    turns = body["messages"]
    if [turn["role"] for turn in turns] != ["user" if at % 2 == 0 else "assistant" for at in range(len(turns))]:
        yield "roles must alternate, and start with user"
    for before, after in zip(turns, [*turns[1:], None], strict=True):
        asked = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        answered = [block["tool_use_id"] for block in after["content"] if block["type"] == "tool_result"] if after else []
        if asked != answered:
            yield f"tool_use ids {asked} were found without tool_result blocks immediately after"
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: field required"
    form = body.get("output_config", {}).get("format")
    if form and not _closed(form["schema"]):
        yield "output_config.format.schema: additionalProperties must be false everywhere"


def _chat_problems(body: JsonObject) -> Iterator[str]:
    """Yield what the Chat Completions API would refuse."""
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            else:
                open_calls.remove(message["tool_call_id"])
        elif open_calls:
            yield "an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"
        else:
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
    form = body.get("response_format")
    if form and not (form["json_schema"]["strict"] and _closed(form["json_schema"]["schema"])):
        yield "Invalid schema for response_format: additionalProperties is required to be supplied and to be false"


def _responses_problems(body: JsonObject) -> Iterator[str]:
    """Yield what the Responses API would refuse, and that it may keep nothing."""
    if body.get("store") is not False:
        yield "store must be false"
    asked = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    if asked != answered:
        yield f"No tool output found for function call {asked}"
    form = body.get("text", {}).get("format")
    if form and not (form["strict"] and _closed(form["schema"])):
        yield "Invalid schema for text.format: additionalProperties is required to be supplied and to be false"


def _closed(schema: object) -> bool:
    """Tell whether every object of a schema is closed and requires all it has."""
    if isinstance(schema, list):
        return all(_closed(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    own = schema.get("type") != "object" or (
        schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(schema["properties"])
    )
    return own and all(_closed(part) for part in schema.values())


@asynccontextmanager
async def serving(story: Mapping[str, Sequence[Reply]], *, reports_usage: bool = True) -> AsyncIterator[ModelServer]:
    """Serve a story on a free port of this machine."""
    server = ModelServer(story, reports_usage)
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_post("/v1/messages", server.messages)
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/v1/responses", server.responses)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
        await asyncio.sleep(0)
