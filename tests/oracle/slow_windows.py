"""Windows found slowly: by the local time at one moment after another."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from datetime import date, datetime, timedelta
from functools import cache
from typing import cast
from zoneinfo import ZoneInfo

from msgspec import UNSET

from analyzer.plan.windows import Calendar, Window

HOUR_S, DAY_S = 3600, 86_400
SET_BACK_S = 3 * HOUR_S  # more than any zone's clock was set back since 1972

# Step, and distance to search on each side: more than the longest window of the kind.
SEARCH_S = {
    "minute": (1, 120),
    "hour": (60, 2 * HOUR_S),
    "day": (60, 27 * HOUR_S),  # a skipped day does not lengthen the one before it
    "week": (900, 9 * DAY_S),
    "month": (900, 33 * DAY_S),
    "year": (900, 368 * DAY_S),
}


def slow_window_at(calendar: Calendar, at_s: int) -> Window:
    """Returns the stretch in which local time stays in the window of `at_s`."""
    step_s, around_s = SEARCH_S[calendar.per]
    first_s = (at_s - around_s) // step_s * step_s - SET_BACK_S
    start_s = until_s = None
    before: Hashable = None
    for moment_s, name in windows_shown(calendar, range(first_s, at_s + around_s, step_s)):
        if name != before and moment_s <= at_s:
            start_s = moment_s
        elif name != before:
            until_s = moment_s
            break
        before = name
    assert start_s is not None
    assert until_s is not None
    assert start_s > first_s + SET_BACK_S, "the search began within the window"
    return Window(start_s, until_s)


def windows_shown(calendar: Calendar, moments: range) -> Iterator[tuple[int, Hashable]]:
    """Yields each moment with a name of its window, by local date and time."""
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
            case _:
                yield moment_s, period_of(calendar, latest)


@cache
def period_of(calendar: Calendar, day: date) -> date:
    """Returns the first day of a period, found by walking back day by day."""
    while not begins_on(calendar, day):
        day -= timedelta(days=1)
    return day


def begins_on(calendar: Calendar, day: date) -> bool:
    """Whether a period begins on a day. A month without the anchor's day begins on its last one."""
    if calendar.per == "day":
        return True
    anchored = calendar.first_day is not UNSET
    if calendar.per == "week":
        return day.weekday() == (calendar.first_day if anchored else 0)
    first_day = cast(int, calendar.first_day) if anchored else 1
    if calendar.per == "year":
        month, first_day = (first_day // 100, first_day % 100) if anchored else (1, 1)
        if day.month != month:
            return False
    is_last = (day + timedelta(days=1)).month != day.month
    return day.day == first_day or (is_last and day.day < first_day)
