"""All that a second count of a closed day needs from the database, as plain values, in one snapshot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day, FrozenMeter, stored_days
from analyzer.counting.gaps import recounted_offsets
from analyzer.counting.records.forgotten_callers import make_pseudonym
from analyzer.kernel.database.audit_log import RECORDS_RETRIED
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading, without_scans
from analyzer.kernel.database.installation_secrets import REFERENCES, known_secret
from analyzer.kernel.database.partition_keys import (
    PartitionKey,
    is_partition,
    key_columns,
    key_tuple,
    partition_columns,
    same_partition,
)
from analyzer.kernel.model import Partition
from analyzer.kernel.tables.billing_tables import (
    adjustments,
    day_positions,
    days,
    deleted_days,
    frozen_counts,
    referenced_names,
)
from analyzer.kernel.tables.replay_tables import replays
from analyzer.kernel.tables.schema import disbelieved, events, offsets, plans, rejects
from analyzer.plan import catalog
from analyzer.plan.counted_stretches import StretchPlan, counted_stretches, skipped_ranges

LATE_DAYS_MAX = 40  # before a day, whose late records are compared
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


class LateInputs(NamedTuple):
    """An earlier day, of which late records are booked on the day.

    Attributes:
        day: The earlier day.
        begins: The offset of each partition from which its records are booked on the day.
        booked: The amounts that are booked, as `frozen` of the day.
        moved: As of the day.
    """

    day: Day
    begins: Mapping[Partition, int]
    booked: Mapping[SeriesKey, Mapping[str, tuple[int, int]]]
    moved: Mapping[SeriesKey, int]


class RecountInputs(NamedTuple):
    """The inputs of a second count, and what it takes as given.

    Attributes:
        logs: The partitions to be read again.
        newest: The plan in force, as it is stored.
        frozen: The amounts of the day, admitted and denied, by series and meter.
        moved: Requests that count although their records call them denied, by series.
        references: The key of the references of callers.
        late: The earlier days whose late records are compared, too.
        why_not_late: Why none are; "" where they are.
    """

    logs: Sequence[LogToRecount]
    newest: str
    frozen: Mapping[SeriesKey, Mapping[str, tuple[int, int]]]
    moved: Mapping[SeriesKey, int]
    references: bytes
    late: Sequence[LateInputs] = ()
    why_not_late: str = ""


def recount_inputs(engine: sa.Engine, day: Day) -> RecountInputs:
    """Returns what a second count of a closed day needs. Raises StoreAway."""
    with slow_reading(engine) as db:
        without_scans(db)
        newest = db.execute(sa.select(plans.c.body).where(plans.c.active == 1)).scalar_one()
        logs = [log for log in _logs(db, day) if log.cut > log.settled]
        references = known_secret(db, REFERENCES) or b""
        begins = {log.part: log.begin for log in logs}
        moved = _moved(db, day, logs, begins)
        why_not_late = _why_not_late(db, day)
        late = [] if why_not_late else list(_late_days(db, day, logs))
        return RecountInputs(
            logs, newest, _amounts(db, day, frozen_counts), moved, references, late, why_not_late
        )


def _day_before(db: sa.Connection, day: Day) -> Day | None:
    """Returns the day of the zone before this one, if it was cut."""
    is_before = (days.c.zone == day.zone, days.c.begin_s < day.begin_s, days.c.cut_ms.is_not(None))
    return max(stored_days(db, *is_before), key=lambda earlier: earlier.begin_s, default=None)


def _why_not_late(db: sa.Connection, day: Day) -> str:
    """Returns what else than late records is booked on a day; "" for nothing."""
    before = _day_before(db, day)
    since_ms = 0 if before is None or before.cut_ms is None else before.cut_ms
    until_ms = day.cut_ms or since_ms
    swapped = sa.select(replays.c.id).where(
        replays.c.state == "swapped", replays.c.swapped_ms > since_ms, replays.c.swapped_ms <= until_ms
    )
    retried = sa.select(events.c.id).where(
        events.c.act == RECORDS_RETRIED, events.c.at_ms > since_ms, events.c.at_ms <= until_ms
    )
    if db.execute(swapped.limit(1)).first() is not None:
        return "a replay was swapped in"
    return "rejected records were counted" if db.execute(retried.limit(1)).first() is not None else ""


def _late_days(db: sa.Connection, day: Day, logs: Sequence[LogToRecount]) -> Iterator[LateInputs]:
    """Yields the earlier days of the zone that records before the cut may belong to, the newest ones.

    A day that was closed by hand, while a later one was open, has nothing booked on it; its number is larger.
    """
    opened_before = sa.select(days.c.id).where(
        days.c.zone == day.zone, days.c.begin_s > day.begin_s, days.c.id < day.id
    )
    if db.execute(opened_before.limit(1)).first() is not None:
        return
    earlier = stored_days(
        db,
        days.c.zone == day.zone,
        days.c.begin_s < day.begin_s,
        days.c.cut_ms < day.cut_ms,
        days.c.id.not_in(sa.select(deleted_days.c.day)),
    )
    before = earlier[-1] if earlier else None
    was_open = before is not None and before.id < day.id
    opened = _cuts(db, before) if before is not None and was_open else {}
    for late in earlier[-LATE_DAYS_MAX:]:
        cuts = _cuts(db, late)
        begins = {
            log.part: max(log.begin, cuts.get(key_tuple(log.part), 0), opened.get(key_tuple(log.part), 0))
            for log in logs
        }
        booked = _amounts(db, late, adjustments, adjustments.c.booked == day.id)
        yield LateInputs(late, begins, booked, _moved(db, late, logs, begins))


def _cuts(db: sa.Connection, day: Day) -> dict[PartitionKey, int]:
    columns = day_positions.c
    statement = sa.select(*key_columns(day_positions), columns.cut).where(
        columns.day == day.id, columns.cut.is_not(None)
    )
    rows = db.execute(statement).all()
    return {(row[0], row[1], row[2]): row[3] for row in rows}


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


def _moved(
    db: sa.Connection, day: Day, logs: Sequence[LogToRecount], begins: Mapping[Partition, int]
) -> Counter[SeriesKey]:
    moved = Counter[SeriesKey]()
    columns = disbelieved.c
    for log in logs:
        statement = sa.select(columns.series, columns.requests).where(
            is_partition(disbelieved, log.part),
            columns.bucket_s >= day.begin_s,
            columns.bucket_s < day.end_s,
            columns.begin < log.cut,
            columns.begin >= begins[log.part],
        )
        for series, requests in db.execute(statement):
            for grouping, key, resource in json.loads(series):
                if grouping in day.groupings:
                    moved[grouping, key, resource] += requests
    return moved


def _amounts(
    db: sa.Connection, day: Day, table: sa.Table, *conditions: sa.ColumnElement[bool]
) -> dict[SeriesKey, dict[str, tuple[int, int]]]:
    amounts_by_series: dict[SeriesKey, dict[str, tuple[int, int]]] = {}
    numbers, counts = catalog.load(db), table.c
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
                    counts.day == day.id,
                    counts.grouping == numbers.groupings.get(grouping, -1),
                    counts.page == page,
                    *conditions,
                )
            )
            with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
                for key, resource, *values in rows:
                    amounts = amounts_by_series.setdefault((grouping, key, resource), {})
                    for meter, value, denied in zip(meters, values[::2], values[1::2], strict=True):
                        if value or denied:
                            amounts[meter.name] = value or 0, denied or 0
    return amounts_by_series
