"""A server of the Messages API that binds each thinking block to what came before it, as Claude 5.5 and Fable do."""

import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.rig.model_server import JsonObject, Reply, messages_problems

THINKING = ("thinking", "redacted_thinking")

ACCOUNT_BOUND = ("claude-sonnet-5-5", "claude-haiku-5-5")
"""The models whose thinking only the account that it was made for can send back."""

BOUND = (
    "messages.{at}.content.{block}: Invalid `signature` in `thinking` block. The block is bound to a different {what}. Remove the block, "
    'or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


@dataclass(frozen=True)
class Prefix:
    """What stands before a block: all but thinking as one sum, and the thinking by its signatures."""

    sha256: str
    thoughts: tuple[str, ...]

    def fits(self, now: "Prefix") -> bool:
        """Tell whether a block with this prefix is valid behind that one: the oldest thinking may be left out, nothing else."""
        left = len(self.thoughts) - len(now.thoughts)
        return self.sha256 == now.sha256 and left >= 0 and self.thoughts[left:] == now.thoughts


@dataclass
class BindingServer:
    """What the models say, by the model's name and in order, what they were asked, and why it was refused."""

    story: Mapping[str, Sequence[Reply]]
    accounts: Mapping[str, str]
    """The account of each key."""
    url: str = ""
    requests: list[JsonObject] = field(default_factory=list)
    """The requests that were answered."""
    refusals: list[str] = field(default_factory=list)
    _made: dict[str, tuple[Prefix, str]] = field(default_factory=dict)
    _turns: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Answer with a thinking block first, or refuse."""
        body, account = await request.json(), self.accounts[request.headers["Authorization"].removeprefix("Bearer ")]
        problem = next(messages_problems(body), None) or next(self._unbound(body, account), None)
        if problem:
            self.refusals.append(problem)
            return web.json_response({"type": "error", "error": {"type": "invalid_request_error", "message": problem}}, status=400)
        self.requests.append(body)
        model = body["model"]
        reply = self.story[model][self._turns[model]]
        self._turns[model] += 1
        return await self._send(request, body, self._content(body, reply, account), "tool_use" if reply.calls else "end_turn")

    def thoughts(self, at: int) -> int:
        """Return how many thinking blocks an answered request had."""
        return sum(block["type"] in THINKING for message in self.requests[at]["messages"] for block in message["content"])

    def _content(self, body: JsonObject, reply: Reply, account: str) -> list[JsonObject]:
        number = len(self.requests)
        signature = f"signature-{number}"
        self._made[signature] = (_prefix(body, len(body["messages"])), account)
        content: list[JsonObject] = [{"type": "thinking", "thinking": "", "signature": signature}]
        content += [{"type": "text", "text": reply.text}] if reply.text else []
        return content + [
            {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": arguments}
            for at, (name, arguments) in enumerate(reply.calls)
        ]

    def _unbound(self, body: JsonObject, account: str) -> Iterator[str]:
        """Yield what is wrong with the thinking that comes back."""
        for at, message in enumerate(body["messages"]):
            for block, part in enumerate(message["content"]):
                if part["type"] not in THINKING:
                    continue
                if part["signature"] not in self._made:
                    yield f"messages.{at}.content.{block}: Invalid `signature` in `thinking` block"
                prefix, maker = self._made[part["signature"]]
                if not prefix.fits(_prefix(body, at, block)):
                    yield BOUND.format(at=at, block=block, what="conversation")
                if body["model"] in ACCOUNT_BOUND and maker != account:
                    yield BOUND.format(at=at, block=block, what="account")

    async def _send(self, request: web.Request, body: JsonObject, content: list[JsonObject], reason: str) -> web.StreamResponse:
        usage = {"input_tokens": 100, "output_tokens": 10}
        answer = {"id": f"msg_{len(self.requests)}", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
        if not body.get("stream"):
            return web.json_response(answer | {"content": content, "stop_reason": reason})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in _events(answer, content, reason):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response


def _events(answer: JsonObject, content: list[JsonObject], reason: str) -> Iterator[JsonObject]:
    yield {"type": "message_start", "message": answer | {"content": []}}
    for index, block in enumerate(content):
        empty = {"text": "", "input": {}, "signature": ""}
        yield {"type": "content_block_start", "index": index, "content_block": block | {k: v for k, v in empty.items() if k in block}}
        if block["type"] == "text":
            delta = {"type": "text_delta", "text": block["text"]}
        elif block["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": block["signature"]}
        else:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 10}}
    yield {"type": "message_stop"}


def _prefix(body: JsonObject, stop: int, block: int = 0) -> Prefix:
    """Return what stands before a block: system prompt, tools and messages, without the marks of the cache."""
    before = [(message["role"], message["content"]) for message in body["messages"][:stop]]
    if block:
        before.append((body["messages"][stop]["role"], body["messages"][stop]["content"][:block]))
    parts = [(role, part) for role, content in before for part in content]
    plain = [(role, _unmarked(part)) for role, part in parts if part["type"] not in THINKING]
    said = json.dumps([[_unmarked(part) for part in body.get("system", [])], body.get("tools", []), plain], sort_keys=True)
    thoughts = tuple(part["signature"] for _, part in parts if part["type"] in THINKING)
    return Prefix(hashlib.sha256(said.encode()).hexdigest(), thoughts)


def _unmarked(part: JsonObject) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "cache_control"}


@asynccontextmanager
async def binding(story: Mapping[str, Sequence[Reply]], accounts: Mapping[str, str]) -> AsyncIterator[BindingServer]:
    """Serve a story on a free port of this machine."""
    server = BindingServer(story, accounts)
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_post("/v1/messages", server.messages)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
