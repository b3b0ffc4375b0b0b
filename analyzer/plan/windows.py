"""Windows that policies look at: calendar periods, and rolling windows.

A calendar window is the minute, hour, day, week, month or year that a moment belongs to, in the policy's zone
or in that of the caller. A caller's own weeks, months and years begin on the day of its anchor. A lifetime is
one window without begin and end. A contract begins and ends on stated days; before and after it are windows
in which nothing is limited.
These windows divide time without gap or overlap, across every clock change of the zone: a day begins when its
date is first shown, an hour that a clock change cuts is a shorter window, and an hour that is shown twice is
two windows. A rolling window ends at any moment; `rolling` adds up what is in it.
"""

from __future__ import annotations

from calendar import monthrange
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple, cast
from zoneinfo import ZoneInfo

import msgspec

from analyzer.plan.meters import MINUTE_S, QUARTER_S, WIDTHS_S

HOUR_S = 3600
DAY_S = 86_400
BUCKETS_MIN = 5  # of stored counts in a rolling window, when they stand for its slots
ONE_DAY = timedelta(days=1)

PeriodName = Literal["minute", "hour", "day", "week", "month", "year", "lifetime"]
CalendarPeriod = PeriodName | Literal["contract"]
CallerFact = Literal["anchor", "zone"]
ANCHORED: tuple[CalendarPeriod, ...] = ("week", "month", "year")  # an anchor is a date
NOT_BY_CALLER = msgspec.UNSET
BY_CALLER = "@caller"  # in the keys of windows


