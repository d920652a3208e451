"""Which IP addresses are public: the tables of Python 3.13, whatever Python runs, and what they lack."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

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
