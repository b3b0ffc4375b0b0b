"""The series with the most of a meter in a stretch of time, added up from its buckets.

A stretch is read as two sums, one by series and one by time. `counted_series` looks up single series by the
key of the table, which has the time before the series: a look-up for each bucket in question.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.sql_joins import HALF, SQL_JOINS
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import buckets
from analyzer.plan.catalog import MeterColumn
from analyzer.plan.meters import JOINS, WIDTHS_S

TOP = 200  # series of a ranking
STEPPED = 50  # of these, with their counts in each step: a chart has eight layers


class RankedName(NamedTuple):
    """A series of a grouping."""

    key: str
    resource: str = ""


class TrafficAmount(NamedTuple):
    """Counts of one meter: what was admitted, and what a gate had denied."""

    value: int = 0
    denied: int = 0

    @property
    def whole(self) -> int:
        return self.value + self.denied


Steps = Mapping[int, TrafficAmount]  # by the begin of each step that has any


class RankedSeries(NamedTuple):
    """Counts of a series in a stretch of time; `steps` is None where they are not known."""

    amount: TrafficAmount
    steps: Steps | None = None


class StretchRanking(NamedTuple):
    """The counts of [from_s, until_s), and the series with the most of them.

    Attributes:
        step_s: The length of the steps.
        steps: Counts of all series.
        at_most: The most that a series which is not in `series` has, admitted and denied.
        series: Those with the most, the largest first, and others whose counts are known.
        counted: The number of series with any count.
    """

    from_s: int
    until_s: int
    step_s: int
    steps: Steps
    at_most: int
    series: Mapping[RankedName, RankedSeries]
    counted: int = 0


class RankedMeter(NamedTuple):
    """A meter of a grouping, by their numbers."""

    grouping: int
    meter: MeterColumn

    @property
    def adds_up(self) -> bool:
        return JOINS[self.meter.join].adds_up

    def joined(self, amounts: Iterable[TrafficAmount]) -> TrafficAmount:
        """Returns the joined amount of several stretches."""
        amounts = list(amounts)
        if self.adds_up:
            return TrafficAmount(sum(amount[0] for amount in amounts), sum(amount[1] for amount in amounts))
        merge = JOINS[self.meter.join].merge
        value = denied = 0
        for amount in amounts:
            value, denied = merge(value, amount[0]), merge(denied, amount[1])
        return TrafficAmount(value, denied)

    @property
    def condition(self) -> list[sa.ColumnElement[bool]]:
        return [buckets.c.grouping == self.grouping, buckets.c.page == self.meter.page]

    @property
    def sums(self) -> list[sa.ColumnElement[Any]]:
        """The two halves of the value, and of what was denied."""
        join, columns = SQL_JOINS[self.meter.join].aggregate, buckets.c
        place = self.meter.place
        return [*join(columns[f"value_{place}"]), *join(columns[f"denied_{place}"])]


class StoredTimes(NamedTuple):
    """The first and the last bucket of each width that has any, of a page of a grouping."""

    by_width: Mapping[int, tuple[int, int]]

    def begins(self, width_s: int, from_s: int, until_s: int) -> range:
        """Returns the times in [from_s, until_s) at which a bucket of a width may begin."""
        if width_s not in self.by_width:
            return range(0)
        first, last = self.by_width[width_s]
        begin_s = max(from_s + -from_s % width_s, first)
        return range(begin_s, min(until_s, last + 1), width_s)

    def number(self, from_s: int, until_s: int) -> int:
        """Returns how many buckets of a series may begin in [from_s, until_s)."""
        return sum(len(self.begins(width_s, from_s, until_s)) for width_s in WIDTHS_S)


def stored_times(db: sa.Connection, ranked: RankedMeter) -> StoredTimes:
    """Returns which times have buckets."""
    by_width = {}
    for width_s in WIDTHS_S:
        of_width = sa.select(buckets.c.bucket_s).where(*ranked.condition, buckets.c.width_s == width_s)
        first, last = (
            db.execute(of_width.order_by(order).limit(1)).scalar()
            for order in (buckets.c.bucket_s.asc(), buckets.c.bucket_s.desc())
        )
        if first is not None and last is not None:
            by_width[width_s] = first, last
    return StoredTimes(by_width)


def rank_buckets(
    db: sa.Connection, ranked: RankedMeter, from_s: int, until_s: int, step_s: int, times: StoredTimes
) -> StretchRanking:
    """Returns what was counted in [from_s, until_s), from all of its buckets."""
    between = [
        *ranked.condition,
        is_among(db.dialect.name, buckets.c.width_s, WIDTHS_S),
        buckets.c.bucket_s >= from_s,
        buckets.c.bucket_s < until_s,
    ]
    sums = _numbered(ranked.sums)
    size = _size(sums)
    name = [buckets.c.key, buckets.c.resource]
    by_series = sa.select(*name, *sums, sa.func.count().over()).where(*between).group_by(*name)
    by_series = by_series.having(size > 0).order_by(size.desc(), *name).limit(TOP + 1)
    rows = db.execute(by_series).all()
    step = (buckets.c.bucket_s - buckets.c.bucket_s % step_s).label("step_s")
    by_step = sa.select(step, *sums).where(*between).group_by(step)
    steps = {at_s: _amount(parts) for at_s, *parts in db.execute(by_step)}
    amounts = {RankedName(row[0], row[1]): _amount(row[2:6]) for row in rows[:TOP]}
    stepped = counted_series(db, ranked, from_s, until_s, [*amounts][:STEPPED], step_s, times)
    return StretchRanking(
        from_s, until_s, step_s,
        {at_s: amount for at_s, amount in sorted(steps.items()) if amount.whole},
        _amount(rows[TOP][2:6]).whole if len(rows) > TOP else 0,
        {series: RankedSeries(amount, stepped.get(series)) for series, amount in amounts.items()},
        rows[0][6] if rows else 0,
    )  # fmt: skip


def counted_series(
    db: sa.Connection, ranked: RankedMeter, from_s: int, until_s: int, names: Collection[RankedName],
    step_s: int, times: StoredTimes,
) -> dict[RankedName, dict[int, TrafficAmount]]:  # fmt: skip
    """Returns the counts of some series in [from_s, until_s) by steps; each of the series is there."""
    counted: dict[RankedName, dict[int, TrafficAmount]] = {name: {} for name in names}
    if not counted:
        return counted
    dialect, columns = db.dialect.name, buckets.c
    step = (columns.bucket_s - columns.bucket_s % step_s).label("step_s")
    sums = _numbered(ranked.sums)
    of_names = [is_among(dialect, columns.key, sorted({name.key for name in names}))]
    if any(name.resource for name in names):
        of_names.append(is_among(dialect, columns.resource, sorted({name.resource for name in names})))
    for width_s in WIDTHS_S:
        begins = times.begins(width_s, from_s, until_s)
        if not begins:
            continue
        statement = sa.select(columns.key, columns.resource, step, *sums).where(
            *ranked.condition,
            columns.width_s == width_s,
            is_among(dialect, columns.bucket_s, list(begins)),
            *of_names,
        )
        for key, resource, at_s, *parts in db.execute(
            statement.group_by(columns.key, columns.resource, step)
        ):
            steps, amount = counted.get(RankedName(key, resource)), _amount(parts)
            if steps is not None and amount.whole:
                steps[at_s] = ranked.joined((steps.get(at_s, TrafficAmount()), amount))
    return counted


def _numbered(sums: Sequence[sa.ColumnElement[Any]]) -> list[sa.ColumnElement[Any]]:
    return [sa.cast(value, sa.BigInteger).label(f"part_{place}") for place, value in enumerate(sums)]


def _size(sums: Sequence[Any]) -> sa.ColumnElement[Any]:
    parts = [sa.func.coalesce(sa.cast(value.element, sa.Float), 0.0) for value in sums]
    return (parts[0] + parts[2]) * HALF + parts[1] + parts[3]


def _amount(parts: Sequence[Any]) -> TrafficAmount:
    value_high, value, denied_high, denied = (part or 0 for part in parts)
    return TrafficAmount(value_high * HALF + value, denied_high * HALF + denied)
