"""Refills: what totals of callers lack after their zone or anchor has changed, added once from the buckets.

The change deletes the caller's totals of open windows; from then on flushes add up the caller's new windows.
In any later snapshot, the buckets of a window less its total are what was counted before the change: flushes
add equal amounts to both. So the buckets are read beside flushes, and only the addition keeps them out. The
row in `refills` is deleted by the transaction that adds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.judging.activation_steps import widths_s
from analyzer.judging.caller_limits import Limits, Subject
from analyzer.judging.plan_sums import plan_sums
from analyzer.judging.sql.stored_values import AHEAD_S
from analyzer.judging.sql.totals import join_used
from analyzer.judging.totals import BucketPosition, is_by_caller, is_judged
from analyzer.kernel.database.dialects import DIALECTS
from analyzer.kernel.database.row_parameters import ColumnValues, is_among, upsert_columns
from analyzer.kernel.tables.schema import TOTAL_MAX, buckets, postponed, refills, totals
from analyzer.plan.catalog import Catalog
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import MINUTE_S
from analyzer.plan.plan import Plan
from analyzer.plan.sums import Sum, lock_order
from analyzer.plan.windows import Window

MINUTES_MAX = 100_000  # looked up in one snapshot, which takes up to a second


class Refill(NamedTuple):
    """A total that waits for what the buckets have from before a change."""

    sum: Sum
    key: str
    window: Window
    version: int


class Missing(NamedTuple):
    """Amounts that a total lacks, by resource."""

    refill: Refill
    values: dict[str, int]


def times_ahead(now_s: int) -> Sequence[int]:
    """Returns the present, and the times that a clock which is ahead may have logged."""
    return range(now_s, now_s + AHEAD_S, MINUTE_S)


def begin(
    db: sa.Connection,
    plan: Plan,
    catalog: Catalog,
    limits: tuple[Limits, Limits],
    subjects: Collection[Subject],
    version: int,
    now_s: int,
) -> set[tuple[str, str]]:
    """Deletes the totals of callers and tenants whose windows have changed, and notes what must be refilled.

    `limits` are those before and after the change, whose version of the directory is `version`. Returns the
    keys of their series with the names of the policies, which are judged when the refill is done. The
    transaction holds the lock of an activation.
    """
    changed: set[tuple[str, str]] = set()
    earlier, later = limits
    dialect, times = db.dialect.name, times_ahead(now_s)
    for sum_, policies in plan_sums(plan).policies_by_sum.items():
        if not is_by_caller(sum_):
            continue
        moved = sorted(
            caller
            for kind, caller in subjects
            if (kind == "caller") == parse_grouping(sum_.grouping).is_of_callers
            and earlier.calendar_for(sum_, caller) != later.calendar_for(sum_, caller)
        )
        if not moved:
            continue
        starts = {
            (caller, own.series_window(sum_, caller, at_s).start_s)
            for own in limits
            for caller in moved
            for at_s in times
        }
        number, windows_s = catalog.sum_number(sum_), sorted({start_s for _, start_s in starts})
        for table in (totals, postponed):
            open_ = sa.and_(
                table.c.sum == number,
                is_among(dialect, table.c.window_s, windows_s),
                is_among(dialect, table.c.key, moved),
            )
            db.execute(sa.delete(table).where(open_))
        replaced = sa.and_(refills.c.sum == number, is_among(dialect, refills.c.key, moved))
        db.execute(sa.delete(refills).where(replaced))
        new = {
            (caller, later.series_window(sum_, caller, at_s).start_s) for caller in moved for at_s in times
        }
        rows = [
            {"sum": number, "key": caller, "window_s": start_s, "version": version}
            for caller, start_s in sorted(new)
        ]
        db.execute(sa.insert(refills), rows)
        changed |= {(policy.name, caller) for policy in policies for caller in moved}
    return changed


def waiting(db: sa.Connection, keys: Collection[str] | None = None) -> list[sa.Row[Any]]:
    """Returns rows of `refills` up to a bound, of all callers or of these."""
    statement = sa.select(refills).where(refills.c.key > "")  # so that SQLite does not scan: every key
    if keys is not None:
        statement = statement.where(is_among(db.dialect.name, refills.c.key, sorted(keys)))
    return list(db.execute(statement.order_by(*refills.primary_key).limit(1_000)))


def missing(
    db: sa.Connection, catalog: Catalog, refill: Refill, filled_to: BucketPosition | None, now_s: int
) -> Missing:
    """Returns what a total lacks in this snapshot; `filled_to` is the position of a sum being filled."""
    grouping = parse_grouping(refill.sum.grouping)
    rows = _rows(db, catalog, refill, now_s)
    counted: dict[str, int] = {}
    join = refill.sum.joined
    for bucket_s, resource, value in rows:
        if not value or not is_judged(grouping, refill.key, resource):
            continue
        if filled_to is None or (bucket_s, refill.key, resource) < filled_to:
            counted[resource] = join.merge(counted.get(resource, 0), value)
    of_total = sa.and_(
        totals.c.sum == catalog.sum_number(refill.sum),
        totals.c.window_s == refill.window.start_s,
        totals.c.key == refill.key,
    )
    for resource, used in db.execute(sa.select(totals.c.resource, totals.c.used).where(of_total)).all():
        if join.adds_up and resource in counted:
            counted[resource] -= used
    return Missing(refill, {resource: value for resource, value in counted.items() if value > 0})


def _rows(db: sa.Connection, catalog: Catalog, refill: Refill, now_s: int) -> Iterator[Any]:
    """Yields the buckets of a refill's window. Each count is in one row of the snapshot, of one width."""
    meter, grouping = catalog.meters[refill.sum.meter], catalog.groupings[refill.sum.grouping]
    for width_s in widths_s(refill.sum):
        of_width = (
            buckets.c.grouping == grouping,
            buckets.c.page == meter.page,
            buckets.c.width_s == width_s,
        )
        oldest = sa.select(buckets.c.bucket_s).where(*of_width).order_by(buckets.c.bucket_s).limit(1)
        oldest_s = db.execute(oldest).scalar()
        if oldest_s is None:
            continue
        yield from db.execute(
            _buckets_at(db.dialect.name, meter.place, width_s),
            {
                "grouping": grouping,
                "page": meter.page,
                "key": refill.key,
                # Not before the first bucket: each time is looked up, and a year has half a million minutes.
                "from_s": max(refill.window.start_s, oldest_s),
                "until_s": _until_s(refill, now_s) - 1,
            },
        )


