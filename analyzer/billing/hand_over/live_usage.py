"""Live usage: increments that are pushed to a billing service before their day is closed.

    totals of the open day, in one snapshot      ▼ `plan_growth` stores what each series grew by
    increments that are planned, a chunk at a time  ▼ sent under identifiers that depend on their numbers
    `acknowledge` adds them to what the service has ▼ the next chunk, and at the next push the next growth
    the day is closed                            ▼ `plan_last` stores what makes each series exact
    all of these are acknowledged                ▼ `finish` signs the live delivery

An increment is stored before it is sent, and the next one of its series is planned when it is acknowledged:
so a crash at any moment sends an increment again that the service knows by its identifier, or one that was
not sent. See docs/decisions/0079.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.billing.days.references import store_references
from analyzer.billing.hand_over.deliveries import Deliveries, Delivery
from analyzer.billing.reports.usage_amounts import UsageAmount, UsagePart
from analyzer.counting.sql_joins import bounded_sum
from analyzer.judging.sql import plans
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, reading, without_scans, writing
from analyzer.kernel.database.row_parameters import ColumnValues, is_among, upsert_columns
from analyzer.kernel.tables.billing_tables import days, frozen_counts, live_usage, referenced_names
from analyzer.plan import catalog

FIRST = ("", "")  # before each series
CHANGED = ("number", "increment", "at_s", "is_last", "planned_ms")  # by a plan


class SeriesTotal(NamedTuple):
    """The amount of one series of an open day so far."""

    key: str
    resource: str
    value: int


class Increment(NamedTuple):
    """An increment that is planned and not acknowledged.

    Attributes:
        amount: Of the series, with the number of the increment; it may be negative on a closed day.
        acknowledged: The sum of those before it.
        at_s: Its time.
        is_last: Whether it was planned when the day was closed.
        planned_ms: When it was planned: it may have been sent since.
        customer_digest: Of the customer that has acknowledged those before it; "": there are none.
    """

    amount: UsageAmount
    acknowledged: int
    at_s: int
    is_last: bool
    planned_ms: int
    customer_digest: str

    @property
    def series(self) -> tuple[str, str]:
        return self.amount.reference, self.amount.resource


class LiveSums(NamedTuple):
    """The sums of the live usage of one delivery."""

    series: int
    acknowledged: int
    of_day: int  # the frozen amounts of these series


class LiveUsage:
    """The live usage of one destination, by the process that holds its lease.

    All methods raise StoreAway, and those that write DeliveryLost when another process has taken the lease.

    Args:
        engine: Of the database.
        record: The deliveries to this destination.
    """

    def __init__(self, engine: sa.Engine, record: Deliveries) -> None:
        self._engine = engine
        self._record = record

    def plan_growth(self, part: UsagePart, totals: Sequence[SeriesTotal]) -> None:
        """Plans an increment of each series that has grown, unless one of it waits, or the day is cut."""
        with writing(self._engine) as db:
            self._record.require(db)
            forgotten = plans.hold_forgotten(db)
            if db.execute(sa.select(days.c.state).where(days.c.id == part.day.id)).scalar() != "open":
                return
            references = store_references(db, {total.key for total in totals}, forgotten)
            stored = _stored(db, self._of(part), references.values())
            grown: dict[tuple[str, str], tuple[int, int]] = {}  # number and increment
            for total in totals:
                series = references[total.key], total.resource
                number, acknowledged, increment = stored.get(series, (0, 0, 0))
                if not increment and total.value > acknowledged:
                    grown[series] = number + 1, total.value - acknowledged
            if grown:
                # Before any is sent: by this row the day is made exact when it is closed.
                self._record.begin_in(db, part)
                self._plan(db, part, dict(sorted(grown.items())), is_last=False)

    def plan_last(self, part: UsagePart) -> int:
        """Plans the increments that make series of a closed day exact; returns how many there are."""
        count, after = 0, FIRST
        while True:
            with writing(self._engine) as db:
                self._record.require(db)
                without_scans(db)
                rows = _compared(db, self._of(part), part, after)
                last = {
                    (row.reference, row.resource): (row.number + 1, row.of_day - row.acknowledged)
                    for row in rows
                    if row.of_day != row.acknowledged and not row.increment
                }
                self._plan(db, part, last, is_last=True)
            count += len(last)
            if len(rows) < ROWS_AT_ONCE:
                return count
            after = rows[-1].reference, rows[-1].resource

    def planned(self, part: UsagePart, most: int, after: tuple[str, str]) -> list[Increment]:
        """Returns up to `most` increments that are planned, by reference and resource, behind a series."""
        columns, names = live_usage.c, referenced_names.c
        name = sa.select(names.name).where(names.reference == columns.reference).scalar_subquery()
        statement = (
            sa.select(live_usage, name.label("name"))
            .where(*self._of(part), _behind(after), columns.increment != 0)
            .order_by(columns.reference, columns.resource)
            .limit(most)
        )
        with reading(self._engine) as db:
            without_scans(db)
            rows = db.execute(statement).mappings().all()
        return [
            Increment(
                UsageAmount(
                    *(part.day.date, row["reference"], row["name"], row["resource"], row["increment"], 0),
                    *(row["number"], ()),
                ),
                *(row["acknowledged"], row["at_s"], bool(row["is_last"]), row["planned_ms"]),
                row["customer_digest"],
            )
            for row in rows
        ]

    def acknowledge(
        self, part: UsagePart, increments: Sequence[Increment], known: int, digests: Sequence[str]
    ) -> None:
        """Stores that the service has these increments, of which it knew some before."""
        delivery = self._record.of(part)
        with writing(self._engine) as db:
            self._record.require(db)
            changed = {
                "acknowledged": [one.acknowledged + one.amount.value for one in increments],
                "increment": 0,
                "customer_digest": list(digests),
            }
            self._upsert(db, part, [one.series for one in increments], changed)
            sums = Delivery(
                events=delivery.events + len(increments),
                amount=delivery.amount + sum(one.amount.value for one in increments),
                known=delivery.known + known,
            )
            self._record.store_in(db, part, sums, {"tried_ms": None})

    def drop(self, part: UsagePart, increments: Sequence[Increment]) -> None:
        """Forgets series of which the service has nothing, because they have no customer any more."""
        columns = live_usage.c
        with writing(self._engine) as db:
            self._record.require(db)
            for increment in increments:
                reference, resource = increment.series
                of_series = [columns.reference == reference, columns.resource == resource]
                db.execute(sa.delete(live_usage).where(*self._of(part), *of_series))

    def finish(self, part: UsagePart) -> None:
        """Stores that the live delivery of a closed day is complete, and signs it."""
        delivery = self._record.of(part)
        with writing(self._engine) as db:
            self._record.require(db)
            self._record.store_in(db, part, delivery, {"tried_ms": None, "finished_ms": NowMs()})

    def without_pushed(self, part: UsagePart, amounts: Iterable[UsageAmount]) -> Iterator[UsageAmount]:
        """Yields the amounts of a part whose series were not pushed in increments."""
        remaining = iter(amounts)
        while batch := list(islice(remaining, ROWS_AT_ONCE)):
            pushed = self.settled(part, batch)
            yield from (one for one in batch if (one.reference, one.resource) not in pushed)

    def settled(self, part: UsagePart, amounts: Collection[UsageAmount]) -> set[tuple[str, str]]:
        """Returns the series of these amounts of a closed day that were handed over in increments."""
        return pushed_series(self._engine, self._record.destination, part, amounts)

    def _of(self, part: UsagePart) -> list[sa.ColumnElement[bool]]:
        return _conditions(self._record.destination, part.day, part.grouping, part.meter)

    def _plan(
        self,
        db: sa.Connection,
        part: UsagePart,
        increments: Mapping[tuple[str, str], tuple[int, int]],
        *,
        is_last: bool,
    ) -> None:
        if not increments:
            return
        now_ms = clock_ms(db)
        changed = {
            "number": [number for number, _ in increments.values()],
            "increment": [increment for _, increment in increments.values()],
            # Services refuse times in the future; all other events of a day have its middle.
            "at_s": min(now_ms // 1000, part.day.middle_s),
            "is_last": int(is_last),
            "planned_ms": now_ms,
        }
        self._upsert(db, part, list(increments), changed)

    def _upsert(
        self,
        db: sa.Connection,
        part: UsagePart,
        series: Sequence[tuple[str, str]],
        changed: Mapping[str, Any],
    ) -> None:
        """Writes the rows of some series; of rows that are there, only the columns in `changed`."""
        resources = [resource for _, resource in series]
        values: dict[str, ColumnValues] = {
            column.name: "" if column.name == "customer_digest" else 0 for column in live_usage.columns
        }
        values |= {
            "destination": self._record.destination, "day": part.day.id, "grouping": part.grouping,
            "meter": part.meter, "reference": [reference for reference, _ in series],
            "resource": resources if any(resources) else "", **changed,
        }  # fmt: skip
        upsert_columns(db, live_usage, values, _set_by_plan if "number" in changed else _set_by_answer)


def _set_by_plan(_dialect: str, _table: sa.Table, new: Any) -> dict[str, Any]:
    return {name: new[name] for name in CHANGED}


def _set_by_answer(_dialect: str, _table: sa.Table, new: Any) -> dict[str, Any]:
    return {name: new[name] for name in ("acknowledged", "increment", "customer_digest")}


def pushed_series(
    engine: sa.Engine, destination: str, part: UsagePart, amounts: Collection[UsageAmount]
) -> set[tuple[str, str]]:
    """Returns the series of amounts that were pushed before their day was closed. Raises StoreAway."""
    if part.kind != "frozen":
        return set()
    of_part = _conditions(destination, part.day, part.grouping, part.meter)
    with reading(engine) as db:
        without_scans(db)
        return set(_stored(db, of_part, {amount.reference for amount in amounts}))


def _stored(
    db: sa.Connection, of_part: Sequence[sa.ColumnElement[bool]], references: Collection[str]
) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Returns number, acknowledged sum and planned increment of the series of some references."""
    columns = live_usage.c
    statement = sa.select(
        columns.reference, columns.resource, columns.number, columns.acknowledged, columns.increment
    ).where(*of_part, is_among(db.dialect.name, columns.reference, sorted(set(references))))
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in db.execute(statement)}


