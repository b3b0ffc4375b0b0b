"""Leases of closings: a process that closes a day holds one, and writes nothing without it."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.errors import ClosingLost
from analyzer.store.database.engine import NowMs, insert
from analyzer.store.database.table_groups.job_tables import leases
from analyzer.store.transaction.cut_days.day_rows import Day

LEASE_MS = 300_000  # longer than the buckets of a large day are added up, in which nothing is written
LEAP_MS = 1_000
# Ended, or taken while the clock was ahead: it ends later than a lease can.
IS_FREE = sa.or_(leases.c.until_ms < NowMs(), leases.c.until_ms > NowMs() + LEASE_MS + LEAP_MS)


def lease_of(day: Day) -> str:
    """Returns the name of the lease of a day."""
    return f"day {day.id}"


def is_held(db: sa.Connection, name: str) -> bool:
    """Whether a process closes the day."""
    wanted = sa.select(leases.c.name).where(leases.c.name == name, ~IS_FREE)
    return db.execute(wanted).first() is not None


def take(db: sa.Connection, name: str, holder: str) -> None:
    """Takes a lease that no other process holds. Raises ClosingLost if one does."""
    lease = insert(db, leases).values(name=name, holder=holder, until_ms=NowMs() + LEASE_MS)
    taken = lease.on_conflict_do_update(
        index_elements=leases.primary_key,
        set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
        where=IS_FREE,
    )
    if db.execute(taken.returning(leases.c.name)).first() is None:
        raise ClosingLost(f"{name}: another process closes it")


def keep(db: sa.Connection, name: str, holder: str) -> None:
    """Extends a lease, in the transaction of what needs it. Raises ClosingLost if another process took it."""
    is_ours = sa.and_(leases.c.name == name, leases.c.holder == holder)
    if db.execute(sa.update(leases).where(is_ours).values(until_ms=NowMs() + LEASE_MS)).rowcount != 1:
        raise ClosingLost(f"{name}: another process closes it")


def release(db: sa.Connection, name: str, holder: str) -> None:
    """Gives a lease up, if the process has it."""
    db.execute(sa.delete(leases).where(leases.c.name == name, leases.c.holder == holder))
