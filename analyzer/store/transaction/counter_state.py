"""The counter's state of a partition, stored and read with its offset."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from analyzer.core.model import NO_HOUR, CounterState, NamedCallers, Partition, PartitionProgress
from analyzer.store.database.engine import insert
from analyzer.store.database.partition_keys import is_of, key_row_of
from analyzer.store.database.schema import named_callers, offsets


def stored_state(db: sa.Connection, part: Partition) -> CounterState:
    """Returns the state stored with the offset of `part`; for an unknown partition the initial state."""
    of = offsets.c
    columns = (of.reject_run, of.rejects_accepted_to, of.hour, of.hour_before, of.behind_run)
    row = db.execute(sa.select(*columns).where(is_of(offsets, part))).first()
    if row is None:
        return CounterState()
    hours = [hour for hour in (row.hour, row.hour_before) if hour is not None]
    names = named_callers.c
    wanted = sa.select(names.hour, names.how, names.callers)
    wanted = wanted.where(is_of(named_callers, part), names.hour.in_(hours))
    wanted = wanted.order_by(names.hour, names.how, names.next)
    return CounterState(
        reject_run=row.reject_run,
        rejects_accepted_to=row.rejects_accepted_to,
        hour=NO_HOUR if row.hour is None else row.hour,
        hour_before=NO_HOUR if row.hour_before is None else row.hour_before,
        behind_run=row.behind_run,
        named=[NamedCallers(hour, how, callers.split("\n")) for hour, how, callers in db.execute(wanted)],
    )


def parameters_of(progress: PartitionProgress) -> dict[str, Any]:
    """Returns the parameters of ASSIGNMENTS for one partition; a heartbeat changes nothing."""
    state = progress.state
    if state is None:
        return dict.fromkeys(COLUMNS)
    hours = (None if hour == NO_HOUR else hour for hour in (state.hour, state.hour_before))
    return dict(zip(COLUMNS, (state.reject_run, state.behind_run, *hours), strict=True))


def add_names(db: sa.Connection, progress: PartitionProgress) -> None:
    """Stores the callers that are counted by name from now on, and deletes those of past hours."""
    state = progress.state
    if state is None:
        return
    if state.kept is not None:
        past = named_callers.c.hour.not_in(state.kept)
        db.execute(sa.delete(named_callers).where(is_of(named_callers, progress.part), past))
    if state.named:
        key = key_row_of(progress.part) | {"next": progress.next}
        rows = [
            key | {"hour": hour, "how": how, "callers": "\n".join(callers)}
            for hour, how, callers in state.named
        ]
        added = insert(db, named_callers)
        # After a rewind the same offset is stored again.
        both = named_callers.c.callers + "\n" + added.excluded.callers
        db.execute(
            added.on_conflict_do_update(index_elements=named_callers.primary_key, set_={"callers": both}),
            rows,
        )


def forget_names(db: sa.Connection, part: Partition) -> None:
    """Deletes the names of a partition that was read to its end."""
    db.execute(sa.delete(named_callers).where(is_of(named_callers, part)))


# Parameters of the statement that moves an offset, by the columns that they are for.
COLUMNS = {f"to_{name}": offsets.c[name] for name in ("reject_run", "behind_run", "hour", "hour_before")}
ASSIGNMENTS = {
    column.name: sa.func.coalesce(sa.bindparam(parameter, type_=sa.BigInteger), column)
    for parameter, column in COLUMNS.items()
}
