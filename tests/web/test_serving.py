"""What every server of ours bears: heads and bodies that do not come, and more connections than it has places."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from gradeloop.web import guard, serving
from gradeloop.web.guard import Guard
from gradeloop.web.serving import serving_app

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HALF = b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


async def echo(scope: "Scope", receive: "Receive", send: "Send") -> None:
    """Answer with the body."""
    await Response(await Request(scope, receive).body())(scope, receive, send)


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    async with serving_app(Guard(echo, port), listening):
        yield port


@asynccontextmanager
async def half_requests(port: int, count: int, sent: bytes = HALF) -> AsyncIterator[list[asyncio.StreamReader]]:
    opened = []
    for _ in range(count):
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        opened[-1][1].write(sent)
    yield [reader for reader, _ in opened]
    for _, writer in opened:
        writer.close()


async def post(port: int, body: bytes = b"spans", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx2.AsyncClient(trust_env=False, timeout=240) as client:
        return await client.post(f"http://127.0.0.1:{port}/", content=body, headers=named)


async def open_ones(readers: list[asyncio.StreamReader]) -> int:
    await asyncio.sleep(0.2)
    return sum(not (reader.at_eof() or reader.exception()) for reader in readers)


async def test_unfinished_heads_displace_each_other_and_no_exporter() -> None:
    async with echoing() as port, half_requests(port, serving.CONNECTIONS + 150) as readers:
        answer, still = await post(port), await open_ones(readers)

    assert (answer.status_code, answer.content) == (200, b"spans")
    assert still <= serving.CONNECTIONS


@pytest.mark.parametrize("sent", [b"", HALF])
async def test_a_head_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)
    async with echoing() as port, half_requests(port, 3, sent) as readers:
        before = await open_ones(readers)
        await asyncio.sleep(0.3)
        after = await open_ones(readers)

    assert (before, after) == (3, 0)


async def test_the_head_of_a_further_request_has_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.5)
    async with echoing() as port:
        whole = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n".encode()
        async with half_requests(port, 1, whole + HALF) as (reader,):
            first = await reader.readuntil(b"\r\n")
            async with asyncio.timeout(240):
                rest = await reader.read()

    assert first == b"HTTP/1.1 200 OK\r\n"
    assert b"HTTP/1.1" not in rest


async def test_a_body_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.3)
    async with echoing() as port:
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 10\r\n\r\n".encode()
        async with half_requests(port, 1, head) as (reader,):
            async with asyncio.timeout(240):
                answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not come within" in answer


async def test_bodies_that_are_in_memory_at_once_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BYTES_IN_FLIGHT", 1)
    async with echoing() as port:
        held = guard.BODY_BYTES - 10
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {held + 1}\r\n\r\n".encode()
        async with half_requests(port, 1, head + b" " * held):
            await asyncio.sleep(0.3)
            full = await post(port, b"x" * 20)
        await asyncio.sleep(0.3)
        again = await post(port, b"x" * 20)

    assert (full.status_code, full.headers["retry-after"], again.status_code) == (429, "1", 200)


async def test_a_server_without_pages_answers_no_browser() -> None:
    async with echoing() as port:
        origin = await post(port, Origin=f"http://127.0.0.1:{port}")
        named = await post(port, Sec_Fetch_Site="same-origin")
        rebound = await post(port, Host=f"evil.example:{port}")

    assert (origin.status_code, named.status_code, rebound.status_code) == (403, 403, 421)
