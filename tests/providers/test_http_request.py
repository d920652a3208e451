"""A generator that is an address: one request as it is written, its reply or a part of it the draft, and no address that nobody listed."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step

Ask = Callable[..., Awaitable[tuple[ModelReply, dict[str, Any]]]]
SAID = (Message(role="user", content="unused"),)


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Call an address whose server answers with the text that the test gives; returns what it got, too."""
    opened: list[tuple[TestServer, Providers]] = []

    async def call(
        extra: dict[str, Any],
        answer: str = "hello",
        *,
        status: int = 200,
        method: str = "POST",
        listed: bool = True,
        role: Any = "generator",
    ) -> tuple[ModelReply, dict[str, Any]]:
        got: list[dict[str, Any]] = []

        async def handle(request: web.Request) -> web.Response:
            body = await request.text()
            got.append({"method": request.method, "path": str(request.rel_url), "body": body, "headers": dict(request.headers)})
            return web.Response(text=answer, status=status, headers={"Location": "/other", "Retry-After": "7"})

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        server = TestServer(app)
        await server.start_server()
        url = str(server.make_url("/chat"))
        providers = Providers(Environment.read({"GRADELOOP_BASE_URLS": url} if listed else {"GRADELOOP_BASE_URLS": "https://*"}))
        opened.append((server, providers))
        spec = ModelSpec.model_validate({"id": f"http_request:{method}", "config": {"base_url": url, "extra": extra}})
        reply = await providers.complete(ModelRequest(spec, Step(role=role), SAID))
        (received,) = got
        return reply, received

    yield call
    for server, providers in opened:
        await providers.aclose()
        await server.close()


async def test_what_is_written_is_sent_and_the_reply_is_the_draft_of_unknown_use(ask: Ask) -> None:
    reply, got = await ask({"headers": {"X-Team": "a"}, "query": {"v": "1 2"}, "body": {"q": "è"}})

    assert (got["method"], got["path"], json.loads(got["body"])) == ("POST", "/chat?v=1+2", {"q": "è"})
    assert (got["headers"]["X-Team"], got["headers"]["Content-Type"]) == ("a", "application/json")
    assert "Authorization" not in got["headers"]
    assert (reply.message.content, reply.usage.calls, reply.usage.tokens) == ("hello", 1, None)


async def test_a_text_is_sent_as_it_is_and_a_get_has_no_body(ask: Ask) -> None:
    _, got = await ask({"body": "a {b}"}, method="PUT")
    _, bare = await ask({}, method="GET")

    assert (got["method"], got["body"], got["headers"]["Content-Type"]) == ("PUT", "a {b}", "text/plain; charset=utf-8")
    assert (bare["method"], bare["body"]) == ("GET", "")


@pytest.mark.parametrize(
    ("path", "draft"), [(["a", 0, "b"], "yes"), (["a"], '[{"b":"yes"},2]'), (["a", 1], "2"), ([], '{"a": [{"b": "yes"}, 2]}')]
)
async def test_a_path_says_where_in_the_reply_the_draft_is(ask: Ask, path: list[Any], draft: str) -> None:
    reply, _ = await ask({"path": path}, '{"a": [{"b": "yes"}, 2]}')

    assert reply.message.content == draft


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        ('{"error": {"message": "no"}}', 500, "server"),
        ("busy", 429, "rate_limited"),
        ("moved", 302, "bad_request"),
        ("", 200, "malformed_response"),
        ("<html>", 200, "malformed_response"),
        ('{"b": 1}', 200, "malformed_response"),
        ("[1]", 200, "malformed_response"),
    ],
)
async def test_an_error_and_a_reply_without_a_draft_are_failures(ask: Ask, answer: str, status: int, kind: str) -> None:
    with pytest.raises(ModelFault) as fault:
        await ask({"path": ["a"]} if answer else {}, answer, status=status)

    assert fault.value.kind == kind
    assert fault.value.retry_after == (7 if status in {429, 500} else None)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"headers": {"Authorization": "Bearer x"}}, "'Authorization' holds a key, which no request names"),
        ({"headers": {"X-Api-Key": "x"}}, "'X-Api-Key' holds a key"),
        ({"headers": {"Cookie": "x"}}, "'Cookie' holds a key"),
        ({"headers": {"Host": "x"}}, "'Host' is set by the connection"),
        ({"headers": {"X-A": "a\r\nb"}}, "pattern"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_a_request_names_no_key_and_nothing_of_the_connection(ask: Ask, extra: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelFault, match=why) as fault:
        await ask(extra)

    assert fault.value.kind == "config"


async def test_an_address_that_nobody_listed_is_refused_with_the_line_and_it_judges_nothing(ask: Ask) -> None:
    with pytest.raises(ModelFault, match="is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS: http://127"):
        await ask({}, listed=False)
    with pytest.raises(ModelFault, match="drafts, and does nothing else"):
        await ask({}, role="grader")
