"""`[retention]`: how long rows are kept, and when daily work begins."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from analyzer.config.tables import ConfigTable
from analyzer.config.values import DAY_S, duration_between, integer_between, whole_seconds
from analyzer.kernel.kept_ages import Retention
from analyzer.kernel.refused_values import quote, raise_fault

TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
FOREVER = "forever"


def _time_of_day(value: object) -> int:
    match = TIME_OF_DAY.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < DAY_S:
        return value  # the default
    if match is None:
        raise_fault(f"must be a time of day in UTC, not {quote(value)}", 'write hours and minutes: "03:10"')
    return (int(match[1]) * 60 + int(match[2])) * 60


def _duration_or_forever(least_s: int, most_s: int) -> BeforeValidator:
    return BeforeValidator(
        lambda value: None if value in (None, FOREVER) else whole_seconds(value, least_s, most_s)
    )


class RetentionTable(ConfigTable):
    # Buckets become wider after this long; each count is in exactly one. Both are longer than the oldest
    # record that is still counted and than the longest window, a month.
    minutes: Annotated[float, duration_between(36 * DAY_S, 3660 * DAY_S)] = 40.0 * DAY_S
    quarters: Annotated[float, duration_between(36 * DAY_S, 36600 * DAY_S)] = 400.0 * DAY_S
    days: Annotated[float, duration_between(36 * DAY_S, 36600 * DAY_S)] = 1830.0 * DAY_S
    # Requests on one day; callers with at most so many become one row when the minutes become quarters.
    fold_requests: Annotated[int, integer_between(0, 1_000)] = 5
    closed_days: Annotated[int | None, _duration_or_forever(62 * DAY_S, 36600 * DAY_S)] = None
    totals: Annotated[float, duration_between(DAY_S, 400 * DAY_S)] = 2.0 * DAY_S
    locks: Annotated[float, duration_between(40 * DAY_S, 3660 * DAY_S)] = 40.0 * DAY_S
    feed: Annotated[float, duration_between(600, 7 * DAY_S)] = 3_600.0
    rejected: Annotated[int, integer_between(1_000, 10_000_000)] = 100_000
    plans: Annotated[float, duration_between(40 * DAY_S, 36600 * DAY_S)] = 400.0 * DAY_S
    events: Annotated[float, duration_between(400 * DAY_S, 36600 * DAY_S)] = 3660.0 * DAY_S
    jobs: Annotated[float, duration_between(DAY_S, 3660 * DAY_S)] = 40.0 * DAY_S
    alerts: Annotated[float, duration_between(DAY_S, 3660 * DAY_S)] = 40.0 * DAY_S
    at: Annotated[int, BeforeValidator(_time_of_day)] = 11_400

    @property
    def kept(self) -> Retention:
        """The ages in whole seconds."""
        return Retention(
            minutes_s=int(self.minutes),
            quarters_s=int(self.quarters),
            days_s=int(self.days),
            fold_requests=self.fold_requests,
            feed_s=int(self.feed),
            locks_s=int(self.locks),
            rejected=self.rejected,
            totals_s=int(self.totals),
            plans_s=int(self.plans),
            closed_days_s=self.closed_days,
            events_s=int(self.events),
            jobs_s=int(self.jobs),
            alerts_s=int(self.alerts),
            at_s=self.at,
        )
