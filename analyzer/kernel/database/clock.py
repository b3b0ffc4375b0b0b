"""The database's clock, and times as the tables keep them: whole milliseconds since 1970 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from analyzer.kernel.database.engine import NowMs, reading

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def clock_ms(db: sa.Connection) -> int:
    """Returns the time by the database's clock."""
    return int(db.execute(sa.select(NowMs())).scalar_one())


def database_now(engine: sa.Engine) -> datetime:
    """Returns the time by the database's clock. Raises StoreAway."""
    with reading(engine) as db:
        return instant(clock_ms(db))


def instant(time_ms: int) -> datetime:
    """Returns the exact time."""
    return EPOCH + time_ms * MILLISECOND


def millis(time: datetime) -> int:
    """Returns whole milliseconds, rounded down."""
    return (time - EPOCH) // MILLISECOND
