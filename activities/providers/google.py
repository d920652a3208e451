"""The Gemini API, of Google AI Studio or Vertex AI."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pydantic import JsonValue

from activities.errors import excerpt
from activities.providers import base
from gradeloop.contract.messages import Attachment, Message, Usage
from gradeloop.contract.model_spec import LONGEST_TIMEOUT
from gradeloop.contract.provider import Connections, Endpoint, ModelFault, ModelReply, ModelRequest, Step
from gradeloop.settings.endpoints import OF_GENERATION
from gradeloop.text import objects_in

if TYPE_CHECKING:
    from google.genai import Client


_BLOCKED = {
    "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "MODEL_ARMOR", "LANGUAGE", "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
}  # fmt: skip
_LEVELS = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "XHIGH", "max": "XHIGH"}


def connect(connections: Connections, endpoint: Endpoint) -> "GoogleGenAI":
    """Return the adapter of an endpoint, for Vertex AI where it names a project."""
    from google.genai import Client, types  # a third of a second that only its users pay

    options = types.HttpOptions(
        base_url=endpoint.base_url if endpoint.named or not endpoint.project else None,
        api_version="v1",
        timeout=LONGEST_TIMEOUT * 1000,
        httpx_async_client=connections.client(endpoint),
        headers=dict(endpoint.headers),
        retry_options=types.HttpRetryOptions(attempts=1),
    )
    if endpoint.project:
        client = Client(vertexai=True, project=endpoint.project, location=endpoint.location, http_options=options)
    else:
        client = Client(vertexai=False, api_key=endpoint.key, http_options=options)
    return GoogleGenAI(client, endpoint.query)


class GoogleGenAI:
    """Speaks generateContent through its SDK, below the typed methods: those drop what they do not know, and a signature's own bytes."""

    def __init__(self, client: "Client", query: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._query = urlencode({"alt": "sse"} | dict(query or {}))

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call; see `Provider`."""
        if request.embedded:
            return await base.embed_google(self._client, request)
        api = self._client._api_client  # noqa: SLF001 - the one place that gives raw chunks
        model = f"models/{request.spec.model}"
        path = f"publishers/google/{model}" if api.vertexai else model
        base.SILENCE.set(base.silence(request))
        chunks = await api.async_request_streamed("post", f"{path}:streamGenerateContent?{self._query}", wire_request(request))
        body: base.JsonObject = {}
        with base.paid_until_cut(lambda: body.get("usageMetadata"), _usage):
            try:
                async for chunk in chunks:
                    value = base.json_value(chunk.body or "{}")
                    if not isinstance(value, dict):
                        raise base.malformed(f"an event of the stream is not an object: {excerpt(str(value))}")
                    _merge(body, value)
            except (ValueError, RecursionError) as error:  # the SDK's own parser's too
                raise base.malformed(f"an event of the stream cannot be read: {type(error).__name__}: {error}") from None
        return model_reply(base.whole_object(body), request)

    async def models(self) -> tuple[str, ...]:
        """Return the models that the endpoint lists; see `ListsModels`."""
        page = await self._client.aio.models.list(config={"page_size": base.MODELS_PAGE})
        return tuple((model.name or "").removeprefix("models/") for model in page.page)


def _merge(body: base.JsonObject, chunk: base.JsonObject) -> None:
    """Take the next chunk of a reply in: parts are added, all else is the newest."""
    if chunk.get("error"):
        raise base.error_in_reply(chunk["error"], status=200)
    # A chunk brings only new parts and tokens, but its usage and its reason to end replace those before. So lists
    # are joined, and everything else is taken from the newest.
    candidate, newest = _candidate(body), _candidate(chunk)
    parts, tokens = [*_parts(candidate), *_parts(newest)], [*_tokens(candidate), *_tokens(newest)]
    body.update(chunk)
    if candidate or newest:
        whole: base.JsonObject = {**candidate, **newest, "content": {"role": "model", "parts": list(parts)}}
        body["candidates"] = [whole | ({"logprobsResult": {"chosenCandidates": list(tokens)}} if tokens else {})]


def _candidate(body: base.JsonObject) -> base.JsonObject:
    return next(iter(objects_in(body.get("candidates"))), {})


def _parts(candidate: base.JsonObject) -> list[base.JsonObject]:
    content = candidate.get("content")
    return objects_in(content.get("parts")) if isinstance(content, dict) else []


def _tokens(candidate: base.JsonObject) -> list[base.JsonObject]:
    """Return the tokens of a candidate with their log probabilities; none where it says nothing of them."""
    result = candidate.get("logprobsResult")
    return objects_in(result.get("chosenCandidates")) if isinstance(result, dict) else []


def wire_request(request: ModelRequest) -> dict[str, Any]:
    """Return the request's body."""
    # All results of a turn's tool calls belong in the one content after it, so neighbours of one role are merged.
    turns = groupby(request.messages, key=lambda message: "model" if message.role == "assistant" else "user")
    contents = [{"role": role, "parts": [part for message in group for part in _wire_parts(message, request)]} for role, group in turns]
    body: dict[str, Any] = {"contents": contents, "generationConfig": _settings(request)}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    functions, choice = base.callables(request)
    if functions:
        fields = {"name": "name", "description": "description", "parameters": "parametersJsonSchema"}
        declared = [{fields[name]: value for name, value in row.items() if name in fields} for row in functions]
        body["tools"] = [{"functionDeclarations": declared}]
    if choice is not None:
        mode = {"mode": _MODES[choice]} if choice in _MODES else {"mode": "ANY", "allowedFunctionNames": [choice]}
        body["toolConfig"] = {"functionCallingConfig": mode}
    for name, value in request.spec.config.extra.items():
        (body["generationConfig"] if name in OF_GENERATION else body)[name] = value
    return body


_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
"""Our choices of functions, by this API's names."""


def _settings(request: ModelRequest) -> dict[str, Any]:
    config = request.spec.config
    settings: dict[str, Any] = {
        "maxOutputTokens": base.completion_cap(request),
        "temperature": config.temperature,
        "seed": config.seed,
        "thinkingConfig": _thinking(request),
        "responseLogprobs": request.logprobs or None,
    }
    if (form := base.answer_form(request)) is not None:
        settings |= {"responseMimeType": "application/json", "responseJsonSchema": form.json_schema}
    return {name: value for name, value in settings.items() if value is not None}


def _thinking(request: ModelRequest) -> dict[str, Any] | None:
    """Return the setting of thinking: the API takes a level or a budget, not both."""
    config = request.spec.config
    if config.reasoning_effort is not None:
        return {"thinkingLevel": _LEVELS[config.reasoning_effort]}
    if config.thinking is None:
        return None
    return {"thinkingBudget": config.thinking if isinstance(config.thinking, int) else 0 if config.thinking == "disabled" else -1}


def _wire_parts(message: Message, request: ModelRequest) -> Iterator[JsonValue]:
    parts = base.opaque(message.vendor, "google_genai", "parts")
    if isinstance(parts, list):
        yield from parts
        return
    if message.role == "tool":
        answer: base.JsonObject = {"id": message.tool_call_id, "name": message.name or "tool", "response": {"output": message.content}}
        yield {"functionResponse": answer}
        return
    for part in request.parts(message):
        yield {"text": part} if isinstance(part, str) else _image(part)
    for call in message.tool_calls:
        yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


def _image(image: Attachment) -> JsonValue:
    if image.media_type is None:
        return {
            "fileData": {
                "fileUri": image.url,
                "mimeType": guess_type(image.url)[0] or ("application/pdf" if image.type == "file" else "image/jpeg"),
            }
        }
    return {"inlineData": {"mimeType": image.media_type, "data": image.data}}


def model_reply(body: base.JsonObject, request: ModelRequest) -> ModelReply:
    """Read the reply's body; raise ModelFault where it is not an answer."""
    with base.paid_reply(body, "usageMetadata", _usage) as usage:
        candidate = _candidate(body)
        parts = _named(_parts(candidate), request.step)
        _refuse_unfinished(body, candidate, request, usage)
        text = "".join(str(part.get("text") or "") for part in parts if not part.get("thought"))
        functions = [part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)]
        calls = [base.tool_call(str(function["id"]), function.get("name"), function.get("args")) for function in objects_in(functions)]
        plain = all(set(part) <= {"text"} for part in parts)
        vendor: base.JsonObject = {"provider": "google_genai", "parts": [part for part in parts if part != {"text": ""}]}
        probable = base.log_probs(list(_tokens(candidate)), "logProbability") if request.logprobs else None
        return base.assistant_reply(text, calls, None if plain else vendor, usage, probable)


