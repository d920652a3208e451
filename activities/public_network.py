"""Connections that lead to public addresses alone, and to the very address that was looked at."""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx2
from httpcore2 import SOCKET_OPTION, AnyIOBackend, AsyncConnectionPool, AsyncNetworkBackend, AsyncNetworkStream, ConnectError

Network = IPv4Network | IPv6Network

LIST_IT = "list the server in GRADELOOP_BASE_URLS"


class PrivateAddress(httpx2.UnsupportedProtocol):
    """A server that nobody listed leads into a private network."""


class PublicNetwork(AsyncNetworkBackend):
    """Connects to public addresses alone, and to the very one that it looked at, so that a name cannot change meanwhile."""

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
    """Return an address of the host, public or of the private networks that are meant.

    Raises:
        PrivateAddress: One of its addresses is private, loopback, link-local, or otherwise not for everybody.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConnectError(f"{host} has no address: {error}") from None
    addresses = [ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    for address in addresses:
        plain = _plain(address)
        meant = any(plain.version == network.version and plain in network for network in networks)
        if not meant and (not plain.is_global or plain.is_multicast):
            raise PrivateAddress(f"{host} leads to {address}, which is no public address; {cure}")
    return str(addresses[0])


_NAT64 = ip_network("64:ff9b::/96")


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does: what a gateway makes of it counts."""
    if isinstance(address, IPv4Address):
        return address
    inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    return address.ipv4_mapped or address.sixtofour or inner or address


def guarded_transport(cure: str = LIST_IT, networks: Sequence[Network] = ()) -> httpx2.AsyncHTTPTransport:
    """Return a transport that reaches public addresses, and those of `networks`; what it refuses is told with a cure."""
    transport = httpx2.AsyncHTTPTransport()
    pool = AsyncConnectionPool(ssl_context=httpx2.create_ssl_context(), max_connections=None, network_backend=PublicNetwork(cure, networks))
    transport._pool = pool  # noqa: SLF001 - its constructor takes no network
    return transport
