"""The connections under all SDKs: replies of bounded size, and for servers that nobody listed no way into a private network."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

import httpx2
from httpcore2 import SOCKET_OPTION, AnyIOBackend, AsyncConnectionPool, AsyncNetworkBackend, AsyncNetworkStream, ConnectError

from activities.providers.model import CONNECT_TIMEOUT, IDLE_TIMEOUT

BODY_BYTES = 16 * 1024 * 1024
"""The largest reply: many times the longest completion with all its events."""

IDLE_CONNECTIONS = 100
"""Connections kept open between calls; those in use are bounded by the worker's own slots for activities."""

ERROR_BYTES = 1024 * 1024
"""The largest reply that is an error: SDKs read those whole."""


class BodyTooLarge(httpx2.DecodingError):
    """A reply is larger than anything that a model says."""


class PrivateAddress(httpx2.UnsupportedProtocol):
    """A server that nobody listed leads into a private network."""


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


class PublicNetwork(AsyncNetworkBackend):
    """Connects to public addresses alone, and to the very one that it looked at, so that a name cannot change meanwhile."""

    def __init__(self) -> None:
        self._backend = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface's own
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first address of a host, if all of them are public."""
        address = await public_address(host, port)
        return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def public_address(host: str, port: int) -> str:
    """Return an address of the host.

    Raises:
        PrivateAddress: One of its addresses is private, loopback, link-local, or otherwise not for everybody.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConnectError(f"{host} has no address: {error}") from None
    addresses = [ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    for address in addresses:
        plain = getattr(address, "ipv4_mapped", None) or address
        if not plain.is_global or plain.is_multicast:
            raise PrivateAddress(f"{host} leads to {address}, which is no public address; list the server in GRADELOOP_BASE_URLS")
    return str(addresses[0])


def guarded_transport() -> httpx2.AsyncHTTPTransport:
    """Return a transport that reaches public addresses alone."""
    transport = httpx2.AsyncHTTPTransport()
    pool = AsyncConnectionPool(ssl_context=httpx2.create_ssl_context(), max_connections=None, network_backend=PublicNetwork())
    transport._pool = pool  # noqa: SLF001 - its constructor takes no network
    return transport