def _named(parts: list[base.JsonObject], step: Step) -> list[base.JsonObject]:
    """Return the parts, each function call with an id."""
    return [
        {**part, "functionCall": {**call, "id": call.get("id") or base.call_id(step, ordinal)}}
        if isinstance(call := part.get("functionCall"), dict)
        else part
        for ordinal, part in enumerate(parts)
    ]


def _refuse_unfinished(body: base.JsonObject, candidate: base.JsonObject, request: ModelRequest, usage: Usage) -> None:
    feedback, reason = body.get("promptFeedback"), candidate.get("finishReason")
    blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
    if blocked or reason in _BLOCKED:
        raise ModelFault("refused", f"the provider blocked the {'prompt' if blocked else 'reply'} ({blocked or reason})", usage=usage)
    if not candidate:
        raise base.malformed(f"the reply has no candidates; its keys: {', '.join(body) or 'none'}")
    if reason is None:
        raise base.malformed("the stream ended before the reply was complete", usage)
    if reason == "MAX_TOKENS":
        raise base.truncated("MAX_TOKENS", request, usage, candidate)
    if reason != "STOP":
        raise base.unknown_end(f"finishReason {reason!r}", usage)


def _usage(usage: JsonValue) -> Usage:
    """Read the usage, which leaves out what is 0; the tokens that the model thought are added to its output, which leaves them out here."""
    thoughts, prompt = base.count(usage, "thoughtsTokenCount"), base.reported(usage, "promptTokenCount")
    return Usage(
        input=None if prompt is None else prompt + base.count(usage, "toolUsePromptTokenCount"),
        cached=base.count(usage, "cachedContentTokenCount"),
        output=None if prompt is None else base.count(usage, "candidatesTokenCount") + thoughts,
        reasoning=thoughts,
        calls=1,
    )
