"""Leases of closings: a process that closes a day holds one, and writes nothing without it."""

from __future__ import annotations

import sqlalchemy as sa

from analyzer.billing.days.day_rows import Day
from analyzer.kernel.database.named_leases import Lease
from analyzer.kernel.errors import ClosingLost

# Longer than the buckets of a large day are added up, in which nothing is written.
CLOSINGS = Lease(lease_ms=300_000)


def lease_of(day: Day) -> str:
    """Returns the name of the lease of a day."""
    return f"day {day.id}"


def is_held(db: sa.Connection, name: str) -> bool:
    """Whether a process closes the day."""
    return CLOSINGS.is_held(db, name)


def take(db: sa.Connection, name: str, holder: str) -> None:
    """Takes a lease that no other process holds. Raises ClosingLost if one does."""
    if not CLOSINGS.take(db, name, holder):
        raise ClosingLost(f"{name}: another process closes it")


def keep(db: sa.Connection, name: str, holder: str) -> None:
    """Extends a lease, in the transaction of what needs it. Raises ClosingLost if another process took it."""
    if not CLOSINGS.keep(db, name, holder):
        raise ClosingLost(f"{name}: another process closes it")


def release(db: sa.Connection, name: str, holder: str) -> None:
    """Gives a lease up, if the process has it."""
    CLOSINGS.release(db, name, holder)
