"""Windows compared with local time, in zones with unusual clock changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from analyzer.plan.windows import ALWAYS, Calendar, CalendarPeriod, Window, window_at
from tests.oracle.slow_windows import begins_on, slow_window_at
from tests.support.depth import deeper

ZONES = {
    "UTC": [],
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Asia/Kolkata": [],  # 5:30
    "Asia/Kathmandu": ["1985-12-31T18:30"],  # 5:30 until then, and 5:45 since
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],  # half an hour
    "America/St_Johns": ["1990-04-01T03:31", "1990-10-28T02:31"],  # one minute past midnight
    "America/Goose_Bay": ["1988-04-03T04:01", "1988-10-30T02:01"],  # ... and two hours
    "America/Havana": ["2026-03-08T05:00", "2026-11-01T05:00"],  # 00:00 to 01:00, 01:00 to 00:00
    "Asia/Beirut": ["2026-03-28T22:00", "2026-10-24T21:00"],  # midnight is skipped, and comes twice
    "America/Sao_Paulo": ["2018-11-04T03:00", "2018-02-18T02:00"],
    "Africa/Cairo": ["2024-04-25T22:00", "2024-10-31T21:00", "2010-09-09T22:00"],
    "Africa/Casablanca": ["2026-02-15T02:00", "2026-03-22T02:00"],  # set back during Ramadan
    "America/Nuuk": ["2024-03-31T01:00", "2024-10-27T01:00"],
    "Antarctica/Troll": ["2026-03-29T01:00", "2026-10-25T01:00"],  # two hours
    "Asia/Pyongyang": ["2015-08-14T15:00", "2018-05-04T15:00"],  # half an hour, for three years
    "Pacific/Apia": ["2011-12-30T10:00"],  # the 30th of December was skipped
    "Pacific/Kwajalein": ["1993-08-21T12:00"],
    "Pacific/Kiritimati": ["1994-12-31T10:00"],  # no 31st of December, and ...
    "Pacific/Enderbury": ["1994-12-31T11:00"],  # ... no last day of the month, week and year
}
CHANGES = {zone: [datetime.fromisoformat(f"{at}Z") for at in changes] for zone, changes in ZONES.items()}
FIRST_S, LAST_S = (int(datetime(year, 3, 1, tzinfo=UTC).timestamp()) for year in (1980, 2037))


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """Generates a zone and a moment, often near one of its clock changes."""
    zone = draw(st.sampled_from(sorted(ZONES)))
    if CHANGES[zone] and draw(st.booleans()):
        change_s = int(draw(st.sampled_from(CHANGES[zone])).timestamp())
        around_s = draw(st.sampled_from([120, 7200, 90_000, 40 * 86_400]))
        return zone, draw(st.integers(change_s - around_s, change_s + around_s))
    return zone, draw(st.integers(FIRST_S, LAST_S))


@settings(max_examples=deeper(40))
@given(moments(), st.sampled_from(["week", "month", "month"]), st.data())
def test_windows_from_an_anchor_agree_with_local_time(
    moment: tuple[str, int], per: CalendarPeriod, data: st.DataObject
) -> None:
    zone, at_s = moment
    days = st.integers(0, 6) if per == "week" else st.sampled_from([1, 2, 15, 27, 28, 29, 30, 31])
    calendar = Calendar(per, zone, first_day=data.draw(days))
    assert window_at(calendar, at_s) == slow_window_at(calendar, at_s)


@pytest.mark.parametrize(
    "zone", ["Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "America/St_Johns"]
)
@pytest.mark.parametrize("first_day", [28, 29, 30, 31])
@pytest.mark.parametrize("year", [2011, 2024])
def test_a_year_of_months_from_an_anchor_has_no_gap(zone: str, first_day: int, year: int) -> None:
    calendar = Calendar("month", zone, first_day=first_day)
    window = window_at(calendar, int(datetime(year, 1, 10, tzinfo=UTC).timestamp()))
    for _ in range(14):
        began = datetime.fromtimestamp(window.start_s, ZoneInfo(zone))
        assert begins_on(calendar, began.date()) or (zone == "Pacific/Apia" and began.month == 12), began
        for at_s in (window.start_s, (window.start_s + window.until_s) // 2, window.until_s - 1):
            assert window_at(calendar, at_s) == window
        after = window_at(calendar, window.until_s)
        assert after.start_s == window.until_s
        window = after


@pytest.mark.parametrize("first_day", [UNSET, 228, 229, 301, 1231, 101])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana", "Pacific/Apia"])
def test_years_follow_each_other_over_leap_years(first_day: int | UnsetType, zone: str) -> None:
    """From 1995 on: 1996 and 2000 are leap years; Samoa has no 30 December 2011."""
    calendar = Calendar("year", zone, first_day=first_day)
    month, day = (1, 1) if first_day is UNSET else divmod(first_day, 100)
    at_s = int(datetime(1995, 6, 1, tzinfo=UTC).timestamp())
    window = window_at(calendar, at_s)
    for _ in range(20):
        began = datetime.fromtimestamp(window.start_s, ZoneInfo(zone))
        is_leap = began.year % 4 == 0
        wanted = (2, 28) if (month, day) == (2, 29) and not is_leap else (month, day)
        assert (began.month, began.day) == wanted
        days = (window.until_s - window.start_s) / 86_400
        assert 363.9 < days < 366.1
        for inside_s in (window.start_s, (window.start_s + window.until_s) // 2, window.until_s - 1):
            assert window_at(calendar, inside_s) == window
        after = window_at(calendar, window.until_s)
        assert after.start_s == window.until_s
        window = after


# Each takes seconds.
@settings(max_examples=deeper(2), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(moments(), st.sampled_from([UNSET, 229, 301, 1130]))
@example(("Europe/Berlin", 951_782_400), 229)  # 29 February 2000
@example(("Europe/Berlin", 983_318_400), 229)  # 28 February 2001
@example(("Asia/Pyongyang", 1_523_987_698), 229)  # begins at half past an hour in UTC
def test_years_agree_with_local_time(moment: tuple[str, int], first_day: int | UnsetType) -> None:
    zone, at_s = moment
    calendar = Calendar("year", zone, first_day=first_day)
    assert window_at(calendar, at_s) == slow_window_at(calendar, at_s)


@pytest.mark.parametrize("per", ["minute", "hour", "day", "week", "month"])
def test_windows_agree_with_local_time(per: str) -> None:
    @settings(max_examples=deeper({"minute": 30, "hour": 80, "day": 50, "week": 30, "month": 20}[per]))
    @given(moments())
    def compare(moment: tuple[str, int]) -> None:
        zone, at_s = moment
        calendar = Calendar(per, zone)
        assert window_at(calendar, at_s) == slow_window_at(calendar, at_s)

    compare()


@pytest.mark.parametrize("zone", [zone for zone, changes in ZONES.items() if changes])
def test_windows_agree_with_local_time_around_each_clock_change(zone: str) -> None:
    """Also checks that each moment in ZONES is a clock change."""
    for change in CHANGES[zone]:
        change_s = int(change.timestamp())
        before, after = (datetime.fromtimestamp(at_s, ZoneInfo(zone)) for at_s in (change_s - 1, change_s))
        assert before.utcoffset() != after.utcoffset()
        for off_s in (-5400, -3660, -3600, -1801, -61, -60, -1, 0, 59, 60, 1800, 3599, 3600, 7200, 7260):
            for per in ("hour", "day"):
                calendar = Calendar(per, zone)
                assert window_at(calendar, change_s + off_s) == slow_window_at(calendar, change_s + off_s)
        for per in ("week", "month"):
            calendar = Calendar(per, zone)
            assert window_at(calendar, change_s) == slow_window_at(calendar, change_s)
            assert window_at(calendar, change_s - 1) == slow_window_at(calendar, change_s - 1)


@settings(max_examples=deeper(100))
@given(
    moments(), st.sampled_from(["minute", "hour", "day", "week", "month"]), st.floats(0, 1, exclude_max=True)
)
@example(("Pacific/Apia", 1325239200), "day", 0.5)
def test_windows_follow_each_other_without_gap_or_overlap(
    moment: tuple[str, int], per: str, where: float
) -> None:
    zone, at_s = moment
    calendar = Calendar(per, zone)
    window = window_at(calendar, at_s)
    assert window.start_s <= at_s < window.until_s
    assert window_at(calendar, window.until_s).start_s == window.until_s
    assert window_at(calendar, window.start_s - 1).until_s == window.start_s
    inside_s = window.start_s + int(where * (window.until_s - window.start_s))
    assert window_at(calendar, inside_s) == window_at(calendar, window.until_s - 1) == window
    assert window.start_s % (900 if per in {"day", "week", "month"} else 60) == 0


def slow_first_s(zone: str, day: date) -> int:
    """Returns the first minute in which the clocks of a zone show a day, or one behind it."""
    noon_s = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    minutes = range(noon_s - 40 * 3_600, noon_s + 40 * 3_600, 60)
    return next(at_s for at_s in minutes if datetime.fromtimestamp(at_s, ZoneInfo(zone)).date() >= day)


@settings(max_examples=deeper(15))
@given(moments(), st.integers(0, 400), st.integers(1, 400), st.integers(-2, 2))
def test_a_contract_begins_and_ends_when_its_days_are_shown(
    moment: tuple[str, int], days_before: int, days: int, off_s: int
) -> None:
    zone, at_s = moment
    first = datetime.fromtimestamp(at_s, ZoneInfo(zone)).date() - timedelta(days_before)
    last = first + timedelta(days)
    calendar = Calendar("contract", zone, days=(first.isoformat(), last.isoformat()))
    expected = Window(slow_first_s(zone, first), slow_first_s(zone, last))
    assert calendar.contract == expected
    assert Calendar.from_key(*str(calendar).split(" ")) == calendar
    for edge_s in (at_s, expected.start_s + off_s, expected.until_s + off_s):
        window = window_at(calendar, edge_s)
        assert window.start_s <= edge_s < window.until_s
        assert calendar.limits(window) is (expected.start_s <= edge_s < expected.until_s)
        assert (window == expected) is calendar.limits(window)


def test_a_lifetime_is_one_window() -> None:
    assert window_at(Calendar("lifetime"), FIRST_S) == window_at(Calendar("lifetime"), LAST_S) == ALWAYS
