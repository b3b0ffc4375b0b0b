"""Policies as values: what a caller may use in a window, and what happens beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatekeeper.model import Rate

CalendarPeriod = Literal["minute", "hour", "day", "week", "month"]


@dataclass(frozen=True, slots=True)
class Calendar:
    """A window that follows the calendar of one time zone: 23- and 25-hour days, real months."""

    per: CalendarPeriod
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `limit` of a meter for each series and window; then the gate closes till the window ends."""

    name: str
    limit: int
    window: Calendar
    meter: str = "requests"
    per: Literal["caller", "caller+resource"] = "caller"
    action: Literal["deny", "slow", "tag"] = "deny"
    status: int = 429
    on_stale: Literal["keep", "allow"] = "keep"
    slow: Rate | None = None  # what each gate lets through, where the action is "slow"


Policy = Quota
