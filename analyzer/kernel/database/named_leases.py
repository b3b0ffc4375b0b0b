"""Leases by name: the right to do what one process does at a time, by the database's clock."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs, insert
from analyzer.kernel.tables.job_tables import leases

LEAP_MS = 1_000


class Lease:
    """A kind of lease. A process writes nothing without holding it.

    Args:
        lease_ms: How long it is held after it was taken or kept, in milliseconds.

    Attributes:
        is_free: The condition of a row of `leases` whose lease any process may take.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        # Ended, or taken while the clock was ahead: it ends later than a lease can.
        self.is_free = sa.or_(leases.c.until_ms < NowMs(), leases.c.until_ms > NowMs() + lease_ms + LEAP_MS)

    def is_held(self, db: sa.Connection, name: str) -> bool:
        """Whether a process holds it."""
        wanted = sa.select(leases.c.name).where(leases.c.name == name, ~self.is_free)
        return db.execute(wanted).first() is not None

    def take(self, db: sa.Connection, name: str, holder: str) -> bool:
        """Takes a lease; returns False if another process holds it."""
        lease = insert(db, leases).values(name=name, holder=holder, until_ms=NowMs() + self._lease_ms)
        taken = lease.on_conflict_do_update(
            index_elements=leases.primary_key,
            set_={"holder": lease.excluded.holder, "until_ms": lease.excluded.until_ms},
            where=self.is_free,
        )
        return db.execute(taken.returning(leases.c.name)).first() is not None

    def keep(self, db: sa.Connection, name: str, holder: str) -> bool:
        """Extends a lease, in the transaction of what needs it; returns False if another process took it."""
        is_ours = sa.and_(leases.c.name == name, leases.c.holder == holder)
        kept = sa.update(leases).where(is_ours).values(until_ms=NowMs() + self._lease_ms)
        return db.execute(kept).rowcount == 1

    def release(self, db: sa.Connection, name: str, holder: str) -> None:
        """Gives a lease up, if the process has it."""
        db.execute(sa.delete(leases).where(leases.c.name == name, leases.c.holder == holder))

    def left_ms(self, db: sa.Connection, name: str) -> int:
        """Returns for how long it is held if its holder does not keep it."""
        wanted = sa.select(leases.c.until_ms - NowMs()).where(leases.c.name == name)
        return max(0, int(db.execute(wanted).scalar() or 0))
