"""What every reply passes through: a size, no packing, no way into a private network, no redirect."""

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from aiohttp import web
from httpcore2 import AnyIOBackend, ConnectError

from activities.providers import Providers, http
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelRequest, Step
from gradeloop.settings.catalog import Capability
from tests.rig.provider_server import Handler, ProviderServer

MODELS = ("anthropic:m", "openai:m", "google_genai:m", "openai_compatible:m")
SDKS = ("openai_compatible:m", "google_genai:m")
"""A model of each way in which SDKs read a reply: Anthropic's is made as OpenAI's is."""


def endless(part: bytes, content_type: str, *, status: int = 200, pause: float = 0) -> Handler:
    """Send a part over and over."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"content-type": content_type})
        await response.prepare(request)
        while True:
            await response.write(part)
            await asyncio.sleep(pause)

    return answer


@pytest.mark.parametrize("model", SDKS)
@pytest.mark.parametrize("status", [200, 500])
async def test_a_body_without_end_is_cut_short(provider: ProviderServer, model: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES", 2_000_000)
    monkeypatch.setattr(http, "ERROR_BYTES", 200_000)

    fault = await provider.fault(model, endless(b" " * 65536, "application/json", status=status))

    assert fault.kind in {"malformed_response", "server"}
    assert "bytes" in fault.message or status == 500


@pytest.mark.parametrize("model", SDKS)
@pytest.mark.parametrize("status", [200, 400])
async def test_a_packed_reply_is_not_unpacked(provider: ProviderServer, model: str, status: int) -> None:
    bomb = gzip.compress(b" " * 5_000_000)
    sent: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        sent.append(request.headers["accept-encoding"])
        return web.Response(body=bomb, status=status, headers={"content-encoding": "gzip", "content-type": "application/json"})

    fault = await provider.fault(model, answer)

    assert sent == ["identity"]
    assert (fault.kind, "the reply is packed, though nobody asked for that" in fault.message) == ("malformed_response", True)


@pytest.mark.parametrize("model", MODELS)
async def test_a_redirect_is_refused_and_the_key_goes_nowhere_else(provider: ProviderServer, model: str) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    fault = await provider.fault(model, answer)

    assert (len(seen), "/elsewhere" in seen) == (1, False)
    assert fault.kind == "bad_request"
    assert "the endpoint redirects to '/elsewhere', which is refused" in fault.message


async def test_a_body_that_trickles_ends_with_the_deadline(provider: ProviderServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.base.CALL_SECONDS", 0.5)
    fault = await provider.fault("openai_compatible:m", endless(b" ", "text/event-stream", pause=0.05))

    assert fault.kind == "timeout"
    assert fault.message.startswith("no whole reply within 0.5 s; what the provider charges for it is not known; raise config.timeout")


@pytest.mark.parametrize("model", MODELS)
async def test_a_stream_that_says_nothing_is_hung(provider: ProviderServer, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.base.IDLE_TIMEOUT", 0.3)
    monkeypatch.setattr(http, "IDLE_TIMEOUT", 0.3)
    monkeypatch.setattr("activities.providers.base.CALL_SECONDS", 5.0)
    monkeypatch.setattr("gradeloop.settings.catalog.capability_of", lambda _: Capability(stream=True))

    fault = await provider.fault(model, endless(b"data: {}\n\n", "text/event-stream", pause=10))

    assert fault.kind == "timeout"


def resolving(*addresses: str) -> Callable[..., Awaitable[list[Any]]]:
    """Return a resolver that knows one host."""

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return resolve


PRIVATE = """
127.0.0.1 10.0.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1 100.127.255.255 0.0.0.0 192.0.0.1 192.0.0.8
192.0.0.170 192.0.0.192 192.0.2.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255
168.63.129.16
:: ::1 fe80::1%eth0 fd00::1 fc00::1 fec0::1 ff02::1 ff0e::1 100::1 2001:2::1 2001:db8::1 3fff::1 3fff:fff:ffff::1
5f00::1 64:ff9b:1::1 64:ff9b:1::808:808
"""
IPV4_IN_IPV6 = """
::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:192.0.0.8 ::ffff:0:127.0.0.1 ::ffff:0:8.8.8.8 ::127.0.0.1
::169.254.169.254 ::8.8.8.8 64:ff9b::a9fe:a9fe 64:ff9b::127.0.0.1 2002:a00:1:: 2002:808:808::1
2001:0:a00:1:0:fff:f7f7:f7f7 2001:0:808:808:0:fff:f5ff:fffe 2001:0:808:808:0:fff:f7f7:f7f7
"""
"""Mapped, translated, `::a.b.c.d`, NAT64, 6to4, and Teredo by its server and by its client."""


@pytest.mark.parametrize(
    "addresses", [*([one] for one in (PRIVATE + IPV4_IN_IPV6).split()), ["8.8.8.8", "10.0.0.1"], ["2606:4700::1111", "::ffff:10.0.0.1"]]
)
async def test_a_public_name_that_leads_into_a_private_network_is_refused(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving(*addresses), raising=False)

    with pytest.raises(http.PrivateAddress, match="which is not a public address; list the server in GRADELOOP_BASE_URLS"):
        await http.public_address("llm.example.com", 443, http.LIST_SERVER)


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "192.0.0.9", "192.0.0.10", "192.0.1.1", "198.20.0.1"),
        *("2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2001:1::1", "2001:20::1", "3fff:1000::1"),
        *("::ffff:8.8.8.8", "64:ff9b::808:808"),
    ],
)
async def test_a_public_address_is_called(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving(address), raising=False)

    found = await http.public_address("llm.example.com", 443, http.LIST_SERVER)

    assert found == str(ip_address(address))


@pytest.mark.parametrize(
    ("address", "network", "allowed"),
    [
        ("10.1.2.3", "10.1.0.0/16", True),
        ("10.2.2.3", "10.1.0.0/16", False),
        ("::ffff:10.1.2.3", "10.1.0.0/16", True),
        ("64:ff9b::a01:203", "10.1.0.0/16", True),
        ("64:ff9b::a9fe:a9fe", "64:ff9b::/96", False),
        ("::10.1.2.3", "10.1.0.0/16", False),
        ("2002:a01:203::1", "10.1.0.0/16", False),
        ("fd12::1", "fd12::/16", True),
        ("fd13::1", "fd12::/16", False),
    ],
)
async def test_a_private_network_that_is_listed_is_allowed_by_what_the_address_stands_for(
    address: str, network: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving(address), raising=False)

    if allowed:
        assert await http.public_address("a.example.com", 80, "cure", [ip_network(network)]) == str(ip_address(address))
    else:
        with pytest.raises(http.PrivateAddress, match="cure"):
            await http.public_address("a.example.com", 80, "cure", [ip_network(network)])


@pytest.mark.parametrize(
    "host", ["[::8.8.8.8]", "[fec0::1]", "[5f00::1]", "[3fff::1]", "[64:ff9b:1::1]", "192.0.0.8", "192.0.0.192", "224.0.0.1"]
)
def test_the_wildcard_allows_no_server_by_an_address_that_is_not_public(host: str) -> None:
    environment = Environment.read({"GRADELOOP_BASE_URLS": "https://*"})

    assert not environment.allows(f"https://{host}/v1")
    assert environment.allows("https://[2606:4700::1111]/v1")


async def test_the_address_that_was_looked_at_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    async def connect(_: object, host: str, *__: Any) -> Any:
        called.append(host)
        raise ConnectError("far away")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving("8.8.8.8"), raising=False)
    monkeypatch.setattr(AnyIOBackend, "connect_tcp", connect)
    with pytest.raises(ConnectError):
        await http.PublicNetwork(http.LIST_SERVER).connect_tcp("llm.example.com", 443)

    assert called == ["8.8.8.8"]


async def test_a_server_that_only_the_wildcard_allows_is_a_matter_of_configuration_where_it_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving("10.0.0.1"), raising=False)
    providers = Providers(Environment.read({"GRADELOOP_BASE_URLS": "https://*"}))
    spec = ModelSpec.model_validate({"id": "openai_compatible:m", "config": {"base_url": "https://llm.example.com/v1"}})

    with pytest.raises(ModelFault) as caught:
        await providers.complete(ModelRequest(spec, Step(role="grader"), (Message(role="user", content="hi"),)))

    await providers.aclose()
    assert caught.value.kind == "config"
    assert "llm.example.com leads to 10.0.0.1, which is not a public address" in str(caught.value)
