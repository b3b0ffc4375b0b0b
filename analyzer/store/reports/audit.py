"""Whether the numbers agree: each partition's ledger with itself, and all buckets with all ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.core.counting.caller_budget import OVERFLOW
from analyzer.core.counting.meters import REQUESTS
from analyzer.store.database.schema import buckets, offsets
from analyzer.store.reports.status import unhurried
from analyzer.store.transaction.gaps import RecordedGap, passed_over, skipped_of


class PartitionLedger(NamedTuple):
    """What became of the records of one partition."""

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
    skipped: int = 0  # offsets that were passed over: somebody accepted a gap

    @property
    def equal(self) -> bool:
        return self.seen == self.counted + self.duplicate + self.dead + self.late


class Audit(NamedTuple):
    partitions: list[PartitionLedger]
    buckets: int  # requests let through and denied, over all callers and all time
    overflow: int = 0  # ... of these, callers that were not counted by name
    skipped: Sequence[RecordedGap] = ()  # the gaps that the ledgers' skipped offsets lie in

    @property
    def counted(self) -> int:
        return sum(ledger.counted for ledger in self.partitions)

    @property
    def equal(self) -> bool:
        return self.buckets == self.counted and all(ledger.equal for ledger in self.partitions)


def audit(engine: sa.Engine) -> Audit:
    """The ledgers and the sum of the buckets, from one snapshot: flushes that go on meanwhile are in both
    or in neither. Raises StoreAway."""
    total = sa.func.coalesce(sa.func.sum(buckets.c.value + buckets.c.denied), 0)
    of_everyone = sa.select(total).where(buckets.c.grouping == "caller", buckets.c.meter == REQUESTS.name)
    of_nobody = of_everyone.where(buckets.c.key == OVERFLOW)
    places = (offsets.c.topic, offsets.c.partition, offsets.c.cluster, offsets.c.topic_id)
    with unhurried(engine) as db:
        columns = [
            skipped_of(offsets) if name == "skipped" else offsets.c[name] for name in PartitionLedger._fields
        ]
        ledgers = db.execute(sa.select(*columns).order_by(*places))
        sums = [int(db.execute(each).scalar_one()) for each in (of_everyone, of_nobody)]
        return Audit([PartitionLedger(*row) for row in ledgers], sums[0], sums[1], passed_over(db))
