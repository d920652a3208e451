"""Addresses of servers: URLs that can be read in one way only, and the IP addresses that are public, whatever Python runs."""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from gradeloop.errors import InvalidRequest
from gradeloop.text import clip

IPAddress = IPv4Address | IPv6Address

NOT_GLOBAL = (
    # IPv4, as `ipaddress.IPv4Address.is_global` of Python 3.13 has it
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24"),
    *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
    # IPv6, as `ipaddress.IPv6Address.is_global` of Python 3.13 has it
    *("::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/10"),
)
"""The networks of IANA's special-purpose registries that are not globally reachable; 6to4 and Teredo are among them."""

GLOBAL_WITHIN = (
    *("192.0.0.9/32", "192.0.0.10/32"),
    *("2001:1::1/128", "2001:1::2/128", "2001:3::/32", "2001:4:112::/48", "2001:20::/28", "2001:30::/28"),
)
"""The exceptions of those registries, which are globally reachable."""

NOT_GLOBAL_EITHER = (
    *("224.0.0.0/4", "ff00::/8"),  # multicast
    "::/96",  # IPv4-compatible, `::a.b.c.d`: RFC 4291, deprecated
    "::ffff:0:0:0/96",  # IPv4-translated: RFC 2765, for translators within a site
    "fec0::/10",  # site-local: RFC 3879, deprecated
    "3fff::/20",  # documentation: RFC 9637
    "5f00::/16",  # segment routing: RFC 9602
    "168.63.129.16/32",  # Azure's host, which answers every virtual machine there
)
"""The networks that Python 3.13's tables count as global, and that lead to nobody in public."""

_NAT64 = IPv6Network("64:ff9b::/96")

_REFUSED, _EXCEPTED = ([ip_network(text) for text in texts] for texts in ((*NOT_GLOBAL, *NOT_GLOBAL_EITHER), GLOBAL_WITHIN))


def is_public(address: IPAddress) -> bool:
    """Return whether an address is one that anybody's packets reach; an embedded IPv4 address counts where packets go there."""
    target = reached_address(address)
    return not _within(target, _REFUSED) or _within(target, _EXCEPTED)


def reached_address(address: IPAddress) -> IPAddress:
    """Return the IPv4 address to which packets for a mapped or a NAT64 address go; any other address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _within(address: IPAddress, networks: list[IPv4Network | IPv6Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


_USER = re.compile(r"//[^/]*@")
"""The user and the password in a URL."""

_DEVIOUS = re.compile(r"[^\x21-\x7e]|[@\\]|%(?:2[eEfF]|5[cC])|/\.{1,2}(?:/|$)|[^:]//")
"""Spellings that a server, or a client on the way to it, may read as another path."""

_PORTS = {"http": 80, "https": 443}


def base_url(value: str, variable: str) -> str:
    """Return a base URL without the slash at its end.

    Raises:
        InvalidRequest: It is none, or may be read in two ways; the message begins with `variable`.
    """
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value) or is_devious(value) or split_url(value) is None:
        cure = "write http(s)://host[:port][/path], without user, query or fragment"
        raise InvalidRequest(f"{variable}: {clip(_USER.sub('//', value))} is no base URL; {cure}")
    return value.rstrip("/")


def is_devious(url: str) -> bool:
    """Return whether a server, or a client on the way to it, may read a URL as another path."""
    return _DEVIOUS.search(url) is not None


def split_url(url: str) -> SplitResult | None:
    """Split a URL; None where its host or port is not one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname else None


def names_public_host(url: str) -> bool:
    """Return whether a URL is https and names a public host, as far as the name shows; the address behind it is checked at the call."""
    parts = None if is_devious(url) else split_url(url)
    if parts is None or parts.scheme != "https" or not parts.hostname:
        return False
    try:
        return is_public(ip_address(parts.hostname))
    except ValueError:
        return "." in parts.hostname and not parts.hostname.endswith((".localhost", ".local", ".internal"))


def _place(url: str) -> tuple[tuple[str, str, int | None], list[str]] | None:
    """Return the origin and the path's segments; None for a URL whose path may be read in two ways."""
    parts = None if is_devious(url) else split_url(url)
    if parts is None:
        return None
    origin = (parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme.lower()))
    return origin, [segment for segment in parts.path.split("/") if segment]


def same_place(url: str, other: str) -> bool:
    """Return whether two URLs name one place, which neither may leave open."""
    place = _place(url)
    return place is not None and place == _place(other)


def is_below(url: str, prefix: str) -> bool:
    """Return whether a URL is at or below another one."""
    place, top = _place(url), _place(prefix)
    return place is not None and top is not None and place[0] == top[0] and place[1][: len(top[1])] == top[1]