class Calendar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows that follow the calendar of a time zone: 23- and 25-hour days, real months."""

    per: CalendarPeriod
    zone: str = "UTC"  # where the zone is that of the caller: of callers without one
    # Facts that each caller states itself; sorted. Absent from the stored plan where it is nothing.
    by_caller: tuple[CallerFact, ...] | msgspec.UnsetType = msgspec.UNSET
    # Of one caller's calendar, which no plan has: the day on which weeks (0 is Monday), months (1 to 31) or
    # years (229 is 29 February) begin. In a month that is too short it is the last one.
    first_day: int | msgspec.UnsetType = msgspec.UNSET
    # Of a contract: its first day, and the day after its last one, as 2026-01-31. Absent otherwise.
    days: tuple[str, str] | msgspec.UnsetType = msgspec.UNSET

    def __str__(self) -> str:
        """The key of these windows in stored totals: "day Europe/Berlin", "month@caller UTC@caller"."""
        if not isinstance(self.days, msgspec.UnsetType):
            return f"{self.per}:{self.days[0]}:{self.days[1]} {self.zone}"
        per, zone = (BY_CALLER if fact in self.facts else "" for fact in ("anchor", "zone"))
        return f"{self.per}{per} {self.zone}{zone}"

    @classmethod
    def from_key(cls, per: str, zone: str) -> Calendar:
        """Returns the windows with this key."""
        period, *days = per.split(":")
        if days:
            first, after = days
            return cls(cast(CalendarPeriod, period), zone, days=(first, after))
        facts: list[CallerFact] = []
        if per.endswith(BY_CALLER):
            facts.append("anchor")
        if zone.endswith(BY_CALLER):
            facts.append("zone")
        calendar_period = cast(CalendarPeriod, per.removesuffix(BY_CALLER))
        return cls(calendar_period, zone.removesuffix(BY_CALLER), tuple(facts) or msgspec.UNSET)

    @property
    def facts(self) -> tuple[CallerFact, ...]:
        """Facts that each caller states itself."""
        return () if isinstance(self.by_caller, msgspec.UnsetType) else self.by_caller

    @property
    def repeats(self) -> bool:
        """Whether its windows begin again and again."""
        return self.per not in ("lifetime", "contract")

    @property
    def contract(self) -> Window | None:
        """The window between the stated days; None of windows that repeat, and of a lifetime."""
        if isinstance(self.days, msgspec.UnsetType):
            return None
        first_s, after_s = (_shown_s(ZoneInfo(self.zone), date.fromisoformat(day)) for day in self.days)
        return Window(first_s, after_s)

    def limits(self, window: Window) -> bool:
        """Whether something is limited in a window: not before and after a contract."""
        return self.per != "contract" or window == self.contract

    @property
    def longest_s(self) -> int:
        """More seconds than any window has, in any zone."""
        if self.per == "lifetime":
            return ALWAYS.until_s
        if (contract := self.contract) is not None:
            return contract.until_s - contract.start_s
        days = {"week": 7, "month": 31, "year": 366}.get(self.per, 1)
        return (days + 1) * DAY_S

    @property
    def shortest_s(self) -> int:
        """Seconds of the shortest window; an hour that a clock change cuts counts as a whole one."""
        if not self.repeats:
            return self.longest_s
        days = {"day": 1, "week": 7, "month": 28, "year": 365}
        return {"minute": 60, "hour": HOUR_S}.get(self.per) or days[self.per] * DAY_S

    @property
    def widest_bucket_s(self) -> int:
        """Seconds of the widest stored buckets of which each lies in one window: days are days in UTC.

        0 of windows that repeat so rarely, or never, that stored counts of them say nothing.
        """
        if not self.repeats:
            return 0
        if self.per == "minute":
            return MINUTE_S
        has_utc_days = self.zone == "UTC" and "zone" not in self.facts and self.per != "hour"
        return DAY_S if has_utc_days else QUARTER_S


@lru_cache
def _slot_s(period_s: int) -> int:
    """Returns `Rolling.slot_s`, which a judgement asks for again and again."""
    unit_s = 1 if period_s <= HOUR_S else 60
    most = min(period_s // unit_s // 12, 900 // unit_s)
    units = period_s // unit_s
    return unit_s * next((n for n in range(most, 0, -1) if units % n == 0), 1)


class Rolling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows of `period_s` seconds that end at any moment, accurate to one slot.

    Of periods up to an hour the slots have separate tables; those of longer ones are added up
    from the buckets.
    """

    period_s: int

    def __str__(self) -> str:
        """The key of these windows in stored totals: "rolling 60"."""
        return f"rolling {self.period_s}"

    @property
    def shortest_s(self) -> int:
        return self.period_s

    @property
    def has_slots(self) -> bool:
        """Whether its slots have separate tables."""
        return self.period_s <= HOUR_S

    @property
    def slot_s(self) -> int:
        """Seconds of a slot: the largest divisor of the period that is at most a twelfth of it.

        At least a second, of periods beyond an hour at least a minute and at most a quarter of an hour.

        >>> [Rolling(period_s).slot_s for period_s in (5, 12, 60, 600, 3600, 7200, 30 * DAY_S)]
        [1, 1, 5, 50, 300, 600, 900]
        """
        return _slot_s(self.period_s)

    @property
    def widest_bucket_s(self) -> int:
        """Seconds of the widest stored buckets that can stand for its slots; 0: all are too wide.

        A window must have five at least, as the shortest windows have slots.

        >>> [Rolling(period_s).widest_bucket_s for period_s in (60, 300, 7200, 5 * DAY_S)]
        [0, 60, 900, 86400]
        """
        fitting = (width_s for width_s in WIDTHS_S if self.period_s >= BUCKETS_MIN * width_s)
        return max(fitting, default=0)


Windows = Calendar | Rolling


class Window(NamedTuple):
    """[start, until), whole seconds since 1970 UTC."""

    start_s: int
    until_s: int


ALWAYS = Window(0, 253_370_764_800)  # of rolling sums, whose totals only grow: until the year 9999


@lru_cache(maxsize=4096)
def is_zone(name: str) -> bool:
    """Whether this machine knows a time zone of this name."""
    # Besides unknown zones: a name that leads out of the zones' folder, and a folder inside it.
    with suppress(KeyError, ValueError, OSError):
        return ZoneInfo(name).key == name
    return False


@lru_cache(maxsize=4096)  # every flush asks for the same few minutes
def window_at(windows: Windows, at_s: int) -> Window:
    """Returns the window of a total that holds `at_s`: of a calendar's period; of a rolling sum ALWAYS.

    Weeks begin on Monday. Raises OverflowError or ValueError before the year 1 and after 9998,
    ZoneInfoNotFoundError for an unknown zone.
    """
    if isinstance(windows, Rolling):
        return ALWAYS
    return _calendar_window_at(windows, at_s)


