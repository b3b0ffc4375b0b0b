"""Compares a shadow generation with the live one: whose amounts change, and which days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import stored_days
from analyzer.kernel.database.engine import slow_reading
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.billing_tables import days
from analyzer.kernel.tables.replay_tables import replayed_counts
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.catalog import MeterColumn
from analyzer.plan.meters import WIDTHS_S


class ComparedAmount(NamedTuple):
    """An amount of a series in the time of a replay, admitted: as it is, and as it would be."""

    meter: str
    key: str
    live: int
    replayed: int

    @property
    def difference(self) -> int:
        return self.replayed - self.live


class ReplayComparison(NamedTuple):
    """The differences between a generation and the live one.

    Attributes:
        rows: Of buckets that a swap changes.
        begin_s: The first minute that changes; None: none does.
        end_s: The end of the last one.
        amounts: Those of the largest differences, of the callers.
        closed: Days that are closed: their differences become adjustments.
    """

    rows: int
    begin_s: int | None
    end_s: int
    amounts: Sequence[ComparedAmount]
    closed: Sequence[str]


def compare(engine: sa.Engine, number: int, most: int, grouping: str = "caller") -> ReplayComparison:
    """Returns up to `most` differences of each meter, the largest first. Raises StoreAway."""
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        columns = replayed_counts.c
        amounts = [column for column in columns if column.name.startswith(("value_", "denied_"))]
        changed = sa.and_(
            columns.replay == number, sa.or_(*(sa.func.coalesce(amount, 0) != 0 for amount in amounts))
        )
        extent = sa.select(
            sa.func.count(), sa.func.min(columns.bucket_s), sa.func.max(columns.bucket_s)
        ).where(changed)
        rows, begin_s, last_s = db.execute(extent).one()
        if begin_s is None:
            return ReplayComparison(0, None, 0, [], [])
        end_s = last_s + WIDTHS_S[0]
        compared: list[ComparedAmount] = []
        for meter in sorted(numbers.meters.values(), key=lambda column: column.number):
            differing = _differing(db, number, numbers.groupings[grouping], meter, most)
            live = _live(db, numbers.groupings[grouping], meter, [*differing], begin_s, end_s)
            compared += [
                ComparedAmount(meter.name, key, live.get(key, 0), live.get(key, 0) + by)
                for key, by in differing.items()
            ]
        in_time = (days.c.state != "open", days.c.end_s > begin_s, days.c.begin_s < end_s)
        return ReplayComparison(
            rows, begin_s, end_s, compared, [str(day) for day in stored_days(db, *in_time)]
        )


def _differing(
    db: sa.Connection, number: int, grouping: int, meter: MeterColumn, most: int
) -> dict[str, int]:
    columns = replayed_counts.c
    by = sa.func.sum(sa.func.coalesce(columns[f"value_{meter.place}"], 0))
    statement = (
        sa.select(columns.key, by)
        .where(columns.replay == number, columns.grouping == grouping, columns.page == meter.page)
        .group_by(columns.key)
        .having(by != 0)
        .order_by(sa.func.abs(by).desc(), columns.key)
        .limit(most)
    )
    return {key: int(amount) for key, amount in db.execute(statement)}


def _live(
    db: sa.Connection, grouping: int, meter: MeterColumn, keys: Sequence[str], begin_s: int, end_s: int
) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for width_s in WIDTHS_S if keys else ():
        statement = sa.select(
            buckets.c.key, sa.func.sum(sa.func.coalesce(buckets.c[f"value_{meter.place}"], 0))
        ).where(
            buckets.c.grouping == grouping,
            buckets.c.page == meter.page,
            buckets.c.width_s == width_s,
            buckets.c.bucket_s > begin_s - width_s,
            buckets.c.bucket_s < end_s,
            is_among(db.dialect.name, buckets.c.key, keys),
        )
        for key, amount in db.execute(statement.group_by(buckets.c.key)):
            amounts[key] = amounts.get(key, 0) + int(amount)
    return amounts
