"""The audit: each partition's ledger against itself, and all buckets against all ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.core.counting.caller_budget import OVERFLOW
from analyzer.core.counting.meters import REQUESTS
from analyzer.store.database.engine import slow_reading
from analyzer.store.database.schema import buckets, offsets
from analyzer.store.transaction.gaps import RecordedGap, skipped_gaps, skipped_offsets


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

    @property
    def equal(self) -> bool:
        return self.seen == self.counted + self.duplicate + self.dead + self.late


class Audit(NamedTuple):
    """Ledgers of all partitions, and the sum of the buckets that must equal them."""

    partitions: list[PartitionLedger]
    buckets: int  # requests admitted and denied, over all callers and all time
    overflow: int = 0  # of these: counted in the overflow series
    skipped: Sequence[RecordedGap] = ()  # the gaps that contain the skipped offsets

    @property
    def counted(self) -> int:
        return sum(ledger.counted for ledger in self.partitions)

    @property
    def equal(self) -> bool:
        return self.buckets == self.counted and all(ledger.equal for ledger in self.partitions)


def audit(engine: sa.Engine) -> Audit:
    """Returns ledgers and buckets from one snapshot: a concurrent flush is in both or in neither.

    Raises StoreAway.
    """
    total = sa.func.coalesce(sa.func.sum(buckets.c.value + buckets.c.denied), 0)
    all_callers = sa.select(total).where(buckets.c.grouping == "caller", buckets.c.meter == REQUESTS.name)
    overflow = all_callers.where(buckets.c.key == OVERFLOW)
    order = (offsets.c.topic, offsets.c.partition, offsets.c.cluster, offsets.c.topic_id)
    with slow_reading(engine) as db:
        columns = [
            skipped_offsets(offsets) if name == "skipped" else offsets.c[name]
            for name in PartitionLedger._fields
        ]
        ledgers = db.execute(sa.select(*columns).order_by(*order))
        sums = [int(db.execute(statement).scalar_one()) for statement in (all_callers, overflow)]
        return Audit([PartitionLedger(*row) for row in ledgers], sums[0], sums[1], skipped_gaps(db))
