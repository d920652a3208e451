"""A local server that refuses a request's settings as the vendors' documents say they do, in four protocols.

Its rules are written down from the documents, model by model, and not from gradeloop's own tables.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.rig.provider_server import provider_at, reply

JsonObject = dict[str, Any]

CLAUDE_TOKENS = {  # the models' overviews: max output
    "claude-(opus-4-[678]|sonnet-4-6|(opus|sonnet|fable|mythos)-5|haiku-5-5)": 128_000,
    "claude-(opus|sonnet|haiku)-4-5": 64_000,
    "claude-opus-4-1": 32_000,
}
GPT_TOKENS = {
    "(ft:)?gpt-4\\.1": 32_768,
    "gpt-4o-2024-05-13": 4_096,
    "(ft:)?gpt-4o|chatgpt-4o": 16_384,
    "gpt-4-turbo|gpt-3\\.5": 4_096,
    "gpt-4": 8_192,
    "o[134]": 100_000,
    "gpt-5-pro": 272_000,
    "gpt-[56]": 128_000,
}
GEMINI_TOKENS = {"gemini-(1\\.5|2\\.0)": 8_192, "gemini": 65_536}

GPT_EFFORTS = {  # the models' pages, the API reference, and the lists in answers 400
    "gpt-5-pro": "high",
    "gpt-5(-mini|-nano)?(-20|$)": "minimal low medium high",
    "gpt-5\\.1(-20|$)": "none low medium high",
    "gpt-5\\.[24]-pro": "medium high xhigh",
    "gpt-5\\.3-codex": "low medium high xhigh",
    "gpt-5\\.[2345]": "none low medium high xhigh",
    "gpt-6-astra|gpt-6\\.1-sol|gpt-6\\.2": "low medium high xhigh max",
    "gpt-(5\\.6|6)": "none low medium high xhigh max",
    "o[134]": "low medium high",
}
GPT_DEFAULT_EFFORT = {"gpt-5\\.[1-4](-mini|-nano)?(-20|$)": "none"}
"""Any other model that reasons does so at `medium` where nothing is said."""

GEMINI_LEVELS = {
    "gemini-3-pro": "LOW HIGH",
    "gemini-(3\\.1-pro|3\\.[78]-flash|4-argon)": "LOW MEDIUM HIGH",
    "gemini-3": "MINIMAL LOW MEDIUM HIGH",
}
GEMINI_BUDGETS = {"gemini-2\\.5-pro": (128, 32_768), "gemini-2\\.5-flash-lite": (512, 24_576), "gemini-2\\.5-flash": (0, 24_576)}

ALWAYS_THINK = re.compile("claude-(opus-5-5|fable-5|mythos-5)")
NO_BUDGET = re.compile("claude-(opus-4-[78]|.*-5($|-))")
"""From Opus 4.7 on a budget is refused; Claude 4.5 is before it."""

CLAUDE_4_5 = re.compile("claude-(opus|sonnet|haiku)-4-5")


def find(table: dict[str, Any], model: str) -> Any:
    """Return the first rule whose pattern begins the model's name; None where no document speaks of it."""
    return next((value for pattern, value in table.items() if re.match(pattern, model)), None)


def messages_problems(body: JsonObject, version: str) -> Iterator[str]:
    """Yield what the Messages API refuses."""
    model, most = body["model"], find(CLAUDE_TOKENS, body["model"])
    if most and body["max_tokens"] > most:
        yield f"max_tokens: {body['max_tokens']} > {most}, which is the maximum allowed number of output tokens for {model}"
    samples = CLAUDE_4_5.match(model) or re.match("claude-(opus|sonnet)-4-[016]|claude-3", model)
    if "temperature" in body and most and (not samples or version >= "2026-10-21"):
        yield f"temperature is not supported by {model}"
    if "seed" in body:
        yield "seed: Extra inputs are not permitted"
    yield from claude_effort_problems(body)
    yield from claude_thinking_problems(body)


