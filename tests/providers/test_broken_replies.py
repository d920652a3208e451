"""Replies that cannot be sent on as they come: half a character, numbers and nesting beyond JSON's receivers.

Each is read inside of the call, by the vendor's own SDK from a real server, and whatever it comes to says what it cost.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from temporalio.client import Client

from activities.errors import ModelFault
from activities.providers import Providers
from activities.providers.base import ModelReply, ModelRequest, Step
from activities.providers.environment import Environment
from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.thread import RunResult
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import parse_judge
from gradeloop.settings.worker import WorkerSettings
from tests.rig.judging import FRANCE, fresh
from tests.rig.threads import Served
from worker import build

PROVIDERS = ("anthropic", "openai", "openai_compatible", "google_genai")
HALF = "\\ud83d"
"""Half of a character, as JSON writes it."""


@dataclass
class Raw:
    """A server that answers every call with the bytes that a test gives."""

    answer: Callable[[str], tuple[bytes, str]] = lambda _: (b"", "")
    """The body and its content type, by the request's path."""
    calls: int = 0
    providers: Providers = field(default_factory=lambda: Providers(Environment()))

    async def handle(self, request: web.Request) -> web.Response:
        """Answer."""
        await request.read()
        self.calls += 1
        body, kind = self.answer(request.path)
        return web.Response(body=body, headers={"content-type": kind})

    async def ask(self, provider: str) -> ModelReply:
        """Make one call."""
        said = (Message(role="user", content="hi"),)
        return await self.providers.complete(ModelRequest(model(provider), Step(role="grader"), said))


@pytest.fixture
async def raw() -> AsyncIterator[Raw]:
    served, app = Raw(), web.Application()
    app.router.add_route("*", "/{tail:.*}", served.handle)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    keys = {"ANTHROPIC_API_KEY": "canary-a", "OPENAI_API_KEY": "canary-o", "GOOGLE_API_KEY": "canary-g"}
    places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": url}
    served.providers = Providers(Environment.read(keys | places))
    yield served
    await served.providers.aclose()
    await server.close()


def model(provider: str) -> ModelSpec:
    """Return a model of a provider, whose answers are bound by a schema."""
    return ModelSpec.model_validate({"id": f"{provider}:m", "config": {"structured_output": True} if provider == CHAT else {}})


CHAT = "openai_compatible"
TEXT = "@text@"


def reply(provider: str, text: str = "", arguments: Any = None, name: str | None = "look", reported: bool = True) -> dict[str, Any]:
    """Return a reply of a provider's protocol: a text, or a tool call."""
    called = arguments is not None
    usage: dict[str, Any]
    if provider == "anthropic":
        block = {"type": "tool_use", "id": "t", "name": name, "input": arguments} if called else {"type": "text", "text": text}
        usage = {"usage": {"input_tokens": 10, "output_tokens": 5}}
        body = {"type": "message", "role": "assistant", "content": [block], "stop_reason": "tool_use" if called else "end_turn"}
    elif provider == "openai":
        call = {"type": "function_call", "call_id": "t", "name": name, "arguments": arguments}
        said = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        usage = {"usage": {"input_tokens": 10, "output_tokens": 5}}
        body = {"status": "completed", "output": [call if called else said]}
    elif provider == CHAT:
        calls = [{"id": "t", "type": "function", "function": {"name": name, "arguments": arguments}}]
        message = {"content": None, "tool_calls": calls} if called else {"content": text}
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    else:
        part = {"functionCall": {"id": "t", "name": name, "args": arguments}} if called else {"text": text}
        usage = {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5}}
        body = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}
    return body | (usage if reported else {})


def written(provider: str, body: Any, literal: str = "", *, inside: bool = False) -> Callable[[str], tuple[bytes, str]]:
    """Return an answer whose `TEXT` is a literal of JSON, or, inside of a text, that literal as part of it."""
    given = json.dumps(body).replace(TEXT if inside else f'"{TEXT}"', json.dumps(literal)[1:-1] if inside else literal)
    stream = provider == "google_genai"
    answer = (f"data: {given}\n\n" if stream else given).encode(), "text/event-stream" if stream else "application/json"
    return lambda _: answer


def cost(usage: Usage | None) -> tuple[int, int | None, int | None] | None:
    """Return the calls and the tokens."""
    return None if usage is None else (usage.calls, usage.input, usage.output)


PAID = (1, 10, 5)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("literal", "content"),
    [
        (f'"a {HALF} b"', "a \ufffd b"),
        (f'"{HALF}"', "\ufffd"),
        (f'"a {HALF}\\ude00 b \\ude00"', "a \U0001f600 b \ufffd"),
        ('"a \\\\ud83d b"', "a \\ud83d b"),
    ],
)
async def test_half_a_character_in_a_text_is_replaced_and_the_reply_counts(raw: Raw, provider: str, literal: str, content: str) -> None:
    raw.answer = written(provider, reply(provider, TEXT), literal)

    answer = await raw.ask(provider)

    assert (answer.message.content, cost(answer.usage), raw.calls) == (content, PAID, 1)
    assert answer.message.size() > 0


