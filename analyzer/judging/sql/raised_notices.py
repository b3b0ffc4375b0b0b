"""The notices that were raised, the latest first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from analyzer.judging.earned_notices import Notice, NoticeKey
from analyzer.kernel.database.clock import instant
from analyzer.kernel.database.engine import ROWS_AT_ONCE, slow_reading
from analyzer.kernel.tables.schema import notices


class RaisedNotice(NamedTuple):
    """A notice, and when it was raised by the database's clock."""

    notice: Notice
    at: datetime


def raised_notices(engine: sa.Engine, since_ms: int = 0, caller: str | None = None) -> Iterator[RaisedNotice]:
    """Yields the notices since a time, the latest first. Raises StoreAway.

    Args:
        engine: The database.
        since_ms: The earliest time, by the database's clock.
        caller: Only notices about this caller.
    """
    rows = sa.select(notices).where(notices.c.at_ms >= since_ms)
    if caller is not None:
        rows = rows.where(notices.c.scope == "caller", notices.c.key == caller)
    rows = rows.order_by(notices.c.at_ms.desc(), *notices.primary_key.columns)
    with (
        slow_reading(engine) as db,
        db.execute(rows, execution_options={"yield_per": ROWS_AT_ONCE}) as stored,
    ):
        for row in stored:
            key = NoticeKey(*(getattr(row, name) for name in NoticeKey._fields))
            notice = Notice(key, row.scope, row.used, row.limit, row.until_s, row.detail)
            yield RaisedNotice(notice, instant(row.at_ms))
