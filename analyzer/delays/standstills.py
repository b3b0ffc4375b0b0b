"""Times in which nothing was counted: the database was away, or no analyzer ran.

A job that runs each minute leaves a row. That of a run which found and did nothing is replaced by the next
one; `watch` keeps both where there was a long time between them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import reading
from analyzer.kernel.tables.job_tables import job_runs

WATCH = "watch-standstills"  # each minute
MINUTE_MS = 60_000
APART_MS = 2 * MINUTE_MS  # runs of it are never further apart while an analyzer works


class Standstill(NamedTuple):
    """The time between two runs of the job."""

    began_ms: int
    ended_ms: int

    def explains(self, lock_ms: int) -> bool:
        """Whether a lock that began then may be late because of it.

        What waited is counted afterwards, and a gate does not learn of a lock from before.
        """
        catching_up_ms = max(MINUTE_MS, self.ended_ms - self.began_ms)
        return self.began_ms - MINUTE_MS <= lock_ms <= self.ended_ms + catching_up_ms

    def __str__(self) -> str:
        began, ended = (f"{instant(ms):%Y-%m-%d %H:%M:%SZ}" for ms in self)
        return f"nothing was counted from {began} to {ended}: the database was away, or no analyzer ran"


def standstills(db: sa.Connection, since_ms: int) -> list[Standstill]:
    """Returns those that ended since then, the first one first."""
    columns = job_runs.c
    statement = sa.select(columns.number, columns.began_ms).where(columns.job == WATCH)
    runs = db.execute(statement.order_by(columns.number)).all()
    return [
        Standstill(earlier.began_ms, later.began_ms)
        for earlier, later in pairwise(runs)
        if later.number == earlier.number + 1
        and later.began_ms - earlier.began_ms > APART_MS
        and later.began_ms >= since_ms
    ]


def watch(engine: sa.Engine) -> Callable[[], int]:
    """Returns what the job calls in each run: it returns 1, once, after a standstill, so that its row stays.

    Raises StoreAway.
    """
    kept: set[Standstill] = set()

    def new() -> int:
        with reading(engine) as db:
            newest = set(standstills(db, 0)[-1:])
        added = newest - kept
        kept.clear()
        kept.update(newest)
        return len(added)

    return new
