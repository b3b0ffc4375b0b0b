"""Work that one analyzer at a time does for all: ending locks, and keeping every table bounded."""

from __future__ import annotations

from collections.abc import Callable, Collection

import sqlalchemy as sa

from analyzer.core.counting.meters import (
    DAY_S,
    JOINS,
    MINUTE_S,
    QUARTER_S,
    Meter,
    bucket_start_s,
    joins_of,
)
from analyzer.core.judging.judge import lapsed
from analyzer.core.model import CountRow
from analyzer.store.database.clock import clock_ms, instant
from analyzer.store.database.engine import NowMs, insert, writing
from analyzer.store.database.schema import buckets, gates, leases, rejects, totals
from analyzer.store.reports.gate_reports import expired
from analyzer.store.transaction import lock_feed
from analyzer.store.transaction.buckets import add_rows
from gatekeeper.model import Change

LEASE_MS = 5_000
DELETED_MAX = 10_000  # rows in one transaction
REJECTS_KEPT = 100_000  # the newest; the ledger keeps the count of all
CHANGES_KEPT_MS = 3_600_000  # of the feed; a gate that was away for longer gets a snapshot
TOTALS_KEPT_MS = 2 * DAY_S * 1000  # after the end of their window, when they are never judged again


class SqlUpkeep:
    """Implements `Upkeep`. Every method is idempotent, and safe while a second warden runs.

    Two wardens run for a moment when another one takes the lease. All methods raise StoreAway.
    """

    def __init__(self, engine: sa.Engine, owner: str, random_mark: Callable[[], str]) -> None:
        self._engine = engine
        self._owner = owner
        self._random_mark = random_mark

    def hold(self, name: str) -> bool:
        """Takes or extends the lease `name` for five seconds; returns whether we hold it."""
        with writing(self._engine) as db:
            lease = insert(db, leases).values(name=name, holder=self._owner, until_ms=NowMs() + LEASE_MS)
            taken = lease.on_conflict_do_update(
                index_elements=leases.primary_key,
                set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
                where=sa.or_(leases.c.holder == self._owner, leases.c.until_ms < NowMs()),
            )
            return db.execute(taken.returning(leases.c.name)).first() is not None

    def release(self, name: str) -> None:
        """Gives the lease up, so that another analyzer can take it at once."""
        with writing(self._engine) as db:
            db.execute(sa.delete(leases).where(leases.c.name == name, leases.c.holder == self._owner))

    def end_locks(self) -> list[Change]:
        """Clears the locks whose time is over; returns the changes."""
        with writing(self._engine) as db:
            now_ms = clock_ms(db)
            changes = lapsed(lock_feed.due(db, now_ms), instant(now_ms))
            if changes:
                lock_feed.publish(db, changes, self._random_mark())
            return changes

    def prune(self) -> int:
        """Deletes what is beyond its retention, up to a bound; returns the number of rows.

        These are totals of past windows, the oldest rejected records, old changes of the feed, and gates that
        stopped reporting. Call again until it returns 0.
        """
        with writing(self._engine) as db:
            now_ms = clock_ms(db)
            past = totals.c.until_s < (now_ms - TOTALS_KEPT_MS) // 1000
            newest = sa.select(rejects.c.at_ms).order_by(rejects.c.at_ms.desc())
            beyond = rejects.c.at_ms <= newest.offset(REJECTS_KEPT).limit(1).scalar_subquery()
            deleted = sum(
                _delete(db, *rows) for rows in ((totals, past), (rejects, beyond), (gates, expired(now_ms)))
            )
            return deleted + lock_feed.prune(db, now_ms - CHANGES_KEPT_MS, DELETED_MAX)

    def roll_up(self, meters: Collection[Meter], minutes_kept_s: int, quarters_kept_s: int) -> int:
        """Joins old minutes into quarters of an hour, and old quarters into days; returns the rows deleted.

        Each count stays in exactly one row. Call again until it returns 0.
        """
        return self._widen(meters, MINUTE_S, QUARTER_S, minutes_kept_s) + self._widen(
            meters, QUARTER_S, DAY_S, quarters_kept_s
        )

    def _widen(self, meters: Collection[Meter], narrow_s: int, wide_s: int, kept_s: int) -> int:
        joins = joins_of(list(meters))
        with writing(self._engine) as db:
            now_s = clock_ms(db) // 1000
            old = sa.and_(
                buckets.c.meter.in_(list(joins)),  # the join of other meters is unknown
                buckets.c.width_s == narrow_s,
                buckets.c.bucket_s < bucket_start_s(now_s - kept_s, wide_s),
            )
            deleted = db.execute(delete_in_order(buckets, old).returning(*buckets.c))
            rows = [CountRow(**row._mapping) for row in deleted]
            add_rows(db, widened(rows, wide_s, joins), joins)
            return len(rows)


def delete_in_order(table: sa.Table, condition: sa.ColumnElement[bool]) -> sa.Delete:
    """Returns a DELETE of a bounded number of rows, in the order in which flushes lock them.

    Rows that a flush holds at the moment are skipped, so that neither waits for the other.
    """
    key = list(table.primary_key.columns)
    found = sa.select(*key).where(condition).order_by(*key).limit(DELETED_MAX)
    # A CTE is evaluated once; PostgreSQL may evaluate a subquery per row, and find other rows each time.
    once = found.with_for_update(skip_locked=True).cte("found")
    return sa.delete(table).where(sa.tuple_(*key).in_(sa.select(*once.c)))


def _delete(db: sa.Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    """Deletes rows and returns their number; SQLite's driver has no row count for a DELETE after WITH."""
    return len(db.execute(delete_in_order(table, condition).returning(next(iter(table.primary_key)))).all())


def widened(rows: Collection[CountRow], width_s: int, joins: dict[str, str]) -> list[CountRow]:
    """Returns the counts in buckets of `width_s`, sorted, each meter joined in its own way."""
    joined: dict[tuple[str, str, str, str, int], tuple[int, int]] = {}
    for row in rows:
        key = (row.grouping, row.meter, row.key, row.resource, bucket_start_s(row.bucket_s, width_s))
        merge = JOINS[joins[row.meter]].merge
        before = joined.get(key)
        added = row.value, row.denied
        joined[key] = added if before is None else (merge(before[0], added[0]), merge(before[1], added[1]))
    return sorted(
        CountRow(grouping, key, resource, meter, width_s, bucket_s, value, denied)
        for (grouping, meter, key, resource, bucket_s), (value, denied) in joined.items()
    )
