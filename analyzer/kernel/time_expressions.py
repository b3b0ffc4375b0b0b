"""Times as operators write them: dates, moments with a zone, `today`, ages such as `2h`."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo

EPOCH, SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)
CURE = 'write 2026-11-20, 2026-11-20T14:00:00Z, "today", "yesterday", or an age: 30m, 2h, 7d'
AGE = re.compile(r"(\d+) *([smhd])")
MINUTE = re.compile(r"[^T ]+[T ]\d\d:?\d\d(?:Z|[+-].*)")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_second(text: str, now: datetime, zone: tzinfo = UTC) -> int:
    """The first whole second since 1970 at or after the time: the first bucket from there begins in it.

    Days begin at midnight of `zone`, by default UTC, as the buckets do. Raises ValueError with the forms
    that are accepted.

    >>> now = datetime(1970, 1, 3, tzinfo=UTC)
    >>> [parse_second(t, now) for t in ("yesterday", "1970-01-02", "1970-01-01T01:00:00.5+01:00", "12h")]
    [86400, 86400, 1, 129600]
    """
    if text in ("today", "yesterday"):
        day = now.astimezone(zone).date() - timedelta(days=text == "yesterday")
        return _midnight_s(day, zone)
    if age := AGE.fullmatch(text):
        return max(0, _seconds(now) - int(age[1]) * UNITS_S[age[2]])
    try:
        if len(text) == len("2026-11-20"):
            return _midnight_s(date.fromisoformat(text), zone)
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time: {CURE}") from error
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} lacks its time zone: {CURE}")
    return _seconds(moment)


def parse_stretch(text: str, now: datetime, zone: tzinfo = UTC) -> tuple[int, int]:
    """The begin of a time and its exclusive end, in seconds since 1970: as exact as it is written.

    A date is its day, `14:03` its minute, a time with seconds and an age one second. Raises ValueError as
    `parse_second` does.

    >>> now = datetime(1970, 1, 3, tzinfo=UTC)
    >>> [parse_stretch(t, now) for t in ("yesterday", "1970-01-01T00:03Z", "1970-01-01T00:00:07Z", "1d")]
    [(86400, 172800), (180, 240), (7, 8), (86400, 86401)]
    """
    begin_s = parse_second(text, now, zone)
    if text in ("today", "yesterday") or len(text) == len("2026-11-20"):
        day = datetime.fromtimestamp(begin_s, zone).date()
        return begin_s, _midnight_s(day + timedelta(days=1), zone)
    return begin_s, begin_s + (60 if MINUTE.fullmatch(text) else 1)


def _seconds(moment: datetime) -> int:
    return -((EPOCH - moment) // SECOND)  # rounded up, and exact: a float would lose microseconds


def _midnight_s(day: date, zone: tzinfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
