"""Rows of a caller: its counts get the pseudonym, what only decides about its requests is deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from analyzer.callers.forgetting.renaming import Renaming
from analyzer.counting.ranking_upkeep import rename_series
from analyzer.judging.locks.verdict_decisions import rename_caller
from analyzer.judging.sql import plans
from analyzer.judging.sql.totals import join_used
from analyzer.kernel.database.engine import ROWS_AT_ONCE, NowMs, insert, reading, slow_reading, writing
from analyzer.kernel.tables.outbox_tables import alert_contacts
from analyzer.kernel.tables.schema import (
    buckets,
    callers,
    disbelieved,
    distinct_values,
    hold_offs,
    holds,
    lock_history,
    notices,
    overrides,
    postponed,
    record_facts,
    refills,
    slots,
    totals,
    waiting_facts,
)
from analyzer.maintenance.roll_up import KeyPrefix, rename_key
from analyzer.plan import catalog
from analyzer.plan.meters import DAY_S, bucket_start_s
from analyzer.plan.windows import Rolling

AT_ONCE = 500  # buckets in one transaction

# What decides about requests to come; nothing is judged by the name any more.
DECIDING = (
    callers.c.caller,
    record_facts.c.caller,
    waiting_facts.c.caller,
    holds.c.key,
    hold_offs.c.key,
    postponed.c.key,
    refills.c.key,
    notices.c.key,
    alert_contacts.c.subject,
    *(table.c.key for table in slots),
)


def rename(engine: sa.Engine, caller: Renaming) -> int:
    """Renames the caller's counts, and deletes what decides about its requests; returns how many rows."""
    rows = _rename_buckets(engine, caller) + _rename_totals(engine, caller)
    rows += rename_series(engine, caller.name, caller.pseudonym)
    for column in DECIDING:
        rows += _delete(engine, column, caller.name)
    with writing(engine) as db:
        of_caller = sa.and_(overrides.c.subject_kind == "caller", overrides.c.subject == caller.name)
        rows += db.execute(sa.update(overrides).where(of_caller).values(subject=caller.pseudonym)).rowcount
        scopes = catalog.load(db).lock_scopes("caller")
        of_caller = sa.and_(lock_history.c.scope.in_(scopes), lock_history.c.key == caller.name)
        rows += db.execute(sa.update(lock_history).where(of_caller).values(key=caller.pseudonym)).rowcount
    for keys in _parts(_select_keys(engine, disbelieved.c.caller, caller.name)):
        with writing(engine) as db:
            rename_caller(db, keys, caller.name, caller.pseudonym)
        rows += len(keys)
    return rows


def _rename_buckets(engine: sa.Engine, caller: Renaming) -> int:
    renamed = 0
    joined = {bucket_start_s(key[3], DAY_S) for key in _select_keys(engine, buckets.c.key, caller.pseudonym)}
    # Minutes may be rolled up between the search and a transaction: the search that finds none is the last.
    while row_keys := _select_keys(engine, buckets.c.key, caller.name):
        moved = 0
        for prefix, keys in groupby(sorted(row_keys), key=lambda key: KeyPrefix(*key[:3])):
            for part in _parts(list(keys)):
                with writing(engine) as db:
                    plans.lock_active(db)
                    times_s = sorted({key[3] for key in part})
                    moved += rename_key(db, prefix, times_s, caller.name, caller.pseudonym, joined)
        renamed += moved
    return renamed


def _rename_totals(engine: sa.Engine, caller: Renaming) -> int:
    """Joins the totals of calendar windows with those of the pseudonym, and deletes judging state."""
    with reading(engine) as db:
        numbers = catalog.load(db)
    names = {number: name for name, number in ({**numbers.sums, **numbers.dropped_sums}).items()}
    # In the order in which flushes lock them, by which the catalog's names of sums sort as well.
    row_keys = sorted(
        _select_keys(engine, totals.c.key, caller.name), key=lambda key: (names.get(key[0], ""), key)
    )
    for part in _parts(row_keys):
        with writing(engine) as db:
            plans.lock_active(db)
            for key in part:
                is_row = _is_row(totals, key)
                row = db.execute(sa.delete(totals).where(is_row).returning(*totals.c)).first()
                name = names.get(key[0], "")
                if row is None or not name or isinstance(catalog.sum_windows(name), Rolling):
                    continue
                meter = numbers.meters.get(catalog.sum_meter(name))
                if meter is None:
                    continue  # its values are in no bucket, and are deleted below
                added = insert(db, totals).values(dict(row._mapping) | {"key": caller.pseudonym})
                joined = join_used(meter.join)(db.dialect.name, totals, added.excluded)
                db.execute(added.on_conflict_do_update(index_elements=totals.primary_key, set_=joined))
                if name in numbers.sums:  # judged by the warden, under the pseudonym
                    series = {"sum": row.sum, "window_s": row.window_s, "resource": row.resource}
                    waiting = insert(db, postponed).values(
                        series | {"key": caller.pseudonym, "due_ms": NowMs()}
                    )
                    db.execute(waiting.on_conflict_do_nothing())
    return len(row_keys) + _delete(engine, distinct_values.c.key, caller.name)


def _delete(engine: sa.Engine, column: sa.Column[Any], name: str) -> int:
    table = column.table
    row_keys = _select_keys(engine, column, name)
    for part in _parts(row_keys):
        with writing(engine) as db:
            for key in part:
                db.execute(sa.delete(table).where(_is_row(table, key)))
    return len(row_keys)


def _select_keys(engine: sa.Engine, column: sa.Column[Any], name: str) -> list[tuple[Any, ...]]:
    """Returns the keys of the rows of a name. Reads the whole table in a snapshot, which blocks no flush."""
    statement = sa.select(*column.table.primary_key.columns).where(column == name)
    with (
        slow_reading(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        return [tuple(row) for row in rows]


def _is_row(table: Any, key: tuple[Any, ...]) -> sa.ColumnElement[bool]:
    return sa.and_(*(column == value for column, value in zip(table.primary_key.columns, key, strict=True)))


def _parts(keys: Sequence[tuple[Any, ...]], most: int = AT_ONCE) -> Iterator[Sequence[tuple[Any, ...]]]:
    return (keys[first : first + most] for first in range(0, len(keys), most))
