"""HTTP clients of the SDKs: one pool, bounded bodies, only public addresses unless others are listed."""

import asyncio
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

import httpx2
from httpcore2 import SOCKET_OPTION, AnyIOBackend, AsyncConnectionPool, AsyncNetworkBackend, AsyncNetworkStream, ConnectError

from activities.calls.rate_headers import keep_headers, keep_sending
from activities.providers.base import CONNECT_TIMEOUT, IDLE_TIMEOUT, SILENCE
from activities.providers.environment import NO_KEY, is_public, reached_address
from gradeloop.contract.model_spec import LONGEST_TIMEOUT
from gradeloop.contract.provider import Connections, Endpoint
from gradeloop.telemetry.traces import put_context

if TYPE_CHECKING:
    from openai import AsyncOpenAI

BODY_BYTES = 16 * 1024 * 1024
"""The largest reply: many times the longest completion with all its events."""

POOLS, POOLED = 16, 6
"""Pools of connections, and how many requests each of them takes before the next one is used."""

ERROR_BYTES = 1024 * 1024
"""The largest reply that is an error: SDKs read those whole."""

Network = IPv4Network | IPv6Network

KEY_HEADERS = frozenset({"api-key", "x-api-key"})
"""Headers that have the key in the place of `Authorization` where an endpoint sets them itself."""

LIST_SERVER = "list the server in GRADELOOP_BASE_URLS"


def sdk_headers(connections: Connections, endpoint: Endpoint, omit: object) -> dict[str, Any]:
    """Return the headers of an SDK's calls, without those that `*_CUSTOM_HEADERS` would add, but for a pinned version of the protocol.

    `endpoint`: the endpoint, whose own headers come last. A cloud's client writes the key itself.
    """
    left_out: dict[str, Any] = {name: omit for name in connections.ambient_headers if name.lower() != "anthropic-version"}
    own = {name.lower() for name in endpoint.headers}
    key: dict[str, Any] = (
        {} if "authorization" in own or endpoint.cloud in {"bedrock", "vertex"} else {"Authorization": f"Bearer {endpoint.key}"}
    )
    if endpoint.key == NO_KEY and own & KEY_HEADERS and endpoint.protocol == "anthropic":  # the other SDK insists on it
        key = {"Authorization": omit}
    return left_out | key | dict(endpoint.headers)


def openai_client(connections: Connections, endpoint: Endpoint) -> "AsyncOpenAI":
    """Return a client of the Responses API, and of Chat Completions."""
    from openai import AsyncOpenAI, omit  # half a second that only its users pay

    return AsyncOpenAI(
        api_key=endpoint.key,
        base_url=endpoint.base_url,
        admin_api_key="",
        organization="",
        project="",
        webhook_secret="",
        http_client=connections.client(endpoint),
        timeout=sdk_timeout(),
        max_retries=0,
        default_headers=sdk_headers(connections, endpoint, omit) | {"OpenAI-Organization": omit, "OpenAI-Project": omit},
        default_query=dict(endpoint.query),
    )


def sdk_timeout() -> httpx2.Timeout:
    """Return the waits of an SDK's client, which each call makes shorter."""
    return httpx2.Timeout(LONGEST_TIMEOUT, read=IDLE_TIMEOUT, connect=CONNECT_TIMEOUT)


def http_client(timeout: httpx2.Timeout, *, guarded: bool) -> httpx2.AsyncClient:
    """Return a pool of connections; a guarded one reaches only public addresses, and not through a proxy."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=POOLS * POOLED)
    hooks: dict[str, list[Callable[..., Any]]] = {"request": [prepare_request], "response": [bound_body]}
    transport = PooledTransport(guarded_transport) if guarded else None
    client = httpx2.AsyncClient(timeout=timeout, limits=limits, event_hooks=hooks, transport=transport, verify=tls_context())
    if not guarded:  # a transport that the constructor is given would keep it from reading the proxies of the environment
        few = httpx2.Limits(max_connections=None, max_keepalive_connections=POOLED)
        pool = functools.partial(httpx2.AsyncHTTPTransport, verify=tls_context(), limits=few)
        client._transport = PooledTransport(pool, client._transport)  # noqa: SLF001 - the one that it uses where no proxy is named
    return client


class PooledTransport(httpx2.AsyncBaseTransport):
    """Several pools of connections in the place of one, which looks at each of its connections twice a request.

    The first pool that has room is used, so that few requests at once use few connections, again and again. All connections may be in use
    at once: those are bounded by the worker's own slots for activities.
    """

    def __init__(self, make: Callable[[], httpx2.AsyncBaseTransport], first: httpx2.AsyncBaseTransport | None = None) -> None:
        self._make = make
        self._pools = [first or make()]
        self._requests = [0]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request through one of the pools."""
        at = self._with_room()
        self._requests[at] += 1
        try:
            response = await self._pools[at].handle_async_request(request)
        except BaseException:
            self._requests[at] -= 1
            raise
        response.stream = _Counted(response.stream, functools.partial(self._leave, at))  # type: ignore[arg-type]  # of an asynchronous client
        return response

    def _with_room(self) -> int:
        found = next((at for at, count in enumerate(self._requests) if count < POOLED), None)
        if found is None and len(self._pools) < POOLS:
            self._pools.append(self._make())
            self._requests.append(0)
            found = len(self._pools) - 1
        return self._requests.index(min(self._requests)) if found is None else found

    def _leave(self, at: int) -> None:
        self._requests[at] -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.aclose()


