"""Local model servers of several kinds, as each describes itself, with a schema that is enforced or not."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

JsonObject = dict[str, Any]

MODEL = "m"

Schemas = Literal["all", "lists", "enums", "ignored", "refused", "unbounded", "broken"]
"""What a server makes of a schema: all of it, no lengths of texts, no lengths; nothing; 400; 400 for lengths; 500."""


def listing(owner: str, **more: Any) -> JsonObject:
    """Return a list of one model."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": owner, **more}]}


LLAMACPP = {
    "/v1/models": listing("llamacpp", meta={"n_ctx": 4096, "n_ctx_train": 8192}),
    "/props": {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 3},
}
OLLAMA = {
    "/v1/models": listing("library"),
    "/api/show": {"parameters": 'num_ctx                        9000\nstop "x"', "model_info": {"qwen3.context_length": 40960}},
    "/api/ps": {"models": [{"name": f"{MODEL}:latest", "context_length": 8000}]},
}
LMSTUDIO = {"/v1/models": listing("organization_owner"), f"/api/v0/models/{MODEL}": {"id": MODEL, "loaded_context_length": 6000}}
VLLM = {"/v1/models": listing("vllm", max_model_len=32768)}
SGLANG = {"/v1/models": listing("sglang", max_model_len=16384)}
TGI = {"/v1/models": listing(MODEL), "/info": {"max_total_tokens": 4000, "max_concurrent_requests": 128, "router": "x"}}
"""What each kind answers, by path; sources: the servers' own code and documentation."""


@dataclass
class LocalServer:
    """A server, and what it was asked."""

    routes: Mapping[str, Any] = field(default_factory=lambda: LLAMACPP)
    schemas: Schemas = "all"
    streams: bool = True
    reasoning: str = ""
    """What it thinks before its answer, apart from it."""
    status: int | None = None
    """The status with which it answers everything."""
    wait: float = 0.0
    """Seconds before an answer of the model."""
    url: str = ""
    in_flight: int = 0
    at_once: int = 0
    """Calls of the model in flight, at most."""
    asked: list[str] = field(default_factory=list)
    chats: list[JsonObject] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        self.asked.append(request.path)
        if self.status is not None:
            return web.json_response({"error": {"message": "not now"}}, status=self.status)
        if request.path == "/v1/chat/completions":
            return await self._chat(request, await request.json())
        answer = self.routes.get(request.path)
        return web.json_response(answer) if answer is not None else web.json_response({"error": {"message": "no"}}, status=404)

    async def _chat(self, request: web.Request, body: JsonObject) -> web.StreamResponse:
        self.chats.append(body)
        self.in_flight += 1
        self.at_once = max(self.at_once, self.in_flight)
        await asyncio.sleep(self.wait)
        self.in_flight -= 1
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        bounded = schema is not None and any(key in json.dumps(schema) for key in ("minItems", "minLength"))
        if schema is not None and self.schemas == "broken":
            return web.json_response({"error": {"message": "failed to parse the grammar"}}, status=500)
        if schema is not None and (self.schemas == "refused" or (self.schemas == "unbounded" and (bounded or body.get("stream")))):
            return web.json_response({"error": {"message": "response_format is not supported"}}, status=400)
        text = "Blue." if schema is None or self.schemas == "ignored" else json.dumps(self._answer(schema))
        message = {"role": "assistant", "content": text, **({"reasoning_content": self.reasoning} if self.reasoning else {})}
        usage = {"prompt_tokens": 30, "completion_tokens": 12}
        if not (body.get("stream") and self.streams):
            return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for choice in ({"index": 0, "delta": message}, {"index": 0, "delta": {}, "finish_reason": "stop"}):
            await response.write(f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _answer(self, schema: JsonObject) -> Any:
        """Return the first answer that a schema takes, or that it takes but for its bounds."""
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "object":
            return {name: self._answer(part) for name, part in schema["properties"].items()}
        if schema.get("type") == "array":
            return [self._answer(schema["items"])] * (5 if self.schemas == "enums" else schema.get("minItems", 1))
        if schema.get("type") == "boolean":
            return True
        if "anyOf" in schema:
            return self._answer(schema["anyOf"][0])
        return "x" * (schema.get("minLength", 3) if self.schemas == "all" else 3)


@asynccontextmanager
async def serving(server: LocalServer) -> AsyncIterator[LocalServer]:
    """Serve on a free port of this machine; `url` is the base URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
