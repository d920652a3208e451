"""A model server is asked once what it is, and a server that cannot be asked costs a call nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities.errors import paid_by
from activities.providers import FAILED_SECONDS, FRESH_SECONDS, Providers
from activities.providers.environment import Environment, is_local
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.settings.catalog import Capability, ServerFacts, capability_of, server_facts
from tests.rig.local_servers import LLAMACPP, LMSTUDIO, MODEL, OLLAMA, SGLANG, TGI, VLLM, LocalServer, serving


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalServer]:
    monkeypatch.setattr("gradeloop.settings.catalog._facts", {})  # another test's server may have had the same port
    async with serving(LocalServer()) as running:
        yield running


def model(server: LocalServer, **config: Any) -> ModelSpec:
    return ModelSpec.model_validate({"id": f"openai_compatible:{MODEL}", "config": {"base_url": server.url, **config}})


def worker(server: LocalServer) -> Providers:
    providers = Providers(Environment.read({"GRADELOOP_BASE_URLS": server.url}))
    providers.probe = True
    return providers


async def found(server: LocalServer, **config: Any) -> tuple[Usage | None, ServerFacts | None]:
    """Return what asking a server costs, and what it found."""
    providers, spec = worker(server), model(server, **config)
    try:
        return await providers.understand(spec, trial=True), server_facts(spec)
    finally:
        await providers.aclose()


@pytest.mark.parametrize(
    ("routes", "kind", "context", "slots"),
    [
        (LLAMACPP, "llamacpp", 2048, 3),
        (OLLAMA, "ollama", 8000, None),
        (OLLAMA | {"/api/ps": {"models": []}}, "ollama", 9000, None),
        (LMSTUDIO, "lmstudio", 6000, None),
        (VLLM, "vllm", 32768, None),
        (SGLANG, "sglang", 16384, None),
        (TGI, "tgi", 4000, 128),
        ({"/v1/models": {"data": "none"}}, "unknown", None, None),
        ({}, "unknown", None, None),
    ],
)
async def test_each_kind_of_server_is_known_by_what_it_says_of_itself(
    server: LocalServer, routes: dict[str, Any], kind: str, context: int | None, slots: int | None
) -> None:
    server.routes = routes

    usage, facts = await found(server)

    assert facts is not None
    assert (facts.kind, facts.context, facts.slots, facts.stream, facts.reasons) == (kind, context, slots, True, False)
    assert (facts.answer, facts.bounds) == ("schema", "all")
    assert usage == Usage(input=30, output=12, calls=1, attempts=1, seconds=usage.seconds if usage else 0)


@pytest.mark.parametrize(
    ("schemas", "streams", "answer", "bounds", "stream", "calls"),
    [
        ("all", True, "schema", "all", True, 1),
        ("lists", True, "schema", "lists", True, 1),
        ("enums", False, "schema", "none", None, 1),
        ("ignored", True, "tagged", "none", True, 1),
        ("refused", True, "tagged", "none", None, 0),
        ("unbounded", True, "schema", "none", None, 1),
    ],
)
async def test_the_trial_shows_what_becomes_of_a_schema(
    server: LocalServer, schemas: Any, streams: bool, answer: str, bounds: str, stream: bool | None, calls: int
) -> None:
    server.routes, server.schemas, server.streams = {}, schemas, streams

    usage, facts = await found(server)

    assert facts is not None
    assert (facts.answer, facts.bounds, facts.stream) == (answer, bounds, stream)
    assert usage is not None
    assert (usage.calls, usage.attempts) == (calls, len(server.chats))


async def test_a_model_that_reasons_is_known_by_its_reply(server: LocalServer) -> None:
    server.reasoning = "The user wants a colour."

    _, facts = await found(server)

    assert facts is not None
    assert (facts.answer, facts.reasons) == ("schema", True)


async def test_what_is_found_counts_for_all_that_no_table_and_no_setting_says(server: LocalServer) -> None:
    spec = model(server)
    assert capability_of(spec).answer is None

    await found(server)

    takes = capability_of(spec)
    assert (takes.answer, takes.bounds, takes.context, takes.stream, takes.reasons) == ("schema", "all", 2048, True, False)
    assert capability_of(model(server, structured_output=False)).answer == "tagged"
    assert capability_of(ModelSpec(id=f"openai_compatible:{MODEL}")) == capability_of(ModelSpec(id="openai_compatible:x"))


async def test_settings_that_name_the_form_spare_the_trial(server: LocalServer) -> None:
    usage, facts = await found(server, structured_output=True)

    assert (usage, server.chats) == (None, [])
    assert facts is not None
    assert (facts.answer, facts.context, facts.slots, facts.stream) == (None, 2048, 3, True)


async def test_a_server_is_asked_once_by_many_callers_and_again_after_an_hour(server: LocalServer) -> None:
    providers, spec, clock = worker(server), model(server), asyncio.get_running_loop()
    server.wait = 0.05

    costs = await asyncio.gather(*(providers.understand(spec, trial=True) for _ in range(20)))

    assert (len(server.chats), sum(cost is not None for cost in costs)) == (1, 1)
    for known in providers._asked.values():
        assert known.until > clock.time() + FRESH_SECONDS - 60
        known.until = clock.time()
    assert await providers.understand(spec, trial=True) is not None
    assert len(server.chats) == 2
    await providers.aclose()


async def test_a_look_without_a_trial_keeps_what_the_last_trial_found_and_the_next_caller_tries_again(server: LocalServer) -> None:
    providers, spec = worker(server), model(server)
    await providers.understand(spec, trial=True)
    server.routes = LLAMACPP | {"/props": {"total_slots": 9}}
    for known in providers._asked.values():
        known.until = 0.0

    assert await providers.understand(spec, trial=False) is None
    assert (capability_of(spec).answer, capability_of(spec).bounds, providers.at_once(spec, None)) == ("schema", "all", 9)
    assert await providers.understand(spec, trial=True) is not None
    assert len(server.chats) == 2
    server.schemas = "broken"
    for known in providers._asked.values():
        known.until = 0.0
    assert await providers.understand(spec, trial=True) is not None
    assert capability_of(spec).answer == "schema"
    await providers.aclose()


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_a_server_that_serves_nobody_now_is_asked_again_after_a_minute(server: LocalServer, status: int) -> None:
    server.status, clock = status, asyncio.get_running_loop()
    providers, spec = worker(server), model(server)

    assert (await providers.understand(spec, trial=True), server_facts(spec)) == (None, None)
    assert (await providers.understand(spec, trial=True), server.asked) == (None, ["/v1/models"])
    [known] = providers._asked.values()
    assert clock.time() < known.until <= clock.time() + FAILED_SECONDS
    await providers.aclose()


async def test_a_trial_that_fails_leaves_the_table_and_keeps_what_the_server_said(server: LocalServer) -> None:
    server.schemas, clock = "broken", asyncio.get_running_loop()
    providers, spec = worker(server), model(server)

    usage = await providers.understand(spec, trial=True)

    assert usage is not None
    assert (usage.calls, usage.attempts) == (0, 1)
    assert (capability_of(spec).answer, capability_of(spec).context) == (None, 2048)
    assert next(iter(providers._asked.values())).until <= clock.time() + FAILED_SECONDS
    await providers.aclose()


async def test_nobody_listens_and_nothing_is_known() -> None:
    nowhere = LocalServer(url="http://127.0.0.1:9/v1")

    assert await found(nowhere) == (None, None)


async def test_a_server_that_is_asked_by_a_caller_who_is_stopped_is_asked_by_the_next(server: LocalServer) -> None:
    providers, spec = worker(server), model(server)
    server.wait = 1.0
    first = asyncio.create_task(providers.understand(spec, trial=True))
    while not server.chats:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(providers.understand(spec, trial=True))
    server.wait = 0.0
    first.cancel()

    assert (await second) is not None
    with pytest.raises(asyncio.CancelledError) as stopped:
        await first
    assert paid_by(stopped.value) == Usage(attempts=1)
    await providers.aclose()


async def test_a_worker_may_be_told_to_ask_nobody(server: LocalServer) -> None:
    providers = worker(server)
    providers.probe = False

    assert (await providers.understand(model(server), trial=True), server.asked) == (None, [])


@pytest.mark.parametrize("name", ["anthropic:m", "openai:m", "google_genai:m", "openrouter:m/m", "scripted:m", "openai_compatible:gpt-6"])
async def test_a_server_of_which_a_table_knows_is_not_asked(server: LocalServer, name: str) -> None:
    providers = Providers(Environment.read({"OPENAI_BASE_URL": server.url, "ANTHROPIC_BASE_URL": server.url[:-3], "OPENAI_API_KEY": "k"}))

    assert (await providers.understand(ModelSpec(id=name), trial=True), server.asked) == (None, [])


@pytest.mark.parametrize(
    "said",
    [
        {"default_generation_settings": {"n_ctx": 10**12}, "total_slots": -3},
        {"default_generation_settings": {"n_ctx": "many"}, "total_slots": True},
        {"default_generation_settings": [], "total_slots": 0},
        [1, 2],
        "gibberish",
    ],
)
async def test_what_a_server_says_is_bounded_and_typed(server: LocalServer, said: Any) -> None:
    rows = [{"id": "m" * 5000, "owned_by": "llamacpp"}, *({"id": f"n{at}", "owned_by": ["x"]} for at in range(1000)), 7, {"id": 3}]
    server.routes = {"/v1/models": {"data": [*rows, {"id": MODEL, "owned_by": "llamacpp", "meta": {"n_ctx": -1}}]}, "/props": said}

    _, facts = await found(server)

    assert facts is not None
    assert (facts.kind, facts.context, facts.slots) == ("llamacpp", None, None)
    assert len(facts.models) <= 200
    assert max(map(len, facts.models)) <= 300


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://localhost:11434/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://192.168.1.20:1234/v1", True),
        ("http://10.0.0.5/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://gpu.internal/v1", True),
        ("https://api.groq.com/openai/v1", False),
        ("https://8.8.8.8/v1", False),
        ("", False),
    ],
)
def test_an_address_is_local_where_no_public_host_is_named(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_nothing_is_known_of_an_answer_until_somebody_asked() -> None:
    assert (Capability().answer, ServerFacts().answer) == (None, None)
