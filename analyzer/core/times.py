"""When a request happened, as whole milliseconds since 1970 UTC, from each way of writing it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

# One pinned grammar of RFC 3339: T, t or a blank after the date, any number of places, Z, z or an offset.
RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
# [10/Oct/2000:13:55:36 -0700], as Apache and nginx write it.
CLF = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
MONTHS = {
    name: n
    for n, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}


def rfc3339_ms(text: str) -> int | None:
    """Milliseconds, rounded down; None when it is no such time. A leap second is the millisecond before.

    >>> rfc3339_ms("1970-01-01T01:00:00.0019+01:00"), rfc3339_ms("1970-01-01T00:00:60Z")
    (1, 59999)
    """
    match = RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, off_hour, off_minute = match.groups()
    ms = int((fraction or "0")[:3].ljust(3, "0"))
    return _ms(
        int(year),
        int(month),
        int(day),
        int(hour),
        int(minute),
        int(second),
        ms,
        _offset(sign, off_hour, off_minute),
    )


def clf_ms(text: str) -> int | None:
    """Milliseconds of a whole second; None when it is no such time.

    >>> clf_ms("01/Jan/1970:01:00:01 +0100"), clf_ms("32/Jan/1970:01:00:01 +0100")
    (1000, None)
    """
    match = CLF.fullmatch(text)
    if match is None or match[2] not in MONTHS:
        return None
    day, month, year, hour, minute, second, sign, off_hour, off_minute = match.groups()
    return _ms(
        int(year),
        MONTHS[month],
        int(day),
        int(hour),
        int(minute),
        int(second),
        0,
        _offset(sign, off_hour, off_minute),
    )


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> int | None:
    """Minutes east of UTC; None when no place is that far."""
    if sign is None or hours is None or minutes is None:
        return 0
    if int(hours) > 23 or int(minutes) > 59:
        return None
    east = int(hours) * 60 + int(minutes)
    return east if sign == "+" else -east


def _ms(
    year: int, month: int, day: int, hour: int, minute: int, second: int, ms: int, offset: int | None
) -> int | None:
    if second == 60:
        second, ms = 59, 999
    if offset is None:
        return None
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=timezone(timedelta(minutes=offset)))
        return (at - EPOCH) // MILLISECOND + ms
    except (ValueError, OverflowError):
        return None
