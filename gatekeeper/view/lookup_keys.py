"""Keys under which locks are stored and requests look for them.

Both sides normalise in the same way: an address to a number or its canonical text, a range to the bits of its
network, a route pattern to one without the names of its parameters.
"""

from __future__ import annotations

import re
import socket
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

LookupKey = str | int

EXACT_TABLES = ("caller", "tenant", "address", "everyone")  # keyed by the lock's own key
RANGE_TABLES = {4: "range4", 6: "range6"}  # by IP version
ADDRESS_BITS = {4: 32, 6: 128}
# Scopes of locks by a named value, in front of a colon and its name; each is a table. The locks of the first
# are keyed by name and value; those of the others by caller or tenant, and have the value as their resource.
VALUE_SCOPE = "value"
PAIR_SCOPES = ("caller+value", "tenant+value")
VALUE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
ADDRESS_CALLER = "address:"  # begins the name of a caller that is counted by its address
IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"  # ::ffff:0:0/96
CACHED_ROUTES_MAX = 4_096
CACHED_ROUTE_CHARACTERS_MAX = 256  # an application may pass paths instead of patterns, of any length

PATH_PARAMETER = re.compile(r"(?<=/)\{[^/]*\}(?=/|$)")


class TableKey(NamedTuple):
    """A table of the view, and a key in it."""

    table: str
    key: LookupKey


class NumericAddress(NamedTuple):
    """An IP address as a number. An IPv4-mapped IPv6 address is IPv4, with the text of the IPv4 address."""

    version: int
    number: int
    text: str


def table_key(scope: str, key: str) -> TableKey | None:
    """The table and key for a lock; None for an unknown scope, or a range that is not a CIDR block."""
    if ":" in scope:
        return _value_table_key(scope, key)
    if scope == "range" or (scope == "address" and "/" in key):  # IPv6 callers are often counted by /64
        return range_key(key)
    if scope == "address" and (address := parse_address(key)):
        if address.version == 6:  # has many spellings
            return TableKey(RANGE_TABLES[6], 1 << 128 | address.number)
        return TableKey("address", address.text)
    if scope == "resource":
        return TableKey("resource", normalize_route(key))
    return TableKey(scope, key) if scope in EXACT_TABLES else None


def table_keys(scope: str, key: str) -> tuple[TableKey, ...]:
    """The places of a lock in the tables; the first is its home, from which a view lists it.

    A lock on a caller that is an address has a second place, by that address, cut as the caller's name shows:
    requests without a caller are counted by their address, and they are looked up by it.

    >>> table_keys("caller", "address:192.0.2.1")
    (TableKey(table='caller', key='address:192.0.2.1'), TableKey(table='address', key='192.0.2.1'))
    """
    home = table_key(scope, key)
    if home is None:
        return ()
    if is_of_callers(scope) and key.startswith(ADDRESS_CALLER):
        by_address = table_key("address", key.removeprefix(ADDRESS_CALLER))
        return (home,) if by_address is None else (home, by_address)
    return (home,)


def is_of_callers(scope: str) -> bool:
    """Whether the key of locks of this scope is a caller.

    >>> is_of_callers("caller"), is_of_callers("caller+value:model"), is_of_callers("tenant")
    (True, True, False)
    """
    return scope == "caller" or scope.startswith("caller+")


def pair_value(scope: str) -> str:
    """The named value that locks of this scope have in place of a route; "" if they have none.

    >>> pair_value("caller+value:model"), pair_value("value:model"), pair_value("caller")
    ('model', '', '')
    """
    kind, _, name = scope.partition(":")
    return name if kind in PAIR_SCOPES else ""


def value_key(name: str, value: str) -> str:
    """The key of the locks on all requests with a named value."""
    return f"{name}={value}"


def _value_table_key(scope: str, key: str) -> TableKey | None:
    kind, _, name = scope.partition(":")
    if VALUE_NAME.fullmatch(name) is None:
        return None
    if kind == VALUE_SCOPE:
        return TableKey(kind, value_key(name, key))
    return TableKey(kind, key) if kind in PAIR_SCOPES else None


def range_key(text: str) -> TableKey | None:
    """The table and key for a CIDR block; None for other text.

    The key is the network's bits behind a leading 1, so that blocks of different lengths cannot collide. Host
    bits are ignored; a range of IPv4-mapped addresses is a range of IPv4.
    """
    address_text, _, bits = text.partition("/")
    is_six = ":" in address_text and "%" not in address_text
    if is_six and len(bits) <= 3 and bits.isascii() and bits.isdigit():
        # A tenth of the cost of ip_network: there may be 100,000 callers that are networks.
        address, length = parse_address(address_text), int(bits)
        if address is not None and address.version == 6 and length <= ADDRESS_BITS[6]:
            return TableKey(RANGE_TABLES[6], 1 << length | address.number >> (ADDRESS_BITS[6] - length))
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    version, length, number = network.version, network.prefixlen, int(network.network_address)
    if version == 6 and length >= 96 and number >> 32 == 0xFFFF:
        version, length, number = 4, length - 96, number & 0xFFFF_FFFF
    return TableKey(RANGE_TABLES[version], 1 << length | number >> (ADDRESS_BITS[version] - length))


def parse_address(text: str) -> NumericAddress | None:
    """The IP address in any spelling, without its zone; None for other text. Never raises."""
    try:
        if ":" not in text:
            packed = socket.inet_pton(socket.AF_INET, text)
            return NumericAddress(4, int.from_bytes(packed, "big"), text)
        packed = socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except (OSError, ValueError):  # ValueError: a NUL, or half of a surrogate pair
        return None
    if packed.startswith(IPV4_MAPPED_PREFIX):
        return NumericAddress(4, int.from_bytes(packed[12:], "big"), str(ip_address(packed[12:])))
    return NumericAddress(6, int.from_bytes(packed, "big"), text)


def prefix_length(key: LookupKey) -> int:
    """The prefix length of the block that a key of a range table stands for."""
    return key.bit_length() - 1 if isinstance(key, int) else 0


def normalize_route(route: str) -> str:
    """The route pattern without the names of its parameters.

    The log and the application may name them differently.

    >>> normalize_route("/v1/items/{item_id}")
    '/v1/items/{}'
    """
    if "{" not in route:
        return route
    if len(route) > CACHED_ROUTE_CHARACTERS_MAX:
        return PATH_PARAMETER.sub("{}", route)
    return _normalize_route(route)


@lru_cache(CACHED_ROUTES_MAX)
def _normalize_route(route: str) -> str:
    return PATH_PARAMETER.sub("{}", route)
