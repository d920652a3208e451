"""Endpoints with names, over HTTP: each with its own protocol, key, headers, parameters and body, and keys that change under load."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.errors import conceal
from activities.providers import Providers, examine
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step
from gradeloop.settings.endpoints import EndpointSettings, presets_by_name
from tests.providers.test_providers_vertex import credentials
from tests.rig.provider_server import provider_at, reply


class Gateway:
    """A server of every protocol that accepts some keys, and keeps what it was sent."""

    def __init__(self) -> None:
        self.accepts: set[str] | None = None
        """The keys that are accepted; any by default."""
        self.unknown: set[str] = set()
        """Fields of a body that it refuses."""
        self.seen: list[tuple[str, Mapping[str, str], dict[str, Any]]] = []
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    @property
    def keys(self) -> list[str]:
        """The keys that came, in order."""
        return [_key(headers) for _, headers, _ in self.seen]

    async def _answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read() or b"{}")
        self.seen.append((request.path_qs, {name.lower(): text for name, text in request.headers.items()}, body))
        key = _key(self.seen[-1][1])
        if self.accepts is not None and key not in self.accepts:
            error = {"message": f"Incorrect API key provided: {key}.", "type": "invalid_request_error", "code": "invalid_api_key"}
            return web.json_response({"error": error}, status=401)
        for field in self.unknown & set(body):
            other = "max_completion_tokens" if field == "max_tokens" else "max_tokens"
            text = f"Unsupported parameter: '{field}' is not supported with this model. Use '{other}' instead."
            return web.json_response({"error": {"message": text, "param": field, "code": "unsupported_parameter"}}, status=400)
        return web.json_response(reply(provider_at(request.path), "Paris."))


def _key(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-goog-api-key", "")


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    served = Gateway()
    await served.server.start_server()
    yield served
    await served.server.close()


def serving(endpoints: dict[str, Any], environ: dict[str, str] | None = None) -> Providers:
    """Return the models of a worker with these endpoints."""
    settings = {name: EndpointSettings.model_validate(table) for name, table in endpoints.items()}
    made.append(Providers(Environment.read(environ or {}, settings)))
    return made[-1]


made: list[Providers] = []


@pytest.fixture(autouse=True)
async def closed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Close what a test has called, however it ends, and forget its keys."""
    monkeypatch.setattr("gradeloop.settings.secrets._remembered", set())
    monkeypatch.setattr("gradeloop.settings.endpoints._declared", {})
    yield
    while made:
        await made.pop().aclose()


async def ask(providers: Providers, model: str, **config: Any) -> ModelReply:
    spec = ModelSpec.model_validate({"id": model, "config": config})
    return await providers.complete(ModelRequest(spec, Step(role="grader"), (Message(role="user", content="Capital of France?"),)))


@pytest.mark.parametrize(
    ("protocol", "name", "sent"),
    [
        ("anthropic", "x-api-key", None),
        ("anthropic", "Authorization", "of our own"),
        ("openai_chat", "api-key", "Bearer EMPTY"),
        ("openai_chat", "Authorization", "of our own"),
    ],
)
async def test_a_header_of_ones_own_may_have_the_key(gateway: Gateway, protocol: str, name: str, sent: str | None) -> None:
    table = {"protocol": protocol, "base_url": gateway.url, "headers": {name: "${GATE_KEY}"}}
    await ask(serving({"gate": table}, {"GATE_KEY": "of our own"}), "gate:m")

    headers = gateway.seen[0][1]
    assert (headers[name.lower()], headers.get("authorization")) == ("of our own", sent)


PATHS = {
    "anthropic": "/v1/messages",
    "openai_responses": "/responses",
    "openai_chat": "/chat/completions",
    "google": "/v1/models/m:streamGenerateContent",
}


@pytest.mark.parametrize("protocol", PATHS)
async def test_an_endpoint_is_called_by_its_protocol_with_its_key_headers_parameters_and_body(gateway: Gateway, protocol: str) -> None:
    table = {
        "protocol": protocol,
        "base_url": f"{gateway.url}/gate",
        "key": "GATE_KEY",
        "headers": {"x-team": "graders", "x-secret": "${GATE_SECRET}"},
        "query": {"api-version": "2026-11-01"},
        "body": {"route": {"order": ["a"]}, "tier": "flex"},
    }
    providers = serving({"gate": table}, {"GATE_KEY": "gate-key-1", "GATE_SECRET": "gate-secret-2"})

    reply = await ask(providers, "gate:m", extra={"tier": "fast"})

    ((path, headers, body),) = gateway.seen
    assert (reply.message.content, reply.usage.input, reply.usage.output) == ("Paris.", 10, 5)
    assert path.partition("?")[0] == f"/gate{PATHS[protocol]}"
    assert "api-version=2026-11-01" in path
    assert (_key(headers), headers["x-team"], headers["x-secret"]) == ("gate-key-1", "graders", "gate-secret-2")
    assert (body["route"], body["tier"]) == ({"order": ["a"]}, "fast")


