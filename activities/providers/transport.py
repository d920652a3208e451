"""The connections under all SDKs: replies of bounded size, and for servers that nobody listed no way into a private network."""

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any

import httpx2

from activities.providers.model import CONNECT_TIMEOUT, IDLE_TIMEOUT
from activities.public_network import guarded_transport

BODY_BYTES = 16 * 1024 * 1024
"""The largest reply: many times the longest completion with all its events."""

IDLE_CONNECTIONS = 100
"""Connections kept open between calls; those in use are bounded by the worker's own slots for activities."""

ERROR_BYTES = 1024 * 1024
"""The largest reply that is an error: SDKs read those whole."""


class BodyTooLarge(httpx2.DecodingError):
    """A reply is larger than anything that a model says."""


async def ask_unpacked(request: httpx2.Request) -> None:
    """Ask for a reply that is not packed."""
    request.headers["accept-encoding"] = "identity"


async def expect_soon(request: httpx2.Request) -> None:
    """Have a stream of Google's count as hung when it says nothing for long: its SDK knows one time for everything."""
    if request.url.path.endswith(":streamGenerateContent"):
        request.extensions["timeout"] = httpx2.Timeout(IDLE_TIMEOUT, connect=CONNECT_TIMEOUT).as_dict()


async def bound(response: httpx2.Response) -> None:
    """Bound a reply before its body is read; a packed one, which may grow without bound, is refused.

    Raises:
        BodyTooLarge: It is packed.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyTooLarge("the reply is packed, though nobody asked for that", request=response.request)
    limit = BODY_BYTES if response.status_code < HTTPStatus.BAD_REQUEST else ERROR_BYTES
    response.stream = _Bounded(response.stream, limit, response.request)  # type: ignore[arg-type]  # of an asynchronous client


def http_client(timeout: httpx2.Timeout, *, guarded: bool) -> httpx2.AsyncClient:
    """Return a pool of connections; a guarded one reaches public addresses alone, and not through a proxy."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS)
    hooks: dict[str, list[Callable[..., Any]]] = {"request": [ask_unpacked, expect_soon], "response": [bound]}
    transport = guarded_transport() if guarded else None
    return httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False, event_hooks=hooks, transport=transport)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, request: httpx2.Request) -> None:
        self._stream = stream
        self._limit = limit
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = 0
        async for part in self._stream:
            held += len(part)
            if held > self._limit:
                raise BodyTooLarge(f"the reply has more than {self._limit} bytes", request=self._request)
            yield part

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()
