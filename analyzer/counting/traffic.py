"""Traffic over time: all of it, and that of the keys with the most, for charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import HALF, SQL_JOINS
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.meters import REQUESTS, WIDTHS_S


class TrafficAmount(NamedTuple):
    """Counts of one meter: what was admitted, and what a gate had denied."""

    value: int = 0
    denied: int = 0

    @property
    def whole(self) -> int:
        return self.value + self.denied


class TrafficQuery(NamedTuple):
    """Counts of a grouping in [from_s, until_s), in steps of `step_s` seconds.

    `top` is the number of keys that are shown apart; `keys`, if there are some, are these keys.
    """

    grouping: str
    from_s: int
    until_s: int
    step_s: int
    top: int = 10
    meter: str = REQUESTS.name
    keys: Sequence[str] = ()


class Traffic(NamedTuple):
    """Counts over time.

    Attributes:
        whole: The counts of all keys, by the begin of each step that has any.
        keys: The keys with the most, the largest first, with their counts in the whole time.
        series: The counts of each of these keys, by the begin of the step.
    """

    whole: Mapping[int, TrafficAmount]
    keys: Mapping[str, TrafficAmount]
    series: Mapping[str, Mapping[int, TrafficAmount]]

    @property
    def total(self) -> TrafficAmount:
        return TrafficAmount(
            sum(amount.value for amount in self.whole.values()),
            sum(amount.denied for amount in self.whole.values()),
        )


EMPTY = Traffic({}, {}, {})


def traffic(engine: sa.Engine, query: TrafficQuery) -> Traffic:
    """Returns the counts, in one snapshot. A bucket wider than a step counts in the step in which it begins.

    Without a plan that counts the grouping and the meter, there are none. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        meter = numbers.meters.get(query.meter)
        if query.grouping not in numbers.groupings or meter is None:
            return EMPTY
        without_scans(db)
        columns = buckets.c
        conditions = [
            columns.grouping == numbers.groupings[query.grouping],
            columns.page == meter.page,
            is_among(db.dialect.name, columns.width_s, WIDTHS_S),
            columns.bucket_s >= query.from_s,
            columns.bucket_s < query.until_s,
        ]
        join = SQL_JOINS[meter.join].aggregate
        sums = [*join(columns[f"value_{meter.place}"]), *join(columns[f"denied_{meter.place}"])]
        amounts = [sa.cast(value, sa.BigInteger).label(f"part_{place}") for place, value in enumerate(sums)]
        step = (columns.bucket_s - columns.bucket_s % query.step_s).label("step_s")
        by_key = sa.select(columns.key, *amounts).where(*conditions).group_by(columns.key)
        if query.keys:
            by_key = by_key.where(columns.key.in_(query.keys))
        parts = [sa.func.coalesce(sa.cast(value, sa.Float), 0.0) for value in sums]
        size = (parts[0] + parts[2]) * HALF + parts[1] + parts[3]
        rows = db.execute(by_key.order_by(size.desc(), columns.key).limit(query.top))
        keys = {key: _amount(row) for key, *row in rows}
        by_step = sa.select(step, *amounts).where(*conditions).group_by(step).order_by(step)
        whole = {at_s: _amount(row) for at_s, *row in db.execute(by_step)}
        series: dict[str, dict[int, TrafficAmount]] = {key: {} for key in keys}
        of_keys = sa.select(columns.key, step, *amounts).where(*conditions, columns.key.in_([*keys]))
        for key, at_s, *row in db.execute(of_keys.group_by(columns.key, step)):
            series[key][at_s] = _amount(row)
    return Traffic(whole, keys, series)


def _amount(row: Sequence[Any]) -> TrafficAmount:
    value_high, value, denied_high, denied = (part or 0 for part in row)
    return TrafficAmount(value_high * HALF + value, denied_high * HALF + denied)
