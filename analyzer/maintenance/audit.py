"""The audit: ledgers, buckets, totals and locks compared with each other in one snapshot.

Each comparison is a statement that the database works through, a day, a pair of groupings or a sum at a time;
only differences come back, and no more than `SHOWN_MAX` of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import AUDITED
from analyzer.counting.counter.caller_budget import OVERFLOW
from analyzer.counting.gaps import RecordedGap, recounted_offsets, skipped_gaps, skipped_offsets
from analyzer.counting.grouping_differences import GroupingDifference, comparisons, differing_groupings
from analyzer.judging.sql import plans
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import NowMs, insert, slow_reading, without_scans, writing
from analyzer.kernel.errors import CountsDiffer
from analyzer.kernel.tables.schema import buckets, day_counts, offsets, proofs
from analyzer.kernel.tables.schema import plans as plans_table
from analyzer.maintenance.lock_differences import LockDifference, differing_locks
from analyzer.maintenance.total_differences import OpenSum, TotalDifference, differing_totals, open_sums
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.meters import DAY_S, DUPLICATES, REQUESTS, UNRECORDED, WIDTHS_S

SHOWN_MAX = 10  # differences of each kind


class PartitionLedger(NamedTuple):
    """Outcome of all records of one partition: seen = counted + duplicate + dead + late."""

    cluster: str
    topic_id: str
    partition: int
    source: str
    topic: str
    next: int
    seen: int
    counted: int
    duplicate: int
    dead: int
    late: int
    skipped: int = 0  # offsets that an operator let the partition skip
    begin: int = 0  # where counting began
    renamed: int = 0  # of those counted: under another name of the request, because its own was unusable
    recounted: int = 0  # offsets that were counted, cut off the log, and given to other records

    @property
    def holes(self) -> int:
        """Offsets from the beginning to `next` without a record that was seen.

        In Kafka these are markers of transactions, aborted records and what compaction has deleted. Negative
        when more records were seen than there can be. Offsets of a file are bytes: a record has many.
        """
        return self.next - self.begin + self.recounted - self.skipped - self.seen

    @property
    def equal(self) -> bool:
        return self.seen == self.counted + self.duplicate + self.dead + self.late and self.holes >= 0


class Audit(NamedTuple):
    """Ledgers of all partitions, and the sums that must equal them."""

    partitions: list[PartitionLedger]
    buckets: int  # records of requests admitted and denied, over all callers and all time
    overflow: int = 0  # of these: counted in the overflow series, in the days that were read
    skipped: Sequence[RecordedGap] = ()  # the gaps that contain the skipped offsets
    differing: Sequence[DayDifference] = ()  # days whose buckets differ from what was counted
    days_read: int = 0
    days_proved: int = 0  # not read again: nothing was counted in them since they were found equal
    days_deleted: int = 0  # not read: their buckets were deleted after their retention
    groupings: Sequence[GroupingDifference] = ()  # groupings that do not add up to each other
    totals: Sequence[tuple[OpenSum, TotalDifference]] = ()  # totals of open windows, and their buckets
    totals_compared: int = 0  # sums
    locks: Sequence[LockDifference] = ()  # locks and what the totals judge
    # Of the meter of duplicates; None where nothing has ids, or not all days were read.
    duplicates_in_buckets: int | None = None

    @property
    def duplicate(self) -> int:
        return sum(ledger.duplicate for ledger in self.partitions)

    @property
    def counted(self) -> int:
        return sum(ledger.counted for ledger in self.partitions)

    @property
    def equal(self) -> bool:
        return (
            self.buckets == self.counted
            and self.duplicates_in_buckets in (None, self.duplicate)
            and not (self.differing or self.groupings or self.totals or self.locks)
            and all(ledger.equal for ledger in self.partitions)
        )


class DayDifference(NamedTuple):
    """A UTC day whose buckets do not hold what was counted."""

    day_s: int
    counted: int
    in_buckets: int


class CountedDay(NamedTuple):
    """Records counted in one UTC day, now and when its buckets were last found equal."""

    day_s: int
    records: int
    proved: int | None
    is_deleted: bool


def audit(engine: sa.Engine, *, every_day: bool = False) -> Audit:
    """Returns ledgers and buckets from one snapshot: a concurrent flush is in both or in neither.

    Reads the buckets of the days in which something was counted since they were last found equal, or with
    `every_day` of all. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        ledgers = _ledgers(db)
        numbers = catalog.load(db)
        days = counted_days(db)
        to_read = [day for day in days if not day.is_deleted and (every_day or day.proved != day.records)]
        read = {day: records_in_buckets(db, numbers, day.day_s) for day in to_read}
        differing = [
            DayDifference(day.day_s, day.records, records)
            for day, (records, _) in read.items()
            if records != day.records
        ]
        in_days = sum(read[day][0] if day in read else day.records for day in days)
        groupings, totals, compared, locks = _judged(db, numbers, [day.day_s for day in to_read])
        return Audit(
            ledgers,
            in_days,
            sum(overflow for _, overflow in read.values()),
            skipped_gaps(db),
            differing,
            days_read=len(read),
            days_proved=sum(not day.is_deleted for day in days) - len(read),
            days_deleted=sum(day.is_deleted for day in days),
            groupings=groupings,
            totals=totals,
            totals_compared=compared,
            locks=locks,
            duplicates_in_buckets=_duplicates(db, numbers, days) if len(read) == len(days) else None,
        )


