"""The CPU of our layer over the bare SDK's call: `python -m lab.provider_layer`.

The same request and the same reply, from a server in a process of its own, with the two sides in turns.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from aiohttp import web
from rich.console import Console
from rich.table import Table

from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.answer_form import FULL, verdict_schema
from gradeloop.grading.scoring import call_groups
from lab.served_app import served
from rig.limited_provider import VERDICT

TARGET_MS = 1.0
"""What our layer may cost of CPU beyond the bare call."""

CONCURRENCY = 20

PROMPT = "word " * 2_000

(_GROUP,) = call_groups(Rubric.model_validate({"criteria": ["It says how long."]}))
SCHEMA = verdict_schema(_GROUP, _GROUP.ids, FULL)

REPLIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": VERDICT}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 5},
    },
    "/v1/responses": {
        "id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        "output": [
            {
                "type": "message", "id": "m", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": VERDICT, "annotations": []}],
            }
        ],
    },
    "/v1/chat/completions": {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": VERDICT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    },
    "gemini": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": VERDICT}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
    },
}  # fmt: skip

Call = Callable[[], Awaitable[object]]


def models() -> web.Application:
    """Return a server that answers every protocol."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(REPLIES.get(request.path, REPLIES["gemini"]))

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{tail:.*}", answer)
    return app


def bare(name: str, url: str) -> Call:
    """Return the call as somebody makes it who has the SDK alone."""
    if name == "anthropic":
        from anthropic import AsyncAnthropic

        claude = AsyncAnthropic(api_key="k", base_url=url, max_retries=0, timeout=60, open_telemetry=False)
        form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        said: Any = [{"role": "user", "content": PROMPT}]
        return lambda: claude.messages.create(model="claude-x", max_tokens=16384, messages=said, output_config=form)
    if name == "google_genai":
        from google.genai import Client, types

        options = types.HttpOptions(base_url=url, api_version="v1", timeout=60_000, retry_options=types.HttpRetryOptions(attempts=1))
        gemini = Client(vertexai=False, api_key="k", http_options=options)
        config = types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=SCHEMA)
        return lambda: gemini.aio.models.generate_content(model="gemini-3-x", contents=PROMPT, config=config)
    from openai import AsyncOpenAI

    openai = AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0, timeout=60)
    if name == "openai":
        text: Any = {"format": {"type": "json_schema", "name": "verdict", "strict": True, "schema": SCHEMA}}
        return lambda: openai.responses.create(model="gpt-x", input=PROMPT, text=text, store=False)
    response: Any = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}}
    return lambda: openai.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}], response_format=response)


def ours(name: str, url: str) -> Call:
    """Return the call as an activity makes it."""
    keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "GOOGLE_API_KEY": "k"}
    places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
    providers = Providers(Environment.read(keys | places))
    models = {"anthropic": "claude-x", "openai": "gpt-x", "google_genai": "gemini-3-x", "openai_compatible": "m"}
    spec = ModelSpec.model_validate({"id": f"{name}:{models[name]}", "config": {"structured_output": True}})
    request = ModelRequest(spec, Step(role="grader"), (Message(role="user", content=PROMPT),), schema=SCHEMA)
    return lambda: providers.complete(request)


async def cpu(call: Call, calls: int) -> float:
    """Return the milliseconds of CPU that a call takes, many at once."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one() -> None:
        async with slots:
            await call()

    began = time.process_time()
    await asyncio.gather(*(one() for _ in range(calls)))
    return (time.process_time() - began) * 1000 / calls


async def measure(url: str, calls: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the CPU of the bare call and of ours, in milliseconds, by provider."""
    measured = {}
    for name in ("anthropic", "openai", "google_genai", "openai_compatible"):
        sides = bare(name, url), ours(name, url)
        for side in sides:
            await cpu(side, 50)
        told = [[await cpu(side, calls) for side in sides] for _ in range(rounds)]
        measured[name] = (median(each[0] for each in told), median(each[1] for each in told))
    return measured


def main() -> None:
    """Print a row a provider."""
    parser = argparse.ArgumentParser(prog="python -m lab.provider_layer", description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    with served(models) as url:
        measured = asyncio.run(measure(url, chosen.calls, chosen.rounds))
    table = Table("CPU, ms a call", "bare SDK", "gradeloop", "over", "target", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, (alone, layered) in measured.items():
        table.add_row(name, f"{alone:.2f}", f"{layered:.2f}", f"{layered - alone:+.2f}", f"< {TARGET_MS:g}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
