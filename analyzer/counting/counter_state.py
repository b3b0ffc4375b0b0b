"""The counter's state of a partition, stored and read with its offset."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from analyzer.kernel.database.engine import insert, insert_into
from analyzer.kernel.database.partition_keys import is_partition, key_values
from analyzer.kernel.model import (
    NO_HOUR,
    CounterState,
    IdBlob,
    IdState,
    NamedCallers,
    Partition,
    PartitionProgress,
)
from analyzer.kernel.tables.counter_tables import event_ids, named_callers
from analyzer.kernel.tables.schema import offsets


def stored_state(db: sa.Connection, part: Partition) -> CounterState:
    """Returns the state stored with the offset of `part`; for an unknown partition the initial state."""
    stored = offsets.c
    columns = (
        stored.reject_run, stored.rejects_accepted_to, stored.hour, stored.hour_before, stored.behind_run,
        stored.ids_reached_ms, stored.ids_far_run,
    )  # fmt: skip
    row = db.execute(sa.select(*columns).where(is_partition(offsets, part))).first()
    if row is None:
        return CounterState()
    hours = [hour for hour in (row.hour, row.hour_before) if hour is not None]
    names = named_callers.c
    statement = sa.select(names.hour, names.how, names.callers)
    statement = statement.where(is_partition(named_callers, part), names.hour.in_(hours))
    statement = statement.order_by(names.hour, names.how, names.next)
    return CounterState(
        reject_run=row.reject_run,
        rejects_accepted_to=row.rejects_accepted_to,
        hour=NO_HOUR if row.hour is None else row.hour,
        hour_before=NO_HOUR if row.hour_before is None else row.hour_before,
        behind_run=row.behind_run,
        named=[NamedCallers(hour, how, callers.split("\n")) for hour, how, callers in db.execute(statement)],
        ids=None
        if row.ids_reached_ms is None
        else IdState(row.ids_reached_ms, row.ids_far_run, stored_ids(db, part)),
    )


def stored_ids(db: sa.Connection, part: Partition, *, of_retries: bool = False) -> list[IdBlob]:
    """Returns the ids that a partition remembers, or those that retries of its records have counted."""
    ids = event_ids.c
    is_wanted = ids.number < 0 if of_retries else ids.number >= 0
    statement = sa.select(ids.generation, ids.number, ids.began_ms, ids.hashes)
    statement = statement.where(is_partition(event_ids, part), is_wanted).order_by(ids.generation, ids.number)
    rows = db.execute(statement)
    return [IdBlob(generation, number, ms, bytes(hashes)) for generation, number, ms, hashes in rows]


def progress_parameters(progress: PartitionProgress) -> dict[str, Any]:
    """Returns the parameters of ASSIGNMENTS for one partition; a heartbeat changes nothing."""
    state = progress.state
    if state is None:
        return dict.fromkeys(COLUMNS)
    hours = (None if hour == NO_HOUR else hour for hour in (state.hour, state.hour_before))
    ids = state.ids
    of_ids = (None, None, None) if ids is None else (ids.reached_ms, ids.far_run, ids.kept_ms)
    return dict(zip(COLUMNS, (state.reject_run, state.behind_run, *hours, *of_ids), strict=True))


def add_state(db: sa.Connection, progress: PartitionProgress) -> None:
    """Stores the names and ids that are new, and deletes those that are forgotten."""
    if progress.state is not None:
        _add_names(db, progress, progress.state)
        if progress.state.ids is not None:
            _add_ids(db, progress.part, progress.state.ids)


def _add_names(db: sa.Connection, progress: PartitionProgress, state: CounterState) -> None:
    """Stores the callers that are counted by name from now on, and deletes those of past hours."""
    if state.kept is not None:
        past = named_callers.c.hour.not_in(state.kept)
        db.execute(sa.delete(named_callers).where(is_partition(named_callers, progress.part), past))
    if state.named:
        key = key_values(progress.part) | {"next": progress.next}
        rows = [
            key | {"hour": hour, "how": how, "callers": "\n".join(callers)}
            for hour, how, callers in state.named
        ]
        added = insert(db, named_callers)
        # After a rewind the same offset is stored again.
        joined = named_callers.c.callers + "\n" + added.excluded.callers
        db.execute(
            added.on_conflict_do_update(index_elements=named_callers.primary_key, set_={"callers": joined}),
            rows,
        )


def _add_ids(db: sa.Connection, part: Partition, ids: IdState) -> None:
    """Stores the ids that are new, and deletes the generations that are forgotten."""
    if ids.forgotten_to is not None:
        past = event_ids.c.generation < ids.forgotten_to
        db.execute(sa.delete(event_ids).where(is_partition(event_ids, part), past))
    if ids.blobs:
        db.execute(_put_ids(db.dialect.name), [key_values(part) | blob._asdict() for blob in ids.blobs])


@lru_cache
def _put_ids(dialect: str) -> sa.Insert:
    """Returns the statement that stores blobs, in place of shorter ones. Each flush executes it."""
    added = insert_into(dialect, event_ids)
    return added.on_conflict_do_update(
        index_elements=event_ids.primary_key, set_={"hashes": added.excluded.hashes}
    )


def add_ids_of_retry(db: sa.Connection, part: Partition, hashes: bytes) -> None:
    """Stores ids that a retry has counted, in the partition's latest generation.

    Only retries read them. Their row of `offsets` must be locked.
    """
    ids = event_ids.c
    latest, least = (
        sa.select(column).where(is_partition(event_ids, part)).order_by(*order).limit(1).scalar_subquery()
        for column, order in (
            (ids.generation, [ids.generation.desc()]),
            (ids.number, [ids.generation.desc(), ids.number]),
        )
    )
    generation, number = db.execute(sa.select(latest, least)).one()
    row = IdBlob(generation or 0, min(number or 0, 0) - 1, 0, hashes)._asdict()
    db.execute(sa.insert(event_ids).values(key_values(part) | row))


def forget(db: sa.Connection, part: Partition) -> None:
    """Deletes the names and ids of a partition that was read to its end."""
    for table in (named_callers, event_ids):
        db.execute(sa.delete(table).where(is_partition(table, part)))


# Parameters of the statement that moves an offset, by the columns that they are for.
COLUMNS = {
    f"to_{name}": offsets.c[name]
    for name in (
        "reject_run", "behind_run", "hour", "hour_before", "ids_reached_ms", "ids_far_run", "ids_kept_ms"
    )
}  # fmt: skip
ASSIGNMENTS = {
    column.name: sa.func.coalesce(sa.bindparam(parameter, type_=sa.BigInteger), column)
    for parameter, column in COLUMNS.items()
}
