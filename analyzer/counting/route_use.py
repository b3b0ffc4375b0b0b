"""Sums of the counts of a resource: of its largest callers, and of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import HALF, SQL_JOINS
from analyzer.kernel.database.engine import slow_reading, without_scans
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import buckets
from analyzer.plan import catalog
from analyzer.plan.catalog import Catalog
from analyzer.plan.meters import REQUESTS, WIDTHS_S

GROUPING = "caller+resource"


class RouteQuery(NamedTuple):
    """Counts of a resource in [from_s, until_s), in steps of `step_s` seconds, and of its largest callers."""

    resource: str
    from_s: int
    until_s: int
    step_s: int
    meter: str = REQUESTS.name
    top: int = 8


class RouteUse(NamedTuple):
    """The counts of a resource, admitted and refused ones together.

    Attributes:
        whole: Of all callers, by the begin of each step, of each meter that was asked for.
        callers: Of the callers with the most, the largest first, in the whole time.
        series: Of each of these, by the begin of the step, of each meter.
    """

    whole: Mapping[str, Mapping[int, int]]
    callers: Mapping[str, int]
    series: Mapping[str, Mapping[str, Mapping[int, int]]]

    @property
    def total(self) -> int:
        """The sum of all callers, of the meter that they are ranked by."""
        return sum(next(iter(self.whole.values()), {}).values())


NOTHING = RouteUse({}, {}, {})


def busiest_resources(engine: sa.Engine, from_s: int, until_s: int, meter: str, top: int) -> dict[str, int]:
    """Returns the resources with the most of a meter. Raises StoreAway."""
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        if GROUPING not in numbers.groupings or meter not in numbers.meters:
            return {}
        without_scans(db)
        conditions = _conditions(db, numbers, meter, from_s, until_s)
        sums = _sums(numbers, meter)
        statement = sa.select(buckets.c.resource, *sums).where(*conditions).group_by(buckets.c.resource)
        size = sa.func.coalesce(sa.cast(sums[0], sa.Float), 0.0) * HALF + sa.func.coalesce(sums[1], 0)
        rows = db.execute(statement.order_by(size.desc(), buckets.c.resource).limit(top))
        return {resource: _amount(row) for resource, *row in rows}


def route_use(engine: sa.Engine, query: RouteQuery, others: Sequence[str] = ()) -> RouteUse:
    """Returns the counts of a resource by caller, in one snapshot; `others` are further meters.

    Without a plan that counts callers by resource, there are none. Raises StoreAway.
    """
    with slow_reading(engine) as db:
        numbers = catalog.load(db)
        meters = [name for name in (query.meter, *others) if name in numbers.meters]
        if GROUPING not in numbers.groupings or query.meter not in meters:
            return NOTHING
        without_scans(db)
        columns = buckets.c
        step = (columns.bucket_s - columns.bucket_s % query.step_s).label("step_s")
        whole: dict[str, dict[int, int]] = {}
        series: dict[str, dict[str, dict[int, int]]] = {}
        for meter in meters:
            conditions = _conditions(db, numbers, meter, query.from_s, query.until_s)
            conditions.append(columns.resource == query.resource)
            sums = _sums(numbers, meter)
            by_step = sa.select(step, *sums).where(*conditions).group_by(step)
            whole[meter] = {at_s: _amount(row) for at_s, *row in db.execute(by_step)}
            if meter == query.meter:
                size = sa.func.coalesce(sa.cast(sums[0], sa.Float), 0.0) * HALF + sa.func.coalesce(sums[1], 0)
                by_key = sa.select(columns.key, *sums).where(*conditions).group_by(columns.key)
                rows = db.execute(by_key.order_by(size.desc(), columns.key).limit(query.top))
                callers = {key: _amount(row) for key, *row in rows}
                series = {key: {} for key in callers}
            of_keys = sa.select(columns.key, step, *sums).where(*conditions, columns.key.in_([*callers]))
            for key, at_s, *row in db.execute(of_keys.group_by(columns.key, step)):
                series[key].setdefault(meter, {})[at_s] = _amount(row)
    return RouteUse(whole, callers, series)


def _conditions(
    db: sa.Connection, numbers: Catalog, meter: str, from_s: int, until_s: int
) -> list[sa.ColumnElement[bool]]:
    columns = buckets.c
    return [
        columns.grouping == numbers.groupings[GROUPING],
        columns.page == numbers.meters[meter].page,
        is_among(db.dialect.name, columns.width_s, WIDTHS_S),
        columns.bucket_s >= from_s,
        columns.bucket_s < until_s,
    ]


def _sums(numbers: Catalog, meter: str) -> list[sa.ColumnElement[Any]]:
    """Returns the two halves of what was admitted, and of what was refused."""
    column, join = numbers.meters[meter], SQL_JOINS[numbers.meters[meter].join].aggregate
    sums = [*join(buckets.c[f"value_{column.place}"]), *join(buckets.c[f"denied_{column.place}"])]
    return [sa.cast(value, sa.BigInteger).label(f"part_{place}") for place, value in enumerate(sums)]


def _amount(row: Sequence[Any]) -> int:
    value_high, value, denied_high, denied = (part or 0 for part in row)
    return int((value_high + denied_high) * HALF + value + denied)
