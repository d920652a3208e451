"""Log probabilities of a reply: asked for where a call needs them, over the three protocols that have them, through the vendors' SDKs."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import LogProbs
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply
from tests.rig.provider_server import ProviderServer, Recorded

Events = list[dict[str, Any]]

TOKENS = [("Hel", -0.5), ("lo", -0.25), (".", 0)]


def listed(key: str, *tokens: tuple[str, object]) -> Events:
    """Return tokens as a server lists them."""
    return [{"token": token, key: value} for token, value in tokens]


def chat(first: tuple[str, object], *rest: tuple[str, object]) -> Events:
    """Return a streamed reply of Chat Completions, a chunk a token."""
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": token}, "logprobs": {"content": listed("logprob", (token, value))}}]}
        for token, value in (first, *rest)
    ]
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]}]


def responses(*tokens: tuple[str, object]) -> Events:
    """Return a streamed reply of Responses, whose end has the whole."""
    part = {"type": "output_text", "text": "Hello.", "logprobs": listed("logprob", *tokens)}
    message = {"type": "message", "id": "m", "role": "assistant", "content": [part]}
    return [{"type": "response.completed", "response": {"status": "completed", "output": [message]}}]


def google(*tokens: tuple[str, object]) -> Events:
    """Return a streamed reply of the Gemini API, a chunk a token."""
    chunks: Events = [
        {
            "content": {"role": "model", "parts": [{"text": token}]},
            "logprobsResult": {"chosenCandidates": listed("logProbability", (token, value))},
        }
        for token, value in tokens
    ]
    chunks[-1]["finishReason"] = "STOP"
    return [{"candidates": [chunk]} for chunk in chunks]


MODELS: dict[str, Callable[..., Events]] = {
    "openai_compatible:m": chat,
    "openai:gpt-4.1-mini": responses,
    "google_genai:gemini-2.5-flash": google,
}


async def ask(provider: ProviderServer, model: str, events: Events, *, logprobs: bool = True) -> tuple[ModelReply, dict[str, Any]]:
    """Call a model whose server streams events; return what was sent, too."""
    reply = await provider.ask(model, Recorded(events=tuple(events)), logprobs=logprobs)
    return reply, provider.received[-1].body


def asked_for(body: dict[str, Any]) -> bool:
    """Tell whether a request asks for log probabilities, by whatever name."""
    included = "message.output_text.logprobs" in body.get("include", [])
    return bool(body.get("logprobs") or included or body.get("generationConfig", {}).get("responseLogprobs"))


@pytest.mark.parametrize("model", MODELS)
async def test_a_call_that_needs_them_asks_for_them_and_has_their_sum(provider: ProviderServer, model: str) -> None:
    reply, body = await ask(provider, model, MODELS[model](*TOKENS))

    assert asked_for(body)
    assert reply.message.content == "Hello."
    assert reply.logprobs == LogProbs(total=-0.75, tokens=3)
    assert reply.logprobs.perplexity == pytest.approx(math.exp(0.25))


@pytest.mark.parametrize("model", MODELS)
async def test_a_call_that_does_not_need_them_neither_asks_nor_reads(provider: ProviderServer, model: str) -> None:
    reply, body = await ask(provider, model, MODELS[model](*TOKENS), logprobs=False)

    assert not asked_for(body)
    assert reply.logprobs is None


@pytest.mark.parametrize("odd", ["-0.1", None, True])
async def test_a_token_without_one_makes_all_unknown(provider: ProviderServer, odd: object) -> None:
    reply, _ = await ask(provider, "openai_compatible:m", chat(("Hello", -0.5), (".", odd)))

    assert reply.logprobs is None


def test_a_perplexity_that_is_too_large_to_say_is_infinite() -> None:
    assert LogProbs(total=-9999.0, tokens=1).perplexity == math.inf


def test_a_worker_refuses_a_model_or_a_fallback_whose_protocol_has_none() -> None:
    providers = Providers(Environment.read({}))
    spec = ModelSpec.model_validate({"id": "openai:gpt-4.1", "fallback": ["anthropic:claude-haiku-4-5"]})
    providers.refuse_without_logprobs(ModelSpec.model_validate("openai:gpt-4.1"))

    with pytest.raises(ModelFault, match="'anthropic:claude-haiku-4-5': its API does not say how probable its tokens are"):
        providers.refuse_without_logprobs(spec)