def claude_effort_problems(body: JsonObject) -> Iterator[str]:
    """Yield what is wrong with the effort."""
    model, effort = body["model"], (body.get("output_config") or {}).get("effort")
    if effort is None or not find(CLAUDE_TOKENS, model):
        return
    if re.match("claude-((haiku|sonnet)-4-5|opus-4-1)", model):
        yield f"This model does not support the effort parameter: {model}"
    elif effort == "max" and model.startswith("claude-opus-4-5"):
        yield f"effort 'max' is not supported by {model}"
    elif effort == "xhigh" and re.match("claude-(opus|sonnet)-4-[56]", model):
        yield f"effort 'xhigh' is not supported by {model}. Supported levels: high, low, max, medium."
    elif effort not in {"low", "medium", "high", "xhigh", "max"}:
        yield f"output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max', not {effort}"


def claude_thinking_problems(body: JsonObject) -> Iterator[str]:
    """Yield what is wrong with the setting of thinking."""
    model, thinking = body["model"], body.get("thinking") or {}
    kind, effort = thinking.get("type"), (body.get("output_config") or {}).get("effort")
    if kind == "enabled":
        if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
            yield "thinking.budget_tokens: must be at least 1024 and less than max_tokens"
        if NO_BUDGET.match(model) and not CLAUDE_4_5.match(model):
            yield f'"thinking.type.enabled" is not supported for {model}'
    if kind in {"disabled", "between_tools"}:
        if ALWAYS_THINK.match(model) or ((kind == "disabled") == model.startswith("claude-sonnet-5-5") and find(CLAUDE_TOKENS, model)):
            yield f"thinking.type {kind} is not supported by {model}"
        if effort in {"xhigh", "max"} and re.match("claude-(opus-5(-20|$)|haiku-5-5|sonnet-5-5)", model):
            yield f"thinking.type {kind} is not supported at effort {effort}"
    if kind == "adaptive" and (CLAUDE_4_5.match(model) or model.startswith("claude-opus-4-1")):
        yield f"adaptive thinking is not supported by {model}"


def gpt_problems(model: str, asked: JsonObject) -> Iterator[str]:
    """Yield what OpenAI's models refuse, whichever API carries the settings `effort`, `temperature` and `tokens`."""
    efforts, most, effort = find(GPT_EFFORTS, model), find(GPT_TOKENS, model), asked["effort"]
    if asked["tokens"] is not None and most and asked["tokens"] > most:
        yield f"max_tokens is too large: {asked['tokens']}. This model supports at most {most} completion tokens"
    if effort is not None and most and effort not in (efforts or "").split():
        yield f"Unsupported value: '{effort}' is not supported with the '{model}' model. Supported values are: {efforts}"
    reasons = efforts and (effort or find(GPT_DEFAULT_EFFORT, model) or "medium") != "none"
    if asked["temperature"] is not None and reasons:
        yield "Unsupported parameter: 'temperature' is not supported with this model."


def responses_problems(body: JsonObject) -> Iterator[str]:
    """Yield what the Responses API refuses."""
    for name in ("thinking", "seed", "max_tokens", "reasoning_effort"):
        if name in body:
            yield f"Unknown parameter: '{name}'."
    effort = (body.get("reasoning") or {}).get("effort")
    asked = {"effort": effort, "temperature": body.get("temperature"), "tokens": body.get("max_output_tokens")}
    yield from gpt_problems(body["model"], asked)


def chat_problems(body: JsonObject) -> Iterator[str]:
    """Yield what Chat Completions refuses, as OpenAI's own models are served there."""
    model = body["model"].removeprefix("openai/")
    tokens = body.get("max_tokens") or body.get("max_completion_tokens")
    if find(GPT_TOKENS, model) and "thinking" in body:
        yield "Unknown parameter: 'thinking'."
    yield from gpt_problems(model, {"effort": body.get("reasoning_effort"), "temperature": body.get("temperature"), "tokens": tokens})


