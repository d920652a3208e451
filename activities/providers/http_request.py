"""A generator that is an address: one request, whose reply is the draft, or holds it."""

from http import HTTPStatus
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from activities.errors import error_kind, excerpt, reported_codes, reported_message, retry_after
from activities.providers.base import UNMETERED, assistant_reply, json_value, malformed, reply_timeout
from gradeloop.contract.model_spec import HttpCall, ModelSpec
from gradeloop.contract.provider import Connections, Endpoint, ModelFault, ModelReply, ModelRequest
from gradeloop.errors import explain
from gradeloop.text import clip

if TYPE_CHECKING:
    import httpx2


def read_call(spec: ModelSpec) -> HttpCall:
    """Return what a model of this kind sends; raise ModelFault where its settings are none of a request."""
    try:
        return HttpCall.model_validate({"method": spec.model.upper(), **spec.config.extra})
    except ValidationError as error:
        raise ModelFault("config", f"{spec.id!r}: extra: {explain(error)}", model=spec.id) from None


def connect(connections: Connections, endpoint: Endpoint) -> "HttpRequest":
    """Return the adapter of an address."""
    return HttpRequest(connections.client(endpoint), endpoint.base_url)


class HttpRequest:
    """Sends what a case says to an address; the conversation itself is a part of that already."""

    def __init__(self, client: "httpx2.AsyncClient", url: str) -> None:
        self._client = client
        self._url = url

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call; see `Provider`."""
        if request.embedded or request.step.role != "generator" or request.functions or request.tools:
            raise ModelFault("config", f"{request.spec.id!r} drafts, and does nothing else; name a model")
        call = read_call(request.spec)
        body = call.body_text()
        headers = dict(call.headers)
        if body is not None and "content-type" not in {name.lower() for name in headers}:
            headers["Content-Type"] = "text/plain; charset=utf-8" if isinstance(call.body, str) else "application/json"
        response = await self._client.request(
            call.method,
            self._url,
            params=dict(call.query) or None,
            headers=headers,
            content=None if body is None else body.encode(),
            timeout=reply_timeout(request, streamed=False),
        )
        text = response.content.decode(errors="replace")
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise _refused(response, text)
        return assistant_reply(draft_of(text, call), (), None, UNMETERED)


def _refused(response: "httpx2.Response", text: str) -> ModelFault:
    try:
        report = json_value(text)
    except ValueError:
        report = None
    shown = report if isinstance(report, dict) else {}
    message = reported_message(shown) or excerpt(text)
    status, wait = response.status_code, retry_after(response.headers)
    return ModelFault(error_kind(status, reported_codes(shown), message), f"HTTP {status}: {message}", status=status, retry_after=wait)


def draft_of(text: str, call: HttpCall) -> str:
    """Return the draft in a reply; raise ModelFault where there is none in its place."""
    if not call.path:
        return text
    try:
        value: JsonValue = json_value(text)
    except ValueError as error:
        raise malformed(f"the reply is not JSON ({error}); it begins {excerpt(text)}") from None
    for step in call.path:
        if isinstance(value, dict) and str(step) in value:
            value = value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            raise malformed(f"the reply has nothing at {clip('.'.join(map(str, call.path)))}; it begins {excerpt(text)}", UNMETERED)
    return value if isinstance(value, str) else to_json(value).decode()
