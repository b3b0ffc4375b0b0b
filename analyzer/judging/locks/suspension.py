"""Suspension of all locks: until its end every gate admits all requests. It travels with the feed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from analyzer.judging.locks import lock_feed
from analyzer.kernel.database.audit_log import record
from analyzer.kernel.database.clock import clock_ms, instant
from analyzer.kernel.database.engine import NowMs, reading, writing
from analyzer.kernel.tables.schema import locks
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import SUSPENSION, Clear, Lock, Set

SUSPENDED, RESUMED = "locks suspend", "locks resume"  # acts in the audit log


def suspend(
    engine: sa.Engine, length_ms: int, who: str, reason: str, random_mark: Callable[[], str]
) -> datetime:
    """Suspends all locks for `length_ms` from now, by the database's clock; returns the end.

    Replaces a suspension that is in force. Raises StoreAway.
    """
    with writing(engine) as db:
        now_ms = clock_ms(db)
        until = instant(now_ms + length_ms)
        lock_feed.locked(db, [SUSPENSION])  # its row before the feed's, like every writer
        lock = Lock(
            **SUSPENSION._asdict(), began=instant(now_ms), until=until, kind="suspension", action="suspend",
            status=200, reason="suspended", detail=f"every gate is open, by {who}: {reason}",
        )  # fmt: skip
        record(db, who, SUSPENDED, f"until {time_text(until)}", reason)
        lock_feed.publish(db, [Set(lock)], random_mark())
        return until


def resume(engine: sa.Engine, who: str, reason: str, random_mark: Callable[[], str]) -> bool:
    """Ends a suspension; returns whether there was one. Raises StoreAway."""
    with writing(engine) as db:
        if not lock_feed.locked(db, [SUSPENSION]):
            return False
        record(db, who, RESUMED, "", reason)
        lock_feed.publish(db, [Clear(SUSPENSION)], random_mark())
        return True


def suspended_until(engine: sa.Engine) -> datetime | None:
    """Returns the end of the suspension of all locks; None when there is none. Raises StoreAway."""
    is_suspension = sa.and_(*(locks.c[name] == value for name, value in SUSPENSION._asdict().items()))
    with reading(engine) as db:
        until_ms = db.execute(
            sa.select(locks.c.until_ms).where(is_suspension, locks.c.until_ms > NowMs())
        ).scalar()
        return None if until_ms is None else instant(until_ms)
