"""What one analyzer at a time does now and then: end locks, keep every table bounded."""

from __future__ import annotations

from collections.abc import Callable, Collection

import sqlalchemy as sa

from analyzer.core.counting.meters import DAY_S, MINUTE_S, QUARTER_S, Meter, bucket_start_s
from analyzer.core.judging.judge import ended
from analyzer.core.model import CountRow
from analyzer.store.database.clock import clock_ms, instant
from analyzer.store.database.engine import NowMs, insert, writing
from analyzer.store.database.schema import buckets, gates, leases, rejects, totals
from analyzer.store.reports.gate_reports import gone
from analyzer.store.transaction import lock_feed
from analyzer.store.transaction.sql_store import SqlFlush
from gatekeeper.model import Change

LEASE_MS = 5_000
DELETED_MAX = 10_000  # rows in one transaction
REJECTS_KEPT = 100_000  # the newest; the ledger keeps the count of all
CHANGES_KEPT_MS = 3_600_000  # of the feed; a gate that was away for longer gets a snapshot
TOTALS_KEPT_MS = 2 * DAY_S * 1000  # after their window ended: nothing judges them then


class SqlUpkeep:
    """The warden's hands. Every method is one transaction, safe to repeat and safe beside another warden
    that does not know yet that it lost the lease. All raise StoreAway."""

    def __init__(self, engine: sa.Engine, owner: str, random_mark: Callable[[], str]) -> None:
        self._engine = engine
        self._owner = owner
        self._random_mark = random_mark

    def hold(self, name: str) -> bool:
        """Whether the lease `name` is ours for the next five seconds, by the database's clock."""
        with writing(self._engine) as db:
            lease = insert(db, leases).values(name=name, holder=self._owner, until_ms=NowMs() + LEASE_MS)
            ours = lease.on_conflict_do_update(
                index_elements=leases.primary_key,
                set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
                where=sa.or_(leases.c.holder == self._owner, leases.c.until_ms < NowMs()),
            )
            return db.execute(ours.returning(leases.c.name)).first() is not None

    def release(self, name: str) -> None:
        """Let somebody else have the lease at once; nothing when it is not ours."""
        with writing(self._engine) as db:
            db.execute(sa.delete(leases).where(leases.c.name == name, leases.c.holder == self._owner))

    def end_locks(self) -> list[Change]:
        """Open the gates whose time is over; what was changed."""
        with writing(self._engine) as db:
            now_ms = clock_ms(db)
            changes = ended(lock_feed.due(db, now_ms), instant(now_ms))
            if changes:
                lock_feed.publish(db, changes, self._random_mark())
            return changes

    def prune(self) -> int:
        """Forget what nobody will ask for: totals of past windows, the oldest rejected records beyond a
        bound, old changes of the feed, gates that are gone; how many rows went. Call again until it returns
        0."""
        with writing(self._engine) as db:
            now_ms = clock_ms(db)
            over = totals.c.until_s < (now_ms - TOTALS_KEPT_MS) // 1000
            newest = sa.select(rejects.c.at_ms).order_by(rejects.c.at_ms.desc())
            beyond = rejects.c.at_ms <= newest.offset(REJECTS_KEPT).limit(1).scalar_subquery()
            went = sum(
                _delete(db, *rows) for rows in ((totals, over), (rejects, beyond), (gates, gone(now_ms)))
            )
            return went + lock_feed.prune(db, now_ms - CHANGES_KEPT_MS, DELETED_MAX)

    def roll_up(self, meters: Collection[Meter], minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Join old minutes into quarters of an hour, and old quarters into days of UTC; how many rows went.

        Each count stays in exactly one row. Call again until it returns 0.
        """
        return self._join(meters, MINUTE_S, QUARTER_S, minutes_kept_s) + self._join(
            meters, QUARTER_S, DAY_S, quarters_kept_s
        )

    def _join(self, meters: Collection[Meter], narrow_s: int, wide_s: int, kept_s: int) -> int:
        with writing(self._engine) as db:
            now_s = clock_ms(db) // 1000
            old = sa.and_(
                buckets.c.meter.in_([meter.name for meter in meters]),  # how others join is not known
                buckets.c.width_s == narrow_s,
                buckets.c.bucket_s < bucket_start_s(now_s - kept_s, wide_s),
            )
            deleted = db.execute(delete_in_order(buckets, old).returning(*buckets.c))
            gone = [CountRow(**row._mapping) for row in deleted]
            wide = widen(gone, wide_s, {meter.name for meter in meters if meter.join == "max"})
            SqlFlush(db, self._owner, self._random_mark).add_counts(wide, meters)
            return len(gone)


def delete_in_order(table: sa.Table, condition: sa.ColumnElement[bool]) -> sa.Delete:
    """Delete a bounded number of rows, in the order in which flushes lock them; rows that a flush holds just
    now are left for the next time, so that neither waits for the other."""
    key = list(table.primary_key.columns)
    found = sa.select(*key).where(condition).order_by(*key).limit(DELETED_MAX)
    # Found once, in a CTE: as a subquery PostgreSQL may run it once for each row that it looks at, and each
    # time find others.
    once = found.with_for_update(skip_locked=True).cte("found")
    return sa.delete(table).where(sa.tuple_(*key).in_(sa.select(*once.c)))


def _delete(db: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    """How many rows went. Counted here: SQLite's driver has no number for a DELETE that begins with WITH."""
    return len(db.execute(delete_in_order(table, condition).returning(next(iter(table.primary_key)))).all())


def widen(rows: Collection[CountRow], width_s: int, largest: Collection[str]) -> list[CountRow]:
    """The same counts in buckets of `width_s`, sorted; meters in `largest` keep their maximum."""
    joined: dict[tuple[str, str, str, str, int], tuple[int, int]] = {}
    for row in rows:
        at = (row.grouping, row.meter, row.key, row.resource, bucket_start_s(row.bucket_s, width_s))
        value, denied = joined.get(at, (0, 0))
        if row.meter in largest:
            joined[at] = max(value, row.value), max(denied, row.denied)
        else:
            joined[at] = value + row.value, denied + row.denied
    return sorted(
        CountRow(grouping, key, resource, meter, width_s, bucket_s, value, denied)
        for (grouping, meter, key, resource, bucket_s), (value, denied) in joined.items()
    )
