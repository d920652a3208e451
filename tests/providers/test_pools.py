"""Requests are shared among pools of connections: few use few, and what is at an end leaves its place."""

import asyncio
from functools import partial

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.providers import http
from activities.providers.http import PooledTransport, http_client

TIMEOUT = httpx2.Timeout(240)


class Pool(httpx2.AsyncBaseTransport):
    """A pool that notes what it is sent, and answers when it is told to."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False
        self.failure: BaseException | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer, or fail."""
        self.sent += 1
        if self.failure is not None:
            raise self.failure
        return httpx2.Response(200, request=request, stream=httpx2.ByteStream(b"said"))

    async def aclose(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    monkeypatch.setattr(http, "POOLED", 2)
    monkeypatch.setattr(http, "POOLS", 3)
    return []


def transport(pools: list[Pool]) -> PooledTransport:
    """Return a transport whose pools are noted."""

    def make() -> Pool:
        pools.append(Pool())
        return pools[-1]

    return PooledTransport(make)


async def send(through: PooledTransport) -> httpx2.Response:
    return await through.handle_async_request(httpx2.Request("GET", "http://127.0.0.1/"))


async def test_requests_that_follow_each_other_use_one_pool(pools: list[Pool]) -> None:
    through = transport(pools)
    for _ in range(10):
        response = await send(through)
        assert await response.aread() == b"said"
        await response.aclose()

    assert [pool.sent for pool in pools] == [10]


async def test_requests_at_once_fill_one_pool_after_the_other_and_then_those_with_the_fewest(pools: list[Pool]) -> None:
    through = transport(pools)
    open_ones = [await send(through) for _ in range(9)]

    assert [pool.sent for pool in pools] == [3, 3, 3]
    await open_ones[2].aclose()
    await open_ones[2].aclose()
    await send(through)
    assert [pool.sent for pool in pools] == [3, 4, 3]


@pytest.mark.parametrize("failure", [httpx2.ConnectError("no"), asyncio.CancelledError()])
async def test_a_request_that_fails_leaves_its_place(pools: list[Pool], failure: BaseException) -> None:
    through = transport(pools)
    pools[0].failure = failure
    for _ in range(10):
        with pytest.raises(type(failure)):
            await send(through)

    assert [pool.sent for pool in pools] == [10]


async def test_all_pools_are_closed(pools: list[Pool]) -> None:
    through = transport(pools)
    for _ in range(5):
        await send(through)
    await through.aclose()

    assert [pool.closed for pool in pools] == [True] * 3


@pytest.mark.slow
async def test_connections_are_used_again_and_hundreds_of_requests_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx2, "Limits", partial(httpx2.Limits, keepalive_expiry=240))  # not the 5 seconds of a quick machine
    connections: set[object] = set()
    waiting, together = 0, 1

    async def answer(request: web.Request) -> web.Response:
        nonlocal waiting
        connections.add(request.transport)
        waiting += 1
        if waiting % together == 0:
            arrived.set()
        await arrived.wait()
        return web.Response(text=request.path)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    async with TestServer(app) as server, http_client(TIMEOUT, guarded=False) as client:
        arrived = asyncio.Event()
        for _ in range(3):
            assert (await client.get(str(server.make_url("/alone")))).text == "/alone"
        alone, waiting, together, arrived = len(connections), 0, 200, asyncio.Event()
        said = await asyncio.gather(*(client.get(str(server.make_url(f"/{at}"))) for at in range(200)))
        first = len(connections)
        await asyncio.gather(*(client.get(str(server.make_url(f"/{at}"))) for at in range(http.POOLS * http.POOLED)))

    assert alone == 1
    assert [response.text for response in said] == [f"/{at}" for at in range(200)]
    assert first == 200
    assert len(connections) == 200


async def test_a_client_asks_the_proxy_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.method} {request.url.host}")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app) as server:
        monkeypatch.setenv("http_proxy", str(server.make_url("/")))
        async with http_client(TIMEOUT, guarded=False) as client:
            said = await client.get("http://models.example/v1")

    assert said.text == "GET models.example"