def _conditions(destination: str, day: Day, grouping: str, meter: str) -> list[sa.ColumnElement[bool]]:
    columns = live_usage.c
    return [
        columns.destination == destination,
        columns.day == day.id,
        columns.grouping == grouping,
        columns.meter == meter,
    ]


def _behind(series: tuple[str, str]) -> sa.ColumnElement[bool]:
    columns = live_usage.c
    return sa.tuple_(columns.reference, columns.resource) > sa.tuple_(*map(sa.literal, series))


def _compared(
    db: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]], part: UsagePart, after: tuple[str, str]
) -> Sequence[sa.Row[Any]]:
    """Returns rows of live usage behind a series, each with the frozen amount of its series: `of_day`."""
    columns, joined, value = live_usage.c, *_with_frozen(db, part)
    statement = (
        sa.select(
            *(columns.reference, columns.resource, columns.number, columns.acknowledged, columns.increment),
            value.label("of_day"),
        )
        .select_from(joined)
        .where(*conditions, _behind(after))
        .order_by(columns.reference, columns.resource)
        .limit(ROWS_AT_ONCE)
    )
    return db.execute(statement).all()


def _with_frozen(db: sa.Connection, part: UsagePart) -> tuple[sa.FromClause, sa.ColumnElement[int]]:
    """Returns live usage joined with the frozen rows of its series, and the frozen amount of a meter."""
    meter = next((meter for meter in part.day.meters if meter.name == part.meter), None)
    if meter is None:
        return live_usage, sa.literal(0, sa.BigInteger)
    page, column, _ = meter.columns
    frozen = frozen_counts.c
    of_series = [
        frozen.day == part.day.id,
        frozen.grouping == catalog.load(db).groupings.get(part.grouping, -1),
        frozen.page == page,
        frozen.reference == live_usage.c.reference,
        frozen.resource == live_usage.c.resource,
    ]
    joined = live_usage.outerjoin(frozen_counts, sa.and_(*of_series))
    return joined, sa.func.coalesce(frozen[column], 0)


