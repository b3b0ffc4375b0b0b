"""The off switch of a fleet: until its end every gate lets everybody pass. It travels with the feed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from analyzer.store.database.audit_log import record
from analyzer.store.database.clock import clock_ms, instant
from analyzer.store.database.engine import writing
from analyzer.store.transaction import lock_feed
from gatekeeper.feed.feed_json import time_text
from gatekeeper.model import SUSPENSION, Clear, Lock, Set

ON, OFF = "gates suspended", "gates resumed"  # as the account of manual acts calls them


def suspend(
    engine: sa.Engine, length_ms: int, who: str, why: str, random_mark: Callable[[], str]
) -> datetime:
    """Open every gate for so long from now, by the database's clock; the end. One that was open for longer
    or shorter is so no more. Raises StoreAway."""
    with writing(engine) as db:
        now_ms = clock_ms(db)
        until = instant(now_ms + length_ms)
        lock_feed.held(db, [SUSPENSION])  # its row before the feed's, as every writer does
        lock = Lock(
            **SUSPENSION._asdict(), began=instant(now_ms), until=until, kind="suspension", action="suspend",
            status=200, reason="suspended", detail=f"every gate is open, by {who}: {why}",
        )  # fmt: skip
        record(db, who, ON, f"until {time_text(until)}", why)
        lock_feed.publish(db, [Set(lock)], random_mark())
        return until


def resume(engine: sa.Engine, who: str, why: str, random_mark: Callable[[], str]) -> bool:
    """Whether the gates were open by `suspend`; they follow their locks again. Raises StoreAway."""
    with writing(engine) as db:
        if not lock_feed.held(db, [SUSPENSION]):
            return False
        record(db, who, OFF, "", why)
        lock_feed.publish(db, [Clear(SUSPENSION)], random_mark())
        return True
