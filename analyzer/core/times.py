"""When a request happened, as whole milliseconds since 1970 UTC, from each way of writing it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000

# One pinned grammar of RFC 3339: T, t or a blank after the date, any number of places, Z, z or an offset.
RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]++))?"
    r"(?:[Zz]|([+-][0-9]{2}):([0-9]{2}))"
)
# 10/Oct/2000:13:55:36 -0700 as Apache and nginx write it, with or without their brackets.
CLF = re.compile(
    r"(\[)?([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r" ([+-][0-9]{2})([0-9]{2})(?(1)\])"
)
MONTHS = {
    name: f"{n:02}"
    for n, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}


def rfc3339_ms(text: str) -> int | None:
    """Milliseconds, rounded down; None when it is no such time.

    A leap second counts as the last millisecond of its minute.

    >>> rfc3339_ms("1970-01-01T01:00:00.0019+01:00"), rfc3339_ms("1970-01-01T00:00:60Z")
    (1, 59999)
    """
    match = RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, east_hours, east_minutes = match.groups()
    ms = int((fraction or "")[:3].ljust(3, "0"))
    begin_ms = _minute_ms(year, month, day, hour, minute, east_hours or "+00", east_minutes or "00")
    return _within(begin_ms, int(second), ms)


def clf_ms(text: str) -> int | None:
    """Milliseconds of a whole second; None when it is no such time.

    >>> clf_ms("01/Jan/1970:01:00:01 +0100"), clf_ms("[32/Jan/1970:01:00:01 +0100]")
    (1000, None)
    """
    match = CLF.fullmatch(text)
    if match is None:
        return None
    _, day, month, year, hour, minute, second, east_hours, east_minutes = match.groups()
    begin_ms = _minute_ms(year, MONTHS.get(month, "00"), day, hour, minute, east_hours, east_minutes)
    return _within(begin_ms, int(second), 0)


def _within(begin_ms: int | None, second: int, ms: int) -> int | None:
    if begin_ms is None or second > 60:
        return None
    return begin_ms + (second * 1000 + ms if second < 60 else MINUTE_MS - 1)


@lru_cache(maxsize=4096)  # requests that follow each other share their minute
def _minute_ms(
    year: str, month: str, day: str, hour: str, minute: str, east_hours: str, east_minutes: str
) -> int | None:
    """When a minute begins that is shown so many hours and minutes east of UTC; None when there is none."""
    east = timedelta(hours=int(east_hours[1:]), minutes=int(east_minutes))
    if int(east_minutes) > 59:
        return None
    try:
        zone = timezone(east if east_hours[0] == "+" else -east)
        at = datetime(int(year), int(month), int(day), int(hour), int(minute), tzinfo=zone)
        return (at - EPOCH) // MINUTE * MINUTE_MS
    except (ValueError, OverflowError):
        return None
