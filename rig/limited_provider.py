"""A provider with a real token bucket, of three protocols, that refuses what is above its rate as providers do."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

VERDICT = json.dumps({"k1": {"reason": "seen", "passed": True, "gap": ""}, "unjudgeable": "", "summary": "fine"})
"""The answer to each call that is accepted."""

WARM_UP = 10.0
"""Seconds from the first call on whose refusals are how the limit is found."""


@dataclass
class LimitedProvider:
    """A token bucket behind an HTTP server."""

    a_minute: float
    """Calls that are given back a minute."""
    burst: float = 10.0
    """Calls that the bucket holds."""
    retry_after: float | None = None
    """What each refusal asks to wait; None for no header."""
    reports: bool = False
    """Whether replies carry the headers of OpenAI and Anthropic."""
    latency: float = 0.1
    """Seconds that a reply takes."""
    down: tuple[float, float] | None = None
    """From which second on, counted from the first call, until when connections are cut."""
    accepted: list[float] = field(default_factory=list)
    """When calls were accepted, in seconds from the first call on."""
    refused: list[float] = field(default_factory=list)
    cut: list[float] = field(default_factory=list)
    most_in_flight: int = 0
    url: str = ""
    _in_flight: int = 0
    _began: float | None = None
    _tokens: float = 0.0
    _at: float = 0.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a call, or refuse it."""
        await request.read()
        now = time.monotonic()
        if self._began is None:
            self._began, self._tokens, self._at = now, self.burst, now
        since = now - self._began
        if self.down is not None and self.down[0] <= since < self.down[1]:
            self.cut.append(since)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        self._tokens, self._at = min(self.burst, self._tokens + (now - self._at) * self.a_minute / 60), now
        if self._tokens < 1:
            self.refused.append(since)
            headers = {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}
            error = {"message": "Rate limit reached", "type": "rate_limit_error", "code": "rate_limit_exceeded", "param": None}
            return web.json_response({"type": "error", "error": error}, status=429, headers=headers | self._headers())
        self._tokens -= 1
        self.accepted.append(since)
        headers = self._headers()
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self._in_flight -= 1
        return web.json_response(_reply(request.path), headers=headers)

    def _headers(self) -> dict[str, str]:
        if not self.reports:
            return {}
        full = (self.burst - self._tokens) * 60 / self.a_minute
        at = (datetime.now(UTC) + timedelta(seconds=full)).isoformat(timespec="seconds").replace("+00:00", "Z")
        left, limit = str(math.floor(self._tokens)), f"{self.a_minute:g}"
        openai = {"x-ratelimit-limit-requests": limit, "x-ratelimit-remaining-requests": left, "x-ratelimit-reset-requests": f"{full:.3f}s"}
        claude = {"limit": limit, "remaining": left, "reset": at}
        return openai | {f"anthropic-ratelimit-requests-{part}": text for part, text in claude.items()}

    @property
    def seconds(self) -> float:
        """The seconds from the first call to the last one that was accepted."""
        return self.accepted[-1]

    @property
    def throughput(self) -> float:
        """The accepted calls over what the bucket has given in that time, without what it held at first; above 1 where that was used."""
        away = self.down[1] - self.down[0] if self.down else 0.0
        return len(self.accepted) / max(1.0, (self.seconds - away) * self.a_minute / 60)

    @property
    def late_refusals(self) -> float:
        """The share of calls after the first ten seconds that were refused."""
        refused = sum(at > WARM_UP for at in self.refused)
        return refused / max(1, refused + sum(at > WARM_UP for at in self.accepted))


def _reply(path: str) -> dict[str, Any]:
    if path.endswith("/messages"):
        said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": VERDICT}], "stop_reason": "end_turn"}
        return said | {"id": "m", "model": "m", "usage": {"input_tokens": 9, "output_tokens": 5}}
    if path.endswith("/responses"):
        content = [{"type": "output_text", "text": VERDICT, "annotations": []}]
        items = [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}]
        return {"object": "response", "id": "r", "status": "completed", "output": items, "usage": {"input_tokens": 9, "output_tokens": 5}}
    choice = {"index": 0, "message": {"role": "assistant", "content": VERDICT}, "finish_reason": "stop"}
    return {"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 5}}


@asynccontextmanager
async def serving(provider: LimitedProvider) -> AsyncIterator[LimitedProvider]:
    """Serve the provider on a port of its own."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{tail:.*}", provider.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield provider
    await runner.cleanup()
