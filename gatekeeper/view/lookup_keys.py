"""Where a lock is looked up, and where a request looks: addresses as numbers, routes without their names."""

from __future__ import annotations

import re
import socket
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

LookupKey = str | int

EXACT_TABLES = ("caller", "tenant", "address", "everyone")  # tables whose keys are the locks' own
RANGE_TABLES = {4: "range4", 6: "range6"}  # tables, by version of IP
ADDRESS_BITS = {4: 32, 6: 128}
IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"  # ::ffff:0:0/96: an IPv4 address written as IPv6
CACHED_ROUTES_MAX = 4_096
CACHED_ROUTE_CHARACTERS_MAX = 256  # characters; a path that is given for a route may have any number

PATH_PARAMETER = re.compile(r"(?<=/)\{[^/]*\}(?=/|$)")


class TableKey(NamedTuple):
    """A table and a key in it."""

    table: str
    key: LookupKey


class NumericAddress(NamedTuple):
    """An IP address as a number; IPv4 in IPv6 is IPv4, with the text that it has there."""

    version: int
    number: int
    text: str


def table_key(scope: str, key: str) -> TableKey | None:
    """Where a lock of this scope and key is looked up; None where nobody looks: no such scope, no range."""
    if scope == "range":
        return range_key(key)
    if scope == "address" and "/" in key:  # of IPv6 often the household's block is counted, not one of 2**64
        return range_key(key)
    if scope == "address" and (found := parse_address(key)):
        if found.version == 6:  # of many spellings
            return TableKey(RANGE_TABLES[6], 1 << 128 | found.number)
        return TableKey("address", found.text)
    if scope == "resource":
        return TableKey("resource", normalize_route(key))
    return TableKey(scope, key) if scope in EXACT_TABLES else None


def range_key(text: str) -> TableKey | None:
    """A CIDR block as one number: its network's bits behind a 1, so that lengths cannot meet.

    Bits beyond the length are not looked at; a range of IPv4 in IPv6 is one of IPv4.
    """
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    version, length, number = network.version, network.prefixlen, int(network.network_address)
    if version == 6 and length >= 96 and number >> 32 == 0xFFFF:
        version, length, number = 4, length - 96, number & 0xFFFF_FFFF
    return TableKey(RANGE_TABLES[version], 1 << length | number >> (ADDRESS_BITS[version] - length))


def parse_address(text: str) -> NumericAddress | None:
    """The IP address that `text` is, however it is spelt; None when it is none. Never raises."""
    try:
        if ":" not in text:
            packed = socket.inet_pton(socket.AF_INET, text)
            return NumericAddress(4, int.from_bytes(packed, "big"), text)
        packed = socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except (OSError, ValueError):  # a NUL, half a surrogate pair
        return None
    if packed.startswith(IPV4_MAPPED_PREFIX):
        return NumericAddress(4, int.from_bytes(packed[12:], "big"), str(ip_address(packed[12:])))
    return NumericAddress(6, int.from_bytes(packed, "big"), text)


def prefix_length(key: LookupKey) -> int:
    """The prefix length of a range's key."""
    return key.bit_length() - 1 if isinstance(key, int) else 0


def normalize_route(route: str) -> str:
    """The route without the names of its free segments: one side says `{id}`, the other `{item_id}`.

    >>> normalize_route("/v1/items/{item_id}")
    '/v1/items/{}'
    """
    if "{" not in route:
        return route
    return (
        _normalize_route(route)
        if len(route) <= CACHED_ROUTE_CHARACTERS_MAX
        else PATH_PARAMETER.sub("{}", route)
    )


@lru_cache(CACHED_ROUTES_MAX)
def _normalize_route(route: str) -> str:
    return PATH_PARAMETER.sub("{}", route)
