"""Duplicates, read back: the callers whose records come twice, and how long ids are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import AUDITED
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import buckets, offsets
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog, MeterColumn
from analyzer.plan.meters import DUPLICATES, MINUTE_S, REQUESTS, UNRECORDED

WATCHED_MINUTES = 10
CALLERS_MAX = 10  # that are named, those with the most duplicates
# A producer may repeat a record now and then: reported are so many, and this part of a caller's records.
DUPLICATES_MIN = 100
SHARE_MIN = 0.05


class RepeatedRecords(NamedTuple):
    """A caller many of whose records were duplicates in the last minutes."""

    caller: str
    duplicates: int
    counted: int

    @property
    def share(self) -> float:
        return self.duplicates / (self.duplicates + self.counted)

    def __str__(self) -> str:
        return (
            f"{self.caller}: {self.duplicates:,} of its {self.duplicates + self.counted:,} records in "
            f"the last {WATCHED_MINUTES} minutes are duplicates ({self.share:.0%}), and left out"
        )


class KeptIds(NamedTuple):
    """The time for which a partition remembers ids."""

    source: str
    topic: str
    partition: int
    kept_ms: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


def repeated_records(engine: sa.Engine) -> list[RepeatedRecords]:
    """Returns the callers with the most duplicates in the last minutes, by the time of their requests.

    Only those above DUPLICATES_MIN and SHARE_MIN, at most CALLERS_MAX. Reads no bucket where no source has
    ids. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        meter = numbers.meters.get(DUPLICATES.name)
        if meter is None:
            return []
        without_scans(db)
        end_s = clock_ms(db) // 1000 // MINUTE_S * MINUTE_S + MINUTE_S
        minutes = range(end_s - WATCHED_MINUTES * MINUTE_S, end_s, MINUTE_S)
        duplicates = _most(db, numbers, meter, minutes)
        counted = _sums(db, numbers, numbers.meters[REQUESTS.name], minutes, list(duplicates))
        if UNRECORDED.name in numbers.meters:
            beyond = _sums(db, numbers, numbers.meters[UNRECORDED.name], minutes, list(duplicates))
            counted = {caller: value - beyond.get(caller, 0) for caller, value in counted.items()}
        shares = [
            RepeatedRecords(caller, number, counted.get(caller, 0)) for caller, number in duplicates.items()
        ]
        return [entry for entry in shares if entry.share >= SHARE_MIN]


def kept_ids(engine: sa.Engine) -> list[KeptIds]:
    """Returns how long each followed partition of a source with ids remembers them. Raises StoreAway."""
    columns = offsets.c["source", "topic", "partition", "ids_kept_ms"]
    statement = sa.select(*columns).where(offsets.c.ids_kept_ms.is_not(None), offsets.c.beat_ms.is_not(None))
    with slow_reading(engine) as db:
        return [KeptIds(*row) for row in db.execute(statement.order_by(*columns))]


def _bucket_conditions(numbers: Catalog, meter: MeterColumn, minutes: range) -> list[sa.ColumnElement[bool]]:
    return [
        buckets.c.grouping == numbers.groupings[AUDITED],
        buckets.c.page == meter.page,
        buckets.c.width_s == MINUTE_S,
        buckets.c.bucket_s >= minutes[0],
        buckets.c.bucket_s <= minutes[-1],
    ]


def _most(db: sa.Connection, numbers: Catalog, meter: MeterColumn, minutes: range) -> dict[str, int]:
    """Returns the callers with the most duplicates, and how many."""
    value = buckets.c[f"value_{meter.place}"]
    total = sa.func.sum(value)
    statement = (
        sa.select(buckets.c.key, total)
        .where(*_bucket_conditions(numbers, meter, minutes), value > 0)
        .group_by(buckets.c.key)
        .having(total >= DUPLICATES_MIN)
        .order_by(total.desc(), buckets.c.key)
        .limit(CALLERS_MAX)
    )
    return {key: int(number) for key, number in db.execute(statement)}


def _sums(
    db: sa.Connection, numbers: Catalog, meter: MeterColumn, minutes: range, keys: Sequence[str]
) -> dict[str, int]:
    """Returns the sum of a meter by caller, admitted and denied."""
    value, denied = (sa.func.coalesce(buckets.c[f"{kind}_{meter.place}"], 0) for kind in ("value", "denied"))
    is_wanted = is_among(db.dialect.name, buckets.c.key, keys)
    statement = sa.select(buckets.c.key, sa.func.sum(value + denied)).where(
        *_bucket_conditions(numbers, meter, minutes), is_wanted
    )
    return {key: int(number) for key, number in db.execute(statement.group_by(buckets.c.key))} if keys else {}
