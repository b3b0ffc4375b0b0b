"""Single values of a record: names, texts, numbers, times, addresses and routes."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from zoneinfo import ZoneInfo

from analyzer.billing.recount.log_envelopes import Unreadable

StoredField = Mapping[str, Any]  # of a mapping, as the plan stores it


class Digits(str):
    """A number as it is written."""

    __slots__ = ()


NUMBER_MAX = 2**53
TIME_MS_MAX = 253_339_228_800_000  # in the year 9998, exclusive
UNUSABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]",
)
PER_UNIT = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"( ?(?:[Zz]|UTC|([+-])([0-9]{2}):?([0-9]{2})?))?"
)
CLF = re.compile(
    r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}):([0-9]{2}):([0-9]{2}) ([+-])([0-9]{2})([0-9]{2})"
)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def is_name(text: str, bytes_max: int) -> bool:
    """Whether a text can be a name."""
    return bool(text) and not UNUSABLE.search(text) and len(text.encode()) <= bytes_max


def comparable_text(value: Any) -> str | None:
    """Returns a value as text; "" for none, None for what cannot be compared."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Digits):
        is_small = not set(value) & set(".eE") and len(value) < 40 and -(2**63) <= int(value) < 2**63
        return str(int(value)) if is_small else None
    return value if isinstance(value, str) else None


def scaled(written: str, factor: Decimal) -> int | None:
    """Returns a written number times a factor, rounded down; None beyond 10**39."""
    with localcontext() as exact:
        exact.prec, exact.Emax, exact.Emin = len(written) + 60, 999_999_999, -999_999_999
        number = Decimal(written)
        if not number:
            return 0
        if number.adjusted() > 60:
            return None
        if number.adjusted() < -60:
            return -1 if number < 0 else 0
        product = number * factor
        whole = int(product.to_integral_value("ROUND_FLOOR"))
    return whole if abs(whole) < 10**39 else None


def is_missing(value: Any) -> bool:
    """Whether a record has no number there: nothing, or what a server writes for nothing."""
    return value is None or (isinstance(value, str) and not isinstance(value, Digits) and value in {"", "-"})


def unquoted(value: Any) -> Any:
    """Returns the number that a text is; any other value as it is."""
    is_number = isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", value)
    return Digits(value) if is_number else value


def stored_number(value: Any, field: StoredField) -> int:
    """Returns a number in its stored unit. Raises Unreadable."""
    if is_missing(value):
        if field["default"] is None:
            raise Unreadable("a number is missing")
        return int(field["default"])
    value = unquoted(value)
    is_whole = field["kind"] == "whole"
    if not isinstance(value, Digits) or (is_whole and set(value) & set(".eE")):
        raise Unreadable("not a number")
    factors = {"whole": Decimal(1), "decimal": Decimal(1_000_000), "money": Decimal(1_000_000_000)}
    factor = factors.get(field["kind"], PER_UNIT[field["unit"]])
    number = scaled(value, factor)
    if number is None or not 0 <= number <= NUMBER_MAX:
        raise Unreadable("a number out of range")
    return number


def parse_client(text: str, field: StoredField) -> str:
    """Returns the client's address in a text, which may be a list; "" for a text without one.

    Of a list it is the last one that no trusted proxy has.
    """
    entries = [entry.strip() for entry in text.split(",")] if "," in text else [text]
    proxies = [ip_network(proxy) for proxy in field.get("trusted_proxies", ())]
    for entry in reversed(entries):
        address = canonical_address(entry, 128)
        if not address or not any(ip_address(address) in proxy for proxy in proxies):
            break
    return canonical_address(entry, field["prefix6"])


def is_host_name(text: str) -> bool:
    """Whether a text can be the name of a machine, and not a part of a time."""
    is_time = re.match("[0-9]{4}-?[0-9]{2}-?[0-9]{2}[tT][0-9]", text) or text in MONTHS or text in WEEKDAYS
    labels = text.removesuffix(".").split(".")
    is_of_labels = all(re.fullmatch("[-0-9A-Za-z_]{1,63}", label) for label in labels)
    return is_of_labels and len(text) < 254 and not is_time and re.search("[A-Za-z]", text) is not None


def canonical_address(text: str, prefix6: int) -> str:
    """Returns an address in its one spelling, without its port; "" for a text that is none."""
    bare = re.fullmatch(r"\[([0-9a-fA-F.:]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}", text)
    try:
        address = ip_address((bare[1] or bare[2]) if bare else text)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return ""
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if prefix6 < 128:
            kept = int(address) >> (128 - prefix6) << (128 - prefix6)
            return f"{IPv6Address(kept)}/{prefix6}"
    return str(address)


