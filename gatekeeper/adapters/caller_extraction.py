"""Typed caller names from a request, and the address of a client behind trusted proxies.

A gate finds a lock only under the name that the analyzer counts. So the rules here are those of the
analyzer's mapping: the same `gatekeeper.identity`, UTF-8 as in the logs of proxies, and no name for a value
under which the analyzer counts nothing. A client can write anything into X-Forwarded-For; only the part that
trusted proxies appended counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeVar, get_args

from gatekeeper.identity import NAME_BYTES_MAX, PREFIX6, UNNAMED, NameDigest, address_of, is_name, typed

CallerKind = Literal["api_key", "user", "address"]

# Names and addresses of recent callers: validating them for each request would be most of a guard's cost.
CACHE_SIZE = 1_024
ADDRESS_CHARS_MAX = 45  # an IPv4 address in IPv6, written in full

UNIX = "unix"  # a proxy on this machine that connects through a Unix socket, which has no address

# Some proxies write the port, too: 192.0.2.1:4711, [2001:db8::1]:4711.
ADDRESS_WITH_PORT = re.compile(r"\[(?P<six>[0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|(?P<four>[0-9.]+):[0-9]{1,5}")

Request = TypeVar("Request")

CALLER_KINDS: tuple[str, ...] = get_args(CallerKind)


def caller_name(kind: str, text: str, prefix6: int = PREFIX6) -> str:
    """Returns the caller's typed name; "" for a text that cannot be a name, and for "-".

    Equal to `caller_of`, at a third of its cost.
    """
    name = address_of(text, prefix6) if kind == "address" else text
    return typed(kind, name) if name and name != "-" and is_name(name) else ""


def asked_caller(caller: str, address: str) -> str:
    """Returns the caller that a gate is asked for: `unnamed:` for a request with neither caller nor address.

    The log counts such a request under this name. One with an address is found by that.
    """
    return caller or ("" if address else UNNAMED)


def name_from_header(kind: str, value: bytes, digest: NameDigest | None = None) -> str:
    """Returns the caller's typed name for a header's value; "" for a value that cannot be a name."""
    return _cached_name(kind, value, digest) if len(value) <= NAME_BYTES_MAX else ""


@lru_cache(CACHE_SIZE)
def _cached_name(kind: str, value: bytes, digest: NameDigest | None) -> str:
    text = decode_header(value)
    name = caller_name(kind, text)
    return typed(kind, digest.of(text)) if name and digest is not None else name


def require_kind(kind: str, digest: NameDigest | None = None) -> None:
    """Raises ValueError for an unknown kind of name, and for a digest of addresses."""
    if kind == "address" and digest is not None:
        raise ValueError("digest: expected none, because an address is not secret")
    if kind not in CALLER_KINDS:
        raise ValueError(f"kind: expected one of {', '.join(CALLER_KINDS)}, got {kind!r}")


def first(*extractors: Callable[[Request], str]) -> Callable[[Request], str]:
    """Returns an extractor that gives the first name that one of `extractors` finds; "" if none does.

    Use it where the log's mapping lists several fields, such as `caller = ["api_key", "address"]`. A key that
    cannot be a name counts as absent, here and in the log.

    >>> from gatekeeper.adapters.asgi import address, header
    >>> caller = first(header("x-api-key"), address())
    >>> caller({"headers": [], "client": ("2001:db8::7", 50000)})
    'address:2001:db8::/64'
    """

    def extract_first(request: Request) -> str:
        for extractor in extractors:
            name = extractor(request)
            if name:
                return name
        return ""

    return extract_first


def decode_header(value: bytes) -> str:
    """Returns a header's value as UTF-8, as proxies log it; "" for bytes that are not UTF-8.

    >>> decode_header("é".encode()), decode_header("é".encode("latin-1"))
    ('é', '')
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


class TrustedProxies:
    """Proxies whose entries in X-Forwarded-For are trusted.

    Args:
        trusted: Addresses and networks; "unix" for a proxy that connects through a Unix socket.

    Raises:
        ValueError: An entry is not one of these.
        TypeError: `trusted` is one string instead of several.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        if isinstance(trusted, str):
            raise TypeError(f"trusted_proxies: expected a list of addresses and networks, got {trusted!r}")
        entries = list(trusted)
        self._networks: list[IPv4Network | IPv6Network] = [
            ip_network(entry) for entry in entries if entry != UNIX
        ]
        self._trusts_unix = UNIX in entries

    def __bool__(self) -> bool:
        return self._trusts_unix or bool(self._networks)

    def client(self, peer: str, forwarded: Sequence[str]) -> str:
        """Returns the client's address: the first one, from right to left, that is not a trusted proxy's.

        "" if the address is unknown: the peer has none, or a trusted proxy wrote "unknown". Entries left of
        an untrusted address were written by that client and are ignored. `Forwarded` (RFC 7239) is not read:
        a proxy that writes one of the two headers lets its clients write the other.

        Args:
            peer: The other end of the connection, as the server reports it.
            forwarded: Values of X-Forwarded-For, in their order.

        >>> TrustedProxies(["10.0.0.0/8"]).client("10.0.0.1", ["6.6.6.6, 192.0.2.1", "10.0.0.2"])
        '192.0.2.1'
        """
        address = peer_address(peer)
        if not forwarded or not self:
            return address or ""
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        if address is None and self._trusts_unix and hops:
            address = _hop_address(hops.pop())
        while address is not None and hops and self._is_trusted(ip_address(address)):
            address = _hop_address(hops.pop())
        return address or ""

    def _is_trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def peer_address(text: str) -> str | None:
    """Returns the normalised address of a connection's other end; None if it has no address."""
    return _cached_address(text) if len(text) <= ADDRESS_CHARS_MAX else None


_cached_address = lru_cache(CACHE_SIZE)(address_of)


def _hop_address(text: str) -> str | None:
    """Returns the address in one entry of X-Forwarded-For; None for "unknown", a name or an empty entry."""
    with_port = ADDRESS_WITH_PORT.fullmatch(text)
    return address_of(text if with_port is None else with_port["six"] or with_port["four"])