def rules_of(provider: str, model: str) -> tuple[object, ...]:
    """Return what tells one vendor's models apart here: models of equal rules refuse equal bodies."""
    if provider in {"openai", "openai_compatible"}:
        name = model.removeprefix("openai/")
        return provider, *(find(table, name) for table in (GPT_EFFORTS, GPT_TOKENS, GPT_DEFAULT_EFFORT))
    return provider, model


def gemini_problems(model: str, body: JsonObject) -> Iterator[str]:
    """Yield what generateContent refuses."""
    config = body.get("generationConfig") or {}
    thinking, most, levels = config.get("thinkingConfig") or {}, find(GEMINI_TOKENS, model), find(GEMINI_LEVELS, model)
    if most and model != "gemini-9" and config.get("maxOutputTokens", 0) > most:
        yield f"maxOutputTokens must be at most {most}"
    if {"thinkingLevel", "thinkingBudget"} <= set(thinking):
        yield "You can only set one of thinking budget and thinking level"
    level, budget = thinking.get("thinkingLevel"), thinking.get("thinkingBudget")
    if level is not None and model != "gemini-9" and level not in (levels or "").split():
        yield f"Thinking level {level} is not supported by {model}"
    within = find(GEMINI_BUDGETS, model)
    off = budget == 0 and "pro" not in model
    if budget not in {None, -1} and not off and within and not within[0] <= budget <= within[1]:
        yield f"The thinking budget {budget} is invalid. Please choose a value between {within[0]} and {within[1]}"
    if budget is not None and re.match("gemini-(1\\.5|2\\.0|4-argon)", model):
        yield f"Thinking budget is not supported by {model}"


class RuledVendors:
    """All protocols at one address: each answers `text`, or refuses as its vendor does."""

    def __init__(self, text: str = "fine") -> None:
        self.text = text
        self.asked: list[JsonObject] = []
        self.refused: list[str] = []
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._answer)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        """The address."""
        return str(self.server.make_url("")).rstrip("/")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a worker that finds every vendor here."""
        keys = {f"{name}_API_KEY": "k" for name in ("ANTHROPIC", "OPENAI", "GOOGLE", "OPENROUTER")}
        return keys | {"ANTHROPIC_BASE_URL": self.url, "OPENAI_BASE_URL": f"{self.url}/v1", "GOOGLE_GEMINI_BASE_URL": self.url}

    def client(self, timeout: httpx2.Timeout, *, guarded: bool) -> httpx2.AsyncClient:
        """Return a client in the place of `http_client`'s, whose requests are answered here without a connection."""
        assert not guarded

        async def answer(request: httpx2.Request) -> httpx2.Response:
            status, said = self._said(request.url.path, request.headers, json.loads(request.content))
            return httpx2.Response(status, json=said)

        return httpx2.AsyncClient(timeout=timeout, transport=httpx2.MockTransport(answer))

    async def _answer(self, request: web.Request) -> web.Response:
        status, said = self._said(request.path, request.headers, await request.json())
        return web.json_response(said, status=status)

    def _said(self, path: str, headers: Mapping[str, str], body: JsonObject) -> tuple[int, JsonObject]:
        self.asked.append(body)
        problem = next(self._problems(path, headers, body), None)
        if problem:
            self.refused.append(problem)
            return 400, {"error": {"message": problem, "type": "invalid_request_error", "code": 400}}
        return 200, reply(provider_at(path), self.text)

    def _problems(self, path: str, headers: Mapping[str, str], body: JsonObject) -> Iterator[str]:
        if path.endswith("/messages"):
            return messages_problems(body, headers.get("anthropic-version", ""))
        if path.endswith("/responses"):
            return responses_problems(body)
        if path.endswith("/chat/completions"):
            return chat_problems(body)
        named = re.search(r"models/([^/:]+):", path)
        return gemini_problems(named[1] if named else "", body)


@asynccontextmanager
async def ruled_vendors(text: str = "fine") -> AsyncIterator[RuledVendors]:
    """Serve all protocols, each with its vendor's rules."""
    vendors = RuledVendors(text)
    await vendors.server.start_server()
    try:
        yield vendors
    finally:
        await vendors.server.close()