def _calendar_window_at(calendar: Calendar, at_s: int) -> Window:
    if calendar.per == "lifetime":
        return ALWAYS
    if (contract := calendar.contract) is not None:
        if at_s < contract.start_s:
            return Window(0, contract.start_s)
        return contract if at_s < contract.until_s else Window(contract.until_s, ALWAYS.until_s)
    if calendar.per == "minute":  # the offsets of all zones have been whole minutes since 1972
        return Window(at_s - at_s % 60, at_s - at_s % 60 + 60)
    zone = ZoneInfo(calendar.zone)
    if calendar.per == "hour":
        return _hour_at(zone, at_s)
    return _days_at(zone, calendar, at_s)


def _days_at(zone: ZoneInfo, calendar: Calendar, at_s: int) -> Window:
    first = _first_day(calendar, datetime.fromtimestamp(at_s, zone).date())
    window = Window(_shown_s(zone, first), _shown_s(zone, _next_first_day(calendar, first)))
    # Clocks set back over midnight show yesterday's date once more after today's began.
    while window.until_s <= at_s:
        first = _next_first_day(calendar, first)
        window = Window(window.until_s, _shown_s(zone, _next_first_day(calendar, first)))
    return window


def _first_day(calendar: Calendar, day: date) -> date:
    """Returns the first day of the window that holds a day."""
    match calendar.per:
        case "week":
            first_day = 0 if isinstance(calendar.first_day, msgspec.UnsetType) else calendar.first_day
            return day - timedelta(days=(day.weekday() - first_day) % 7)
        case "month":
            first = _first_of_month(calendar, day)
            return first if first <= day else _first_of_month(calendar, day.replace(day=1) - ONE_DAY)
        case "year":
            first = _first_of_year(calendar, day.year)
            return first if first <= day else _first_of_year(calendar, day.year - 1)
        case _:
            return day


def _next_first_day(calendar: Calendar, first: date) -> date:
    match calendar.per:
        case "week":
            return first + 7 * ONE_DAY
        case "month":
            return _first_of_month(calendar, first.replace(day=1) + 31 * ONE_DAY)
        case "year":
            return _first_of_year(calendar, first.year + 1)
        case _:
            return first + ONE_DAY


def _first_of_month(calendar: Calendar, day: date) -> date:
    """Returns the day of the month of `day` on which a window begins."""
    if isinstance(calendar.first_day, msgspec.UnsetType):
        return day.replace(day=1)
    return day.replace(day=min(calendar.first_day, monthrange(day.year, day.month)[1]))


def _first_of_year(calendar: Calendar, year: int) -> date:
    """Returns the day of a year on which a window begins."""
    first_day = 101 if isinstance(calendar.first_day, msgspec.UnsetType) else calendar.first_day
    month, day = divmod(first_day, 100)
    return date(year, month, min(day, monthrange(year, month)[1]))


def _shown_s(zone: ZoneInfo, day: date) -> int:
    """Returns the moment at which the clocks of `zone` first show `day`.

    If midnight occurs twice, the day begins at the first (fold 0). If midnight is skipped, it is read with
    the offset before the change, which gives the moment of the change.
    """
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


def _hour_at(zone: ZoneInfo, at_s: int) -> Window:
    offset_s = _offset_s(zone, at_s)
    start_s = at_s - (at_s + offset_s) % HOUR_S
    until_s = start_s + HOUR_S
    if _offset_s(zone, start_s) != offset_s:  # Lord Howe Island moves its clocks by 30 minutes
        start_s = _change_s(zone, start_s, at_s)
    if _offset_s(zone, until_s - 1) != offset_s:
        until_s = _change_s(zone, at_s, until_s - 1)
    return Window(start_s, until_s)


def _offset_s(zone: ZoneInfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _change_s(zone: ZoneInfo, before_s: int, after_s: int) -> int:
    """Returns the first second with the offset of `after_s`; the offset changes once in between."""
    new_offset_s = _offset_s(zone, after_s)
    while after_s - before_s > 1:
        middle_s = (before_s + after_s) // 2
        if _offset_s(zone, middle_s) == new_offset_s:
            after_s = middle_s
        else:
            before_s = middle_s
    return after_s
