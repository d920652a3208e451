"""Texts compared by their embeddings: one call through the vendor's SDK, its cosine as a verdict, its tokens counted and priced."""

import json
from typing import Any

import pytest

from gradeloop.contract.provider import ModelFault, ModelReply
from tests.rig.provider_server import ProviderServer, raw_body


async def ask(provider: ProviderServer, model: str, answer: Any, *texts: str, status: int = 200) -> tuple[ModelReply, dict[str, Any], str]:
    """Compare texts by a model whose server answers with the JSON; return what was sent, too."""
    reply = await provider.ask(model, raw_body(json.dumps(answer).encode(), status=status), messages=(), embedded=texts)
    return reply, provider.received[-1].body, provider.received[-1].path


def vectors(*given: Any) -> dict[str, Any]:
    """Return a reply of OpenAI's, its rows in another order than asked for."""
    rows = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(given)]
    return {"object": "list", "data": rows[::-1], "model": "m", "usage": {"prompt_tokens": 1_000_000, "total_tokens": 1_000_000}}


@pytest.mark.parametrize("model", ["openai:text-embedding-3-large", "openai_compatible:text-embedding-3-large"])
async def test_the_best_cosine_is_the_score_and_the_tokens_are_counted(provider: ProviderServer, model: str) -> None:
    reply, sent, path = await ask(provider, model, vectors([3, 4], [4, 3], [-3, -4]), "a draft", "one", "other")

    assert json.loads(reply.message.content) == {"reason": "The cosine of the two embeddings is 0.960.", "pass": True, "score": 0.96}
    assert (sent["model"], sent["input"], sent["encoding_format"]) == ("text-embedding-3-large", ["a draft", "one", "other"], "float")
    assert path.endswith("/embeddings")
    assert (reply.usage.input, reply.usage.output, reply.usage.calls, reply.usage.attempts) == (1_000_000, 0, 1, 1)
    assert reply.usage.cost_usd == (0.13 if model.startswith("openai:") else None)


async def test_geminis_embeddings_are_asked_for_in_one_batch(provider: ProviderServer) -> None:
    answer = {"embeddings": [{"values": [1, 0]}, {"values": [1, 0]}]}
    reply, sent, path = await ask(provider, "google_genai:gemini-embedding-001", answer, "a draft", "one")

    assert json.loads(reply.message.content)["score"] == 1
    assert [row["content"]["parts"][0]["text"] for row in sent["requests"]] == ["a draft", "one"]
    assert path.endswith("models/gemini-embedding-001:batchEmbedContents")
    assert reply.usage.input is None


async def test_opposites_score_nothing_and_a_blank_draft_is_embedded_as_a_dash(provider: ProviderServer) -> None:
    reply, sent, _ = await ask(provider, "openai:text-embedding-3-small", vectors([1, 0], [-1, 0]), " ", "one")

    assert json.loads(reply.message.content)["score"] == 0
    assert sent["input"][0].strip()


@pytest.mark.parametrize(
    "answer", [{}, {"data": []}, vectors([1, 0]), vectors([1, 0], [1]), vectors([0, 0], [1, 0]), vectors(["x"], [1]), []]
)
async def test_a_reply_without_one_vector_for_each_text_is_malformed(provider: ProviderServer, answer: Any) -> None:
    with pytest.raises(ModelFault) as fault:
        await ask(provider, "openai:text-embedding-3-small", answer, "a draft", "one")

    assert fault.value.kind == "malformed_response"


async def test_a_server_that_is_away_and_a_model_that_makes_none_are_failures_of_the_call(provider: ProviderServer) -> None:
    with pytest.raises(ModelFault) as away:
        await ask(provider, "openai:text-embedding-3-small", {"error": {"message": "busy"}}, "a", "b", status=503)
    with pytest.raises(ModelFault) as none:
        await ask(provider, "anthropic:claude-haiku-4-5", {}, "a", "b")

    assert away.value.kind == "server"
    assert (none.value.kind, "makes no embeddings" in str(none.value)) == ("config", True)