async def test_two_endpoints_of_one_protocol_have_their_own_keys_at_once(gateway: Gateway) -> None:
    table = {"protocol": "openai_chat", "base_url": gateway.url}
    providers = serving(
        {"one": table | {"key": "KEY_ONE"}, "two": table | {"key": "KEY_TWO", "headers": {"x-of": "two"}}},
        {"KEY_ONE": "the-first-key", "KEY_TWO": "the-second-key"},
    )

    await asyncio.gather(*(ask(providers, f"{name}:m") for name in ("one", "two") for _ in range(20)))

    assert Counter(gateway.keys) == {"the-first-key": 20, "the-second-key": 20}
    assert all((_key(headers) == "the-second-key") == (headers.get("x-of") == "two") for _, headers, _ in gateway.seen)


async def test_a_key_file_that_changes_under_load_costs_no_call(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("key-number-00\n")
    gateway.accepts = {"key-number-00"}
    providers = serving({"gate": {"protocol": "openai_chat", "base_url": gateway.url, "key": str(file)}})
    ended = asyncio.Event()
    counts = [0] * 10

    async def calls(caller: int) -> None:
        while not ended.is_set():
            await ask(providers, "gate:m")
            counts[caller] += 1

    callers = [asyncio.create_task(calls(caller)) for caller in range(10)]
    for number in range(1, 9):
        earlier = tuple(counts)
        while any(count < before + 2 for count, before in zip(counts, earlier, strict=True)):  # a call sees one change at most
            assert not any(caller.done() for caller in callers)
            await asyncio.sleep(0.01)
        key = f"key-number-{number:02}"
        if number % 2:  # in place, as an editor may; else as Kubernetes does, with another file
            file.write_text(f"{key}\n")
        else:
            (tmp_path / "new").write_text(key)
            (tmp_path / "new").replace(file)
        gateway.accepts = {key}  # the old one is revoked at once, also for calls on their way
    await ask(providers, "gate:m")
    ended.set()
    await asyncio.gather(*callers)
    last = await ask(providers, "gate:m")

    assert min(counts) > 8
    assert last.message.content == "Paris."
    assert gateway.keys[-1] == "key-number-08"
    assert set(gateway.keys) == {f"key-number-{number:02}" for number in range(9)}


async def test_a_key_file_that_is_away_or_empty_for_a_moment_leaves_the_last_key(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "key"
    providers = serving({"gate": {"protocol": "openai_chat", "base_url": gateway.url, "key": str(file)}})
    with pytest.raises(ModelFault, match=r"the key file '.*' holds no key; set it to use 'gate:m'"):
        await ask(providers, "gate:m")
    file.write_text("the-first-key")
    await ask(providers, "gate:m")
    file.unlink()
    await ask(providers, "gate:m")
    file.write_text("")
    await ask(providers, "gate:m")
    file.write_text("the-other-key")
    await ask(providers, "gate:m")

    assert gateway.keys == ["the-first-key"] * 3 + ["the-other-key"]


async def test_a_refused_key_that_has_not_changed_is_refused_once(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-wrong-key-1")
    gateway.accepts = set()
    providers = serving({"gate": {"protocol": "openai_chat", "base_url": gateway.url, "key": str(tmp_path / "key")}})

    with pytest.raises(ModelFault) as caught:
        await ask(providers, "gate:m")

    assert (caught.value.kind, len(gateway.seen)) == ("auth", 1)
    assert "a-wrong-key-1" not in str(caught.value)


async def test_no_message_shows_a_key_of_a_file_before_or_after_it_changed(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first-of-the-file")
    table = {"protocol": "openai_chat", "base_url": gateway.url, "key": str(tmp_path / "key"), "headers": {"x-api-key": "a-header-of-ours"}}
    providers = serving({"gate": table})
    await ask(providers, "gate:m")
    (tmp_path / "key").write_text("second-of-the-file")
    await ask(providers, "gate:m")

    shown = conceal("keys: first-of-the-file, second-of-the-file and a-header-of-ours, all said by a server")

    assert shown == "keys: [key], [key] and [key], all said by a server"


def complaint(model: str, endpoints: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(ModelFault) as caught:
        serving(endpoints or {}, environ).check(ModelSpec.model_validate({"id": model, "config": config or {}}))
    assert caught.value.kind == "config"
    return str(caught.value)


def test_an_unknown_provider_is_refused_by_name_with_the_closest_known_one() -> None:
    mine = {"house-vllm": {"protocol": "openai_chat", "base_url": "http://10.0.0.7:8000/v1"}}

    assert "'groqq:m': unknown provider 'groqq'. Did you mean 'groq'? Or else: " in complaint("groqq:m")
    assert "Did you mean 'house-vllm'?" in complaint("house-vlm:m", mine)
    assert "a table [providers.nowhere] in the worker's gradeloop.toml" in complaint("nowhere:m")
    assert "Known: anthropic, " in complaint("xyzzyx:m")
    serving(mine).check(ModelSpec(id="house-vllm:m"))


def test_a_request_names_no_address_for_an_endpoint_with_a_name() -> None:
    mine = {"mine": {"protocol": "openai_chat", "base_url": "https://gate.example/v1", "key": "MINE"}}
    environ = {"MINE": "the-key-of-mine", "GRADELOOP_BASE_URLS": "https://gate.example"}

    assert complaint("mine:m", mine, {"base_url": "https://gate.example/v1"}, **environ).startswith("base_url belongs to ")
    environment = Environment.read(environ, {name: EndpointSettings.model_validate(table) for name, table in mine.items()})
    there = ModelSpec.model_validate({"id": "openai_compatible:m", "config": {"base_url": "https://gate.example/v1"}})
    assert environment.endpoint(there).key == "EMPTY"
    assert not Environment.read({"MINE": "k"}, environment_of(mine)).allows("https://gate.example/v1")


def environment_of(endpoints: dict[str, Any]) -> dict[str, EndpointSettings]:
    return {name: EndpointSettings.model_validate(table) for name, table in endpoints.items()}


@pytest.mark.parametrize("preset", [name for name in presets_by_name() if name not in {"azure", "vertex", "bedrock"}])
def test_a_preset_needs_its_key_alone(preset: str) -> None:
    row = presets_by_name()[preset]
    address: dict[str, str] = dict.fromkeys(re.findall(r"\$\{(\w+)\}", row.base_url), "https://example.com")
    keys = dict.fromkeys(row.keys, "a-key-of-its-own")
    serving({}, {**address, **keys}).check(ModelSpec(id=f"{preset}:m"))

    if row.keyless:
        serving({}).check(ModelSpec(id=f"{preset}:m"))
    else:
        assert f"{row.keys[0]}" in complaint(f"{preset}:m", None, None, **address)
        assert not address or next(iter(address)) in complaint(f"{preset}:m", None, None, **keys)


async def test_a_built_in_provider_can_have_a_key_file_and_an_address_of_its_own(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("anthropic-by-file")
    table = {"key": str(tmp_path / "key"), "base_url": gateway.url}
    providers = serving({"anthropic": table}, {"ANTHROPIC_API_KEY": "another-key"})

    await ask(providers, "anthropic:claude-haiku-5-5")

    assert gateway.keys == ["anthropic-by-file"]
    assert gateway.seen[0][0] == "/v1/messages"


async def test_azure_is_called_at_its_v1_surface_with_a_key(gateway: Gateway) -> None:
    environ = {"AZURE_OPENAI_ENDPOINT": f"{gateway.url}/", "AZURE_OPENAI_API_KEY": "the-key-of-azure"}
    providers = serving({}, environ)

    await ask(providers, "azure:our-deployment", max_tokens=99)

    ((path, headers, body),) = gateway.seen
    assert (path, _key(headers)) == ("/openai/v1/chat/completions", "the-key-of-azure")
    assert (body["model"], body["max_completion_tokens"], "max_tokens" in body) == ("our-deployment", 99, False)


async def test_azure_is_called_with_a_token_of_entra_id_where_there_is_no_key(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    async def token(request: web.Request) -> web.Response:
        asked.append((request.query["resource"], request.headers["X-IDENTITY-HEADER"]))
        return web.json_response({"access_token": "a-token-of-entra", "expires_on": "4102444800", "token_type": "Bearer", "resource": "r"})

    app = web.Application()
    app.router.add_get("/token", token)
    identity = TestServer(app)
    await identity.start_server()
    monkeypatch.setenv("IDENTITY_ENDPOINT", str(identity.make_url("/token")))
    monkeypatch.setenv("IDENTITY_HEADER", "of-this-machine")
    providers = serving({}, {"AZURE_OPENAI_ENDPOINT": gateway.url})

    await asyncio.gather(*(ask(providers, "azure:gpt-6-luna") for _ in range(5)))
    await identity.close()

    assert asked == [("https://cognitiveservices.azure.com", "of-this-machine")]
    assert gateway.keys == ["a-token-of-entra"] * 5
    assert "a-token-of-entra" not in conceal("the token a-token-of-entra")


async def test_azure_without_key_and_credential_says_what_to_set(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    providers = serving({}, {"AZURE_OPENAI_ENDPOINT": gateway.url})

    with pytest.raises(ModelFault) as caught:
        await ask(providers, "azure:gpt-6-luna")

    assert caught.value.kind == "auth"
    assert "Entra ID gives no token" in str(caught.value)
    assert "AZURE_OPENAI_ENDPOINT is not set" in complaint("azure:m")


BEDROCK = "us.anthropic.claude-haiku-4-5-20251001-v1:0"


async def test_claude_on_bedrock_is_called_with_a_bearer_token(gateway: Gateway) -> None:
    environ = {"AWS_REGION": "eu-west-1", "ANTHROPIC_BEDROCK_BASE_URL": gateway.url, "AWS_BEARER_TOKEN_BEDROCK": "bedrock-bearer"}
    providers = serving({}, environ)

    reply = await ask(providers, f"bedrock:{BEDROCK}", temperature=0, thinking=2048)

    ((path, headers, body),) = gateway.seen
    assert reply.usage == Usage(input=10, output=5, calls=1, attempts=1, seconds=reply.usage.seconds, cost_usd=reply.usage.cost_usd)
    assert (path, _key(headers)) == (f"/model/{BEDROCK}/invoke", "bedrock-bearer")
    assert (body["temperature"], body["thinking"], body["anthropic_version"]) == (
        0,
        {"type": "enabled", "budget_tokens": 2048},
        "bedrock-2023-05-31",
    )
    assert not {"model", "stream"} & set(body)


async def test_claude_on_bedrock_is_signed_with_the_machines_credentials(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    providers = serving({"claude-eu": {"preset": "bedrock", "region": "eu-west-1", "base_url": gateway.url}})

    await ask(providers, f"claude-eu:{BEDROCK}")

    signature = gateway.seen[0][1]["authorization"]
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=AKIATESTTESTTEST/")
    assert "/eu-west-1/bedrock/aws4_request" in signature


async def test_claude_on_vertex_is_called_with_the_machines_token(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def token(_: web.Request) -> web.Response:
        return web.json_response({"access_token": "token-of-google", "expires_in": 3600, "token_type": "Bearer"})

    app = web.Application()
    app.router.add_post("/token", token)
    tokens = TestServer(app)
    await tokens.start_server()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials(tmp_path, str(tokens.make_url("/token")))))
    environ = {"ANTHROPIC_VERTEX_PROJECT_ID": "p", "CLOUD_ML_REGION": "global", "ANTHROPIC_VERTEX_BASE_URL": f"{gateway.url}/v1"}
    providers = serving({}, environ)

    await ask(providers, "vertex:claude-haiku-4-5@20251001")
    await tokens.close()

    path, headers, body = gateway.seen[-1]
    assert path.startswith("/v1/projects/p/locations/global/publishers/anthropic/models/claude-haiku-4-5@20251001:")
    assert _key(headers) == "token-of-google"
    assert "model" not in body
    assert "ANTHROPIC_VERTEX_PROJECT_ID is not set" in complaint("vertex:claude-haiku-4-5")


@pytest.mark.parametrize(
    ("model", "config", "words"),
    [
        ("bedrock:global.anthropic.claude-opus-4-7-v1:0", {"thinking": 1024}, "thinking 1024 cannot be set"),
        ("vertex:claude-opus-4-7", {"thinking": 1024}, "thinking 1024 cannot be set"),
        ("azure:gpt-4o", {"max_tokens": 20_000}, "max_tokens 20000 is above"),
    ],
)
def test_a_cloud_takes_what_the_vendors_own_model_takes(model: str, config: dict[str, Any], words: str) -> None:
    clouds = {
        "AWS_REGION": "us-east-1",
        "GOOGLE_CLOUD_PROJECT": "p",
        "AZURE_OPENAI_ENDPOINT": "https://a.example",
        "AZURE_OPENAI_API_KEY": "k",
    }

    assert words in complaint(model, None, config, **clouds)


async def test_an_own_endpoint_can_be_a_second_resource_of_a_preset(gateway: Gateway) -> None:
    table = {"preset": "azure", "base_url": f"{gateway.url}/openai/v1", "key": "AZURE_EU_KEY"}
    providers = serving({"azure-eu": table}, {"AZURE_EU_KEY": "the-key-of-eu"})

    await ask(providers, "azure-eu:d", max_tokens=5)

    ((path, headers, body),) = gateway.seen
    assert (path, _key(headers), body["max_completion_tokens"]) == ("/openai/v1/chat/completions", "the-key-of-eu", 5)


@pytest.mark.parametrize(
    ("model", "first"), [("qwen3", "max_tokens"), ("gpt-6-luna", "max_completion_tokens"), ("o4-mini", "max_completion_tokens")]
)
async def test_a_servers_name_for_the_cap_is_learned_from_its_refusal_once(gateway: Gateway, model: str, first: str) -> None:
    gateway.unknown = {first}
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[first]
    providers = serving({}, {"GRADELOOP_BASE_URLS": gateway.url})

    for _ in range(3):
        await ask(providers, f"openai_compatible:{model}", base_url=gateway.url, max_tokens=99)

    sent = [[name for name in ("max_tokens", "max_completion_tokens") if name in body] for _, _, body in gateway.seen]
    assert sent == [[first], [other], [other], [other]]


async def test_a_cap_that_is_too_large_is_no_unknown_field(gateway: Gateway) -> None:
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        text = "max_tokens is too large: 90000. This model supports at most 4096 completion tokens."
        return web.json_response({"error": {"message": text, "param": "max_tokens", "code": "invalid_value"}}, status=400)

    app = web.Application()
    app.router.add_post("/{path:.*}", refuse)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    providers = serving({}, {"GRADELOOP_BASE_URLS": url})
    with pytest.raises(ModelFault) as caught:
        await ask(providers, "openai_compatible:m", base_url=url, max_tokens=90_000)
    await server.close()

    assert (caught.value.kind, asked) == ("bad_request", ["/chat/completions"])
    assert "max_tokens is too large" in str(caught.value)


def test_a_provider_whose_key_is_in_a_file_gives_the_default_grader(tmp_path: Path) -> None:
    (tmp_path / "anthropic").write_text("k")
    own = environment_of({"anthropic": {"key": str(tmp_path / "anthropic")}, "groq": {"key": "OTHER"}})

    assert Environment.read({}, environment_of({"groq": {"key": "OTHER"}})).default is None
    assert Environment.read({}, own).default == ModelSpec(id="anthropic:claude-haiku-5-5")
    assert Environment.read({"OPENAI_API_KEY": "k"}, own).default == ModelSpec(id="openai:gpt-6-luna")


@pytest.mark.parametrize("name", ["openai:chat:gpt-5-mini", "openai_chat:gpt-5-mini"])
async def test_openai_is_called_by_chat_completions_where_the_id_says_so(gateway: Gateway, name: str) -> None:
    providers = serving({}, {"OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "the-key-of-openai"})

    await ask(providers, name)
    await ask(providers, "openai:responses:gpt-5-mini")
    await ask(providers, "openai:ft:gpt-4o:me")

    chat, *others = gateway.seen
    assert (chat[0], _key(chat[1]), chat[2]["model"]) == ("/v1/chat/completions", "the-key-of-openai", "gpt-5-mini")
    assert [(path, body["model"]) for path, _, body in others] == [("/v1/responses", "gpt-5-mini"), ("/v1/responses", "ft:gpt-4o:me")]
    assert ModelSpec(id=name) == ModelSpec(id="openai_chat:gpt-5-mini")


async def test_a_key_is_asked_once_however_many_protocols_its_endpoint_speaks(gateway: Gateway) -> None:
    found = await examine(Environment.read({"OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "k"}))

    assert [report.provider for report in found.keys] == ["openai"]
