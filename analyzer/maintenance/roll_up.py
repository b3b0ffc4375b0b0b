"""Bounded work on old buckets: joining, folding and deleting them.

Every step takes rows out of one place and adds them to another in one transaction, so each count is in
exactly one row at any time, while flushes and other steps write too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.counting.buckets import NO_PARTITION, BucketColumns, add_rows, note_changes, quarters_of
from analyzer.counting.counter.caller_budget import FOLDED, NOT_CALLERS
from analyzer.judging.activation_steps import FillStep, decode_steps
from analyzer.judging.sql import plans
from analyzer.kernel.database.bounded_deletes import delete_at, first_keys
from analyzer.kernel.database.clock import clock_ms
from analyzer.kernel.database.engine import insert, slow_reading, without_scans
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.jobs.step_sizes import SizedSteps
from analyzer.kernel.tables.schema import buckets, catalog, proofs
from analyzer.kernel.tables.table_columns import COLUMNS_PER_PAGE
from analyzer.plan.catalog import Catalog, load
from analyzer.plan.groupings import parse_grouping
from analyzer.plan.meters import DAY_S, JOINS, MINUTE_S, QUARTER_S, REQUESTS, bucket_start_s

KEYS_AT_ONCE = 50_000  # callers that are found together, and kept in memory until they are folded
FOLDED_TO = "folded"  # kind of the catalog's entries about days that are folded
FOLDABLE = ("caller", "address")  # fields of which an unknown client can invent any number of values

# Columns of values, in the order of the table, with their places on the page.
VALUES = tuple(
    (f"{kind}_{place}", place) for kind in ("value", "denied") for place in range(COLUMNS_PER_PAGE)
)
FIRST_VALUE = list(buckets.c.keys()).index(VALUES[0][0])
RowKey = tuple[int, int, int, int, str, str]  # grouping, page, width_s, bucket_s, key, resource


class KeyPrefix(NamedTuple):
    """The first columns of a bucket's key: the rows of one grouping, page and width."""

    grouping: int
    page: int
    width_s: int

    @property
    def condition(self) -> sa.ColumnElement[bool]:
        return sa.and_(*(buckets.c[name] == value for name, value in self._asdict().items()))


def key_prefixes(numbers: Catalog, width_s: int) -> Iterator[KeyPrefix]:
    for grouping in sorted(numbers.groupings.values()):
        for page in sorted({meter.page for meter in numbers.meters.values()}):
            yield KeyPrefix(grouping, page, width_s)


def widen_minutes(kept_s: int, db: sa.Connection, most: int) -> int:
    """Joins up to `most` minutes that are older than `kept_s` into quarters of an hour; returns how many.

    Each count stays in exactly one row.
    """
    return widen(db, MINUTE_S, QUARTER_S, kept_s, most)


def widen_quarters(kept_s: int, db: sa.Connection, most: int) -> int:
    """Joins up to `most` quarters of an hour that are older than `kept_s` into days; returns how many."""
    return widen(db, QUARTER_S, DAY_S, kept_s, most)


