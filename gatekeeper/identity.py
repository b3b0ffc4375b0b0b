"""The typed name of a caller, under which the analyzer counts it and a gate checks it.

The analyzer and the gate call the same functions, and the same vectors test both. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

__all__ = [
    "MISSING",
    "NAME_BYTES_MAX",
    "PREFIX6",
    "UNIX",
    "UNNAMED",
    "NameDigest",
    "TrustedProxies",
    "address_of",
    "caller_of",
    "client_address",
    "is_name",
    "typed",
]

NAME_BYTES_MAX = 256
PREFIX6 = 64  # bits of an IPv6 address by which its caller is counted: a household has 2**64 addresses

DIGEST_CHARS = 32  # hexadecimal: 128 bits, so that two names never have one digest
SECRET_BYTES_MIN = 16

# The caller of requests that have no usable name. No name can make it: the text behind a colon is not empty.
UNNAMED = "unnamed:"
MISSING = frozenset(("", "-"))  # names that servers write where a request has none

# Control characters (C0, DEL, C1), bidirectional controls, and halves of surrogate pairs: a name that
# contains one looks like another name, or breaks the log or the database that it is written to.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
CANONICAL_IPV4 = re.compile(rf"(?:{BYTE}\.){{3}}{BYTE}")
# Some servers and proxies write the port, too: 192.0.2.1:4711, [2001:db8::1]:4711.
WITH_PORT = re.compile(r"\[(?P<six>[0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|(?P<four>[0-9.]+):[0-9]{1,5}")

UNIX = "unix"  # a proxy on this machine that connects through a Unix socket, which has no address
# Addresses of recent connections: reading them for each request would be most of a guard's cost.
CACHE_SIZE = 1_024
ADDRESS_CHARS_MAX = 45  # an IPv4 address in IPv6, written in full


def is_name(text: str, bytes_max: int = NAME_BYTES_MAX) -> bool:
    r"""Whether `text` can be a name: not empty, not too long, without hidden characters.

    Nothing is normalised: two spellings are two names.

    Args:
        text: The text.
        bytes_max: How many bytes of UTF-8 it may have.

    Example:
        >>> is_name("acme"), is_name(""), is_name("a\x00b")
        (True, False, False)
    """
    return (
        0 < len(text) <= bytes_max
        and FORBIDDEN.search(text) is None
        and (text.isascii() or len(text.encode()) <= bytes_max)
    )


def address_of(text: str, prefix6: int = 128) -> str | None:
    """The canonical text of an IP address; None for other text.

    A port and brackets are taken off (`192.0.2.1:4711`, `[2001:db8::1]:443`). An IPv4-mapped IPv6 address
    (`::ffff:192.0.2.1`) becomes the IPv4 address. Zones (`fe80::1%eth0`) and leading zeros are not accepted.

    Args:
        text: The text.
        prefix6: How many bits of an IPv6 address count; all by default. Below 128 the others become 0, and
            the number of bits becomes a suffix.

    Example:
        >>> address_of("2001:DB8:0:0:1::9", 64), address_of("::ffff:192.0.2.1"), address_of("1.2.3")
        ('2001:db8::/64', '192.0.2.1', None)
    """
    if CANONICAL_IPV4.fullmatch(text) is not None:  # the usual case, several times faster than ip_address
        return text
    if "%" in text:
        return None
    with_port = WITH_PORT.fullmatch(text)
    if with_port is not None:
        text = with_port["six"] or with_port["four"]
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if prefix6 < 128:
            host_bits = 128 - prefix6
            return f"{IPv6Address(int(address) >> host_bits << host_bits)}/{prefix6}"
    return str(address)


class TrustedProxies:
    """Proxies whose entries in X-Forwarded-For are trusted.

    Args:
        trusted: Addresses and networks; "unix" for a proxy that connects through a Unix socket.

    Raises:
        ValueError: An entry is not one of these.
        TypeError: `trusted` is one string instead of several.

    Example:
        >>> TrustedProxies(["10.0.0.0/8"]).client("10.0.0.1", ["6.6.6.6, 192.0.2.1", "10.0.0.2"])
        '192.0.2.1'
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
        """The client's address: the first one, from right to left, that is not a trusted proxy's.

        "" if the address is unknown: the peer has none, or a trusted proxy wrote "unknown". Entries left of
        an untrusted address were written by that client and are ignored. `Forwarded` (RFC 7239) is not read:
        a proxy that writes one of the two headers lets its clients write the other.

        Args:
            peer: The other end of the connection, as the server reports it.
            forwarded: Values of X-Forwarded-For, in their order.
        """
        address = peer_address(peer)
        if not forwarded or not self:
            return address or ""
        hops = _hops(forwarded)
        if address is None and self._trusts_unix and hops:
            address = address_of(hops.pop())
        return self._last_untrusted(address, hops)

    def client_in(self, forwarded: str) -> str:
        """The client's address by one value of X-Forwarded-For in a log, whose last entry a proxy wrote.

        "" if it is unknown, as for `client`.

        Args:
            forwarded: The value.

        Example:
            >>> TrustedProxies(["10.0.0.0/8"]).client_in("6.6.6.6, 192.0.2.1, 10.0.0.2")
            '192.0.2.1'
        """
        hops = _hops([forwarded])
        return self._last_untrusted(address_of(hops.pop()), hops)

    def _last_untrusted(self, address: str | None, hops: list[str]) -> str:
        while address is not None and hops and self._is_trusted(ip_address(address)):
            address = address_of(hops.pop())
        return address or ""

    def _is_trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _hops(forwarded: Sequence[str]) -> list[str]:
    return [hop.strip() for value in forwarded for hop in value.split(",")]


