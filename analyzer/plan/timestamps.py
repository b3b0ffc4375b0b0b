"""Timestamps in text (ISO 8601 as logs have it, common log format) to whole milliseconds since 1970 UTC."""

from __future__ import annotations

import re
from datetime import date, datetime, tzinfo
from functools import lru_cache

EPOCH_DAY = date(1970, 1, 1).toordinal()
MINUTE_MS = 60_000

# As accepted here: T, t or a blank after the date, any number of decimals, then Z, z or an offset.
SECOND_CHARS = 19  # up to the decimal point
# What logs also write behind the second; nothing but a fraction where the mapping has a time zone.
OTHER_END = re.compile(r"([.,][0-9]+)?( ?(?:([+-][0-9]{2}):?([0-9]{2})?|UTC|[Zz]))?")
SECOND = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:[Zz]|([+-][0-9]{2}:[0-9]{2}))"
)
# 10/Oct/2000:13:55:36 -0700 as Apache and nginx write it, with or without their brackets.
CLF = re.compile(
    r"(\[)?([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}:[0-9]{2}):([0-9]{2})"
    r" ([+-][0-9]{2})([0-9]{2})(?(1)\])"
)
MONTHS = {
    name: f"{n:02}"
    for n, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}


def rfc3339_ms(text: str, zone: tzinfo | None = None) -> int | None:
    """Returns the milliseconds of a time as RFC 3339 has it, rounded down; None for any other text.

    A comma may stand for the point, and the offset may have no colon or no minutes. A time without an offset
    is one of `zone`, and None without it. Of an hour that a clock shows twice it is the first one, and a time
    that the clock leaves out is as much later as it leaves out. A leap second counts as the last millisecond
    of its minute.

    >>> rfc3339_ms("1970-01-01T01:00:00.0019+01:00"), rfc3339_ms("1970-01-01T00:00:60Z")
    (1, 59999)
    >>> rfc3339_ms("1970-01-01 01:00:00,0019 +0100"), rfc3339_ms("1970-01-01T01:00:00")
    (1, None)
    """
    end = text[-1:] if text[-1:] in ("Z", "z") else text[-6:]
    shown, fraction = text[:SECOND_CHARS], text[SECOND_CHARS : -len(end)]
    is_usual = len(end) == 1 or (end[3:4] == ":" and end[0] != ":")
    if is_usual and (not fraction or (fraction[1:].isdigit() and fraction.isascii() and fraction[0] in ".,")):
        second_ms = _second_ms(shown + end)  # as RFC 3339 has it
    elif match := OTHER_END.fullmatch(text, SECOND_CHARS):
        fraction, end, hours, minutes = match.groups()
        if end:
            second_ms = _second_ms(f"{shown}{hours or '+00'}:{minutes or '00'}")
        else:
            second_ms = None if zone is None else _zoned_second_ms(shown, zone)
    else:
        return None
    if second_ms is None or not fraction or shown.endswith("60"):
        return second_ms
    return second_ms + int(fraction[1:4].ljust(3, "0"))


@lru_cache(maxsize=4096)
def _zoned_second_ms(text: str, zone: tzinfo) -> int | None:
    """Returns the milliseconds of a second that a clock in `zone` shows."""
    shown_ms = _second_ms(f"{text}Z")
    if shown_ms is None:
        return None
    try:
        offset = datetime.fromisoformat(text[:10] + "T" + text[11:17] + "00").replace(tzinfo=zone).utcoffset()
    except (ValueError, OverflowError):
        return None
    return None if offset is None else shown_ms - round(offset.total_seconds() * 1000)


@lru_cache(maxsize=4096)  # consecutive requests share their second
def _second_ms(text: str) -> int | None:
    match = SECOND.fullmatch(text)
    if match is None:
        return None
    day, clock, second, zone = match.groups()
    return _within(_minute_ms(day, clock, zone or "+00:00"), int(second))


def clf_ms(text: str) -> int | None:
    """Returns the milliseconds of a time in the common log format; None for any other text.

    >>> clf_ms("01/Jan/1970:01:00:01 +0100"), clf_ms("[32/Jan/1970:01:00:01 +0100]")
    (1000, None)
    """
    match = CLF.fullmatch(text)
    if match is None:
        return None
    _, day, month, year, clock, second, hours, minutes = match.groups()
    written = f"{year}-{MONTHS.get(month, '00')}-{day}"
    return _within(_minute_ms(written, clock, f"{hours}:{minutes}"), int(second))


def _within(begin_ms: int | None, second: int) -> int | None:
    if begin_ms is None or second > 60:
        return None
    return begin_ms + (second * 1000 if second < 60 else MINUTE_MS - 1)


@lru_cache(maxsize=4096)
def _minute_ms(day: str, clock: str, zone: str) -> int | None:
    """Returns the start of a minute in local time with the UTC offset `zone`; None if it does not exist."""
    try:
        days = date.fromisoformat(day).toordinal() - EPOCH_DAY
    except ValueError:
        return None
    hour, minute, east_hours, east_minutes = int(clock[:2]), int(clock[3:]), int(zone[1:3]), int(zone[4:])
    if hour > 23 or minute > 59 or east_hours > 23 or east_minutes > 59:
        return None
    east = east_hours * 60 + east_minutes
    return (days * 1440 + hour * 60 + minute + (-east if zone[0] == "+" else east)) * MINUTE_MS