def _duplicates(db: sa.Connection, numbers: Catalog, days: Sequence[CountedDay]) -> int | None:
    """Returns the duplicates in the buckets of all days; None if no source ever had ids."""
    meter = numbers.meters.get(DUPLICATES.name)
    if meter is None:
        return None
    return sum(_sums_in_buckets(db, numbers, meter, day.day_s)[0] for day in days)


def _ledgers(db: sa.Connection) -> list[PartitionLedger]:
    order = (offsets.c.topic, offsets.c.partition, offsets.c.cluster, offsets.c.topic_id)
    of_gaps = {"skipped": skipped_offsets(offsets), "recounted": recounted_offsets(offsets)}
    columns = [of_gaps[name] if name in of_gaps else offsets.c[name] for name in PartitionLedger._fields]
    return [PartitionLedger(*row) for row in db.execute(sa.select(*columns).order_by(*order))]


def _judged(
    db: sa.Connection, numbers: Catalog, days_s: Sequence[int]
) -> tuple[list[GroupingDifference], list[tuple[OpenSum, TotalDifference]], int, list[LockDifference]]:
    """Returns differing groupings of these days, differing totals and the sums compared, differing locks.

    Nothing without a plan.
    """
    row = db.execute(sa.select(plans_table.c.pending).where(plans_table.c.active == 1)).first()
    if row is None:
        return [], [], 0, []
    _, plan = plans.active(db)
    grouping_pairs, groupings = comparisons(db, plan), list[GroupingDifference]()
    for day_s in days_s:
        if len(groupings) < SHOWN_MAX:
            groupings += differing_groupings(
                db, numbers, plan, grouping_pairs, day_s, SHOWN_MAX - len(groupings)
            )
    now_ms = clock_ms(db)
    sums = open_sums(plan, row.pending, numbers, now_ms // 1000)
    compared = [(open_sum, differing_totals(db, numbers, open_sum, SHOWN_MAX)) for open_sum in sums]
    totals = [(open_sum, difference) for open_sum, differing in compared for difference in differing or ()]
    locks = differing_locks(db, numbers, plan, row.pending, sums, now_ms, SHOWN_MAX)
    return groupings, totals, sum(differing is not None for _, differing in compared), locks


def counted_days(db: sa.Connection) -> list[CountedDay]:
    """Returns every UTC day in which something was counted, in order."""
    requests = sa.cast(sa.func.sum(day_counts.c.requests), sa.BigInteger)
    statement = (
        sa.select(day_counts.c.day_s, requests, proofs.c.requests, proofs.c.deleted)
        .join(proofs, proofs.c.day_s == day_counts.c.day_s, isouter=True)
        .group_by(day_counts.c.day_s, proofs.c.requests, proofs.c.deleted)
        .order_by(day_counts.c.day_s)
    )
    return [
        CountedDay(day_s, n, proved, bool(deleted)) for day_s, n, proved, deleted in db.execute(statement)
    ]


def records_in_buckets(db: sa.Connection, numbers: Catalog, day_s: int) -> tuple[int, int]:
    """Returns the records of the requests in the buckets of a UTC day, and those in the overflow series.

    These are the requests, without those beyond one for each record.
    """
    without_scans(db)
    requests, overflow = _sums_in_buckets(db, numbers, numbers.meters[REQUESTS.name], day_s)
    if UNRECORDED.name in numbers.meters:
        beyond = _sums_in_buckets(db, numbers, numbers.meters[UNRECORDED.name], day_s)
        return requests - beyond[0], overflow - beyond[1]
    return requests, overflow


def _sums_in_buckets(db: sa.Connection, numbers: Catalog, meter: MeterColumn, day_s: int) -> tuple[int, int]:
    """Returns the sum of a meter in the buckets of a UTC day, and that of the overflow series."""
    value, denied = (sa.func.coalesce(buckets.c[f"{kind}_{meter.place}"], 0) for kind in ("value", "denied"))
    of_day = [
        buckets.c.grouping == numbers.groupings[AUDITED],
        buckets.c.page == meter.page,
        buckets.c.bucket_s >= day_s,
        buckets.c.bucket_s < day_s + DAY_S,
    ]
    amount = overflow = 0
    for width_s in WIDTHS_S:
        is_overflow = sa.case((buckets.c.key == OVERFLOW, value + denied), else_=0)
        total = [sa.func.coalesce(sa.func.sum(expression), 0) for expression in (value + denied, is_overflow)]
        row = db.execute(sa.select(*total).where(*of_day, buckets.c.width_s == width_s)).one()
        amount, overflow = amount + int(row[0]), overflow + int(row[1])
    return amount, overflow


def prove_next_day(engine: sa.Engine, differing: dict[int, int]) -> int:
    """Compares the buckets of one past day with what was counted, and stores the proof where they are equal.

    Returns 1, or 0 when no day is left. A day is read a day after its end: most late records have come by
    then, and a later one makes the proof void. A day that differs is added to `differing`, with its
    records, and not read again while these stay the same. Raises CountsDiffer for it, StoreAway.
    """
    with slow_reading(engine) as db:
        before_s = clock_ms(db) // 1000 - 2 * DAY_S
        unproved = [
            day
            for day in counted_days(db)
            if day.day_s <= before_s and not day.is_deleted and day.records != day.proved
        ]
        day = next((day for day in unproved if differing.get(day.day_s) != day.records), None)
        if day is None:
            if unproved:
                raise CountsDiffer(f"{_date(unproved[0].day_s)}: its buckets differ from what was counted")
            return 0
        records, _ = records_in_buckets(db, catalog.load(db), day.day_s)
    if records != day.records:
        differing[day.day_s] = day.records
        raise CountsDiffer(f"{_date(day.day_s)}: {day.records} counted, {records} in buckets")
    row = {"day_s": day.day_s, "requests": records, "at_ms": NowMs()}
    with writing(engine) as db:
        added = insert(db, proofs).values(row)
        proved = {name: added.excluded[name] for name in ("requests", "at_ms")}
        db.execute(added.on_conflict_do_update(index_elements=["day_s"], set_=proved))
    return 1


def _date(day_s: int) -> str:
    return f"{instant(day_s * 1000):%Y-%m-%d}"
