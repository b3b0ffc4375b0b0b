"""What was counted, read back: sums per series and stretch of time, one row after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from analyzer.core.judging.plan import plan_from
from analyzer.store.database.engine import reading
from analyzer.store.database.schema import buckets, plans
from analyzer.store.reports.status import ROWS_AT_ONCE, unhurried

HALF = 1 << 32


class UsageRow(NamedTuple):
    """One meter of one series in [bucket_s, bucket_s + width_s)."""

    key: str
    resource: str
    meter: str
    bucket_s: int
    width_s: int
    value: int
    denied: int


class UsageQuery(NamedTuple):
    """Which rows are wanted. Times are half-open, [from_s, until_s), and are compared with the buckets as
    they were counted; None is without an end."""

    grouping: str
    width_s: int
    from_s: int | None = None
    until_s: int | None = None
    key: str | None = None
    meter: str | None = None


def usage_rows(engine: sa.Engine, asked: UsageQuery) -> Iterator[UsageRow]:
    """The rows in order of time, key, resource and meter, in one snapshot and in constant memory.

    Buckets up to the width that was asked for are joined in it: meters that keep a maximum by the
    largest, all others by their sum. Wider ones, of long ago, come as they are, with their own width.
    Raises StoreAway.
    """
    with unhurried(engine) as db:
        statement = _statement(asked, _largest(db))
        with db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows:
            for row in rows:
                value = row.value_high * HALF + row.value_low
                denied = row.denied_high * HALF + row.denied_low
                series = row.key, row.resource, row.meter, row.start_s, row.stretch_s
                yield UsageRow(*series, int(value), int(denied))


def is_counted(engine: sa.Engine, grouping: str) -> bool:
    """Whether `grouping` is counted under the plan in force, or ever was. Raises StoreAway."""
    with reading(engine) as db:
        body = db.execute(sa.select(plans.c.body).where(plans.c.active == 1)).scalar_one_or_none()
        if body and grouping in plan_from(body).groupings:
            return True
        return bool(db.execute(sa.select(sa.exists().where(buckets.c.grouping == grouping))).scalar_one())


def _largest(db: sa.Connection) -> list[str]:
    """Meters that keep a maximum, as the newest plan says that knows them."""
    joins: dict[str, str] = {}
    for (body,) in db.execute(sa.select(plans.c.body).where(plans.c.body != "").order_by(plans.c.version)):
        try:
            joins |= {meter.name: meter.join for meter in plan_from(body).meters}
        except msgspec.ValidationError:  # of another version of this program
            continue
    return [name for name, join in joins.items() if join == "max"]


def _statement(asked: UsageQuery, largest: list[str]) -> sa.Select[Any]:
    each = _each(asked).subquery()
    keeps_largest = each.c.meter.in_(largest)

    def halves(column: sa.ColumnElement[int]) -> Iterator[sa.ColumnElement[int]]:
        """The joined value in two parts: SQLite gives up on a sum beyond 64 bits."""
        most = sa.func.max(column)
        high = sa.case((keeps_largest, most // HALF), else_=sa.func.sum(column // HALF))
        low = sa.case((keeps_largest, most % HALF), else_=sa.func.sum(column % HALF))
        yield high.label(f"{column.key}_high")
        yield low.label(f"{column.key}_low")

    series = [each.c[name] for name in ("start_s", "key", "resource", "meter", "stretch_s")]
    values = [*halves(each.c.value), *halves(each.c.denied)]
    return sa.select(*series, *values).group_by(*series).order_by(*series)


def _each(asked: UsageQuery) -> sa.Select[Any]:
    """The buckets that are wanted, each with the stretch that it is shown in."""
    b = buckets.c
    wide = b.width_s > asked.width_s
    wanted = [
        b.grouping == asked.grouping,
        *([b.bucket_s >= asked.from_s] if asked.from_s is not None else []),
        *([b.bucket_s < asked.until_s] if asked.until_s is not None else []),
        *([b.key == asked.key] if asked.key is not None else []),
        *([b.meter == asked.meter] if asked.meter is not None else []),
    ]
    return sa.select(
        sa.case((wide, b.bucket_s), else_=b.bucket_s - _modulo(b.bucket_s, asked.width_s)).label("start_s"),
        sa.case((wide, b.width_s), else_=asked.width_s).label("stretch_s"),
        *(b.key, b.resource, b.meter, b.value, b.denied),
    ).where(*wanted)


def _modulo(value: sa.ColumnElement[int], width_s: int) -> sa.ColumnElement[int]:
    """The remainder, never negative: both databases give it the sign of `value`."""
    return (value % width_s + width_s) % width_s
