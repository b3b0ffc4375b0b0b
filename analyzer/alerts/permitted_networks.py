"""Addresses that messages may be sent to: public ones, and networks that the configuration names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# Addresses of IPv6 whose last 32 bits are one of IPv4, which a gateway may send the packets to.
EMBEDDING = tuple(map(IPv6Network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48")))

GLOBAL_UNICAST = IPv6Network("2000::/3")


def is_permitted(text: str, permitted: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Whether a connection to this address may be made.

    An address that contains one of IPv4 (mapped, 6to4, Teredo, NAT64) is judged by both.

    >>> [is_permitted(text, ()) for text in ("93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1", "100.64.0.1")]
    [True, False, False, False]
    >>> is_permitted("10.1.2.3", [IPv4Network("10.0.0.0/8")])
    True
    """
    address = ip_address(text.partition("%")[0])
    if any(address in network for network in permitted):
        return True
    inner = list(_contained(address))
    # Only one that stands for an address of IPv4 is judged by that alone.
    if inner and (_is_mapped(address) or any(address in network for network in EMBEDDING)):
        return all(is_permitted(str(part), permitted) for part in inner)
    return _is_public(address) and all(is_permitted(str(part), permitted) for part in inner)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_unicast = address in GLOBAL_UNICAST if isinstance(address, IPv6Address) else not address.is_reserved
    return address.is_global and is_unicast and not address.is_multicast


def _is_mapped(address: IPv4Address | IPv6Address) -> bool:
    return isinstance(address, IPv6Address) and address.ipv4_mapped is not None


def _contained(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address]:
    if not isinstance(address, IPv6Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif any(address in network for network in EMBEDDING):
        yield IPv4Address(int(address) & 0xFFFF_FFFF)
