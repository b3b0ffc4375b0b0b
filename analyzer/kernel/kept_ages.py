"""Ages and numbers of rows that are kept."""

from __future__ import annotations

from typing import NamedTuple

DAY_S = 86_400


class Retention(NamedTuple):
    """Ages in seconds after which rows are deleted or joined, and numbers of rows; see `[retention]`."""

    minutes_s: int = 40 * DAY_S  # buckets; longer than the age at which a record is too late to be counted
    quarters_s: int = 400 * DAY_S
    days_s: int = 1_830 * DAY_S
    fold_requests: int = 5
    feed_s: int = 3_600  # a gate that was away for longer gets a snapshot
    locks_s: int = 40 * DAY_S  # longer than a record may be late
    rejected: int = 100_000  # the newest; the ledger has the number of all
    totals_s: int = 2 * DAY_S  # after the end of their window, when they are never judged again
    plans_s: int = 400 * DAY_S  # after they were replaced
    closed_days_s: int | None = None  # None: forever
    events_s: int = 3_660 * DAY_S
    jobs_s: int = 40 * DAY_S
    alerts_s: int = 40 * DAY_S  # messages, after their end
    at_s: int = 11_400  # after midnight UTC: the beginning of the daily jobs