def minutes(refill: Refill, now_s: int) -> int:
    """Returns how many minutes are looked up for a refill, at most."""
    return (_until_s(refill, now_s) - refill.window.start_s) // MINUTE_S


def _until_s(refill: Refill, now_s: int) -> int:
    return min(refill.window.until_s, now_s + AHEAD_S)


def add(
    db: sa.Connection, catalog: Catalog, limits: Limits, version: int, lacking: Sequence[Missing]
) -> Iterator[Refill]:
    """Adds what totals lack, and yields those refills that were not done or replaced in the meantime.

    `version` is that of the plan and the directory, see `DirectoryVersion.judged_by`. The transaction holds
    the lock of an activation.
    """
    for refill, values in sorted(lacking, key=_order):
        number = catalog.sum_number(refill.sum)
        is_same = sa.and_(
            refills.c.sum == number,
            refills.c.key == refill.key,
            refills.c.window_s == refill.window.start_s,
            refills.c.version == refill.version,
        )
        if not db.execute(sa.delete(refills).where(is_same)).rowcount:
            continue
        if values:
            resources = sorted(values)
            grown: dict[str, ColumnValues] = {
                "sum": number,
                "window_s": refill.window.start_s,
                "key": refill.key,
                "resource": resources,
                "used": [min(values[resource], TOTAL_MAX) for resource in resources],
                "next": limits.first_judgements(refill.sum, [refill.key]),
                "plan": version,
            }
            upsert_columns(db, totals, grown, join_used(refill.sum.join))
        yield refill


def _order(lack: Missing) -> tuple[Any, ...]:
    return (*lock_order(lack.refill.sum), lack.refill.window.start_s, lack.refill.key)


@lru_cache
def _buckets_at(dialect: str, place: int, width_s: int) -> sa.Select[Any]:
    """Returns a query that looks up each bucket of a key: the key of `buckets` begins with the time."""
    from_s, until_s = (sa.bindparam(name, type_=sa.BigInteger) for name in ("from_s", "until_s"))
    times = DIALECTS[dialect].series(from_s, until_s, width_s)
    value = buckets.c[f"value_{place}"]
    of_bucket = (
        sa.select(buckets.c.bucket_s, buckets.c.resource, value.label("value"))
        .where(
            buckets.c.grouping == sa.bindparam("grouping"),
            buckets.c.page == sa.bindparam("page"),
            buckets.c.width_s == width_s,
            buckets.c.bucket_s == times.c.at_s,
            buckets.c.key == sa.bindparam("key"),
        )
        .correlate(times)
    )
    if DIALECTS[dialect].has_lateral:
        # The offset keeps it a subquery that is run for each minute: as a join it may become a scan.
        lookup = of_bucket.offset(0).lateral("lookup")
        return sa.select(lookup.c.bucket_s, lookup.c.resource, lookup.c.value).select_from(
            sa.join(times, lookup, sa.true())
        )
    conditions = of_bucket.whereclause
    assert conditions is not None  # noqa: S101 - as written above
    return sa.select(buckets.c.bucket_s, buckets.c.resource, value.label("value")).select_from(
        sa.join(times, buckets, conditions)
    )
