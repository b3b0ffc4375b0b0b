"""An account of what people did by hand: who, what, to what, when, and why."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.store.database.clock import instant
from analyzer.store.database.engine import NowMs
from analyzer.store.database.schema import events
from analyzer.store.reports.status import ROWS_AT_ONCE, unhurried


class AuditEntry(NamedTuple):
    """One manual act."""

    at: datetime  # by the database's clock
    who: str
    act: str
    about: str
    why: str


def record(db: sa.Connection, who: str, act: str, about: str, why: str) -> None:
    """Write down one act, in the transaction that does it: neither happens without the other."""
    db.execute(
        sa.insert(events).values(
            id=secrets.token_hex(8), at_ms=NowMs(), who=who, act=act, about=about, why=why
        )
    )


def recorded(engine: sa.Engine, since_ms: int = 0) -> Iterator[AuditEntry]:
    """Every act from `since_ms` on, the latest first, in constant memory. Raises StoreAway."""
    statement = (
        sa.select(events.c.at_ms, events.c.who, events.c.act, events.c.about, events.c.why)
        .where(events.c.at_ms >= since_ms)
        .order_by(events.c.at_ms.desc(), events.c.id)
    )
    with (
        unhurried(engine) as db,
        db.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE}) as rows,
    ):
        for at_ms, *rest in rows:
            yield AuditEntry(instant(at_ms), *rest)
