"""Calendar windows: the stretch of time that a moment belongs to, with drawings of clock changes."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from analyzer.plan.meters import QUARTER_S
from analyzer.plan.windows import Calendar, CalendarPeriod, Window, window_at


def at(text: str) -> int:
    """Returns an RFC 3339 time as seconds since 1970."""
    return int(datetime.fromisoformat(text).timestamp())


def shown(per: CalendarPeriod, zone: str, moment: str) -> tuple[str, str, float]:
    """Returns a window's begin and end in local time, and its length in hours."""
    window = window_at(Calendar(per, zone), at(moment))
    start, until = (datetime.fromtimestamp(time_s, ZoneInfo(zone)) for time_s in window)
    return f"{start:%d %H:%M}", f"{until:%d %H:%M}", (window.until_s - window.start_s) / 3600


def test_a_window_contains_its_start_and_not_its_end() -> None:
    day = Window(at("2026-11-21T00:00:00Z"), at("2026-11-22T00:00:00Z"))
    calendar = Calendar("day")
    assert window_at(calendar, day.start_s) == window_at(calendar, day.until_s - 1) == day
    assert window_at(calendar, day.until_s).start_s == day.until_s


@pytest.mark.parametrize(
    ("per", "start", "until"),
    [
        ("minute", "2026-11-21T10:07:00Z", "2026-11-21T10:08:00Z"),
        ("hour", "2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"),
        ("day", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"),
        ("week", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),  # Monday to Monday
        ("month", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    ],
)
def test_windows_in_utc(per: CalendarPeriod, start: str, until: str) -> None:
    assert window_at(Calendar(per), at("2026-11-21T10:07:12Z")) == Window(at(start), at(until))


@pytest.mark.parametrize(
    ("month", "days"), [("2024-02", 29), ("2026-02", 28), ("2026-12", 31), ("2026-04", 30)]
)
def test_a_month_has_the_length_of_the_calendar(month: str, days: int) -> None:
    window = window_at(Calendar("month"), at(f"{month}-17T00:00:00Z"))
    assert window.until_s - window.start_s == days * 86_400
    assert window_at(Calendar("month"), at(f"{month}-01T00:00:00Z")) == window


def test_days_of_23_and_25_hours() -> None:
    #            Berlin   00  01  |03  04  ...  24       00  01  02  02  03 ...  24
    #                             2 is skipped                   2 comes twice
    assert shown("day", "Europe/Berlin", "2026-03-29T12:00:00Z") == ("29 00:00", "30 00:00", 23)
    assert shown("day", "Europe/Berlin", "2026-10-25T12:00:00Z") == ("25 00:00", "26 00:00", 25)
    assert shown("week", "Europe/Berlin", "2026-10-25T12:00:00Z") == ("19 00:00", "26 00:00", 7 * 24 + 1)


def test_an_hour_that_is_shown_twice_is_two_windows() -> None:
    #  UTC      00:00      01:00      02:00
    #             | 02 CEST  |  02 CET  |
    first, second = "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"
    assert shown("hour", "Europe/Berlin", first) == ("25 02:00", "25 02:00", 1)
    assert shown("hour", "Europe/Berlin", second) == ("25 02:00", "25 03:00", 1)


def test_a_clock_change_of_30_minutes_cuts_an_hour() -> None:
    #  Lord Howe   01:00      02:00   01:30   02:00      03:00
    #                |   01     |      | 01 +10:30 |   02  |
    assert shown("hour", "Australia/Lord_Howe", "2026-04-04T14:45:00Z") == ("05 01:00", "05 01:30", 1)
    assert shown("hour", "Australia/Lord_Howe", "2026-04-04T15:15:00Z") == ("05 01:30", "05 02:00", 0.5)
    #               01:00      02:30     03:00
    #                |   01     |   02     |
    assert shown("hour", "Australia/Lord_Howe", "2026-10-03T15:45:00Z") == ("04 02:30", "04 03:00", 0.5)


def test_hours_and_days_begin_in_local_time() -> None:
    assert window_at(Calendar("hour", "Asia/Kolkata"), at("2026-11-21T10:07:00Z")).start_s == at(
        "2026-11-21T09:30:00Z"
    )
    assert window_at(Calendar("day", "Asia/Kathmandu"), at("2026-11-21T10:07:00Z")).start_s == at(
        "2026-11-20T18:15:00Z"
    )


def test_a_day_whose_midnight_is_skipped_begins_at_one() -> None:
    #  Beirut   23:00     |01:00     02:00
    #             | 28 March | 29 March
    assert shown("day", "Asia/Beirut", "2026-03-29T10:00:00Z") == ("29 01:00", "30 00:00", 23)
    assert shown("day", "Asia/Beirut", "2026-03-28T10:00:00Z") == ("28 00:00", "29 01:00", 24)


def test_a_day_whose_midnight_comes_twice_begins_the_first_time() -> None:
    #  Havana   00:00     01:00|00:00     01:00
    #             | 1 November, all of it
    assert shown("day", "America/Havana", "2026-11-01T05:30:00Z") == ("01 00:00", "02 00:00", 25)
    assert shown("day", "America/Havana", "2026-11-01T04:30:00Z") == ("01 00:00", "02 00:00", 25)


def test_a_clock_that_is_set_back_over_midnight_does_not_continue_the_day_before() -> None:
    #  St John's   00:00 00:01|23:01                00:00
    #                | 28 October, though the clock shows the 27th for 59 minutes more
    for moment in ("1990-10-28T02:30:30Z", "1990-10-28T03:00:00Z", "1990-10-28T12:00:00Z"):
        assert shown("day", "America/St_Johns", moment) == ("28 00:00", "29 00:00", 25)
    assert shown("day", "America/St_Johns", "1990-10-28T02:29:59Z") == ("27 00:00", "28 00:00", 24)
    # The hours follow the clock: one minute of hour 0, 59 of hour 23, and another hour 0.
    assert shown("hour", "America/St_Johns", "1990-10-28T02:30:30Z") == ("28 00:00", "27 23:01", 1 / 60)
    assert shown("hour", "America/St_Johns", "1990-10-28T03:00:00Z") == ("27 23:01", "28 00:00", 59 / 60)


def test_a_skipped_day_has_no_window() -> None:
    """Samoa skipped the 30th of December 2011."""
    assert shown("day", "Pacific/Apia", "2011-12-30T09:59:59Z") == ("29 00:00", "31 00:00", 24)
    assert shown("day", "Pacific/Apia", "2011-12-30T10:00:00Z") == ("31 00:00", "01 00:00", 24)
    assert shown("week", "Pacific/Apia", "2011-12-30T10:00:00Z") == ("26 00:00", "02 00:00", 6 * 24)
    assert shown("month", "Pacific/Apia", "2011-12-30T10:00:00Z") == ("01 00:00", "01 00:00", 30 * 24)


def test_every_zones_days_begin_on_a_quarter_of_an_hour() -> None:
    """Otherwise a quarter could belong to two days, and minutes could not be rolled up into quarters."""
    moments = [int(datetime(year, month, 17, tzinfo=UTC).timestamp()) for year in range(2020, 2036, 3)
               for month in range(1, 13)]  # fmt: skip
    off_quarter = {
        zone
        for zone in zoneinfo.available_timezones()
        for moment_s in moments
        if window_at(Calendar("day", zone), moment_s).start_s % QUARTER_S
    }
    assert not off_quarter


def test_an_unknown_zone_is_an_error() -> None:
    with pytest.raises(ZoneInfoNotFoundError):
        window_at(Calendar("day", "Europe/Atlantis"), 0)


@pytest.mark.parametrize("at_s", [-(2**40), 2**40])
def test_beyond_the_calendar_is_an_error(at_s: int) -> None:
    with pytest.raises((OverflowError, ValueError)):
        window_at(Calendar("month", "Europe/Berlin"), at_s)
