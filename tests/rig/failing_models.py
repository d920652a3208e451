"""A local server of many models in three protocols, each of which fails or answers as its plan says."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

from aiohttp import web
from temporalio.client import Client

from activities.providers import Providers
from activities.providers.environment import Environment
from tests.rig.threads import Served, serving

Answer = str | int | dict[str, Any]
"""A text, an HTTP status that is an error, or a whole reply in the protocol's own form."""

USED = {"input": 1000, "output": 100}
"""The tokens that every reply reports."""


class FailingModels:
    """The models by name, and who was asked what."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        """The models in the order in which they were asked."""
        self.bodies: list[dict[str, Any]] = []
        self.bill = Counter[str]()
        """How many replies each model gave that reported tokens: each was paid for, whatever became of it."""
        self.delays: dict[str, list[float]] = {}
        """Seconds that a model takes for its replies, in order; none behind the last."""
        self._plans: dict[str, Iterator[Answer]] = {}

    def plan(self, name: str, *answers: Answer) -> None:
        """Have a model give these answers in order, and the last one for ever."""
        self._plans[name] = iter([*answers[:-1], *[answers[-1]] * 10_000])

    @property
    def sold(self) -> int:
        """How many replies all models gave that reported tokens."""
        return self.bill.total()

    def times(self, name: str) -> int:
        """Return how often a model was asked."""
        return self.asked.count(name)

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a call of any protocol."""
        body = await request.json()
        name = body["model"]
        self.asked.append(name)
        self.bodies.append(body)
        answer = next(self._plans.setdefault(name, repeat(f"a draft of {name}")))
        if delays := self.delays.get(name):
            await asyncio.sleep(delays.pop(0))
        if request.transport is not None and not request.transport.is_closing():
            self.bill[name] += not isinstance(answer, int)
        if isinstance(answer, int):
            code = "insufficient_quota" if answer == 402 else "x"
            return web.json_response({"error": {"message": f"no {answer}", "type": code, "code": code}}, status=answer)
        if isinstance(answer, dict):
            return web.json_response(answer)
        tag = re.search(r"<(verdict-[0-9a-f]{16})>", json.dumps(body))
        return web.json_response(_reply(request.path, f"<{tag[1]}>{answer}</{tag[1]}>" if tag else answer))


def _reply(path: str, text: str) -> dict[str, Any]:
    if path.endswith("/responses"):
        content = [{"type": "output_text", "text": text}]
        items = [{"type": "message", "id": "m1", "status": "completed", "role": "assistant", "content": content}]
        usage = {"input_tokens": USED["input"], "output_tokens": USED["output"]}
        return {"object": "response", "status": "completed", "output": items, "usage": usage}
    if path.endswith("/messages"):
        return said({"type": "text", "text": text})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": USED["input"], "completion_tokens": USED["output"]}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


def said(*blocks: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    """Return a reply of Anthropic's with these blocks."""
    usage = {"input_tokens": USED["input"], "output_tokens": USED["output"]}
    return {"type": "message", "role": "assistant", "content": list(blocks), "stop_reason": stop, "usage": usage}


class Calling(Providers):
    """The real adapters, where a test has its models."""

    def release(self) -> None:
        """Do nothing: no call waits at a gate."""


@asynccontextmanager
async def listening() -> AsyncIterator[FailingModels]:
    """Serve the models on a port of their own."""
    models, app = FailingModels(), web.Application()
    app.router.add_post("/{tail:.*}", models.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    models.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield models
    await runner.cleanup()


def calling(models: FailingModels, **keys: str) -> Any:
    """Return the real adapters, which call these models."""
    url = models.url
    environ = {"ANTHROPIC_API_KEY": "ant-secret", "OPENAI_API_KEY": "oai-secret", "ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url}
    return Calling(Environment.read(environ | keys))


@asynccontextmanager
async def working(client: Client, models: FailingModels, outage_timeout: float = 60.0, **options: Any) -> AsyncIterator[Served]:
    """Run a worker that calls the models."""
    adapters = calling(models)
    async with serving(client, models=adapters, outage_timeout=outage_timeout, **options) as served:
        yield served
    await adapters.aclose()