def peer_address(text: str) -> str | None:
    """The normalised address of a connection's other end; None if it has no address.

    Args:
        text: The other end, as the server reports it.

    Example:
        >>> peer_address("::ffff:192.0.2.1")
        '192.0.2.1'
    """
    return _cached_address(text) if len(text) <= ADDRESS_CHARS_MAX else None


_cached_address = lru_cache(CACHE_SIZE)(address_of)
NO_PROXIES = TrustedProxies()


def client_address(text: str, prefix6: int = 128, trusted: TrustedProxies = NO_PROXIES) -> str | None:
    """The canonical address of a client, as a request or a log has it; None for other text.

    Of a list, as in X-Forwarded-For, it is the last one that is not a trusted proxy's: what stands left of
    it was written by that client. Gates, the counter and `gatelock look` read addresses by this function.

    Args:
        text: An address, perhaps with a port, or a list of them with commas.
        prefix6: As for `address_of`.
        trusted: The proxies whose entries in a list are trusted; none by default.

    Example:
        >>> client_address("192.0.2.1:4711"), client_address("6.6.6.6, 192.0.2.1"), client_address("Nov")
        ('192.0.2.1', '192.0.2.1', None)
    """
    return address_of(trusted.client_in(text) if "," in text else text, prefix6)


def typed(kind: str, text: str) -> str:
    """The name with its kind in front, so that a key can never pass for an address.

    Args:
        kind: The kind, such as "api_key", "user" or "address".
        text: The name.

    Example:
        >>> typed("api_key", "acme")
        'api_key:acme'
    """
    return f"{kind}:{text}"


def caller_of(*, prefix6: int = PREFIX6, **names: str | None) -> str:
    r"""The typed name of a caller, made from the first of `names` that is usable; "" when none is.

    A name is not usable if it is too long, has hidden characters, or, for `address`, not an IP address. What
    a client says never makes its request uncounted, so the next name is tried. A request without a caller is
    counted under its address, and without that under `unnamed:`; guards ask for the same.

    Args:
        prefix6: How many bits of an IPv6 address count, as in the log's mapping.
        **names: The caller's names by kind, in the order of the source's `caller` setting, and its address.
            None, "" and "-" are absent.

    Example:
        >>> caller_of(api_key="acme", address="192.0.2.1")
        'api_key:acme'
        >>> caller_of(user="a\x00b", address="2001:db8::9")
        'address:2001:db8::/64'
        >>> caller_of(address="unix:")
        ''
    """
    for kind, text in names.items():
        if text is None or text in MISSING:
            continue
        name = client_address(text, prefix6) if kind == "address" else text
        if name is not None and is_name(name):
            return typed(kind, name)
    return ""


@dataclass(frozen=True, slots=True)
class NameDigest:
    """A keyed digest of names: callers are counted and looked up by it, and their keys are stored nowhere.

    The first 32 hexadecimal digits of HMAC-SHA256 over the name's UTF-8. Without the secret, trying keys
    does not show which caller a digest stands for; with another secret all callers have other names.

    Args:
        secret: At least 16 bytes, from a file or the environment; equal for the analyzer and every gate.

    Raises:
        ValueError: The secret is too short.

    Example:
        >>> NameDigest("kept in a secret file").of("acme")
        '058ea18ec06f363c4bcba2e224b640f1'
    """

    secret: str | bytes = field(repr=False)

    def __post_init__(self) -> None:
        secret = self.secret.encode() if isinstance(self.secret, str) else self.secret
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"secret: expected at least {SECRET_BYTES_MIN} bytes, got {len(secret)}")
        object.__setattr__(self, "secret", secret)

    @property
    def fingerprint(self) -> str:
        """Tells secrets apart: two digests with one fingerprint have one secret.

        Example:
            >>> NameDigest("kept in a secret file").fingerprint
            'd5bcd69bee8ad80f'
        """
        return self.of("\0fingerprint")[:16]

    def of(self, text: str) -> str:
        """The digest of a name.

        Args:
            text: The name, as the client sends it.

        Raises:
            UnicodeEncodeError: The text contains half of a surrogate pair: it cannot be a name.
        """
        # Imported late: hmac loads OpenSSL, which every application with a guard would load otherwise.
        import hmac

        secret: Any = self.secret  # bytes, since __post_init__
        return hmac.digest(secret, text.encode(), "sha256").hex()[:DIGEST_CHARS]
