"""A judge that costs nothing: an OpenAI-compatible server of its own process, which counts its calls and how many were in flight.

It speaks Chat Completions and the Responses API, streamed or not, and takes a fixed time; `scripted_verdict` has what it says.
"""

import asyncio
import json
import math
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from aiohttp import web

from lab.scripted_verdict import Asked, JsonObject, answer, embedding
from lab.served_app import served

SECONDS = 0.2
FAILURE = "the mock judge was told to fail"


@dataclass(frozen=True)
class Counts:
    """What a judge was asked since it was last read."""

    calls: int
    at_once: int
    """Calls in flight, at most."""
    seconds: float
    """From the first call's arrival to the last answer."""
    bytes: int
    """Of all requests' bodies."""


@dataclass
class Judge:
    """The server."""

    seconds: float
    calls: int = 0
    bytes: int = 0
    in_flight: int = 0
    at_once: int = 0
    first: float = 0.0
    last: float = 0.0
    told: set[str] = field(default_factory=set)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer as Chat Completions does."""
        body = await request.json()
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema") or {}
        text = await self._said(_asked(body["model"], body["messages"], "", schema), request)
        if text is None:
            return _failed()
        base = {"id": "c", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        calls = _calls(body)
        message, ended = {"role": "assistant", "content": None if calls else text, **calls}, "tool_calls" if calls else "stop"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": ended, **_probable(body)}
            return web.json_response(base | {"object": "chat.completion", "choices": [choice], "usage": usage})
        chunk = base | {"object": "chat.completion.chunk"}
        if "tool_calls" in calls:
            message["tool_calls"] = [{"index": 0, **calls["tool_calls"][0]}]
        deltas: list[JsonObject] = [
            {"index": 0, "delta": message, "finish_reason": None, **_probable(body)},
            {"index": 0, "delta": {}, "finish_reason": ended},
        ]
        return await _stream(request, [*(json.dumps(chunk | {"choices": [delta], "usage": usage}) for delta in deltas), "[DONE]"])

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer as the Responses API does."""
        body = await request.json()
        schema = ((body.get("text") or {}).get("format") or {}).get("schema") or {}
        given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        text = await self._said(_asked(body["model"], given, body.get("instructions") or "", schema), request)
        if text is None:
            return _failed()
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output = [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}]
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15} | details
        told = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": body["model"], "output": output}
        told |= {"usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        if not body.get("stream"):
            return web.json_response(told)
        return await _stream(request, [json.dumps({"type": "response.completed", "response": told})])

    async def embeddings(self, request: web.Request) -> web.Response:
        """Answer as the API of embeddings does."""
        body = await request.json()
        given = body["input"] if isinstance(body["input"], list) else [body["input"]]
        rows = [{"object": "embedding", "index": at, "embedding": embedding(text)} for at, text in enumerate(given)]
        return web.json_response({"object": "list", "model": body["model"], "data": rows, "usage": {"prompt_tokens": 1, "total_tokens": 1}})

    async def counts(self, _: web.Request) -> web.Response:
        """Tell what was asked, and begin to count anew."""
        told = Counts(self.calls, self.at_once, max(self.last - self.first, 0.0), self.bytes)
        self.calls, self.at_once, self.first, self.last, self.bytes = 0, 0, 0.0, 0.0, 0
        return web.json_response(asdict(told))

    async def _said(self, asked: Asked, request: web.Request) -> str | None:
        self.first = self.first or time.perf_counter()
        self.calls += 1
        self.bytes += request.content_length or 0
        self.in_flight += 1
        self.at_once = max(self.at_once, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
            self.last = time.perf_counter()
        return answer(asked, self.told)


def _asked(model: str, messages: list[JsonObject], system: str, schema: JsonObject) -> Asked:
    """Sort what the system says from the rest."""
    texts: dict[bool, list[str]] = {True: [system], False: []}
    for message in messages:
        texts[message.get("role") in ("system", "developer")].append(_text(message.get("content")))
    answered = sum(message.get("role") == "assistant" for message in messages)
    return Asked(model, "\n".join(texts[True]), "\n".join(texts[False]), schema, answered)


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _probable(body: JsonObject) -> JsonObject:
    """Return the log probabilities of an answer where they are asked for: a perplexity of 2."""
    token = {"token": "x", "logprob": -math.log(2), "bytes": None, "top_logprobs": []}
    return {"logprobs": {"content": [token, token], "refusal": None}} if body.get("logprobs") else {}


def _calls(body: JsonObject) -> JsonObject:
    """Return the call of a function that the words `[call NAME {...}]` ask for, where functions are declared."""
    asked = re.search(r"\[call (\w+) (.*?)\]", _text(body["messages"][-1].get("content")))
    if not asked or not {"tools", "functions"} & set(body):
        return {}
    function = {"name": asked[1], "arguments": asked[2]}
    return {"tool_calls": [{"id": "c", "type": "function", "function": function}]} if "tools" in body else {"function_call": function}


def _failed() -> web.Response:
    return web.json_response({"error": {"message": FAILURE, "type": "server_error", "code": None}}, status=500)


async def _stream(request: web.Request, events: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write("".join(f"data: {event}\n\n" for event in events).encode())
    return response


def application(seconds: float) -> web.Application:
    """Return the server of a judge that takes so many seconds."""
    judge, app = Judge(seconds), web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", judge.chat)
    app.router.add_post("/v1/embeddings", judge.embeddings)
    app.router.add_post("/v1/responses", judge.responses)
    app.router.add_get("/counts", judge.counts)
    return app


@contextmanager
def judging(seconds: float = SECONDS) -> Iterator[str]:
    """Run a judge, and yield its URL, to which `/v1` is to be added."""
    with served(application, seconds) as url:
        yield url


def counts(url: str) -> Counts:
    """Return what the judge at this URL was asked since this was last called."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/counts") as reply:
        return Counts(**json.load(reply))
