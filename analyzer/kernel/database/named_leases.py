"""Leases by name: the right to do what one process does at a time, by the database's clock."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs, insert
from analyzer.kernel.tables.job_tables import leases

LEAP_MS = 1_000  # a clock that goes back by less has ended nothing that would not end now anyway


class Lease:
    """A kind of lease: a row with a compare-and-set. A process writes nothing without holding it.

    Args:
        lease_ms: How long it is held after it was taken or kept, in milliseconds.
        is_shared: Whether what a process does under it may take it again. Its row stays when it is released:
            the process that takes it next sees by `is_ahead` whether the clock was ahead.

    Attributes:
        is_free: The condition of a row of `leases` whose lease any process may take.
    """

    def __init__(self, lease_ms: int, *, is_shared: bool = False) -> None:
        self._lease_ms = lease_ms
        self._is_shared = is_shared
        # Taken while the clock was ahead: it ends later than a lease can, and belongs to no process.
        self._is_ahead = leases.c.until_ms > NowMs() + lease_ms + LEAP_MS
        self.is_free = sa.or_(leases.c.until_ms < NowMs(), self._is_ahead)

    def is_held(self, db: sa.Connection, name: str) -> bool:
        """Whether a process holds it."""
        statement = sa.select(leases.c.name).where(leases.c.name == name, ~self.is_free)
        return db.execute(statement).first() is not None

    def is_ahead(self, db: sa.Connection, name: str) -> bool:
        """Whether it was taken while the database's clock was ahead, and the clock is back."""
        ahead = sa.select(leases.c.name).where(leases.c.name == name, self._is_ahead)
        return db.execute(ahead).first() is not None

    def take(self, db: sa.Connection, name: str, holder: str) -> bool:
        """Takes a lease; returns False if another process holds it."""
        lease = insert(db, leases).values(name=name, holder=holder, until_ms=NowMs() + self._lease_ms)
        is_ours = leases.c.holder == holder
        upsert = lease.on_conflict_do_update(
            index_elements=leases.primary_key,
            set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
            where=sa.or_(is_ours, self.is_free) if self._is_shared else self.is_free,
        )
        return db.execute(upsert.returning(leases.c.name)).first() is not None

    def keep(self, db: sa.Connection, name: str, holder: str) -> bool:
        """Extends a lease, in the transaction of what needs it; returns False if another process took it."""
        is_ours = sa.and_(leases.c.name == name, leases.c.holder == holder)
        kept = sa.update(leases).where(is_ours).values(until_ms=NowMs() + self._lease_ms)
        return db.execute(kept).rowcount == 1

    def release(self, db: sa.Connection, name: str, holder: str) -> None:
        """Gives a lease up, if the process has it: another one can take it at once."""
        is_ours = sa.and_(leases.c.name == name, leases.c.holder == holder)
        if self._is_shared:
            is_held = leases.c.until_ms > NowMs()
            db.execute(sa.update(leases).where(is_ours, is_held).values(until_ms=NowMs() - 1))
        else:
            db.execute(sa.delete(leases).where(is_ours))

    def left_ms(self, db: sa.Connection, name: str) -> int:
        """Returns for how long it is held if its holder does not keep it."""
        statement = sa.select(leases.c.until_ms - NowMs()).where(leases.c.name == name)
        return max(0, int(db.execute(statement).scalar() or 0))