def live_sums(db: sa.Connection, destination: str, part: UsagePart) -> LiveSums:
    """Returns the sums of what was pushed of a part, and of the frozen amounts of its series."""
    joined, value = _with_frozen(db, part)
    of_part = _conditions(destination, part.day, part.grouping, part.meter)
    sums = sa.select(sa.func.count(), bounded_sum(live_usage.c.acknowledged), bounded_sum(value))
    row = db.execute(sums.select_from(joined).where(*of_part)).one()
    return LiveSums(row[0], int(row[1] or 0), int(row[2] or 0))


def acknowledged_amounts(engine: sa.Engine, destination: str, part: UsagePart) -> Iterator[UsageAmount]:
    """Yields what was acknowledged of each series that was pushed, by reference. Raises StoreAway."""
    columns, names, after = live_usage.c, referenced_names.c, FIRST
    name = sa.select(names.name).where(names.reference == columns.reference).scalar_subquery()
    while True:
        statement = (
            sa.select(columns.reference, name.label("name"), columns.resource, columns.acknowledged)
            .where(*_conditions(destination, part.day, part.grouping, part.meter), _behind(after))
            .order_by(columns.reference, columns.resource)
            .limit(ROWS_AT_ONCE)
        )
        with reading(engine) as db:
            without_scans(db)
            rows = db.execute(statement).all()
        for reference, known_name, resource, value in rows:
            yield UsageAmount(part.day.date, reference, known_name, resource, value, 0, 0, ())
        if len(rows) < ROWS_AT_ONCE:
            return
        after = rows[-1].reference, rows[-1].resource