class _Counted(httpx2.AsyncByteStream):
    """A reply whose connection is in use until it is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, leave: Callable[[], object]) -> None:
        self._stream = stream
        self._leave: Callable[[], object] | None = leave

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        """Close the reply."""
        leave, self._leave = self._leave, None
        try:
            await self._stream.aclose()
        finally:
            if leave is not None:
                leave()


class BodyTooLarge(httpx2.DecodingError):
    """A reply is larger than anything that a model says."""


async def prepare_request(request: httpx2.Request) -> None:
    """Ask for a reply that is not compressed, go on with the trace, and note for the limiter when the request is sent.

    A stream of Google's gets the idle timeout here, since its SDK knows one timeout for everything.
    """
    request.headers["accept-encoding"] = "identity"
    if request.url.path.endswith(":streamGenerateContent"):
        request.extensions["timeout"] = httpx2.Timeout(SILENCE.get() or IDLE_TIMEOUT, connect=CONNECT_TIMEOUT).as_dict()
    keep_sending()
    put_context(request.headers)


async def bound_body(response: httpx2.Response) -> None:
    """Bound a reply before its body is read, and keep what it says of rate limits; a compressed one may grow without bound.

    Raises:
        BodyTooLarge: It is compressed.
    """
    keep_headers(response.headers)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyTooLarge("the reply is packed, though nobody asked for that", request=response.request)
    limit = BODY_BYTES if response.status_code < HTTPStatus.BAD_REQUEST else ERROR_BYTES
    response.stream = _Bounded(response.stream, limit, response.request)  # type: ignore[arg-type]  # of an asynchronous client


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, request: httpx2.Request) -> None:
        self._stream = stream
        self._limit = limit
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for part in self._stream:
            received += len(part)
            if received > self._limit:
                raise BodyTooLarge(f"the reply has more than {self._limit} bytes", request=self._request)
            yield part

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context of all transports, which is made once: it takes a tenth of a second to read the certificates."""
    return httpx2.create_ssl_context()


def guarded_transport(cure: str = LIST_SERVER, networks: Sequence[Network] = ()) -> httpx2.AsyncHTTPTransport:
    """Return a transport that reaches public addresses, and those of `networks`; a refusal names the cure."""
    transport = httpx2.AsyncHTTPTransport(verify=tls_context())
    pool = AsyncConnectionPool(ssl_context=tls_context(), max_connections=None, network_backend=PublicNetwork(cure, networks))
    transport._pool = pool  # noqa: SLF001 - its constructor takes no network
    return transport


class PrivateAddress(httpx2.UnsupportedProtocol):
    """A server that nobody listed leads into a private network."""


class PublicNetwork(AsyncNetworkBackend):
    """Connects only to public addresses, and to the very one that it checked, so that a name cannot change meanwhile."""

    def __init__(self, cure: str, networks: Sequence[Network] = ()) -> None:
        self._backend = AnyIOBackend()
        self._cure = cure
        self._networks = networks

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface's own
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first address of a host, if all of them are public."""
        address = await public_address(host, port, self._cure, self._networks)
        return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def public_address(host: str, port: int, cure: str, networks: Sequence[Network] = ()) -> str:
    """Return an address of the host, a public one or one of the private networks that are allowed.

    Raises:
        PrivateAddress: One of its addresses is private, loopback, link-local, or otherwise not for everybody.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConnectError(f"{host} has no address: {error}") from None
    addresses = [ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    for address in addresses:
        reached = reached_address(address)
        allowed = any(reached.version == network.version and reached in network for network in networks)
        if not allowed and not is_public(address):
            raise PrivateAddress(f"{host} leads to {address}, which is not a public address; {cure}")
    return str(addresses[0])
