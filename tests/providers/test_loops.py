"""A reply that repeats itself ends as one that does, and a local stream that has begun may not fall silent."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from activities.calls.limiter import CallLimiter
from activities.providers import SLOTS, Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelRequest, Step
from gradeloop.settings.catalog import ServerFacts, declare_facts
from gradeloop.settings.endpoints import CallCeilings
from gradeloop.text import cut_repetition, repetition
from tests.rig.provider_server import ProviderServer

Role = Literal["grader", "generator"]

CHAT, RESPONSES, CLAUDE = "openai_compatible:loops", "openai:gpt-6-luna", "anthropic:claude-haiku-5-5"

LOOP = "The reason is record 3. "
ROWS = "".join(f'{{"id": "c{at}", "reason": "We are closed.", "passed": false}}, ' for at in range(60))
PROSE = " ".join(f"The draft of {'abcdefghij'[at % 10] * (at + 1)} tells something that no other one does." for at in range(60))


def events_of(model: str, pieces: Iterator[str], *, usage: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a stream of the model's protocol that never ends by itself."""
    if model == CLAUDE:
        message = {"type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 10, "output_tokens": 1}}
        yield {"type": "message_start", "message": message}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for piece in pieces:
        if model == CLAUDE:
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        elif model == RESPONSES:
            yield {"type": "response.output_text.delta", "delta": piece}
        else:
            more = {"usage": {"prompt_tokens": 10, "completion_tokens": 5}} if usage else {}
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}}], **more}


