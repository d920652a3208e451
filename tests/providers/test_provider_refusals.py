"""Faults as the providers document them: each has its kind, so that a refusal is no error of the key, and no paid call is repeated."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.errors import PERMANENT, FailureKind, ModelFault
from activities.providers import Providers
from activities.providers.base import ModelRequest, Step
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec

COMPATIBLE, OPENAI, GEMINI = "openai_compatible:m", "openai:gpt-5.4", "google_genai:gemini-3.6-flash"
Fault = Callable[..., Awaitable[ModelFault]]


@pytest.fixture
async def fault() -> AsyncIterator[Fault]:
    """Return the fault that a model's call raises where its server answers so."""
    opened: list[tuple[TestServer, Providers]] = []

    async def call(model: str, status: int, answer: Any) -> ModelFault:
        async def handle(_: web.Request) -> web.StreamResponse:
            if isinstance(answer, str):
                return web.Response(text=answer, status=status, headers={"content-type": "text/event-stream"})
            return web.json_response(answer, status=status)

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        server = TestServer(app)
        await server.start_server()
        url = str(server.make_url("")).rstrip("/")
        keys = {"ANTHROPIC_API_KEY": "ant-key", "OPENAI_API_KEY": "oai-key", "GEMINI_API_KEY": "gem-key"}
        places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
        providers = Providers(Environment.read(keys | places))
        opened.append((server, providers))
        with pytest.raises(ModelFault) as caught:
            await providers.complete(ModelRequest(ModelSpec(id=model), Step(role="grader"), (Message(role="user", content="hi"),)))
        return caught.value

    yield call
    for server, providers in opened:
        await providers.aclose()
        await server.close()


FILTERED = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
AZURE = {
    "error": {
        "message": FILTERED,
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True, "severity": "high"}},
        },
    }
}
FLAGGED = "Invalid prompt: your prompt was flagged as potentially violating our usage policy."
INVALID_PROMPT = {"error": {"message": FLAGGED, "type": "invalid_request_error", "param": None, "code": "invalid_prompt"}}
MODERATED = {
    "error": {
        "code": 403,
        "message": 'openai/gpt-5 requires moderation. Your input was flagged for "violence/graphic".',
        "metadata": {"reasons": ["violence/graphic"], "flagged_input": "how to", "provider_name": "OpenAI", "model_slug": "openai/gpt-5"},
    }
}
BAD_KEY = {
    "error": {
        "code": 400,
        "message": "API key not valid. Please pass a valid API key.",
        "status": "INVALID_ARGUMENT",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}],
    }
}
OVERLONG = {
    "error": {
        "code": 400,
        "message": "The input token count (1300000) exceeds the maximum number of tokens allowed (1048576).",
        "status": "INVALID_ARGUMENT",
    }
}


def routed(raw: object, code: int = 400) -> dict[str, Any]:
    """Write an error that OpenRouter hands on."""
    return {"error": {"code": code, "message": "Provider returned error", "metadata": {"provider_name": "Anthropic", "raw": raw}}}


def upstream(message: str) -> str:
    """Write the error of the provider behind OpenRouter."""
    return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}})


@pytest.mark.parametrize(
    ("model", "status", "answer", "kind", "words"),
    [
        pytest.param(COMPATIBLE, 400, AZURE, "refused", FILTERED, id="Azure's content filter"),
        pytest.param(OPENAI, 400, AZURE, "refused", FILTERED, id="Azure's content filter, Responses"),
        pytest.param(OPENAI, 400, INVALID_PROMPT, "refused", FLAGGED, id="OpenAI's invalid prompt"),
        pytest.param(
            COMPATIBLE, 403, MODERATED, "refused", 'flagged for "violence/graphic". (violence/graphic)', id="OpenRouter's moderation"
        ),
        pytest.param(COMPATIBLE, 200, MODERATED, "refused", "violence/graphic", id="OpenRouter's moderation inside a 200"),
        pytest.param(
            COMPATIBLE, 403, {"error": {"code": 403, "message": "Key limit exceeded"}}, "auth", "Key limit", id="OpenRouter's key"
        ),
        pytest.param(GEMINI, 400, BAD_KEY, "auth", "API key not valid", id="Gemini's bad key"),
        pytest.param(GEMINI, 400, OVERLONG, "context_overflow", "exceeds the maximum", id="Gemini's long prompt"),
        pytest.param(
            COMPATIBLE, 400, routed(upstream("max_tokens: too large")), "bad_request", "(Anthropic: max_tokens: too large)", id="raw error"
        ),
        pytest.param(COMPATIBLE, 200, routed("upstream is on fire", 502), "server", "(Anthropic: upstream is on fire)", id="raw text"),
        pytest.param(COMPATIBLE, 502, routed({"a": [1]}, 502), "server", '(Anthropic: {"a":[1]})', id="raw JSON of no known form"),
        pytest.param(
            COMPATIBLE,
            400,
            routed(upstream("prompt is too long: 9 tokens > 8 maximum")),
            "context_overflow",
            "9 tokens",
            id="raw, too long",
        ),
        pytest.param(COMPATIBLE, 400, routed(json.dumps(AZURE)), "refused", FILTERED, id="raw, Azure's content filter"),
    ],
)
async def test_a_fault_is_of_the_kind_that_its_provider_means(
    fault: Fault, model: str, status: int, answer: Any, kind: FailureKind, words: str
) -> None:
    error = await fault(model, status, answer)

    assert error.kind == kind
    assert words in error.message
    assert (kind in PERMANENT) == (kind != "server")


async def test_a_prompt_that_is_refused_in_a_stream_is_a_refusal_that_says_what_it_cost(fault: Fault) -> None:
    response = {
        "id": "resp_1",
        "object": "response",
        "status": "failed",
        "error": {"code": "invalid_prompt", "message": FLAGGED},
        "output": [],
        "usage": {"input_tokens": 40, "output_tokens": 0, "total_tokens": 40},
    }
    events = [{"type": "response.created"}, {"type": "response.failed", "response": response}]

    error = await fault(OPENAI, 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events))

    assert error.kind == "refused"
    assert FLAGGED in error.message
    assert error.usage is not None
    assert (error.usage.input, error.usage.calls, error.usage.attempts) == (40, 1, 1)


async def test_a_reply_that_fills_mistrals_window_is_cut_and_paid_for_once(fault: Fault) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "half"}, "finish_reason": "model_length"}
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}

    error = await fault(COMPATIBLE, 200, {"choices": [choice], "usage": usage})

    assert (error.kind, error.raisable) == ("truncated", False)
    assert "model_length" in error.message
    assert error.usage is not None
    assert (error.usage.input, error.usage.output, error.usage.calls) == (900, 100, 1)
