"""Single values of a record, read slowly: names, numbers, times, routes, addresses."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from ipaddress import IPv6Address, ip_address, ip_network
from math import floor
from typing import Any
from zoneinfo import ZoneInfo

from analyzer.plan import mapping as mappings
from tests.oracle.counter.slow_json import Digits

INT64 = range(-(2**63), 2**63)
BIDIRECTIONAL = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
MISSING = None


def digits_in(text: str) -> Any:
    """Returns the number that a text in quotes is; the text itself if it is none."""
    sign, rest = (text[0], text[1:]) if text.startswith("-") else ("", text)
    mantissa, mark, exponent = rest.replace("E", "e").partition("e")
    whole, point, places = mantissa.partition(".")
    power = exponent[1:] if exponent[:1] in {"+", "-"} else exponent
    if not is_digits(whole) or (point and not is_digits(places)):
        return text
    return text if mark and not is_digits(power) else Digits(sign + rest)


def is_whole(value: Any) -> bool:
    return isinstance(value, Digits) and not set(value) & set(".eE")


def exactly(written: Digits, unit: Fraction) -> int | None:
    """Returns `written` times `unit`, rounded down; None beyond 10**39."""
    mantissa, _, exponent = written.lower().partition("e")
    whole, _, places = mantissa.partition(".")
    digits = int_of(whole.lstrip("-") + places)
    if digits == 0:
        return 0
    power = max(-10_000_000, min(10_000_000, int_of(exponent or "0"))) - len(places)
    if power > 10_000:
        return None
    if power < -2_000_000:  # rounds to zero, or down to -1
        return -1 if whole.startswith("-") else 0
    value = digits * unit * (Fraction(10**power) if power >= 0 else Fraction(1, 10**-power))
    return None if value >= 10**39 else floor(-value if whole.startswith("-") else value)


def int_of(text: str) -> int:
    """Returns int(text), which itself accepts at most 4,300 digits."""
    sign = -1 if text.startswith("-") else 1
    text, number = text.lstrip("+-"), 0
    for at in range(0, len(text), 4000):
        piece = text[at : at + 4000]
        number = number * 10 ** len(piece) + int(piece)
    return sign * number


def is_name(text: str, bytes_max: int) -> bool:
    if any(ord(char) < 32 or 127 <= ord(char) < 160 or char in BIDIRECTIONAL for char in text):
        return False
    if any(0xD800 <= ord(char) < 0xE000 for char in text):
        return False
    return 0 < len(text.encode()) <= bytes_max


def client_of(text: str, prefix6: int, trusted: Sequence[str] = ()) -> str | None:
    """Returns the client in a text: of a list, the last address that no trusted network has."""
    if "," not in text:
        return address_of(text, prefix6)
    *others, last = [entry.strip() for entry in text.split(",")]
    while (address := address_of(last, 128)) is not None and others:
        if not any(ip_address(address) in ip_network(network) for network in trusted):
            break
        *others, last = others
    return None if address is None else address_of(address, prefix6)


def is_host_name(text: str) -> bool:
    """Whether a text can be the name of a machine: of labels, and neither a number nor a part of a time."""
    labels = text.removesuffix(".").split(".")
    if len(text) > 253 or not all(1 <= len(label) <= 63 for label in labels):
        return False
    if not all(char.isascii() and (char.isalnum() or char in "-_") for label in labels for char in label):
        return False
    digits = text.replace("-", "")
    is_time = digits[8:9] in ("t", "T") and is_digits(digits[:8]) and is_digits(digits[9:10])
    return any(char.isalpha() for char in text) and text not in {*MONTHS, *WEEKDAYS} and not is_time


def without_port(text: str) -> str:
    """Returns an address without its port and brackets."""
    host, colon, port = text.rpartition(":")
    if not (colon and 1 <= len(port) <= 5 and is_digits(port)):
        host = text
    if host[:1] == "[" and host[-1:] == "]" and set(host[1:-1]) <= set("0123456789abcdefABCDEF:."):
        return host[1:-1]
    return host if ":" not in host and "[" not in host else text


def address_of(text: str, prefix6: int) -> str | None:
    try:
        address = ip_address(without_port(text))
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return None
        if int(address) >> 32 == 0xFFFF:
            return str(ip_address(int(address) & 0xFFFFFFFF))
        if prefix6 < 128:
            kept = int(address) - int(address) % 2 ** (128 - prefix6)
            return f"{IPv6Address(kept)}/{prefix6}"
    return str(address)


def text_of(value: Any) -> str | None:
    if value is MISSING:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Digits):
        small = is_whole(value) and len(value) < 40 and int(value) in INT64
        return str(int(value)) if small else None
    return value if isinstance(value, str) else None


def route_of(path: str, field: mappings.ResourceField, bytes_max: int) -> str:
    for mark in "?#":
        path, _, _ = path.partition(mark)
    if not field.routes:
        return path if is_name(path, bytes_max) else ""
    segments = path.split("/")

    def fits(route: str) -> bool:
        patterns = route.split("/")
        return len(patterns) == len(segments) and all(
            segment != "" if is_free(pattern) else pattern == segment
            for pattern, segment in zip(patterns, segments, strict=True)
        )

    def is_free(segment: str) -> bool:
        return segment.startswith("{") and segment.endswith("}")

    fitting = [route for route in field.routes if fits(route)]
    return min(
        fitting, key=lambda route: [is_free(segment) for segment in route.split("/")], default=field.other
    )


def counted_text(value: Any, field: mappings.Field, bytes_max: int) -> str | None:
    """Returns the text that a field is counted by; None when the value cannot be."""
    if isinstance(field, mappings.ResourceField):
        if value is MISSING or value == "":
            return ""
        return route_of(value, field, bytes_max) if type(value) is str else None
    text = text_of(value)
    if text is None or text == "":
        return text
    if isinstance(field, mappings.AddressField):
        return client_of(text, field.prefix6, field.trusted_proxies or ()) or ""
    return digested(text, field) if is_name(text, bytes_max) else ""


SECRETS: dict[str, bytes] = {}  # of the counters that were made, by fingerprint


def digested(text: str, field: mappings.Field) -> str:
    """Returns the digest of a name, where its field has one; else the name."""
    if not isinstance(field, mappings.TextField) or not field.digest:
        return text
    secret = SECRETS[field.digest]
    # HMAC as RFC 2104 defines it.
    block = (hashlib.sha256(secret).digest() if len(secret) > 64 else secret).ljust(64, b"\0")
    inner, outer = (bytes(byte ^ mask for byte in block) for mask in (0x36, 0x5C))
    return hashlib.sha256(outer + hashlib.sha256(inner + text.encode()).digest()).hexdigest()[:32]


def time_ms(value: Any, field: mappings.TimeField) -> int | None:
    if field.unit in ("rfc3339", "clf"):
        if type(value) is not str:
            return None
        return clf_ms(value) if field.unit == "clf" else iso_ms(value, field.zone or "")
    if type(value) is str:
        value = digits_in(value)
    if not isinstance(value, Digits):
        return None
    per_ms = {"s": Fraction(1000), "ms": Fraction(1), "us": Fraction(1, 1000), "ns": Fraction(1, 10**6)}
    ms = exactly(value, per_ms[field.unit])
    return ms if ms is not None and ms in INT64 else None


def iso_ms(text: str, zone: str) -> int | None:
    """Returns the time of a text, character by character; `zone` is that of a text without an offset."""
    date, rest = text[:11], text[11:]
    if date[10:] not in {"T", "t", " "} or date[4:5] != "-" or date[7:8] != "-":
        return None
    clock, rest = rest[:8], rest[8:]
    if len(clock) != 8 or clock[2] != ":" or clock[5] != ":":
        return None
    places = ""
    if rest[:1] in {".", ","}:
        places = rest[1:]
        while places and not is_digits(places):
            places = places[:-1]
        if not places:
            return None
        rest = rest[1 + len(places) :]
    parts = [date[:4], date[5:7], date[8:10], clock[:2], clock[3:5], clock[6:]]
    ms = int((places + "000")[:3])
    if rest == "":
        return moment_ms([*parts, "00", "00"], west=False, ms=ms, zone=zone) if zone else None
    offset = rest.removeprefix(" ")
    if offset in {"Z", "z", "UTC"}:
        offset = "+00:00"
    if (
        offset[:1] not in {"+", "-"}
        or len(offset) not in {3, 5, 6}
        or (len(offset) == 6 and offset[3] != ":")
    ):
        return None
    minutes = offset[-2:] if len(offset) > 3 else "00"
    return moment_ms([*parts, offset[1:3], minutes], west=offset[0] == "-", ms=ms)


def clf_ms(text: str) -> int | None:
    if text.startswith("["):
        if not text.endswith("]"):
            return None
        text = text[1:-1]
    marks = [(2, "/"), (6, "/"), (11, ":"), (14, ":"), (17, ":"), (20, " ")]
    if len(text) != 26 or any(text[at] != mark for at, mark in marks) or text[21] not in "+-":
        return None
    if text[3:6] not in MONTHS:
        return None
    month = f"{MONTHS.index(text[3:6]) + 1:02}"
    parts = [text[7:11], month, text[:2], text[12:14], text[15:17], text[18:20], text[22:24], text[24:]]
    return moment_ms(parts, west=text[21] == "-", ms=0)


def is_digits(text: str) -> bool:
    return text != "" and set(text) <= set("0123456789")


def moment_ms(parts: Sequence[str], *, west: bool, ms: int, zone: str = "") -> int | None:
    if not all(is_digits(part) for part in parts):
        return None
    year, month, day, hour, minute, second, hours, minutes = (int(part) for part in parts)
    if second == 60:
        second, ms = 59, 999
    if hours > 23 or minutes > 59:
        return None
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    since = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) + ms
    if zone:
        offset = at.replace(tzinfo=ZoneInfo(zone)).utcoffset()
        assert offset is not None
        return since - offset // timedelta(milliseconds=1)
    east_ms = (hours * 60 + minutes) * 60_000
    return since + east_ms if west else since - east_ms
