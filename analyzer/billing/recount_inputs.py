"""All that a second count of a closed day needs from the database, as plain values, in one snapshot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, FrozenMeter
from analyzer.counting.gaps import recounted_offsets
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading, without_scans
from analyzer.kernel.database.installation_secrets import REFERENCES, known_secret
from analyzer.kernel.database.partition_keys import is_partition, partition_columns, same_partition
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import day_positions, days, frozen_counts, referenced_names
from analyzer.kernel.tables.schema import disbelieved, offsets, plans, rejects
from analyzer.plan import catalog
from analyzer.plan.counted_stretches import StretchPlan, counted_stretches, skipped_ranges

SETTLED_MS = 3_600_000  # what was counted so long before a day began has no record of it

SeriesKey = tuple[str, str, str]  # grouping, key, resource


class LogToRecount(NamedTuple):
    """A partition that may have records of the day.

    Attributes:
        part: The partition.
        begin: Where counting began.
        settled: The offset before which there is no record of the day.
        cut: The offset before which its records are in the day.
        stretches: In order.
        skipped: Ranges of offsets that an operator let it skip.
        rejected: Offsets of its records that are rejected to this day.
        is_recounted: Whether offsets of it were counted, cut off the log, and given to other records.
    """

    part: Partition
    begin: int
    settled: int
    cut: int
    stretches: Sequence[StretchPlan]
    skipped: Sequence[tuple[int, int]]
    rejected: frozenset[int]
    is_recounted: bool


class RecountInputs(NamedTuple):
    """The inputs of a second count, and what it takes as given.

    Attributes:
        logs: The partitions to be read again.
        newest: The plan in force, as it is stored.
        frozen: The amounts of the day, admitted and denied, by series and meter.
        moved: Requests that count although their records call them denied, by series.
        references: The key of the references of callers.
    """

    logs: Sequence[LogToRecount]
    newest: str
    frozen: Mapping[SeriesKey, Mapping[str, tuple[int, int]]]
    moved: Mapping[SeriesKey, int]
    references: bytes


def recount_inputs(engine: sa.Engine, day: Day) -> RecountInputs:
    """Returns what a second count of a closed day needs. Raises StoreAway."""
    with slow_reading(engine) as db:
        without_scans(db)
        newest = db.execute(sa.select(plans.c.body).where(plans.c.active == 1)).scalar_one()
        logs = [log for log in _logs(db, day) if log.cut > log.settled]
        references = known_secret(db, REFERENCES) or b""
        return RecountInputs(logs, newest, _frozen(db, day), _moved(db, day, logs), references)


def _logs(db: sa.Connection, day: Day) -> Iterator[LogToRecount]:
    positions, earlier = day_positions.c, day_positions.alias()
    settled = (
        sa.select(sa.func.max(earlier.c.cut))
        .join(days, days.c.id == earlier.c.day)
        .where(
            earlier.c.cluster == positions.cluster,
            earlier.c.topic_id == positions.topic_id,
            earlier.c.partition == positions.partition,
            days.c.cut_ms <= day.begin_s * 1000 - SETTLED_MS,
        )
        .correlate(day_positions)
        .scalar_subquery()
    )
    begin = sa.func.coalesce(offsets.c.begin, 0)
    statement = (
        sa.select(
            *partition_columns(day_positions),
            begin,
            settled,
            positions.cut,
            recounted_offsets(offsets).label("again"),
        )
        .join(offsets, same_partition(offsets, day_positions), isouter=True)
        .where(positions.day == day.id, positions.cut.is_not(None))
        .order_by(positions.topic, positions.partition, positions.cluster, positions.topic_id)
    )
    for *columns, first, settled_to, cut, again in db.execute(statement).all():
        part = Partition(*columns)
        yield LogToRecount(
            part,
            first,
            first if settled_to is None else settled_to,
            cut,
            counted_stretches(db, part, cut, day.cut_ms),
            skipped_ranges(db, part, cut),
            frozenset(db.execute(_rejected(part, cut)).scalars()),
            bool(again),
        )


def _rejected(part: Partition, cut: int) -> sa.Select[Any]:
    return sa.select(rejects.c.offset).where(is_partition(rejects, part), rejects.c.offset < cut)


def _moved(db: sa.Connection, day: Day, logs: Sequence[LogToRecount]) -> Counter[SeriesKey]:
    moved = Counter[SeriesKey]()
    columns = disbelieved.c
    for log in logs:
        statement = sa.select(columns.series, columns.requests).where(
            is_partition(disbelieved, log.part),
            columns.bucket_s >= day.begin_s,
            columns.bucket_s < day.end_s,
            columns.begin < log.cut,
        )
        for series, requests in db.execute(statement):
            for grouping, key, resource in json.loads(series):
                if grouping in day.groupings:
                    moved[grouping, key, resource] += requests
    return moved


def _frozen(db: sa.Connection, day: Day) -> dict[SeriesKey, dict[str, tuple[int, int]]]:
    amounts_by_series: dict[SeriesKey, dict[str, tuple[int, int]]] = {}
    numbers, counts = catalog.load(db), frozen_counts.c
    pages: dict[int, list[FrozenMeter]] = {}
    for meter in day.meters:
        pages.setdefault(meter.columns[0], []).append(meter)
    name = sa.func.coalesce(referenced_names.c.name, sa.literal(make_pseudonym("")) + counts.reference)
    for grouping in day.groupings:
        for page, meters in pages.items():
            columns = [counts[column] for meter in meters for column in meter.columns[1:]]
            statement = (
                sa.select(name, counts.resource, *columns)
                .join(referenced_names, referenced_names.c.reference == counts.reference, isouter=True)
                .where(
                    counts.day == day.id, counts.grouping == numbers.groupings[grouping], counts.page == page
                )
            )
            with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
                for key, resource, *values in rows:
                    amounts = amounts_by_series.setdefault((grouping, key, resource), {})
                    for meter, value, denied in zip(meters, values[::2], values[1::2], strict=True):
                        if value or denied:
                            amounts[meter.name] = value or 0, denied or 0
    return amounts_by_series
