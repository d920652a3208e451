"""A model server that counts: the Chat Completions protocol over HTTP, with gates at which replies wait."""

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

SECONDS = 240.0
"""How long a test waits for a call: above the 15 seconds in which a dead worker's calls are made again, on a slow machine."""

Said = str | list[dict[str, Any]]


@dataclass
class Paid:
    """A call, as the provider saw it."""

    thread: str
    name: str
    """The role and where in the thread it stands: `generator 1`, `grader 0.1`, `evidence left`."""
    sha256: str
    """Of the request's bytes: a call that is made again sends the same."""
    began: float
    worker: str
    """Who called: the key that its process has."""
    draft: str = ""
    """What a generator's call is answered with, and what a grader's call judges."""
    ended: float | None = None
    answered: bool = False
    """False where the caller hung up first."""


class Gate:
    """Replies wait here until it is opened."""

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)
        self.open = asyncio.Event()


class CountingServer:
    """Models and evidence that a worker process calls; the model's name tells the role and the thread: `grader@thread-1`."""

    def __init__(self, *, good_from: int = 1, delay: float = 0.0, padding: int = 0) -> None:
        self.calls: list[Paid] = []
        self.good_from = good_from
        """The iteration whose draft the grader accepts."""
        self.delay = delay
        self.padding = padding
        """Characters by which each draft is longer."""
        self.before_reply: Callable[[Paid], None] = lambda _: None
        self.wishes: dict[str, list[tuple[str, str]]] = {}
        """Tool calls, name and argument, by the call that asks for them."""
        self._gates: list[Gate] = []
        self._changed = asyncio.Condition()
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/evidence/{thread}/{where}", self._evidence)
        self._server = TestServer(app)

    async def start(self) -> None:
        """Listen on a free port; a caller that hangs up ends its call."""
        await self._server.start_server()

    async def close(self) -> None:
        """Answer nobody any more."""
        for gate in self._gates:
            gate.open.set()
        await self._server.close()

    @property
    def url(self) -> str:
        """The server's address."""
        return str(self._server.make_url("")).rstrip("/")

    def model(self, role: str, thread: str) -> dict[str, Any]:
        """Return the model of a request for that thread."""
        return {"id": f"openai_compatible:{role}@{thread}", "config": {"base_url": f"{self.url}/v1", "structured_output": True}}

    def request(self, thread: str, **changed: Any) -> dict[str, Any]:
        """Return what a thread is started with."""
        models = {"generator": {"model": self.model("generator", thread)}, "grader": {"model": self.model("grader", thread)}}
        return models | {"rubric": "- it is good"} | changed

    def hold(self, pattern: str) -> Gate:
        """Have the replies to calls wait whose thread and name, `thread-1 grader 0`, match the pattern."""
        gate = Gate(pattern)
        self._gates.append(gate)
        return gate

    def of(self, thread: str) -> list[Paid]:
        """Return the calls of a thread."""
        return [call for call in self.calls if call.thread == thread]

    def counts(self, thread: str) -> Counter[str]:
        """Count a thread's calls by name."""
        return Counter(call.name for call in self.of(thread))

    def extra(self) -> int:
        """Return how many calls were made again."""
        return len(self.calls) - len({(call.thread, call.name, call.sha256) for call in self.calls})

    async def called(self, thread: str, name: str, times: int = 1) -> Paid:
        """Wait until a call was made so many times, and return the last one."""
        return (await self._until(lambda: [call for call in self.of(thread) if call.name == name], times))[-1]

    async def hung_up(self, call: Paid) -> None:
        """Wait until the caller has given a call up."""
        await self._until(lambda: [call] if call.ended is not None else [], 1)

    async def _until(self, found: Callable[[], list[Paid]], times: int) -> list[Paid]:
        async with asyncio.timeout(SECONDS), self._changed:
            await self._changed.wait_for(lambda: len(found()) >= times)
            return found()

    async def _complete(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = json.loads(raw)
        role, _, thread = str(body["model"]).partition("@")
        return await self._answered(
            _call(role, thread, raw, body["messages"], _caller(request)), lambda call: _reply(self._said(role, call))
        )

    async def _evidence(self, request: web.Request) -> web.Response:
        thread, where = request.match_info["thread"], request.match_info["where"]
        call = Paid(thread, f"evidence {where}", hashlib.sha256(where.encode()).hexdigest(), time.monotonic(), _caller(request))
        return await self._answered(call, lambda _: web.Response(text=f"seen {where}"))

    async def _answered(self, call: Paid, answer: Callable[[Paid], web.Response]) -> web.Response:
        self.calls.append(call)
        await self._tell()
        try:
            await asyncio.sleep(self.delay)
            for gate in self._gates:
                if gate.pattern.fullmatch(f"{call.thread} {call.name}"):
                    await gate.open.wait()
            call.answered = True
            self.before_reply(call)
            return answer(call)
        finally:
            call.ended = time.monotonic()
            await asyncio.shield(self._tell())

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _said(self, role: str, call: Paid) -> Said:
        if wishes := self.wishes.get(f"{call.thread} {call.name}"):
            return [
                {"id": f"call-{at}", "type": "function", "function": {"name": tool, "arguments": json.dumps({"where": where})}}
                for at, (tool, where) in enumerate(wishes)
            ]
        if role == "generator":
            return call.draft + " " + "x" * self.padding
        good = int(call.draft.split()[1]) >= self.good_from
        row = {"reason": "seen", "passed": good, "gap": "" if good else "more"}
        return json.dumps({"k1": row, "unjudgeable": "", "summary": "so it is"})


def _caller(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _call(role: str, thread: str, raw: bytes, messages: list[dict[str, Any]], worker: str) -> Paid:
    """Tell from the conversation where in its thread a call stands."""
    turns = sum(message["role"] == "assistant" for message in messages)
    drafts = [int(found) for message in messages for found in re.findall(r"draft (\d+) of", str(message["content"]))]
    at = turns if role == "generator" else max(drafts, default=0)
    name = f"{role} {at}" + (f".{turns}" if role == "grader" and turns else "")
    return Paid(thread, name, hashlib.sha256(raw).hexdigest(), time.monotonic(), worker, draft=f"draft {at} of {thread}")


def _reply(said: Said) -> web.Response:
    spoken = {"role": "assistant"} | ({"content": said} if isinstance(said, str) else {"content": None, "tool_calls": said})
    choice = {"index": 0, "message": spoken, "finish_reason": "stop" if isinstance(said, str) else "tool_calls"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return web.json_response({"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})
