"""Texts compared by their embeddings: one paid call, whose reply is the verdict that it comes to."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from activities.providers.base import JsonObject, json_object, malformed, paid_reply, reply_timeout, reported
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest

if TYPE_CHECKING:
    from google.genai import Client
    from openai import AsyncOpenAI

BLANK = "\u2014"
"""The text that is embedded for one without a word, which servers refuse."""


async def embed_openai(client: "AsyncOpenAI", request: ModelRequest) -> ModelReply:
    """Make one call of OpenAI's embeddings, and return the verdict.

    Raises:
        ModelFault: The reply has not one vector for each text.
    """
    body: JsonObject = {"model": request.spec.model, "input": _texts(request), "encoding_format": "float", **request.spec.config.extra}
    call = client.embeddings.with_streaming_response.create
    async with call(model=request.spec.model, input=[], extra_body=body, timeout=reply_timeout(request, streamed=False)) as response:
        reply = json_object(await response.http_response.aread())
    with paid_reply(reply, "usage", lambda found: Usage(input=reported(found, "prompt_tokens"), output=0, calls=1)) as usage:
        data = reply.get("data")
        rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
        placed = {row.get("index") if isinstance(row.get("index"), int) else at: row.get("embedding") for at, row in enumerate(rows)}
        return _verdict(request, [placed.get(at) for at in range(max(len(rows), 1))], usage)


async def embed_google(client: "Client", request: ModelRequest) -> ModelReply:
    """Make one call of Gemini's embeddings, and return the verdict.

    Raises:
        ModelFault: The reply has not one vector for each text.
    """
    api = client._api_client  # noqa: SLF001 - the one place that gives raw replies
    if api.vertexai:
        raise ModelFault("config", "embeddings of Vertex AI are not called; name a model of Google AI Studio or of OpenAI")
    model = f"models/{request.spec.model}"
    rows = [{"model": model, "content": {"parts": [{"text": text}]}, **request.spec.config.extra} for text in _texts(request)]
    response = await api.async_request("post", f"{model}:batchEmbedContents", {"requests": rows})
    reply = json_object((response.body or "").encode())
    with paid_reply(reply, "usageMetadata", lambda found: Usage(input=reported(found, "promptTokenCount"), output=0, calls=1)) as usage:
        data = reply.get("embeddings")
        vectors = [row.get("values") for row in data if isinstance(row, dict)] if isinstance(data, list) else []
        return _verdict(request, vectors, usage)


def _texts(request: ModelRequest) -> list[JsonValue]:
    return [text if text.strip() else BLANK for text in request.embedded]


def _verdict(request: ModelRequest, vectors: Sequence[JsonValue], usage: Usage) -> ModelReply:
    """Return the best cosine as an answer of the form `pass_score`."""
    read = [_vector(vector, usage) for vector in vectors]
    if len(read) != len(request.embedded) or len({len(vector) for vector in read}) != 1:
        raise malformed(f"the reply has {len(read)} vectors for {len(request.embedded)} texts, or of different lengths", usage)
    draft, *references = read
    best = max(_cosine(draft, reference) for reference in references)
    score = min(max(best, 0.0), 1.0)
    answer = {"reason": f"The cosine of the two embeddings is {best:.3f}.", "pass": True, "score": round(score, 6)}
    return ModelReply(Message(role="assistant", content=json.dumps(answer)), usage)


def _vector(value: JsonValue, usage: Usage) -> list[float]:
    numbers = value if isinstance(value, list) else []
    vector = [float(number) for number in numbers if isinstance(number, int | float) and not isinstance(number, bool)]
    if not vector or len(vector) != len(numbers) or not all(map(math.isfinite, vector)) or not any(vector):
        raise malformed("a text's embedding is no list of numbers, or all zeros", usage)
    return vector


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
