"""One caller, one name: the typed name that the log is counted under and that a gate asks for.

Both sides call these functions, and the same vectors test both. Standard library only.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

NAME_BYTES_MAX = 256

# Control characters (C0, DEL, C1), what turns text around, and halves of surrogate pairs: a name with these
# looks like another one, or breaks the log or the database that it is written to.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
USUAL_IPV4 = re.compile(rf"(?:{BYTE}\.){{3}}{BYTE}")


def is_name(text: str, bytes_max: int = NAME_BYTES_MAX) -> bool:
    """Whether `text` may stand for somebody: not empty, at most `bytes_max` bytes of UTF-8, nothing hidden
    in it. Nothing is normalised: two spellings are two names."""
    return (
        0 < len(text) <= bytes_max
        and FORBIDDEN.search(text) is None
        and (text.isascii() or len(text.encode()) <= bytes_max)
    )


def address_of(text: str, prefix6: int = 128) -> str | None:
    """The one way to write an IP address; None when it is none.

    IPv4 in IPv6 (`::ffff:192.0.2.1`) is the IPv4 address. IPv6 is cut to its first `prefix6` bits, because
    one household has 2**64 of them, and then says so. Zones (`fe80::1%eth0`), ports and leading zeros are
    not accepted.

    >>> address_of("2001:DB8:0:0:1::9", 64), address_of("::ffff:192.0.2.1"), address_of("1.2.3")
    ('2001:db8::/64', '192.0.2.1', None)
    """
    if USUAL_IPV4.fullmatch(text) is not None:  # a log of a million addresses is counted by the million
        return text
    if "%" in text:
        return None
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if prefix6 < 128:
            rest = 128 - prefix6
            return f"{IPv6Address(int(address) >> rest << rest)}/{prefix6}"
    return str(address)


def typed(kind: str, text: str) -> str:
    """A name with what kind of name it is in front, so that a key can never pass for an address."""
    return f"{kind}:{text}"


def caller_of(*, prefix6: int = 128, **names: str | None) -> str:
    """The caller's typed name, by the first of `names` that is there; "" when none is.

    Give them in the order of the source's `caller`. Raises ValueError when the one that is there cannot be
    a name. It never falls through to the next: a caller whose key is broken must not be counted as its
    proxy's address.

    >>> caller_of(api_key="acme", address="192.0.2.1"), caller_of(user="", address="2001:db8::9", prefix6=64)
    ('api_key:acme', 'address:2001:db8::/64')
    """
    for kind, text in names.items():
        if text is None or text == "":
            continue
        known = address_of(text, prefix6) if kind == "address" else text
        if known is None or not is_name(known):
            raise ValueError(
                f"this {kind} cannot be a name: no IP address, too long, or hidden characters in it"
            )
        return typed(kind, known)
    return ""
