"""A faulty provider that counts its calls: the Chat Completions protocol over HTTP, answered from the conversation alone."""

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from aiohttp import web
from aiohttp.test_utils import TestServer

from lab.storm import script

Fault = Literal["429", "429 with Retry-After", "500", "503", "cut", "malformed", "empty"]

FAULTS: tuple[Fault, ...] = get_args(Fault)
"""The faults of a call; what is `empty` has its tokens, and so is paid for."""

FAULTS_OF_ONE_CALL = 2
"""The most faults that one call meets: below every limit, so that each call has an answer in the end."""

FAULT_SECONDS = 0.1
"""How long a fault takes."""


@dataclass
class ModelCall:
    """A call, as the provider saw it."""

    thread: str
    role: str
    sha256: str
    """Of the request's bytes: a call that is made again sends the same."""
    worker: str
    """The key of the worker that called."""
    began: float
    ended: float | None = None
    outcome: str = "hung up"
    """`answered`, the name of a fault, or `hung up` where the caller went first."""

    @property
    def answered(self) -> bool:
        """Whether the caller was given an answer."""
        return self.outcome == "answered"

    @property
    def sold(self) -> bool:
        """Whether the caller was given tokens, and so has paid."""
        return self.outcome in {"answered", "empty"}


class FaultyProvider:
    """Models for the storm's workers; the model's name tells the role and the thread: `grader@thread-1`."""

    def __init__(self, *, delay: float, fault_share: float, seed: int) -> None:
        self.calls: list[ModelCall] = []
        self.away = False
        """Whether every call is refused."""
        self.on_empty: Callable[[str], object] = lambda _: None
        """What is done once a thread was sold a reply that is none."""
        self._delay = delay
        self._share = fault_share
        self._dice = random.Random(seed)
        self._faults = Counter[str]()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._server = TestServer(app)

    async def start(self) -> None:
        """Listen on a free port; a caller that hangs up ends its call."""
        await self._server.start_server()

    async def close(self) -> None:
        """Answer nobody any more."""
        await self._server.close()

    @property
    def url(self) -> str:
        """The provider's address."""
        return str(self._server.make_url("")).rstrip("/")

    def request(self, thread: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a request
        """Return what a thread is started with."""

        def model(role: str) -> dict[str, Any]:
            config = {"base_url": f"{self.url}/v1", "structured_output": True}
            return {"model": {"id": f"openai_compatible:{role}@{thread}", "config": config}}

        return {"generator": model("generator"), "grader": model("grader")} | more

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        role, _, thread = str(body["model"]).partition("@")
        worker = request.headers.get("Authorization", "").removeprefix("Bearer ")
        call = ModelCall(thread, role, hashlib.sha256(raw).hexdigest(), worker, time.monotonic())
        self.calls.append(call)
        try:
            if fault := self._fault(call):
                await asyncio.sleep(FAULT_SECONDS)
                call.outcome = fault
                if call.sold:
                    self.on_empty(thread)
                return await _faulty(request, fault)
            await asyncio.sleep(self._delay)
            reply = _reply(_said(role, body["messages"]))
            call.outcome = "answered"
            return reply
        finally:
            call.ended = time.monotonic()

    def _fault(self, call: ModelCall) -> Fault | None:
        """Return the fault that a call meets; None for most."""
        if self.away:
            return "503"
        if self._faults[call.sha256] >= FAULTS_OF_ONE_CALL or self._dice.random() >= self._share:
            return None
        self._faults[call.sha256] += 1
        return self._dice.choice(FAULTS)


def _said(role: str, messages: list[dict[str, Any]]) -> str:
    if role == "generator":
        return script.draft_after([(message["role"], str(message["content"])) for message in messages])
    return json.dumps(script.verdict_on("\n".join(str(message["content"]) for message in messages)))


def _reply(*said: str) -> web.Response:
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"} for text in said]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return web.json_response({"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage})


async def _faulty(request: web.Request, fault: Fault) -> web.StreamResponse:
    match fault:
        case "429":
            return web.json_response({"error": {"message": "slow down", "type": "rate_limit_error"}}, status=429)
        case "429 with Retry-After":
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "1"})
        case "500" | "503":
            return web.json_response({"error": {"message": "not now"}}, status=int(fault))
        case "empty":
            return _reply()
        case "malformed":
            return web.Response(text='{"id": "r", "object": "chat.comp', content_type="application/json")
        case "cut":
            reply = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
            await reply.prepare(request)
            await reply.write(b'{"id": "r", ')
            if request.transport is not None:
                request.transport.close()
            return reply
