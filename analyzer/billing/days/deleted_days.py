"""Deletes the rows of closed days that are beyond their retention; the days and their digests stay.

mark      verify the digest, store what the chain needs, and an event, in one transaction
delete    rows of marked days, in bounded steps: the triggers permit it for these days alone
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_digest import content_digest
from analyzer.billing.days.day_rows import Day, stored_days
from analyzer.kernel.database import signed_rows
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.bounded_deletes import delete_at, first_keys
from analyzer.kernel.database.chain import require_witnessed
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import NowMs, insert, reading, slow_reading, without_scans, writing
from analyzer.kernel.digest_key import DigestKey
from analyzer.kernel.errors import DayAltered
from analyzer.kernel.jobs.step_sizes import SizedSteps
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    day_positions,
    days,
    deleted_days,
    frozen_counts,
    live_usage,
)

# Where the rows of a day are, and by which column. Corrections stay: they say who and why.
ROWS = (
    (frozen_counts, frozen_counts.c.day),
    (adjustments, adjustments.c.booked),
    (day_positions, day_positions.c.day),
    (live_usage, live_usage.c.day),
)


def is_deleted(db: sa.Connection, day: Day) -> bool:
    """Whether the rows of a closed day are deleted, or being deleted."""
    return db.execute(sa.select(deleted_days.c.day).where(deleted_days.c.day == day.id)).first() is not None


class DeletedBy(NamedTuple):
    """The process that deletes, and the age after which it does."""

    owner: str
    kept_s: int | None  # None: nothing is deleted


class DayDeletion:
    """Deletes the rows of old closed days, in steps. Must not be shared between threads."""

    def __init__(self, engine: sa.Engine, key: DigestKey, by: DeletedBy, steps: SizedSteps) -> None:
        self._engine = engine
        self._key = key
        self._by = by
        self._steps = steps
        self._day: int | None = None  # whose rows are being deleted

    def step(self) -> int:
        """Deletes some rows, and returns their number; 0 when no day is beyond its retention.

        Raises DayAltered if the rows of a day do not have its digest: they are evidence; StoreAway, ChainCut,
        WitnessAway.
        """
        if self._by.kept_s is None:
            return 0
        while True:
            if self._day is None:
                self._day = self._unfinished()
            if self._day is None:
                old = self._next_old(self._by.kept_s)
                if old is None:
                    return 0
                self._mark(old, self._by.kept_s)
                self._day = old.id
            if deleted := self._delete(self._day):
                return deleted
            self._day = None

    def _unfinished(self) -> int | None:
        """Returns a marked day that has rows left."""
        has_rows = [sa.exists().where(column == deleted_days.c.day) for _, column in ROWS]
        statement = sa.select(deleted_days.c.day).where(sa.or_(*has_rows)).limit(1)
        with reading(self._engine) as db:
            without_scans(db)
            number: int | None = db.execute(statement).scalar()
            return number

    def _next_old(self, kept_s: int) -> Day | None:
        marked = sa.exists().where(deleted_days.c.day == days.c.id)
        with reading(self._engine) as db:
            is_old = days.c.end_s < clock_ms(db) // 1000 - kept_s
            old_days = stored_days(db, days.c.state == "closed", is_old, ~marked)
        return min(old_days, key=lambda day: day.begin_s, default=None)

    def _mark(self, day: Day, kept_s: int) -> None:
        require_witnessed(self._engine)
        with slow_reading(self._engine) as db:
            without_scans(db)
            content = content_digest(db, day)
        is_known = day.digest_key == self._key.fingerprint
        if is_known and self._key.chained(content, day.digest_before) != day.digest:
            raise DayAltered(f"{day}: its rows are not those that were closed; nothing of it is deleted")
        with writing(self._engine) as db:
            row = {"day": day.id, "content": content, "at_ms": NowMs()}
            marked = insert(db, deleted_days).values(row).on_conflict_do_nothing()
            new = db.execute(marked.returning(*deleted_days.c)).mappings().first()
            if new is not None:
                signed_rows.sign(db, signed_rows.deletion(new))
                reason = f"its rows are kept for {kept_s // 86_400} days"
                record(db, self._by.owner, "closed day deleted", str(day), reason)

    def _delete(self, day: int) -> int:
        def delete(db: sa.Connection, most: int) -> int:
            deleted = 0
            for table, column in ROWS:
                if deleted < most:
                    keys = first_keys(table, column == day, most - deleted)
                    deletion = delete_at(table, keys).returning(next(iter(table.primary_key)))
                    deleted += len(db.execute(deletion).all())
            return deleted

        return self._steps.run(delete)