def streamed(events: Callable[[], Iterator[dict[str, Any]]], told: list[str], pause: float = 0.0) -> Any:
    """Return a handler that writes events, with a pause before the last, and notes when its caller has gone."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for event in events():
                await response.write(f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(pause)
        except (ConnectionError, asyncio.CancelledError):
            told.append("gone")
            raise
        return response

    return answer


def forever(text: str) -> Iterator[str]:
    while True:
        yield text[:7]
        yield text[7:]


async def fault_of(server: ProviderServer, model: str, answer: Any, role: Role = "grader", **config: Any) -> ModelFault:
    declare_facts(ModelSpec(id=CHAT), ServerFacts(stream=True))
    return await server.fault(model, answer, config, step=Step(role=role))


@pytest.fixture
async def server(provider: ProviderServer) -> AsyncIterator[ProviderServer]:
    shared, provider.providers = provider.providers, Providers(Environment.read(provider.environ))
    yield provider
    await provider.providers.aclose()
    provider.providers = shared


@pytest.mark.parametrize("role", ["grader", "generator"])
@pytest.mark.parametrize("model", [CHAT, RESPONSES, CLAUDE])
async def test_a_stream_that_repeats_itself_is_ended_and_says_what_helps(server: ProviderServer, model: str, role: Role) -> None:
    told: list[str] = []

    fault = await fault_of(server, model, streamed(lambda: events_of(model, forever(LOOP)), told), role)
    async with asyncio.timeout(60):
        while not told:  # the server hears it while the fault, and all that it holds, is still there
            await asyncio.sleep(0.01)

    assert (fault.kind, fault.raisable) == ("degenerate", False)
    assert "repeats itself" in fault.message
    assert "record 3." in fault.message
    assert len(fault.message) < 400
    for cure in ("larger model", "prompt: short", "structured_output", "penalty in config.extra"):
        assert cure in fault.message
    assert fault.usage is not None
    assert (fault.usage.calls, fault.usage.attempts) == (1, 1)
    assert fault.usage.tokens == (11 if model == CLAUDE else None)


@pytest.mark.parametrize("thoughts", ["reasoning", "reasoning_content"])
async def test_a_loop_of_thoughts_is_one_too(server: ProviderServer, thoughts: str) -> None:
    def events() -> Iterator[dict[str, Any]]:
        for piece in forever(LOOP):
            yield {"choices": [{"index": 0, "delta": {thoughts: piece}}]}

    assert (await fault_of(server, CHAT, streamed(events, []))).kind == "degenerate"


@pytest.mark.parametrize("text", [PROSE, ROWS, "=" * 900, LOOP * 30])
async def test_a_reply_with_some_repetition_is_left_to_its_end(server: ProviderServer, text: str) -> None:
    def events() -> Iterator[dict[str, Any]]:
        yield from events_of(CHAT, iter([text[at : at + 5] for at in range(0, len(text), 5)]))
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}

    declare_facts(ModelSpec(id=CHAT), ServerFacts(stream=True))
    reply = await server.ask(CHAT, streamed(events, []))

    assert reply.message.content == text


def cut(model: str, text: str) -> dict[str, Any]:
    """Return a reply that was cut at its cap, without streaming."""
    if model == CLAUDE:
        body = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "max_tokens"}
        return body | {"usage": {"input_tokens": 10, "output_tokens": 5}}
    if model == RESPONSES:
        output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
        return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": output, "usage": {}}
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage}


@pytest.mark.parametrize("model", [CHAT, RESPONSES, CLAUDE])
@pytest.mark.parametrize(
    ("text", "role", "kind"),
    [
        (LOOP * 20, "grader", "degenerate"),
        (ROWS, "grader", "degenerate"),
        (LOOP * 400, "generator", "degenerate"),
        (PROSE, "grader", "truncated"),
        (ROWS, "generator", "truncated"),
        (LOOP * 20, "generator", "truncated"),
        ("", "grader", "truncated"),
    ],
)
async def test_a_reply_that_is_cut_in_a_loop_is_not_asked_for_again_at_four_times_the_length(
    server: ProviderServer, model: str, text: str, role: Role, kind: str
) -> None:
    fault = await fault_of(server, model, cut(model, text), role)

    assert (fault.kind, fault.raisable) == (kind, kind == "truncated")
    assert fault.usage is not None
    assert fault.usage.calls == 1


@pytest.mark.parametrize("timeout", [None, 30])
async def test_a_local_stream_that_has_begun_and_says_no_more_is_over_unless_its_settings_are_patient(
    server: ProviderServer, monkeypatch: pytest.MonkeyPatch, timeout: int | None
) -> None:
    monkeypatch.setattr("activities.providers.base.QUIET_SECONDS", 0.1)

    settings: dict[str, Any] = {"timeout": timeout} if timeout else {}

    fault = await fault_of(server, CHAT, streamed(lambda: events_of(CHAT, iter(["so"])), [], 0.5), **settings)

    said = {None: ("timeout", "no event for 0.1 s after its beginning"), 30: ("malformed_response", "ended before the reply was complete")}
    assert fault.kind == said[timeout][0]
    assert said[timeout][1] in fault.message


async def test_a_local_stream_may_take_its_time_to_begin(server: ProviderServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.base.QUIET_SECONDS", 0.1)
    monkeypatch.setattr("activities.providers.base.IDLE_TIMEOUT", 0.2)
    beginning = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}]

    fault = await fault_of(server, CHAT, streamed(lambda: iter(beginning), [], 0.5))

    assert fault.kind == "malformed_response"


@pytest.mark.parametrize(
    ("facts", "slots"),
    [
        (None, None),
        (ServerFacts(kind="llamacpp", models=("m",), slots=2), 2),
        (ServerFacts(kind="ollama", models=("m",)), SLOTS),
        (ServerFacts(kind="unknown", models=("m",)), SLOTS),
        (ServerFacts(kind="unknown"), None),
        (ServerFacts(kind="vllm", models=("m",)), None),
        (ServerFacts(kind="litellm", models=("m",)), None),
    ],
)
def test_a_local_server_gets_as_many_calls_as_it_has_slots(facts: ServerFacts | None, slots: int | None) -> None:
    providers, spec = Providers(Environment.read({})), ModelSpec(id="ollama:slots-of-this-test")
    if facts is not None:
        declare_facts(spec, facts)

    assert providers.at_once(spec, 20) == (slots and 20)
    assert not providers.counts_slots
    assert providers.at_once(spec, None) == slots
    assert providers.counts_slots == (slots is not None)
    groq = ModelSpec(id="groq:slots-of-this-test")
    declare_facts(groq, facts or ServerFacts())
    assert providers.at_once(groq, None) is None


async def test_no_more_calls_start_than_there_are_slots_unless_a_setting_says_how_many() -> None:
    async def started(limiter: CallLimiter, slots: int | None) -> int:
        model = limiter.limiter("ollama", "http://localhost/v1", "m", slots)
        return sum([await model._try(1.0) is None for _ in range(10)])

    assert await started(CallLimiter(), 2) == 2
    assert await started(CallLimiter(), None) == 10
    assert await started(CallLimiter({"ollama": CallCeilings(concurrency=7)}), 2) == 7
    assert await started(CallLimiter({"ollama:m": CallCeilings(concurrency=1)}), 2) == 1
    assert await started(CallLimiter({"ollama:m": CallCeilings(tokens_per_minute=60_000_000)}), 2) == 2
    limiter = CallLimiter()
    assert (await started(limiter, 2), await started(limiter, 5), await started(limiter, None)) == (2, 3, 10)


def test_the_request_of_a_call_is_capped_as_its_caller_says() -> None:
    from activities.providers.base import completion_cap

    def cap(**more: Any) -> int:
        config = {name: more.pop(name) for name in ("max_tokens", "thinking") if name in more}
        spec = ModelSpec.model_validate({"id": CHAT, "config": config})
        return completion_cap(ModelRequest(spec, Step(role="grader"), (Message(role="user", content="hi"),), **more))

    assert (cap(), cap(cap=600), cap(cap=600, max_tokens=900), cap(cap=600, raised=True)) == (16_384, 600, 900, 2400)
    assert cap(cap=600, thinking=2000) == 2600


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Good. " + "It is fine. " * 40, "Good. It is fine [… 40 times]"),
        ("=" * 300, "= [… 300 times]"),
        ("It is fine. " * 40 + "It is", "It is fine.  [… 40 times]"),
        ("It is fine. " * 4, None),
        ("It is fine. " * 40 + "And so it ends.", None),
        (PROSE, None),
        ("", None),
    ],
)
def test_a_text_that_repeats_itself_is_shown_with_one_of_its_pieces_and_a_mark(text: str, shown: str | None) -> None:
    assert cut_repetition(text) == (text if shown is None else shown)


@given(st.text(min_size=1, max_size=40), st.text(max_size=30), st.integers(min_value=0, max_value=40))
def test_whatever_is_repeated_is_found_and_cut(piece: str, before: str, rest: int) -> None:
    text = before + piece * 1200 + piece[: rest % len(piece)]

    found = repetition(text, 1000)

    assert found is not None
    assert len(piece) % found.piece == 0
    assert found.start <= len(before)
    assert text.startswith(cut_repetition(text).rpartition(" [… ")[0])
