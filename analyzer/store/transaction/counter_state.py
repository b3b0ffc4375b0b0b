"""What counting a partition's next record depends on beside the record, stored and read with its offset."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from analyzer.core.model import NO_HOUR, CounterState, NamedCallers, Partition, PartitionProgress
from analyzer.store.database.engine import insert
from analyzer.store.database.partition_keys import is_of, key_of
from analyzer.store.database.schema import named_callers, offsets


def carried(db: sa.Connection, part: Partition) -> CounterState:
    """What was stored with the offset of `part`."""
    of = offsets.c
    columns = (of.reject_run, of.rejects_accepted_to, of.hour, of.hour_before, of.behind_run)
    row = db.execute(sa.select(*columns).where(is_of(offsets, part))).first()
    if row is None:
        return CounterState()
    hours = [hour for hour in (row.hour, row.hour_before) if hour is not None]
    order = (named_callers.c.hour, named_callers.c.how, named_callers.c.next)
    wanted = sa.select(named_callers.c.hour, named_callers.c.how, named_callers.c.callers)
    wanted = wanted.where(is_of(named_callers, part), named_callers.c.hour.in_(hours)).order_by(*order)
    return CounterState(
        run=row.reject_run,
        rejects_accepted_to=row.rejects_accepted_to,
        hour=NO_HOUR if row.hour is None else row.hour,
        before=NO_HOUR if row.hour_before is None else row.hour_before,
        behind=row.behind_run,
        named=[NamedCallers(at, how, callers.split("\n")) for at, how, callers in db.execute(wanted)],
    )


def columns_of(progress: PartitionProgress) -> dict[str, Any]:
    """The values of `CARRIED` for one partition; of one that only says that it lives nothing changes."""
    said = progress.carried
    if said is None:
        return dict.fromkeys(CARRIED)
    hours = (None if hour == NO_HOUR else hour for hour in (said.hour, said.before))
    return dict(zip(CARRIED, (said.run, said.behind, *hours), strict=True))


def add_names(db: sa.Connection, progress: PartitionProgress) -> None:
    """Store who is counted by name from now on; forget the hours that are over."""
    said = progress.carried
    if said is None:
        return
    if said.kept is not None:
        db.execute(
            sa.delete(named_callers).where(
                is_of(named_callers, progress.part), named_callers.c.hour.not_in(said.kept)
            )
        )
    if said.named:
        place = key_of(progress.part) | {"next": progress.next}
        rows = [{"hour": at, "how": how, "callers": "\n".join(who)} for at, how, who in said.named]
        added = insert(db, named_callers)
        # A partition that was sent back comes by the same offset again.
        both = named_callers.c.callers + "\n" + added.excluded.callers
        again = added.on_conflict_do_update(index_elements=named_callers.primary_key, set_={"callers": both})
        db.execute(again, [place | row for row in rows])


def forget_names(db: sa.Connection, part: Partition) -> None:
    """Of a partition that was read to its end."""
    db.execute(sa.delete(named_callers).where(is_of(named_callers, part)))


# Parameters of the statement that moves an offset, and the columns that they are for.
CARRIED = {f"to_{name}": offsets.c[name] for name in ("reject_run", "behind_run", "hour", "hour_before")}
SET_CARRIED = {
    column.name: sa.func.coalesce(sa.bindparam(parameter, type_=sa.BigInteger), column)
    for parameter, column in CARRIED.items()
}
