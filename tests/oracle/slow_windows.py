"""The slow, obvious answer: look at the clock on the wall, one moment after the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from analyzer.core.judging.windows import Calendar, CalendarPeriod, Window

HOUR_S, DAY_S = 3600, 86_400
SET_BACK_S = 3 * HOUR_S  # further than any clock was since 1972

# How often to look, and how far around: further than a window of this kind is long.
LOOK_S = {
    "minute": (1, 120),
    "hour": (60, 2 * HOUR_S),
    "day": (60, 27 * HOUR_S),  # a day may be skipped, so that the one before it has no more than its own
    "week": (900, 9 * DAY_S),
    "month": (900, 33 * DAY_S),
}


def looked_up(calendar: Calendar, at_s: int) -> Window:
    """From when to when the clock shows the same window as at `at_s`."""
    step_s, around_s = LOOK_S[calendar.per]
    first_s = (at_s - around_s) // step_s * step_s - SET_BACK_S
    start_s = until_s = None
    before: Hashable = None
    for moment_s, name in names(calendar, range(first_s, at_s + around_s, step_s)):
        if name != before and moment_s <= at_s:
            start_s = moment_s
        elif name != before:
            until_s = moment_s
            break
        before = name
    assert start_s is not None
    assert until_s is not None
    assert start_s > first_s + SET_BACK_S, "looked too near"
    return Window(start_s, until_s)


def names(calendar: Calendar, moments: range) -> Iterator[tuple[int, Hashable]]:
    """What a person on the spot would call the window at each of these moments."""
    zone = ZoneInfo(calendar.zone)
    latest = date.min
    for moment_s in moments:
        shown = datetime.fromtimestamp(moment_s, zone)
        # A day begins when its date is first shown, and does not end when the clock is set back.
        latest = max(latest, shown.date())
        match calendar.per:
            case "minute":
                yield moment_s, (shown.date(), shown.hour, shown.minute, shown.utcoffset())
            case "hour":
                yield moment_s, (shown.date(), shown.hour, shown.utcoffset())
            case per:
                yield moment_s, period_of(per, latest)


def period_of(per: CalendarPeriod, day: date) -> Hashable:
    if per == "week":
        return day - timedelta(days=day.weekday())
    return (day.year, day.month) if per == "month" else day
