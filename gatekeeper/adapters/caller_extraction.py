"""Who asks, out of what a request says: typed names, and the address behind proxies that are trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeVar

from gatekeeper.identity import NAME_BYTES_MAX, address_of, caller_of, is_name, typed

CallerKind = Literal["api_key", "user", "address"]

# Names and addresses, of those who came last: to examine them again for each of their requests would be most
# of what a Guard does.
REMEMBERED = 1_024
ADDRESS_CHARS_MAX = 45  # an IPv4 address in IPv6, written in full

UNIX = "unix"  # a proxy on this machine, whose socket has no address

# Some proxies write the port, too: 192.0.2.1:4711, [2001:db8::1]:4711.
WITH_PORT = re.compile(r"\[(?P<six>[0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|(?P<four>[0-9.]+):[0-9]{1,5}")

Request = TypeVar("Request")

NAMES: dict[str, Callable[[str, int], str]] = {
    "api_key": lambda text, _prefix6: caller_of(api_key=text),
    "user": lambda text, _prefix6: caller_of(user=text),
    "address": lambda text, prefix6: caller_of(address=text, prefix6=prefix6),
}


def caller_name(kind: str, text: str, prefix6: int = 128) -> str:
    """The caller's typed name; "" for what cannot be one, which is then nobody's."""
    if kind != "address":  # as for the rest, at a third of its cost
        return typed(kind, text) if is_name(text) else ""
    try:
        return NAMES[kind](text, prefix6)
    except ValueError:
        return ""


def name_from_header(kind: str, value: bytes) -> str:
    """The caller's typed name by a header's value; "" for what cannot be one."""
    return _name_in(kind, value) if len(value) <= NAME_BYTES_MAX else ""


@lru_cache(REMEMBERED)
def _name_in(kind: str, value: bytes) -> str:
    return caller_name(kind, decode_header(value))


def require_kind(kind: str) -> None:
    """Raises ValueError for a kind of name that there is not."""
    if kind not in NAMES:
        raise ValueError(f"kind: expected one of {', '.join(NAMES)}, got {kind!r}")


def first(*extractors: Callable[[Request], str]) -> Callable[[Request], str]:
    """The caller by the first of `extractors` that knows one, as a source's `caller = ["api_key", "address"]`
    has it: `Guard(app, gate, caller=first(header("x-api-key"), address(prefix6=64)))`.

    A key that cannot be a name is as good as none, while the analyzer would reject a record that has one.
    """

    def caller(request: Request) -> str:
        for extractor in extractors:
            found = extractor(request)
            if found:
                return found
        return ""

    return caller


def decode_header(value: bytes) -> str:
    """A header's value as proxies write it into their logs: UTF-8. "" for what is none, and cannot be in any
    log that can be read.

    >>> decode_header("é".encode()), decode_header("é".encode("latin-1"))
    ('é', '')
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


class TrustedProxies:
    """The proxies whose word about their own client is taken, each an address or a network, or "unix" for
    whoever asks through a Unix socket.

    Raises ValueError for what is none of these, TypeError for one text instead of several.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        if isinstance(trusted, str):
            raise TypeError(f"trusted_proxies: expected a list of addresses and networks, got {trusted!r}")
        caller_name = list(trusted)
        self._trusted: list[IPv4Network | IPv6Network] = [
            ip_network(each) for each in caller_name if each != UNIX
        ]
        self._unix = UNIX in caller_name

    def __bool__(self) -> bool:
        return self._unix or bool(self._trusted)

    def client(self, peer: str, forwarded: Sequence[str]) -> str:
        """The first address, seen from our end, that is no trusted proxy's; "" when nobody can say.

        `forwarded` are the values of X-Forwarded-For in their order. What stands left of an address that
        is not trusted was written by who sits there, and is not looked at. Where a proxy writes none, as
        "unknown", nobody knows who asks. `Forwarded` (RFC 7239) is not looked at: a proxy that writes one of
        the two lets its clients write the other.

        >>> TrustedProxies(["10.0.0.0/8"]).client("10.0.0.1", ["6.6.6.6, 192.0.2.1", "10.0.0.2"])
        '192.0.2.1'
        """
        here = peer_address(peer)
        if not forwarded or not self:
            return here or ""
        hops = [hop.strip() for value in forwarded for hop in value.split(",")]
        if here is None and self._unix and hops:
            here = _hop(hops.pop())
        while here is not None and hops and self._is_trusted(ip_address(here)):
            here = _hop(hops.pop())
        return here or ""

    def _is_trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


def peer_address(text: str) -> str | None:
    """The address at the other end of a connection, as the server has it; None for what is none."""
    return _peer_address(text) if len(text) <= ADDRESS_CHARS_MAX else None


_peer_address = lru_cache(REMEMBERED)(address_of)


def _hop(text: str) -> str | None:
    """The address in one part of X-Forwarded-For; None for "unknown", a name, nothing at all."""
    ported = WITH_PORT.fullmatch(text)
    return address_of(text if ported is None else ported["six"] or ported["four"])