def widen(db: sa.Connection, narrow_s: int, wide_s: int, kept_s: int, most: int) -> int:
    """Joins up to `most` buckets that are older than `kept_s` into wider ones; returns how many.

    0 while totals are being filled, which read the buckets width by width.
    """
    if any(isinstance(step, FillStep) for step in decode_steps(plans.lock_active(db).pending)):
        return 0
    numbers = load(db)
    before_s = bucket_start_s(clock_ms(db) // 1000 - kept_s, wide_s)
    for prefix in key_prefixes(numbers, narrow_s):
        old = sa.and_(prefix.condition, buckets.c.bucket_s < before_s)
        rows = _take_out(db, first_keys(buckets, old, most))
        if rows:
            _put(db, numbers, ((_widened(row, wide_s), row) for row in rows))
            return len(rows)
    return 0


def delete_days(db: sa.Connection, kept_s: int, most: int) -> int:
    """Deletes up to `most` days that are older than `kept_s`; returns the number of rows.

    Their requests stay in `day_counts`.
    """
    before_s = bucket_start_s(clock_ms(db) // 1000 - kept_s, DAY_S)
    numbers = load(db)
    for prefix in key_prefixes(numbers, DAY_S):
        old = sa.and_(prefix.condition, buckets.c.bucket_s < before_s)
        rows = _take_out(db, first_keys(buckets, old, most))
        if rows:
            _mark_deleted(db, {row.bucket_s for row in rows})
            return len(rows)
    return 0


def _mark_deleted(db: sa.Connection, days: Iterable[int]) -> None:
    rows = [{"day_s": day_s, "requests": 0, "at_ms": 0, "deleted": 1} for day_s in sorted(days)]
    added = insert(db, proofs)
    db.execute(added.on_conflict_do_update(index_elements=["day_s"], set_={"deleted": 1}), rows)


def few_requests(
    db: sa.Connection, numbers: Catalog, grouping: int, day_s: int, requests_max: int
) -> list[str]:
    """Returns up to KEYS_AT_ONCE callers with at most `requests_max` requests on a day, denied ones included.

    Reads the quarters of the day.
    """
    without_scans(db)
    meter = numbers.meters[REQUESTS.name]
    value, denied = (sa.func.coalesce(buckets.c[f"{kind}_{meter.place}"], 0) for kind in ("value", "denied"))
    statement = (
        sa.select(buckets.c.key)
        .where(
            KeyPrefix(grouping, meter.page, QUARTER_S).condition,
            buckets.c.bucket_s >= day_s,
            buckets.c.bucket_s < day_s + DAY_S,
            buckets.c.key.not_in(NOT_CALLERS),
        )
        .group_by(buckets.c.key)
        .having(sa.func.sum(value + denied) <= requests_max)
        .limit(KEYS_AT_ONCE)
    )
    return list(db.scalars(statement))


def foldable(numbers: Catalog) -> list[int]:
    """Returns the groupings whose keys are folded."""
    return [
        number
        for name, number in sorted(numbers.groupings.items())
        if (key := parse_grouping(name).key) is not None and key.field in FOLDABLE
    ]


def fold(db: sa.Connection, grouping: int, day_s: int, keys: Sequence[str]) -> int:
    """Joins the rows of these callers on a day into one for each resource and quarter; returns how many."""
    numbers = load(db)
    quarters = list(range(day_s, day_s + DAY_S, QUARTER_S))
    key = list(buckets.primary_key)
    rows: list[Any] = []
    for page in sorted({meter.page for meter in numbers.meters.values()}):
        statement = sa.select(*key).where(
            KeyPrefix(grouping, page, QUARTER_S).condition,
            is_among(db.dialect.name, buckets.c.bucket_s, quarters),
            is_among(db.dialect.name, buckets.c.key, keys),
        )
        rows += _take_out(db, statement.order_by(*key))
    _put(db, numbers, ((_folded(row), row) for row in rows))
    _note_changes(db, rows)
    return len(rows)


class Folding:
    """Joins callers with few requests on a day, once its minutes are rolled up; in steps.

    Args:
        engine: Of the database.
        steps: Have as many callers as keep a transaction short.
        requests_max: Callers with at most as many on a day are joined.
        minutes_kept_s: After which minutes are rolled up.
    """

    def __init__(self, engine: sa.Engine, steps: SizedSteps, requests_max: int, minutes_kept_s: int) -> None:
        self._engine = engine
        self._steps = steps
        self._requests_max = requests_max
        self._minutes_kept_s = minutes_kept_s
        self._next: FoldedCallers | None = None

    def step(self) -> int:
        """Returns the rows joined, or 1 when a day is done; 0: no day is left. Raises StoreAway."""
        if self._next is None:
            self._next = self._first()
            if self._next is None:
                return 0
        grouping, day_s, keys = self._next

        def fold_some(db: sa.Connection, most: int) -> int:
            if keys:
                return fold(db, grouping, day_s, keys[:most])
            set_folded_to(db, load(db), grouping, day_s + DAY_S)
            return 1

        chunk = max(1, self._steps.rows)
        folded = self._steps.run(fold_some)
        remaining = keys[chunk:]
        self._next = FoldedCallers(grouping, day_s, remaining) if remaining else None
        return folded

    def _first(self) -> FoldedCallers | None:
        with slow_reading(self._engine) as db:
            numbers = load(db)
            # The quarter that holds this moment may still get minutes.
            before_s = bucket_start_s(clock_ms(db) // 1000 - self._minutes_kept_s, QUARTER_S)
            for grouping in foldable(numbers):
                day_s = first_day_to_fold(db, numbers, grouping)
                if day_s is not None and day_s + DAY_S <= before_s:
                    keys = few_requests(db, numbers, grouping, day_s, self._requests_max)
                    return FoldedCallers(grouping, day_s, keys)
        return None


class FoldedCallers(NamedTuple):
    """Callers to fold on a day; without callers the day is done."""

    grouping: int
    day_s: int
    keys: list[str]


def rename_key(
    db: sa.Connection,
    prefix: KeyPrefix,
    buckets_s: Sequence[int],
    key: str,
    new: str,
    joined: Collection[int],
) -> int:
    """Joins the rows of a key in these buckets with those of the key `new`; returns how many.

    `joined` are the days in which `new` had rows before: their rankings change by more than a name.
    """
    columns = list(buckets.primary_key)
    statement = sa.select(*columns).where(
        prefix.condition,
        is_among(db.dialect.name, buckets.c.bucket_s, buckets_s),
        buckets.c.key == key,
    )
    rows = _take_out(db, statement.order_by(*columns))
    _put(db, load(db), (((*prefix, row.bucket_s, new, row.resource), row) for row in rows))
    _note_changes(db, [row for row in rows if bucket_start_s(row.bucket_s, DAY_S) in joined])
    return len(rows)


def _note_changes(db: sa.Connection, rows: Iterable[Any]) -> None:
    """Notes that other series have the counts now. Joining buckets into wider ones changes no ranking."""
    note_changes(db, {*quarters_of(sorted({row.bucket_s for row in rows}))}, NO_PARTITION)


def first_day_to_fold(db: sa.Connection, numbers: Catalog, grouping: int) -> int | None:
    """Returns the day after the last one that was folded; at first, the oldest with quarters, or None."""
    name = numbers.grouping_names[grouping]
    statement = sa.select(catalog.c.number).where(catalog.c.kind == FOLDED_TO, catalog.c.name == name)
    stored: int | None = db.execute(statement).scalar()
    if stored is not None:
        return stored
    prefix = KeyPrefix(grouping, numbers.meters[REQUESTS.name].page, QUARTER_S)
    bucket_s = buckets.c.bucket_s
    oldest: int | None = db.execute(
        sa.select(bucket_s).where(prefix.condition).order_by(bucket_s).limit(1)
    ).scalar()
    return None if oldest is None else bucket_start_s(oldest, DAY_S)


def set_folded_to(db: sa.Connection, numbers: Catalog, grouping: int, day_s: int) -> None:
    """Stores that all days before `day_s` are folded."""
    added = insert(db, catalog).values(
        kind=FOLDED_TO, name=numbers.grouping_names[grouping], number=day_s, join=""
    )
    db.execute(
        added.on_conflict_do_update(
            index_elements=catalog.primary_key, set_={"number": added.excluded.number}
        )
    )


def _take_out(db: sa.Connection, keys: sa.Select[Any]) -> Sequence[Any]:
    """Deletes buckets and returns them."""
    without_scans(db)
    return db.execute(delete_at(buckets, keys).returning(*buckets.c)).all()


def _widened(row: Any, wide_s: int) -> RowKey:
    at_s = bucket_start_s(row.bucket_s, wide_s)
    return row.grouping, row.page, wide_s, at_s, row.key, row.resource


def _folded(row: Any) -> RowKey:
    return row.grouping, row.page, row.width_s, row.bucket_s, FOLDED, row.resource


def _put(db: sa.Connection, numbers: Catalog, rows: Iterable[tuple[RowKey, Any]]) -> None:
    """Adds rows to the buckets at the given keys."""
    merges = {
        page: {place: JOINS[join].merge for place, join in joins.items()}
        for page, joins in numbers.joins.items()
    }
    joined: dict[RowKey, dict[str, int]] = {}
    for row_key, row in rows:
        into, merge_of = joined.setdefault(row_key, {}), merges[row_key[1]]
        for (name, place), value in zip(VALUES, row[FIRST_VALUE : FIRST_VALUE + len(VALUES)], strict=True):
            if value is not None:
                present = into.get(name)
                into[name] = value if present is None else merge_of[place](present, value)
    _add_joined(db, numbers, joined)


def _add_joined(db: sa.Connection, numbers: Catalog, joined: Mapping[RowKey, Mapping[str, int]]) -> None:
    joins = numbers.joins
    rows_of: dict[KeyPrefix, list[RowKey]] = {}
    for key in sorted(joined):
        rows_of.setdefault(KeyPrefix(*key[:3]), []).append(key)
    for prefix, keys in rows_of.items():
        names = {name for key in keys for name in joined[key]}
        places = sorted({place for name, place in VALUES if name in names})
        has_denied = any(joined[key].get(f"denied_{place}") for key in keys for place in places)
        columns = {
            kind: {place: [joined[key].get(f"{kind}_{place}", 0) for key in keys] for place in places}
            for kind in ("value", "denied")
        }
        rows = BucketColumns(
            *prefix,
            [key[3] for key in keys],
            [key[4] for key in keys],
            [key[5] for key in keys],
            columns["value"],
            columns["denied"] if has_denied else {},
        )
        add_rows(db, rows, joins[prefix.page])
