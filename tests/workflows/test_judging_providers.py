"""The example on each provider, through real SDK clients and a local server: label, explanation, citations."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client

from gradeloop.judges.client import Judge
from tests.rig.judging import MATCH, fresh
from tests.rig.provider_server import call_openrouter_at
from tests.rig.threads import serving

RUBRIC = {"rubric_text": "The agent says that the capital of France is Paris.", "n_rollouts_per_input": 2}
TAGGED = f"It does.\n<response>{json.dumps(MATCH)}</response>"

MODELS = {
    "anthropic": "anthropic:claude-haiku-5-5",
    "openai": "openai:gpt-6-luna",
    "google_genai": {"provider": "google", "model_name": "gemini-3.6-flash"},
    "openrouter": {"id": "openrouter:mistralai/mistral-small", "config": {"structured_output": True}},
    "openai_compatible": {"id": "openai_compatible:qwen3", "config": {"structured_output": True}},
}


class Vendors:
    """Every vendor's protocol, one answer."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        bound = any(part in json.dumps(body) for part in ('"json_schema"', '"responseJsonSchema"'))
        return web.json_response(_reply(request.path, json.dumps(MATCH) if bound else TAGGED))


def _reply(path: str, text: str) -> dict[str, Any]:
    if path.endswith("/messages"):
        usage = {"input_tokens": 10, "output_tokens": 5}
        fields = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
        return fields | {"id": "m", "model": "m", "stop_sequence": None, "usage": usage}
    if path.endswith("/responses"):
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output = [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}]
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": output, "usage": usage}
    if path.endswith("/chat/completions"):
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}}


@pytest.fixture
async def vendors() -> AsyncIterator[Vendors]:
    """Serve all protocols at one address."""
    served = Vendors()
    await served.server.start_server()
    yield served
    await served.server.close()


def keys(url: str, *names: str) -> dict[str, str]:
    """Return the environment of a worker that finds every vendor there."""
    keyed = {f"{name}_API_KEY": "k" for name in names or ("ANTHROPIC", "OPENAI", "GOOGLE", "OPENROUTER")}
    places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
    return keyed | places


@pytest.mark.parametrize("mode", ["XML_KEY", "CONSTRAINED_DECODING"])
@pytest.mark.parametrize("provider", MODELS)
async def test_the_example_on_each_provider(
    client: Client, vendors: Vendors, monkeypatch: pytest.MonkeyPatch, provider: str, mode: str
) -> None:
    url = str(vendors.server.make_url("")).rstrip("/")
    call_openrouter_at(f"{url}/v1", monkeypatch)
    judge = RUBRIC | {"judge_model": MODELS[provider], "output_parsing_mode": mode}
    async with serving(client, environment=keys(url)) as served:
        result = await Judge(judge, client, task_queue=served.task_queue)(fresh(f"{provider}-{mode}"))

    assert (result.result_type, result.output) == ("DIRECT_RESULT", MATCH), result.result_metadata
    assert result.result_metadata["citation_counts"] == {"cited": 1, "verified": 1}
    assert (result.usage.input, result.usage.output, result.attempts) == (20, 10, 2)
    assert len(vendors.asked) == 2
    assert all("The capital of France is Paris." in json.dumps(body) for body in vendors.asked)


async def test_who_judges_by_default_is_found_once_and_recorded(client: Client, vendors: Vendors) -> None:
    url = str(vendors.server.make_url("")).rstrip("/")
    async with serving(client, environment=keys(url, "OPENAI")) as served:
        result = await Judge(RUBRIC, client, task_queue=served.task_queue)(fresh("by-default"))

    assert (result.model, result.output) == ("openai:gpt-6-luna", MATCH)
    assert {body["model"] for body in vendors.asked} == {"gpt-6-luna"}


async def test_docents_rubric_is_judged_as_it_is(client: Client, vendors: Vendors) -> None:
    content = "{rubric}\n{agent_run}\nWrite <response>...</response>. {output_format_instructions}\n{output_schema}"
    docents = RUBRIC | {
        "id": "4f1c",
        "version": 2,
        "rollout_type": "single_turn",
        "judge_variant": "majority",
        "output_parsing_mode": "xml_key",
        "response_xml_key": "response",
        "output_format": "json",
        "prompt_templates": [{"role": "user", "content": content}],
        "judge_model": {"provider": "anthropic", "model_name": "claude-haiku-5-5", "reasoning_effort": None},
    }
    url = str(vendors.server.make_url("")).rstrip("/")
    async with serving(client, environment=keys(url)) as served:
        result = await Judge(docents, client, task_queue=served.task_queue)(fresh("docents"))

    assert (result.rubric_id, result.rubric_version, result.output) == ("4f1c", 2, MATCH)
