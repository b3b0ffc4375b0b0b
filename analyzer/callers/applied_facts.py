"""Facts from records: the warden applies what they state to limits and windows, and commands show it.

A flush only stores what its partitions state. That changes limits by the transaction of a command, which
keeps flushes out while it judges, for some callers at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from analyzer.callers.changed_limits import CALLERS_MAX, change
from analyzer.callers.record_facts import Statement, winners
from analyzer.judging.caller_limits import NO_PROFILE, Profile, subject_named
from analyzer.judging.judge import NOTHING, JudgedRows
from analyzer.judging.sql import plans
from analyzer.kernel.database.engine import insert, reading, writing
from analyzer.kernel.database.partition_keys import KEY_COLUMNS
from analyzer.kernel.database.row_parameters import is_among
from analyzer.kernel.tables.schema import callers, offsets, waiting_facts

STATED = tuple(callers.c[f"record_{name}"] for name in Profile._fields)


def apply_waiting(engine: sa.Engine, random_mark: Callable[[], str]) -> JudgedRows:
    """Applies what records have stated, of at most CALLERS_MAX callers, those that wait longest first.

    Counts these callers. Raises StoreAway, SchemaBehind.
    """
    queued = sa.select(waiting_facts.c.caller).order_by(waiting_facts.c.at_ms, waiting_facts.c.caller)
    with reading(engine) as db:
        if db.execute(queued.limit(1)).first() is None:
            return JudgedRows(0)
    with writing(engine) as db:
        plans.block_flushes(db)
        names = list(db.execute(queued.limit(CALLERS_MAX)).scalars())
        different = _different(db, names)

        def write(version: int) -> None:
            rows = [
                {"caller": caller, "version": version}
                | {f"record_{name}": value for name, value in different[caller]._asdict().items()}
                for caller in sorted(different)
            ]
            added = insert(db, callers)
            assigned = {name: added.excluded[name] for name in rows[0] if name != "caller"}
            db.execute(added.on_conflict_do_update(index_elements=callers.primary_key, set_=assigned), rows)

        judged = NOTHING
        if different:
            subjects = sorted(map(subject_named, different))
            judged = change(db, subjects, [""], write, random_mark, of_facts=True)
        db.execute(sa.delete(waiting_facts).where(is_among(db.dialect.name, waiting_facts.c.caller, names)))
        return JudgedRows(len(names), judged, "facts that records state")


class WaitingFacts(NamedTuple):
    """Callers whose facts have changed in records, and do not hold yet."""

    callers: int
    since_ms: int  # of the one that waits longest


def waiting_since(engine: sa.Engine) -> WaitingFacts | None:
    """Returns the callers whose facts wait for the warden; None for none. Raises StoreAway."""
    oldest = sa.func.min(waiting_facts.c.at_ms)
    with reading(engine) as db:
        number, since_ms = db.execute(sa.select(sa.func.count(), oldest).select_from(waiting_facts)).one()
    return WaitingFacts(number, since_ms) if number else None


class FactOrigin(NamedTuple):
    """A fact about a caller, and where it comes from."""

    fact: str
    value: str
    record: Statement | None  # that states it; None: an operator or a file has stated it
    topic: str = ""  # of the record, or the path of its file


def fact_origins(engine: sa.Engine, caller: str) -> list[FactOrigin]:
    """Returns the facts that hold for a caller, with their origins. Raises StoreAway."""
    with reading(engine) as db:
        row = db.execute(sa.select(callers).where(callers.c.caller == caller)).first()
        if row is None:
            return []
        statements = {statement.fact: statement for statement in winners(db, [caller]).get(caller, ())}
        origins = []
        for name in Profile._fields:
            value, record = getattr(row, name), None
            if not value:
                value, record = getattr(row, f"record_{name}"), statements.get(name)
            if value:
                origins.append(
                    FactOrigin(name, value, record, "" if record is None else _topic_name(db, record))
                )
        return origins


def _topic_name(db: sa.Connection, record: Statement) -> str:
    conditions = [offsets.c[name] == getattr(record, name) for name in KEY_COLUMNS]
    return db.execute(sa.select(offsets.c.topic).where(*conditions)).scalar() or record.topic_id


def _different(db: sa.Connection, names: Sequence[str]) -> Mapping[str, Profile]:
    """Returns what records state about callers, where `callers` has something else."""
    is_named = is_among(db.dialect.name, callers.c.caller, names)
    stored: Mapping[str, Profile] = {
        row.caller: Profile(*row[1:])
        for row in db.execute(sa.select(callers.c.caller, *STATED).where(is_named))
    }
    differing = {}
    for caller, statements in winners(db, names).items():
        values: dict[str, Any] = {statement.fact: statement.value for statement in statements}
        profile = Profile(**values)
        if profile != stored.get(caller, NO_PROFILE):
            differing[caller] = profile
    return differing