def address_network(address: str, version: int, bits: int) -> str:
    """Returns the network of an address, which may be cut already; "" for one of the other family."""
    if not address or (":" in address) != (version == 6):
        return ""
    text, _, cut = address.partition("/")
    parsed = ip_address(text)
    bits = min(bits, int(cut or 128))
    width = parsed.max_prefixlen
    return f"{type(parsed)(int(parsed) >> (width - bits) << (width - bits))}/{bits}"


def matching_route(path: str, routes: Sequence[str], fallback: str) -> str:
    """Returns the pattern that a path matches: the one that is fixed where others are free."""
    segments = re.split("[?#]", path, maxsplit=1)[0].split("/")
    fitting = []
    for route in routes:
        patterns = route.split("/")
        free = [pattern.startswith("{") and pattern.endswith("}") for pattern in patterns]
        if len(patterns) == len(segments) and all(
            segment if is_free else segment == pattern
            for segment, pattern, is_free in zip(segments, patterns, free, strict=True)
        ):
            fitting.append((free, route))
    return min(fitting, key=lambda pair: pair[0])[1] if fitting else fallback


def digested(text: str, field: StoredField, secrets: Mapping[str, bytes]) -> str:
    """Returns the digest of a name, if its field has one. Raises LookupError without the secret."""
    name = field.get("digest", "")
    if field["type"] != "text" or not name:
        return text
    return hmac.digest(secrets[name], text.encode(), "sha256").hex()[:32]


def counted_text(value: Any, field: StoredField, bytes_max: int, secrets: Mapping[str, bytes]) -> str:
    """Returns the text that a field is counted by. Raises Unreadable."""
    if field["type"] == "resource":
        if value is None or value == "":
            return ""
        if not isinstance(value, str) or isinstance(value, Digits):
            raise Unreadable("a path is not text")
        if not field["routes"]:
            path = re.split("[?#]", value, maxsplit=1)[0]
            return path if is_name(path, bytes_max) else ""
        return matching_route(value, field["routes"], field["other"])
    text = comparable_text(value)
    if text is None:
        raise Unreadable("a field is not text")
    if text and field["type"] == "address":
        return parse_client(text, field)
    return digested(text, field, secrets) if is_name(text, bytes_max) else ""


def time_ms(value: Any, field: StoredField) -> int:
    """Returns a time in milliseconds since 1970. Raises Unreadable."""
    ms: int | None = None
    unit = field["unit"]
    if unit in PER_UNIT:
        value = unquoted(value)
        if isinstance(value, Digits):
            ms = scaled(value, PER_UNIT[unit] / 1000)
            ms = ms if ms is not None and -(2**63) <= ms < 2**63 else None
    elif isinstance(value, str) and not isinstance(value, Digits):
        ms = _iso_ms(value, field.get("zone", "")) if unit == "rfc3339" else _clf_ms(value)
    if ms is None:
        raise Unreadable("not a time")
    return ms


def _iso_ms(text: str, zone: str) -> int | None:
    match = RFC3339.fullmatch(text)
    if match is None:
        return None
    date, hour, minute, second, places, offset, sign, hours, minutes = match.groups()
    ms = int(((places or "") + "000")[:3])
    if offset is not None:
        return _moment_ms(date, (hour, minute, second), ms, (sign, hours, minutes))
    local_ms = _moment_ms(date, (hour, minute, second), ms, (None, None, None)) if zone else None
    if local_ms is None:
        return None
    shown = datetime.fromisoformat(date).replace(hour=int(hour), minute=int(minute), tzinfo=ZoneInfo(zone))
    east = shown.utcoffset()
    return None if east is None else local_ms - east // timedelta(milliseconds=1)


def _clf_ms(text: str) -> int | None:
    match = CLF.fullmatch(text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text)
    if match is None or match[2] not in MONTHS:
        return None
    day, month, year, hour, minute, second, sign, hours, minutes = match.groups()
    date = f"{year}-{MONTHS.index(month) + 1:02}-{day}"
    return _moment_ms(date, (hour, minute, second), 0, (sign, hours, minutes))


def _moment_ms(
    date: str, clock: tuple[str, str, str], ms: int, zone: tuple[str | None, str | None, str | None]
) -> int | None:
    hour, minute, second = map(int, clock)
    if second == 60:
        second, ms = 59, 999
    sign, hours, minutes = zone[0], int(zone[1] or 0), int(zone[2] or 0)
    if hours > 23 or minutes > 59:
        return None
    try:
        moment = datetime.fromisoformat(date).replace(hour=hour, minute=minute, second=second, tzinfo=UTC)
    except ValueError:
        return None
    east = timedelta(hours=hours, minutes=minutes) * (-1 if sign == "-" else 1)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (moment - epoch) // timedelta(milliseconds=1) - east // timedelta(milliseconds=1) + ms