async def test_two_halves_of_a_character_that_come_one_after_the_other_are_one(raw: Raw) -> None:
    choices = [{"index": 0, "delta": {"content": TEXT}}]
    first, second = (json.dumps({"choices": choices}).replace(TEXT, half) for half in (f"a {HALF}", "\\ude00 b"))
    last = json.dumps(
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    )
    raw.answer = lambda _: ("".join(f"data: {part}\n\n" for part in (first, second, last)).encode(), "text/event-stream")

    answer = await raw.ask(CHAT)

    assert (answer.message.content, cost(answer.usage)) == ("a \U0001f600 b", PAID)


DEEP = "[" * 150 + "]" * 150


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("literal", "arguments"),
    [(f'{{"q": "a {HALF}"}}', {"q": "a \ufffd"}), ('{"q": 1e400}', None), (f'{{"q": {DEEP}}}', None), (f'{{"{HALF}": 1}}', {"\ufffd": 1})],
)
async def test_a_tool_calls_arguments_can_be_sent_on(raw: Raw, provider: str, literal: str, arguments: Any) -> None:
    """Those that no receiver takes are kept as text, so that the model is told of them, and so are those that were text before."""
    in_text = provider in {"openai", CHAT}
    raw.answer = written(provider, reply(provider, arguments=TEXT), literal, inside=in_text)

    if provider == "google_genai" and arguments is None:  # its arguments go back as they came, with their signatures
        with pytest.raises(ModelFault, match=r"nested|cannot be read"):
            await raw.ask(provider)
        return
    answer = await raw.ask(provider)
    arguments = None if in_text and HALF in literal else arguments

    (call,) = answer.message.tool_calls
    assert (call.arguments if call.invalid is None else None, cost(answer.usage)) == (arguments, PAID)
    assert Message.model_validate_json(answer.message.model_dump_json()) == answer.message


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("reported", [True, False])
async def test_a_reply_that_is_no_answer_says_what_it_cost_where_the_server_did(raw: Raw, provider: str, reported: bool) -> None:
    raw.answer = written(provider, reply(provider, arguments={}, name=None, reported=reported))

    with pytest.raises(ModelFault, match="names no tool") as caught:
        await raw.ask(provider)

    assert (caught.value.kind, cost(caught.value.usage)) == ("malformed_response", PAID if reported else (0, 0, 0))


@pytest.mark.parametrize("literal", ["NaN", "1" * 5000, "[" * 100_000, "[" * 5000 + "]" * 5000, "[" * 300 + f'"{HALF}"' + "]" * 300])
async def test_what_googles_reader_cannot_read_is_malformed_and_counted(raw: Raw, literal: str) -> None:
    first = json.dumps(reply("google_genai", "a") | {"candidates": []})
    second = json.dumps(reply("google_genai", "b") | {"more": TEXT}).replace(f'"{TEXT}"', literal)
    raw.answer = lambda _: (f"data: {first}\n\ndata: {second}\n\n".encode(), "text/event-stream")

    with pytest.raises(ModelFault, match="an event of the stream cannot be read") as caught:
        await raw.ask("google_genai")

    assert (caught.value.kind, cost(caught.value.usage), raw.calls) == ("malformed_response", PAID, 1)


VERDICT = '{"criteria": [{"id": "c1", "reason": "a ' + HALF + '", "passed": true, "gap": null}], "explanation": "e", "result": "satisfied"}'
"""A verdict that is plain text on the wire, and has half a character once it is parsed."""


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_verdict_with_half_a_character_is_mended_or_an_error_and_every_call_is_counted(
    raw: Raw, client: Client, provider: str
) -> None:
    drafts = written(provider, reply(provider, TEXT), f'"spring {HALF}"')
    verdicts = written(provider, reply(provider, VERDICT))
    raw.answer = lambda path: drafts(path) if raw.calls == 1 else verdicts(path)
    queue, spec = f"broken-{uuid4()}", model(provider).model_dump(mode="json", exclude_none=True)
    request = {"messages": [{"role": "user", "content": "hi"}], "rubric": "- a", "generator": {"model": spec}, "grader": {"model": spec}}
    async with build(client, raw.providers, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result: RunResult = await Served(client, queue, raw.providers).run(request | {"max_iterations": 1})  # type: ignore[arg-type]  # it only starts threads

    assert (result.status, raw.calls, cost(result.usage)) == ("grader_error", 4, (4, 40, 20))
    assert "half of a surrogate pair" in result.evaluations[0].explanation
    assert result.messages is not None
    assert [message.content for message in result.messages] == ["hi", "spring \ufffd"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_a_judges_answer_with_half_a_character_is_a_failure_with_its_usage(
    raw: Raw, client: Client, provider: str, form: str
) -> None:
    answers = {"json": f'{{"label": "match", "explanation": "a {HALF}"}}', "yaml": f'label: match\nexplanation: "a {HALF}"\n'}
    raw.answer = written(provider, reply(provider, f"<response>\n{answers[form]}\n</response>"))
    judge = parse_judge(FRANCE | {"judge_model": model(provider).model_dump(mode="json", exclude_none=True), "output_format": form})
    queue = f"broken-{uuid4()}"
    async with build(client, raw.providers, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result = await Judge(judge, client, task_queue=queue)(fresh(f"broken-{uuid4()}"))

    assert (result.result_type, raw.calls, cost(result.usage)) == ("FAILURE", 3, (3, 30, 15))
